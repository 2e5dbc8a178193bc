//! Validation: from the settings of the file to typed values, collecting every mistake.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::schema;
use super::schema::{Mode, Settings};
use super::{
    Cluster, Config, Error, Fabric, Log, Mistake, Node, Policy, cluster, issuers, listeners, signals,
    transmitter,
};
use crate::outbound::address::Network;
use crate::outbound::guard::{Guard, Rules};
use crate::policy::blast_radius::Containment;
use crate::receiver::SignalIssuers;
use crate::token::issuer::Issuers;
use crate::{limits, telemetry};

/// Collects mistakes; knows the source of each setting.
pub(super) struct Checker {
    file: Option<String>,
    origins: HashMap<String, String>,
    mistakes: Vec<Mistake>,
}

impl Checker {
    pub(super) fn new(file: Option<&Path>) -> Self {
        let file = file.map(|path| path.display().to_string());
        Self { file, origins: HashMap::new(), mistakes: Vec::new() }
    }

    /// Records that `setting` was set by an environment variable or a flag.
    pub(super) fn set_by(&mut self, setting: &str, origin: &str) {
        self.origins.insert(setting.to_owned(), origin.to_owned());
    }

    /// A mistake in `setting`, with its source.
    pub(super) fn mistake(&self, setting: &str, rule: impl Display) -> Mistake {
        let origin = self.origins.get(setting).or(self.file.as_ref()).cloned();
        Mistake { setting: setting.to_owned(), rule: rule.to_string(), origin }
    }

    /// The value; or `None`, and the mistake is recorded.
    pub(super) fn keep<T>(&mut self, setting: &str, outcome: Result<T, impl Display>) -> Option<T> {
        outcome.map_err(|rule| self.mistakes.push(self.mistake(setting, rule))).ok()
    }

    /// The value of a required setting.
    pub(super) fn require<'k, T: ?Sized>(&mut self, setting: &str, value: Option<&'k T>) -> Option<&'k T> {
        if value.is_none() {
            self.mistakes.push(Mistake {
                setting: setting.to_owned(),
                rule: "must be set".to_owned(),
                origin: None,
            });
        }
        value
    }
}

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
            policy: Policy { directory: directory.to_owned() },
            cluster,
            outbound,
            blast_radius,
            log: Log { format: settings.log.format, filter: settings.log.filter.clone() },
        }),
        _ => Err(Error::Mistakes(checker.mistakes)),
    }
}

fn node(settings: &schema::Node, checker: &mut Checker) -> Option<Node> {
    let id =
        checker.keep("node.id", if settings.id == 0 { Err("must be 1 or more") } else { Ok(settings.id) });
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

/// RFC 8414 §2: an `https` URL without query and fragment; here also without a trailing slash, so that there is one
/// spelling. Plain `http` for loopback hosts only. Applies to every URL of this fabric.
pub(super) fn own_address(text: &str) -> Result<String, String> {
    let url = web_address(text)?;
    if url.query().is_some() || text.ends_with('/') || text.contains('?') {
        return Err("must have no query, no fragment and no trailing slash".to_owned());
    }
    if url.scheme() == "http" && !is_loopback_host(&url) {
        return Err("must be https; plain http is for localhost, 127.0.0.1 and [::1] only".to_owned());
    }
    // A URL that its parser would rewrite has two spellings, and `iss` is compared byte for byte.
    if url.as_str().trim_end_matches('/') == text {
        Ok(text.to_owned())
    } else {
        Err(format!("must be spelled as {}", url.as_str().trim_end_matches('/')))
    }
}

/// Our `iss`. Its metadata is served at the root of its host only: RFC 8414 §3.1 would put that of an issuer with a path
/// at `/.well-known/…/<path>`.
fn own_issuer(text: &str) -> Result<String, String> {
    let address = own_address(text)?;
    match Url::parse(&address) {
        Ok(url) if url.path() == "/" => Ok(address),
        _ => Err("must have no path: metadata and routes are served at the root of the host".to_owned()),
    }
}

/// An absolute `http` or `https` URL without user name and fragment.
fn web_address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("must be an absolute URL: {error}"))?;
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if text.len() > limits::URI_BYTES_MAX {
        Err(format!("must have at most {} bytes", limits::URI_BYTES_MAX))
    } else if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        Err("must be an https or http URL with a host".to_owned())
    } else if plain {
        Ok(url)
    } else {
        Err("must have no user name, password or fragment".to_owned())
    }
}

/// Hosts for which plain HTTP does not leave the machine.
fn is_loopback_host(url: &Url) -> bool {
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// A duration such as `30s`, within bounds.
pub(super) fn duration(text: &str, shortest: Duration, longest: Duration) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "must be a duration with its unit, such as 100ms, 30s or 24h".to_owned())?;
    if (shortest..=longest).contains(&duration) {
        Ok(duration)
    } else {
        let bounds = [shortest, longest].map(humantime::format_duration);
        Err(format!("must be {} to {}", bounds[0], bounds[1]))
    }
}

fn containment(settings: &schema::BlastRadius) -> Result<Containment, String> {
    let mut parents = BTreeMap::new();
    for (child, parent) in &settings.parents {
        let read = |text: &str| text.parse().map_err(|error| format!("parents: {text:?}: {error}"));
        parents.insert(read(child)?, read(parent)?);
    }
    Containment::new(settings.order.clone(), parents).map_err(|error| error.to_string())
}
