//! The data directory of a stopped node: creates a new cluster from its state, or joins an existing one.

use std::sync::Arc;

use super::{Error, draw, replica};
use crate::clock::{Clock, Timestamp};
use crate::cluster::{Corrupt, NewCluster, ProposerId, StoppedNode};
use crate::config::Config;
use crate::data_directory::{self, Mode};
use crate::id::Incarnation;
use crate::state::{EpochFloor, Replicated, restore_command};

/// A cluster of one to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClusterOptions {
    /// Host and port for other nodes, empty without a listener; `None` for that of the state.
    pub address: Option<String>,
    /// Whether the log need not hold the state: that of a backup, or of an earlier attempt.
    pub may_be_ahead: bool,
    /// Whether the state is used although that of another member differs.
    pub accept_dispute: bool,
    /// Text about the data directory before, for an attempt that repeats this one.
    pub note: String,
}

/// A created cluster, whose node is not started yet.
#[derive(Clone, Copy, Debug)]
pub struct CreatedCluster {
    pub cluster_id: Incarnation,
    pub incarnation: Incarnation,
    /// Index of the last log entry.
    pub index: u64,
    /// The last `iat` of other issuers' credentials that it refuses.
    pub last_refused: Timestamp,
}

/// Mode of the data of a configuration.
#[must_use]
pub fn mode(config: &Config) -> Mode {
    if config.tls.is_some() { Mode::Production } else { Mode::Development }
}

/// Opens the data directory of a stopped node. An empty one gets a disk identity.
///
/// # Errors
/// If it is in use, corrupt or of another node.
pub fn open_stopped(config: &Config) -> Result<StoppedNode, Error> {
    replica::lock(&config.node.data_dir)?;
    Ok(StoppedNode::open(&config.node.data_dir, config.node.id, draw()?)?)
}

/// Opens the data directory of a node that is about to join an existing cluster, and gives it a disk identity.
///
/// # Errors
/// Those of the data directory.
pub fn open_joining(config: &Config) -> Result<StoppedNode, Error> {
    data_directory::prepare(&config.node.data_dir, Mode::Production)?;
    open_stopped(config)
}

impl NewClusterOptions {
    /// Creates the cluster, and marks the data directory as `restore` between the steps that belong together.
    ///
    /// # Errors
    /// If the directory is corrupt or cannot be written.
    pub async fn create(
        self,
        stopped: StoppedNode,
        config: &Config,
        clock: &Clock,
        restore: data_directory::Restore,
    ) -> Result<CreatedCluster, Error> {
        let (node_id, data) = (config.node.id, &config.node.data_dir);
        let [cluster_id, incarnation] = [draw()?, draw()?];
        let (command, reply) = restore_command(cluster_id, incarnation, node_id);
        let drawn_proposer_id = ProposerId::from_bytes(draw()?);
        let Self { address, may_be_ahead, accept_dispute, note } = self;
        let new = NewCluster { cluster_id, address, accept_dispute, command, reply, drawn_proposer_id };
        let state = Arc::new(Replicated::default());
        let begin = || data_directory::mark(data, restore, &note).map_err(std::io::Error::other);
        let index = stopped.create(&state, new, clock, may_be_ahead, begin).await?;
        data_directory::unmark(data)?;
        let floor = state.index().floor.map(EpochFloor::last_refused);
        let last_refused = floor.ok_or_else(|| Corrupt::row("a restored state has no floor"))?;
        let [cluster_id, incarnation] = [cluster_id, incarnation].map(Incarnation::from_bytes);
        Ok(CreatedCluster { cluster_id, incarnation, index, last_refused })
    }
}
