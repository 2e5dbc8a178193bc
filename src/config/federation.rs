//! `[federation]` and `[[federation.peers]]`: our certificate for peer fabrics, and how each is reached and recognized.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use super::checker::{Checker, duration, own_issuer};
use super::schema::{Disclose, Mode, PeerFabric, Settings};
use super::{Fabric, Tls, ceiling, issuers, listeners, schema};
use crate::federation::peers::{Disclosure, Peer, Peers, RootSource};
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::outbound::guard::{Guard, UrlError};
use crate::outbound::peers::Endpoint;
use crate::policy::blast_radius::Containment;
use crate::tls::KeyPairFiles;
use crate::token::fabric_peers::Ceiling;

/// `[federation]`
#[derive(Clone, Debug)]
pub struct Federation {
    /// Our certificate in calls to peers.
    pub certificate: KeyPairFiles,
    /// The peers.
    pub peers: Peers,
}

/// Checks each peer alone, then that no two claim the same name, issuer or trust domain, and that nothing
/// else in the configuration claims it.
pub(super) fn check(
    settings: &Settings,
    (fabric, tls): (Option<&Fabric>, Option<&Tls>),
    (guard, containment): (&Guard, Option<&Containment>),
    checker: &mut Checker,
) -> Option<Federation> {
    let section = settings.federation.as_ref()?;
    if settings.node.mode == Mode::Development {
        let rule = "not allowed in development mode, which has no TLS: remove it, or node.mode";
        return checker.keep("federation", Err(rule));
    }
    let certificate = certificate(section, tls, checker);
    let mut peers: Vec<Peer> = Vec::new();
    for (index, row) in section.peers.iter().enumerate() {
        let row = Row {
            settings,
            stated: row,
            name: format!("federation.peers[{index}]"),
            fabric,
            tls,
            guard,
            containment,
        };
        if let Some(peer) = row.check(checker) {
            row.check_unclaimed(&peer, &peers, checker);
            peers.push(peer);
        }
    }
    check_sizes(section, &peers, checker);
    check_callers(settings, &peers, checker);
    Some(Federation { certificate: certificate?, peers: Peers::new(peers) })
}

/// Both files or neither: then those of `[tls]`.
fn certificate(
    section: &schema::FederationSection,
    tls: Option<&Tls>,
    checker: &mut Checker,
) -> Option<KeyPairFiles> {
    if section.certificate.is_none() && section.private_key.is_none() {
        return tls.map(|tls| tls.files.own.clone());
    }
    let certificate = checker.require("federation.certificate", section.certificate.as_deref());
    let private_key = checker.require("federation.private_key", section.private_key.as_deref());
    Some(KeyPairFiles { certificate: certificate?.to_owned(), private_key: private_key?.to_owned() })
}

fn check_sizes(section: &schema::FederationSection, peers: &[Peer], checker: &mut Checker) {
    let count = section.peers.len();
    if count > limits::PEER_FABRICS_MAX {
        let rule = format!("must be at most {}", limits::PEER_FABRICS_MAX);
        checker.keep("federation.peers", Err::<(), _>(rule));
    }
    if peers.iter().filter(|peer| peer.is_awaited).count() > limits::AWAITED_PEERS_MAX {
        let rule = format!("at most {} may have await = true", limits::AWAITED_PEERS_MAX);
        checker.keep("federation.peers", Err::<(), _>(rule));
    }
    let sum: u64 = peers.iter().map(|peer| u64::from(peer.max_entries)).sum();
    if sum > limits::FEDERATED_ENTRIES_MAX.into() {
        let most = limits::FEDERATED_ENTRIES_MAX;
        let rule = format!("max_entries of all peers add up to {sum}, must be at most {most}");
        checker.keep("federation.peers", Err::<(), _>(rule));
    }
}

/// A workload of a peer is a caller of federation routes only, so a capability would have no effect.
fn check_callers(settings: &Settings, peers: &[Peer], checker: &mut Checker) {
    for (index, caller) in settings.callers.iter().enumerate() {
        let id: Option<WorkloadId> = caller.id.as_ref().and_then(|id| id.parse().ok());
        let peer = peers
            .iter()
            .find(|peer| id.as_ref().is_some_and(|id| peer.trust_domains.contains(id.trust_domain())));
        if let Some(peer) = peer {
            let rule = format!(
                "is of the peer fabric {:?}, whose workloads call the exchange only, by the setting callers of the peer",
                peer.name
            );
            checker.keep(&format!("callers[{index}].id"), Err::<(), _>(rule));
        }
    }
}

struct Row<'k> {
    settings: &'k Settings,
    stated: &'k PeerFabric,
    name: String,
    fabric: Option<&'k Fabric>,
    tls: Option<&'k Tls>,
    guard: &'k Guard,
    containment: Option<&'k Containment>,
}

