//! This node towards other nodes: its identity, its cluster id, and admission of their calls.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rocksdb::DB;
use tokio::sync::watch;

use super::call_metadata;
use super::call_metadata::{CallMetadata, CallRejection};
use super::identities::NodeIdentities;
use super::transfer_progress::{SentSnapshots, TransferProgress};
use crate::clock::Clock;
use crate::cluster::corrupt::REPLACE_ADVICE;
use crate::cluster::database_guard::DatabaseGuard;
use crate::cluster::disk_records::DiskRecords;
use crate::cluster::disk_rollback::{DiskRecord, Life};
use crate::cluster::disk_space::Space;
use crate::cluster::known_members::KnownMembers;
use crate::cluster::log::{self, CLUSTER_ID};
use crate::cluster::type_config::{ClusterId, DiskId, LogId};
use crate::cluster::{Corrupt, Machine};
use crate::id::WorkloadId;
use crate::telemetry::FailureLog;
use crate::{limits, text};

/// Addresses of the initial members, by node id.
pub type InitialMembers = BTreeMap<u64, String>;

/// Feature levels, for calls between nodes.
pub(crate) struct FeatureLevels {
    /// The newest level that this program supports.
    newest: u32,
    /// Level of the cluster, as this node has applied it.
    cluster: Box<dyn Fn() -> u32 + Send + Sync>,
}

impl FeatureLevels {
    /// Feature levels of this program and of this state machine.
    pub(crate) fn of<M: Machine>(machine: Arc<M>) -> Self {
        Self { newest: M::NEWEST_LEVEL, cluster: Box::new(move || machine.feature_level()) }
    }

    /// Level of the cluster, as this node has applied it.
    pub(crate) fn cluster(&self) -> u32 {
        (self.cluster)()
    }
}

pub(crate) struct LocalNode {
    pub(crate) node_id: u64,
    /// Disk identity.
    pub(crate) disk_id: DiskId,
    /// Life of this process.
    pub(crate) life: Life,
    /// Records of the members' disks.
    pub(crate) disk_records: Arc<DiskRecords>,
    /// Identities of the nodes; `None` in a cluster of one.
    pub(crate) identities: Option<NodeIdentities>,
    /// The configured initial members, this node included. Empty on a node that joined an existing cluster.
    pub(crate) initial_members: InitialMembers,
    /// Whether this node joined an existing cluster, and so never bootstraps one.
    pub(crate) has_joined: bool,
    /// Feature levels of this program and of the cluster.
    pub(crate) feature_levels: FeatureLevels,
    /// Failures of other nodes, by node id.
    pub(crate) failures: PeerFailures,
    /// Progress of the snapshot that this node is receiving.
    pub(crate) receiving: TransferProgress,
    /// Snapshots that this node sends.
    pub(crate) sent_snapshots: SentSnapshots,
    /// Held while the cluster id is stored.
    joining: Mutex<()>,
    cluster_id: OnceLock<ClusterId>,
    database: Arc<DB>,
    /// The reason why this node must stop, if it must.
    stops: watch::Sender<Option<String>>,
    /// The nodes that bootstrap waits for, and why; empty if none.
    waits_for: watch::Sender<String>,
    /// The committed entry of this node that differs from a leader's.
    contradiction: watch::Sender<Option<LogId>>,
    /// Dropped after the database, so that the database is closed when [`crate::cluster::Closed`] reports it.
    _open: DatabaseGuard,
}

/// Failures of other nodes, by node id.
pub(crate) struct PeerFailures {
    /// Log replication to a node.
    pub(crate) replication: FailureLog<u64>,
    /// Admission of the calls of a node.
    pub(crate) calls: FailureLog<u64>,
    /// Verification of the responses of a node.
    pub(crate) responses: FailureLog<u64>,
}

impl PeerFailures {
    fn new(clock: &Clock) -> Self {
        Self {
            replication: FailureLog::new(clock.clone(), "log replication to a node"),
            calls: FailureLog::new(clock.clone(), "admission of the call of a node"),
            responses: FailureLog::new(clock.clone(), "verification of the response of a node"),
        }
    }
}

/// Kind of a call, for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Before membership.
    Hello,
    /// A Raft message. The caller may be a node that this node does not know yet: a follower that missed the entry
    /// that added its leader must be able to follow it.
    Raft,
    /// Between members.
    Member,
}

