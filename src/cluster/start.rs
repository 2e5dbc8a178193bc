//! How a node of the core is started.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use openraft::errors::{InitializeError, RaftError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

use super::apply::database::Generations;
use super::apply::snapshot::Snapshots;
use super::apply::state_machine::{Shared, StateMachine};
use super::clocks::{Clocks, Stamps};
use super::disk_watch::Watchdog;
use super::log::purge;
use super::peers::{Channels, ClusterId, DiskId, Founders, Network, Peers, This, found};
use super::propose::Numbers;
use super::propose::batcher::Batches;
use super::propose::forwarding::Forwards;
use super::reads::freshness::{Freshness, FreshnessMode};
use super::reads::read_index::{Questions, ReadIndex};
use super::type_config;
use super::type_config::Peer;
use super::{Corrupt, Handle, Machine, Origin, disk_identity, disk_memory, log, peers, raft_config};
use crate::clock::Clock;
use crate::id::TrustDomain;
use crate::limits;
use crate::tls::Tls;

/// How a node of the core is started.
pub struct Options {
    /// The data directory; it exists.
    pub data: PathBuf,
    /// This node's id.
    pub node_id: u64,
    /// 16 random bytes: the disk's identity if it has none yet.
    pub drawn_disk_id: [u8; 16],
    /// 16 random bytes: the id of the cluster if this node founds one.
    pub drawn_cluster_id: [u8; 16],
    /// As which process this one proposes. Never one that was drawn for another start.
    pub drawn_origin: Origin,
    /// Interval of heartbeats; elections take three to six of them.
    pub heartbeat: Duration,
    /// The clock that stamps batches.
    pub clock: Clock,
    /// How it proves that it has applied everything acknowledged.
    pub freshness: FreshnessMode,
    /// Bytes of entries beyond which the log is cut behind a snapshot.
    pub log_bytes_max: u64,
    /// How it reaches other nodes, and they it; `None` for a cluster of one.
    pub transport: Option<Transport>,
}

/// How a node reaches others, and they it.
pub struct Transport {
    /// Where others reach it.
    pub listener: TcpListener,
    /// With which certificates.
    pub tls: Tls,
    /// Of every node's certificate, whose SPIFFE ID is `spiffe://<trust domain>/node/<id>`.
    pub trust_domain: TrustDomain,
    /// The members that found the cluster together, itself among them: where each is reached. Not looked at when
    /// this node belongs to a cluster.
    pub founders: Founders,
}

/// Work that must run for the core to get anywhere.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A running core, and the work to be run for it.
pub struct Started<M: Machine> {
    /// The handle.
    pub handle: Handle<M>,
    /// To be run on the asynchronous runtime, each until it ends: what writes, what keeps the log within its limit
    /// and this node fresh, and what answers other nodes.
    pub work: Vec<Work>,
    /// Tells a disk that hangs; to be run on a thread of its own.
    pub watchdog: Watchdog,
    /// Tells when the databases are closed.
    pub closed: Closed,
}

/// Held by whoever has a database open.
pub type Open = mpsc::Sender<Infallible>;

/// Tells when nobody has a database open any more. The core's own tasks end a little after the
/// core says that it has stopped.
pub struct Closed(mpsc::Receiver<Infallible>);

impl Closed {
    /// Waits until everything that reads or writes the databases is gone, the log writer excepted.
    pub async fn wait(mut self) {
        // Nothing is ever sent: it ends when the last sender is dropped.
        let _ = self.0.recv().await;
    }
}

/// The loops that keep the lease, and that watch over the members, the disk and the clock.
fn watches<M: Machine>(handle: &Handle<M>, questions: Questions) -> [Work; 6] {
    [
        Box::pin(handle.clone().keep_fresh()),
        Box::pin(handle.clone().follow_progress()),
        Box::pin(handle.clone().keep_candidacy()),
        Box::pin(handle.clone().leave_with_wrong_clock()),
        Box::pin(handle.clone().follow_disk()),
        Box::pin(handle.clone().ask_for_readers(questions)),
    ]
}

