//! Tests of the lease and the barrier over a manual clock. Tokio's time is paused where a test waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;

use futures::FutureExt as _;

use super::barrier::{Barrier, BarrierTimeout, OtherMembers};
use super::*;
use crate::clock::Timestamp;
use crate::cluster::reads::member_progress::{MemberProgress, ProgressTracker};

const MILLISECOND: Duration = Duration::from_millis(1);

fn freshness() -> (Freshness, Clock) {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    (Freshness::new(clock.clone(), FreshnessMode::Lease, Arc::default()), clock)
}

/// An answer that names this index.
fn at(index: u64) -> ConfirmedIndex {
    ConfirmedIndex { index, sources: Vec::new() }
}

/// A renewal that the leader answers at once with an applied index.
async fn renew(freshness: &Freshness) {
    let (_sender, mut applied) = watch::channel(7);
    assert!(freshness.renew(async |_| Some(at(7)), &mut applied, &mut 0).await);
}

/// No member reports.
fn no_reports() -> watch::Receiver<()> {
    watch::channel(()).1
}

/// Duration of a lease from its request.
fn held_for() -> Duration {
    limits::FRESHNESS_LEASE.saturating_sub(limits::FRESHNESS_MARGIN)
}

fn is_given(freshness: &Freshness) -> bool {
    freshness.fresh().now_or_never().is_some_and(|fresh| fresh.is_ok())
}

#[tokio::test]
async fn lease_runs_from_its_request_minus_the_margin() {
    let (freshness, clock) = freshness();
    let (_sender, mut applied) = watch::channel(7);
    let answers_late = |_| async {
        clock.advance(Duration::from_millis(400));
        Some(at(7))
    };
    assert!(freshness.renew(answers_late, &mut applied, &mut 0).await);
    clock.advance(held_for().saturating_sub(Duration::from_millis(400) + MILLISECOND));
    assert!(is_given(&freshness));
    clock.advance(MILLISECOND);
    assert!(!is_given(&freshness), "counted from the answer, or without the margin");
}

#[tokio::test]
async fn paused_process_holds_no_lease_until_renewal() {
    let (freshness, clock) = freshness();
    assert!(!is_given(&freshness), "before the first renewal");
    renew(&freshness).await;
    assert!(is_given(&freshness));
    clock.advance(limits::FRESHNESS_LEASE);
    let mut waiting = pin!(freshness.fresh());
    assert!(waiting.as_mut().now_or_never().is_none(), "waits");
    renew(&freshness).await;
    waiting.await.expect("renewed");
    // Paused between request and answer: the answer does not cover the time in between.
    let (_sender, mut applied) = watch::channel(7);
    clock.advance(limits::FRESHNESS_LEASE);
    let paused = |_| async {
        clock.advance(limits::FRESHNESS_LEASE);
        Some(at(7))
    };
    assert!(freshness.renew(paused, &mut applied, &mut 0).await);
    assert!(!is_given(&freshness));
}

#[tokio::test]
async fn lease_begins_when_the_confirmed_index_is_applied() {
    let (freshness, clock) = freshness();
    let (sender, mut applied) = watch::channel(6);
    {
        let mut confirmed_index = 0;
        let mut renewing = pin!(freshness.renew(async |_| Some(at(7)), &mut applied, &mut confirmed_index));
        assert!(renewing.as_mut().now_or_never().is_none());
        assert!(!is_given(&freshness), "an entry is missing");
        clock.advance(Duration::from_millis(400));
        sender.send_replace(7);
        assert!(renewing.await);
    }
    assert!(is_given(&freshness));
    clock.advance(held_for().saturating_sub(Duration::from_millis(400)));
    assert!(!is_given(&freshness), "counted from when it was applied");
}

#[tokio::test]
async fn earlier_request_never_shortens_a_lease() {
    let (freshness, clock) = freshness();
    let earlier = clock.boot();
    clock.advance(Duration::from_millis(500));
    renew(&freshness).await;
    freshness.hold_since(earlier);
    clock.advance(Duration::from_millis(900));
    assert!(is_given(&freshness));
}

