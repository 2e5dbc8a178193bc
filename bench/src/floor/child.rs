//! A floor server as a process of its own.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::{Config, Route};
use crate::node::{Node, free_address, on_core};
use crate::wire::Target;

/// Maximum wait for its first connection.
const READY_MAX: Duration = Duration::from_secs(10);
const READY_PAUSE: Duration = Duration::from_millis(20);

/// A running floor server, killed when dropped.
pub struct Floor {
    child: Child,
    target: Target,
}

impl Floor {
    /// Starts it beside `node`, on this core and with the certificate of that node. `caller` is the caller of the target.
    pub async fn start(node: &Node, core: usize, caller: &str, routes: Vec<Route>) -> Result<Self> {
        let listen = free_address()?;
        let config = Config { listen, pki: node.pki(), routes };
        let file = node.pki().with_file_name("floor.json");
        fs::write(&file, serde_json::to_string(&config)?)?;
        let log = fs::File::create(file.with_extension("log"))?;
        let mut command = on_core(Some(core), &std::env::current_exe()?);
        command.arg("floor").arg("--config").arg(&file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let target = Target { address: listen, ..node.target(caller)? };
        let mut floor = Self { child, target };
        floor.until_ready(&file).await?;
        Ok(floor)
    }

    async fn until_ready(&mut self, file: &Path) -> Result<()> {
        let begun = Instant::now();
        while self.target.connect().await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the floor server ended: {status}; see {}", file.with_extension("log").display());
            }
            if begun.elapsed() > READY_MAX {
                bail!("the floor server accepts no connection after {READY_MAX:?}");
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its listener, for the caller.
    pub fn target(&self) -> &Target {
        &self.target
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Route {
    /// A route that does nothing but JSON.
    pub fn new(path: &str, answer: &Map<String, Value>) -> Self {
        Self { path: path.to_owned(), is_get: false, verifies: None, signs: false, answer: answer.clone() }
    }

    /// The same for GET.
    pub fn get(path: &str, answer: &Map<String, Value>) -> Self {
        Self { is_get: true, ..Self::new(path, answer) }
    }

    /// Verifies the token of each request.
    #[must_use]
    pub fn verifying(self, jwk: &Value) -> Self {
        Self { verifies: Some(jwk.clone()), ..self }
    }

    /// Signs the token of each answer.
    #[must_use]
    pub fn signing(self) -> Self {
        Self { signs: true, ..self }
    }
}