/// Opens the data directory and starts this node: of the cluster it belongs to, or of the one it is to found.
///
/// `run_writer` is given the log writer's loop and must run it on a thread of its own.
///
/// # Errors
/// [`Corrupt`] if the directory is not what this node left there.
pub async fn start<M: Machine>(
    options: Options,
    machine: M,
    run_writer: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> Result<Started<M>, Corrupt> {
    let Options { data, node_id, heartbeat, clock, log_bytes_max, .. } = options;
    let failed = |error: &dyn fmt::Display| Corrupt::new(&data, error);

    let database = Arc::new(log::open_database(&data.join("raft"))?);
    let identity = disk_identity::establish(&data, &database, node_id, options.drawn_disk_id)?;
    let (open, closed) = mpsc::channel(1);
    let (tls, listener, trust_domain, founders) = match options.transport {
        Some(Transport { listener, tls, trust_domain, founders }) => {
            (Some(tls), Some(listener), Some(trust_domain), founders)
        }
        None => (None, None, None, Founders::new()),
    };
    let mut opened = log::open(Arc::clone(&database), log_bytes_max, open.clone())?;

    let machine = Arc::new(machine);
    let generations = Generations::new(data.join("state")).map_err(|error| failed(&error))?;
    let snapshots = Snapshots::new(data.join("snapshots"), M::TABLES).map_err(|error| failed(&error))?;
    let durable = opened.durable.clone();
    let (state, shared) = StateMachine::open(
        Arc::clone(&machine),
        generations,
        snapshots.clone(),
        durable,
        open.clone(),
        clock.clone(),
    )?;
    let applied = shared.database.load().applied()?;
    let installed = installed_before_the_log(&opened.store, &shared, applied, failed)?;
    let removed = opened.purged.max(installed);
    let snapshot = current_snapshot(&snapshots, &shared, removed)?;
    // The library takes up a snapshot that is ahead of the state.
    if applied.max(snapshot) < opened.purged {
        return Err(failed(&"the state is behind what is left of the log"));
    }
    let watchdog = opened.watchdog.with_heartbeat(heartbeat);
    run_writer(opened.writer).map_err(|error| failed(&error))?;
    opened.store.follow_on(applied, installed).await.map_err(|error| failed(&error))?;
    let end = installed.or(opened.last).max(snapshot);
    let life = disk_memory::begin(&database, *options.drawn_origin.as_bytes(), opened.vote, end)?;
    let rows = (database, opened.lives, open);
    let this = This::open((node_id, identity.disk_id, life), trust_domain.clone(), founders, rows)?;

    let config = raft_config::raft_config(heartbeat).map_err(|error| failed(&error))?;
    let channels = Arc::new(Channels::new(Arc::new(this), tls.clone()));
    let clocks = Arc::new(Clocks::new(clock.clone(), node_id));
    let network = Network { channels: Arc::clone(&channels), clocks: Arc::clone(&clocks) };
    let log_reader = opened.store.reader();
    let raft = openraft::Raft::new(node_id, config, network, opened.store, state)
        .await
        .map_err(|error| failed(&error))?;

    let freshness = Arc::new(Freshness::new(clock.clone(), options.freshness));
    let stamps = Stamps::new(raft.clone(), &clocks, &machine, &shared);
    let (batches, batching) = Batches::new(stamps);
    let (forwards, forwarding) = Forwards::new(Arc::clone(&channels), clock.clone());
    let numbers = Arc::new(Numbers::new(options.drawn_origin));
    let log_keeper = purge::keep_within_limit(raft.clone(), opened.surplus);
    let (reads, questions) = ReadIndex::new(reads_max(options.freshness));
    let handle = Handle {
        raft,
        numbers,
        batches,
        forwards,
        shared,
        machine,
        freshness,
        progress: Arc::default(),
        candidacy: Arc::default(),
        disk: watchdog.disk(),
        reads,
        clock,
        clocks,
        channels: Arc::clone(&channels),
        node_id,
    };
    let mut work: Vec<Work> = vec![
        Box::pin(batching),
        Box::pin(forwarding),
        Box::pin(log_keeper),
        Box::pin(handle.clone().remember(opened.jobs)),
    ];
    work.extend(watches(&handle, questions));
    match (tls, listener, trust_domain) {
        (Some(tls), Some(listener), Some(trust_domain)) => {
            handle.check_member(identity.disk_id).map_err(|error| failed(&error))?;
            let this = Arc::clone(&channels.this);
            let receiving = Semaphore::new(1);
            let contradicted = Arc::clone(&this);
            let peers = Peers { this, handle: handle.clone(), log: log_reader, snapshots, receiving };
            let founding = found(channels, handle.clone(), options.drawn_cluster_id);
            work.push(Box::pin(async move {
                let served = peers::serve(peers, listener, (tls.clone(), trust_domain));
                // Whoever hears nobody any more must not go on.
                tokio::select! {
                    () = served => {}
                    _ = async {
                        tokio::join!(founding, tls.follow(), contradicted.stop_when_contradicted())
                    } => {}
                }
            }));
        }
        _ => handle.begin_alone(options.drawn_cluster_id).await.map_err(|error| failed(&error))?,
    }
    Ok(Started { handle, work, watchdog, closed: Closed(closed) })
}

/// The last entry of an installed snapshot, if a crash came before the log was replaced too.
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
        return Err(failed(&"the state is ahead of the log: the log lost entries that were acknowledged"));
    }
    Ok(applied)
}

