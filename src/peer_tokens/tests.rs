//! Credentials of a peer against a node that has a copy of its ledger: without a lease, revoked, of unread keys and
//! incarnations, beyond the ceiling.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::id::Incarnation;
use crate::policy::blast_radius::Containment;
use crate::state::command::{Fact, ImportLedger, PeerEntry, PeerKeys, Revoke};
use crate::state::testing::TestNode;
use crate::state::{CallContext, PeerAct};
use crate::telemetry::Metrics;
use crate::token::issued::verify_own;
use crate::token::lineage;
use crate::token::testing::{NOW_SECS, Signer, now, with};

const OURS: &str = "https://us.example";
const PEER: &str = "https://eu.example";
const AGENT: &str = "wimse://eu.example/agent/mcp/1";
const STALE_AFTER: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(30);
const FIRST: [u8; 16] = [1; 16];
const SECOND: [u8; 16] = [2; 16];

fn accepted() -> AcceptedPeer {
    AcceptedPeer {
        name: "eu".to_owned(),
        issuer: PEER.to_owned(),
        trust_domains: vec!["eu.example".parse().expect("trust domain")],
        stale_after: STALE_AFTER,
        ceiling: Ceiling {
            roles: BTreeSet::from([Role::Subject]),
            capabilities: BTreeSet::from(["db.read".to_owned()]),
            max_blast_radius: None,
            blast_radius: BTreeMap::new(),
            max_delegation_depth: 0,
            max_chain: Duration::from_secs(900),
        },
    }
}

/// A node, and a peer with its keys.
struct Relying {
    node: TestNode,
    peer_tokens: PeerTokens,
    metrics: Metrics,
    signer: Signer,
}

impl Relying {
    /// Before anything is imported.
    async fn start() -> Self {
        let node = TestNode::start(now()).await;
        let metrics = Metrics::new().expect("metrics");
        let peer_tokens = PeerTokens::new(
            OURS.to_owned(),
            ([accepted()], BTreeSet::new()),
            node.state.clone(),
            SignatureCache::default(),
            (Containment::default(), metrics.clone()),
        );
        Self { node, peer_tokens, metrics, signer: Signer::es256() }
    }

