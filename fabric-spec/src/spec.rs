//! `spec` of the custom resource: the fabric as a whole, its certificates and its storage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sections::{
    BlastRadius, Caller, Cluster, Federation, Issuer, Limits, Listen, Log, Metrics, Outbound, Signal,
    Transmitter,
};

/// Desired state of a Trust Fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FabricSpec {
    /// Tag of the image. Default: the version of the chart's application.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"))]
    pub version: Option<String>,

    /// Nodes of the cluster: 1, 3 or 5. Immutable: nodes join and leave by `trust-fabric cluster`, not by this number.
    #[serde(default = "three")]
    #[schemars(extend("enum" = [1, 3, 5]))]
    pub replicas: u8,

    /// `iss` of every minted token: an https URL in lower case without path, query, fragment and trailing slash. Immutable.
    #[schemars(regex(pattern = r"^https://[^/?#@A-Z]+$"), length(max = 2048))]
    pub issuer: String,

    /// Trust domain of the fabric. Immutable.
    #[schemars(regex(pattern = r"^[a-z0-9._-]+$"), length(max = 255))]
    pub trust_domain: String,

    /// Certificates of the nodes, and the CAs of callers and nodes.
    pub pki: Pki,

    /// Volume of each node.
    pub storage: Storage,

    /// Host names besides those of the issuer and of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,

    /// Capabilities of the holders of client certificates, by SPIFFE ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    pub callers: Option<Vec<Caller>>,

    /// Issuers of exchanged credentials. Without one there is no token exchange.
    #[schemars(length(min = 1, max = 100))]
    pub issuers: Vec<Issuer>,

    /// Issuers of security events, with their authority to revoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub signals: Option<Vec<Signal>>,

    /// Transmission of security events to receivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transmitter: Option<Transmitter>,

    /// Peer fabrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub federation: Option<Federation>,

    /// Replication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,

    /// Calls that a node makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbound: Option<Outbound>,

    /// Kinds of blast radius and their containment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<BlastRadius>,

    /// Limits per caller, address and identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,

    /// Access to /metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,

    /// Format and levels of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,

    /// Policy of a new cluster. Default: the one in the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

fn three() -> u8 {
    3
}

/// Source of the certificates of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PkiMode {
    CertManagerCsi,
    Spire,
    Secrets,
}

/// Certificates of the nodes, and the CAs of callers and nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pki {
    /// certManagerCsi: cert-manager's csi-driver issues them, by issuerRef. spire: SPIRE issues them, by a
    /// ClusterSPIFFEID of the class className. secrets: a Secret has the files of `trust-fabric pki`, the keys of all
    /// nodes; for development only.
    pub mode: PkiMode,

    /// Issuer of the certificates by which callers recognize a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerRef>,

    /// Issuer of the certificates by which nodes recognize each other. It should sign nothing else. Default: issuerRef.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_issuer_ref: Option<IssuerRef>,

    /// Class of the ClusterSPIFFEID.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class_name: Option<String>,

    /// Secret with the files of `trust-fabric pki`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,

    /// CAs of client certificates, PEM. Default for spire: its bundle; for secrets: ca.pem.
    #[serde(rename = "clientCA", skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<ConfigMapKey>,

    /// CA of all nodes, PEM. Default for spire: its bundle; for secrets: ca.pem.
    #[serde(rename = "peerCA", skip_serializing_if = "Option::is_none")]
    pub peer_ca: Option<ConfigMapKey>,

    /// Revocation lists of client certificates, one per CA.
    #[serde(rename = "clientCRL", skip_serializing_if = "Option::is_none")]
    pub client_crl: Option<ConfigMapKey>,

    /// Revocation lists of the CA of all nodes.
    #[serde(rename = "peerCRL", skip_serializing_if = "Option::is_none")]
    pub peer_crl: Option<ConfigMapKey>,

    /// Trust domain of the SPIFFE IDs in client certificates. Default: trustDomain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_trust_domain: Option<String>,

    /// Additional trust domains of client certificates, each with its own CAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 300))]
    pub trust_domains: Option<Vec<ClientTrustDomain>>,
}

/// An issuer of cert-manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerRef {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Default: Issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Default: cert-manager.io.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A key of a ConfigMap in the namespace of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapKey {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    #[schemars(regex(pattern = r"^[-._a-zA-Z0-9]+$"), length(max = 253))]
    pub key: String,
}

/// A trust domain of client certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientTrustDomain {
    pub name: String,
    /// Its CAs, PEM.
    pub ca: ConfigMapKey,
    /// Their revocation lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl: Option<ConfigMapKey>,
}

/// Volume of each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Storage {
    /// Size of the volume, such as 20Gi.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"))]
    pub size: String,
    /// Class of the volume: a local disk with a reliable fsync, not a network file system. Default: the cluster's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

/// Policy of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// ConfigMap whose keys are the files of the policy, tests included.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
}
