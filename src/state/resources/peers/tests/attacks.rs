//! Peers that lie, flood, roll back or come back, and malformed commands in the log.

use super::*;
use crate::limits;
use crate::state::command::PeerKeys;

fn held(fault: PeerFault) -> PeerVerdict {
    PeerVerdict::Unjudged(Unjudged::Held(fault))
}

fn of(number: u8, import: ImportLedger) -> ImportLedger {
    ImportLedger { incarnation: Bytes::from(vec![number; 16]), ..import }
}

#[test]
fn peer_that_lost_its_past_is_held_until_it_is_restored() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let rolled_back = response(10, 7, vec![]);
    assert_eq!(relying.import(rolled_back.clone()), DONE);
    let fault = held(PeerFault::RolledBack);
    assert_eq!((relying.token(9_000, &[]), relying.through(9_000, &[])), (fault, fault));
    assert_eq!(relying.import(rolled_back), UNCHANGED, "it is held already");
    // The same log goes on: it stays held, and no operator can accept it in place.
    assert_eq!(relying.import(response(10, 30, vec![revoked(29, 2)])), DONE);
    let refused = Reply::Refused(Refusal::PeerNotApprovable);
    assert_eq!(relying.set(PeerAct::Approve), refused);
    assert_eq!((relying.token(9_000, &[]), relying.copy().position), (fault, 30));
    let restored = of(2, ImportLedger { is_reset: true, ..response(0, 8, vec![]) });
    assert_eq!(relying.import(restored), DONE);
    assert_eq!((relying.token_of(2, 8, &[]), relying.copy().fault), (PeerVerdict::Clear, None));
}

#[test]
fn retired_incarnation_that_comes_back_holds_the_peer() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let restored = of(2, ImportLedger { is_reset: true, ..response(0, 8, vec![]) });
    assert_eq!(relying.import(restored), DONE);
    let back = ImportLedger { generation: 2, is_reset: true, ..response(0, 50, vec![revoked(40, 2)]) };
    assert_eq!(relying.import(back.clone()), DONE);
    let fault = held(PeerFault::IncarnationReused);
    assert_eq!((relying.token_of(2, 8, &[]), relying.token(50, &[])), (fault, fault));
    assert_eq!((relying.copy().generation, relying.copy().entries), (2, 0), "nothing of it is read");
    // The copy goes on, and an operator ends it.
    let next = of(2, ImportLedger { generation: 2, ..response(8, 9, vec![revoked(9, 3)]) });
    assert_eq!(relying.import(next), DONE);
    assert_eq!(relying.set(PeerAct::Approve), DONE);
    assert_eq!(
        (relying.token_of(2, 8, &[3]), relying.token(50, &[])),
        (PeerVerdict::Revoked, PeerVerdict::Revoked)
    );
    assert_eq!(relying.import(back.clone()), DONE);
    assert_eq!(relying.token_of(2, 9, &[]), fault);
    // Forgetting the peer does not forget its replaced incarnations.
    assert_eq!(relying.set(PeerAct::Forget), DONE);
    assert_eq!(relying.import(ImportLedger { generation: 3, ..back }), DONE);
    assert_eq!(relying.copy().fault, Some(PeerFault::IncarnationReused));
}

#[test]
fn only_the_last_replaced_incarnations_are_remembered() {
    let mut relying = Relying::new();
    let most = u8::try_from(limits::RETIRED_INCARNATIONS_MAX).expect("few");
    for number in 1..=most + 2 {
        let generation = u64::from(number) - 1;
        let adopted = of(number, ImportLedger { generation, ..first(10, vec![]) });
        assert_eq!(relying.import(adopted), DONE);
    }
    let unknown = PeerVerdict::Unjudged(Unjudged::UnknownIncarnation);
    assert_eq!(relying.token_of(1, 10, &[]), unknown);
    assert_eq!(relying.token_of(2, 10, &[]), PeerVerdict::Revoked);
    assert_eq!(relying.token_of(most + 2, 10, &[]), PeerVerdict::Clear);
}