#[tokio::test(start_paused = true)]
async fn request_without_a_lease_waits_and_times_out() {
    let (freshness, clock) = freshness();
    let a_tick = Duration::from_millis(2);
    let almost = tokio::time::timeout(limits::FRESHNESS_WAIT.saturating_sub(a_tick), freshness.fresh()).await;
    assert!(almost.is_err(), "still waiting");
    let most = tokio::time::timeout(limits::FRESHNESS_WAIT + a_tick, freshness.fresh()).await;
    assert!(matches!(most, Ok(Err(LeaseError::NoLease))));
    // Since the start, not since the machine was booted: a node with a full disk would campaign at once.
    assert_eq!(
        freshness.status(),
        LeaseStatus { is_held: false, lapsed: Duration::ZERO, waits: 2, refused: 1 }
    );
    assert!(freshness.was_fresh_within(a_tick) && !freshness.was_held_within(a_tick));
    renew(&freshness).await;
    freshness.fresh().await.expect("held");
    assert_eq!(
        freshness.status(),
        LeaseStatus { is_held: true, lapsed: Duration::ZERO, waits: 2, refused: 1 }
    );
    clock.advance(limits::FRESHNESS_LEASE + Duration::from_secs(3));
    assert_eq!(freshness.status().lapsed, limits::FRESHNESS_MARGIN + Duration::from_secs(3));
}

#[tokio::test]
async fn waiting_requests_are_limited() {
    let (freshness, _clock) = freshness();
    let mut waiting: Vec<_> = (0..limits::FRESHNESS_WAITS_MAX).map(|_| Box::pin(freshness.fresh())).collect();
    assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
    assert!(matches!(freshness.fresh().now_or_never(), Some(Err(LeaseError::TooManyWait))));
    assert_eq!(freshness.status().refused, 1);
    drop(waiting.pop());
    assert!(freshness.fresh().now_or_never().is_none(), "a permit is free again");
    renew(&freshness).await;
    for waiting in waiting {
        waiting.await.expect("all are served");
    }
}

