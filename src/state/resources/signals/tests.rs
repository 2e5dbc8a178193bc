//! Tests of the effects and limits of signals.

use std::time::Duration;

use super::*;
use crate::cluster::{Machine as _, Stamp};
use crate::id::{Incarnation, LogPosition};
use crate::state::tables::{BLOCKS, META};
use crate::state::testing::{StateHarness, TestNode, batch};
use crate::state::{Epoch, Replicated};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const A: &str = "https://a.example";
const B: &str = "https://b.example";
const DONE: Reply = Reply::Done { changed: true };
const AGAIN: Reply = Reply::Done { changed: false };

fn fact(sub: &str) -> Fact {
    Fact::subject(A, sub)
}

fn watermark(sub: &str) -> Effect {
    Effect::Watermark(fact(sub))
}

fn block(sub: &str, family: &str, happened_at: Timestamp) -> Effect {
    Effect::Block { fact: fact(sub), family: family.to_owned(), happened_at }
}

fn lift(sub: &str, family: &str, happened_at: Timestamp) -> Effect {
    Effect::Lift { fact: fact(sub), family: family.to_owned(), happened_at }
}

fn signal(issuer: &str, jti: &str, effects: Vec<Effect>) -> Command {
    signal_within(1000, issuer, jti, effects)
}

fn signal_within(quota: u32, issuer: &str, jti: &str, effects: Vec<Effect>) -> Command {
    let signal = Signal {
        issuer: issuer.to_owned(),
        jti: jti.to_owned(),
        issued_at: START,
        quota,
        effects,
        reason: String::new(),
        content: content("a"),
        events: Vec::new(),
        subject: String::new(),
    };
    Command::AcceptSignal(signal.into_command())
}

fn content(said: &str) -> Digest128 {
    Digest128::of(DigestKind::SignalContent, said.as_bytes(), b"")
}

fn with_content(mut command: Command, said: &str) -> Command {
    if let Command::AcceptSignal(signal) = &mut command {
        signal.content = Bytes::copy_from_slice(content(said).as_bytes());
    }
    command
}

fn allow(issuer: &str, more: u32) -> Command {
    Command::AllowRevocations(AllowRevocations { issuer: issuer.to_owned(), more })
}

impl StateHarness {
    /// Whether a credential of this subject, issued elsewhere at `iat`, is refused.
    fn refuses(&self, sub: &str, iat: Timestamp) -> bool {
        refuses(&self.machine, sub, iat)
    }

    /// Sets a counter.
    fn set_number(&mut self, name: &[u8], number: u64) {
        self.rows.0.insert((META.to_owned(), name.to_owned()), number.to_be_bytes().to_vec());
    }
}

fn refuses(machine: &Replicated, sub: &str, iat: Timestamp) -> bool {
    machine.revocations().covers(Epoch::default(), &[fact("other").digest(), fact(sub).digest()], None, iat)
}

/// Long after any watermark of a test: only a block covers it.
const LATER: Timestamp = Timestamp::from_secs(1_800_100_000);

/// Its first acknowledgement may have failed because of the barrier.
#[tokio::test]
async fn repeated_signal_waits_for_the_barrier() {
    let node = TestNode::start(START).await;
    let signal = Signal {
        issuer: A.to_owned(),
        jti: "1".to_owned(),
        issued_at: START,
        quota: 1,
        effects: vec![watermark("ada")],
        reason: String::new(),
        content: content("a"),
        events: Vec::new(),
        subject: String::new(),
    };
    node.state.as_node().accept_signal(signal).await.expect("accepted");
    let confirmed = || node.state.cluster().acknowledgements().confirmed;
    let before = confirmed();
    let repeated = node.state.has_signal(A, "1", &content("a")).await.expect("acknowledged");
    assert!(repeated.is_some(), "it is known");
    assert_eq!(confirmed(), before + 1, "no member can answer from an older index");
    node.end().await;
}