    /// Refusals that the metrics count.
    fn unjudged(&self) -> u64 {
        let page = self.metrics.render().expect("page");
        let counted =
            |line: &str| line.strip_prefix(r#"svc_federation_unjudged_total{peer="eu"} "#)?.parse().ok();
        page.lines().find_map(counted).expect("a count")
    }

    /// One that has read the peer's ledger up to index 100 and holds a lease on it.
    async fn joined(entries: Vec<PeerEntry>) -> Self {
        let relying = Self::start().await;
        relying.import(0, FIRST, entries).await;
        relying.until_leased().await;
        relying
    }

    /// Imports a whole ledger up to index 100, and records the call.
    async fn import(&self, generation: u64, incarnation: [u8; 16], entries: Vec<PeerEntry>) {
        let state = &self.node.state;
        let call = state.cluster().begin_source_call().expect("it leads");
        let keys = json!({"keys": [self.signer.jwk("k")]}).to_string();
        let import = ImportLedger {
            issuer: PEER.to_owned(),
            generation,
            incarnation: Bytes::copy_from_slice(&incarnation),
            through: 100,
            epoch: 10,
            is_whole: true,
            is_reset: true,
            entries,
            keys: Some(PeerKeys { etag: "\"1\"".to_owned(), key_set: keys.into_bytes().into() }),
            entries_max: 1000,
            ..ImportLedger::default()
        };
        let imported = state.import_ledger(import).await.expect("imported");
        assert!(imported.changed);
        let source = Source { id: peer_key(PEER), generation: imported.copy.generation };
        assert!(state.cluster().record_source(call, source, STALE_AFTER));
    }

    async fn fresh(&self) -> LeaseProof {
        self.node.state.fresh().await.expect("a lease")
    }

    async fn until_leased(&self) {
        let leased = async {
            while self.peer_tokens.lease(&self.fresh().await, &accepted()).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, leased).await.expect("renewed");
    }

    async fn verify_as(&self, role: Role, kid: &str, changes: &Value) -> Result<Credential, Refused> {
        let text = self.signer.sign(&json!({"alg": "ES256", "kid": kid, "typ": "at+jwt"}), &claims(changes));
        let token = Compact::parse(&text).expect("compact");
        self.peer_tokens.verify(&self.fresh().await, (&token, &accepted(), role), None, now())
    }

    async fn verify(&self, changes: &Value) -> Result<Credential, Refused> {
        self.verify_as(Role::Subject, "k", changes).await
    }

    /// Judges a token of ours that came through these fabrics and was minted at the present position.
    async fn through(&self, via: &[&str]) -> Result<(), Refused> {
        let position = self.node.state.position().expect("bootstrapped");
        self.peer_tokens.judge_through(&self.fresh().await, &through_token(via, &position.to_string()))
    }

    async fn end(self) {
        let Self { node, peer_tokens, .. } = self;
        drop(peer_tokens);
        node.end().await;
    }
}

fn claims(changes: &Value) -> Value {
    let claims = json!({
        "iss": PEER, "sub": AGENT, "aud": OURS, "jti": "t-1", "iat": NOW_SECS - 10, "exp": NOW_SECS + 290,
        "root_iat": NOW_SECS - 70, "root_exp": NOW_SECS + 5000, "lineage": [], "idx": idx(FIRST, 50), "capabilities": ["db.read"]
    });
    with(&claims, changes)
}

fn idx(incarnation: [u8; 16], index: u64) -> String {
    format!("{}-{index}", Incarnation::from_bytes(incarnation))
}

fn through_token(via: &[&str], idx: &str) -> Credential {
    let (signer, domain) = (Signer::es256(), "eu.example".parse().expect("trust domain"));
    let claims = claims(&json!({"iss": OURS, "idx": idx, "via": via}));
    let text = signer.sign(&json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"}), &claims);
    let (token, key) = (Compact::parse(&text).expect("compact"), signer.verifying("k"));
    let ours = Fabric { iss: OURS, trust_domains: std::slice::from_ref(&domain) };
    verify_own(&token, ours, &key, &SignatureCache::default(), None, now()).expect("good")
}

/// An entry about the agent: 1 is a revocation, 2 a block.
fn entry(n: u64, state: u32) -> PeerEntry {
    let id = lineage::workload(&AGENT.parse().expect("an id"));
    let by = if state == 2 { Bytes::from_static(&[9; 16]) } else { Bytes::new() };
    PeerEntry { n, epoch: 10, state, id: Bytes::copy_from_slice(id.as_bytes()), by }
}

#[track_caller]
fn assert_unjudged<T: std::fmt::Debug>(refused: Result<T, Refused>, expected: &str) {
    match refused {
        Err(Refused::Unjudged { peer, reason }) => {
            assert_eq!((peer.as_str(), reason.as_str()), ("eu", expected));
        }
        other => panic!("{other:?}"),
    }
}

const REVOKED: Refused = Refused::Token(token::Error::Revoked);

#[tokio::test]
async fn refusals_without_a_judgement_are_counted_by_peer() {
    let relying = Relying::start().await;
    assert_unjudged(relying.verify(&json!({})).await, "not heard yet");
    assert_unjudged(relying.through(&[PEER]).await, "not heard yet");
    assert_eq!(relying.unjudged(), 2);
    relying.import(0, FIRST, vec![entry(60, 1)]).await;
    relying.until_leased().await;
    let before = relying.unjudged();
    assert_eq!(relying.verify(&json!({})).await.err(), Some(REVOKED));
    assert_eq!(relying.unjudged(), before, "it is judged");
    relying.end().await;
}

#[tokio::test]
async fn token_of_a_peer_is_accepted_under_a_lease_only() {
    let relying = Relying::start().await;
    assert_unjudged(relying.verify(&json!({})).await, "not heard yet");
    assert_unjudged(relying.through(&[PEER]).await, "not heard yet");
    relying.import(0, FIRST, Vec::new()).await;
    relying.until_leased().await;
    let credential = relying.verify(&json!({})).await.expect("accepted");
    assert_eq!((credential.sub.as_str(), credential.via.as_slice()), (AGENT, &[PEER.to_owned()][..]));
    assert_eq!(relying.through(&[PEER]).await, Ok(()));
    // A node that allows less than the leader.
    let short = AcceptedPeer { stale_after: STALE_AFTER / 3, ..accepted() };
    assert!(relying.peer_tokens.lease(&relying.fresh().await, &short).is_ok());
    relying.node.clock.advance(STALE_AFTER / 3);
    let refused = relying.peer_tokens.lease(&relying.fresh().await, &short);
    assert_unjudged(refused, "last heard 20 s ago");
    assert_eq!(relying.through(&[PEER]).await, Ok(()));
    relying.node.clock.advance(STALE_AFTER * 2 / 3);
    assert_unjudged(
        relying.verify(&json!({"iat": NOW_SECS, "exp": NOW_SECS + 300})).await,
        "last heard 60 s ago",
    );
    assert_unjudged(relying.through(&[PEER]).await, "last heard 60 s ago");
    relying.end().await;
}

#[tokio::test]
async fn revocation_of_the_peer_covers_earlier_tokens() {
    let relying = Relying::joined(vec![entry(60, 1)]).await;
    assert_eq!(relying.verify(&json!({})).await.err(), Some(REVOKED), "issued at 50");
    assert_eq!(relying.verify(&json!({"idx": idx(FIRST, 59)})).await.err(), Some(REVOKED));
    assert!(relying.verify(&json!({"idx": idx(FIRST, 60)})).await.is_ok(), "renewed after it");
    relying.end().await;
}

#[tokio::test]
async fn block_of_the_peer_covers_every_token() {
    let relying = Relying::joined(vec![entry(60, 2)]).await;
    assert_eq!(relying.verify(&json!({"idx": idx(FIRST, 99)})).await.err(), Some(REVOKED));
    assert_eq!(relying.through(&[PEER]).await, Err(REVOKED));
    relying.end().await;
}

#[tokio::test]
async fn token_minted_before_the_import_is_refused() {
    let relying = Relying::start().await;
    let before = relying.node.state.position().expect("bootstrapped").to_string();
    relying.import(0, FIRST, vec![entry(60, 1)]).await;
    relying.until_leased().await;
    let judged = relying.peer_tokens.judge_through(&relying.fresh().await, &through_token(&[PEER], &before));
    assert_eq!(judged, Err(REVOKED));
    assert_eq!(relying.through(&[PEER]).await, Ok(()), "minted after it, with knowledge of it");
    relying.end().await;
}

#[tokio::test]
async fn unknown_key_is_refused_or_not_read_yet() {
    let relying = Relying::joined(Vec::new()).await;
    let by = async |kid: &str, at: &str| relying.verify_as(Role::Subject, kid, &json!({"idx": at})).await;
    let unknown = Some(Refused::Token(token::Error::UnknownKey));
    assert_eq!(by("other", &idx(FIRST, 100)).await.err(), unknown, "its key would be here");
    assert_unjudged(by("other", &idx(FIRST, 101)).await, "the key of the token is not known yet");
    assert_unjudged(by("other", &idx(SECOND, 1)).await, "the key of the token is not known yet");
    assert_eq!(by("other", "nonsense").await.err(), unknown);
    // Another key under the same `kid`.
    let stranger = Relying { signer: Signer::es256(), ..relying };
    let refused = stranger.verify(&json!({})).await.err();
    assert_eq!(refused, Some(Refused::Token(token::Error::SignatureInvalid)));
    stranger.end().await;
}

/// The key set comes with the last part.
#[tokio::test]
async fn unknown_key_between_two_parts_is_not_read_yet() {
    let relying = Relying::joined(Vec::new()).await;
    let part = ImportLedger {
        issuer: PEER.to_owned(),
        generation: 1,
        incarnation: Bytes::copy_from_slice(&FIRST),
        from: 100,
        through: 200,
        epoch: 10,
        entries_max: 1000,
        ..ImportLedger::default()
    };
    assert!(relying.node.state.import_ledger(part).await.expect("imported").changed);
    let new = relying.verify_as(Role::Subject, "new", &json!({"idx": idx(FIRST, 150)})).await;
    assert_unjudged(new, "the key of the token is not known yet");
    relying.end().await;
}

#[tokio::test]
async fn unknown_key_of_a_retired_incarnation_is_refused() {
    let relying = Relying::joined(Vec::new()).await;
    relying.import(1, SECOND, Vec::new()).await;
    relying.until_leased().await;
    let refused = relying.verify_as(Role::Subject, "other", &json!({"idx": idx(FIRST, 200)})).await.err();
    assert_eq!(refused, Some(Refused::Token(token::Error::UnknownKey)));
    relying.end().await;
}

#[tokio::test]
async fn other_incarnation_is_not_judged_and_a_retired_one_refused() {
    let relying = Relying::joined(Vec::new()).await;
    let second = json!({"idx": idx(SECOND, 1)});
    assert_unjudged(relying.verify(&second).await, "the token is of an incarnation that is not read");
    let before = relying.node.state.position().expect("bootstrapped").to_string();
    let lease = relying.peer_tokens.lease(&relying.fresh().await, &accepted()).expect("held");
    relying.import(1, SECOND, Vec::new()).await;
    // The earlier lease is on the replaced copy.
    let at = idx(SECOND, 1).parse().expect("a position");
    let verdict = relying.node.state.judge_peer_token(&lease, at, &[]);
    assert_eq!(verdict, PeerVerdict::Unjudged(Unjudged::Joining));
    assert!(relying.node.state.peer_keys(&lease).is_none());
    relying.until_leased().await;
    assert!(relying.verify(&second).await.is_ok());
    assert_eq!(relying.verify(&json!({})).await.err(), Some(REVOKED), "of the replaced incarnation");
    let judged = relying.peer_tokens.judge_through(&relying.fresh().await, &through_token(&[PEER], &before));
    assert_eq!(judged, Err(REVOKED), "minted before the new incarnation");
    relying.end().await;
}

#[tokio::test]
async fn paused_peer_is_refused_at_once() {
    let relying = Relying::joined(Vec::new()).await;
    let caller = CallContext::default();
    let set = async |act| relying.node.state.on_behalf_of(&caller).set_peer(PEER, act).await.expect("set");
    set(PeerAct::Pause).await;
    assert_eq!(relying.verify(&json!({})).await.err(), Some(Refused::Paused("eu".to_owned())));
    assert_eq!(relying.through(&[PEER]).await, Err(Refused::Paused("eu".to_owned())));
    set(PeerAct::Resume).await;
    assert!(relying.verify(&json!({})).await.is_ok());
    set(PeerAct::Forget).await;
    assert!(matches!(relying.verify(&json!({})).await, Err(Refused::Unjudged { .. })));
    relying.end().await;
}

#[tokio::test]
async fn token_through_an_unknown_fabric_is_refused() {
    let relying = Relying::joined(Vec::new()).await;
    let unknown = Err(Refused::Token(token::Error::PeerNotAccepted));
    for via in [&["https://ap.example"][..], &["https://ap.example", PEER], &[PEER, "https://ap.example"]] {
        assert_eq!(relying.through(via).await, unknown, "{via:?}");
    }
    assert_eq!(relying.through(&["https://eu.example/"]).await, unknown);
    relying.end().await;
}

#[tokio::test]
async fn token_beyond_the_ceiling_is_refused() {
    let relying = Relying::joined(Vec::new()).await;
    let refused = relying.verify_as(Role::Actor, "k", &json!({})).await.err();
    let broken = AboveCeiling::Role;
    assert_eq!(refused, Some(Refused::AboveCeiling { peer: "eu".to_owned(), broken }));
    let refused = relying.verify(&json!({"blast_radius": "namespace:prod"})).await.err();
    let broken = AboveCeiling::BlastRadiusUnmapped;
    assert_eq!(refused, Some(Refused::AboveCeiling { peer: "eu".to_owned(), broken }));
    let all = relying.verify(&json!({"capabilities": ["db.read", "db.write"]})).await.expect("accepted");
    assert_eq!(all.capabilities.as_deref(), Some(&["db.read".to_owned()][..]));
    relying.end().await;
}

/// One entry of this fabric ends everything that came from the peer.
#[tokio::test]
async fn own_revocation_covers_tokens_of_the_peer() {
    for (digest, blocks) in
        [(lineage::fabric(PEER), false), (lineage::fabric(PEER), true), (lineage::subject(PEER, AGENT), true)]
    {
        let relying = Relying::joined(Vec::new()).await;
        assert!(relying.verify(&json!({})).await.is_ok());
        let fact = Some(Fact { digest: Bytes::copy_from_slice(digest.as_bytes()), ..Fact::default() });
        let caller = CallContext::default();
        let revoked = Revoke { fact, blocks, ..Revoke::default() };
        relying.node.state.on_behalf_of(&caller).revoke(revoked).await.expect("revoked");
        assert_eq!(relying.verify(&json!({})).await.err(), Some(REVOKED));
        relying.end().await;
    }
}
