//! Configuration of a node under test.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::certificates::TRUST_DOMAIN;
use crate::credentials::{FABRIC, ISSUER};

/// Callers with a certificate and an entry, and their capabilities. `steady` is the well-behaved client.
const CALLERS: [(&str, &str); 6] = [
    ("operator", r#""cluster.admin", "metrics.read", "audit.read", "events.read", "tools.read""#),
    ("gateway", r#""tools.manage", "tools.read", "tools.verify""#),
    (REGISTRAR, r#""tools.manage", "tools.read", "tools.verify""#),
    ("workload", r#""exchange""#),
    ("steady", r#""exchange""#),
    (TRANSMITTER, r#""signals.send""#),
];
/// Callers that create streams, whose number per caller is limited.
pub const SUBSCRIBERS: [&str; 10] = [
    "receiver",
    "receiver-2",
    "receiver-3",
    "receiver-4",
    "receiver-5",
    "receiver-6",
    "receiver-7",
    "receiver-8",
    "receiver-9",
    "receiver-10",
];
const SUBSCRIBER_CAPABILITIES: &str = r#""streams.manage", "streams.read""#;
/// A second gateway: the tools of one caller are limited, and those that fill a registry must leave capacity
/// for those of the load.
pub const REGISTRAR: &str = "registrar";
/// The caller that sends signals as their issuer.
const TRANSMITTER: &str = "transmitter";
pub const SIGNAL_ISSUER: &str = "https://events.example";
/// A second issuer of signals, of the same caller: the revocations of one are limited, and those that fill an
/// index must leave capacity for those of the load.
pub const BULK_ISSUER: &str = "https://archive.example";

/// Names of the fabric of a node, and more of its configuration.
#[derive(Clone)]
pub struct Names {
    pub trust_domain: String,
    pub issuer: String,
    /// Further sections.
    pub more: String,
}

impl Default for Names {
    fn default() -> Self {
        Self { trust_domain: TRUST_DOMAIN.to_owned(), issuer: FABRIC.to_owned(), more: String::new() }
    }
}

/// Names, paths and addresses of one node.
pub struct Settings<'a> {
    pub names: &'a Names,
    pub policies: &'a Path,
    /// Directory of certificates; `None`: development mode, without TLS.
    pub pki: Option<PathBuf>,
    /// The keys of the issuer that it trusts.
    pub issuer_keys: &'a Path,
    pub data: &'a Path,
    pub http: SocketAddr,
    /// Unused in development mode.
    pub https: SocketAddr,
    /// `None` for a single node.
    pub member: Option<Membership>,
}

/// Membership of a node in a cluster.
#[derive(Clone)]
pub struct Membership {
    /// Its id, from 1.
    pub id: u64,
    /// Its peer address.
    pub listen: SocketAddr,
    /// Id and peer address of every initial member of the cluster; empty on a node that joins it.
    pub founders: Vec<(u64, SocketAddr)>,
    /// Heartbeat interval.
    pub heartbeat_millis: u64,
    /// Maximum size of the log; `None`: the default.
    pub log_bytes_max: Option<u64>,
}

impl Settings<'_> {
    /// The configuration file.
    pub fn text(&self) -> String {
        let mode = if self.pki.is_some() { "production" } else { "development" };
        let (id, https) = (
            self.member.as_ref().map(|member| format!("id = {}\n", member.id)).unwrap_or_default(),
            self.pki.as_ref().map(|_| format!("https = \"{}\"\n", self.https)).unwrap_or_default(),
        );
        // The rate per caller must not limit the measurement.
        format!(
            r#"[node]
{id}data_dir = "{data}"
mode = "{mode}"
[listen]
http = "{http}"
{https}[fabric]
issuer = "{fabric}"
trust_domain = "{domain}"
[policy]
directory = "{policies}"
[limits]
requests_per_second_per_caller = 1000000
{cluster}[[issuers]]
issuer = "{ISSUER}"
subject = "kubernetes"
keys_file = "{keys}"
algorithms = ["ES256", "RS256"]
trust_domains = ["{domain}"]
{callers}{more}"#,
            fabric = self.names.issuer,
            domain = self.names.trust_domain,
            more = self.names.more,
            data = self.data.display(),
            http = self.http,
            policies = self.policies.display(),
            cluster = self.cluster(),
            keys = self.issuer_keys.display(),
            callers = self.callers(),
        )
    }

    fn cluster(&self) -> String {
        let (Some(member), Some(pki)) = (&self.member, &self.pki) else { return String::new() };
        let name = peer_name(member.id);
        let mut text = format!(
            "[cluster]\nheartbeat = \"{}ms\"\nlisten = \"{}\"\ncertificate = \"{}\"\n\
             private_key = \"{}\"\nca = \"{}\"\n",
            member.heartbeat_millis,
            member.listen,
            pki.join(format!("{name}.pem")).display(),
            pki.join(format!("{name}-key.pem")).display(),
            pki.join("ca.pem").display(),
        );
        if let Some(bytes) = member.log_bytes_max {
            // Writing to a string does not fail.
            let _ = writeln!(text, "log_bytes_max = {bytes}");
        }
        for (id, address) in &member.founders {
            // Writing to a string does not fail.
            let _ = write!(text, "[[cluster.members]]\nid = {id}\naddress = \"{address}\"\n");
        }
        text
    }

    fn callers(&self) -> String {
        let Some(pki) = &self.pki else { return String::new() };
        let own = &self.names.trust_domain;
        let file = |name: &str| pki.join(name).display().to_string();
        let mut text = format!(
            "[transmitter]\nbase_url = \"https://{https}\"\nallow_loopback_push = true\n\
             [tls]\ncertificate = \"{certificate}\"\nprivate_key = \"{key}\"\nclient_ca = \"{ca}\"\n",
            https = self.https,
            certificate = file("node.pem"),
            key = file("node-key.pem"),
            ca = file("ca.pem"),
        );
        if self.member.is_none() && self.names.more.is_empty() {
            // Federation without a peer, because its routes are attacked too. A region has a section of its
            // own.
            let (certificate, key) = (file("steady.pem"), file("steady-key.pem"));
            // Writing to a string does not fail.
            let _ = write!(text, "[federation]\ncertificate = \"{certificate}\"\nprivate_key = \"{key}\"\n");
        }
        for issuer in [SIGNAL_ISSUER, BULK_ISSUER] {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "[[issuers]]\nissuer = \"{issuer}\"\nsubject = \"opaque\"\nkeys_url = \"{issuer}/keys\"\n\
                 trust_domains = [\"{domain}\"]\n\
                 [[signals]]\nissuer = \"{issuer}\"\ncallers = [\"spiffe://{own}/{TRANSMITTER}\"]\n\
                 trust_domains = [\"{own}\"]\nrevocations_per_minute = 1000000\n",
                domain = issuer.trim_start_matches("https://"),
            );
        }
        for (name, capabilities) in callers() {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "[[callers]]\nid = \"spiffe://{own}/{name}\"\ncapabilities = [{capabilities}]\n"
            );
        }
        text
    }
}

/// Every caller with its capabilities.
pub fn callers() -> impl Iterator<Item = (&'static str, &'static str)> {
    CALLERS.into_iter().chain(SUBSCRIBERS.map(|name| (name, SUBSCRIBER_CAPABILITIES)))
}

/// File name prefix of a node's peer certificate.
pub fn peer_name(id: u64) -> String {
    format!("peer-{id}")
}
