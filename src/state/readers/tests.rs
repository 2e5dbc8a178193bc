//! Revocations that wait for a peer, on a node whose clock tests advance.

use std::time::Duration;

use super::*;
use crate::clock::Timestamp;
use crate::limits;
use crate::state::command::Revoke;
use crate::state::resources::ledger::LedgerState;
use crate::state::testing::TestNode;
use crate::state::{CallContext, Effect, Idempotency, Signal, fact_row};
use crate::token::lineage::Fact;

const US: Digest128 = Digest128::from_bytes([7; 16]);
const IDP: &str = "https://idp.example";
/// Longer than every lease.
const LONGEST: Duration = Duration::from_secs(320);

fn fact(name: &str) -> Fact {
    Fact::subject(IDP, name)
}

fn signal(jti: &str, effects: Vec<Effect>) -> Signal {
    Signal {
        issuer: IDP.to_owned(),
        jti: jti.to_owned(),
        issued_at: Timestamp::default(),
        quota: u32::MAX,
        effects,
        reason: String::new(),
        content: Digest128::from_bytes([0; 16]),
        events: Vec::new(),
        subject: "ada".to_owned(),
    }
}

/// A node whose revocations wait for one peer.
struct Awaiting {
    node: TestNode,
    state: State,
    metrics: Metrics,
}

impl Awaiting {
    /// `has_led`: whether it has led for longer than every lease.
    async fn start(has_led: bool) -> Self {
        let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let metrics = Metrics::new().expect("metrics");
        let us = [("us".to_owned(), US)];
        let state = node.state.clone().awaiting(AwaitedPeers::new(us, node.clock.clone(), metrics.clone()));
        let awaiting = Self { node, state, metrics };
        awaiting.call(0).await;
        if has_led {
            awaiting.node.clock.advance(LONGEST);
        }
        awaiting
    }

    async fn end(self) {
        drop(self.state);
        self.node.end().await;
    }

    /// A call of the peer that honours the short lease, and states to enforce the ledger up to an index.
    async fn call(&self, enforced: u64) {
        let call = ReaderCall { reader: US, lease: Some(limits::PEER_FABRIC_LEASE), enforced };
        self.state.current_for(call).await.expect("current");
    }

    async fn revoke(&self, name: &str, caller: &CallContext) -> Result<(u64, String), Error> {
        let command = Revoke { fact: Some(fact_row(&fact(name))), ..Revoke::default() };
        let (revoked, awaited) = self.state.on_behalf_of(caller).revoke(command).await?;
        Ok((revoked.index, awaited.to_string()))
    }
}

/// A caller with an `Idempotency-Key`.
fn once(key: u8) -> CallContext {
    let digest = Digest128::from_bytes;
    let idempotency =
        Idempotency { key: digest([key; 16]), request: digest([8; 16]), owner: digest([9; 16]) };
    CallContext { idempotency: Some(idempotency), ..CallContext::default() }
}