#[test]
fn all_effects_of_a_signal_apply_in_one_entry() {
    let mut harness = StateHarness::default();
    let effects = vec![watermark("alice"), block("bob", "risk", START), watermark("carol")];
    assert_eq!(harness.one(START, signal(A, "1", effects)), DONE);
    for sub in ["alice", "bob", "carol"] {
        assert!(harness.refuses(sub, START), "{sub}");
    }
    assert!(!harness.refuses("dave", START));
    assert!(harness.refuses("bob", LATER) && !harness.refuses("alice", LATER));
    assert_eq!(harness.machine.index().revocations, 3);
}

#[test]
fn signal_covers_tokens_with_an_idx_before_its_entry() {
    let mut harness = StateHarness::default();
    let incarnation = Incarnation::from_bytes([7; 16]);
    harness.one(START, signal(A, "1", vec![]));
    harness.one(START, signal(A, "2", vec![watermark("alice")]));
    let epoch = Epoch { incarnation: Some(incarnation), floor: None };
    let refused = |idx| {
        let idx = Some(LogPosition { incarnation, index: idx });
        harness.machine.revocations().covers(epoch, &[fact("alice").digest()], idx, LATER)
    };
    assert_eq!([refused(0), refused(1), refused(2), refused(3)], [true, true, false, false]);
}

#[test]
fn duplicate_signal_is_ignored_during_its_retention() {
    let mut harness = StateHarness::default();
    assert_eq!(harness.one(START, signal(A, "1", vec![watermark("alice")])), DONE);
    let rows = harness.rows.without_deduplication();
    for later in [START, START.plus(SECOND), START.plus(limits::SIGNAL_RETENTION)] {
        assert_eq!(harness.one(later, signal(A, "1", vec![watermark("mallory")])), AGAIN);
    }
    assert!(!harness.refuses("mallory", START), "a second body under the same jti does nothing");
    assert_eq!(harness.machine.index().revocations, 1);
    let named = |table: &str| rows.keys().filter(|(of, _)| of == table).count();
    assert_eq!(named(SIGNAL), 1);
    assert_eq!(harness.one(START, signal(B, "1", vec![watermark("erin")])), DONE, "another issuer's own");
    assert!(harness.refuses("erin", START));
    let long_after = START.plus(limits::SIGNAL_RETENTION).plus(Duration::from_secs(7 * 3600));
    assert_eq!(harness.one(long_after, signal(A, "1", vec![])), DONE, "then the row is deleted");
}

#[test]
fn duplicate_signal_in_one_entry_is_ignored() {
    let mut harness = StateHarness::default();
    let both = vec![signal(A, "1", vec![watermark("alice")]), signal(A, "1", vec![watermark("alice")])];
    assert_eq!(harness.apply(START, both), [DONE, AGAIN]);
}

#[test]
fn block_is_lifted_by_the_same_issuer_and_family_only() {
    let mut harness = StateHarness::default();
    harness.one(START, signal(A, "1", vec![block("alice", "risk", START)]));
    let after = START.plus(MINUTE);
    harness.one(after, signal(B, "1", vec![lift("alice", "risk", after)]));
    assert!(harness.refuses("alice", LATER), "B lifts what A blocked");
    harness.one(after, signal(A, "2", vec![lift("alice", "device", after)]));
    assert!(harness.refuses("alice", LATER), "another family lifts it");
    harness.one(after, signal(A, "3", vec![lift("alic", "risk", after)]));
    assert!(harness.refuses("alice", LATER), "the lift of a prefix lifts it");
    harness.one(after, signal(A, "4", vec![lift("alice", "risk", after)]));
    assert!(!harness.refuses("alice", LATER));
    assert!(harness.refuses("alice", START), "a lift takes back no watermark");
}

#[test]
fn later_of_block_and_lift_counts_in_any_order() {
    let times = [START, START.plus(SECOND)];
    for (blocked, lifted, refused) in [
        (times[0], times[1], false),
        (times[1], times[0], true),
        (times[0], times[0], true),
        // An ancient event time counts like any other.
        (Timestamp::from_secs(0), Timestamp::from_secs(-1), true),
        (Timestamp::from_millis(0), Timestamp::from_millis(0), true),
        (Timestamp::from_millis(-1), Timestamp::from_millis(0), false),
    ] {
        let effects = [block("alice", "risk", blocked), lift("alice", "risk", lifted)];
        for order in [[0, 1], [1, 0]] {
            let mut harness = StateHarness::default();
            for (jti, at) in order.into_iter().enumerate() {
                harness.one(START, signal(A, &jti.to_string(), vec![effects[at].clone()]));
            }
            assert_eq!(harness.refuses("alice", LATER), refused, "{blocked:?} {lifted:?} {order:?}");
        }
    }
}

