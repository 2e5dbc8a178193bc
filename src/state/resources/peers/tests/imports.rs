//! One test for each rule of an import.

use super::*;
use crate::limits;
use crate::state::command::PeerKeys;
use crate::state::resources::peers::parts::parts_of;

const CLEAR: PeerVerdict = PeerVerdict::Clear;
const REVOKED: PeerVerdict = PeerVerdict::Revoked;
const JOINING: PeerVerdict = PeerVerdict::Unjudged(Unjudged::Joining);

#[test]
fn entry_covers_tokens_that_were_issued_before_it() {
    let mut relying = Relying::joined(vec![revoked(5, 1), covering_all(6, 2)]);
    assert_eq!([4, 5, 11].map(|idx| relying.token(idx, &[7, 1])), [REVOKED, CLEAR, CLEAR]);
    assert_eq!(relying.token(9_000, &[2]), REVOKED, "a stolen key writes any index");
    assert_eq!(relying.token(0, &[3]), CLEAR);
    // Revoked again: the later entry counts, at either index.
    assert_eq!(relying.import(response(10, 12, vec![revoked(12, 1)])), DONE);
    let m = relying.m();
    assert_eq!([11, 12].map(|idx| relying.token(idx, &[1])), [REVOKED, CLEAR]);
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[1])), [REVOKED, CLEAR]);
    assert_eq!(relying.through(m - 1, &[3]), CLEAR);
    assert_eq!((relying.copy().entries, relying.federated()), (2, 2));
}

#[test]
fn block_covers_everything_until_it_is_lifted() {
    let mut relying = Relying::joined(vec![blocked(5, 1)]);
    let m = relying.m();
    assert_eq!((relying.token(9_000, &[1]), relying.through(m + 100, &[1])), (REVOKED, REVOKED));
    let by_another = PeerEntry { by: bytes_of(&fact(98)), ..blocked(11, 1) };
    assert_eq!(relying.import(response(10, 12, vec![by_another.clone(), lifted(12, 1)])), DONE);
    assert_eq!(relying.token(9_000, &[1]), REVOKED, "the block of another author remains");
    let lifted = PeerEntry { n: 13, state: 3, ..by_another };
    assert_eq!(relying.import(response(12, 13, vec![lifted])), DONE);
    assert_eq!((relying.token(0, &[1]), relying.through(m, &[1])), (CLEAR, CLEAR));
    assert_eq!((relying.copy().blocks, relying.federated()), (0, 0));
}

#[test]
fn first_response_begins_a_copy() {
    let mut relying = Relying::new();
    assert_eq!((relying.token(20, &[]), relying.through(20, &[])), (JOINING, JOINING));
    let not_from_the_beginning = ImportLedger { is_reset: false, ..first(10, vec![]) };
    relying.refuses(not_from_the_beginning, Refusal::PeerEntriesMissing);
    let with_floor = ImportLedger { floor: 6, ..first(10, vec![revoked(8, 1)]) };
    assert_eq!(relying.import(with_floor), DONE);
    let copy = relying.copy();
    assert_eq!((copy.generation, copy.position, copy.is_complete), (1, 10, true));
    assert_eq!((copy.incarnation(), copy.floor_n), (Some(incarnation(1)), 6));
    let m = relying.m();
    assert_eq!((copy.void_m, copy.entries), (m, 1));
    assert_eq!([5, 6].map(|idx| relying.token(idx, &[3])), [REVOKED, CLEAR]);
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[3])), [REVOKED, CLEAR]);
    let unknown = PeerVerdict::Unjudged(Unjudged::UnknownIncarnation);
    assert_eq!(relying.token_of(2, 9_000, &[]), unknown);
}

#[test]
fn import_for_another_copy_is_refused() {
    let mut relying = Relying::joined(vec![]);
    relying.refuses(first(20, vec![]), Refusal::PeerGenerationChanged);
    let next = ImportLedger { generation: 2, ..response(10, 12, vec![]) };
    relying.refuses(next, Refusal::PeerGenerationChanged);
}

#[test]
fn import_above_the_position_is_refused() {
    let mut relying = Relying::joined(vec![]);
    relying.refuses(response(11, 12, vec![revoked(12, 1)]), Refusal::PeerEntriesMissing);
    // The peer has forgotten entries in between, and does not send its blocks.
    let forgotten = ImportLedger { floor: 11, ..response(10, 12, vec![]) };
    relying.refuses(forgotten, Refusal::PeerEntriesMissing);
    assert_eq!(relying.import(ImportLedger { floor: 10, ..response(10, 12, vec![]) }), DONE);
    assert_eq!(relying.copy().floor_n, 0, "nothing was missed");
}

