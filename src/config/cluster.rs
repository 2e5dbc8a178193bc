//! `[cluster]`: heartbeat, freshness, and the connections between nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checker::{Checker, duration};
use super::schema::{Mode, Settings};
use super::{Fabric, listeners, schema, validation};
use crate::cluster::{FreshnessMode, NodeIdentities};
use crate::tls::{Authorities, Files, KeyPairFiles, Roots};
use crate::{limits, text};

/// `[cluster]`
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Interval of the leader's heartbeats.
    pub heartbeat: Duration,
    /// Proof of freshness: lease or ReadIndex.
    pub freshness: FreshnessMode,
    /// Size of the log beyond which it is purged up to a snapshot.
    pub log_bytes_max: u64,
    /// Connections to the other nodes; `None` for a cluster of one.
    pub peers: Option<Peers>,
}

/// Connections between the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Address of this node's peer listener.
    pub listen: SocketAddr,
    /// Certificate, key, CA and CRL.
    pub files: Files,
    /// Address of every bootstrap member, this node included; empty on a node that joins an existing cluster.
    pub members: BTreeMap<u64, String>,
    /// SPIFFE IDs in the certificates of the nodes.
    pub identities: NodeIdentities,
}

pub(super) fn check(settings: &Settings, fabric: Option<&Fabric>, checker: &mut Checker) -> Option<Cluster> {
    let cluster = &settings.cluster;
    let heartbeat = duration(&cluster.heartbeat, limits::HEARTBEAT_MIN, limits::HEARTBEAT_MAX);
    let heartbeat = checker.keep("cluster.heartbeat", heartbeat);
    let log_bytes = limits::LOG_BYTES_MAX_LOWEST..=limits::LOG_BYTES_MAX_HIGHEST;
    let rule = || format!("must be {} to {}", log_bytes.start(), log_bytes.end());
    let log_bytes_max =
        Some(cluster.log_bytes_max).filter(|bytes| log_bytes.contains(bytes)).ok_or_else(rule);
    let log_bytes_max = checker.keep("cluster.log_bytes_max", log_bytes_max);
    let is_alone = cluster.listen.is_none() && cluster.members.is_empty();
    if is_alone {
        return Some(Cluster {
            heartbeat: heartbeat?,
            freshness: cluster.freshness,
            log_bytes_max: log_bytes_max?,
            peers: None,
        });
    }
    if settings.node.mode == Mode::Development {
        let rule = "not allowed in development mode, which is one node: remove it, or node.mode";
        return checker.keep("cluster.listen", Err(rule));
    }
    let peers = peers(cluster, settings.node.id, fabric, checker);
    Some(Cluster {
        heartbeat: heartbeat?,
        freshness: cluster.freshness,
        log_bytes_max: log_bytes_max?,
        peers: Some(peers?),
    })
}

fn peers(
    settings: &schema::Cluster,
    node_id: u64,
    fabric: Option<&Fabric>,
    checker: &mut Checker,
) -> Option<Peers> {
    let listen = checker.require("cluster.listen", settings.listen.as_deref());
    let listen = listen.and_then(|text| {
        let rule = "must be an IP address and a port, such as 0.0.0.0:8695";
        checker.keep("cluster.listen", text.parse().map_err(|_| rule))
    });
    let mut file = |name: &str, path: &Option<PathBuf>| {
        checker.require(&format!("cluster.{name}"), path.as_deref()).map(Path::to_owned)
    };
    let certificate = file("certificate", &settings.certificate);
    let private_key = file("private_key", &settings.private_key);
    let ca = file("ca", &settings.ca);
    let members = members(&settings.members, node_id, checker);
    let identities = fabric.and_then(|fabric| identities(&settings.members, fabric, checker));
    Some(Peers {
        listen: listen?,
        files: Files {
            own: KeyPairFiles { certificate: certificate?, private_key: private_key? },
            authorities: vec![Authorities {
                trust_domain: fabric?.trust_domain.clone(),
                roots: Roots::Pem(ca?),
                crl: settings.crl.clone(),
            }],
        },
        members: members?,
        identities: identities?,
    })
}

fn members(rows: &[schema::Member], node_id: u64, checker: &mut Checker) -> Option<BTreeMap<u64, String>> {
    let mut members = BTreeMap::new();
    let mut all_good = true;
    for (index, row) in rows.iter().enumerate() {
        let setting = |name: &str| format!("cluster.members[{index}].{name}");
        let id = checker.keep(&setting("id"), validation::node_id(row.id));
        let address = checker.require(&setting("address"), row.address.as_deref());
        let address = address.and_then(|text| checker.keep(&setting("address"), address_of(text)));
        let (Some(id), Some(address)) = (id, address) else {
            all_good = false;
            continue;
        };
        if members.values().any(|known| *known == address) {
            checker.keep(&setting("address"), Err::<(), _>("duplicate"));
            all_good = false;
        }
        if members.insert(id, address).is_some() {
            checker.keep(&setting("id"), Err::<(), _>("duplicate"));
            all_good = false;
        }
    }
    if !all_good {
        return None;
    }
    let outcome = if members.len() > limits::MEMBERS_MAX {
        Err(format!("must be at most {}", limits::MEMBERS_MAX))
    } else if members.is_empty() || members.contains_key(&node_id) {
        Ok(members)
    } else {
        Err(format!("must include this node, whose node.id is {node_id}"))
    };
    checker.keep("cluster.members", outcome)
}

fn identities(rows: &[schema::Member], fabric: &Fabric, checker: &mut Checker) -> Option<NodeIdentities> {
    let mut identities = NodeIdentities::new(fabric.trust_domain.clone());
    let mut all_good = true;
    for (index, row) in rows.iter().enumerate() {
        let Some(text) = &row.identity else { continue };
        let identity = listeners::spiffe_id(text);
        let inserted = identity.and_then(|identity| {
            identities.insert(row.id, identity).map_err(|error| format!("{text:?}: {error}"))
        });
        all_good &= checker.keep(&format!("cluster.members[{index}].identity"), inserted).is_some();
    }
    all_good.then_some(identities)
}

fn address_of(address: &str) -> Result<String, String> {
    if text::is_host_and_port(address) {
        Ok(address.to_owned())
    } else {
        Err(format!("{address:?}: must be a host and a port, such as node-1.example.com:8695"))
    }
}