#[test]
fn new_incarnation_waits_for_an_operator_if_configured() {
    let mut relying = Relying::new();
    let cautious = |import: ImportLedger| ImportLedger { approve_incarnation: true, ..import };
    assert_eq!(relying.import(cautious(first(10, vec![revoked(5, 1)]))), DONE, "the first one replaces none");
    let restored = |number| of(number, cautious(ImportLedger { is_reset: true, ..response(0, 8, vec![]) }));
    assert_eq!(relying.import(restored(2)), DONE);
    assert_eq!(relying.import(restored(2)), UNCHANGED);
    let fault = held(PeerFault::AwaitsApproval);
    assert_eq!((relying.token(10, &[]), relying.token_of(2, 10, &[])), (fault, fault));
    // Another one came meanwhile: the operator approves that which was seen last.
    assert_eq!(relying.import(restored(3)), DONE);
    assert_eq!(relying.set(PeerAct::Approve), DONE);
    assert_eq!(relying.set(PeerAct::Approve), UNCHANGED);
    assert_eq!(relying.token(10, &[]), fault, "held until it is adopted");
    assert_eq!(relying.import(restored(2)), DONE);
    assert_eq!(relying.copy().generation, 1);
    assert_eq!(relying.import(restored(3)), DONE);
    let copy = relying.copy();
    assert_eq!((copy.generation, copy.incarnation(), copy.fault), (2, Some(incarnation(3)), None));
    // The approval was for one.
    let again = ImportLedger { generation: 2, ..restored(4) };
    assert_eq!(relying.import(again), DONE);
    assert_eq!(relying.copy().fault, Some(PeerFault::AwaitsApproval));
}

/// Regression: an incarnation that replaced one whose copy was forgotten was adopted without an operator.
#[test]
fn forgotten_peer_is_replaced_by_an_operator_only() {
    let cautious = |import: ImportLedger| ImportLedger { approve_incarnation: true, ..import };
    let again = |number| {
        let reset = ImportLedger { generation: 2, is_reset: true, ..response(0, 30, vec![]) };
        of(number, cautious(reset))
    };
    for (number, fault) in [(1, None), (2, Some(PeerFault::AwaitsApproval))] {
        let mut relying = Relying::new();
        assert_eq!(relying.import(cautious(first(10, vec![revoked(5, 1)]))), DONE);
        assert_eq!(relying.set(PeerAct::Forget), DONE);
        assert_eq!(relying.import(again(number)), DONE);
        assert_eq!(relying.copy().fault, fault, "{number}");
    }
}

/// Its operator would accept the copy of a log that was rolled back by approving a lesser fault.
#[test]
fn lesser_fault_does_not_replace_a_more_serious_one() {
    let mut relying = Relying::joined(vec![]);
    let restored = of(2, ImportLedger { is_reset: true, ..response(0, 8, vec![]) });
    assert_eq!(relying.import(restored), DONE);
    let present = |import: ImportLedger| of(2, ImportLedger { generation: 2, ..import });
    assert_eq!(relying.import(present(response(8, 7, vec![]))), DONE);
    let back = ImportLedger { generation: 2, is_reset: true, ..response(0, 50, vec![]) };
    assert_eq!(relying.import(back), UNCHANGED);
    let differs = present(ImportLedger { root: Bytes::from_static(&[9; 32]), ..response(8, 9, vec![]) });
    assert_eq!(relying.import(differs), DONE);
    assert_eq!(relying.copy().fault, Some(PeerFault::RolledBack));
    assert_eq!(relying.set(PeerAct::Approve), Reply::Refused(Refusal::PeerNotApprovable));
}

