//! This node among its peers: who it is, which cluster it belongs to, and whom it lets call.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use rocksdb::DB;
use tokio::sync::watch;

use super::call::{self, Call, ClusterId, DiskId, Refusal};
use crate::cluster::log::{self, CLUSTER_ID};
use crate::cluster::types::StoredMembership;
use crate::cluster::{Corrupt, Open};
use crate::id::{TrustDomain, WorkloadId};

/// The addresses of the nodes that found a cluster together, by id.
pub type Founders = BTreeMap<u64, String>;

/// This node among its peers.
pub struct This {
    /// Its id.
    pub node_id: u64,
    /// Its disk.
    pub disk_id: DiskId,
    /// Of every node's certificate; `None` in a cluster of one.
    pub trust_domain: Option<TrustDomain>,
    /// Those that are configured to found a cluster with it, itself among them.
    pub founders: Founders,
    cluster_id: OnceLock<ClusterId>,
    database: Arc<DB>,
    /// Why this node must stop, if it must.
    stops: watch::Sender<Option<String>>,
    /// Dropped after the database, so that whoever waits for it finds the database closed.
    _open: Open,
}

/// How far a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between nodes that may not know each other yet.
    Hello,
    /// Between members.
    Member,
}

impl This {
    /// As the disk says.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn open(
        (node_id, disk_id): (u64, DiskId),
        trust_domain: Option<TrustDomain>,
        founders: Founders,
        (database, open): (Arc<DB>, Open),
    ) -> Result<Self, Corrupt> {
        let cluster_id = OnceLock::new();
        if let Some(row) = log::read_meta(&database, CLUSTER_ID)? {
            let id =
                row.try_into().map_err(|_| Corrupt::new(database.path(), "cluster id is not 16 bytes"))?;
            cluster_id.get_or_init(|| id);
        }
        let stops = watch::Sender::new(None);
        Ok(Self { node_id, disk_id, trust_domain, founders, cluster_id, database, stops, _open: open })
    }

    /// The cluster it belongs to; `None` if to none yet.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.cluster_id.get().copied()
    }

    /// Belongs to this cluster from now on, durably. Once in the life of a disk.
    ///
    /// # Errors
    /// If the disk refuses, or it belongs to another.
    pub fn join(&self, id: ClusterId) -> io::Result<()> {
        if let Some(known) = self.cluster_id() {
            return if known == id { Ok(()) } else { Err(io::Error::other("it belongs to another cluster")) };
        }
        log::write_meta(&self.database, CLUSTER_ID, &id)?;
        // Two that tell it of the same cluster write the same.
        match self.cluster_id.get_or_init(|| id) {
            known if *known == id => Ok(()),
            _ => Err(io::Error::other("it joined another cluster meanwhile")),
        }
    }

    /// Stops this node, with an explanation.
    pub fn stop(&self, reason: String) {
        self.stops.send_if_modified(|stops| {
            let is_first = stops.is_none();
            stops.get_or_insert(reason);
            is_first
        });
    }

    /// Why it must stop, if it must.
    pub fn stops(&self) -> watch::Receiver<Option<String>> {
        self.stops.subscribe()
    }

    /// Lets a call in, or says why not. In this order: who calls, as the certificate says; whom; on which
    /// disks; of which cluster, as one of its `members`. Until it knows any, those count with which this node is
    /// configured to found one.
    ///
    /// # Errors
    /// As [`Refusal`] says.
    pub fn admit(
        &self,
        call: &Call,
        certified: &WorkloadId,
        kind: Kind,
        members: &StoredMembership,
    ) -> Result<(), Refusal> {
        let trust_domain = self.trust_domain.as_ref().ok_or(Refusal::Unstated)?;
        call::check_identity(call, certified, trust_domain, self.node_id)?;
        match call.to_disk {
            Some(disk) if disk != self.disk_id => {
                let refusal = Refusal::OtherDisk(self.node_id);
                if self.cluster_id().is_none() {
                    self.stop(format!("{refusal}; give this node an id that was never used"));
                }
                return Err(refusal);
            }
            None if kind == Kind::Member => return Err(Refusal::Unstated),
            _ => {}
        }
        if kind == Kind::Hello {
            return Ok(());
        }
        let members = members.membership();
        match members.get_node(&call.from) {
            Some(known) if known.disk_id != call.from_disk => return Err(Refusal::DiskOfCaller(call.from)),
            None if members.nodes().next().is_some() => return Err(Refusal::NotAMember(call.from)),
            None if !self.founders.contains_key(&call.from) => return Err(Refusal::NotAFounder(call.from)),
            _ => {}
        }
        let theirs = call.cluster_id.ok_or(Refusal::Unstated)?;
        match self.cluster_id() {
            Some(ours) if ours == theirs => Ok(()),
            Some(ours) => {
                Err(Refusal::OtherCluster { ours: call::shown(&ours), theirs: call::shown(&theirs) })
            }
            None => Ok(()),
        }
    }
}
