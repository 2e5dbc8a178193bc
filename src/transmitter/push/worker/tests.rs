//! Single steps of a worker.

use super::*;
use crate::state::{Error, StreamConfig, StreamCursor};
use crate::transmitter::obstacle::Obstacle;
use crate::transmitter::push::tests::Harness;

const URL: &str = "http://127.0.0.1:9/";

/// The worker of a stream with one event in flight.
async fn worker(harness: &mut Harness) -> (Worker, EventId) {
    let stream_id = harness.stream(Some(URL)).await;
    let (shared, stream) = (harness.shared(), harness.node.state.stream(&stream_id).expect("there"));
    let mut worker = Worker::new(shared, stream, Arc::default(), 7);
    harness.append(&["a"]).await;
    let event = harness.last_event();
    worker.window.add(event.id, subject_of(&event));
    assert_eq!(worker.window.next(1), Some(event.id));
    (worker, event.id)
}

fn responded(harness: &Harness, response: PushResponse) -> AttemptResult {
    let event = harness.last_event();
    AttemptResult { id: event.id, epoch: 0, outcome: AttemptOutcome::Answered(Box::new(event), response) }
}

fn refused() -> PushResponse {
    PushResponse::Refused { err: "401".to_owned(), description: String::new() }
}

/// With these limits the first failure of a receiver would pause its stream.
#[tokio::test]
async fn failure_of_this_node_does_not_count_for_the_receiver() {
    let mut harness = Harness::still().await;
    harness.limits.failing_max = Duration::ZERO;
    let withheld = Unsent::Withheld(Obstacle::OwnerBlocked);
    for unsent in
        [Unsent::NoPermit, Unsent::Changed, Unsent::Unread, Unsent::Unsigned, Unsent::Stale, withheld]
    {
        let (mut worker, id) = worker(&mut harness).await;
        worker.complete(AttemptResult { id, epoch: 0, outcome: AttemptOutcome::Unsent(unsent) });
        assert!(worker.pausing.is_none() && worker.failing.is_none(), "{unsent:?}");
        assert_eq!(worker.failures, 0, "{unsent:?}");
        match unsent {
            // Waited for a permit already.
            Unsent::NoPermit | Unsent::Changed => assert_eq!(worker.window.ready(), 1, "{unsent:?}"),
            _ => {
                assert_eq!((worker.window.ready(), worker.resting.len()), (0, 1), "{unsent:?}");
                let timer = worker.backoff.as_ref().expect("a short wait");
                assert!(!timer.is_requested, "{unsent:?}");
            }
        }
    }
    let (mut worker, _) = worker(&mut harness).await;
    worker.complete(responded(&harness, PushResponse::address_refused()));
    assert!(worker.pausing.is_some());
    drop(worker);
    harness.end().await;
}

/// Attack: an owner pauses and enables a stream in a loop, so that a receiver that does not answer is called without
/// backoff and occupies permits of others.
#[tokio::test]
async fn toggling_a_stream_does_not_end_its_backoff_repeatedly() {
    let mut harness = Harness::still().await;
    let (mut worker, _) = worker(&mut harness).await;
    let change = async |worker: &mut Worker| {
        for status in [StreamStatus::Paused, StreamStatus::Enabled] {
            harness.set_status(worker.stream_id(), status).await;
            assert!(worker.refresh_stream());
        }
    };
    worker.complete(responded(&harness, PushResponse::address_refused()));
    assert!(worker.backoff.is_some() && worker.failing.is_some());
    change(&mut worker).await;
    assert!(worker.backoff.is_none() && worker.resting.is_empty(), "the first change ends the backoff");
    assert_eq!(worker.window.next(1), Some(harness.last_event().id));
    worker.complete(AttemptResult {
        epoch: worker.epoch,
        ..responded(&harness, PushResponse::address_refused())
    });
    change(&mut worker).await;
    assert!(worker.backoff.is_some() && worker.resting.len() == 1);
    assert!(worker.failing.is_none(), "the failing time starts anew");
    harness.node.clock.advance(harness.limits.backoff.max);
    change(&mut worker).await;
    assert!(worker.backoff.is_none() && worker.resting.is_empty());
    drop(worker);
    harness.end().await;
}

