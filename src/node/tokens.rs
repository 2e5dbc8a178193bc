//! Wiring of the verification of tokens of fabrics, ours and those that came from peers, and of tool calls.

use crate::clock::Clock;
use crate::config::Config;
use crate::id::TrustDomain;
use crate::keyring::Keyring;
use crate::own_tokens::{self, OwnTokens};
use crate::peer_tokens::{AcceptedPeer, PeerTokens};
use crate::state::State;
use crate::telemetry::Metrics;
use crate::token::signature_cache::SignatureCache;
use crate::tools::audit::Audit;
use crate::tools::verify::ToolCallVerifier;

pub(super) fn own_tokens(
    config: &Config,
    keyring: &Keyring,
    state: &State,
    (signatures, peer_tokens): (&SignatureCache, &PeerTokens),
) -> OwnTokens {
    OwnTokens::new(own_tokens::Parts {
        issuer: config.fabric.issuer.clone(),
        trust_domains: trust_domains(config),
        keyring: keyring.clone(),
        state: state.clone(),
        signatures: signatures.clone(),
        peer_tokens: peer_tokens.clone(),
    })
}

/// The tokens of the peers whose ledgers are read.
pub(super) fn peer_tokens(
    config: &Config,
    state: &State,
    signatures: &SignatureCache,
    metrics: &Metrics,
) -> PeerTokens {
    let peers: Vec<_> = config.federation.iter().flat_map(|federation| federation.peers.iter()).collect();
    let configured = peers.iter().map(|peer| peer.issuer.clone()).collect();
    let accepted = peers.iter().filter(|peer| peer.accept).map(|peer| AcceptedPeer {
        name: peer.name.clone(),
        issuer: peer.issuer.clone(),
        trust_domains: peer.trust_domains.clone(),
        stale_after: peer.lease(),
        ceiling: peer.ceiling.clone(),
    });
    let (issuer, containment) = (config.fabric.issuer.clone(), config.blast_radius.clone());
    PeerTokens::new(
        issuer,
        (accepted, configured),
        state.clone(),
        signatures.clone(),
        (containment, metrics.clone()),
    )
}

/// The verification of tool calls.
pub(super) fn verifier(
    config: &Config,
    own_tokens: &OwnTokens,
    state: &State,
    audit: &Audit,
    (clock, metrics): (&Clock, &Metrics),
) -> ToolCallVerifier {
    ToolCallVerifier {
        own_tokens: own_tokens.clone(),
        state: state.clone(),
        containment: config.blast_radius.clone(),
        audit: audit.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    }
}

/// Trust domains of the workloads that we issue tokens for.
fn trust_domains(config: &Config) -> Vec<TrustDomain> {
    let foreign = config.issuers.iter().flat_map(|issuer| &issuer.trust_domains);
    let peers = config.federation.iter().flat_map(|federation| federation.peers.iter());
    let of_peers = peers.filter(|peer| peer.accept).flat_map(|peer| &peer.trust_domains);
    let mut all: Vec<_> = foreign.chain(of_peers).chain([&config.fabric.trust_domain]).cloned().collect();
    all.sort();
    all.dedup();
    all
}
