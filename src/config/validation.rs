//! Validation: from the settings of the file to typed values, collecting every mistake.

use std::collections::BTreeMap;

use super::checker::{Checker, own_issuer};
use super::schema;
use super::schema::{Mode, Settings};
use super::{
    Cluster, Config, Error, Fabric, Log, Node, Policy, cluster, federation, issuers, listeners, signals,
    transmitter,
};
use crate::outbound::address::Network;
use crate::outbound::guard::{Guard, Rules};
use crate::policy::blast_radius::Containment;
use crate::receiver::SignalIssuers;
use crate::token::issuer::Issuers;
use crate::{limits, telemetry};

/// Checks every setting, in the order of the example file.
pub(super) fn config(settings: &Settings, mut checker: Checker) -> Result<Config, Error> {
    let node = node(&settings.node, &mut checker);
    let fabric = fabric(&settings.fabric, &mut checker);
    let listeners = listeners::check(settings, fabric.as_ref(), &mut checker);
    let directory = checker.require("policy.directory", settings.policy.directory.as_deref());
    let cluster = cluster::check(settings, fabric.as_ref(), &mut checker);
    let blast_radius = checker.keep("blast_radius", containment(&settings.blast_radius));
    checker.keep("log.filter", telemetry::check_filter(&settings.log.filter));
    let own_issuer = fabric.as_ref().map(|fabric| fabric.issuer.as_str());
    let outbound = outbound(settings, listeners.as_ref(), cluster.as_ref(), &mut checker);
    let guard = Guard::new(outbound.clone());
    let issuers = issuers::check(&settings.issuers, own_issuer, &guard, &mut checker);
    if settings.issuers.is_empty() && settings.node.mode == Mode::Production {
        let rule =
            "must name at least one issuer outside development mode: without one there is no token exchange";
        checker.keep("issuers", Err::<(), _>(rule));
    }
    let signals = signals::check(settings, own_issuer, &guard, &mut checker);
    let transmitter = transmitter::check(settings, &mut checker);
    let tls = listeners.as_ref().and_then(|listeners| listeners.tls.as_ref());
    let federation =
        federation::check(settings, (fabric.as_ref(), tls), (&guard, blast_radius.as_ref()), &mut checker);
    if checker.mistakes.is_empty() {
        checker.keep("issuers", Issuers::new(issuers.clone()).map(drop));
    }
    let signals =
        if checker.mistakes.is_empty() { checker.keep("signals", SignalIssuers::new(signals)) } else { None };
    match (node, listeners, fabric, directory, cluster, blast_radius, signals) {
        (
            Some(node),
            Some(listeners),
            Some(fabric),
            Some(directory),
            Some(cluster),
            Some(blast_radius),
            Some(signals),
        ) if checker.mistakes.is_empty() => Ok(Config {
            node,
            listen: listeners.listen,
            tls: listeners.tls,
            callers: listeners.callers,
            limits: listeners.limits,
            metrics_access: listeners.metrics_access,
            fabric,
            issuers,
            signals,
            transmitter,
            federation,
            policy: Policy { directory: directory.to_owned() },
            cluster,
            outbound,
            blast_radius,
            log: Log { format: settings.log.format, filter: settings.log.filter.clone() },
        }),
        _ => Err(Error::Mistakes(checker.mistakes)),
    }
}

/// Ids above the largest that is allocated would leave none for a replacement.
pub(super) fn node_id(id: u64) -> Result<u64, String> {
    let is_allowed = (1..=limits::NODE_ID_MAX).contains(&id);
    is_allowed.then_some(id).ok_or_else(|| format!("must be 1 to {}", limits::NODE_ID_MAX))
}

fn node(settings: &schema::Node, checker: &mut Checker) -> Option<Node> {
    let id = checker.keep("node.id", node_id(settings.id));
    let data_dir = checker.require("node.data_dir", settings.data_dir.as_deref());
    let unit_id = settings.unit_id.clone().unwrap_or_else(|| format!("node-{}", settings.id));
    let well_formed = (1..=limits::UNIT_ID_BYTES_MAX).contains(&unit_id.len())
        && unit_id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let rule = || format!("must be 1 to {} of A-Z, a-z, 0-9, '.', '_', '-'", limits::UNIT_ID_BYTES_MAX);
    let unit_id = checker.keep("node.unit_id", if well_formed { Ok(unit_id) } else { Err(rule()) });
    Some(Node { id: id?, data_dir: data_dir?.to_owned(), unit_id: unit_id? })
}

fn fabric(settings: &schema::Fabric, checker: &mut Checker) -> Option<Fabric> {
    let issuer = checker.require("fabric.issuer", settings.issuer.as_deref());
    let issuer = issuer.and_then(|issuer| checker.keep("fabric.issuer", own_issuer(issuer)));
    let trust_domain = checker.require("fabric.trust_domain", settings.trust_domain.as_deref());
    let trust_domain = trust_domain.and_then(|name| checker.keep("fabric.trust_domain", name.parse()));
    Some(Fabric { issuer: issuer?, trust_domain: trust_domain? })
}

/// `[outbound]`, with the ports of this node and whether it pushes to loopback addresses.
fn outbound(
    settings: &Settings,
    listeners: Option<&listeners::Listeners>,
    cluster: Option<&Cluster>,
    checker: &mut Checker,
) -> Rules {
    let networks = checker.keep("outbound.allowed_networks", networks(&settings.outbound.allowed_networks));
    let loopback_push = settings.transmitter.as_ref().and_then(|transmitter| transmitter.allow_loopback_push);
    let mut rules = Rules {
        allow_loopback_http: settings.outbound.allow_loopback_http,
        allow_loopback_push: loopback_push.unwrap_or(settings.node.mode == Mode::Development),
        allowed_networks: networks.unwrap_or_default(),
        ..Rules::default()
    };
    if let Some(listeners) = listeners {
        rules.own_ports.insert(listeners.listen.http.port());
        rules.own_ports.extend(listeners.tls.as_ref().map(|tls| tls.address.port()));
    }
    let peers = cluster.and_then(|cluster| cluster.peers.as_ref());
    rules.own_ports.extend(peers.map(|peers| peers.listen.port()));
    rules
}

fn networks(stated: &[String]) -> Result<Vec<Network>, String> {
    if stated.len() > limits::OUTBOUND_NETWORKS_MAX {
        return Err(format!("must name at most {}", limits::OUTBOUND_NETWORKS_MAX));
    }
    let read = |text: &String| text.parse().map_err(|error| format!("{text:?}: {error}"));
    stated.iter().map(read).collect()
}

fn containment(settings: &schema::BlastRadius) -> Result<Containment, String> {
    let mut parents = BTreeMap::new();
    for (child, parent) in &settings.parents {
        let read = |text: &str| text.parse().map_err(|error| format!("parents: {text:?}: {error}"));
        parents.insert(read(child)?, read(parent)?);
    }
    Containment::new(settings.order.clone(), parents).map_err(|error| error.to_string())
}