impl LocalNode {
    /// Reads the cluster id from the disk.
    pub(crate) fn open(
        (node_id, disk_id, life): (u64, DiskId, Life),
        identities: Option<NodeIdentities>,
        initial_members: InitialMembers,
        (database, disk_records, open): (Arc<DB>, Arc<DiskRecords>, DatabaseGuard),
        (feature_levels, clock): (FeatureLevels, &Clock),
    ) -> Result<Self, Corrupt> {
        disk_records.record_own_life((node_id, disk_id), &life);
        let cluster_id = OnceLock::new();
        if let Some(row) = log::read_meta(&database, CLUSTER_ID)? {
            let id =
                row.try_into().map_err(|_| Corrupt::new(database.path(), "cluster id is not 16 bytes"))?;
            cluster_id.get_or_init(|| id);
        }
        let has_joined = log::read_meta(&database, log::JOINED)?.is_some();
        let (stops, contradiction) = (watch::Sender::new(None), watch::Sender::new(None));
        let waits_for = watch::Sender::default();
        Ok(Self {
            node_id,
            disk_id,
            life,
            disk_records,
            identities,
            initial_members,
            has_joined,
            feature_levels,
            failures: PeerFailures::new(clock),
            receiving: TransferProgress::default(),
            sent_snapshots: SentSnapshots::default(),
            joining: Mutex::new(()),
            cluster_id,
            database,
            stops,
            waits_for,
            contradiction,
            _open: open,
        })
    }

    /// The cluster id; `None` before bootstrap.
    pub(crate) fn cluster_id(&self) -> Option<ClusterId> {
        self.cluster_id.get().copied()
    }

    /// Stores the cluster id durably, once per disk. Fails for any other id.
    pub(crate) fn join(&self, id: ClusterId) -> io::Result<()> {
        let _joining = self.joining.lock();
        if let Some(known) = self.cluster_id() {
            return if known == id {
                Ok(())
            } else {
                Err(io::Error::other("this node belongs to another cluster"))
            };
        }
        log::write_meta(&self.database, CLUSTER_ID, &id)?;
        self.cluster_id.get_or_init(|| id);
        Ok(())
    }

    /// Space of the file system with the log; `None` if it cannot be read.
    pub(crate) fn disk_space(&self) -> Option<Space> {
        Space::of(self.database.path())
    }

    /// Stops this node with a reason.
    pub(crate) fn stop(&self, reason: String) {
        self.stops.send_if_modified(|stops| {
            let is_first = stops.is_none();
            stops.get_or_insert(reason);
            is_first
        });
    }

    /// Stops this node permanently: its disk was rolled back or copied, and later starts on it fail.
    pub(crate) fn stop_for_good(&self, reason: String) {
        if self.stops.borrow().is_none()
            && let Err(error) = log::write_meta(&self.database, log::REFUSED, reason.as_bytes())
        {
            tracing::error!(%error, "failed to mark the data directory as rejected");
        }
        self.stop(reason);
    }

    /// The reason why this node must stop, if it must.
    pub(crate) fn stops(&self) -> watch::Receiver<Option<String>> {
        self.stops.subscribe()
    }

    /// Records which other nodes this node waits for, for readiness.
    pub(crate) fn wait_for(&self, others: String) {
        self.waits_for.send_replace(others);
    }

    /// The nodes that bootstrap waits for, and why; empty if none.
    pub(crate) fn waits_for(&self) -> String {
        self.waits_for.borrow().clone()
    }

    /// Records that a leader's log differs at an entry that is committed here. The node stops a little later, so that
    /// the leader receives the refusal.
    pub(crate) fn contradicted(&self, ours: LogId) -> CallRejection {
        let rejection = CallRejection::Contradiction(ours, self.node_id);
        if self.contradiction.send_replace(Some(ours)).is_none() {
            tracing::error!(%rejection, "committed entries contradict the leader's log; this node stops");
        }
        rejection
    }

    /// Stops this node after a contradiction. Runs for ever without one.
    pub(crate) async fn stop_when_contradicted(&self) {
        let mut contradiction = self.contradiction.subscribe();
        // The wait cannot fail: this node holds the sender.
        let ours = contradiction.wait_for(Option::is_some).await.ok().and_then(|ours| *ours);
        if let Some(ours) = ours {
            tokio::time::sleep(limits::CONTRADICTION_REPORT_TIME).await;
            self.stop(CallRejection::Contradiction(ours, self.node_id).to_string());
        }
    }

