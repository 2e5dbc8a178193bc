//! Nodes in one process, each with its own disk, certificates and port, and callers that are not nodes.

mod bare_core;
mod bootstrap;
mod checked;
mod clocks;
mod core_failure;
mod disk_rollback;
mod disk_space;
mod divergence;
mod feature_level;
mod federation;
mod hostile;
mod identities;
mod log_keeper;
mod membership;
mod readers;
mod snapshot_transfer;
mod sources;
mod three_nodes;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use openraft::vote::RaftLeaderId as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::call_metadata::CallMetadata;
use super::channels::Channels;
use super::local_node::LocalNode;
use super::*;
use crate::clock::{Clock, Timestamp};
use crate::cluster::disk_records::DiskRecords;
use crate::cluster::disk_rollback::Life;
use crate::cluster::disk_watch::Watchdog;
use crate::cluster::start::Started;
use crate::cluster::tests::restarts::{COMMAND_BYTES, Rows, UNKNOWN};
use crate::cluster::type_config::{ClusterId, DiskId, LeaderId, LogId};
use crate::cluster::{Closed, FreshnessMode, Handle, Machine, Options, ProposerId, Transport, log, start};
use crate::limits;
use crate::telemetry::Metrics;
use crate::tls::{Authorities, Files, KeyPairFiles, RemoteEnd, Roots, Tls};

const TRUST_DOMAIN: &str = "trust.example";
const LONG: Duration = Duration::from_secs(30);

/// Certificates, and a port for each node.
struct Site {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
    members: InitialMembers,
    freshness: FreshnessMode,
    log_bytes_max: u64,
    identities: NodeIdentities,
    listeners: BTreeMap<u64, std::net::TcpListener>,
}

/// A running node.
struct Node<M: Machine = Rows> {
    handle: Handle<M>,
    tasks: JoinSet<()>,
    writer: thread::JoinHandle<()>,
    /// Polled by tests.
    watchdog: Watchdog,
    closed: Closed,
}

fn ca(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("CA")
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("mode");
}