#[test]
fn other_root_holds_the_peer_until_its_ledger_is_read_again() {
    let mut relying = Relying::joined(vec![revoked(5, 1), blocked(6, 2)]);
    let (root, count) = relying.root(10).expect("a copy");
    assert_eq!(count, 2);
    let stated = |root: &[u8], floor_epoch| ImportLedger {
        root: Bytes::copy_from_slice(root),
        floor_epoch,
        ..response(10, 11, vec![])
    };
    assert_eq!(relying.import(stated(&root, 10)), DONE);
    assert_eq!(relying.copy().fault, None);
    // Under another floor it is another root.
    assert_ne!(relying.root(9).expect("a copy").0, root);
    let next = ImportLedger { from: 11, through: 12, ..stated(&root, 9) };
    assert_eq!(relying.import(next), DONE);
    assert_eq!(relying.token(9_000, &[]), held(PeerFault::RootDiffers));
    let m = relying.m();
    assert_eq!(relying.set(PeerAct::Approve), DONE);
    assert_eq!(relying.token(9_000, &[]), PeerVerdict::Unjudged(Unjudged::Joining));
    assert_eq!((relying.copy().generation, relying.copy().void_m), (2, m + 1));
    let again = ImportLedger { generation: 2, ..first(12, vec![revoked(5, 1), blocked(6, 2)]) };
    assert_eq!(relying.import(again), DONE);
    assert_eq!([11, 12].map(|idx| relying.token(idx, &[])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!(relying.root(10), Some((root, 2)));
}

#[test]
fn root_over_forgotten_epochs_is_not_compared() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_secs(1)));
    assert_eq!(relying.copy().complete_from, 11);
    let root = Bytes::from_static(&[9; 32]);
    let incomplete = ImportLedger { root: root.clone(), floor_epoch: 10, ..response(10, 11, vec![]) };
    assert_eq!(relying.import(incomplete), DONE);
    assert_eq!(relying.copy().fault, None);
    let complete = ImportLedger { root, floor_epoch: 11, ..response(11, 12, vec![]) };
    assert_eq!(relying.import(complete), DONE);
    assert_eq!(relying.copy().fault, Some(PeerFault::RootDiffers));
}

/// A late response was answered before the peer forgot an entry, the present one after that: both end at the same index.
#[test]
fn root_over_missed_epochs_is_not_compared() {
    let mut relying = Relying::joined(vec![]);
    let reset = ImportLedger { is_reset: true, floor: 11, floor_epoch: 11, ..response(0, 11, vec![]) };
    assert_eq!(relying.import(reset), DONE);
    assert_eq!(relying.copy().complete_from, 11);
    let root = Bytes::from_static(&[9; 32]);
    let late = ImportLedger { root, floor_epoch: 10, ..response(10, 11, vec![revoked(11, 1)]) };
    assert_eq!(relying.import(late), DONE);
    assert_eq!((relying.copy().fault, relying.copy().entries), (None, 0));
}