#[test]
fn response_that_ends_before_the_position_has_no_effect() {
    let mut relying = Relying::joined(vec![blocked(5, 1)]);
    assert_eq!(relying.import(response(10, 20, vec![lifted(15, 1)])), DONE);
    let before = peer_rows(&relying.harness.rows);
    let keys = Some(PeerKeys { etag: "old".to_owned(), key_set: Bytes::new() });
    let late = ImportLedger { keys, ..response(5, 12, vec![revoked(6, 2), blocked(12, 1)]) };
    assert_eq!(relying.import(late), UNCHANGED);
    let late_part = ImportLedger { is_whole: false, ..response(10, 14, vec![blocked(15, 1)]) };
    assert_eq!(relying.import(late_part), UNCHANGED);
    let late_reset = ImportLedger { is_reset: true, ..response(0, 12, vec![blocked(12, 1)]) };
    assert_eq!(relying.import(late_reset), UNCHANGED);
    assert_eq!(peer_rows(&relying.harness.rows), before);
}

/// The entry was forgotten in the meantime: as a new one it would refuse tokens that no log revokes.
#[test]
fn known_entries_of_an_overlapping_response_are_skipped() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_secs(1)));
    assert_eq!(relying.copy().entries, 0);
    let m = relying.m();
    assert_eq!(relying.import(response(3, 12, vec![revoked(5, 1), revoked(11, 2)])), DONE);
    assert_eq!((relying.copy().entries, relying.through(m, &[1])), (1, CLEAR));
    assert_eq!(relying.through(m, &[2]), REVOKED);
}

#[test]
fn missed_entries_raise_the_floor_and_void_and_replace_blocks() {
    let mut relying = Relying::joined(vec![revoked(4, 5), blocked(5, 1), blocked(6, 2)]);
    let m = relying.m();
    let reset = ImportLedger { floor: 25, is_reset: true, ..response(0, 30, vec![blocked(6, 2)]) };
    assert_eq!(relying.import(reset), DONE);
    let copy = relying.copy();
    assert_eq!((copy.floor_n, copy.void_m, copy.generation), (25, m + 1, 1));
    assert_eq!((copy.entries, copy.blocks, copy.is_complete), (1, 1, true));
    assert_eq!([24, 25].map(|idx| relying.token(idx, &[1])), [REVOKED, CLEAR]);
    assert_eq!(relying.token(9_000, &[2]), REVOKED);
    assert_eq!([m, m + 1].map(|idx| relying.through(idx, &[3])), [REVOKED, CLEAR]);
    assert_eq!(relying.federated(), 2);
}

/// Parts of a late response may hold entries that were replaced since.
#[test]
fn older_entry_of_a_fact_changes_nothing() {
    let mut relying = Relying::joined(vec![]);
    assert_eq!(relying.import(response(10, 14, vec![blocked(13, 1), revoked(14, 2)])), DONE);
    let ahead = ImportLedger { is_whole: false, ..response(14, 19, vec![blocked(20, 1), revoked(20, 2)]) };
    assert_eq!(relying.import(ahead), DONE);
    let behind = |entry| ImportLedger { is_whole: false, ..response(14, 19, vec![entry]) };
    assert_eq!(relying.import(behind(lifted(15, 1))), DONE);
    assert_eq!(relying.import(behind(blocked(16, 1))), DONE);
    assert_eq!(relying.import(behind(revoked(17, 2))), DONE);
    assert_eq!((relying.token(9_000, &[1]), relying.token(19, &[2])), (REVOKED, REVOKED));
    assert_eq!(relying.import(response(19, 20, vec![lifted(20, 1)])), DONE);
    assert_eq!(relying.token(9_000, &[1]), REVOKED, "a block and its lift have different indexes");
    assert_eq!(relying.import(response(20, 21, vec![lifted(21, 1)])), DONE);
    assert_eq!(relying.token(9_000, &[1]), CLEAR);
}

/// The peer sends its blocks although nothing was missed.
#[test]
fn reset_without_missed_entries_voids_nothing() {
    let mut relying = Relying::joined(vec![blocked(5, 1)]);
    let m = relying.m();
    let reset = ImportLedger { floor: 9, is_reset: true, ..response(0, 30, vec![]) };
    assert_eq!(relying.import(reset), DONE);
    assert_eq!((relying.copy().floor_n, relying.copy().void_m), (0, m));
    assert_eq!((relying.token(3, &[1]), relying.through(m, &[1])), (CLEAR, CLEAR));
}

