//! Tests of blocks by operators: block, list, lift.

use std::time::Duration;

use super::*;
use crate::cluster::Machine as _;
use crate::state::command::{self, AcceptSignal};
use crate::state::resources::revoked_fact::fact_row;
use crate::state::tables::META;
use crate::state::testing::StateHarness;
use crate::state::{Epoch, Replicated};
use crate::token::lineage::Fact as Named;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const LATER: Timestamp = Timestamp::from_secs(1_900_000_000);
const SECOND: Duration = Duration::from_secs(1);
const IDP: &str = "https://idp.example";

fn stolen(kid: &str) -> Named {
    Named::signing_key(IDP, kid)
}

fn revocation_of(kid: &str) -> Command {
    Command::Revoke(command::Revoke {
        fact: Some(fact_row(&stolen(kid))),
        reason: "stolen".to_owned(),
        caller: "alice".to_owned(),
        blocks: true,
        ..command::Revoke::default()
    })
}

/// A block by an issuer of signals.
fn disabled(sub: &str, happened_at: Timestamp) -> Command {
    let effect = Effect {
        kind: EffectKind::Block.into(),
        fact: Some(fact_row(&Named::subject(IDP, sub))),
        family: "account".to_owned(),
        happened_at_millis: happened_at.millis(),
    };
    let jti = Digest128::of(DigestKind::Signal, sub.as_bytes(), &happened_at.millis().to_be_bytes());
    Command::AcceptSignal(AcceptSignal {
        jti: Bytes::copy_from_slice(jti.as_bytes()),
        issuer: IDP.to_owned(),
        quota: 1000,
        effects: vec![effect],
        content: Bytes::from_static(&[7; 16]),
        ..AcceptSignal::default()
    })
}

/// An effect on the same account, with its reason.
fn account(kind: EffectKind, happened_at: Timestamp, reason: &str) -> Command {
    let Command::AcceptSignal(mut signal) = disabled("alice", happened_at) else { panic!("a signal") };
    signal.effects.iter_mut().for_each(|effect| effect.kind = kind.into());
    let jti = Digest128::of(DigestKind::Signal, reason.as_bytes(), &happened_at.millis().to_be_bytes());
    signal.jti = Bytes::copy_from_slice(jti.as_bytes());
    Command::AcceptSignal(AcceptSignal { reason: reason.to_owned(), ..signal })
}

/// Regression: an effect that came late, and changed nothing, replaced the reason.
#[test]
fn block_has_the_reason_of_the_effect_that_decided() {
    let (before, at) = (START.minus(SECOND), START);
    let mut harness = StateHarness::default();
    for (kind, happened_at, reason, shown) in [
        (EffectKind::Block, at, "stolen", "stolen"),
        (EffectKind::Lift, before, "returned", "stolen"),
        (EffectKind::Block, before, "lost", "stolen"),
        (EffectKind::Block, at.plus(SECOND), "stolen again", "stolen again"),
    ] {
        harness.one(START, account(kind, happened_at, reason));
        let reasons: Vec<_> = all(&harness).into_iter().map(|block| block.reason).collect();
        assert_eq!(reasons, [shown], "{reason}");
    }
}

fn unblock(id: BlockId) -> Command {
    Command::LiftBlock(LiftBlock { id: Bytes::copy_from_slice(&id.0) })
}

fn all(harness: &StateHarness) -> Vec<SubjectBlock> {
    let (blocked, next) = list(&harness.rows, None, 1000).expect("list");
    assert_eq!(next, None);
    blocked
}

fn refuses(machine: &Replicated, fact: &Named, iat: Timestamp) -> bool {
    machine.revocations().covers(Epoch::default(), &[fact.digest()], None, iat)
}

fn idle(harness: &mut StateHarness, at: Timestamp) {
    harness.one(at, Command::AllowRevocations(command::AllowRevocations::default()));
}

/// Attack: the key of an issuer is stolen and revoked; the thief postdates its tokens by a day, and presents them when the
/// revocation is deleted.
#[test]
fn blocked_key_is_refused_for_any_iat_and_after_retention() {
    let mut harness = StateHarness::default();
    harness.one(START, revocation_of("k"));
    assert!(refuses(&harness.machine, &stolen("k"), START));
    assert!(refuses(&harness.machine, &stolen("k"), LATER));
    assert!(!refuses(&harness.machine, &stolen("other"), LATER));
    let forgotten = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
    idle(&mut harness, forgotten);
    assert_eq!(harness.machine.revocations().watermarks(), 0);
    let restarted = Replicated::default();
    restarted.rebuild(&harness.rows).expect("rebuilds");
    for machine in [&harness.machine, &restarted] {
        assert!(refuses(machine, &stolen("k"), START) && refuses(machine, &stolen("k"), LATER));
    }
    let [blocked] = &all(&harness)[..] else { panic!("one") };
    let said = (blocked.fact.kind.as_str(), blocked.fact.issuer.as_str(), blocked.fact.value.as_str());
    assert_eq!(said, ("key", IDP, "k"));
    assert_eq!((blocked.by.as_str(), blocked.reason.as_str(), blocked.at), ("alice", "stolen", START));
}