/// A command in the log is never a reason to stop or to panic, and never half applied.
#[test]
fn malformed_command_is_refused_as_a_whole() {
    let mut relying = Relying::joined(vec![revoked(5, 1), blocked(6, 2)]);
    let next = |entries| response(10, 20, entries);
    let good = || vec![revoked(11, 3), blocked(12, 4)];
    let with = |change: fn(&mut PeerEntry)| {
        let mut entry = revoked(13, 5);
        change(&mut entry);
        next([good(), vec![entry]].concat())
    };
    let keys = |etag: &str, size: usize| {
        let keys = PeerKeys { etag: etag.to_owned(), key_set: vec![b' '; size].into() };
        ImportLedger { keys: Some(keys), ..next(good()) }
    };
    let many = |number: usize| {
        let entry =
            |number: usize| PeerEntry { id: [number.to_le_bytes(); 2].concat().into(), ..revoked(11, 1) };
        next((0..number).map(entry).collect())
    };
    let most = limits::FEDERATED_ENTRIES_PER_IMPORT_MAX;
    let malformed = [
        ImportLedger { issuer: String::new(), generation: 0, ..next(good()) },
        ImportLedger { issuer: "a".repeat(limits::URI_BYTES_MAX + 1), generation: 0, ..next(good()) },
        ImportLedger { incarnation: Bytes::new(), ..next(good()) },
        ImportLedger { incarnation: Bytes::from_static(&[1; 17]), ..next(good()) },
        ImportLedger { through: 1 << 48, ..next(good()) },
        ImportLedger { through: u64::MAX, is_whole: false, ..next(good()) },
        ImportLedger { floor: u64::MAX, ..next(good()) },
        ImportLedger { from: u64::MAX, ..next(vec![]) },
        ImportLedger { root: Bytes::from_static(&[1; 31]), ..next(good()) },
        ImportLedger { root: Bytes::from_static(&[1; 32]), is_whole: false, ..next(good()) },
        ImportLedger { is_reset: true, ..next(good()) },
        ImportLedger { is_whole: false, ..keys("a", 10) },
        keys("", 10),
        keys(&"a".repeat(limits::OPAQUE_BYTES_MAX + 1), 10),
        keys("a", limits::FEDERATED_KEY_SET_BYTES_MAX + 1),
        with(|entry| entry.n = 10),
        with(|entry| entry.n = 21),
        with(|entry| entry.n = u64::MAX),
        with(|entry| entry.n = 11),
        with(|entry| entry.epoch = 11),
        with(|entry| entry.epoch = 9),
        with(|entry| entry.state = 0),
        with(|entry| entry.state = 5),
        with(|entry| entry.state = 257),
        with(|entry| entry.state = 2),
        with(|entry| entry.state = 3),
        with(|entry| entry.by = Bytes::from_static(&[1; 16])),
        with(|entry| entry.by = Bytes::from_static(&[1; 15])),
        with(|entry| entry.id = Bytes::from_static(&[1; 15])),
        with(|entry| entry.id = Bytes::new()),
        with(|entry| entry.id = bytes_of(&fact(3))),
        many(most + 1),
        ImportLedger { is_whole: false, ..next(vec![revoked(22, 3)]) },
        // The index after the largest one of a position.
        ImportLedger { is_whole: false, through: (1 << 48) - 1, ..next(vec![revoked(1 << 48, 3)]) },
    ];
    for import in malformed {
        relying.refuses(import, Refusal::PeerImportMalformed);
    }
    assert_eq!(relying.import(many(most)), DONE);
    // A part may hold entries of the next index, and no others.
    let part = ImportLedger { is_whole: false, ..response(20, 25, vec![revoked(26, 3)]) };
    assert_eq!(relying.import(part), DONE);
    let unknown = SetPeer { issuer: PEER.to_owned(), act: 77, ..SetPeer::default() };
    assert_eq!(relying.harness.one(START, Command::SetPeer(unknown)), Reply::Refused(Refusal::Unspecified));
    let nameless = SetPeer { act: PeerAct::Pause.into(), ..SetPeer::default() };
    let refused = Reply::Refused(Refusal::UnknownPeer);
    assert_eq!(relying.harness.one(START, Command::SetPeer(nameless)), refused);
}

#[test]
fn peer_over_its_quota_changes_nothing_until_there_is_room() {
    let mut relying = Relying::new();
    let quota = |import: ImportLedger| ImportLedger { entries_max: 3, ..import };
    assert_eq!(relying.import(quota(first(10, vec![revoked(5, 1), blocked(6, 2), revoked(7, 3)]))), DONE);
    relying.refuses(quota(response(10, 20, vec![revoked(12, 4)])), Refusal::PeerOverQuota);
    relying.refuses(quota(response(10, 20, vec![blocked(12, 4)])), Refusal::PeerOverQuota);
    // An entry that only moves, and a lift, need no room.
    assert_eq!(relying.import(quota(response(10, 12, vec![revoked(11, 1), lifted(12, 2)]))), DONE);
    assert_eq!((relying.copy().entries, relying.copy().blocks, relying.federated()), (2, 0, 2));
    assert_eq!(relying.import(quota(response(12, 13, vec![revoked(13, 4)]))), DONE);
    let next = quota(response(13, 15, vec![revoked(14, 5)]));
    relying.refuses(next.clone(), Refusal::PeerOverQuota);
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_secs(1)));
    assert_eq!(relying.import(next), DONE);
    assert_eq!((relying.copy().entries, relying.federated()), (1, 1));
    // A quota that was lowered.
    let lowered = |import: ImportLedger| ImportLedger { entries_max: 0, ..import };
    assert_eq!(relying.import(lowered(response(15, 16, vec![revoked(16, 5)]))), DONE);
    relying.refuses(lowered(response(16, 17, vec![revoked(17, 6)])), Refusal::PeerOverQuota);
}

