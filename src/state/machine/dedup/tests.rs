//! Tests of duplicate commands.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cluster::{Machine as _, Stamp, Submission, Write};
use crate::state::command::{Command, MintedToken, PolicySource, PutPolicy, RecordExchange, encode};
use crate::state::tables::{META, NONCE, POLICY_HISTORY};
use crate::state::testing::StateHarness;
use crate::state::{self, Replicated};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const DONE: Reply = Reply::Minted(MintedToken { jti: String::new(), iat: 0, exp: 0 });
const POLICY_PUT: Reply = Reply::Done { changed: true };
const GIVEN_UP: Reply = Reply::Refused(Refusal::GivenUp);
const TOO_MANY: Reply = Reply::Refused(Refusal::TooManySubmissions);
const SPENT: Reply = Reply::Refused(Refusal::NonceSpent);

// A proposer gives up long before its replies are deleted.
const _: () = assert!(limits::PROPOSE_TIMEOUT.as_secs() * 60 <= limits::PROPOSER_RETENTION.as_secs());
// All that is queued at a proposer and in flight fits into the window of sequences.
const _: () = assert!(
    (limits::PROPOSALS_QUEUED_MAX + limits::ENTRIES_IN_FLIGHT_MAX * limits::COMMANDS_PER_ENTRY_MAX) as u64
        <= limits::SUBMISSIONS_AHEAD_MAX
);

fn proposer(number: u64) -> ProposerId {
    ProposerId::from_bytes([[0; 8], number.to_be_bytes()].concat().try_into().expect("16 bytes"))
}

/// Uses a nonce: of two commands that are applied, the second is refused.
fn spend(nonce: u64) -> Bytes {
    let nonce = [[7; 8], nonce.to_be_bytes()].concat();
    let (owner, token) = (vec![1; 16].into(), Some(MintedToken::default()));
    encode(Command::RecordExchange(RecordExchange { nonce: nonce.into(), owner, token }))
}

fn submission(of: u64, sequence: u64, low_watermark: u64, command: Bytes) -> Submission {
    Submission { proposer: proposer(of), sequence, low_watermark, command }
}

/// Uses a nonce that no other command uses.
fn own(of: u64, sequence: u64, low_watermark: u64) -> Submission {
    submission(of, sequence, low_watermark, spend(of * 1_000_000 + sequence))
}

fn after(secs: u64) -> Timestamp {
    START.plus(Duration::from_secs(secs))
}

/// Sequences of the first proposer.
fn of_first(sequences: impl IntoIterator<Item = u64>) -> BTreeSet<(ProposerId, u64)> {
    sequences.into_iter().map(|sequence| (proposer(1), sequence)).collect()
}

impl StateHarness {
    fn submit(&mut self, at: Timestamp, submissions: Vec<Submission>) -> Vec<Reply> {
        self.submitted(at, submissions).into_iter().map(|replied| replied.outcome).collect()
    }

    fn keys_of(&self, table: &str) -> Vec<&[u8]> {
        self.rows.0.keys().filter(|(of, _)| of == table).map(|(_, key)| &key[..]).collect()
    }

    fn count(&self, table: &str) -> usize {
        self.keys_of(table).len()
    }

    /// Used nonces. Rows of their quotas have longer keys.
    fn nonces(&self) -> usize {
        self.keys_of(NONCE).into_iter().filter(|key| key.len() == 24).count()
    }

    /// Stored replies, by proposer and sequence.
    fn replies(&self) -> BTreeSet<(ProposerId, u64)> {
        let rows = self.rows.0.iter().filter(|((of, _), _)| of == REPLY);
        let replies = rows.flat_map(|((_, key), row)| {
            let (proposer, number) = key.split_at(16);
            let proposer = ProposerId::from_bytes(proposer.try_into().expect("16 bytes"));
            let number = u64::from_be_bytes(number.try_into().expect("8 bytes"));
            let replies = ReplyRow::decode(&row[..]).expect("a row").replies;
            let stored =
                (number * limits::REPLIES_PER_ROW..).zip(replies).filter(|(_, reply)| !reply.is_empty());
            stored.map(move |(sequence, _)| (proposer, sequence))
        });
        replies.collect()
    }

