//! Listeners and their callers: `node.mode`, `[listen]`, `[tls]`, `[[callers]]`, `[limits]`, `[metrics]`.
//!
//! A production node does not start without TLS and a client CA. Development mode has no TLS and listens on loopback
//! only, because every caller has all capabilities there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use url::{Host, Url};

use super::checker::{Checker, duration};
use super::schema;
use super::schema::{Mode, Settings};
use super::{ClientLimits, Fabric, Listen, Tls};
use crate::api::caller::{Callers, Capability, MetricsAccess};
use crate::api::listener::Caps;
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::tls::{Authorities, Files, KeyPairFiles, Roots};

/// Values that are checked together.
pub(super) struct Listeners {
    pub listen: Listen,
    pub tls: Option<Tls>,
    pub callers: Callers,
    pub limits: ClientLimits,
    pub metrics_access: MetricsAccess,
}

pub(super) fn check(
    settings: &Settings,
    fabric: Option<&Fabric>,
    checker: &mut Checker,
) -> Option<Listeners> {
    let is_development = settings.node.mode == Mode::Development;
    let http = checker.keep("listen.http", address(&settings.listen.http, is_development));
    let tls = match (&settings.tls, is_development) {
        (None, true) => Some(None),
        (Some(_), true) => {
            let rule = "not allowed in development mode, which has no TLS: remove it, or node.mode";
            checker.keep("tls", Err(rule))
        }
        (None, false) => {
            let rule = "must be set: outside development mode (node.mode), TLS is required";
            checker.keep("tls", Err(rule))
        }
        (Some(tls), false) => self::tls(tls, &settings.listen.https, fabric, checker).map(Some),
    };
    let hosts = hosts(&settings.listen.hosts, fabric, checker);
    let shutdown_delay =
        duration(&settings.listen.shutdown_delay, Duration::ZERO, limits::SHUTDOWN_DELAY_MAX);
    let shutdown_delay = checker.keep("listen.shutdown_delay", shutdown_delay);
    let callers = callers(&settings.callers, checker);
    let limits = limits(&settings.limits, checker);
    Some(Listeners {
        listen: Listen { http: http?, hosts: hosts?, shutdown_delay: shutdown_delay? },
        tls: tls?,
        callers: callers?,
        limits: limits?,
        metrics_access: settings.metrics.access,
    })
}

/// Without TLS (development mode) everything is served on 8693, bound to loopback addresses only (contract §1).
fn address(text: &str, must_be_loopback: bool) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8693".to_owned())?;
    if must_be_loopback && !address.ip().is_loopback() {
        return Err(
            "must be a loopback address in development mode, where every caller has all capabilities"
                .to_owned(),
        );
    }
    Ok(address)
}

fn tls(settings: &schema::Tls, https: &str, fabric: Option<&Fabric>, checker: &mut Checker) -> Option<Tls> {
    let address = checker.keep("listen.https", address(https, false));
    let mut file = |name: &str, path: &Option<std::path::PathBuf>| {
        checker.require(&format!("tls.{name}"), path.as_deref()).map(Path::to_owned)
    };
    let certificate = file("certificate", &settings.certificate);
    let private_key = file("private_key", &settings.private_key);
    let client_ca = file("client_ca", &settings.client_ca);
    let client_trust_domain = match &settings.client_trust_domain {
        Some(name) => checker.keep("tls.client_trust_domain", name.parse()),
        None => fabric.map(|fabric| fabric.trust_domain.clone()),
    };
    let more = trust_domains(settings, client_trust_domain.as_ref(), checker);
    let own = Authorities {
        trust_domain: client_trust_domain?,
        roots: Roots::Pem(client_ca?),
        crl: settings.client_crl.clone(),
    };
    let authorities = std::iter::once(own).chain(more?).collect();
    let own = KeyPairFiles { certificate: certificate?, private_key: private_key? };
    let files = Files { own, authorities };
    Some(Tls { address: address?, files })
}

