//! Entries are forgotten after 65 minutes of elapsed time, which raises the floors.

use super::*;
use crate::limits;

const RETENTION: Duration = limits::FEDERATED_RETENTION;
const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn forgotten_entry_raises_both_floors() {
    let mut relying = Relying::joined(vec![covering_all(4, 4), revoked(5, 1), blocked(6, 2)]);
    let m = relying.m();
    relying.wait(RETENTION);
    assert_eq!((relying.copy().entries, relying.copy().floor_n), (2, 0));
    assert_eq!(relying.token(9_000, &[4]), PeerVerdict::Revoked);
    assert_eq!((relying.token(4, &[1]), relying.token(4, &[3])), (PeerVerdict::Revoked, PeerVerdict::Clear));
    relying.wait(MILLISECOND);
    let copy = relying.copy();
    assert_eq!((copy.entries, copy.blocks, copy.floor_n, copy.floor_m), (0, 1, 5, m));
    assert_eq!((copy.complete_from, relying.row().epochs), (11, 0));
    assert_eq!([4, 5].map(|idx| relying.token(idx, &[3])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[3])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!(relying.token(9_000, &[2]), PeerVerdict::Revoked, "a block stays until it is lifted");
    assert_eq!(
        relying.token(9_000, &[4]),
        PeerVerdict::Clear,
        "only the key set refuses a stolen key for good"
    );
    assert_eq!(relying.federated(), 1);
}

#[test]
fn entry_that_is_revoked_again_is_kept_from_then_on() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    relying.wait(RETENTION);
    assert_eq!(relying.import(response(10, 12, vec![revoked(12, 1)])), DONE);
    let m = relying.m();
    relying.wait(RETENTION);
    assert_eq!((relying.copy().entries, relying.copy().floor_n, relying.federated()), (1, 0, 1));
    assert_eq!(relying.token(11, &[1]), PeerVerdict::Revoked);
    relying.wait(MILLISECOND);
    assert_eq!((relying.copy().entries, relying.copy().floor_n, relying.copy().floor_m), (0, 12, m));
}

#[test]
fn few_entries_expire_in_one_log_entry() {
    let mut relying = Relying::joined(vec![]);
    let most = limits::FEDERATED_ENTRIES_EXPIRED_PER_ENTRY as u64;
    let page = |page: u64| {
        let entry = |at: u64| PeerEntry {
            id: Bytes::from([(page * 1000 + at).to_be_bytes(); 2].concat()),
            ..revoked(11 + page, 1)
        };
        let entries = (0..limits::FEDERATED_ENTRIES_PER_IMPORT_MAX as u64).map(entry).collect();
        ImportLedger { entries_max: 10_000, ..response(10 + page, 11 + page, entries) }
    };
    for number in 0..3 {
        assert_eq!(relying.import(page(number)), DONE);
    }
    let entries = relying.copy().entries;
    relying.wait(RETENTION.saturating_add(MILLISECOND));
    assert_eq!(relying.copy().entries, entries - most);
    // One that adds entries removes twice as many.
    assert_eq!(relying.import(page(3)), DONE);
    assert_eq!(relying.copy().entries, limits::FEDERATED_ENTRIES_PER_IMPORT_MAX as u64);
    assert_eq!(relying.federated(), relying.copy().entries);
}

/// After a day without the peer, a whole day of entries would not fit, and covers no token that still lives.
#[test]
fn entry_that_is_old_when_it_arrives_is_forgotten_at_once() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let epoch = 10 + limits::FEDERATED_EPOCHS;
    let of_epoch = |n, number, epoch| PeerEntry { epoch, ..revoked(n, number) };
    let late = vec![of_epoch(11, 2, 10), of_epoch(12, 3, 11)];
    assert_eq!(relying.import(ImportLedger { epoch, ..response(10, 20, late) }), DONE);
    assert_eq!((relying.copy().entries, relying.copy().floor_n), (3, 0));
    let epoch = epoch + 3;
    let late = vec![of_epoch(21, 4, 12), of_epoch(22, 1, 12), of_epoch(23, 5, 13)];
    assert_eq!(relying.import(ImportLedger { epoch, ..response(20, 30, late) }), DONE);
    let (copy, m) = (relying.copy(), relying.m());
    assert_eq!((copy.entries, copy.floor_n, copy.floor_m, copy.complete_from), (3, 22, m, 13));
    assert_eq!([21, 22].map(|idx| relying.token(idx, &[9])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!([m - 1, m].map(|idx| relying.through(idx, &[9])), [PeerVerdict::Revoked, PeerVerdict::Clear]);
    assert_eq!(relying.federated(), 3);
    // A block is never too old.
    let old_block = PeerEntry { epoch: 14, ..blocked(31, 6) };
    assert_eq!(relying.import(ImportLedger { epoch: 200, ..response(30, 40, vec![old_block]) }), DONE);
    assert_eq!(relying.token(9_000, &[6]), PeerVerdict::Revoked);
}

/// A clock that was wrong for one term would forget every entry at once.
#[test]
fn leap_of_log_time_forgets_nothing() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let ahead = START.plus(Duration::from_secs(100 * 24 * 3600));
    let stamp = crate::cluster::Stamp { time: ahead, latest: ahead, elapsed: START };
    let idle = command::encode(Command::AllowRevocations(AllowRevocations::default()));
    relying.harness.stamped_as(stamp, vec![idle]);
    assert_eq!(relying.copy().entries, 1);
}