    fn proposer_row(&self, of: u64) -> ProposerRow {
        let row = Tables::new(&self.rows).message(PROPOSER, proposer(of).as_bytes());
        row.expect("readable").unwrap_or_default()
    }
}

#[test]
fn duplicate_gets_the_first_reply_and_changes_nothing() {
    let mut harness = StateHarness::default();
    let policy = |digest: &str, expected: &str| {
        encode(Command::PutPolicy(PutPolicy {
            digest: digest.into(),
            sources: vec![PolicySource { path: "a.rego".into(), text: digest.into() }],
            applied_by: String::new(),
            expected_current: expected.into(),
            is_seed: false,
        }))
    };
    let (first, refused) = (submission(1, 1, 1, policy("a", "")), submission(1, 2, 1, policy("b", "none")));
    let replies = [POLICY_PUT, Reply::Refused(Refusal::PolicyChanged)];
    assert_eq!(harness.submit(START, vec![first.clone(), refused.clone()]), replies);
    // Applied now, the refused command would succeed, and the first would change the policy back.
    assert_eq!(harness.submit(START, vec![submission(1, 3, 1, policy("none", ""))]), [POLICY_PUT]);
    assert_eq!(harness.submit(after(1), vec![refused, first]), [replies[1].clone(), replies[0].clone()]);
    assert_eq!(harness.machine.index().policy, "none");
    assert_eq!(harness.count(POLICY_HISTORY), 2);
}

#[test]
fn duplicate_in_the_same_entry_gets_the_first_reply() {
    let mut harness = StateHarness::default();
    let replies = harness.submit(START, vec![own(1, 1, 1), own(1, 1, 1), own(2, 1, 1), own(1, 1, 1)]);
    assert_eq!(replies, [DONE, DONE, DONE, DONE]);
    assert_eq!(harness.nonces(), 2);
}

#[test]
fn same_sequence_of_another_proposer_is_another_command() {
    let mut harness = StateHarness::default();
    let replies = harness.submit(START, vec![submission(1, 1, 1, spend(9)), submission(2, 1, 1, spend(9))]);
    assert_eq!(replies, [DONE, SPENT]);
    assert_eq!(harness.submit(START, vec![submission(2, 1, 1, spend(9))]), [SPENT]);
    assert_eq!(harness.submit(START, vec![submission(1, 1, 1, spend(9))]), [DONE]);
}

#[test]
fn command_below_the_low_watermark_is_refused() {
    let mut harness = StateHarness::default();
    assert_eq!(harness.submit(START, vec![own(1, 1, 1), own(1, 4, 3)]), [DONE, DONE]);
    assert_eq!(
        harness.submit(START, vec![own(1, 1, 1), own(1, 2, 1), own(1, 3, 1)]),
        [GIVEN_UP, GIVEN_UP, DONE]
    );
    assert_eq!(harness.nonces(), 3);
    // A late command does not lower the watermark.
    assert_eq!(harness.proposer_row(1).low_watermark, 3);
    // A command below its own watermark, and sequences that no proposer allocates.
    assert_eq!(harness.submit(START, vec![own(2, 1, 2), own(3, 0, 0)]), [GIVEN_UP, GIVEN_UP]);
    let last = submission(4, u64::MAX, u64::MAX, spend(1));
    assert_eq!(harness.submit(START, vec![last]), [GIVEN_UP]);
    assert_eq!(harness.nonces(), 3);
}

#[test]
fn given_up_command_has_an_unknown_outcome() {
    for refusal in [Refusal::GivenUp, Refusal::TooManySubmissions] {
        let error = state::Error::from(refusal);
        assert!(matches!(error, state::Error::Write(crate::cluster::Error::OutcomeUnknown)), "{error}");
    }
}

