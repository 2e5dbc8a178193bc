//! Starts this node: opens the data directory, verifies it, and starts Raft and its background tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{InitializeError, RaftError};
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};

use super::apply::database::Generations;
use super::apply::snapshot::Snapshots;
use super::apply::state_machine::{Shared, StateMachine};
use super::clocks::{Clocks, Stamps};
use super::database_guard::Closed;
use super::disk_space::DiskSpace;
use super::disk_watch::Watchdog;
use super::divergence::Divergence;
use super::log::purge::Surplus;
use super::membership::removed;
use super::peers::{
    Channels, FeatureLevels, InitialMembers, LocalNode, Network, NodeIdentities, Peers, bootstrap,
};
use super::propose::SequenceAllocator;
use super::propose::batcher::Batcher;
use super::propose::forwarding::Forwarder;
use super::reads::freshness::{Freshness, FreshnessMode};
use super::reads::read_index::{ReadIndex, ReadIndexTask};
use super::type_config::{self, ClusterId, DiskId, MemberRecord};
use super::{Corrupt, Handle, Machine, Parts, ProposerId, disk_identity, log, peers, raft_config};
use crate::clock::Clock;
use crate::limits;
use crate::tls::Tls;

/// Options of [`start`].
pub struct Options {
    /// The data directory. It must exist.
    pub(crate) data: PathBuf,
    pub(crate) node_id: u64,
    /// 16 random bytes: the disk identity, if the disk has none yet.
    pub(crate) drawn_disk_id: [u8; 16],
    /// 16 random bytes: the cluster id, if this node bootstraps a cluster.
    pub(crate) drawn_cluster_id: [u8; 16],
    /// Identity of this process as proposer. Drawn anew for every start.
    pub(crate) drawn_proposer_id: ProposerId,
    /// Heartbeat interval. The election timeout is three to six of them.
    pub(crate) heartbeat: Duration,
    /// The clock that stamps entries.
    pub(crate) clock: Clock,
    /// How this node proves that it has applied every acknowledged entry.
    pub(crate) freshness: FreshnessMode,
    /// Maximum bytes of log entries; beyond it, a snapshot is taken and the log is purged.
    pub(crate) log_bytes_max: u64,
    /// Digest of settings in which members should agree, for their reports.
    pub(crate) settings_digest: Option<String>,
    /// Transport between nodes; `None` for a cluster of one.
    pub(crate) transport: Option<Transport>,
}

/// Transport between nodes.
pub struct Transport {
    /// Listener for connections of other nodes.
    pub(crate) listener: TcpListener,
    /// Certificates and trust anchors.
    pub(crate) tls: Tls,
    /// Trust domain of the node certificates, whose SPIFFE ID is `spiffe://<trust domain>/node/<id>`.
    pub(crate) identities: NodeIdentities,
    /// Addresses of the initial members, this node included. Ignored once this node belongs to a cluster.
    pub(crate) initial_members: InitialMembers,
}

/// A background task that the caller must run.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A started node and its background tasks.
pub struct Started<M: Machine> {
    pub(crate) handle: Handle<M>,
    /// Tasks for the asynchronous runtime, each to be run until it ends.
    pub(crate) work: Vec<Work>,
    /// Detects a hanging disk; to be run on a thread of its own.
    pub(crate) watchdog: Watchdog,
    /// Reports when the databases are closed.
    pub(crate) closed: Closed,
}

/// The loops that renew the lease, monitor members, disk and clock, decide disputes, and keep the log within its limit.
fn watches<M: Machine>(
    handle: &Handle<M>,
    read_index_task: ReadIndexTask,
    log: &log::LogReader,
    surplus: watch::Receiver<Option<Surplus>>,
) -> [Work; 11] {
    [
        Box::pin(handle.clone().renew_lease()),
        Box::pin(handle.clone().poll_members()),
        Box::pin(handle.clone().update_candidacy()),
        Box::pin(handle.clone().step_down_with_wrong_clock()),
        Box::pin(handle.clone().watch_disk()),
        Box::pin(handle.clone().watch_disk_space()),
        Box::pin(handle.clone().settle_disputes(log.clone())),
        Box::pin(handle.clone().log_leader_changes()),
        Box::pin(handle.clone().manage_membership()),
        Box::pin(handle.clone().serve_read_index(read_index_task)),
        Box::pin(handle.clone().keep_log_within_limit(surplus)),
    ]
}

