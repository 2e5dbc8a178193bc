//! The configuration of a node: the text that the chart writes into its ConfigMap.
//!
//! The chart's template `_config.tpl` writes the same from the same values; a test compares the two.

use serde_json::{Map, Value, json};

use crate::spec::{ClientTrustDomain, FabricSpec, Pki, PkiMode};
use crate::{Error, sections};

/// The release of the chart, from which the names of pods and services follow.
#[derive(Clone, Copy, Debug)]
pub struct Release<'r> {
    pub name: &'r str,
    pub namespace: &'r str,
}

/// Directory of the data: below the root of the volume, whose mode kubelet changes.
const DATA: &str = "/var/lib/trust-fabric/data";

/// Maps whose keys are names of the user, not of settings.
const KEPT: &str = "blastRadius";

/// The configuration of all nodes of `spec`. The id of a node, and with [`PkiMode::Secrets`] the paths of its
/// certificate for the other nodes, come from the environment.
///
/// # Errors
/// [`Error::Generated`] if a certificate has no source, or for another number of nodes than 1, 3 or 5.
pub fn to_toml(spec: &FabricSpec, release: Release<'_>) -> Result<String, Error> {
    if ![1, 3, 5].contains(&spec.replicas) {
        return Err(Error::Generated(format!("replicas is {}, must be 1, 3 or 5", spec.replicas)));
    }
    let mut file = Map::new();
    file.insert("node".to_owned(), json!({"data_dir": DATA}));
    file.insert("listen".to_owned(), listen(spec, release));
    file.insert("tls".to_owned(), tls(&spec.pki)?);
    file.insert("fabric".to_owned(), json!({"issuer": spec.issuer, "trust_domain": spec.trust_domain}));
    let directory =
        if spec.policy.is_some() { "/etc/trust-fabric/policy" } else { "/etc/trust-fabric/policies" };
    file.insert("policy".to_owned(), json!({"directory": directory}));
    file.insert("cluster".to_owned(), cluster(spec, release)?);
    for (name, section) in sections_of(spec)? {
        file.insert(name, section);
    }
    toml::to_string(&Value::Object(file)).map_err(|error| Error::Generated(error.to_string()))
}

/// The sections that are in the specification as they are in the file.
fn sections_of(spec: &FabricSpec) -> Result<Map<String, Value>, Error> {
    let spec = serde_json::to_value(spec).map_err(|error| Error::Generated(error.to_string()))?;
    let names = [
        "callers",
        "issuers",
        "signals",
        "transmitter",
        "federation",
        "outbound",
        "blastRadius",
        "limits",
        "metrics",
        "log",
    ];
    let mut sections: Map<String, Value> = names
        .into_iter()
        .filter_map(|name| Some((snake(name), in_snake_case(name, spec.get(name)?))))
        .collect();
    let peers = sections.get_mut("federation").and_then(|federation| federation["peers"].as_array_mut());
    for disclose in peers.into_iter().flatten().filter_map(|peer| peer.get_mut("disclose")) {
        if let Some([only]) = disclose.as_array().map(Vec::as_slice)
            && (only == "own" || only == "digests")
        {
            *disclose = only.clone();
        }
    }
    Ok(sections)
}

/// `value`, the setting `name`, with the names of its settings in snake case.
fn in_snake_case(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(object) if name == KEPT => Value::Object(object.clone()),
        Value::Object(object) => {
            object.iter().map(|(name, value)| (snake(name), in_snake_case(name, value))).collect()
        }
        Value::Array(items) => items.iter().map(|item| in_snake_case(name, item)).collect(),
        other => other.clone(),
    }
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The names of the service, of every pod, and those of the specification.
fn listen(spec: &FabricSpec, Release { name, namespace }: Release<'_>) -> Value {
    let mut hosts = vec![
        name.to_owned(),
        format!("{name}.{namespace}"),
        format!("{name}.{namespace}.svc"),
        format!("{name}.{namespace}.svc.cluster.local"),
    ];
    hosts.extend((1..=spec.replicas).map(|id| format!("{name}-{id}.{name}-peers.{namespace}.svc")));
    let stated = spec.listen.clone().unwrap_or(sections::Listen { hosts: None, shutdown_delay: None });
    hosts.extend(stated.hosts.unwrap_or_default());
    let shutdown_delay = stated.shutdown_delay.unwrap_or_else(|| "5s".to_owned());
    json!({"https": "0.0.0.0:8694", "hosts": hosts, "shutdown_delay": shutdown_delay})
}