#[tokio::test]
async fn revocation_states_how_its_wait_ended() {
    let awaiting = Awaiting::start(true).await;
    let (index, awaited) = awaiting.revoke("ada", &CallContext::default()).await.expect("revoked");
    assert_eq!(awaited, "us=lapsed");
    awaiting.call(index).await;
    assert_eq!(awaiting.state.enforced_by(US), Some(index));
    let page = awaiting.metrics.render().expect("page");
    assert!(page.contains(r#"svc_federation_await_seconds_count{peer="us"} 1"#), "{page}");
    // Without a peer there is no wait, and no header.
    let (revoked, awaited) = {
        let command = Revoke { fact: Some(fact_row(&fact("bob"))), ..Revoke::default() };
        awaiting.node.state.as_node().revoke(command).await.expect("revoked")
    };
    assert!(revoked.index > index && awaited.is_empty());
    awaiting.end().await;
}

/// A new leader and a silent peer, whose leases are unknown.
#[tokio::test]
async fn revocation_is_not_acknowledged_while_a_lease_may_be_held() {
    let awaiting = Awaiting::start(false).await;
    let refused = awaiting.revoke("ada", &CallContext::default()).await.expect_err("refused");
    assert!(matches!(&refused, Error::PeersSilent(names) if names == "us"), "{refused}");
    awaiting.end().await;
}

/// The peer's position reaches the log index of a repetition only when something else is revoked.
#[tokio::test]
async fn repeated_revocation_waits_for_its_entry_in_the_ledger() {
    let awaiting = Awaiting::start(false).await;
    let caller = once(1);
    awaiting.revoke("ada", &caller).await.expect_err("the peer is silent");
    let index = awaiting.state.cluster().applied();
    awaiting.call(index).await;
    assert_eq!(awaiting.revoke("ada", &caller).await.expect("revoked"), (index, "us=enforced".to_owned()));
    assert!(awaiting.state.cluster().applied() > index, "the repetition is in the log");
    awaiting.end().await;
}

#[tokio::test]
async fn every_kind_of_revocation_waits_for_the_peer() {
    let awaiting = Awaiting::start(true).await;
    let kid = awaiting
        .node
        .keyring()
        .await
        .signing_kid(crate::token::signing_key::SigningAlgorithm::Es256, awaiting.state.elapsed_time());
    let (kid, state) = (kid.expect("a key"), awaiting.state.as_node());
    let lapsed = |awaited: Awaited| assert_eq!(awaited.to_string(), "us=lapsed");
    lapsed(state.taint_signing_key(kid, Digest128::from_bytes([3; 16])).await.expect("tainted"));
    let watermark = vec![Effect::Watermark(fact("ada"))];
    let (is_new, awaited) = state.accept_signal(signal("1", watermark.clone())).await.expect("accepted");
    assert!(is_new);
    lapsed(awaited);
    let (is_new, awaited) = state.accept_signal(signal("1", watermark)).await.expect("accepted");
    assert!(!is_new);
    lapsed(awaited);
    let known = awaiting.state.has_signal(IDP, "1", &Digest128::from_bytes([0; 16])).await.expect("known");
    lapsed(known.expect("a duplicate"));
    let read = awaiting.state.current().await.expect("current");
    let query = crate::state::LedgerQuery { limit: 10, ..crate::state::LedgerQuery::default() };
    let page = awaiting.state.ledger_page(&read, &query).expect("a page");
    let states: Vec<_> = page.entries.iter().map(|entry| entry.state).collect();
    assert_eq!(states, [LedgerState::Key, LedgerState::Revoked]);
    awaiting.end().await;
}

/// Between the entries of the ledger there are others, and at its end as well.
#[tokio::test]
async fn end_of_the_ledger_is_its_last_entry() {
    let awaiting = Awaiting::start(true).await;
    assert_eq!(awaiting.state.end_of_ledger(1 << 40).expect("an index"), 0, "it is empty");
    let mut ends = Vec::new();
    for name in ["ada", "bob"] {
        awaiting.state.as_node().accept_signal(signal(name, Vec::new())).await.expect("no entry");
        ends.push(awaiting.revoke(name, &CallContext::default()).await.expect("revoked").0);
    }
    let [ada, bob] = ends[..] else { panic!("two") };
    for (index, expected) in
        [(1, 1), (ada, ada), (ada + 1, ada + 1), (bob, bob), (bob + 1, bob), (1 << 40, bob)]
    {
        assert_eq!(awaiting.state.end_of_ledger(index).expect("an index"), expected, "{index}");
    }
    // An entry that moves is waited for at its new position.
    let again = awaiting.revoke("bob", &CallContext::default()).await.expect("revoked").0;
    assert_eq!(awaiting.state.end_of_ledger(bob).expect("an index"), bob);
    assert_eq!(awaiting.state.end_of_ledger(1 << 40).expect("an index"), again);
    awaiting.end().await;
}
