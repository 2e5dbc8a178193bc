//! Imports of a real ledger, and through the log of a node.

use super::*;
use crate::state::Source;
use crate::state::command::{LiftBlock, PeerKeys, Revoke};
use crate::state::resources::revoked_fact::fact_row;
use crate::state::testing::TestNode;
use crate::token::lineage::Fact;

/// The ledger of a fabric as a response.
fn ledger_of(origin: &StateHarness) -> ImportLedger {
    let rows = origin.rows.0.iter().filter(|((table, _), _)| table == "revocation_order");
    let entry = |((_, key), row): (&(String, Vec<u8>), &Vec<u8>)| PeerEntry {
        n: u64::from_be_bytes(key[..8].try_into().expect("an index")),
        epoch: u32::from_be_bytes(row[1..].try_into().expect("an epoch")),
        state: row[0].into(),
        id: Bytes::copy_from_slice(&key[8..24]),
        by: Bytes::copy_from_slice(&key[24..]),
    };
    let sums = sums_of(&Tables::new(&origin.rows), &[0; 16]).expect("sums");
    let epoch = u32::try_from(START.secs() / 600 + 2).expect("fits");
    ImportLedger {
        root: Bytes::copy_from_slice(&sums.root(&incarnation(1), 0)),
        epoch,
        ..first(origin.last_index(), rows.map(entry).collect())
    }
}

#[test]
fn copy_of_a_ledger_has_its_root() {
    let mut origin = StateHarness::default();
    let revoke = |sub: &str, blocks| {
        let fact = Some(fact_row(&Fact::subject("https://idp.example", sub)));
        Command::Revoke(Revoke { fact, blocks, ..Revoke::default() })
    };
    origin.one(START, revoke("a", true));
    origin.one(START, revoke("b", true));
    origin.one(START.plus(Duration::from_secs(600)), revoke("c", false));
    origin.one(START.plus(Duration::from_secs(1200)), revoke("a", false));
    let blocks = origin.rows.0.keys().filter(|(table, _)| table == "block");
    let id = Bytes::from(blocks.map(|(_, key)| key.clone()).next().expect("a block"));
    origin.one(START.plus(Duration::from_secs(1200)), Command::LiftBlock(LiftBlock { id }));
    let mut relying = Relying::new();
    assert_eq!(relying.import(ledger_of(&origin)), DONE);
    let copy = relying.copy();
    assert_eq!((copy.fault, copy.entries, copy.blocks, relying.row().epochs), (None, 3, 1, 3));
    let of_another = relying.root(0).expect("a copy");
    assert_eq!((&of_another.0[..], of_another.1), (&ledger_of(&origin).root[..], 4));
}

/// Proof that this generation of the copy is recent.
async fn proof_of(node: &TestNode, generation: u64) -> SourceProof {
    let state = &node.state;
    let source = Source { id: peer_key(PEER), generation };
    let length = Duration::from_secs(60);
    let call = state.cluster().begin_source_call().expect("it leads");
    assert!(state.cluster().record_source(call, source, length));
    loop {
        let fresh = state.fresh().await.expect("a lease");
        match state.cluster().source_lease(&fresh, source, length) {
            Ok(proof) => return proof,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn import_through_the_log_is_judged_by() {
    let node = TestNode::start(START).await;
    let state = &node.state;
    assert_eq!(state.peer_copy(PEER).expect("reads"), None);
    let keys = Some(PeerKeys { etag: "one".to_owned(), key_set: Bytes::from_static(b"{\"keys\": []}") });
    let import = ImportLedger { keys, ..first(10, vec![revoked(5, 1)]) };
    let imported = state.import_ledger(import).await.expect("imports");
    assert!(imported.changed);
    assert_eq!(state.peer_copy(PEER).expect("reads"), Some(imported.copy.clone()));
    assert_eq!((imported.copy.position, imported.copy.generation), (10, 1));
    let again = state.import_ledger(response(9, 9, vec![])).await.expect("a reply");
    assert!(!again.changed);
    let refused = state.import_ledger(response(11, 12, vec![])).await.expect_err("a gap");
    assert!(matches!(refused, Error::Refused(Refusal::PeerEntriesMissing)), "{refused}");
    assert_eq!(state.peer_root(PEER, 0).expect("reads").expect("a copy").1, 1);
    let proof = proof_of(&node, 1).await;
    assert!(state.peer_keys(&proof).is_some());
    let position = state.position().expect("bootstrapped").index;
    let idx = |index| LogPosition { incarnation: incarnation(1), index };
    let verdicts = [4, 5].map(|index| state.judge_peer_token(&proof, idx(index), &[fact(1)]));
    assert_eq!(verdicts, [PeerVerdict::Revoked, PeerVerdict::Clear]);
    let verdict = state.judge_through_token(&proof, position, &[fact(1)]);
    assert_eq!(verdict, PeerVerdict::Clear);
    let paused = state.as_node().set_peer(PEER, PeerAct::Pause).await.expect("pauses");
    assert!(paused.is_paused);
    assert_eq!(state.judge_peer_token(&proof, idx(5), &[]), PeerVerdict::Paused);
    // Nothing is known about the age of another copy.
    let other = proof_of(&node, 2).await;
    let joining = PeerVerdict::Unjudged(Unjudged::Joining);
    assert_eq!(state.judge_peer_token(&other, idx(5), &[]), joining);
    assert_eq!(state.judge_through_token(&other, position, &[]), joining);
    assert!(state.peer_keys(&other).is_none() && !state.has_peer_keys_of(&other, idx(5)));
    let unknown = state.as_node().set_peer(OTHER, PeerAct::Resume).await.expect_err("unknown");
    assert!(matches!(unknown, Error::Refused(Refusal::UnknownPeer)), "{unknown}");
    node.end().await;
}

/// An older member of the cluster could not decode the command.
#[tokio::test]
async fn nothing_is_proposed_at_feature_level_0() {
    let node = TestNode::start_at_level(START, 0).await;
    let imported = node.state.import_ledger(first(10, vec![])).await.expect_err("level 0");
    assert!(matches!(imported, Error::Refused(Refusal::FeatureLevelTooLow)), "{imported}");
    let set = node.state.as_node().set_peer(PEER, PeerAct::Pause).await.expect_err("level 0");
    assert!(matches!(set, Error::Refused(Refusal::FeatureLevelTooLow)), "{set}");
    node.end().await;
}