/// Opens the data directory and starts this node, as a member of its cluster or to bootstrap one.
///
/// `run_writer` is given the log writer's loop and must run it on a thread of its own.
///
/// # Errors
/// [`Corrupt`] if the data directory fails verification.
pub(crate) async fn start<M: Machine>(
    options: Options,
    machine: M,
    run_writer: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> Result<Started<M>, Corrupt> {
    let Options { data, node_id, heartbeat, clock, log_bytes_max, .. } = options;
    let failed = |error: &dyn fmt::Display| Corrupt::new(&data, error);

    let database = Arc::new(log::open_database(&data.join("raft"))?);
    let identity = disk_identity::establish(&data, &database, node_id, options.drawn_disk_id)?;
    let (open, closed) = mpsc::channel(1);
    let (tls, listener, identities, initial_members) = match options.transport {
        Some(Transport { listener, tls, identities, initial_members }) => {
            (Some(tls), Some(listener), Some(identities), initial_members)
        }
        None => (None, None, None, InitialMembers::new()),
    };
    let mut opened = log::open(Arc::clone(&database), log_bytes_max, open.clone())?;

    let machine = Arc::new(machine);
    let generations = Generations::new(data.join("state")).map_err(|error| failed(&error))?;
    let snapshots = Snapshots::new(data.join("snapshots"), M::TABLES, open.clone());
    let snapshots = snapshots.map_err(|error| failed(&error))?;
    let (state, shared) = StateMachine::open(
        Arc::clone(&machine),
        generations,
        snapshots.clone(),
        (opened.durable.clone(), Divergence::open(Arc::clone(&database))?),
        open.clone(),
        clock.clone(),
    )?;
    let applied = shared.database.load().applied()?;
    let installed = installed_before_the_log(&opened.store, &shared, applied, failed)?;
    let snapshot = current_snapshot(&snapshots, &shared, opened.purged.max(installed))?;
    // openraft installs a snapshot that is ahead of the state.
    if applied.max(snapshot) < opened.purged {
        return Err(failed(&"the state is older than the first entry of the log"));
    }
    let watchdog = opened.watchdog.with_heartbeat(heartbeat);
    run_writer(opened.writer).map_err(|error| failed(&error))?;
    let aligned = opened.store.follow_on(applied, installed).await;
    aligned.map_err(|error| failed(&error))?;
    let end = installed.or(opened.last).max(snapshot);
    let life =
        disk_identity::record_start(&database, *options.drawn_proposer_id.as_bytes(), opened.vote, end)?;
    let local = LocalNode::open(
        (node_id, identity.disk_id, life),
        identities.clone(),
        initial_members,
        (database, opened.disk_records, open),
        (FeatureLevels::of(Arc::clone(&machine)), &clock),
    )?;
    check_has_cluster(&local, (tls.is_some(), end))?;

    let config = raft_config::raft_config(heartbeat).map_err(|error| failed(&error))?;
    let channels = Arc::new(Channels::new(Arc::new(local), tls.clone()));
    let clocks = Arc::new(Clocks::new(clock.clone(), node_id));
    let disputes = shared.divergence.watch();
    let network = Network { channels: Arc::clone(&channels), clocks: Arc::clone(&clocks), disputes };
    let log_reader = opened.store.reader();
    let raft = openraft::Raft::new(node_id, config, network, opened.store, state).await;
    let raft = raft.map_err(|error| failed(&error))?;

    let freshness = Freshness::new(clock.clone(), options.freshness, shared.divergence.is_open());
    let stamps = Stamps::new(raft.clone(), &clocks, &machine, &shared);
    let (batcher, batching) = Batcher::new(stamps);
    let (forwarder, forwarding) = Forwarder::new(Arc::clone(&channels), clock.clone());
    let sequences = Arc::new(SequenceAllocator::new(options.drawn_proposer_id));
    let (reads, read_index_task) = ReadIndex::new(reads_max(options.freshness));
    let handle = Handle(Arc::new(Parts {
        raft,
        sequences,
        batcher,
        forwarder,
        shared,
        machine,
        freshness: Arc::new(freshness),
        readers: Arc::default(),
        progress: Arc::default(),
        candidacy: Arc::default(),
        disk: watchdog.disk(),
        space: Arc::new(DiskSpace::default()),
        reads,
        clock,
        clocks,
        publisher: peers::Publisher::default(),
        leader_changes: Arc::default(),
        settings_digest: options.settings_digest.map(Arc::from),
        channels: Arc::clone(&channels),
        node_id,
    }));
    let mut work: Vec<Work> = vec![
        Box::pin(batching),
        Box::pin(forwarding),
        Box::pin(handle.clone().update_disk_records(opened.jobs)),
    ];
    work.extend(watches(&handle, read_index_task, &log_reader, opened.surplus));
    match (tls, listener, identities) {
        (Some(tls), Some(listener), Some(identities)) => {
            handle.check_member(identity.disk_id).await.map_err(|error| failed(&error))?;
            let (local, receiving) = (Arc::clone(&channels.local), AsyncMutex::new(None));
            let peers = Peers { local, handle: handle.clone(), log: log_reader, snapshots, receiving };
            let bootstrapping = bootstrap(channels, handle.clone(), options.drawn_cluster_id);
            work.push(serve_peers(peers, (listener, tls, identities), bootstrapping));
        }
        _ => handle.bootstrap_alone(options.drawn_cluster_id, failed).await?,
    }
    Ok(Started { handle, work, watchdog, closed: Closed::new(closed) })
}

/// Serves other nodes and bootstraps the cluster. Ends with the listener: a node that cannot be reached must stop.
fn serve_peers<M: Machine>(
    peers: Peers<M>,
    (listener, tls, identities): (TcpListener, Tls, NodeIdentities),
    bootstrapping: impl Future<Output = ()> + Send + 'static,
) -> Work {
    let local = Arc::clone(&peers.local);
    Box::pin(async move {
        let served = peers::serve(peers, listener, (tls.clone(), identities));
        tokio::select! {
            () = served => {}
            _ = async { tokio::join!(bootstrapping, tls.follow(), local.stop_when_contradicted()) } => {}
        }
    })
}

/// Refuses a node without log that has no cluster to bootstrap and has joined none, or has joined one and cannot reach it.
fn check_has_cluster(
    local: &LocalNode,
    (has_peers, last): (bool, Option<type_config::LogId>),
) -> Result<(), Corrupt> {
    match (has_peers, last) {
        (true, None) if local.initial_members.is_empty() && !local.has_joined => Err(Corrupt::not_joined()),
        // It would found a second cluster with the id of the one that it joined.
        (false, None) if local.has_joined => {
            Err(Corrupt::misconfigured("this node joined a cluster: cluster.listen must be set"))
        }
        _ => Ok(()),
    }
}

/// The last entry of an installed snapshot, if a crash came before its log was replaced.
fn installed_before_the_log(
    log: &log::LogStore,
    shared: &Shared,
    applied: Option<type_config::LogId>,
    failed: impl Fn(&dyn fmt::Display) -> Corrupt,
) -> Result<Option<type_config::LogId>, Corrupt> {
    if log.holds(applied).map_err(|error| failed(&error))? {
        return Ok(None);
    }
    if shared.database.load().installed()? != applied {
        return Err(failed(&"the state is ahead of the log: acknowledged log entries are lost"));
    }
    Ok(applied)
}

/// Without a lease, each request that needs a freshness proof is a `ReadIndex` request.
const fn reads_max(freshness: FreshnessMode) -> usize {
    match freshness {
        FreshnessMode::Lease => limits::READ_INDEX_WAITS_MAX,
        FreshnessMode::ReadIndex => limits::FRESHNESS_WAITS_MAX,
    }
}

/// The last entry of the newest snapshot. If no snapshot covers the entries `removed` from the log (its files were
/// lost, or a crash interrupted an installation), one is taken here: openraft would take it too, but panics if the disk
/// fails.
fn current_snapshot(
    snapshots: &Snapshots,
    shared: &Shared,
    removed: Option<type_config::LogId>,
) -> Result<Option<type_config::LogId>, Corrupt> {
    let failed = |error: io::Error| Corrupt::snapshot(snapshots.directory(), error);
    let current = snapshots.current().map_err(failed)?.and_then(|current| current.meta.last_log_id);
    let database = shared.database.load();
    if current >= removed || database.applied()? < removed {
        return Ok(current);
    }
    let taken = snapshots.begin(&database).and_then(|builder| builder.finish()).map_err(failed)?;
    Ok(taken.meta.last_log_id)
}

impl<M: Machine> Handle<M> {
    /// Bootstraps a cluster of one, or checks that the log is that of one.
    async fn bootstrap_alone(
        &self,
        drawn: ClusterId,
        failed: impl Fn(&dyn fmt::Display) -> Corrupt,
    ) -> Result<(), Corrupt> {
        let local = &self.channels.local;
        let id = local.cluster_id().unwrap_or(drawn);
        local.join(id).map_err(|error| failed(&error))?;
        let peer = MemberRecord { address: String::new(), disk_id: local.disk_id };
        match self.raft.initialize(BTreeMap::from([(self.node_id, peer)])).await {
            Ok(()) => return Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(failed(&error)),
        }
        self.check_member(local.disk_id).await.map_err(|error| failed(&error))?;
        if self.known_members().all().len() == 1 {
            return Ok(());
        }
        let what = "the log belongs to a cluster with several members: cluster.listen must be set";
        Err(Corrupt::misconfigured(what))
    }

    /// Checks that the membership, if there is one, contains this node on this disk. A node that joined may not have
    /// received the entry that added it.
    async fn check_member(&self, disk_id: DiskId) -> Result<(), String> {
        // Until the core runs, the metrics have neither membership nor log.
        self.raft.with_raft_state(|_| ()).await.map_err(|error| error.to_string())?;
        if let Some(index) = self.machine.removed_at(self.node_id) {
            return Err(removed(self.node_id, index));
        }
        let (members, local) = (self.known_members(), &self.channels.local);
        let initial_members = &local.initial_members;
        match members.get(self.node_id) {
            None if members.is_empty() || local.has_joined => Ok(()),
            None => Err("this node is not in the membership of its log".to_owned()),
            Some(known) if known.disk_id != disk_id => {
                Err(format!("node {} is a member with another disk identity", self.node_id))
            }
            Some(known) if known.address.is_empty() && initial_members.len() > 1 => Err(
                "the log belongs to a cluster of one, which cannot bootstrap another: start it without cluster.members, \
                 or with an empty data directory"
                    .to_owned(),
            ),
            Some(_) => Ok(()),
        }
    }
}
