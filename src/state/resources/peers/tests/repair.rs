//! Rows of a copy that a disk lost or changed, and the repair that reads the copy again.

use super::*;
use crate::limits;
use crate::state::Replicated;

const CLEAR: PeerVerdict = PeerVerdict::Clear;
const REVOKED: PeerVerdict = PeerVerdict::Revoked;
const JOINING: PeerVerdict = PeerVerdict::Unjudged(Unjudged::Joining);
const DAMAGED: PeerVerdict = PeerVerdict::Unjudged(Unjudged::Held(PeerFault::CopyDamaged));

type Row = (String, Vec<u8>);

fn entries() -> Vec<PeerEntry> {
    vec![revoked(5, 1), blocked(6, 2), revoked(7, 3)]
}

impl Relying {
    /// The node reads its rows into memory again.
    fn restart(&mut self) {
        self.harness.machine = Replicated::default();
        self.harness.machine.rebuild(&self.harness.rows).expect("rebuilds");
    }

    /// The first row of the copy in this table.
    fn first_row(&self, table: &str) -> Row {
        let is_of_the_copy = |(of, key): &&Row| of == table && key.starts_with(peer_key(PEER).as_bytes());
        self.harness.rows.0.keys().find(is_of_the_copy).expect("a row").clone()
    }
}

/// The first response to the second copy.
fn again(through: u64, entries: Vec<PeerEntry>) -> ImportLedger {
    ImportLedger { generation: 2, ..first(through, entries) }
}

#[test]
fn lost_row_judges_nothing_until_the_copy_is_repaired() {
    type Damage = fn(&mut Relying, Row);
    let lose: Damage = |relying, row| drop(relying.harness.rows.0.remove(&row));
    let change: Damage = |relying, row| {
        let value = relying.harness.rows.0.get_mut(&row).expect("a row");
        // The last byte of the index in the peer.
        let at = if row.0 == "peer_ledger" { 8 } else { 7 };
        value[at] ^= 1;
    };
    for (table, damage) in [
        ("peer_ledger", lose),
        ("peer_ledger", change),
        ("peer_block", lose),
        ("peer_block", change),
        ("ledger_sum", lose),
    ] {
        let mut relying = Relying::joined(entries());
        let m = relying.m();
        relying.restart();
        assert_eq!(relying.token(9, &[]), CLEAR, "{table}: a restart alone is no damage");
        let row = relying.first_row(table);
        damage(&mut relying, row);
        relying.restart();
        assert_eq!((relying.token(9, &[]), relying.through(m, &[])), (DAMAGED, DAMAGED), "{table}");
        assert_eq!(relying.import(response(10, 12, vec![])), DONE);
        assert_eq!(relying.token(9, &[]), DAMAGED, "{table}: an import does not hide it");
        assert_eq!(relying.set(PeerAct::Approve), Reply::Refused(Refusal::PeerNotApprovable));
        assert_eq!(relying.set(PeerAct::Repair), DONE);
        assert_eq!(relying.token(9, &[]), JOINING, "{table}");
        assert_eq!(relying.import(again(12, entries())), DONE);
        assert_eq!([4, 5].map(|idx| relying.token(idx, &[1])), [REVOKED, CLEAR], "{table}");
        assert_eq!([6, 7].map(|idx| relying.token(idx, &[3])), [REVOKED, CLEAR], "{table}");
        assert_eq!((relying.token(9_000, &[2]), relying.through(m, &[])), (REVOKED, CLEAR), "{table}");
    }
}

#[test]
fn repair_voids_no_credential_and_adopts_no_shorter_log() {
    let mut relying = Relying::joined(entries());
    let (m, void_m) = (relying.m(), relying.copy().void_m);
    assert_eq!(relying.set(PeerAct::Repair), DONE);
    let copy = relying.copy();
    assert_eq!((copy.generation, copy.incarnation(), copy.position), (2, Some(incarnation(1)), 0));
    assert_eq!((copy.entries, copy.blocks, copy.void_m, copy.is_complete), (0, 0, void_m, false));
    assert_eq!((relying.token(9, &[]), relying.through(m, &[])), (JOINING, JOINING));
    relying.refuses(response(10, 12, vec![]), Refusal::PeerGenerationChanged);
    assert_eq!(relying.import(again(9, entries())), UNCHANGED, "the log ends before what was read");
    assert_eq!(relying.token(9, &[]), JOINING);
    assert_eq!(relying.import(again(12, [entries(), vec![revoked(11, 4)]].concat())), DONE);
    assert_eq!([4, 5].map(|idx| relying.token(idx, &[1])), [REVOKED, CLEAR]);
    assert_eq!(
        (relying.token(9_000, &[2]), relying.token(10, &[4]), relying.token(5, &[])),
        (REVOKED, REVOKED, CLEAR)
    );
    assert_eq!((relying.through(m, &[]), relying.through(m, &[1])), (CLEAR, REVOKED));
    assert_eq!((relying.copy().entries, relying.copy().blocks, relying.copy().void_m), (3, 1, void_m));
    // The ends of the first copy count until they are due, and say nothing about the second.
    assert_eq!(relying.federated(), 6);
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_millis(1)));
    assert_eq!((relying.copy().entries, relying.federated()), (0, 1));
}