#[test]
fn only_replies_above_the_low_watermark_are_stored() {
    let mut harness = StateHarness::default();
    for first in (1..1000).step_by(10) {
        let entry: Vec<_> = (first..first + 10).map(|sequence| own(1, sequence, first)).collect();
        assert!(harness.submit(START, entry).iter().all(|reply| *reply == DONE));
        assert_eq!(harness.replies(), of_first(first..first + 10));
    }
    // A reply that is already below the watermark at the end of its entry is never written.
    assert_eq!(harness.submit(START, vec![own(1, 1001, 1001), own(1, 1002, 1002)]), [DONE, DONE]);
    assert_eq!(harness.replies(), of_first([1002]));
    assert_eq!((harness.count(REPLY), harness.count(PROPOSER)), (1, 1));
}

/// The rows of replies of two entries overlap, and each row is of several entries.
#[test]
fn replies_of_several_entries_share_a_row() {
    let mut harness = StateHarness::default();
    for sequence in [7, 3, 18, 1, 20, 5] {
        assert_eq!(harness.submit(START, vec![own(1, sequence, 1)]), [DONE]);
    }
    assert_eq!(harness.count(REPLY), 2);
    let again = [1, 3, 5, 7, 18, 20].map(|sequence| own(1, sequence, 1));
    assert_eq!(harness.submit(START, again.to_vec()), [DONE; 6]);
    assert_eq!(harness.nonces(), 6, "none is applied again");
    // The row of the watermark remains; the next write to it drops what is below.
    assert_eq!(harness.submit(START, vec![own(1, 2, 2), own(1, 6, 5)]), [DONE, DONE]);
    assert_eq!(harness.replies(), of_first([5, 6, 7, 18, 20]));
    assert_eq!(harness.submit(START, vec![own(1, 19, 18)]), [DONE]);
    assert_eq!(harness.replies(), of_first([18, 19, 20]));
}

/// Guards the number of writes per command.
#[test]
fn deduplication_writes_one_row_for_several_commands() {
    let mut harness = StateHarness::default();
    let each = limits::REPLIES_PER_ROW;
    let entry =
        |row: u64| (row * each..(row + 8) * each).map(|sequence| own(1, sequence, row * each)).collect();
    harness.submit(START, entry(1));
    let batch = |submissions| Replicated::batch(Stamp { time: START, ..Stamp::default() }, submissions);
    let writes = harness.machine.apply(&harness.rows, &batch(entry(9)), 9).expect("applies").writes;
    let of = |table: &str| {
        let is_of = |write: &&Write| match write {
            Write::Put { table: of, .. }
            | Write::Delete { table: of, .. }
            | Write::DeleteRange { table: of, .. } => *of == table,
        };
        let of: Vec<_> = writes.iter().filter(is_of).collect();
        let puts = of.iter().filter(|write| matches!(write, Write::Put { .. })).count();
        let deletes = of.iter().filter(|write| matches!(write, Write::Delete { .. })).count();
        (puts, deletes, of.len() - puts - deletes)
    };
    assert_eq!((of(REPLY), of(PROPOSER)), ((8, 8, 0), (1, 0, 0)));
    // Both times, and no other row.
    assert_eq!(of(META), (2, 0, 0));
}

#[test]
fn deletion_of_replies_is_bounded_per_entry() {
    let mut harness = StateHarness::default();
    let (most, each) = (limits::REPLY_ROWS_DELETED_PER_ENTRY, limits::REPLIES_PER_ROW);
    // One command for each row, as many as the window has.
    let sent = 2 * most;
    harness.submit(START, (1..=sent).map(|row| own(1, row * each, 1)).collect());
    harness.submit(START, (1..=10).map(|row| own(2, row * each, 1)).collect());
    // Proposers are processed in the order of their ids, within one limit for the entry.
    for (at, left) in (1..).zip([most + 1 + 10, 2 + 11, 0]) {
        let (next, other) = ((sent + at) * each, (10 + at) * each);
        let entry = vec![own(1, next, next), own(2, other, other), own(1, sent * each, 1)];
        assert_eq!(harness.submit(START, entry), [DONE, DONE, GIVEN_UP], "with or without a row");
        assert_eq!(harness.count(REPLY) as u64, left + 2, "{at}");
    }
}

