//! The data directory of a node that joins an existing cluster.

use super::{Error, draw, replica};
use crate::cluster::Joining;
use crate::config::Config;
use crate::data_directory::{self, Mode};

/// Opens the data directory of a node that is about to join, and gives it a disk identity.
///
/// # Errors
/// Those of the data directory.
pub fn open_joining(config: &Config) -> Result<Joining, Error> {
    let data = &config.node.data_dir;
    data_directory::prepare(data, Mode::Production)?;
    replica::lock(data)?;
    Ok(Joining::open(data, config.node.id, draw()?)?)
}