impl Site {
    /// For nodes with ids 1 to `nodes`.
    fn new(nodes: u64) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let ca = ca("the cluster's");
        let mut site = Self {
            directory,
            ca,
            members: InitialMembers::new(),
            freshness: FreshnessMode::Lease,
            log_bytes_max: limits::LOG_BYTES_MAX_DEFAULT,
            identities: NodeIdentities::new(TRUST_DOMAIN.parse().expect("trust domain")),
            listeners: BTreeMap::new(),
        };
        for id in 1..=nodes {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.set_nonblocking(true).expect("listener");
            site.members.insert(id, listener.local_addr().expect("address").to_string());
            site.listeners.insert(id, listener);
        }
        site
    }

    /// Files of a certificate for `path` of the trust domain, signed by `ca`.
    fn files(&self, name: &str, path: &str, ca: &CertifiedIssuer<'static, KeyPair>) -> Files {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        let uri = format!("spiffe://{TRUST_DOMAIN}/{path}");
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().expect("ASCII"))];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, ca).expect("certificate");
        let at = |suffix: &str| self.directory.path().join(format!("{name}.{suffix}"));
        write_private(&at("crt"), &certificate.pem());
        write_private(&at("key"), &key.serialize_pem());
        write_private(&at("ca"), &self.ca.pem());
        let trust_domain = TRUST_DOMAIN.parse().expect("trust domain");
        let authorities = vec![Authorities { trust_domain, roots: Roots::Pem(at("ca")), crl: None }];
        Files { own: KeyPairFiles { certificate: at("crt"), private_key: at("key") }, authorities }
    }

    fn tls(&self, name: &str, path: &str) -> Tls {
        let files = self.files(name, path, &self.ca);
        let metrics = Metrics::new().expect("metrics");
        Tls::load(files, RemoteEnd::Peers, Clock::system(), metrics).expect("TLS")
    }

    fn data(&self, id: u64) -> PathBuf {
        let data = self.directory.path().join(format!("data-{id}"));
        fs::create_dir_all(&data).expect("directory");
        data
    }

    fn listener(&self, id: u64) -> TcpListener {
        let listener = self.listeners[&id].try_clone().expect("listener");
        TcpListener::from_std(listener).expect("listener")
    }

    async fn node(&self, id: u64) -> Node {
        self.node_of(id, &self.members).await
    }

    /// A node with these initial members.
    async fn node_of(&self, id: u64, members: &InitialMembers) -> Node {
        self.node_with(id, members, Rows).await
    }

    async fn node_with<M: Machine>(&self, id: u64, members: &InitialMembers, machine: M) -> Node<M> {
        self.node_by(id, members, machine, Clock::system()).await
    }

    /// A node with its own clock.
    async fn node_by<M: Machine>(
        &self,
        id: u64,
        members: &InitialMembers,
        machine: M,
        clock: Clock,
    ) -> Node<M> {
        self.node_on(id, (self.data(id), self.listener(id), clock), members, machine).await
    }

    /// A node with this data directory, listener and clock.
    #[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
    async fn node_on<M: Machine>(
        &self,
        id: u64,
        (data, listener, clock): (PathBuf, TcpListener, Clock),
        members: &InitialMembers,
        machine: M,
    ) -> Node<M> {
        let identity = self.identities.of(id);
        let path = identity.strip_prefix(&format!("spiffe://{TRUST_DOMAIN}/")).expect("a path");
        let options = Options {
            data,
            node_id: id,
            drawn_disk_id: rand(),
            drawn_cluster_id: rand(),
            drawn_proposer_id: ProposerId::from_bytes(rand()),
            heartbeat: Duration::from_millis(50),
            clock,
            freshness: self.freshness,
            log_bytes_max: self.log_bytes_max,
            settings_digest: None,
            transport: Some(Transport {
                listener,
                tls: self.tls(&format!("node-{id}"), path),
                identities: self.identities.clone(),
                initial_members: members.clone(),
            }),
        };
        let mut writer = None;
        let started = start(options, machine, |work| {
            writer = Some(thread::spawn(work));
            Ok(())
        });
        let Started { handle, work, watchdog, closed } = started.await.expect("starts");
        let mut tasks = JoinSet::new();
        for work in work {
            tasks.spawn(work);
        }
        Node { handle, tasks, writer: writer.expect("writer"), watchdog, closed }
    }

    /// Nodes of a bootstrapped cluster.
    async fn cluster(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for id in self.members.keys() {
            nodes.push(self.node(*id).await);
        }
        for node in &nodes {
            node.recovered().await;
        }
        nodes
    }

    /// A caller with a certificate for `path` that states to be node `from` on `from_disk`.
    fn caller(&self, path: &str, from: (u64, DiskId), cluster_id: Option<ClusterId>) -> Caller {
        // A life that succeeds every possible record.
        let leader = LeaderId::new(u64::MAX, u64::MAX);
        let end = Some(LogId::new(leader.to_committed(), u64::MAX));
        let life = Life { start: 1_000, id: rand(), vote: Some(leader), end };
        self.caller_in(path, from, cluster_id, life)
    }

    /// The same, with this life.
    fn caller_in(
        &self,
        path: &str,
        (from, from_disk): (u64, DiskId),
        cluster_id: Option<ClusterId>,
        life: Life,
    ) -> Caller {
        let directory = tempfile::tempdir().expect("directory");
        let database = Arc::new(log::open_database(&directory.path().join("raft")).expect("log"));
        let (open, _closed) = tokio::sync::mpsc::channel(1);
        let identities = Some(self.identities.clone());
        let disk_records = Arc::new(DiskRecords::decode(None).expect("records"));
        let opened = (database, disk_records, open);
        let clock = Clock::system();
        let levels = (FeatureLevels::of(Arc::new(Rows)), &clock);
        let members = InitialMembers::new();
        let local = LocalNode::open((from, from_disk, life), identities, members, opened, levels)
            .expect("local node");
        if let Some(id) = cluster_id {
            local.join(id).expect("joined");
        }
        let tls = self.tls(&format!("caller-{}", path.replace('/', "-")), path);
        Caller { channels: Channels::new(Arc::new(local), Some(tls)), _directory: directory }
    }

    /// A client of node `to` on `to_disk`.
    fn client_of(&self, caller: &Caller, to: u64, to_disk: Option<DiskId>) -> channels::Client {
        caller.channels.own(to, &self.members[&to], to_disk).expect("a transport")
    }
}

struct Caller {
    channels: Channels,
    _directory: TempDir,
}

/// Pads a command to the fixed length.
fn command(text: &str) -> Bytes {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(COMMAND_BYTES, b'.');
    bytes.into()
}

fn rand() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

impl<M: Machine> Node<M> {
    fn disk_id(&self) -> DiskId {
        self.handle.channels.local.disk_id
    }

    async fn recovered(&self) {
        self.handle.until_recovered(LONG).await.expect("recovers");
        timeout(LONG, self.handle.until_led()).await.expect("a leader");
    }

    async fn stop(mut self) {
        self.tasks.shutdown().await;
        // Raft may have stopped already.
        drop(self.handle.shutdown().await);
        drop(self.handle);
        self.closed.wait().await;
        self.writer.join().expect("writer");
    }
}

impl Node {
    async fn write(&self, text: &str) -> u64 {
        self.handle.propose(command(text)).await.expect("applied").index
    }
}

fn manual_clock() -> Clock {
    Clock::manual(Timestamp::from_secs(1_800_000_000))
}

/// Three recovered nodes that share a clock.
async fn three_by(clock: &Clock) -> (Site, Vec<Node>) {
    let site = Site::new(3);
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(site.node_by(id, &site.members, Rows, clock.clone()).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    (site, nodes)
}

async fn stop_all<M: Machine>(nodes: Vec<Node<M>>) {
    for node in nodes {
        node.stop().await;
    }
}

fn leader<M: Machine>(nodes: &[Node<M>]) -> &Node<M> {
    let leader = nodes[0].handle.leader().expect("a leader");
    nodes.iter().find(|node| node.handle.node_id() == leader).expect("one of them")
}

fn follower(nodes: &[Node]) -> &Node {
    let leader = leader(nodes).handle.node_id();
    nodes.iter().find(|node| node.handle.node_id() != leader).expect("another")
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("address")
}