impl Row<'_> {
    fn setting(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    fn keep<T>(&self, name: &str, outcome: Result<T, impl Display>, checker: &mut Checker) -> Option<T> {
        checker.keep(&self.setting(name), outcome)
    }

    fn check(&self, checker: &mut Checker) -> Option<Peer> {
        let row = self.stated;
        let name = checker.require(&self.setting("name"), row.name.as_deref());
        let name = name.and_then(|name| self.keep("name", label(name), checker));
        let issuer = checker.require(&self.setting("issuer"), row.issuer.as_deref());
        let issuer = issuer.and_then(|issuer| self.keep("issuer", own_issuer(issuer), checker));
        let trust_domains = limited(&row.trust_domains, 1, issuers::trust_domains);
        let trust_domains = self.keep("trust_domains", trust_domains, checker);
        let fewest = usize::from(row.accept);
        let endpoints = limited(&row.endpoints, fewest, |all| {
            let read =
                |text: &String| Endpoint::base(text, self.guard).map_err(|error| named(text, remedy(&error)));
            all.iter().map(read).collect()
        });
        let endpoints = self.keep("endpoints", endpoints, checker);
        let ids = trust_domains.as_deref().and_then(|trust_domains| {
            self.keep("ids", limited(&row.ids, 1, |all| ids(all, trust_domains)), checker)
        });
        let roots = self.roots(ids.as_ref(), checker);
        if !row.accept && !row.serve {
            checker.keep(&self.name, Err::<(), _>("needs accept = true or serve = true"));
        }
        if row.honour_lease && !row.accept {
            self.keep("honour_lease", Err::<(), _>("needs accept = true"), checker);
        }
        if row.is_awaited && !row.serve {
            self.keep(
                "await",
                Err::<(), _>("needs serve = true: only a peer that reads our ledger acknowledges it"),
                checker,
            );
        }
        let (shortest, longest) = (limits::PEER_FABRIC_STALE_AFTER_MIN, limits::PEER_FABRIC_STALE_AFTER_MAX);
        let stale_after = self.keep("stale_after", duration(&row.stale_after, shortest, longest), checker);
        let max_entries = self.keep("max_entries", self.max_entries(), checker);
        let disclose = self.keep("disclose", self.disclosure(), checker);
        let ceiling = self.ceiling(checker);
        let callers = self.keep("callers", self.callers(ids.as_ref()), checker);
        Some(Peer {
            name: name?,
            issuer: issuer?,
            trust_domains: trust_domains?,
            endpoints: endpoints?,
            ids: ids?,
            roots: roots?,
            accept: row.accept,
            serve: row.serve,
            stale_after: stale_after?,
            honours_lease: row.honour_lease,
            is_awaited: row.is_awaited,
            max_entries: max_entries?,
            approve_incarnation: row.approve_incarnation,
            disclose: disclose?,
            ceiling: ceiling?,
            callers: callers?,
        })
    }

    /// Its workloads that may call our exchange. The bundle has the roots of one trust domain.
    fn callers(&self, nodes: Option<&BTreeSet<WorkloadId>>) -> Result<BTreeSet<WorkloadId>, String> {
        let row = self.stated;
        let read = |text: &String| listeners::spiffe_id(text).map_err(|rule| named(text, rule));
        let callers =
            limited(&row.callers, 0, |all| all.iter().map(read).collect::<Result<BTreeSet<_>, _>>())?;
        let of_nodes = nodes.and_then(BTreeSet::first).map(WorkloadId::trust_domain);
        if !callers.is_empty() && !row.accept {
            Err("needs accept = true: callers exchange the peer's tokens".to_owned())
        } else if of_nodes.is_some_and(|domain| callers.iter().any(|caller| caller.trust_domain() != domain))
        {
            Err("must be of the trust domain of ids, whose roots the bundle has".to_owned())
        } else {
            Ok(callers)
        }
    }

    fn ceiling(&self, checker: &mut Checker) -> Option<Ceiling> {
        let broken = match ceiling::check(self.stated, self.containment) {
            Ok(ceiling) => return Some(ceiling),
            Err(broken) => broken,
        };
        for (setting, rule) in broken {
            self.keep(setting, Err::<(), _>(rule), checker);
        }
        None
    }

    fn roots(&self, ids: Option<&BTreeSet<WorkloadId>>, checker: &mut Checker) -> Option<RootSource> {
        let file = checker.require(&self.setting("bundle_file"), self.stated.bundle_file.as_deref());
        let endpoint = self.stated.bundle_endpoint.as_deref();
        let endpoint = endpoint.map(|text| Endpoint::document(text, self.guard)).transpose();
        let endpoint = self.keep("bundle_endpoint", endpoint, checker);
        // All of one trust domain.
        let trust_domain = ids?.first()?.trust_domain().clone();
        let crl = self.stated.crl.clone();
        Some(RootSource { trust_domain, file: file.map(Path::to_owned)?, endpoint: endpoint?, crl })
    }

    /// Default: an equal share.
    fn max_entries(&self) -> Result<u32, String> {
        let most = limits::FEDERATED_ENTRIES_MAX;
        let peers = self.settings.federation.as_ref().map_or(0, |section| section.peers.len());
        let share = u32::try_from(peers).ok().and_then(|peers| most.checked_div(peers)).unwrap_or_default();
        let stated =
            self.stated.max_entries.map_or(share, |stated| u32::try_from(stated).unwrap_or(u32::MAX));
        if (1..=most).contains(&stated) { Ok(stated) } else { Err(format!("must be 1 to {most}")) }
    }

    /// A stated issuer must be configured: of a misspelled one nothing would be disclosed.
    fn disclosure(&self) -> Result<Disclosure, String> {
        let stated = match &self.stated.disclose {
            Disclose::Word(word) if word == "own" => return Ok(Disclosure::Own),
            Disclose::Word(word) if word == "digests" => return Ok(Disclosure::Digests),
            Disclose::Word(_) => {
                return Err("must be \"own\", \"digests\" or a list of issuers".to_owned());
            }
            Disclose::Issuers(stated) => stated,
        };
        let is_known =
            |iss: &String| self.settings.issuers.iter().any(|known| known.issuer.as_ref() == Some(iss));
        match stated.iter().find(|iss| !is_known(iss)) {
            Some(unknown) => Err(named(unknown, "must be the issuer of one of [[issuers]]")),
            None => Ok(Disclosure::Issuers(stated.iter().cloned().collect())),
        }
    }

    /// Refuses a name, issuer or trust domain that is ours, of an earlier peer, or has another meaning here.
    fn check_unclaimed(&self, peer: &Peer, earlier: &[Peer], checker: &mut Checker) {
        if earlier.iter().any(|other| other.name == peer.name) {
            self.keep("name", Err::<(), _>("duplicate"), checker);
        }
        let mut issuers = self.settings.issuers.iter().filter_map(|issuer| issuer.issuer.as_ref());
        let claimed = if self.fabric.is_some_and(|fabric| fabric.issuer == peer.issuer) {
            Some("is this fabric's own issuer")
        } else if earlier.iter().any(|other| other.issuer == peer.issuer) {
            Some("is the issuer of another peer")
        } else if issuers.any(|issuer| *issuer == peer.issuer) {
            Some("is also one of [[issuers]], whose tokens are accepted without a ledger")
        } else {
            None
        };
        if let Some(rule) = claimed {
            self.keep("issuer", Err::<(), _>(rule), checker);
        }
        for trust_domain in &peer.trust_domains {
            if let Some(rule) = self.claim(trust_domain, earlier) {
                self.keep("trust_domains", Err::<(), _>(named(trust_domain.as_str(), rule)), checker);
            }
        }
    }

    fn claim(&self, trust_domain: &TrustDomain, earlier: &[Peer]) -> Option<&'static str> {
        let mut of_tls = self.tls.iter().flat_map(|tls| &tls.files.authorities);
        if self.fabric.is_some_and(|fabric| fabric.trust_domain == *trust_domain) {
            Some("is this fabric's own trust domain")
        } else if earlier.iter().any(|other| other.trust_domains.contains(trust_domain)) {
            Some("is a trust domain of another peer")
        } else if of_tls.any(|of| of.trust_domain == *trust_domain) {
            Some("has CAs in [tls] too, whose callers have capabilities")
        } else {
            None
        }
    }
}

