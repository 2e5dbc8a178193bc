//! Decisions of operators.

use super::*;
use crate::state::command::PeerAct;
use crate::state::resources::events::EventId;

#[test]
fn pause_refuses_credentials_and_imports_go_on() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    assert_eq!(relying.set(PeerAct::Pause), DONE);
    assert_eq!(relying.set(PeerAct::Pause), UNCHANGED);
    assert_eq!((relying.token(9, &[]), relying.through(9, &[])), (PeerVerdict::Paused, PeerVerdict::Paused));
    assert_eq!(relying.import(response(10, 12, vec![revoked(12, 2)])), DONE);
    assert_eq!(relying.set(PeerAct::Resume), DONE);
    assert_eq!(relying.set(PeerAct::Resume), UNCHANGED);
    let verdicts = [relying.token(9, &[]), relying.token(9, &[2])];
    assert_eq!(verdicts, [PeerVerdict::Clear, PeerVerdict::Revoked]);
}

/// An operator pauses a peer before its first response arrives, and a new copy does not end that.
#[test]
fn pause_precedes_and_outlives_a_copy() {
    let mut relying = Relying::new();
    assert_eq!(relying.set(PeerAct::Pause), DONE);
    assert_eq!(relying.import(first(10, vec![])), DONE);
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    assert_eq!(relying.import(ImportLedger { generation: 2, ..first(10, vec![]) }), DONE);
    assert_eq!(relying.token(10, &[]), PeerVerdict::Paused);
    assert_eq!(relying.set(PeerAct::Resume), DONE);
    assert_eq!(relying.token(10, &[]), PeerVerdict::Clear);
}

#[test]
fn unknown_peer_is_not_resumed_approved_or_forgotten() {
    let mut relying = Relying::new();
    for act in [PeerAct::Resume, PeerAct::Approve, PeerAct::Forget] {
        assert_eq!(relying.set(act), Reply::Refused(Refusal::UnknownPeer));
    }
    assert!(peer_rows(&relying.harness.rows).is_empty());
    let mut relying = Relying::joined(vec![]);
    assert_eq!(relying.set(PeerAct::Approve), Reply::Refused(Refusal::PeerNotApprovable), "it has no fault");
}

#[test]
fn forgotten_peer_joins_anew_and_its_past_is_void() {
    let mut relying = Relying::joined(vec![revoked(5, 1), blocked(6, 2)]);
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    let (copy, m) = (relying.copy(), relying.m());
    assert_eq!((copy.generation, copy.incarnation(), copy.void_m), (2, None, m));
    assert_eq!((copy.entries, copy.blocks, relying.root(0)), (0, 0, None));
    assert_eq!(["peer_ledger", "peer_block", "ledger_sum"].map(|table| relying.count(table)), [0; 3]);
    let joining = PeerVerdict::Unjudged(Unjudged::Joining);
    assert_eq!((relying.token(9, &[]), relying.through(m, &[])), (joining, joining));
    relying.refuses(response(10, 12, vec![]), Refusal::PeerGenerationChanged);
    let again = ImportLedger { generation: 2, ..first(12, vec![revoked(5, 1)]) };
    assert_eq!(relying.import(again), DONE);
    let m = relying.m();
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!([9, 10].map(|idx| relying.token(idx, &[])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    // The end of the deleted entry is due later, and says nothing about the new one.
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_millis(1)));
    assert_eq!((relying.row().expiring, relying.federated(), relying.copy().floor_n), (0, 0, 10));
}

/// The peer has forgotten the earlier entry, or its operator has removed it.
#[test]
fn token_from_before_a_deletion_never_counts_again() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let again = |generation| ImportLedger { generation, ..first(7, vec![]) };
    for generation in [2, 4, 6] {
        assert_eq!(relying.set(PeerAct::Forget), DONE);
        assert_eq!(relying.import(again(generation)), DONE);
        let verdicts = [4, 9, 10].map(|idx| relying.token(idx, &[1]));
        assert_eq!(verdicts, [PeerVerdict::Revoked, PeerVerdict::Revoked, PeerVerdict::Clear]);
    }
    // Without a copy in between as well.
    assert_eq!([relying.set(PeerAct::Forget), relying.set(PeerAct::Forget)], [DONE; 2]);
    assert_eq!(relying.import(again(9)), DONE);
    assert_eq!(relying.token(9, &[]), PeerVerdict::Revoked);
    // Another incarnation has indexes of its own, and replaces the deleted one.
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    let created = ImportLedger { incarnation: Bytes::from_static(&[2; 16]), ..again(11) };
    assert_eq!(relying.import(created), DONE);
    assert_eq!(
        (relying.token_of(2, 1, &[]), relying.token(99, &[])),
        (PeerVerdict::Clear, PeerVerdict::Revoked)
    );
}

/// No index distinguishes the tokens of the lost end from those that are issued later.
#[test]
fn forgotten_log_without_its_end_stays_refused() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    assert_eq!(relying.import(response(10, 7, vec![])), DONE);
    let awaited = ImportLedger {
        incarnation: Bytes::from_static(&[2; 16]),
        approve_incarnation: true,
        generation: 1,
        ..first(8, vec![])
    };
    assert_eq!(relying.import(awaited), DONE);
    assert_eq!(relying.copy().fault, Some(PeerFault::AwaitsApproval), "the first fault is no longer shown");
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    assert_eq!(relying.import(ImportLedger { generation: 2, ..first(30, vec![]) }), DONE);
    let copy = relying.copy();
    assert_eq!((copy.incarnation(), copy.fault), (None, Some(PeerFault::IncarnationReused)));
    let restored =
        ImportLedger { incarnation: Bytes::from_static(&[2; 16]), generation: 2, ..first(8, vec![]) };
    assert_eq!(relying.import(restored), DONE);
    assert_eq!(
        (relying.token_of(2, 8, &[]), relying.token(99, &[])),
        (PeerVerdict::Clear, PeerVerdict::Revoked)
    );
}

/// A refused import, also one beyond the quota, changes nothing and has no event.
#[test]
fn changes_of_a_peer_are_federation_events_of_the_feed() {
    let mut relying = Relying::joined(vec![]);
    let beyond = ImportLedger { entries_max: 1, ..response(10, 12, vec![revoked(11, 1), revoked(12, 2)]) };
    assert_eq!(relying.import(beyond), Reply::Refused(Refusal::PeerOverQuota));
    for act in [PeerAct::Pause, PeerAct::Pause, PeerAct::Resume] {
        relying.set(act);
    }
    let other_root = Bytes::from_static(&[9; 32]);
    assert_eq!(relying.import(ImportLedger { root: other_root, ..response(10, 11, vec![]) }), DONE);
    assert_eq!(relying.set(PeerAct::Approve), DONE);
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    let events = relying
        .harness
        .feed_events_from(EventId::default())
        .into_iter()
        .filter(|event| event.kind != "cluster");
    let events =
        events.map(|event| (event.kind, event.subject, event.target, event.detail.unwrap_or_default()));
    let adopted = format!("peer has incarnation {}", incarnation(1));
    let expected = [
        (None, adopted.as_str()),
        (Some("alice"), "peer is paused"),
        (Some("alice"), "peer is resumed"),
        (None, "peer is held: root_differs"),
        (Some("alice"), "peer is approved"),
        (Some("alice"), "peer is forgotten"),
    ];
    let expected = expected.map(|(by, detail)| {
        ("federation".to_owned(), PEER.to_owned(), by.map(str::to_owned), detail.to_owned())
    });
    assert_eq!(events.collect::<Vec<_>>(), expected);
}