/// Regression: the blocks of a copy that was read without a reset stayed in memory after its repair, so that a running node
/// refused what a restarted one accepted.
#[test]
fn repair_forgets_blocks_that_the_peer_has_lifted_since() {
    let mut relying = Relying::joined(vec![blocked(6, 2)]);
    for (generation, through, entry, verdict) in
        [(2, 12, blocked(6, 2), REVOKED), (3, 13, lifted(11, 2), CLEAR)]
    {
        assert_eq!(relying.set(PeerAct::Repair), DONE);
        // The peer has forgotten nothing, so that its response is no reset.
        let import = ImportLedger { generation, is_reset: false, ..first(through, vec![entry]) };
        assert_eq!(relying.import(import), DONE);
        assert_eq!(relying.token(9_000, &[2]), verdict);
    }
}

/// As without a repair: a floor refuses everything that a forgotten entry may have covered.
#[test]
fn repair_keeps_floors_and_raises_them_by_forgotten_entries() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let m = relying.m();
    relying.wait(limits::FEDERATED_RETENTION.saturating_add(Duration::from_millis(1)));
    assert_eq!((relying.copy().floor_n, relying.copy().floor_m), (5, m));
    assert_eq!(relying.set(PeerAct::Repair), DONE);
    assert_eq!(relying.import(again(12, vec![revoked(5, 1), revoked(8, 2)])), DONE);
    assert_eq!((relying.copy().entries, relying.through(m, &[1])), (1, CLEAR), "5 is not read again");
    assert_eq!([4, 5].map(|idx| relying.token(idx, &[9])), [REVOKED, CLEAR]);
    assert_eq!(relying.token(7, &[2]), REVOKED);
    // The peer has forgotten it before it was read again.
    assert_eq!(relying.set(PeerAct::Repair), DONE);
    let third = ImportLedger { generation: 3, floor: 8, floor_epoch: 11, ..first(13, vec![]) };
    assert_eq!(relying.import(third), DONE);
    assert_eq!([7, 8].map(|idx| relying.token(idx, &[2])), [REVOKED, CLEAR]);
    assert_eq!(relying.through(m, &[9]), REVOKED);
}

#[test]
fn peer_that_is_held_is_not_repaired() {
    assert_eq!(Relying::new().set(PeerAct::Repair), Reply::Refused(Refusal::UnknownPeer));
    let mut relying = Relying::new();
    relying.set(PeerAct::Pause);
    assert_eq!(relying.set(PeerAct::Repair), UNCHANGED, "there is no copy");
    let mut relying = Relying::joined(entries());
    let other_root = Bytes::from_static(&[9; 32]);
    assert_eq!(relying.import(ImportLedger { root: other_root, ..response(10, 11, vec![]) }), DONE);
    assert_eq!(relying.set(PeerAct::Repair), Reply::Refused(Refusal::PeerHeld));
    assert_eq!(relying.copy().fault, Some(PeerFault::RootDiffers));
}

/// No one can compute such a sum: the rows of another copy's sums stand for it.
#[test]
fn equal_roots_with_other_content_harm_no_other_peer() {
    let mut relying = Relying::joined(vec![revoked(5, 1)]);
    let of_another = ImportLedger { issuer: OTHER.to_owned(), ..first(10, vec![revoked(5, 1)]) };
    assert_eq!(relying.import(of_another), DONE);
    let stated = Relying::joined(vec![revoked(6, 2)]);
    let sums = stated.harness.rows.0.iter();
    let sums =
        sums.filter(|((table, key), _)| table == "ledger_sum" && key.starts_with(peer_key(PEER).as_bytes()));
    relying.harness.rows.0.extend(sums.map(|(key, row)| (key.clone(), row.clone())));
    let before = relying.row_of(OTHER);
    let root = Bytes::copy_from_slice(&stated.root(0).expect("a copy").0);
    assert_eq!(relying.import(ImportLedger { root, ..response(10, 11, vec![]) }), DONE);
    assert_eq!(relying.copy().fault, None, "the roots are equal");
    // Tokens of this peer are judged by the entries that it sent; tokens of other peers are not.
    let judge = |issuer: &str, number: u8| {
        let idx = LogPosition { incarnation: incarnation(1), index: 4 };
        judge_token(relying.harness.machine.peers().get(&peer_key(issuer)).as_ref(), idx, &[fact(number)])
    };
    assert_eq!([judge(PEER, 1), judge(PEER, 2)], [REVOKED, CLEAR]);
    assert_eq!([judge(OTHER, 1), judge(OTHER, 2)], [REVOKED, CLEAR]);
    assert_eq!(relying.row_of(OTHER), before);
    // The next start compares rows and sums.
    relying.restart();
    assert_eq!(relying.token(9, &[]), DAMAGED);
    assert_eq!(relying.set(PeerAct::Repair), DONE);
    assert_eq!(relying.import(again(11, vec![revoked(6, 2)])), DONE);
    assert_eq!([relying.token(4, &[1]), relying.token(4, &[2])], [CLEAR, REVOKED]);
}