/// The refusal of an address of a peer, with the setting that permits it.
fn remedy(refused: &UrlError) -> String {
    let setting =
        if matches!(refused, UrlError::Address(_)) { ", or be in outbound.allowed_networks" } else { "" };
    format!("{refused}{setting}")
}

fn named(value: &str, rule: impl Display) -> String {
    format!("{value:?}: {rule}")
}

/// A list of at least `fewest` distinct values.
fn limited<T>(
    stated: &[String],
    fewest: usize,
    read: impl FnOnce(&[String]) -> Result<T, String>,
) -> Result<T, String> {
    let most = limits::PEER_FABRIC_NODES_MAX;
    if !(fewest..=most).contains(&stated.len()) {
        return Err(format!("must name {fewest} to {most}"));
    }
    if stated.iter().collect::<BTreeSet<_>>().len() < stated.len() {
        return Err("must name each once".to_owned());
    }
    read(stated)
}

/// The SPIFFE IDs of the peer's nodes. A bundle has the roots of one trust domain.
fn ids(stated: &[String], trust_domains: &[TrustDomain]) -> Result<BTreeSet<WorkloadId>, String> {
    let read = |text: &String| listeners::spiffe_id(text).map_err(|rule| named(text, rule));
    let ids: BTreeSet<WorkloadId> = stated.iter().map(read).collect::<Result<_, _>>()?;
    let of: BTreeSet<&TrustDomain> = ids.iter().map(WorkloadId::trust_domain).collect();
    if of.len() > 1 {
        return Err("must be of one trust domain, whose roots the bundle has".to_owned());
    }
    if of.iter().all(|one| trust_domains.contains(one)) {
        Ok(ids)
    } else {
        Err("must be of one of trust_domains".to_owned())
    }
}

fn label(text: &str) -> Result<String, String> {
    let is_label = text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if is_label && (1..=limits::PEER_FABRIC_NAME_BYTES_MAX).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(format!("must be 1 to {} of a-z, 0-9 and '-'", limits::PEER_FABRIC_NAME_BYTES_MAX))
    }
}