    /// Verifies this node's own life against a member's record of it.
    fn verify_own(&self, known: &DiskRecord, by: u64) -> Result<(), CallRejection> {
        known.verify_life(&self.life).map_err(|why| {
            let rejection = CallRejection::LocalDiskRollback { node: self.node_id, by, why };
            self.stop_for_good(format!("{rejection}; {REPLACE_ADVICE}"));
            rejection
        })
    }

    /// Verifies the life of the calling process, and records it if the caller is a member.
    fn verify_life(&self, call: &CallMetadata, members: &KnownMembers) -> Result<(), CallRejection> {
        let disk = (call.from, call.from_disk);
        if !members.has_disk(&disk) && self.disk_records.of(disk).is_none() {
            return Ok(());
        }
        self.disk_records
            .record_life(disk, &call.life)
            .map_err(|why| CallRejection::DiskRollback { node: call.from, why })
    }

    /// Admits a call or rejects it. Checks in this order: the caller's certificate; the called node and its
    /// disk; the cluster id; membership and the caller's disk; rollback of either disk; the feature level.
    /// `removed_at` returns the log index at which a node was removed.
    ///
    /// # Errors
    /// The first failed check.
    pub(crate) fn admit(
        &self,
        call: &CallMetadata,
        certified: &WorkloadId,
        kind: CallKind,
        members: &KnownMembers,
        removed_at: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), CallRejection> {
        let identities = self.identities.as_ref().ok_or(CallRejection::Unstated)?;
        call_metadata::check_identity(call, certified, identities, self.node_id)?;
        match call.to_disk {
            Some(disk) if disk != self.disk_id => {
                let rejection = CallRejection::OtherDisk(self.node_id);
                if self.cluster_id().is_none() {
                    self.stop(format!("{rejection}; {REPLACE_ADVICE}"));
                }
                return Err(rejection);
            }
            None if kind != CallKind::Hello => return Err(CallRejection::Unstated),
            _ => {}
        }
        if kind == CallKind::Hello {
            return self.verify_life(call, members);
        }
        self.check_cluster(call)?;
        self.check_membership(call, kind, members, removed_at)?;
        let is_known = members.is_empty() || members.has_disk(&(call.from, call.from_disk));
        if let Some(known) = call.known.as_ref().filter(|_| is_known) {
            self.verify_own(known, call.from)?;
        }
        self.verify_life(call, members)?;
        self.check_feature_level(call, is_known)?;
        match *self.contradiction.borrow() {
            Some(ours) => Err(CallRejection::Contradiction(ours, self.node_id)),
            None => Ok(()),
        }
    }

    /// The caller states the cluster id of this node, if this node has one.
    fn check_cluster(&self, call: &CallMetadata) -> Result<(), CallRejection> {
        let theirs = call.cluster_id.ok_or(CallRejection::Unstated)?;
        match self.cluster_id() {
            Some(ours) if ours != theirs => {
                Err(CallRejection::OtherCluster { ours: text::hex(&ours), theirs: text::hex(&theirs) })
            }
            _ => Ok(()),
        }
    }

    /// This node supports the feature level that the caller has applied; otherwise it stops: it could not apply the log.
    /// A caller that it does not know is rejected only.
    fn check_feature_level(&self, call: &CallMetadata, is_known: bool) -> Result<(), CallRejection> {
        let (cluster, newest) = (call.feature_level, self.feature_levels.newest);
        if cluster <= newest {
            return Ok(());
        }
        let rejection = CallRejection::FeatureLevel { node: self.node_id, cluster, newest };
        if is_known {
            self.stop(rejection.to_string());
        }
        Err(rejection)
    }

    /// The caller is a member on the disk of the membership. Before this node belongs to a cluster, the configured
    /// initial members count as members. A node that this node does not know may send Raft messages only, unless it was
    /// removed: a removal is a fact of the committed log, so no present member is refused for it.
    fn check_membership(
        &self,
        call: &CallMetadata,
        kind: CallKind,
        members: &KnownMembers,
        removed_at: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), CallRejection> {
        let node = call.from;
        if let Some(known) = members.get(node) {
            let is_same = known.disk_id == call.from_disk;
            return if is_same { Ok(()) } else { Err(CallRejection::DiskOfCaller(node)) };
        }
        if let Some(index) = removed_at(node) {
            return Err(CallRejection::Removed { node, index });
        }
        if self.cluster_id().is_none() && !self.initial_members.contains_key(&node) {
            return Err(CallRejection::NotInitialMember(node));
        }
        let is_admitted = kind == CallKind::Raft || members.is_empty();
        if is_admitted { Ok(()) } else { Err(CallRejection::NotAMember(node)) }
    }
}