#[test]
fn command_beyond_the_window_is_refused() {
    let mut harness = StateHarness::default();
    let last = 5 + limits::SUBMISSIONS_AHEAD_MAX - 1;
    assert_eq!(harness.submit(START, vec![own(1, last, 5), own(1, last + 1, 5)]), [DONE, TOO_MANY]);
    assert_eq!(harness.submit(START, vec![own(1, last + 1, 6)]), [DONE], "the refused one was not applied");
    assert_eq!(harness.submit(START, vec![submission(1, u64::MAX - 1, 6, spend(1))]), [TOO_MANY]);
}

/// Sequences without a row cost nothing, however far a watermark advances.
#[test]
fn leap_of_the_low_watermark_takes_effect_at_once() {
    let mut harness = StateHarness::default();
    harness.submit(START, vec![own(1, 1, 1), own(1, 2, 1)]);
    let far = 1 << 60;
    assert_eq!(harness.submit(START, vec![own(1, 3, far), own(1, far, far)]), [GIVEN_UP, DONE]);
    assert_eq!(harness.replies(), of_first([far]));
    let row = harness.proposer_row(1);
    assert_eq!((row.low_watermark, row.next, row.first_retained), (far, far + 1, far));
}

#[test]
fn idle_proposer_gets_no_duplicate_applied_and_may_continue() {
    let kept = limits::PROPOSER_RETENTION.as_secs();
    let mut harness = StateHarness::default();
    // The third command is still in flight.
    assert_eq!(harness.submit(START, vec![own(1, 1, 1), own(1, 2, 1), own(1, 4, 1)]), [DONE, DONE, DONE]);
    assert_eq!(harness.submit(after(kept - 1), vec![own(1, 1, 1)]), [DONE]);
    let late = kept - 1 + kept;
    let replies = harness.submit(after(late), (1..=5).map(|sequence| own(1, sequence, 1)).collect());
    assert_eq!(replies, [GIVEN_UP, GIVEN_UP, GIVEN_UP, GIVEN_UP, DONE]);
    // The same holds after the proposer has become active again.
    assert_eq!(harness.submit(after(late), (1..=5).map(|sequence| own(1, sequence, 1)).collect()), replies);
    assert_eq!(harness.nonces(), 4);
    assert_eq!(harness.replies(), of_first([5]));
}

/// Wall clocks may be set arbitrarily: only elapsed time ends retention.
#[test]
fn wall_clock_set_ahead_deletes_no_reply() {
    let mut harness = StateHarness::default();
    harness.submit(START, vec![own(1, 1, 1)]);
    let ahead = after(24 * 3600);
    let stamp = Stamp { time: ahead, latest: ahead, elapsed: after(1) };
    let replied = harness.entry(&Replicated::batch(stamp, vec![own(1, 1, 1)]));
    assert_eq!(replied[0].outcome, DONE);
}

#[test]
fn sweep_deletes_a_bounded_number_of_replies() {
    let (most, each) = (limits::REPLY_ROWS_DELETED_PER_ENTRY, limits::REPLIES_PER_ROW);
    let mut harness = StateHarness::default();
    // One command for each row.
    harness.submit(START, (1..=most + 10).map(|row| own(1, row * each, 1)).collect());
    harness.submit(START, (1..=7).map(|row| own(2, row * each, 1)).collect());
    let retention = limits::PROPOSER_RETENTION.as_secs();
    harness.submit(after(retention - 1), vec![own(3, 1, 1)]);
    let of_others = |harness: &StateHarness| harness.count(REPLY) - 1;
    assert_eq!(of_others(&harness) as u64, most + 10 + 7);
    // The last sweep was less than an interval ago.
    harness.submit(after(retention), vec![own(3, 2, 2)]);
    assert_eq!(of_others(&harness) as u64, most + 10 + 7);
    let swept = after(retention - 1).plus(limits::PROPOSER_SWEEP_INTERVAL);
    for (sequence, left) in [(3, 11 + 7), (4, 0)] {
        harness.submit(swept, vec![own(3, sequence, sequence)]);
        assert_eq!(of_others(&harness), left);
    }
    assert_eq!(harness.count(PROPOSER), 3, "their rows are retained");
    assert_eq!(harness.submit(swept, vec![own(1, each, 1), own(2, 8 * each, 1)]), [GIVEN_UP, DONE]);
}