/// Advances tokio's time and the boot clock together while the lease is renewed.
async fn go_on(clock: &Clock, steps: u32, step: Duration, mut look: impl FnMut(u32)) {
    for at in 0..steps {
        tokio::time::sleep(step).await;
        clock.advance(step);
        look(at);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_before_it_expires() {
    let (freshness, clock) = freshness();
    let (_sender, applied) = watch::channel(7);
    let requests = Cell::new(0);
    let request_index = |for_lease| {
        requests.set(requests.get() + u32::from(for_lease));
        async { Some(at(7)) }
    };
    let held = go_on(&clock, 500, Duration::from_millis(10), |at| assert!(is_given(&freshness), "{at}"));
    tokio::select! {
        () = freshness.renew_while_open(request_index, applied) => panic!("the state is there"),
        () = held => {}
    }
    assert!((18..=21).contains(&requests.get()), "every quarter of a second: {}", requests.get());
    assert_eq!(freshness.status().waits, 0);
}

#[tokio::test(start_paused = true)]
async fn failed_or_hanging_renewal_is_retried() {
    let (freshness, clock) = freshness();
    let (_sender, applied) = watch::channel(7);
    let answers = RefCell::new(VecDeque::from([Some(Some(at(7))), Some(Some(at(7))), None, Some(None)]));
    let request_index = |_| {
        let answer = answers.borrow_mut().pop_front().unwrap_or(Some(Some(at(7))));
        async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    };
    let held = go_on(&clock, 300, Duration::from_millis(10), |at| assert!(is_given(&freshness), "{at}"));
    tokio::select! {
        () = freshness.renew_while_open(request_index, applied) => panic!("the state is there"),
        () = held => {}
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_request_triggers_a_renewal() {
    let (freshness, clock) = freshness();
    let (_sender, applied) = watch::channel(7);
    let woken = async {
        tokio::time::sleep(MILLISECOND).await;
        assert!(is_given(&freshness), "the first renewal");
        clock.advance(limits::FRESHNESS_LEASE);
        let soon = limits::FRESHNESS_RENEWAL / 2;
        tokio::time::timeout(soon, freshness.fresh()).await.expect("in time").expect("renewed");
    };
    tokio::select! {
        () = freshness.renew_while_open(async |_| Some(at(7)), applied) => panic!("the state is there"),
        () = woken => {}
    }
}

#[tokio::test]
async fn renewal_ends_with_the_state() {
    let (freshness, _clock) = freshness();
    let (sender, applied) = watch::channel(7);
    drop(sender);
    freshness.renew_while_open(async |_| Some(at(7)), applied).await;
}

/// A paused virtual machine stands still with its boot clock; its wall clock is set afterwards.
#[tokio::test]
async fn wall_clock_jump_against_the_boot_clock_voids_the_lease() {
    let (freshness, clock) = freshness();
    let most = i64::try_from(limits::FRESHNESS_CLOCK_STEP_MAX.as_millis()).expect("small");
    renew(&freshness).await;
    for harmless in [most, most, -3_600_000, 0] {
        clock.shift(harmless);
        assert!(is_given(&freshness), "{harmless}");
    }
    clock.shift(most + 1);
    assert!(!is_given(&freshness));
    assert!(!is_given(&freshness), "the lease stays void");
    clock.advance(MILLISECOND);
    renew(&freshness).await;
    assert!(is_given(&freshness));
    // A request sent before the pause is answered after it, and the clocks were compared in between.
    let (_sender, mut applied) = watch::channel(7);
    let paused = |_| async {
        clock.shift(most + 1);
        assert!(!is_given(&freshness));
        Some(at(7))
    };
    assert!(freshness.renew(paused, &mut applied, &mut 0).await);
    assert!(!is_given(&freshness), "it was requested before the pause");
}

#[tokio::test]
async fn read_index_mode_requests_no_lease() {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let freshness = Freshness::new(clock, FreshnessMode::ReadIndex, Arc::default());
    let (_sender, mut applied) = watch::channel(7);
    let requests = RefCell::new(Vec::new());
    let request_index = |for_lease| {
        requests.borrow_mut().push(for_lease);
        async { Some(at(7)) }
    };
    assert!(freshness.renew(request_index, &mut applied, &mut 0).await);
    assert_eq!(requests.borrow().as_slice(), [false]);
    assert!(freshness.status().is_held, "a leader was confirmed");
}

/// A member that has applied up to `applied` and last requested a lease at this instant.
fn member(applied: u64, lease_requested: Duration) -> MemberProgress {
    MemberProgress { applied, lease_requested: Some(lease_requested) }
}

/// Regression: every acknowledgement took a whole lease while any member was down or catching up.
#[test]
fn barrier_waits_only_for_leases_that_a_member_can_hold() {
    let second = Duration::from_secs(1);
    let hour = Duration::from_secs(3600);
    let barrier = Barrier { index: 7, begun: hour };
    let others = |members: &[MemberProgress], led_since| OtherMembers {
        members: members.to_vec(),
        led_since: Some(led_since),
    };
    let (long_ago, lately) = (Duration::ZERO, hour.saturating_sub(second / 4));
    let later = hour + second / 4;
    let just_before = (hour + second).saturating_sub(MILLISECOND);
    let done = member(7, later);
    let silent = MemberProgress { applied: 6, lease_requested: None };
    for (name, members, led_since, now, expected) in [
        ("alone", &[][..], long_ago, hour, Duration::ZERO),
        ("alone and new", &[], hour, hour, second),
        ("all have applied it", &[done, member(8, hour)], long_ago, hour, Duration::ZERO),
        ("one has not", &[done, member(6, later)], long_ago, hour, second),
        ("one has not, later", &[done, member(6, later)], long_ago, just_before, MILLISECOND),
        ("its leases have expired", &[done, member(6, later)], long_ago, hour + second, Duration::ZERO),
        ("requested before the entry", &[done, member(6, lately)], long_ago, hour, second * 3 / 4),
        ("requested long ago", &[done, member(6, long_ago)], long_ago, hour, Duration::ZERO),
        ("never requested from this leader", &[done, silent], long_ago, hour, Duration::ZERO),
        (
            "the last request decides",
            &[member(6, lately), member(0, long_ago)],
            long_ago,
            hour,
            second * 3 / 4,
        ),
        ("a new leader", &[done, member(8, hour)], lately, hour, second * 3 / 4),
        ("a new leader without requests", &[done, silent], lately, hour, second * 3 / 4),
        ("a new leader, one has not", &[done, member(6, later)], lately, hour, second),
    ] {
        assert_eq!(barrier.remaining(&others(members, led_since), now), expected, "{name}");
    }
    let always_alone = OtherMembers { members: Vec::new(), led_since: None };
    assert_eq!(barrier.remaining(&always_alone, hour), Duration::ZERO);
}

/// Regression: a removed member was forgotten with its membership, and accepted under its lease tokens that
/// were revoked meanwhile.
#[test]
fn removed_node_counts_until_its_lease_has_expired() {
    let (progress, hour) = (ProgressTracker::default(), Duration::from_secs(3600));
    progress.record_lease_request(4, hour);
    progress.record_lease_request(2, Duration::ZERO);
    let just_before = (hour + limits::FRESHNESS_LEASE).saturating_sub(MILLISECOND);
    assert_eq!(progress.lease_holders(just_before), [4]);
    assert!(progress.lease_holders(hour + limits::FRESHNESS_LEASE).is_empty());
}

/// Regression: a member that was catching up requested leases that it could not take, and every
/// acknowledgement waited for them.
#[tokio::test]
async fn lagging_node_requests_the_index_without_a_lease() {
    let (freshness, _clock) = freshness();
    let (sender, mut applied) = watch::channel(5);
    let requests = RefCell::new(Vec::new());
    let request_index = |for_lease| {
        requests.borrow_mut().push(for_lease);
        async { Some(at(7)) }
    };
    let mut confirmed_index = u64::MAX;
    for expected in [&[false][..], &[false, false]] {
        assert!(freshness.renew(request_index, &mut applied, &mut confirmed_index).now_or_never().is_none());
        assert_eq!((requests.borrow().as_slice(), confirmed_index), (expected, 7));
    }
    assert!(!is_given(&freshness));
    sender.send_replace(7);
    assert!(freshness.renew(request_index, &mut applied, &mut confirmed_index).await);
    assert_eq!(requests.borrow().as_slice(), [false, false, true]);
    assert!(is_given(&freshness));
}

#[tokio::test]
async fn starting_node_requests_the_index_first() {
    let (freshness, _clock) = freshness();
    let (sender, applied) = watch::channel(7);
    let requests = RefCell::new(Vec::new());
    let request_index = |for_lease| {
        requests.borrow_mut().push(for_lease);
        async { Some(at(7)) }
    };
    let mut keeping = pin!(freshness.renew_while_open(request_index, applied));
    assert!(keeping.as_mut().now_or_never().is_none());
    assert_eq!(requests.borrow().as_slice(), [false, true]);
    assert!(is_given(&freshness));
    drop(sender);
}

#[tokio::test]
async fn barrier_of_a_single_node_waits_for_its_own_apply() {
    let (freshness, _clock) = freshness();
    let alone = || Some(OtherMembers { members: Vec::new(), led_since: None });
    let (sender, mut applied) = watch::channel(6);
    let applies = async { drop(applied.wait_for(|applied| *applied >= 7).await) };
    let mut waiting = pin!(freshness.barrier(7, applies, alone, no_reports()));
    assert!(waiting.as_mut().now_or_never().is_none());
    sender.send_replace(7);
    assert_eq!(waiting.now_or_never(), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn barrier_waits_out_the_leases_of_a_silent_member() {
    let (freshness, clock) = freshness();
    let silent =
        || Some(OtherMembers { members: vec![member(0, Duration::MAX)], led_since: Some(Duration::ZERO) });
    let answered = Cell::new(false);
    let waited = async {
        freshness.barrier(7, async {}, silent, no_reports()).await.expect("acknowledged");
        answered.set(true);
    };
    let step = Duration::from_millis(10);
    let looked = go_on(&clock, 110, step, |at| {
        assert!(!answered.get() || at >= 99, "acknowledged after {at} steps");
    });
    futures::join!(waited, looked);
    assert!(answered.get());
}

#[tokio::test]
async fn barrier_ends_when_the_member_reports_the_index() {
    let (freshness, clock) = freshness();
    clock.advance(limits::FRESHNESS_LEASE);
    let (reports, applied) = (watch::Sender::new(()), AtomicU64::new(6));
    let others = || {
        let members = vec![member(applied.load(Ordering::Relaxed), Duration::MAX)];
        Some(OtherMembers { members, led_since: Some(Duration::ZERO) })
    };
    let mut waiting = pin!(freshness.barrier(7, async {}, others, reports.subscribe()));
    assert!(waiting.as_mut().now_or_never().is_none());
    reports.send_replace(());
    assert!(waiting.as_mut().now_or_never().is_none(), "the report is below the index");
    applied.store(7, Ordering::Relaxed);
    reports.send_replace(());
    assert_eq!(waiting.now_or_never(), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn unapplied_entry_is_not_acknowledged() {
    let (freshness, _clock) = freshness();
    let alone = || Some(OtherMembers::default());
    let outcome = freshness.barrier(7, std::future::pending(), alone, no_reports()).await;
    assert_eq!(outcome, Err(BarrierTimeout));
    // Nor on a follower, or while the clock stands still and a member is silent.
    assert_eq!(freshness.barrier(7, async {}, || None, no_reports()).await, Err(BarrierTimeout));
    let silent =
        || Some(OtherMembers { members: vec![member(0, Duration::MAX)], led_since: Some(Duration::ZERO) });
    assert_eq!(freshness.barrier(7, async {}, silent, no_reports()).await, Err(BarrierTimeout));
}

#[test]
fn leader_leads_since_its_term_was_first_observed() {
    let (freshness, clock) = freshness();
    let first = freshness.observe_leading(3);
    clock.advance(MILLISECOND);
    assert_eq!(freshness.observe_leading(3), first);
    assert_eq!(freshness.observe_leading(5), first + MILLISECOND);
}