/// The trust domains besides `own`, each with its own CAs.
fn trust_domains(
    settings: &schema::Tls,
    own: Option<&TrustDomain>,
    checker: &mut Checker,
) -> Option<Vec<Authorities>> {
    let mut found: Vec<Authorities> = Vec::new();
    for (index, row) in settings.trust_domains.iter().enumerate() {
        let setting = |name: &str| format!("tls.trust_domains[{index}].{name}");
        let name = checker.require(&setting("name"), row.name.as_deref());
        let name: Option<TrustDomain> = name.and_then(|name| checker.keep(&setting("name"), name.parse()));
        let ca = checker.require(&setting("ca"), row.ca.as_deref());
        let (Some(trust_domain), Some(ca)) = (name, ca) else { continue };
        if own == Some(&trust_domain) || found.iter().any(|known| known.trust_domain == trust_domain) {
            checker.keep(&setting("name"), Err::<(), _>("duplicate"));
            continue;
        }
        let roots = Roots::Pem(ca.to_owned());
        found.push(Authorities { trust_domain, roots, crl: row.crl.clone() });
    }
    let rule = format!("must be at most {}", limits::CLIENT_TRUST_DOMAINS_MAX);
    let is_short = settings.trust_domains.len() < limits::CLIENT_TRUST_DOMAINS_MAX;
    checker.keep("tls.trust_domains", is_short.then_some(()).ok_or(rule))?;
    (found.len() == settings.trust_domains.len()).then_some(found)
}

/// Host of our `iss`, and the additional host names of this node.
fn hosts(more: &[String], fabric: Option<&Fabric>, checker: &mut Checker) -> Option<Vec<String>> {
    let own = Url::parse(&fabric?.issuer).ok();
    // An IPv6 address has no brackets outside a URL.
    let own = own.and_then(|url| url.host_str().map(|host| host.trim_matches(['[', ']']).to_owned()));
    let more: Result<Vec<String>, String> = more.iter().map(|name| host(name)).collect();
    let more = checker.keep("listen.hosts", more)?;
    Some(own.into_iter().chain(more).collect())
}

/// A DNS name or an address, without a port.
fn host(text: &str) -> Result<String, String> {
    let rule = || format!("{text:?}: must be a DNS name or an IP address, without scheme and port");
    if text.is_empty() || text.contains('*') {
        return Err(rule());
    }
    match Host::parse(text) {
        Ok(Host::Domain(name)) if name.eq_ignore_ascii_case(text) => Ok(name),
        Ok(Host::Domain(_)) => Err(rule()),
        Ok(address) => Ok(address.to_string().trim_matches(['[', ']']).to_owned()),
        // `Host` parses an IPv6 address only in brackets.
        Err(_) => text.parse::<std::net::Ipv6Addr>().map(|address| address.to_string()).map_err(|_| rule()),
    }
}

fn callers(rows: &[schema::Caller], checker: &mut Checker) -> Option<Callers> {
    let mut table = BTreeMap::new();
    let mut all_good = true;
    for (index, row) in rows.iter().enumerate() {
        let setting = |name: &str| format!("callers[{index}].{name}");
        let id = checker.require(&setting("id"), row.id.as_deref());
        let id = id.and_then(|id| checker.keep(&setting("id"), spiffe_id(id)));
        let capabilities = checker.keep(&setting("capabilities"), capabilities(&row.capabilities));
        let (Some(id), Some(capabilities)) = (id, capabilities) else {
            all_good = false;
            continue;
        };
        if table.insert(id, capabilities).is_some() {
            checker.keep(&setting("id"), Err::<(), _>("duplicate"));
            all_good = false;
        }
    }
    all_good.then(|| Callers::new(table))
}

pub(super) fn spiffe_id(text: &str) -> Result<WorkloadId, String> {
    let id: WorkloadId =
        text.parse().map_err(|_| "must be a SPIFFE ID, such as spiffe://example.com/ci".to_owned())?;
    if text.starts_with("spiffe://") {
        Ok(id)
    } else {
        Err("must begin with spiffe://: client certificates have no other identifiers".to_owned())
    }
}

fn capabilities(names: &[String]) -> Result<BTreeSet<Capability>, String> {
    if names.is_empty() {
        return Err("must not be empty".to_owned());
    }
    names.iter().map(|name| name.parse().map_err(|rule| format!("{name:?}: {rule}"))).collect()
}

fn limits(settings: &schema::LimitsSection, checker: &mut Checker) -> Option<ClientLimits> {
    let mut within = |name: &str, value: u64, largest: u64| {
        let outcome =
            if (1..=largest).contains(&value) { Ok(value) } else { Err(format!("must be 1 to {largest}")) };
        checker.keep(&format!("limits.{name}"), outcome)
    };
    let requests = within(
        "requests_per_second_per_caller",
        settings.requests_per_second_per_caller,
        limits::REQUESTS_PER_SECOND_MAX.into(),
    );
    let connections = limits::CONNECTIONS_MAX as u64;
    let per_address = within("connections_per_address", settings.connections_per_address, connections);
    let per_identity = within("connections_per_identity", settings.connections_per_identity, connections);
    Some(ClientLimits {
        requests_per_second_per_caller: u32::try_from(requests?).ok()?,
        connections: Caps {
            per_address: usize::try_from(per_address?).ok()?,
            per_identity: usize::try_from(per_identity?).ok()?,
        },
    })
}
