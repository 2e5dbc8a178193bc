//! What the configuration of a node under test says.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::certificates::TRUST_DOMAIN;
use crate::credentials::{FABRIC, ISSUER};

/// Callers that get a certificate and an entry, with their capabilities. `steady` is the good client.
pub const CALLERS: [(&str, &str); 6] = [
    ("operator", r#""cluster.admin", "metrics.read""#),
    ("gateway", r#""tools.manage", "tools.read", "tools.verify""#),
    ("workload", r#""exchange""#),
    ("steady", r#""exchange""#),
    (TRANSMITTER, r#""signals.send""#),
    ("receiver", r#""streams.manage", "streams.read""#),
];
/// The caller that brings signals, and in whose name.
const TRANSMITTER: &str = "transmitter";
pub const SIGNAL_ISSUER: &str = "https://events.example";

/// Where everything of one node is.
pub struct Settings<'a> {
    /// The policy that it starts with.
    pub policies: &'a Path,
    /// Its certificate and those who may call; `None`: development mode, without TLS.
    pub pki: Option<PathBuf>,
    /// The keys of the issuer that it believes.
    pub issuer_keys: &'a Path,
    /// Its data directory.
    pub data: &'a Path,
    /// The plain listener.
    pub http: SocketAddr,
    /// The TLS listener; nothing in development mode.
    pub https: SocketAddr,
    /// Its place in a cluster, if it is one of several.
    pub member: Option<Membership>,
}

/// The place of a node in a cluster.
#[derive(Clone)]
pub struct Membership {
    /// Its number, from 1.
    pub id: u64,
    /// Every member's number and where it listens for the others, this one's too.
    pub members: Vec<(u64, SocketAddr)>,
    /// Time between two heartbeats.
    pub heartbeat_millis: u64,
}

impl Settings<'_> {
    /// As the node reads it.
    pub fn text(&self) -> String {
        let mode = if self.pki.is_some() { "production" } else { "development" };
        let (id, https) = (
            self.member.as_ref().map(|member| format!("id = {}\n", member.id)).unwrap_or_default(),
            self.pki.as_ref().map(|_| format!("https = \"{}\"\n", self.https)).unwrap_or_default(),
        );
        // The rate of one caller is out of the way: what is measured is what lies behind it.
        format!(
            r#"[node]
{id}data_dir = "{data}"
mode = "{mode}"
[listen]
http = "{http}"
{https}[fabric]
issuer = "{FABRIC}"
trust_domain = "{TRUST_DOMAIN}"
[policy]
directory = "{policies}"
[limits]
requests_per_second_per_caller = 1000000
[log]
filter = "warn"
{cluster}[[issuers]]
issuer = "{ISSUER}"
subject = "kubernetes"
keys_file = "{keys}"
algorithms = ["ES256"]
trust_domains = ["{TRUST_DOMAIN}"]
{callers}"#,
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
        let Some((_, own)) = member.members.iter().find(|(id, _)| *id == member.id) else {
            return String::new();
        };
        let name = peer_name(member.id);
        let mut text = format!(
            "[cluster]\nheartbeat = \"{}ms\"\nlisten = \"{own}\"\ncertificate = \"{}\"\n\
             private_key = \"{}\"\nca = \"{}\"\n",
            member.heartbeat_millis,
            pki.join(format!("{name}.pem")).display(),
            pki.join(format!("{name}-key.pem")).display(),
            pki.join("ca.pem").display(),
        );
        for (id, address) in &member.members {
            // Writing to a string does not fail.
            let _ = write!(text, "[[cluster.members]]\nid = {id}\naddress = \"{address}\"\n");
        }
        text
    }

    fn callers(&self) -> String {
        let Some(pki) = &self.pki else { return String::new() };
        let file = |name: &str| pki.join(name).display().to_string();
        let mut text = format!(
            "[transmitter]\nbase_url = \"https://{https}\"\nallow_loopback_push = true\n\
             [[issuers]]\nissuer = \"{SIGNAL_ISSUER}\"\nsubject = \"opaque\"\n\
             keys_url = \"{SIGNAL_ISSUER}/keys\"\ntrust_domains = [\"events.example\"]\n\
             [[signals]]\nissuer = \"{SIGNAL_ISSUER}\"\ncallers = [\"spiffe://{TRUST_DOMAIN}/{TRANSMITTER}\"]\n\
             trust_domains = [\"{TRUST_DOMAIN}\"]\nrevocations_per_minute = 1000000\n\
             [tls]\ncertificate = \"{certificate}\"\nprivate_key = \"{key}\"\nclient_ca = \"{ca}\"\n",
            https = self.https,
            certificate = file("node.pem"),
            key = file("node-key.pem"),
            ca = file("ca.pem"),
        );
        for (name, capabilities) in CALLERS {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "[[callers]]\nid = \"spiffe://{TRUST_DOMAIN}/{name}\"\ncapabilities = [{capabilities}]\n"
            );
        }
        text
    }
}

/// What the files of a node's certificate for its peers begin with.
pub fn peer_name(id: u64) -> String {
    format!("peer-{id}")
}