#[test]
fn block_never_expires_and_survives_a_restart() {
    let mut harness = StateHarness::default();
    harness.one(START, signal(A, "1", vec![block("alice", "risk", START), block("bob", "risk", START)]));
    harness.one(START, signal(A, "2", vec![lift("bob", "risk", START.plus(SECOND))]));
    let year = START.plus(Duration::from_secs(365 * 24 * 3600));
    for _ in 0..3 {
        harness.one(year, signal(A, "3", vec![]));
    }
    let restarted = Replicated::default();
    restarted.rebuild(&harness.rows).expect("rebuilds");
    for machine in [&harness.machine, &restarted] {
        assert!(refuses(machine, "alice", year) && !refuses(machine, "bob", year));
    }
    // The lifted block and the watermarks are deleted.
    let left = harness.rows.0.keys().filter(|(table, _)| table == "block").count();
    assert_eq!((left, harness.machine.index().revocations), (1, 0));
}

#[test]
fn revocation_quota_is_per_issuer_and_minute() {
    let mut harness = StateHarness::default();
    let three = |jti: &str| signal_within(5, A, jti, vec![watermark("a"), watermark("b"), watermark("c")]);
    let refused = Reply::Refused(Refusal::RevocationQuota);
    assert_eq!(harness.one(START, three("1")), DONE);
    let rows = harness.rows.without_deduplication();
    assert_eq!(harness.one(START, three("2")), refused);
    assert_eq!(harness.rows.without_deduplication(), rows, "a refused signal leaves nothing behind");
    // A duplicate does not count, and another issuer has its own quota.
    assert_eq!(harness.one(START, three("1")), AGAIN);
    assert_eq!(harness.one(START, signal_within(5, B, "2", vec![watermark("d"); 5])), DONE);
    // A signal without effects counts too, since it is stored like the others.
    assert_eq!(harness.one(START, signal_within(5, A, "3", vec![])), DONE);
    assert_eq!(harness.one(START, signal_within(5, A, "4", vec![watermark("e")])), DONE);
    assert_eq!(harness.one(START, signal_within(5, A, "5", vec![])), refused);
    assert_eq!(harness.one(START.plus(MINUTE), three("2")), DONE, "the next minute");
    // A clock set back neither starts another minute nor ends the current one.
    assert_eq!(harness.one(START, three("6")), refused);
    let stamp = Stamp { time: START, latest: START, elapsed: START.plus(2 * MINUTE) };
    let reply = harness.stamped_as(stamp, vec![command::encode(three("6"))]).remove(0);
    assert_eq!(reply.outcome, DONE, "a minute of elapsed time, regardless of the wall clock");
}

#[test]
fn signal_over_the_quota_is_accepted_first_in_a_minute() {
    let mut harness = StateHarness::default();
    let large = |jti: &str| signal_within(1, A, jti, vec![watermark("a"), watermark("b")]);
    assert_eq!(harness.one(START, large("1")), DONE);
    assert_eq!(harness.one(START, large("2")), Reply::Refused(Refusal::RevocationQuota));
    assert_eq!(harness.one(START.plus(MINUTE), large("2")), DONE);
    let never = signal_within(0, A, "3", vec![watermark("a")]);
    assert_eq!(harness.one(START.plus(MINUTE), never), Reply::Refused(Refusal::RevocationQuota));
}

#[test]
fn extra_quota_of_an_issuer_is_used_once() {
    let mut harness = StateHarness::default();
    let many = |jti: &str, facts: usize| signal_within(2, A, jti, vec![watermark("a"); facts]);
    let refused = Reply::Refused(Refusal::RevocationQuota);
    assert_eq!(harness.one(START, many("0", 1)), DONE);
    assert_eq!(harness.one(START, many("1", 11)), refused);
    assert_eq!(harness.one(START, allow(A, 10)), DONE);
    assert_eq!(harness.one(START, allow(A, 10)), AGAIN);
    assert_eq!(harness.one(START, many("1", 12)), refused);
    assert_eq!(harness.one(START, many("1", 11)), DONE);
    assert_eq!(harness.one(START, many("2", 1)), refused, "used up");
    assert_eq!(harness.one(START, allow(B, 10)), DONE);
    assert_eq!(harness.one(START, many("2", 1)), refused, "of another issuer");
}

