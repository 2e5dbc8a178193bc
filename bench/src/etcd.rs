//! Three members of etcd on loopback, called over gRPC with mutual TLS, as a baseline for writes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::certificates::{self, Identity};
use crate::load::Tally;
use crate::members::free_addresses;
use crate::node::on_core;
use crate::wire::{Target, handshake};

/// Maximum wait for the first successful write.
const READY_MAX: Duration = Duration::from_secs(30);
const MEMBERS: usize = 3;
/// Name of the certificate of its members, and of the caller.
const MEMBER: &str = "etcd";
/// Status of a good answer.
pub const GOOD: u16 = 200;

/// The fields of `etcdserverpb.PutRequest` that a write needs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `etcdserverpb.PutResponse`, of which only the success matters.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Fields of `etcdserverpb.ResponseHeader`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// Makes write n.
pub type Put = Arc<dyn Fn(u64) -> PutRequest + Send + Sync>;

/// A running cluster, killed when dropped.
pub struct Etcd {
    children: Vec<Child>,
    /// The listener of each member.
    clients: Vec<SocketAddr>,
    tls: Arc<ClientConfig>,
}

impl Etcd {
    /// Starts `program` three times on empty directories below `dir` with its default settings and certificates of the
    /// CA in `pki`: each commit is synced before it is acknowledged.
    pub async fn start(program: &Path, dir: &Path, pki: &Path) -> Result<Self> {
        let place = dir.join("etcd");
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        certificates::write_server(pki, MEMBER)?;
        let addresses = free_addresses(2 * MEMBERS)?;
        let (clients, peers) = addresses.split_at(MEMBERS);
        let cluster: Vec<_> =
            peers.iter().enumerate().map(|(number, peer)| format!("m{number}=https://{peer}")).collect();
        let identity = Identity::read(pki, MEMBER)?;
        let tls = certificates::client(pki, Some(&identity), b"h2")?;
        let mut etcd = Self { children: Vec::new(), clients: clients.to_vec(), tls };
        let file = |name: &str| pki.join(name).display().to_string();
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let log = fs::File::create(place.join(format!("m{number}.log")))?;
            let mut command = on_core(None, program);
            command.arg("--data-dir").arg(place.join(format!("m{number}")));
            command.args(["--client-cert-auth", "--peer-client-cert-auth"]);
            for (name, value) in [
                ("--name", format!("m{number}")),
                ("--listen-client-urls", format!("https://{client}")),
                ("--advertise-client-urls", format!("https://{client}")),
                ("--listen-peer-urls", format!("https://{peer}")),
                ("--initial-advertise-peer-urls", format!("https://{peer}")),
                ("--initial-cluster", cluster.join(",")),
                ("--initial-cluster-state", "new".to_owned()),
                ("--trusted-ca-file", file("ca.pem")),
                ("--cert-file", file("etcd.pem")),
                ("--key-file", file("etcd-key.pem")),
                ("--peer-trusted-ca-file", file("ca.pem")),
                ("--peer-cert-file", file("etcd.pem")),
                ("--peer-key-file", file("etcd-key.pem")),
                ("--log-level", "error".to_owned()),
            ] {
                command.arg(name).arg(value);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            etcd.children.push(command.spawn().context("start setpriv (util-linux)")?);
        }
        etcd.until_ready().await?;
        Ok(etcd)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    async fn until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        let request = PutRequest { key: b"ready".to_vec(), value: b"yes".to_vec() };
        for client in self.clients.clone() {
            let channel = channel(client, Arc::clone(&self.tls));
            while put(&channel, request.clone()).await != GOOD {
                for child in &mut self.children {
                    if let Some(status) = child.try_wait()? {
                        bail!("etcd ended: {status}; is the package etcd-server installed?");
                    }
                }
                if begun.elapsed() > READY_MAX {
                    bail!("etcd accepts no write after {READY_MAX:?}");
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// Connections for so many clients, one for each `share` of them, spread over all members.
    pub async fn connections(&self, clients: usize, share: usize) -> Result<Vec<Channel>> {
        let mut channels = Vec::new();
        for number in 0..clients.div_ceil(share).max(self.clients.len().min(clients)) {
            let channel = channel(self.clients[number % self.clients.len()], Arc::clone(&self.tls));
            // A channel connects at its first write.
            let ready = PutRequest { key: b"ready".to_vec(), value: b"yes".to_vec() };
            if put(&channel, ready).await != GOOD {
                bail!("etcd refuses a write");
            }
            channels.push(channel);
        }
        Ok(channels)
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

/// Writes as fast as they are acknowledged.
pub async fn closed_loop(
    channels: &[Channel],
    write: &Put,
    clients: usize,
    duration: Duration,
) -> Result<Tally> {
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    let begun = Instant::now();
    for client in 0..clients {
        let channel = channels[client % channels.len()].clone();
        let (write, next) = (Arc::clone(write), Arc::clone(&next));
        workers.spawn(async move {
            let mut tally = Tally::new();
            while begun.elapsed() < duration {
                let request = write(next.fetch_add(1, Ordering::Relaxed));
                let sent = Instant::now();
                let status = put(&channel, request).await;
                tally.record(status, sent, sent);
            }
            tally
        });
    }
    let mut all = Tally::new();
    while let Some(tally) = workers.join_next().await {
        all.add(&tally?);
    }
    all.elapsed = begun.elapsed();
    Ok(all)
}

/// A connection to a member, made at the first write.
fn channel(address: SocketAddr, tls: Arc<ClientConfig>) -> Channel {
    let target = Target { address, host: address.to_string(), tls: None };
    let connector = tower::service_fn(move |_: Uri| {
        let (target, tls) = (target.clone(), Arc::clone(&tls));
        async move { handshake(target.connect_tcp().await?, &tls).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

/// `etcdserverpb.KV/Put`. Returns [`GOOD`] or the code of gRPC.
async fn put(channel: &Channel, request: PutRequest) -> u16 {
    let mut client = Grpc::new(channel.clone());
    if client.ready().await.is_err() {
        return 0;
    }
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    match client.unary(tonic::Request::new(request), path, codec).await {
        Ok(answer) if answer.get_ref().header.is_some_and(|header| header.revision > 0) => GOOD,
        Ok(_) => 0,
        Err(status) => u16::try_from(i32::from(status.code())).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn messages_have_the_fields_of_etcd() {
        let request = PutRequest { key: b"k".to_vec(), value: b"v".to_vec() };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01k\x12\x01v");
        // cluster_id 1, member_id 2, revision 9, raft_term 3; then prev_kv.
        let answer = b"\x0a\x08\x08\x01\x10\x02\x18\x09\x20\x03\x12\x00";
        let answer = PutResponse::decode(answer.as_slice()).expect("an answer of etcd");
        assert_eq!(answer.header, Some(ResponseHeader { revision: 9 }));
    }
}
