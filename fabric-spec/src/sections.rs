//! Sections of the configuration file, with its keys in camelCase.
//!
//! `trust-fabric.example.toml` explains each setting. An unset one is left out of the configuration: the node has the
//! defaults.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[listen]`, as far as the chart does not set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Listen {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub hosts: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_delay: Option<String>,
}

/// `[[callers]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Caller {
    #[schemars(regex(pattern = r"^spiffe://[^/]+/.+$"), length(max = 2048))]
    pub id: String,
    #[schemars(length(min = 1))]
    pub capabilities: Vec<Capability>,
}

/// A capability of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Capability {
    #[serde(rename = "exchange")]
    Exchange,
    #[serde(rename = "identity.issue")]
    IdentityIssue,
    #[serde(rename = "signals.send")]
    SignalsSend,
    #[serde(rename = "streams.manage")]
    StreamsManage,
    #[serde(rename = "streams.read")]
    StreamsRead,
    #[serde(rename = "tools.manage")]
    ToolsManage,
    #[serde(rename = "tools.read")]
    ToolsRead,
    #[serde(rename = "tools.verify")]
    ToolsVerify,
    #[serde(rename = "audit.read")]
    AuditRead,
    #[serde(rename = "cluster.admin")]
    ClusterAdmin,
    #[serde(rename = "events.read")]
    EventsRead,
    #[serde(rename = "metrics.read")]
    MetricsRead,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_per_second_per_caller: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_240))]
    pub connections_per_address: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_240))]
    pub connections_per_identity: Option<u32>,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<MetricsAccess>,
}

/// Access to /metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricsAccess {
    Loopback,
    Authenticated,
    Public,
}

/// `[cluster]`, as far as the chart does not set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 65_536, max = 68_719_476_736_u64))]
    pub log_bytes_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freshness: Option<Freshness>,
}

/// Proof of freshness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Freshness {
    Lease,
    ReadIndex,
}

/// `[outbound]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outbound {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_loopback_http: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub allowed_networks: Option<Vec<String>>,
}

/// `[blast_radius]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlastRadius {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parents: Option<BTreeMap<String, String>>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Log {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Json,
    Text,
}

/// `[[issuers]]`: exactly one source of its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Issuer {
    #[schemars(length(min = 1, max = 2048))]
    pub issuer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<IssuerKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audiences: Option<Vec<String>>,
    #[schemars(length(min = 1, max = 100))]
    pub trust_domains: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_credential_age: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_email: Option<bool>,
}

/// Kind of the credentials of an issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IssuerKind {
    Jwt,
    Spiffe,
}

/// Mapping of `sub` to a workload identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    Kubernetes,
    Identifier,
    Opaque,
}

/// `[[signals]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signal {
    #[schemars(length(min = 1, max = 2048))]
    pub issuer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audiences: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_domains: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub subject_issuers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub revocations_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_block_operators: Option<bool>,
}

/// `[transmitter]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transmitter {
    #[schemars(length(max = 2048))]
    pub base_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_loopback_push: Option<bool>,
}

/// `[federation]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Federation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
    #[schemars(length(min = 1, max = 300))]
    pub peers: Vec<Peer>,
}

/// `[[federation.peers]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    #[schemars(regex(pattern = r"^[a-z0-9-]{1,32}$"))]
    pub name: String,
    #[schemars(length(max = 2048))]
    pub issuer: String,
    #[schemars(length(min = 1))]
    pub trust_domains: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<String>>,
    #[schemars(length(min = 1))]
    pub ids: Vec<String>,
    pub bundle_file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serve: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub honour_lease: Option<bool>,
    #[serde(rename = "await", skip_serializing_if = "Option::is_none")]
    pub is_awaited: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_entries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approve_incarnation: Option<bool>,
    /// `own`, `digests`, or issuers: a list also where the configuration has a word, because a custom resource has no
    /// alternatives of type.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub disclose: Option<Vec<String>>,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub roles: Option<Vec<Role>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_blast_radius: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10))]
    pub max_delegation_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_chain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<BTreeMap<String, String>>,
}

/// Role in which a peer's token is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Subject,
    Actor,
}