/// Otherwise, a peer with one new incarnation after the other would fill the disk.
#[test]
fn entries_of_deleted_copies_count_towards_the_quota() {
    let mut relying = Relying::new();
    let created = |number: u8| {
        let generation = u64::from(number) - 1;
        of(number, ImportLedger { generation, entries_max: 3, ..first(10, vec![revoked(5, 1)]) })
    };
    for number in 1..=3 {
        assert_eq!(relying.import(created(number)), DONE);
    }
    relying.refuses(created(4), Refusal::PeerOverQuota);
    assert_eq!((relying.copy().entries, relying.federated()), (1, 3));
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_secs(1)));
    assert_eq!((relying.row().expiring, relying.federated()), (0, 0));
    assert_eq!(relying.import(created(4)), DONE);
}

#[test]
fn entries_of_all_peers_are_limited() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let key = (META.to_owned(), FEDERATED.to_vec());
    let full = u64::from(limits::FEDERATED_ENTRIES_MAX).to_be_bytes().to_vec();
    relying.harness.rows.0.insert(key, full);
    relying.refuses(response(10, 20, vec![revoked(12, 4)]), Refusal::PeerOverQuota);
    assert_eq!(relying.import(response(10, 20, vec![revoked(12, 1)])), DONE);
}

/// Each epoch is a row that a comparison of roots reads.
#[test]
fn epochs_of_a_copy_are_limited() {
    let mut relying = Relying::joined(vec![]);
    let most = limits::FEDERATED_EPOCHS_MAX as u64;
    let of_epoch = |number: u64| {
        let id = Bytes::from([number.to_be_bytes(); 2].concat());
        let (n, epoch) = (10 + number, 100 + u32::try_from(number).expect("fits"));
        let entry = PeerEntry { n, epoch, id, ..revoked(0, 0) };
        ImportLedger { epoch, ..response(n - 1, n, vec![entry]) }
    };
    for number in 1..=most {
        assert_eq!(relying.import(of_epoch(number)), DONE);
    }
    assert_eq!(u64::from(relying.row().epochs), most);
    relying.refuses(of_epoch(most + 1), Refusal::PeerOverQuota);
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_secs(1)));
    assert_eq!(relying.row().epochs, 0);
    assert_eq!(relying.import(of_epoch(most + 1)), DONE);
}

/// Attack: entries that move to other epochs add nothing, and each of those epochs is a row too.
#[test]
fn moved_entries_do_not_exceed_the_limit_of_epochs() {
    let mut relying = Relying::joined(vec![]);
    let most = limits::FEDERATED_EPOCHS_MAX as u64;
    let entry = |number: u64, n: u64, epoch: u32| PeerEntry {
        n,
        epoch,
        id: Bytes::from([number.to_be_bytes(); 2].concat()),
        ..revoked(0, 0)
    };
    let last = 11 + most;
    for number in 0..=most {
        let n = 11 + number;
        let import = ImportLedger { epoch: 100, ..response(n - 1, n, vec![entry(number, n, 100)]) };
        assert_eq!(relying.import(import), DONE, "{number}");
    }
    let moved = |number: u64| {
        let (n, epoch) = (last + number, 100 + u32::try_from(number).expect("fits"));
        ImportLedger { epoch, ..response(n - 1, n, vec![entry(number, n, epoch)]) }
    };
    for number in 1..most {
        assert_eq!(relying.import(moved(number)), DONE, "{number}");
    }
    relying.refuses(moved(most), Refusal::PeerOverQuota);
}

#[test]
fn peers_of_which_anything_is_stored_are_limited() {
    let mut relying = Relying::new();
    let of = |number: usize| ImportLedger { issuer: format!("https://{number}"), ..first(10, vec![]) };
    for number in 0..limits::FEDERATED_PEERS_MAX {
        assert_eq!(relying.import(of(number)), DONE);
    }
    relying.refuses(of(limits::FEDERATED_PEERS_MAX), Refusal::TooManyPeers);
    assert_eq!(relying.set(PeerAct::Pause), Reply::Refused(Refusal::TooManyPeers));
    assert_eq!(relying.import(ImportLedger { generation: 1, from: 10, is_reset: false, ..of(0) }), DONE);
}
