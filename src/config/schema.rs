//! Schema of the file with its defaults. Checks types and unknown names only. Durations are text: `24h`, `100ms`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use crate::api::caller::MetricsAccess;
use crate::cluster::FreshnessMode;
use crate::limits;
use crate::telemetry::LogFormat;
use crate::token::issuer::SubjectMapping;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    pub node: Node,
    pub listen: Listen,
    pub tls: Option<Tls>,
    pub callers: Vec<Caller>,
    pub limits: LimitsSection,
    pub metrics: Metrics,
    pub fabric: Fabric,
    pub policy: Policy,
    pub cluster: Cluster,
    pub outbound: Outbound,
    pub blast_radius: BlastRadius,
    pub log: Log,
    pub issuers: Vec<Issuer>,
    pub signals: Vec<SignalIssuer>,
    pub transmitter: Option<TransmitterSection>,
    pub federation: Option<FederationSection>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Node {
    #[serde(deserialize_with = "whole_number")]
    pub id: u64,
    pub data_dir: Option<PathBuf>,
    pub unit_id: Option<String>,
    pub mode: Mode,
}

impl Default for Node {
    fn default() -> Self {
        Self { id: 1, data_dir: None, unit_id: None, mode: Mode::Production }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Production,
    Development,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Listen {
    pub http: String,
    pub https: String,
    pub hosts: Vec<String>,
    pub shutdown_delay: String,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            http: "127.0.0.1:8693".to_owned(),
            https: "0.0.0.0:8694".to_owned(),
            hosts: Vec::new(),
            shutdown_delay: "0s".to_owned(),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tls {
    pub certificate: Option<PathBuf>,
    pub private_key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
    pub client_crl: Option<PathBuf>,
    pub client_trust_domain: Option<String>,
    pub trust_domains: Vec<TrustDomain>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TrustDomain {
    pub name: Option<String>,
    pub ca: Option<PathBuf>,
    pub crl: Option<PathBuf>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Caller {
    pub id: Option<String>,
    pub capabilities: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    #[serde(deserialize_with = "whole_number")]
    pub requests_per_second_per_caller: u64,
    #[serde(deserialize_with = "whole_number")]
    pub connections_per_address: u64,
    #[serde(deserialize_with = "whole_number")]
    pub connections_per_identity: u64,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            requests_per_second_per_caller: limits::REQUESTS_PER_SECOND_PER_CALLER.into(),
            connections_per_address: limits::CONNECTIONS_PER_ADDRESS_MAX as u64,
            connections_per_identity: limits::CONNECTIONS_PER_IDENTITY_MAX as u64,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Metrics {
    pub access: MetricsAccess,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Fabric {
    pub issuer: Option<String>,
    pub trust_domain: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Policy {
    pub directory: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Cluster {
    pub heartbeat: String,
    pub freshness: FreshnessMode,
    #[serde(deserialize_with = "whole_number")]
    pub log_bytes_max: u64,
    pub listen: Option<String>,
    pub certificate: Option<PathBuf>,
    pub private_key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub crl: Option<PathBuf>,
    pub members: Vec<Member>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            heartbeat: "50ms".to_owned(),
            freshness: FreshnessMode::default(),
            log_bytes_max: limits::LOG_BYTES_MAX_DEFAULT,
            listen: None,
            certificate: None,
            private_key: None,
            ca: None,
            crl: None,
            members: Vec::new(),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Member {
    #[serde(deserialize_with = "whole_number")]
    pub id: u64,
    pub address: Option<String>,
    pub identity: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Outbound {
    #[serde(deserialize_with = "yes_or_no")]
    pub allow_loopback_http: bool,
    pub allowed_networks: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BlastRadius {
    pub order: Vec<String>,
    pub parents: BTreeMap<String, String>,
}

impl Default for BlastRadius {
    fn default() -> Self {
        let order = ["workspace", "namespace", "cluster", "global"].map(str::to_owned).to_vec();
        Self { order, parents: BTreeMap::new() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    pub format: LogFormat,
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::default(),
            filter: "info,openraft=error,openraft::raft=off,openraft::storage=off".to_owned(),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the name of the setting")]
pub(super) struct Issuer {
    pub issuer: Option<String>,
    pub kind: IssuerKind,
    pub subject: Option<SubjectMapping>,
    pub keys_file: Option<PathBuf>,
    pub keys_url: Option<String>,
    #[serde(deserialize_with = "yes_or_no")]
    pub discovery: bool,
    pub bundle_file: Option<PathBuf>,
    pub bundle_endpoint: Option<String>,
    pub ca_file: Option<PathBuf>,
    pub bearer_token_file: Option<PathBuf>,
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<String>,
    pub audiences: Option<Vec<String>>,
    pub trust_domains: Vec<String>,
    #[serde(default = "default_credential_age")]
    pub max_credential_age: String,
    #[serde(deserialize_with = "yes_or_no")]
    pub verified_email: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum IssuerKind {
    #[default]
    Jwt,
    Spiffe,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SignalIssuer {
    pub issuer: Option<String>,
    pub keys_file: Option<PathBuf>,
    pub keys_url: Option<String>,
    #[serde(deserialize_with = "yes_or_no")]
    pub discovery: bool,
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<String>,
    pub audiences: Option<Vec<String>>,
    pub callers: Vec<String>,
    pub trust_domains: Vec<String>,
    pub subject_issuers: Option<Vec<String>>,
    #[serde(default = "default_revocations_per_minute", deserialize_with = "whole_number")]
    pub revocations_per_minute: u64,
    #[serde(deserialize_with = "yes_or_no")]
    pub may_block_operators: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TransmitterSection {
    pub base_url: Option<String>,
    pub certificate: Option<PathBuf>,
    pub private_key: Option<PathBuf>,
    #[serde(deserialize_with = "stated_yes_or_no")]
    pub allow_loopback_push: Option<bool>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FederationSection {
    pub certificate: Option<PathBuf>,
    pub private_key: Option<PathBuf>,
    pub peers: Vec<PeerFabric>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct PeerFabric {
    pub name: Option<String>,
    pub issuer: Option<String>,
    pub trust_domains: Vec<String>,
    pub endpoints: Vec<String>,
    pub ids: Vec<String>,
    pub bundle_file: Option<PathBuf>,
    pub bundle_endpoint: Option<String>,
    pub crl: Option<PathBuf>,
    #[serde(deserialize_with = "yes_or_no")]
    pub accept: bool,
    #[serde(deserialize_with = "yes_or_no")]
    pub serve: bool,
    #[serde(default = "default_stale_after")]
    pub stale_after: String,
    #[serde(deserialize_with = "yes_or_no")]
    pub honour_lease: bool,
    #[serde(rename = "await", deserialize_with = "yes_or_no")]
    pub is_awaited: bool,
    #[serde(deserialize_with = "stated_whole_number")]
    pub max_entries: Option<u64>,
    #[serde(deserialize_with = "yes_or_no")]
    pub approve_incarnation: bool,
    pub disclose: Disclose,
    #[serde(rename = "as")]
    pub roles: Vec<String>,
    pub capabilities: Vec<String>,
    pub max_blast_radius: Option<String>,
    #[serde(deserialize_with = "whole_number")]
    pub max_delegation_depth: u64,
    #[serde(default = "default_chain")]
    pub max_chain: String,
    pub callers: Vec<String>,
    pub blast_radius: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be \"own\", \"digests\" or a list of issuers")]
pub(super) enum Disclose {
    Word(String),
    Issuers(Vec<String>),
}

impl Default for Disclose {
    fn default() -> Self {
        Self::Word("own".to_owned())
    }
}

// Defaults of a row as it is read. `Default` of the row is another: the empty values of the types.

fn default_algorithms() -> Vec<String> {
    crate::token::issuer::ALGORITHMS_DEFAULT.map(|algorithm| algorithm.to_string()).to_vec()
}

fn default_credential_age() -> String {
    format!("{}h", limits::CREDENTIAL_AGE_MAX.as_secs() / 3600)
}

fn default_revocations_per_minute() -> u64 {
    limits::REVOCATIONS_PER_MINUTE.into()
}

fn default_stale_after() -> String {
    format!("{}s", limits::PEER_FABRIC_STALE_AFTER.as_secs())
}

fn default_chain() -> String {
    format!("{}s", limits::PEER_FABRIC_CHAIN.as_secs())
}

/// Environment variables are text. A fraction is refused, where the library would round it.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a whole number")]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => text.parse().map_err(|_| serde::de::Error::custom("must be a whole number")),
    }
}

/// [`whole_number`] for a setting whose default depends on others.
fn stated_whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    whole_number(deserializer).map(Some)
}

/// Strictly `true` or `false`.
fn yes_or_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be true or false")]
    enum Written {
        Bool(bool),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Bool(bool) => Ok(bool),
        Written::Text(text) => text.parse().map_err(|_| serde::de::Error::custom("must be true or false")),
    }
}

/// [`yes_or_no`] for a setting whose default depends on others.
fn stated_yes_or_no<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    yes_or_no(deserializer).map(Some)
}