/// Without a lease, each request that needs a proof of freshness is a read.
const fn reads_max(freshness: FreshnessMode) -> usize {
    match freshness {
        FreshnessMode::Lease => limits::READ_INDEX_WAITS_MAX,
        FreshnessMode::ReadIndex => limits::FRESHNESS_WAITS_MAX,
    }
}

/// The last entry that the newest snapshot holds. If none holds what is `removed` from the log, because its files
/// were, or a crash came while one was installed, it is taken here: the library would, but panics if the disk refuses.
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
    /// Makes a fresh node a cluster of one, or checks that the cluster it belongs to is that.
    async fn begin_alone(&self, drawn: ClusterId) -> Result<(), String> {
        let this = &self.channels.this;
        let id = this.cluster_id().unwrap_or(drawn);
        this.join(id).map_err(|error| error.to_string())?;
        let peer = Peer { address: String::new(), disk_id: this.disk_id };
        match self.raft.initialize(BTreeMap::from([(self.node_id, peer)])).await {
            Ok(()) => return Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(error.to_string()),
        }
        self.check_member(this.disk_id)?;
        let members = self.membership();
        if members.membership().nodes().count() != 1 {
            return Err(
                "the log belongs to a cluster with other members: cluster.listen must be set".to_owned()
            );
        }
        Ok(())
    }

    /// Checks that the log, if it names members, names this node on this disk.
    fn check_member(&self, disk_id: DiskId) -> Result<(), String> {
        let membership = self.membership();
        let members: BTreeMap<u64, &Peer> =
            membership.membership().nodes().map(|(id, peer)| (*id, peer)).collect();
        let founders = &self.channels.this.founders;
        match members.get(&self.node_id) {
            None if members.is_empty() => Ok(()),
            None => Err("the log belongs to a cluster with other members".to_owned()),
            Some(known) if known.disk_id != disk_id => {
                Err(format!("node {} is known to live on another disk", self.node_id))
            }
            Some(known) if known.address.is_empty() && founders.len() > 1 => Err(
                "the log belongs to a cluster of one: it cannot found another; start it without cluster.members, or \
                 with an empty data directory"
                    .to_owned(),
            ),
            Some(_) => Ok(()),
        }
    }
}
