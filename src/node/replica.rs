//! The replica and the audit, with their tasks and threads.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::federation::awaited_peers;
use super::{Error, draw};
use crate::clock::Clock;
use crate::cluster::{self, ProposerId, Space, Transport};
use crate::config::Config;
use crate::state::{Replicated, State};
use crate::telemetry::Metrics;
use crate::tls::{RemoteEnd, Tls};
use crate::tools::audit::{self, Audit};
use crate::{data_directory, limits};

/// The replica with its tasks and threads.
pub(super) struct Replica {
    pub(super) state: State,
    pub(super) background: JoinSet<()>,
    /// Log writer and disk watchdog.
    threads: Vec<thread::JoinHandle<()>>,
    audit: Option<(Audit, JoinSet<()>)>,
    closed: cluster::Closed,
}

impl Replica {
    /// Opens the audit; only after recovery, which restores the position of its last block.
    pub(super) fn start_audit(
        &mut self,
        config: &Config,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Result<Audit, Error> {
        let (audit, writer) = Audit::open(audit::Parts {
            directory: &config.node.data_dir.join("audit"),
            node: config.node.unit_id.clone(),
            seed: draw()?,
            clock: clock.clone(),
            state: self.state.clone(),
            metrics: metrics.clone(),
        })?;
        let mut writing = JoinSet::new();
        writing.spawn(writer);
        self.background.spawn(audit.clone().follow());
        self.audit = Some((audit.clone(), writing));
        Ok(audit)
    }

    /// Ends the tasks and the replica, and waits until the data directory is closed; only briefly if the disk hangs.
    ///
    /// # Errors
    /// [`Error::NotStopped`] if a part does not end: the process must be killed.
    pub(super) async fn stop(mut self) -> Result<(), Error> {
        let hangs = self.state.cluster().disk_hangs();
        if hangs {
            // Closes the connections of other nodes first: a thread that is stuck in the kernel may delay the end of
            // the process.
            self.background.abort_all();
        }
        let limit = if hangs { limits::STOP_WITH_HUNG_DISK_TIMEOUT } else { limits::STOP_TIMEOUT };
        tokio::time::timeout(limit, self.end())
            .await
            .unwrap_or_else(|_| Err(Error::NotStopped { cause: "shutdown requested".to_owned() }))
    }

    async fn end(mut self) -> Result<(), Error> {
        let audited = match self.audit.take() {
            Some((audit, mut writing)) => {
                audit.end().await;
                match writing.join_next().await {
                    None | Some(Ok(())) => Ok(()),
                    Some(Err(error)) => Err(Error::ReplicaFailed(format!("audit writer: {error}"))),
                }
            }
            None => Ok(()),
        };
        self.background.shutdown().await;
        let stopped = self.state.cluster().shutdown().await.map_err(Error::ReplicaFailed);
        drop(self.state);
        // The replica's own tasks end after it; a cancelled request may hold the state a little longer.
        if tokio::time::timeout(limits::DRAIN_TIMEOUT, self.closed.wait()).await.is_err() {
            tracing::warn!("data directory still in use at shutdown");
        }
        // The writer ends once the replica has dropped the log. RocksDB aborts a process that exits while threads of its
        // database run, whatever the exit code.
        let mut joined = Ok(());
        for thread in self.threads {
            joined = joined.and(wait_for_thread(thread).await);
        }
        stopped.and(joined).and(audited)
    }
}

/// Waits while the disk is so full that opening the databases may fail, which writes the rows of their write-ahead logs to
/// tables. A supervisor would give up a process that exits for that reason again and again.
///
/// # Errors
/// [`Error::NotRecovered`] at the shutdown.
pub(super) async fn until_disk_has_space(data: &Path, shutdown: &CancellationToken) -> Result<(), Error> {
    let log = Space::unflushed(&data.join("raft"), limits::LOG_WRITE_BUFFERS_BYTES);
    let state = Space::unflushed(&data.join("state"), limits::STATE_WRITE_BUFFERS_BYTES);
    let needed = limits::DISK_START_BYTES_MIN.saturating_add(log).saturating_add(state);
    let mut is_logged = false;
    while let Some(Space { free, .. }) = Space::of(data).filter(|space| space.free < needed) {
        if !is_logged {
            tracing::error!(
                free,
                needed,
                "disk space is almost gone: this node waits for more before it starts"
            );
            is_logged = true;
        }
        tokio::select! {
            () = tokio::time::sleep(limits::DISK_SPACE_CHECK_INTERVAL) => {}
            () = shutdown.cancelled() => {
                return Err(Error::NotRecovered("it was stopped before its disk had space".to_owned()));
            }
        }
    }
    Ok(())
}

/// Starts the replica, which then recovers.
pub(super) async fn start_replica(
    config: &Config,
    clock: &Clock,
    metrics: &Metrics,
) -> Result<Replica, Error> {
    let data = config.node.data_dir.clone();
    lock(&data)?;
    // A restore may have begun while this node waited for disk space.
    data_directory::check_restored(&data)?;
    let options = cluster::Options {
        data,
        node_id: config.node.id,
        drawn_disk_id: draw()?,
        drawn_cluster_id: draw()?,
        drawn_proposer_id: ProposerId::from_bytes(draw()?),
        heartbeat: config.cluster.heartbeat,
        clock: clock.clone(),
        freshness: config.cluster.freshness,
        log_bytes_max: config.cluster.log_bytes_max,
        settings_digest: config.federation.as_ref().and_then(|federation| federation.peers.digest()),
        transport: transport(config, clock, metrics).await?,
    };
    let mut threads = Vec::new();
    let started = cluster::start(options, Replicated::default(), |writer| {
        threads.push(start_thread("log-writer", writer)?);
        Ok(())
    })
    .await;
    let started = match started {
        Ok(started) => started,
        Err(error) => {
            let joined = futures::future::join_all(threads.into_iter().map(wait_for_thread));
            if tokio::time::timeout(limits::DRAIN_TIMEOUT, joined).await.is_err() {
                tracing::warn!("data directory still in use after the failed start");
            }
            return Err(error.into());
        }
    };
    let watchdog = started.watchdog;
    let watchdog = start_thread("disk-watchdog", Box::new(move || watchdog.run()));
    threads.push(watchdog.map_err(|error| Error::ReplicaFailed(error.to_string()))?);
    let mut background = JoinSet::new();
    for work in started.work {
        background.spawn(work);
    }
    let state = State::new(started.handle).awaiting(awaited_peers(config, clock, metrics));
    Ok(Replica { state, background, threads, audit: None, closed: started.closed })
}

/// The peer listener, unless this is a cluster of one.
async fn transport(config: &Config, clock: &Clock, metrics: &Metrics) -> Result<Option<Transport>, Error> {
    let Some(peers) = &config.cluster.peers else { return Ok(None) };
    let tls = Tls::load(peers.files.clone(), RemoteEnd::Peers, clock.clone(), metrics.clone());
    let tls = tls.map_err(Error::PeerTls)?;
    let address = peers.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    tracing::info!(%address, members = peers.members.len(), "peer listener open");
    let (identities, initial_members) = (peers.identities.clone(), peers.members.clone());
    Ok(Some(Transport { listener, tls, identities, initial_members }))
}

#[expect(clippy::disallowed_methods, reason = "the threads of the log writer and of its watchdog")]
fn start_thread(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Refuses to share the data directory.
pub(super) fn lock(data: &Path) -> Result<(), Error> {
    let path = data.join("raft").join("LOCK");
    let Ok(file) = fs::File::open(path) else { return Ok(()) };
    // RocksDB takes this lock with fcntl; checking it first gives a better error.
    match rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => {
            Err(Error::InUse { path: data.to_owned() })
        }
        _ => Ok(()),
    }
}

#[expect(clippy::disallowed_methods, reason = "the node waits for its own thread")]
async fn wait_for_thread(thread: thread::JoinHandle<()>) -> Result<(), Error> {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Error::ReplicaFailed("a writer thread panicked".to_owned())),
    }
}