#[test]
fn rows_per_issuer_are_limited() {
    let mut harness = StateHarness::default();
    let of = |harness: &StateHarness, issuer: &str| {
        let row = &harness.rows.0[&(REVOCATION_QUOTA.to_owned(), issuer.as_bytes().to_vec())];
        let row = RevocationQuotaRow::decode(row.as_slice()).expect("row");
        (row.revocations, row.blocks)
    };
    harness.one(START, signal(A, "1", vec![watermark("a"), block("b", "risk", START)]));
    harness
        .one(START, signal(A, "2", vec![watermark("a"), lift("b", "risk", START), lift("c", "risk", START)]));
    assert_eq!(of(&harness, A), (2, 2), "existing rows count once");
    // A fact counts for its last revoker.
    harness.one(START, signal(B, "1", vec![watermark("a")]));
    assert_eq!((of(&harness, A), of(&harness, B)), ((1, 2), (1, 0)));
    let key = (REVOCATION_QUOTA.to_owned(), A.as_bytes().to_vec());
    let full = RevocationQuotaRow {
        revocations: limits::REVOCATIONS_PER_ISSUER_MAX,
        blocks: limits::SUBJECT_BLOCKS_PER_ISSUER_MAX,
        ..RevocationQuotaRow::default()
    };
    harness.rows.0.insert(key, full.encode_to_vec());
    let refused = Reply::Refused(Refusal::TooManyRevocations);
    assert_eq!(harness.one(START, signal(A, "3", vec![watermark("d")])), refused);
    assert_eq!(harness.one(START, signal(A, "4", vec![lift("d", "risk", START)])), refused);
    // Existing rows need no capacity: they can be revoked again, and lifted.
    assert_eq!(harness.one(START, signal(A, "5", vec![watermark("b"), lift("b", "risk", START)])), DONE);
    assert_eq!(harness.one(START, signal(B, "3", vec![watermark("d")])), DONE, "others are unaffected");
    // Deleted rows no longer count.
    let later = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
    harness.one(later, signal(B, "4", vec![]));
    assert_eq!(of(&harness, B), (0, 0));
}

#[test]
fn watermark_covers_the_latest_of_all_clocks() {
    let mut harness = StateHarness::default();
    harness.one(START, signal(A, "1", vec![]));
    // The wall clock of a node is an hour ahead and log time does not follow: credentials of that hour are valid there.
    let hour = START.plus(Duration::from_secs(3600));
    let elapsed = START.plus(SECOND);
    let stamp = Stamp { time: START, latest: hour, elapsed };
    harness.stamped_as(stamp, vec![command::encode(signal(A, "2", vec![watermark("alice")]))]);
    assert!(harness.refuses("alice", hour));
    // If it is behind, log time counts.
    let stamp = Stamp { time: hour, latest: START, elapsed };
    harness.stamped_as(stamp, vec![command::encode(signal(A, "3", vec![watermark("bob")]))]);
    assert!(harness.refuses("bob", hour));
}

/// An issuer with a clock ahead of ours issued a credential, and revoked it a second later.
#[test]
fn signal_covers_credentials_before_its_iat() {
    let mut harness = StateHarness::default();
    let ahead = START.plus(Duration::from_secs(50));
    let mut command = signal(A, "1", vec![watermark("alice")]);
    if let Command::AcceptSignal(signal) = &mut command {
        signal.issued_at_millis = ahead.millis();
    }
    assert_eq!(harness.one(START, command), DONE);
    assert!(harness.refuses("alice", ahead));
    assert!(!harness.refuses("alice", ahead.plus(MINUTE)));
}

