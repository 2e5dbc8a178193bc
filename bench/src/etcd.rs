//! Three members of etcd on loopback, called through their JSON gateway, as a baseline for writes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::time::sleep;

use crate::members::free_addresses;
use crate::wire::{self, Target};

/// Maximum wait for the first successful write.
const READY_MAX: Duration = Duration::from_secs(30);
const MEMBERS: usize = 3;

/// A running cluster, killed when dropped.
pub struct Etcd {
    children: Vec<Child>,
    /// The HTTP listener of each member.
    pub targets: Vec<Target>,
}

impl Etcd {
    /// Starts `program` three times on empty directories below `dir` with its default settings: each commit
    /// is synced before it is acknowledged.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self> {
        let place = dir.join("etcd");
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        let addresses = free_addresses(2 * MEMBERS)?;
        let (clients, peers) = addresses.split_at(MEMBERS);
        let cluster: Vec<_> =
            peers.iter().enumerate().map(|(number, peer)| format!("m{number}=http://{peer}")).collect();
        let mut etcd = Self { children: Vec::new(), targets: Vec::new() };
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let log = fs::File::create(place.join(format!("m{number}.log")))?;
            // With `setpriv` the kernel kills the process when the bench ends in any way.
            let mut command = Command::new("setpriv");
            command
                .args(["--pdeathsig", "KILL"])
                .arg(program)
                .arg("--data-dir")
                .arg(place.join(format!("m{number}")));
            for (name, value) in [
                ("--name", format!("m{number}")),
                ("--listen-client-urls", format!("http://{client}")),
                ("--advertise-client-urls", format!("http://{client}")),
                ("--listen-peer-urls", format!("http://{peer}")),
                ("--initial-advertise-peer-urls", format!("http://{peer}")),
                ("--initial-cluster", cluster.join(",")),
                ("--initial-cluster-state", "new".to_owned()),
                ("--log-level", "error".to_owned()),
            ] {
                command.arg(name).arg(value);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            etcd.children.push(command.spawn().context("start setpriv (util-linux)")?);
            etcd.targets.push(target(*client));
        }
        etcd.until_ready().await?;
        Ok(etcd)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    async fn until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        let request = put("ready", b"yes");
        for target in self.targets.clone() {
            while !target.call(&request).await.is_ok_and(|answer| answer.status == 200) {
                for child in &mut self.children {
                    if let Some(status) = child.try_wait()? {
                        bail!("etcd ended: {status}; is the package etcd-server installed?");
                    }
                }
                if begun.elapsed() > READY_MAX {
                    bail!("etcd takes no write after {READY_MAX:?}");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn target(address: SocketAddr) -> Target {
    Target { address, host: address.to_string(), tls: None }
}

/// A write of one key.
pub fn put(key: &str, value: &[u8]) -> Vec<u8> {
    let body = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)}).to_string();
    wire::request_with("POST", "/v3/kv/put", "localhost", "", body.as_bytes())
}