#[test]
fn idle_proposers_over_the_limit_are_deleted_oldest_first() {
    let most = limits::PROPOSERS_UNUSED_MAX as u64;
    let mut harness = StateHarness::default();
    // Later ones come first in the order of ids.
    for at in 0..most + 3 {
        harness.submit(after(at), vec![own(10_000 - at, 1, 1)]);
    }
    let all_unused = after(most + 3).plus(limits::PROPOSER_RETENTION).plus(limits::PROPOSER_SWEEP_INTERVAL);
    // The first entry deletes the replies, the second the proposers over the limit.
    for sequence in 1..=2 {
        harness.submit(all_unused, vec![own(1, sequence, sequence)]);
    }
    assert_eq!(harness.count(PROPOSER) as u64, most + 1);
    assert_eq!(Tables::new(&harness.rows).number(PROPOSERS).expect("a number"), most + 1);
    let known: Vec<bool> =
        (0..4).map(|at| harness.proposer_row(10_000 - at) != ProposerRow::default()).collect();
    assert_eq!(known, [false, false, false, true]);
    assert_eq!(
        (harness.count(REPLY), harness.submit(all_unused, vec![own(9_997, 1, 1)])),
        (1, vec![GIVEN_UP])
    );
}

#[test]
fn new_proposer_over_the_limit_is_refused_until_a_sweep() {
    let mut harness = StateHarness::default();
    let entry = (1..=limits::PROPOSERS_MAX).map(|of| own(of, 1, 1)).collect();
    assert!(harness.submit(START, entry).iter().all(|reply| *reply == DONE));
    let new = limits::PROPOSERS_MAX + 1;
    let entry = || vec![own(new, 1, 1), own(1, 2, 1), own(new, 1, 1)];
    assert_eq!(
        harness.submit(after(1), entry()),
        [TOO_MANY, DONE, TOO_MANY],
        "a known proposer may continue"
    );
    let later = after(2).plus(limits::PROPOSER_RETENTION).plus(limits::PROPOSER_SWEEP_INTERVAL);
    for _ in 0..limits::PROPOSERS_MAX / limits::REPLY_ROWS_DELETED_PER_ENTRY {
        harness.submit(later, vec![own(1, 3, 3)]);
    }
    assert_eq!(harness.submit(later, vec![own(new, 1, 1)]), [DONE]);
}

/// A step of a proposer, or the end of an entry.
#[derive(Clone, Debug)]
enum Step {
    /// Proposes its next command, or skips the sequence.
    Send { of: u64, is_lost: bool },
    /// Resends the command `back` before its newest.
    Again { of: u64, back: u64 },
    /// Has received the replies up to `back` before its newest.
    Answered { of: u64, back: u64 },
    /// The entry ends here; the next one is `secs` later.
    Entry { secs: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1u64..4, prop::bool::weighted(0.1)).prop_map(|(of, is_lost)| Step::Send { of, is_lost }),
        8 => (1u64..4, 0u64..8).prop_map(|(of, back)| Step::Again { of, back }),
        3 => (1u64..4, 0u64..8).prop_map(|(of, back)| Step::Answered { of, back }),
        4 => prop_oneof![8 => 0u64..2, 1 => 200u64..700].prop_map(|secs| Step::Entry { secs }),
    ];
    vec(step, 1..120)
}

/// A proposer that allocates sequences.
#[derive(Default)]
struct Process {
    sent: u64,
    low_watermark: u64,
}