#[test]
fn lifted_block_leaves_the_watermark_and_can_be_renewed() {
    let mut harness = StateHarness::default();
    harness.one(START, revocation_of("k"));
    let id = all(&harness)[0].id;
    assert_eq!(harness.one(START, unblock(id)), Reply::Done { changed: true });
    assert!(
        refuses(&harness.machine, &stolen("k"), START) && !refuses(&harness.machine, &stolen("k"), LATER)
    );
    assert!(all(&harness).is_empty());
    assert_eq!(harness.one(START, unblock(id)), Reply::Refused(Refusal::UnknownBlock));
    // With equal times, the later entry counts.
    harness.one(START, revocation_of("k"));
    assert!(refuses(&harness.machine, &stolen("k"), LATER));
    assert_eq!(harness.one(START, unblock(id)), Reply::Done { changed: true });
    assert!(!refuses(&harness.machine, &stolen("k"), LATER));
    idle(&mut harness, START.plus(limits::REVOCATION_RETENTION).plus(SECOND));
    assert!(harness.rows.0.keys().all(|(table, _)| table != BLOCK));
    for key in [Bytes::new(), Bytes::from_static(&[7; 32]), Bytes::from_static(&[7; 40])] {
        let lifted = harness.one(LATER, Command::LiftBlock(LiftBlock { id: key }));
        assert_eq!(lifted, Reply::Refused(Refusal::UnknownBlock));
    }
}

#[test]
fn only_a_later_event_blocks_again_after_a_lift() {
    let mut harness = StateHarness::default();
    let alice = Named::subject(IDP, "alice");
    // The issuer's clock is ahead: the lift counts as later nevertheless.
    let ahead = START.plus(SECOND);
    harness.one(START, disabled("alice", ahead));
    let id = all(&harness)[0].id;
    assert_eq!(all(&harness)[0].by, IDP);
    assert_eq!(harness.one(START, unblock(id)), Reply::Done { changed: true });
    assert!(!refuses(&harness.machine, &alice, LATER));
    harness.one(START, disabled("alice", START));
    assert!(!refuses(&harness.machine, &alice, LATER), "an earlier event");
    harness.one(START, disabled("alice", ahead.plus(SECOND)));
    assert!(refuses(&harness.machine, &alice, LATER));
}

/// Regression: an event after the lift, whose time the issuer stated in whole seconds, was taken for an earlier one.
#[test]
fn event_in_the_second_of_a_lift_blocks_again() {
    let mut harness = StateHarness::default();
    let alice = Named::subject(IDP, "alice");
    harness.one(START, disabled("alice", START.minus(SECOND)));
    let id = all(&harness)[0].id;
    let lifted_at = START.plus(Duration::from_millis(200));
    assert_eq!(harness.one(lifted_at, unblock(id)), Reply::Done { changed: true });
    assert!(!refuses(&harness.machine, &alice, LATER));
    harness.one(START.plus(Duration::from_millis(700)), disabled("alice", START));
    assert!(refuses(&harness.machine, &alice, LATER));
}

#[test]
fn list_has_every_block_once_in_order() {
    let mut harness = StateHarness::default();
    for kid in ["a", "b", "c", "d", "e"] {
        harness.one(START, revocation_of(kid));
    }
    let lifted = all(&harness)[2].id;
    harness.one(START, unblock(lifted));
    let expected: Vec<_> = all(&harness).into_iter().map(|blocked| blocked.id).collect();
    assert!(expected.len() == 4 && !expected.contains(&lifted) && expected.is_sorted_by_key(|id| id.0));
    for limit in [1, 2, 3, 4] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (some, next) = list(&harness.rows, after, limit).expect("list");
            found.extend(some.into_iter().map(|blocked| blocked.id));
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{limit}");
    }
    for id in expected {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    for text in ["", "a", "AAAA", "!"] {
        assert_eq!(text.parse::<BlockId>(), Err(InvalidBlockId));
    }
}

#[test]
fn page_scans_a_bounded_number_of_rows() {
    let mut harness = StateHarness::default();
    let most = limits::SUBJECT_BLOCKS_READ_PER_PAGE;
    let lifted = BlockRow { lifted_at_millis: Some(1), ..BlockRow::default() }.encode_to_vec();
    for number in 0..most {
        let mut key = vec![0; 32];
        key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        harness.rows.0.insert((BLOCK.to_owned(), key), lifted.clone());
    }
    assert_eq!(list(&harness.rows, None, 10).expect("list"), (Vec::new(), None));
    let blocked = BlockRow { blocked_at_millis: Some(1), ..BlockRow::default() }.encode_to_vec();
    harness.rows.0.insert((BLOCK.to_owned(), vec![255; 32]), blocked);
    let (none, next) = list(&harness.rows, None, 10).expect("list");
    assert!(none.is_empty() && next.is_some());
    let (one, end) = list(&harness.rows, next, 10).expect("list");
    assert_eq!((one.len(), end), (1, None));
}

#[test]
fn blocks_over_the_limit_are_refused_for_operators_too() {
    let mut harness = StateHarness::default();
    let most = limits::SUBJECT_BLOCKS_MAX + limits::OPERATOR_REVOCATIONS_MAX;
    harness.rows.0.insert((META.to_owned(), BLOCKS.to_owned()), most.to_be_bytes().to_vec());
    assert_eq!(harness.one(START, revocation_of("k")), Reply::Refused(Refusal::TooManyRevocations));
    assert_eq!(harness.machine.revocations().watermarks(), 0);
    harness.rows.0.insert((META.to_owned(), BLOCKS.to_owned()), (most - 1).to_be_bytes().to_vec());
    assert!(matches!(harness.one(START, revocation_of("k")), Reply::Revoked(_)));
}
