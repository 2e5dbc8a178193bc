//! The values of the chart: the fabric, and its deployment in a cluster.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::spec::{ConfigMapKey, FabricSpec};
use crate::{Error, schema};

/// Values of the chart `trust-fabric`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    /// The fabric: `spec` of the custom resource.
    pub fabric: FabricSpec,
    /// Its deployment.
    #[serde(default)]
    pub deploy: Deploy,
}

impl Values {
    /// Reads a file of values, in YAML or JSON.
    ///
    /// # Errors
    /// [`Error::Values`] names the unknown or missing value.
    pub fn parse(text: &str) -> Result<Self, Error> {
        yaml_serde::from_str(text).map_err(|error| Error::Values(error.to_string()))
    }
}

/// Deployment of a fabric in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deploy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Whether this is a development fabric: permits pki.mode secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub development: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Labels of every object, besides those of the chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// Pods and networks that may call the nodes on 8694, Prometheus included. Empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<Client>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// Files for settings such as keysFile, each directory at /etc/trust-fabric/files/<name>.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<Files>>,
    /// The sidecar that writes the SVID of SPIRE into files, for pki.mode spire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spiffe_helper: Option<SpiffeHelper>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<ServiceMonitor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_rule: Option<PrometheusRule>,
    /// The pod of `helm test`. Without it there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Test>,
}

/// The image of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// Name of the image with its registry, without a tag: that is fabric.version.
    #[schemars(length(min = 1))]
    pub repository: String,
    /// Digest, which the tag must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// Names of Secrets with the credentials of the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_secrets: Option<Vec<String>>,
}

/// When kubelet pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Requests and limits of a node, such as cpu and memory, as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, String>>,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<u32>,
}

/// Relation of a toleration's key to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    Exists,
    Equal,
}

/// Effect of a tolerated taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// The service of callers. TLS is passed through: a balancer forwards TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ServiceType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
}

/// Type of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

/// Whether the address of a caller from outside of the cluster is kept (Local) or may be replaced (Cluster).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExternalTrafficPolicy {
    Cluster,
    Local,
}

/// Pods or a network, as in a NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<Selector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// Labels of pods or namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IpBlock {
    pub cidr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub except: Option<Vec<String>>,
}

/// The NetworkPolicy of the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The API server, needed if an issuer has bearerTokenFile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server: Option<Destination>,
    /// Issuers of keys, receivers of events and peer fabrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<Destination>>,
}

/// Networks and TCP ports that the nodes may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Destination {
    #[schemars(length(min = 1))]
    pub cidrs: Vec<String>,
    #[schemars(length(min = 1))]
    pub ports: Vec<u16>,
}

/// A ConfigMap or a Secret as a directory: exactly one of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Files {
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$"))]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
}

/// The sidecar for SPIRE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpiffeHelper {
    /// Image of spiffe-helper 0.10 or later, with its tag or digest.
    #[schemars(length(min = 1))]
    pub image: String,
}

/// Scraping by the Prometheus operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceMonitor {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Labels by which Prometheus selects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// CA of the nodes' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<ConfigMapKey>,
    /// Secret with tls.crt and tls.key of a caller that has metrics.read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_secret: Option<String>,
}

/// The alert rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrometheusRule {
    pub enabled: bool,
    /// Labels by which Prometheus selects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// The pod of `helm test`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Test {
    /// CA of the nodes' certificates.
    pub ca: ConfigMapKey,
    /// One exchange of the service-account token of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<TestExchange>,
}

/// One exchange of the service-account token of the test pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestExchange {
    /// Image with curl as its entry point, run as user 65532.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Secret with tls.crt and tls.key of a caller that has exchange.
    #[schemars(length(min = 1))]
    pub certificate_secret: String,
    /// Audience of the token.
    #[schemars(length(min = 1))]
    pub audience: String,
}

/// `values.schema.json`: nothing unknown is accepted, at any depth.
///
/// # Errors
/// [`Error::Generated`].
pub fn schema() -> Result<String, Error> {
    let mut schema = schema::of::<Values>();
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["$comment"] = json!("Generated from fabric-spec/ by `make fix`; a test compares the two.");
    // A default of a whole section would be one of `values.yaml` besides that file.
    if let Some(deploy) = schema.pointer_mut("/properties/deploy").and_then(Value::as_object_mut) {
        deploy.remove("default");
    }
    schema.sort_all_objects();
    let text = serde_json::to_string_pretty(&schema).map_err(|error| Error::Generated(error.to_string()))?;
    Ok(text + "\n")
}