/// The submissions of `steps`, in order, each with number and time of its entry.
fn submissions(steps: &[Step]) -> Vec<(u64, Timestamp, Submission)> {
    let mut processes: BTreeMap<u64, Process> = BTreeMap::new();
    let (mut entry, mut at, mut submissions) = (0, START, Vec::new());
    for step in steps {
        let (of, sequence) = match *step {
            Step::Entry { secs } => {
                (entry, at) = (entry + 1, at.plus(Duration::from_secs(secs)));
                continue;
            }
            Step::Answered { of, back } => {
                let process = processes.entry(of).or_default();
                process.low_watermark = process.low_watermark.max((process.sent + 1).saturating_sub(back));
                continue;
            }
            Step::Send { of, is_lost } => {
                let process = processes.entry(of).or_default();
                process.sent += 1;
                if is_lost {
                    continue;
                }
                (of, process.sent)
            }
            Step::Again { of, back } => {
                let sent = processes.entry(of).or_default().sent;
                if sent <= back {
                    continue;
                }
                (of, sent - back)
            }
        };
        // Two commands share a nonce: one of them is refused, and so must be its duplicates.
        let command = spend(of * 1_000_000 + sequence / 2);
        submissions.push((entry, at, submission(of, sequence, processes[&of].low_watermark, command)));
    }
    submissions
}

/// A model without tables: the expected replies, and the replies that may be requested again at the end.
fn promised(submissions: &[(u64, Timestamp, Submission)]) -> (Vec<Reply>, BTreeSet<(ProposerId, u64)>) {
    struct Known {
        low_watermark: u64,
        at: Timestamp,
        replies: BTreeMap<u64, Reply>,
    }
    let mut spent = BTreeSet::new();
    let mut proposers: BTreeMap<ProposerId, Known> = BTreeMap::new();
    let mut replied = Vec::new();
    for (_, at, submission) in submissions {
        let new = || Known { low_watermark: 1, at: *at, replies: BTreeMap::new() };
        let known = proposers.entry(submission.proposer).or_insert_with(new);
        if at.since(known.at) >= limits::PROPOSER_RETENTION {
            let behind = known.replies.last_key_value().map_or(0, |(last, _)| last + 1);
            known.low_watermark = known.low_watermark.max(behind);
        }
        known.at = *at;
        known.low_watermark = known.low_watermark.max(submission.low_watermark);
        replied.push(if submission.sequence < known.low_watermark {
            GIVEN_UP
        } else {
            let is_first = || if spent.insert(submission.command.clone()) { DONE } else { SPENT };
            known.replies.entry(submission.sequence).or_insert_with(is_first).clone()
        });
    }
    let kept = proposers.into_iter().flat_map(|(proposer, known)| {
        let kept: Vec<_> =
            known.replies.range(known.low_watermark..).map(|(sequence, _)| (proposer, *sequence)).collect();
        kept
    });
    (replied, kept.collect())
}

proptest! {
    #[test]
    fn every_command_is_applied_once_in_any_order_and_batching(
        steps in steps(),
        is_each_an_entry in any::<bool>(),
    ) {
        let submissions = submissions(&steps);
        let (expected, kept) = promised(&submissions);
        let mut harness = StateHarness::default();
        let mut replied = Vec::new();
        for entry in submissions.chunk_by(|a, b| a.0 == b.0 && !is_each_an_entry) {
            let commands = entry.iter().map(|(_, _, submission)| submission.clone()).collect();
            replied.extend(harness.submit(entry[0].1, commands));
        }
        prop_assert_eq!(&replied, &expected);
        let spent = submissions.iter().zip(&replied).filter(|(_, replied)| **replied == DONE);
        let spent: BTreeSet<_> = spent.map(|((_, _, submission), _)| submission.command.clone()).collect();
        prop_assert_eq!(harness.nonces(), spent.len());
        // The rows of an idle proposer are deleted a little later.
        let stored = harness.replies();
        let last = submissions.last().map_or(START, |(_, at, _)| *at);
        let is_here = |of: &ProposerId| {
            let used = submissions.iter().rfind(|(_, _, submission)| submission.proposer == *of);
            used.is_some_and(|(_, at, _)| last.since(*at) < limits::PROPOSER_RETENTION)
        };
        for reply in &kept {
            prop_assert!(stored.contains(reply) || !is_here(&reply.0));
        }
        // Beside the rows of these replies, each proposer has at most that of its low watermark.
        let rows = kept.iter().map(|(of, sequence)| (of, row_and_position(*sequence).0)).collect::<BTreeSet<_>>();
        let proposers = submissions.iter().map(|(_, _, submission)| submission.proposer).collect::<BTreeSet<_>>();
        prop_assert!(harness.count(REPLY) <= rows.len() + proposers.len());
    }
}