#[test]
fn new_incarnation_begins_an_empty_copy() {
    let mut relying = Relying::new();
    let joined = ImportLedger { floor: 4, ..first(10, vec![revoked(5, 1), blocked(6, 2)]) };
    assert_eq!(relying.import(joined), DONE);
    let restored = ImportLedger {
        incarnation: Bytes::from_static(&[2; 16]),
        floor: 3,
        is_reset: true,
        ..response(0, 8, vec![revoked(7, 3)])
    };
    let continued = ImportLedger { is_reset: false, ..restored.clone() };
    relying.refuses(continued, Refusal::PeerEntriesMissing);
    assert_eq!(relying.import(restored.clone()), DONE);
    let (copy, m) = (relying.copy(), relying.m());
    assert_eq!((copy.generation, copy.position, copy.floor_n, copy.void_m), (2, 8, 3, m));
    assert_eq!((copy.entries, copy.blocks, relying.count("peer_ledger")), (1, 0, 1));
    assert_eq!(relying.token_of(1, 9_000, &[]), REVOKED, "the incarnation is replaced");
    assert_eq!([6, 7].map(|idx| relying.token_of(2, idx, &[3])), [REVOKED, CLEAR]);
    assert_eq!([2, 3].map(|idx| relying.token_of(2, idx, &[1, 2])), [REVOKED, CLEAR]);
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[])), [REVOKED, CLEAR]);
    // The end of the old copy's entry remains until it is due, and counts.
    assert_eq!((relying.row().expiring, relying.federated()), (2, 2));
    relying.refuses(response(10, 12, vec![]), Refusal::PeerGenerationChanged);
}

#[test]
fn copy_is_judged_by_only_when_it_was_read_to_the_end() {
    let mut relying = Relying::new();
    let entries = vec![blocked(2, 1), revoked(5, 2), revoked(5, 3), revoked(9, 4)];
    let mut parts = parts_of(first(10, entries), 2);
    let last = parts.pop().expect("a part");
    assert_eq!(parts.len(), 1);
    assert_eq!((parts[0].through, last.from, last.is_reset), (4, 4, false), "5 may be incomplete");
    assert_eq!(relying.import(parts.remove(0)), DONE);
    assert_eq!((relying.copy().position, relying.copy().is_complete), (4, false));
    assert_eq!((relying.token(8, &[]), relying.through(8, &[])), (JOINING, JOINING));
    assert_eq!(relying.import(ImportLedger { generation: 1, ..last }), DONE);
    assert_eq!((relying.copy().position, relying.copy().entries), (10, 3));
    assert_eq!([[2], [3], [4]].map(|fact| relying.token(4, &fact)), [REVOKED; 3]);
    // A later part does not end that: the source lease bounds how old the copy is.
    let part = ImportLedger { is_whole: false, ..response(10, 12, vec![revoked(13, 5)]) };
    assert_eq!(relying.import(part), DONE);
    assert_eq!((relying.copy().position, relying.token(12, &[5])), (12, REVOKED));
}

/// The next leader asks from the position: blocks up to it were read, blocks above it are sent as all entries are.
#[test]
fn interrupted_reading_is_continued_from_the_position() {
    let mut relying = Relying::joined(vec![blocked(5, 1), revoked(6, 9)]);
    let all = vec![blocked(3, 4), blocked(5, 1), blocked(21, 2), revoked(26, 3)];
    let reset = ImportLedger { floor: 20, is_reset: true, ..response(0, 30, all) };
    let parts = parts_of(reset, 1);
    assert_eq!(relying.import(parts[0].clone()), DONE);
    let copy = relying.copy();
    assert_eq!((copy.position, copy.is_complete, copy.blocks, copy.entries), (4, false, 1, 1));
    assert_eq!((copy.floor_n, copy.void_m), (20, relying.m()));
    assert_eq!(relying.token(9_000, &[]), JOINING);
    // An older complete response does not complete it.
    assert_eq!(relying.import(response(4, 9, vec![blocked(5, 1)])), UNCHANGED);
    assert_eq!(relying.import(parts[1].clone()), DONE);
    let rest = vec![blocked(21, 2), revoked(26, 3), lifted(31, 1)];
    let continued = ImportLedger { floor: 20, ..response(20, 32, rest) };
    assert_eq!(relying.import(continued), DONE);
    let copy = relying.copy();
    assert_eq!((copy.position, copy.is_complete, copy.blocks, copy.entries), (32, true, 2, 2));
    assert_eq!([[1], [2], [4]].map(|fact| relying.token(9_000, &fact)), [CLEAR, REVOKED, REVOKED]);
}