/// Certificate and key of a node for callers, and for the other nodes.
fn pairs(mode: PkiMode) -> [Option<[&'static str; 2]>; 2] {
    match mode {
        PkiMode::CertManagerCsi => [
            Some(["/etc/trust-fabric/tls/tls.crt", "/etc/trust-fabric/tls/tls.key"]),
            Some(["/etc/trust-fabric/peers/tls.crt", "/etc/trust-fabric/peers/tls.key"]),
        ],
        PkiMode::Spire => {
            let svid = ["/run/trust-fabric/svid/svid.pem", "/run/trust-fabric/svid/svid-key.pem"];
            [Some(svid), Some(svid)]
        }
        PkiMode::Secrets => {
            [Some(["/etc/trust-fabric/pki/node.pem", "/etc/trust-fabric/pki/node-key.pem"]), None]
        }
    }
}

/// The file of a CA: a key of a ConfigMap, or the mode's own.
fn authority(stated: bool, file: &'static str, mode: PkiMode) -> Result<&'static str, Error> {
    match mode {
        _ if stated => Ok(file),
        PkiMode::CertManagerCsi => {
            Err(Error::Generated(format!("pki: {file} has no source: clientCA and peerCA must be set")))
        }
        PkiMode::Spire => Ok("/run/trust-fabric/svid/bundle.pem"),
        PkiMode::Secrets => Ok("/etc/trust-fabric/pki/ca.pem"),
    }
}

fn tls(pki: &Pki) -> Result<Value, Error> {
    let mut tls = Map::new();
    let [pair, _] = pairs(pki.mode);
    insert_pair(&mut tls, pair);
    let client_ca = authority(pki.client_ca.is_some(), "/etc/trust-fabric/ca/client-ca.pem", pki.mode)?;
    tls.insert("client_ca".to_owned(), json!(client_ca));
    if pki.client_crl.is_some() {
        tls.insert("client_crl".to_owned(), json!("/etc/trust-fabric/ca/client-crl.pem"));
    }
    if let Some(name) = &pki.client_trust_domain {
        tls.insert("client_trust_domain".to_owned(), json!(name));
    }
    if let Some(trust_domains) = &pki.trust_domains {
        let rows: Vec<Value> =
            (0..).zip(trust_domains).map(|(index, row)| trust_domain(index, row)).collect();
        tls.insert("trust_domains".to_owned(), json!(rows));
    }
    Ok(Value::Object(tls))
}

fn trust_domain(index: usize, row: &ClientTrustDomain) -> Value {
    let file = |kind: &str| format!("/etc/trust-fabric/ca/domain-{index}-{kind}.pem");
    match row.crl {
        Some(_) => json!({"name": row.name, "ca": file("ca"), "crl": file("crl")}),
        None => json!({"name": row.name, "ca": file("ca")}),
    }
}

fn insert_pair(section: &mut Map<String, Value>, pair: Option<[&'static str; 2]>) {
    if let Some([certificate, private_key]) = pair {
        section.insert("certificate".to_owned(), json!(certificate));
        section.insert("private_key".to_owned(), json!(private_key));
    }
}

fn cluster(spec: &FabricSpec, release: Release<'_>) -> Result<Value, Error> {
    let stated = serde_json::to_value(&spec.cluster).map_err(|error| Error::Generated(error.to_string()))?;
    let mut cluster = match in_snake_case("cluster", &stated) {
        Value::Object(cluster) => cluster,
        _ => Map::new(),
    };
    if spec.replicas == 1 {
        return Ok(Value::Object(cluster));
    }
    let pki = &spec.pki;
    cluster.insert("listen".to_owned(), json!("0.0.0.0:8695"));
    let [_, pair] = pairs(pki.mode);
    insert_pair(&mut cluster, pair);
    let ca = authority(pki.peer_ca.is_some(), "/etc/trust-fabric/ca/peer-ca.pem", pki.mode)?;
    cluster.insert("ca".to_owned(), json!(ca));
    if pki.peer_crl.is_some() {
        cluster.insert("crl".to_owned(), json!("/etc/trust-fabric/ca/peer-crl.pem"));
    }
    let members: Vec<Value> = (1..=spec.replicas).map(|id| member(id, spec, release)).collect();
    cluster.insert("members".to_owned(), json!(members));
    Ok(Value::Object(cluster))
}

/// cert-manager's driver knows the name of a pod, and not the number in it.
fn member(id: u8, spec: &FabricSpec, Release { name, namespace }: Release<'_>) -> Value {
    let mut member = json!({"id": id, "address": format!("{name}-{id}.{name}-peers:8695")});
    if spec.pki.mode == PkiMode::CertManagerCsi {
        member["identity"] = json!(format!("spiffe://{}/ns/{namespace}/pod/{name}-{id}", spec.trust_domain));
    }
    member
}