#[test]
fn wall_clock_does_not_end_the_retention_of_a_signal() {
    let mut harness = StateHarness::default();
    harness.one(START, signal(A, "1", vec![watermark("alice")]));
    // A node starts with a clock of tomorrow, which is then corrected.
    let tomorrow = START.plus(Duration::from_secs(50 * 3600));
    for wall in [tomorrow, tomorrow.plus(SECOND), START] {
        let stamp = Stamp { time: wall, latest: wall, elapsed: START.plus(SECOND) };
        harness.stamped_as(stamp, vec![command::encode(allow(B, 1))]);
    }
    assert!(harness.refuses("alice", START), "deleted too early");
    let stamp = Stamp { time: tomorrow, latest: START, elapsed: START.plus(SECOND) };
    let reply = harness.stamped_as(stamp, vec![command::encode(signal(A, "1", vec![]))]).remove(0);
    assert_eq!(reply.outcome, AGAIN, "its token would be accepted again");
}

#[test]
fn revocation_limit_refuses_signals_before_operators() {
    let mut harness = StateHarness::default();
    harness.one(START, signal(A, "0", vec![watermark("a")]));
    harness.set_number(REVOCATIONS, limits::REVOCATIONS_MAX - 1);
    let refused = Reply::Refused(Refusal::TooManyRevocations);
    assert_eq!(harness.one(START, signal(A, "1", vec![watermark("b"), watermark("c")])), refused);
    assert_eq!(
        harness.one(START, signal(B, "1", vec![watermark("a")])),
        DONE,
        "an existing row needs no capacity"
    );
    assert!(!harness.refuses("b", START), "all effects or none");
    assert_eq!(harness.one(START, signal(A, "2", vec![watermark("b")])), DONE);
    assert_eq!(harness.one(START, signal(A, "3", vec![watermark("c")])), refused);
    let revoke = || {
        let fact = Some(fact_row(&fact("c")));
        Command::Revoke(command::Revoke { fact, ..command::Revoke::default() })
    };
    assert!(matches!(harness.one(START, revoke()), Reply::Revoked(_)));
    assert!(harness.refuses("c", START));
    harness.set_number(REVOCATIONS, limits::REVOCATIONS_MAX + limits::OPERATOR_REVOCATIONS_MAX);
    assert_eq!(harness.one(START, revoke()), refused);
    assert_eq!(harness.one(START, signal(A, "4", vec![])), DONE, "no effects need no capacity");
}

#[test]
fn blocks_over_the_limit_are_refused_for_signals() {
    let mut harness = StateHarness::default();
    harness.set_number(BLOCKS, limits::SUBJECT_BLOCKS_MAX);
    let refused = Reply::Refused(Refusal::TooManyRevocations);
    assert_eq!(harness.one(START, signal(A, "1", vec![block("a", "risk", START)])), refused);
    assert!(!harness.refuses("a", START));
    assert_eq!(harness.one(START, signal(A, "2", vec![watermark("a")])), DONE, "a watermark is not a block");
}

#[test]
fn unknown_effect_is_an_error() {
    let mut command = signal(A, "1", vec![watermark("a")]);
    if let Command::AcceptSignal(signal) = &mut command {
        signal.effects[0].kind = 99;
    }
    let batch = batch(Stamp { time: START, ..Stamp::default() }, vec![command::encode(command)]);
    let harness = StateHarness::default();
    let refusal = harness.machine.apply(&harness.rows, &batch, 1).expect_err("stops").to_string();
    assert!(refusal.contains("too old"), "{refusal}");
}

#[test]
fn duplicate_jti_is_compared_by_content() {
    let mut harness = StateHarness::default();
    assert_eq!(harness.one(START, signal(A, "1", vec![watermark("alice")])), DONE);
    let found = |jti: &str| find(&Tables::new(&harness.rows), &key_of(A, jti)).expect("readable");
    assert_eq!(found("1"), Some((content("a"), 1)));
    assert_eq!(found("2"), None);
    let other = with_content(signal(A, "1", vec![watermark("bob")]), "b");
    assert_eq!(harness.one(START, other), Reply::Refused(Refusal::JtiReused));
    assert!(!harness.refuses("bob", START));
    assert_eq!(harness.one(START, signal(A, "1", vec![watermark("alice")])), AGAIN);
}