#[tokio::test]
async fn pause_for_the_old_endpoint_does_not_affect_the_new() {
    let mut harness = Harness::still().await;
    let (mut worker, _) = worker(&mut harness).await;
    worker.verified(worker.epoch, Ok(refused()));
    // Before the worker sees the change.
    let stream = Arc::clone(&worker.stream);
    let url = Some("http://127.0.0.1:10/".to_owned());
    let config = StreamConfig { endpoint_url: url, ..stream.config.clone() };
    harness.node.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    let outcome = worker.pausing.take().expect("it was about to").await;
    worker.paused(outcome);
    let now = harness.node.state.stream(worker.stream_id()).expect("there");
    assert_eq!(now.status, StreamStatus::Enabled);
    drop((worker, stream, now));
    harness.end().await;
}

#[tokio::test]
async fn response_from_before_a_change_is_not_held_against_it() {
    let mut harness = Harness::still().await;
    harness.limits.failing_max = Duration::ZERO;
    for response in [PushResponse::address_refused(), refused()] {
        let (mut worker, _) = worker(&mut harness).await;
        for status in [StreamStatus::Paused, StreamStatus::Enabled] {
            harness.set_status(worker.stream_id(), status).await;
            assert!(worker.refresh_stream());
        }
        worker.complete(responded(&harness, response));
        worker.verified(0, Ok(refused()));
        assert!(worker.pausing.is_none() && worker.backoff.is_none() && worker.failing.is_none());
        assert_eq!(worker.resting.len(), 1, "it is retried all the same");
    }
    harness.end().await;
}

/// Regression: a failure hours after refusals that a verification event had decided paused the stream.
#[tokio::test]
async fn accepted_verification_ends_an_outage() {
    let mut harness = Harness::still().await;
    let (mut worker, _) = worker(&mut harness).await;
    worker.complete(responded(&harness, refused()));
    assert!(worker.failing.is_some());
    worker.verified(worker.epoch, Ok(PushResponse::Delivered { as_specified: true }));
    assert!(worker.failing.is_none() && worker.backoff.is_none());
    assert_eq!(worker.failures, 0);
    drop(worker);
    harness.end().await;
}

#[tokio::test]
async fn event_completed_elsewhere_in_flight_is_not_resent() {
    let mut harness = Harness::still().await;
    let (mut worker, id) = worker(&mut harness).await;
    let cursor = StreamCursor { next: id.next(), dropped: 1, ..harness.cursor(worker.stream_id()) };
    harness.node.state.as_node().advance_stream(&worker.stream, cursor, Vec::new()).await.expect("advanced");
    worker.refresh_cursor();
    assert_eq!(worker.window.len(), 1, "a later event of its subject must not overtake it");
    worker.complete(responded(&harness, PushResponse::address_refused()));
    assert_eq!((worker.window.len(), worker.resting.len()), (0, 0));
    drop(worker);
    harness.end().await;
}

/// A poll, the receiver or the retention moved the cursor between two proposals.
#[tokio::test]
async fn overtaken_proposal_is_repeated() {
    let mut harness = Harness::still().await;
    harness.limits.advance_events = 1;
    let (mut worker, id) = worker(&mut harness).await;
    worker.uncommitted.set_scanned_to(id.next());
    worker.complete(responded(&harness, PushResponse::Delivered { as_specified: true }));
    // Overtaken by another write.
    let other = harness.cursor(worker.stream_id());
    harness.node.state.as_node().advance_stream(&worker.stream, other, Vec::new()).await.expect("advanced");
    worker.propose();
    let (proposed, work) = worker.proposing.take().expect("proposed");
    let outcome = work.await;
    assert!(matches!(outcome, Err(Error::Refused(Refusal::StreamChanged))), "{outcome:?}");
    worker.proposed(proposed, outcome);
    let due = worker.due.as_ref().expect("a retry");
    assert!(due.is_retry, "not earlier, however many events accumulate");
    assert_eq!(worker.uncommitted.len(), 1);
    drop(worker);
    harness.end().await;
}
