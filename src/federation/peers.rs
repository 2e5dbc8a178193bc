//! The peer fabrics of the configuration: how each is reached and recognized, and what it may do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};

use crate::id::{Digest128, TrustDomain, WorkloadId};
use crate::limits;
use crate::outbound::peers::Endpoint;
use crate::token::fabric_peers::Ceiling;

/// A peer fabric. Its identity is its issuer; its nodes are recognized by their SPIFFE IDs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "settings that are independent of each other")]
pub struct Peer {
    /// Label in logs, metrics and paths.
    pub name: String,
    /// `iss` of its tokens.
    pub issuer: String,
    /// Trust domains of its subjects, that of its nodes among them.
    pub trust_domains: Vec<TrustDomain>,
    /// Base URLs of its nodes; empty only if it is not read.
    pub endpoints: Vec<Endpoint>,
    /// SPIFFE IDs of its nodes, all of one trust domain.
    pub ids: BTreeSet<WorkloadId>,
    /// The roots of its nodes' certificates.
    pub roots: RootSource,
    /// Whether its ledger is read and its tokens may be accepted.
    pub accept: bool,
    /// Whether it may read our ledger.
    pub serve: bool,
    /// Time without a response after which its credentials are refused.
    pub stale_after: Duration,
    /// Whether that time is at most [`limits::PEER_FABRIC_LEASE`], and the peer learns what is enforced here.
    pub honours_lease: bool,
    /// Whether our revocations wait until it cannot accept what they cover any more.
    pub is_awaited: bool,
    /// Maximum entries of its ledger.
    pub max_entries: u32,
    /// Whether a new incarnation of it waits for an operator.
    pub approve_incarnation: bool,
    /// Facts of our ledger that it receives in clear.
    pub disclose: Disclosure,
    /// Limits of its tokens here.
    pub ceiling: Ceiling,
    /// SPIFFE IDs of its workloads that may call our exchange.
    pub callers: BTreeSet<WorkloadId>,
}

impl Peer {
    /// Digest of its settings. Paths of files are local to a node and left out; two versions of the product may differ.
    #[must_use]
    pub fn digest(&self) -> Digest128 {
        let RootSource { trust_domain, endpoint, .. } = self.roots.clone();
        let roots = RootSource { trust_domain, file: PathBuf::new(), endpoint, crl: None };
        digest_of(&format!("{:?}", Self { roots, ..self.clone() }))
    }

    /// Time since a call for which its credentials may be accepted, if its response allows as much.
    #[must_use]
    pub fn lease(&self) -> Duration {
        if self.honours_lease { self.stale_after.min(limits::PEER_FABRIC_LEASE) } else { self.stale_after }
    }

    /// As [`Self::lease`], after a response that names `named`, which counts only with `honours_lease`.
    #[must_use]
    pub fn lease_of(&self, named: Option<Duration>) -> Duration {
        let named = named.filter(|_| self.honours_lease);
        named.map_or(self.lease(), |named| named.min(self.lease()))
    }
}

/// The source of a peer's X.509 roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootSource {
    /// The trust domain of the peer's nodes, whose roots these are.
    pub trust_domain: TrustDomain,
    /// A SPIFFE bundle: the roots, or those of the first contact with the endpoint.
    pub file: PathBuf,
    /// Endpoint of newer bundles, authenticated by the newest accepted one (profile `https_spiffe`).
    pub endpoint: Option<Endpoint>,
    /// Revocation lists of the roots, as a PEM file.
    pub crl: Option<PathBuf>,
}

/// Facts of our ledger that a peer receives in clear; of the others it receives digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disclosure {
    /// Those about workloads, agents and tokens of this fabric.
    Own,
    /// None.
    Digests,
    /// Those of [`Disclosure::Own`], and about subjects of these issuers.
    Issuers(BTreeSet<String>),
}

/// The peers of this fabric. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Peers(Option<Arc<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    peers: Vec<Arc<Peer>>,
    by_id: BTreeMap<WorkloadId, Arc<Peer>>,
    trust_domains: BTreeSet<TrustDomain>,
}

impl Peers {
    /// The peers of a configuration with the section `[federation]`. No two have a name, issuer or trust domain in
    /// common.
    #[must_use]
    pub fn new(peers: Vec<Peer>) -> Self {
        let peers: Vec<_> = peers.into_iter().map(Arc::new).collect();
        let mut tables = Tables::default();
        for peer in &peers {
            tables.by_id.extend(peer.ids.iter().map(|id| (id.clone(), Arc::clone(peer))));
            tables.trust_domains.extend(peer.trust_domains.iter().cloned());
        }
        tables.peers = peers;
        Self(Some(Arc::new(tables)))
    }

    /// Whether the configuration has the section `[federation]`.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.0.is_some()
    }

    /// All peers, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.0.iter().flat_map(|tables| &tables.peers)
    }

    /// Digest of the settings of all peers, in any order; `None` without the section `[federation]`.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let digests: BTreeSet<_> = self.iter().map(|peer| peer.digest().to_string()).collect();
        self.is_configured().then(|| digest_of(&format!("{digests:?}")).to_string())
    }

    /// The peer with this name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<Peer>> {
        self.iter().find(|peer| peer.name == name)
    }

    /// The peer with this issuer.
    #[must_use]
    pub fn by_issuer(&self, issuer: &str) -> Option<&Arc<Peer>> {
        self.iter().find(|peer| peer.issuer == issuer)
    }

    /// The peer with a node of this SPIFFE ID, compared as a whole.
    #[must_use]
    pub fn by_id(&self, id: &WorkloadId) -> Option<&Arc<Peer>> {
        self.0.as_ref()?.by_id.get(id)
    }

    /// Whether a peer's workload may call our exchange.
    #[must_use]
    pub fn may_exchange(&self, id: &WorkloadId) -> bool {
        self.iter().any(|peer| peer.callers.contains(id))
    }

    /// Whether workloads of this trust domain are a peer's: their certificates name callers of federation routes, and of the
    /// exchange, only.
    #[must_use]
    pub fn have(&self, trust_domain: &TrustDomain) -> bool {
        self.0.as_ref().is_some_and(|tables| tables.trust_domains.contains(trust_domain))
    }
}

fn digest_of(text: &str) -> Digest128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(&SHA256, text.as_bytes()).as_ref()[..16]);
    Digest128::from_bytes(bytes)
}
