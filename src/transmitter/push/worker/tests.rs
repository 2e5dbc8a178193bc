//! What a worker makes of what comes, one thing after the other.

use super::*;
use crate::state::{Error, StreamConfig, StreamCursor};
use crate::transmitter::obstacle::Obstacle;
use crate::transmitter::push::tests::Bench;

const URL: &str = "http://127.0.0.1:9/";

/// The worker of a stream that has one event, which is under way.
async fn worker(bench: &mut Bench) -> (Worker, EventId) {
    let stream_id = bench.stream(Some(URL)).await;
    let (shared, stream) = (bench.shared(), bench.core.state.stream(&stream_id).expect("there"));
    let mut worker = Worker::new(shared, stream, Arc::default(), 7);
    bench.tell(&["a"]).await;
    let event = bench.last_event();
    worker.window.add(event.id, subject_of(&event));
    assert_eq!(worker.window.next(1), Some(event.id));
    (worker, event.id)
}

fn answered(bench: &Bench, verdict: Verdict) -> Pushed {
    let event = bench.last_event();
    Pushed { id: event.id, epoch: 0, outcome: Outcome::Answered(Box::new(event), verdict) }
}

fn refused() -> Verdict {
    Verdict::Refused { err: "401".to_owned(), description: String::new() }
}

/// What this node fails to do pauses no stream, though the first failure of a receiver would.
#[tokio::test]
async fn what_this_node_fails_to_do_is_not_booked_to_the_receiver() {
    let mut bench = Bench::still().await;
    bench.limits.failing_max = Duration::ZERO;
    let withheld = Unsent::Withheld(Obstacle::OwnerBlocked);
    for unsent in
        [Unsent::NoPlace, Unsent::Changed, Unsent::Unread, Unsent::Unsigned, Unsent::Stale, withheld]
    {
        let (mut worker, id) = worker(&mut bench).await;
        worker.judge(Pushed { id, epoch: 0, outcome: Outcome::Unsent(unsent) });
        assert!(worker.pausing.is_none() && worker.failing.is_none(), "{unsent:?}");
        assert_eq!(worker.failures, 0, "{unsent:?}");
        match unsent {
            // That was a wait already.
            Unsent::NoPlace | Unsent::Changed => assert_eq!(worker.window.ready(), 1, "{unsent:?}"),
            _ => {
                assert_eq!((worker.window.ready(), worker.resting.len()), (0, 1), "{unsent:?}");
                let cooling = worker.cooling.as_ref().expect("a short wait");
                assert!(!cooling.is_asked, "{unsent:?}");
            }
        }
    }
    let (mut worker, _) = worker(&mut bench).await;
    worker.judge(answered(&bench, Verdict::address_refused()));
    assert!(worker.pausing.is_some());
    drop(worker);
    bench.end().await;
}

/// Attack: whoever made a stream pauses and enables it in a loop, so that a receiver that does not answer is called
/// without a wait and takes places of others.
#[tokio::test]
async fn who_changes_a_stream_again_and_again_is_waited_for_like_any_other() {
    let mut bench = Bench::still().await;
    let (mut worker, _) = worker(&mut bench).await;
    let change = async |worker: &mut Worker| {
        for status in [StreamStatus::Paused, StreamStatus::Enabled] {
            bench.set_status(worker.stream_id(), status).await;
            assert!(worker.look_at_stream());
        }
    };
    worker.judge(answered(&bench, Verdict::address_refused()));
    assert!(worker.cooling.is_some() && worker.failing.is_some());
    change(&mut worker).await;
    assert!(worker.cooling.is_none() && worker.resting.is_empty(), "the first time it is sent at once");
    assert_eq!(worker.window.next(1), Some(bench.last_event().id));
    worker.judge(Pushed { epoch: worker.epoch, ..answered(&bench, Verdict::address_refused()) });
    change(&mut worker).await;
    assert!(worker.cooling.is_some() && worker.resting.len() == 1);
    assert!(worker.failing.is_none(), "since when it fails begins anew");
    bench.core.clock.advance(bench.limits.waits.max);
    change(&mut worker).await;
    assert!(worker.cooling.is_none() && worker.resting.is_empty());
    drop(worker);
    bench.end().await;
}

#[tokio::test]
async fn a_pause_for_what_one_address_answered_does_not_reach_the_next() {
    let mut bench = Bench::still().await;
    let (mut worker, _) = worker(&mut bench).await;
    worker.verified(worker.epoch, Ok(refused()));
    // Before the worker sees it.
    let stream = Arc::clone(&worker.stream);
    let url = Some("http://127.0.0.1:10/".to_owned());
    let config = StreamConfig { endpoint_url: url, ..stream.config.clone() };
    bench.core.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    let outcome = worker.pausing.take().expect("it was about to").await;
    worker.paused(outcome);
    let now = bench.core.state.stream(worker.stream_id()).expect("there");
    assert_eq!(now.status, StreamStatus::Enabled);
    drop((worker, stream, now));
    bench.end().await;
}

#[tokio::test]
async fn what_was_answered_before_a_change_of_the_stream_says_nothing_of_it() {
    let mut bench = Bench::still().await;
    bench.limits.failing_max = Duration::ZERO;
    for verdict in [Verdict::address_refused(), refused()] {
        let (mut worker, _) = worker(&mut bench).await;
        for status in [StreamStatus::Paused, StreamStatus::Enabled] {
            bench.set_status(worker.stream_id(), status).await;
            assert!(worker.look_at_stream());
        }
        worker.judge(answered(&bench, verdict));
        worker.verified(0, Ok(refused()));
        assert!(worker.pausing.is_none() && worker.cooling.is_none() && worker.failing.is_none());
        assert_eq!(worker.resting.len(), 1, "it is sent again all the same");
    }
    bench.end().await;
}

#[tokio::test]
async fn what_somebody_else_was_over_with_while_it_was_under_way_is_not_sent_again() {
    let mut bench = Bench::still().await;
    let (mut worker, id) = worker(&mut bench).await;
    let cursor = StreamCursor { next: id.next(), dropped: 1, ..bench.cursor(worker.stream_id()) };
    bench.core.state.as_node().advance_stream(&worker.stream, cursor, Vec::new()).await.expect("advanced");
    worker.look_at_cursor();
    assert_eq!(worker.window.len(), 1, "a later one of its subject must not overtake it");
    worker.judge(answered(&bench, Verdict::address_refused()));
    assert_eq!((worker.window.len(), worker.resting.len()), (0, 0));
    drop(worker);
    bench.end().await;
}

/// A poll, a receiver or the limits of a stream moved its cursor between two proposals.
#[tokio::test]
async fn what_was_delivered_and_not_recorded_because_of_others_is_proposed_again() {
    let mut bench = Bench::still().await;
    bench.limits.advance_events = 1;
    let (mut worker, id) = worker(&mut bench).await;
    worker.ledger.look_up_to(id.next());
    worker.judge(answered(&bench, Verdict::Delivered { as_specified: true }));
    // Another one was first.
    let other = bench.cursor(worker.stream_id());
    bench.core.state.as_node().advance_stream(&worker.stream, other, Vec::new()).await.expect("advanced");
    worker.record();
    let (proposed, work) = worker.advancing.take().expect("proposed");
    let outcome = work.await;
    assert!(matches!(outcome, Err(Error::StreamChanged)), "{outcome:?}");
    worker.recorded(proposed, outcome);
    let due = worker.due.as_ref().expect("proposed again");
    assert!(due.is_held, "and not at once, however much comes together");
    assert_eq!(worker.ledger.unrecorded(), 1);
    drop(worker);
    bench.end().await;
}
