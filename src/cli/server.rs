//! Which node a command talks to.

use clap::Args;

use super::Error;
use crate::outbound::admin::NodeClient;

/// The argument of every command that talks to a running node.
#[derive(Clone, Debug, Args)]
pub(super) struct Server {
    /// Where the node is.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8693")]
    pub server: String,
}

impl Server {
    pub(super) fn client(&self) -> Result<NodeClient, Error> {
        Ok(NodeClient::new(&self.server)?)
    }
}