#[test]
fn key_set_is_replaced_and_ends_with_its_copy() {
    let mut relying = Relying::new();
    let set = |etag: &str| {
        let signing_key = crate::token::signing_key::SigningKey::generate().expect("a key");
        let key_set = serde_json::json!({"keys": [signing_key.public_jwk()]}).to_string();
        Some(PeerKeys { etag: etag.to_owned(), key_set: key_set.into() })
    };
    let kids = |relying: &Relying| {
        let rebuilt = PeerIndex::default();
        rebuilt.rebuild(&relying.harness.rows).expect("rebuilds");
        [relying.harness.machine.peers(), &rebuilt]
            .map(|index| index.get(&peer_key(PEER)).expect("a peer").keys.len())
    };
    assert_eq!(relying.import(ImportLedger { keys: set("one"), ..first(10, vec![]) }), DONE);
    assert_eq!((relying.copy().keys_etag.as_str(), kids(&relying)), ("one", [1, 1]));
    assert_eq!(relying.import(response(10, 11, vec![])), DONE);
    assert_eq!((relying.copy().keys_etag.as_str(), kids(&relying)), ("one", [1, 1]));
    let none = Some(PeerKeys { etag: "none".to_owned(), key_set: Bytes::from_static(b"{\"keys\": []}") });
    assert_eq!(relying.import(ImportLedger { keys: none, ..response(11, 12, vec![]) }), DONE);
    assert_eq!((relying.copy().keys_etag.as_str(), kids(&relying)), ("none", [0, 0]));
    assert_eq!(relying.import(ImportLedger { keys: set("two"), ..response(12, 13, vec![]) }), DONE);
    // A set that no node can read verifies nothing.
    let unreadable = Some(PeerKeys { etag: "odd".to_owned(), key_set: Bytes::from_static(b"{") });
    assert_eq!(relying.import(ImportLedger { keys: unreadable, ..response(13, 14, vec![]) }), DONE);
    assert_eq!(kids(&relying), [0, 0]);
    assert_eq!(relying.import(ImportLedger { keys: set("three"), ..response(14, 15, vec![]) }), DONE);
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    assert_eq!((relying.copy().keys_etag.as_str(), kids(&relying)), ("", [0, 0]));
}

#[test]
fn two_peers_have_two_copies() {
    let mut relying = Relying::joined(vec![blocked(5, 1), revoked(6, 2)]);
    let other = |import: ImportLedger| ImportLedger { issuer: OTHER.to_owned(), ..import };
    assert_eq!(relying.import(other(first(10, vec![blocked(5, 1), revoked(9, 2)]))), DONE);
    assert_eq!(relying.import(other(response(10, 12, vec![lifted(12, 1)]))), DONE);
    assert_eq!((relying.token(9_000, &[1]), relying.token(6, &[2])), (REVOKED, CLEAR));
    assert_eq!((relying.copy().blocks, relying.row_of(OTHER).blocks), (1, 0));
    assert_eq!(relying.federated(), 3);
}

#[test]
fn commands_need_feature_level_1() {
    let mut relying = Relying::new();
    relying.harness = StateHarness::default();
    let id = Bytes::from_static(&[7; 16]);
    let bootstrap = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 };
    relying.harness.one(START, Command::Bootstrap(bootstrap));
    relying.refuses(first(10, vec![revoked(5, 1)]), Refusal::FeatureLevelTooLow);
    assert_eq!(relying.set(PeerAct::Pause), Reply::Refused(Refusal::FeatureLevelTooLow));
    assert!(peer_rows(&relying.harness.rows).is_empty());
}

/// Commands of one entry see the rows that earlier ones of it have written or deleted.
#[test]
fn commands_of_one_entry_have_the_effect_of_several_entries() {
    let restored = ImportLedger {
        incarnation: Bytes::from_static(&[2; 16]),
        is_reset: true,
        ..response(0, 8, vec![revoked(7, 1), blocked(8, 2)])
    };
    let again = ImportLedger { generation: 2, ..restored.clone() };
    let forget = SetPeer { issuer: PEER.to_owned(), act: PeerAct::Forget.into(), ..SetPeer::default() };
    let commands = || {
        let rejoined = ImportLedger { generation: 3, ..restored.clone() };
        vec![
            Command::ImportLedger(first(10, vec![revoked(5, 1), revoked(6, 3), blocked(6, 2)])),
            Command::ImportLedger(restored.clone()),
            Command::ImportLedger(again.clone()),
            Command::SetPeer(forget.clone()),
            Command::ImportLedger(rejoined),
        ]
    };
    let (mut together, mut apart) = (Relying::new(), Relying::new());
    assert_eq!(together.harness.apply(START, commands()), vec![DONE; 5]);
    for command in commands() {
        assert_eq!(apart.harness.one(START, command), DONE);
    }
    let summary = |relying: &Relying| {
        let copy = relying.copy();
        let verdicts = [7, 8].map(|idx| relying.token_of(2, idx, &[1]));
        (copy.generation, copy.position, copy.entries, copy.blocks, relying.federated(), verdicts)
    };
    assert_eq!(summary(&together), summary(&apart));
    assert_eq!(summary(&together).5, [REVOKED, CLEAR]);
    assert_eq!(together.root(0), apart.root(0));
    assert_eq!(together.count("peer_ledger"), 1);
}
