//! Polls over a single-node cluster.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::*;
use crate::clock::Timestamp;
use crate::id::Digest128;
use crate::outbound::guard::{Guard, Rules};
use crate::state::testing::TestNode;
use crate::state::{CallContext, DeadLetter, STREAM_UPDATED, SecurityEvent, Signal, StreamConfig};

const WANTED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const OTHER: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";

/// A node with one stream for one event type, and its poller.
struct Harness {
    node: TestNode,
    poller: Poller,
    metrics: Metrics,
    stream_id: String,
    signals: AtomicUsize,
}

async fn start() -> Harness {
    let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
    let metrics = Metrics::new().expect("metrics");
    let (state, clock) = (node.state.clone(), node.clock.clone());
    let sets = SetBuilder::new("https://fabric.example".to_owned(), node.keyring().await, state.clone());
    let obstacles = Obstacles::new(
        "https://fabric.example".to_owned(),
        Arc::new(|_: &str| true),
        Guard::new(Rules::default()),
        state.clone(),
        clock.clone(),
    );
    let poller =
        Poller::new(sets, obstacles, state.clone(), clock, metrics.clone(), CancellationToken::new());
    let stream_id = "5".repeat(32);
    let config = StreamConfig {
        stream_id: stream_id.clone(),
        owner: "spiffe://trust.example/receiver".to_owned(),
        aud: "https://receiver.example".to_owned(),
        events_requested: vec![WANTED.to_owned()],
        events_delivered: vec![WANTED.to_owned()],
        endpoint_url: None,
        description: None,
    };
    state.as_node().create_stream(config).await.expect("created");
    Harness { node, poller, metrics, stream_id, signals: AtomicUsize::new(0) }
}

fn event(event_type: &str, claims: Map<String, Value>) -> SecurityEvent {
    let sub_id = json!({"format": "email", "email": "a@b.example"});
    SecurityEvent { event_type: event_type.to_owned(), sub_id, claims, txn: None, via: Vec::new() }
}

fn at_once(more: &Value) -> Value {
    let mut value = json!({"returnImmediately": true});
    for (name, field) in more.as_object().expect("object") {
        value[name] = field.clone();
    }
    value
}

impl Harness {
    async fn end(self) {
        drop(self.poller);
        self.node.end().await;
    }

    async fn append(&self, events: Vec<SecurityEvent>) {
        let jti = self.signals.fetch_add(1, Ordering::Relaxed).to_string();
        let signal = Signal {
            issuer: "https://idp.example".to_owned(),
            jti,
            issued_at: Timestamp::default(),
            quota: u32::MAX,
            effects: Vec::new(),
            reason: String::new(),
            content: Digest128::from_bytes([0; 16]),
            events,
            subject: "a@b.example".to_owned(),
        };
        assert!(self.node.state.as_node().accept_signal(signal).await.expect("accepted").0);
    }

    /// Appends `count` events in one log entry.
    async fn append_many(&self, event_type: &str, count: usize) {
        self.append(vec![event(event_type, Map::new()); count]).await;
    }

    async fn polled(&self, request: &Value) -> Result<PollResult, Error> {
        let anonymous = CallContext { is_operator: true, ..CallContext::default() };
        self.poller.poll(&self.stream_id, &anonymous, PollRequest::parse(request).expect("a request")).await
    }

    async fn poll(&self, more: &Value) -> PollResult {
        self.polled(&at_once(more)).await.expect("polled")
    }

    fn cursor(&self) -> StreamCursor {
        StreamCursor::clone(&self.node.state.stream_cursor(&self.stream_id).expect("a cursor"))
    }

    fn stream(&self) -> Arc<Stream> {
        self.node.state.stream(&self.stream_id).expect("a stream")
    }

    /// Pauses as the transmitter.
    async fn pause(&self, reason: &str) {
        self.node.state.pause_stream(&self.stream(), reason).await.expect("paused");
    }

    async fn enable(&self) {
        let status = StreamStatus::Enabled;
        self.node
            .state
            .as_node()
            .set_stream_status(&self.stream_id, status, String::new())
            .await
            .expect("enabled");
    }

    fn dead_letters(&self) -> Vec<DeadLetter> {
        self.node.state.dead_letters(&self.stream_id, None, 100).expect("rows").0
    }

    fn has_metric(&self, line: &str) -> bool {
        self.metrics.render().expect("page").lines().any(|shown| shown == line)
    }
}

fn jtis(polled: &PollResult) -> Vec<&str> {
    polled.sets.iter().map(|(jti, _)| jti.as_str()).collect()
}

/// `events` of a token.
fn events(set: &str) -> Value {
    let payload = set.split('.').nth(1).expect("three parts");
    let payload = URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    crate::json::parse(&payload).expect("JSON")["events"].clone()
}

#[tokio::test]
async fn acknowledged_events_are_not_returned_again() {
    let harness = start().await;
    harness.append_many(WANTED, 5).await;
    harness.append_many(OTHER, 2).await;
    let first = harness.poll(&json!({"maxEvents": 3})).await;
    assert_eq!((first.sets.len(), first.more_available), (3, Some(true)));
    let retry = harness.poll(&json!({"maxEvents": 3})).await;
    assert_eq!(retry.sets, first.sets, "byte for byte");
    let all = harness.poll(&json!({})).await;
    assert_eq!((&all.sets[..3], all.sets.len(), all.more_available), (&first.sets[..], 5, Some(false)));
    // The second and the fourth, and `jti`s that are not of this stream.
    let others = harness.stream_id.replace('5', "6");
    let strange = jtis(&all)[0].replace(&harness.stream_id, &others);
    let ack = [jtis(&all)[1], jtis(&all)[3], &strange, "", "x", &format!(" {}", jtis(&all)[0])];
    let left = harness.poll(&json!({"ack": ack})).await;
    assert_eq!(jtis(&left), [jtis(&all)[0], jtis(&all)[2], jtis(&all)[4]]);
    assert_eq!((harness.cursor().delivered, harness.cursor().done.len()), (2, 2));
    let version = harness.cursor().version;
    harness.poll(&json!({"ack": ack})).await;
    assert_eq!(harness.cursor().version, version, "a repeated acknowledgement is not written");
    let none = harness.poll(&json!({"ack": jtis(&all), "maxEvents": 0})).await;
    assert_eq!((none.sets.len(), none.more_available), (0, None));
    assert!(harness.poll(&json!({})).await.sets.is_empty());
    assert_eq!((harness.cursor().delivered, harness.cursor().done.len()), (5, 0));
    assert!(harness.has_metric(r#"svc_polled_sets_total{result="acknowledged"} 5"#));
    harness.end().await;
}

#[tokio::test]
async fn refused_event_becomes_one_dead_letter() {
    let harness = start().await;
    harness.append_many(WANTED, 3).await;
    let all = harness.poll(&json!({})).await;
    let error = json!({"err": "invalid_key", "description": "who\u{7}?"});
    let errors = json!({jtis(&all)[1]: error, "x": error});
    let left = harness.poll(&json!({"setErrs": errors, "ack": [jtis(&all)[0]]})).await;
    assert_eq!(jtis(&left), [jtis(&all)[2]]);
    harness.poll(&json!({"setErrs": errors})).await;
    let letters = harness.dead_letters();
    let [(_, letter)] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!((letter.err.as_str(), letter.description.as_str()), ("invalid_key", "who??"));
    assert_eq!((letter.event_type.as_str(), letter.sub_id.contains("a@b.example")), (WANTED, true));
    let cursor = harness.cursor();
    assert_eq!((cursor.delivered, cursor.dead_letters, cursor.done.len()), (1, 1, 0));
    // An acknowledged event can no longer be refused.
    harness.poll(&json!({"setErrs": {jtis(&all)[0]: error}})).await;
    assert_eq!(harness.dead_letters().len(), 1);
    assert!(harness.has_metric(r#"svc_polled_sets_total{result="refused"} 1"#));
    harness.end().await;
}

#[tokio::test]
async fn concurrent_acknowledgements_are_all_recorded() {
    let harness = start().await;
    harness.append_many(WANTED, 60).await;
    let all = harness.poll(&json!({})).await;
    let polls = jtis(&all).into_iter().map(|jti| {
        let request = at_once(&json!({"ack": [jti], "maxEvents": 0}));
        let harness = &harness;
        // A poll that was overtaken too often retries.
        async move { while matches!(harness.polled(&request).await, Err(Error::Busy)) {} }
    });
    join_all(polls).await;
    let cursor = harness.cursor();
    assert_eq!((cursor.delivered, cursor.done.len()), (60, 0));
    assert!(harness.poll(&json!({})).await.sets.is_empty());
    harness.end().await;
}

#[tokio::test]
async fn without_acknowledgement_only_one_window_is_delivered() {
    let harness = start().await;
    let window = limits::STREAM_WINDOW;
    harness.append_many(WANTED, window + 50).await;
    let first = harness.poll(&json!({})).await;
    assert_eq!((first.sets.len(), first.more_available), (limits::POLL_EVENTS_MAX, Some(true)));
    for _ in 0..5 {
        assert_eq!(harness.poll(&json!({})).await.sets, first.sets);
    }
    // All but the first are acknowledged, page by page.
    let oldest = jtis(&first)[0].to_owned();
    let mut batch = first;
    while batch.sets.len() > 1 {
        batch = harness.poll(&json!({"ack": &jtis(&batch)[1..]})).await;
        assert_eq!(jtis(&batch)[0], oldest);
    }
    let cursor = harness.cursor();
    assert_eq!((cursor.done.len(), batch.more_available), (window - 1, Some(true)));
    let rest = harness.poll(&json!({"ack": [oldest]})).await;
    assert_eq!((rest.sets.len(), rest.more_available), (50, Some(false)));
    assert_eq!((harness.cursor().delivered, harness.cursor().done.len()), (window as u64, 0));
    harness.end().await;
}

#[tokio::test]
async fn large_events_are_split_over_responses() {
    let harness = start().await;
    let large = || {
        let text = "a".repeat(limits::RELAYED_EVENT_BYTES_MAX - 100);
        event(WANTED, json!({ "reason": text }).as_object().cloned().expect("object"))
    };
    let most = limits::POLL_EVENTS_MAX;
    harness.append((0..most).map(|_| large()).collect()).await;
    let first = harness.poll(&json!({})).await;
    let expected = limits::POLL_RESPONSE_BYTES_FULL.div_ceil(limits::RELAYED_EVENT_BYTES_MAX);
    assert!((expected..expected + 5).contains(&first.sets.len()), "{}", first.sets.len());
    assert_eq!(first.more_available, Some(true));
    let second = harness.poll(&json!({"ack": jtis(&first)})).await;
    assert_eq!((first.sets.len() + second.sets.len(), second.more_available), (most, Some(false)));
    harness.end().await;
}

#[tokio::test]
async fn cursor_passes_other_events_once() {
    let harness = start().await;
    let few = limits::POLL_CURSOR_ADVANCE_ROWS_MIN - 1;
    let start = harness.cursor();
    harness.append_many(OTHER, few).await;
    assert!(harness.poll(&json!({})).await.sets.is_empty());
    assert_eq!(harness.cursor(), start, "no write for a few rows");
    harness.append_many(OTHER, 1).await;
    assert_eq!(harness.poll(&json!({})).await.more_available, Some(false));
    let advanced = harness.cursor();
    assert!(advanced.next > start.next, "{advanced:?}");
    assert_eq!((advanced.version, advanced.delivered), (start.version + 1, 0));
    harness.poll(&json!({})).await;
    assert_eq!(harness.cursor(), advanced, "once");
    // No event after an open one is passed.
    harness.append_many(WANTED, 1).await;
    harness.append_many(OTHER, 2 * few).await;
    let open = harness.poll(&json!({})).await;
    assert_eq!((open.sets.len(), &harness.cursor()), (1, &advanced));
    harness.poll(&json!({"ack": jtis(&open)})).await;
    assert_eq!(harness.cursor().delivered, 1);
    harness.end().await;
}

#[tokio::test]
async fn waiting_poll_scans_new_events_by_the_current_stream() {
    let harness = start().await;
    harness.append_many(OTHER, 3).await;
    let request = json!({});
    let mut waiting = Box::pin(harness.polled(&request));
    let until_it_waits = async |waiting: &mut std::pin::Pin<Box<_>>| {
        while !harness.has_metric("svc_polls_waiting 1") {
            assert!(futures::poll!(&mut *waiting).is_pending());
            tokio::task::yield_now().await;
        }
    };
    until_it_waits(&mut waiting).await;
    harness.append_many(OTHER, 1).await;
    assert!(futures::poll!(&mut waiting).is_pending(), "not for other events");
    harness.append_many(WANTED, 1).await;
    let woken = waiting.await.expect("polled");
    assert_eq!((woken.sets.len(), woken.more_available), (1, Some(false)));
    harness.poll(&json!({"ack": jtis(&woken)})).await;

    let mut waiting = Box::pin(harness.polled(&request));
    until_it_waits(&mut waiting).await;
    harness.pause("for a test").await;
    harness.append_many(WANTED, 1).await;
    for _ in 0..100 {
        assert!(futures::poll!(&mut waiting).is_pending(), "paused meanwhile");
        tokio::task::yield_now().await;
    }
    harness.enable().await;
    assert_eq!(waiting.await.expect("polled").sets.len(), 2, "the retained event and stream-updated");
    harness.end().await;
}

/// An immediate response would be followed by an immediate poll, for as long as the stream is paused.
#[tokio::test]
async fn poll_of_a_paused_stream_waits_until_enabled() {
    let harness = start().await;
    let request = json!({});
    for status in [StreamStatus::Paused, StreamStatus::Disabled] {
        harness
            .node
            .state
            .as_node()
            .set_stream_status(&harness.stream_id, status, String::new())
            .await
            .expect("set");
        let mut waiting = Box::pin(harness.polled(&request));
        while !harness.has_metric("svc_polls_waiting 1") {
            assert!(futures::poll!(&mut waiting).is_pending());
            tokio::task::yield_now().await;
        }
        let at_once = harness.poll(&json!({})).await;
        assert_eq!((at_once.sets.len(), at_once.more_available), (0, None), "without a wait");
        harness.enable().await;
        harness.append_many(WANTED, 1).await;
        let batch = waiting.await.expect("polled");
        assert_eq!(batch.sets.len(), 1);
        harness.poll(&json!({"ack": jtis(&batch)})).await;
    }
    harness.end().await;
}

/// The poll scanned for one type; then the receiver requested another type, and an event of that type arrived.
#[tokio::test]
async fn scan_with_old_filter_does_not_move_the_cursor() {
    let harness = start().await;
    let many = limits::POLL_CURSOR_ADVANCE_ROWS_MIN;
    harness.append_many(OTHER, many).await;
    let (stream, cursor) = (harness.stream(), harness.cursor());
    let mut config = stream.config.clone();
    config.events_delivered.push(OTHER.to_owned());
    harness.node.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    harness.append_many(OTHER, 1).await;
    let mut scan = Scan::from(&cursor);
    let mut take = |_, _| ControlFlow::Continue(());
    scan::scan(&harness.node.state, &stream, &mut scan, &mut take).await.expect("rows");
    harness.poller.skip(&stream, &cursor, &scan, scan.rows).await;
    assert_eq!(harness.cursor(), cursor);
    // Nor are events from before the request delivered.
    assert_eq!(harness.poll(&json!({})).await.sets.len(), 1);
    harness.end().await;
}

/// Each would cause a scan of the whole outbox without a write.
#[tokio::test]
async fn attack_with_future_event_ids_causes_no_scan() {
    let harness = start().await;
    harness.append_many(WANTED, 1).await;
    let end = *harness.node.state.outbox_end().borrow();
    let forged =
        SetBuilder::jti(harness.poller.sets.incarnation().expect("bootstrapped"), &harness.stream_id, end);
    let mut permits = Vec::new();
    for _ in 0..limits::POLL_SCANS_MAX {
        permits.push(harness.poller.limiter.scan(None).await.expect("a permit"));
    }
    let only = |fields: &Value| {
        let mut fields = at_once(fields);
        fields["maxEvents"] = 0.into();
        fields
    };
    for fields in [json!({"ack": [forged]}), json!({"setErrs": {forged.as_str(): {"err": "x"}}})] {
        assert!(harness.polled(&only(&fields)).await.is_ok(), "no scan for {fields}");
    }
    drop(permits);
    let batch = harness.poll(&json!({})).await;
    harness.poll(&json!({"ack": [jtis(&batch)[0], forged.as_str()]})).await;
    assert_eq!(harness.cursor().delivered, 1, "the valid one counts");
    harness.end().await;
}

#[tokio::test]
async fn refusals_beyond_one_command_are_all_recorded() {
    let harness = start().await;
    let most = limits::DEAD_LETTERS_PER_WRITE_MAX;
    harness.append_many(WANTED, most + 5).await;
    let batch = harness.poll(&json!({})).await;
    let names = jtis(&batch);
    let (ack, refused) = names.split_at(2);
    let errors: Map<_, _> = refused.iter().map(|jti| ((*jti).to_owned(), json!({"err": "x"}))).collect();
    let version = harness.cursor().version;
    assert!(harness.poll(&json!({"ack": ack, "setErrs": errors})).await.sets.is_empty());
    let cursor = harness.cursor();
    assert_eq!((cursor.delivered, cursor.dead_letters, cursor.done.len()), (2, most as u64 + 3, 0));
    assert_eq!(cursor.version, version + 2, "in two commands");
    assert_eq!(harness.dead_letters().len(), most + 3);
    for line in [
        r#"svc_stream_events_total{result="delivered"} 2"#,
        r#"svc_stream_events_total{result="dead_letter"} 67"#,
    ] {
        assert!(harness.has_metric(line), "{line}");
    }
    harness.end().await;
}

#[tokio::test]
async fn stream_updated_follows_when_a_paused_stream_is_enabled() {
    let harness = start().await;
    harness.append_many(WANTED, 1).await;
    harness.pause("it is behind").await;
    harness.append_many(WANTED, 1).await;
    let paused = harness.poll(&json!({})).await;
    assert_eq!((paused.sets.len(), paused.more_available), (0, None));
    harness.enable().await;
    // The retained events, then stream-updated, which is not a delivered type.
    let batch = harness.poll(&json!({})).await;
    let events = batch.sets.iter().map(|(_, set)| events(set)).collect::<Vec<_>>();
    let [_, _, updated] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(updated[STREAM_UPDATED]["status"], "enabled", "{updated}");
    assert!(events[..2].iter().all(|event| event.get(WANTED).is_some()), "{events:?}");
    harness.end().await;
}

#[tokio::test]
async fn shutdown_ends_waiting_polls() {
    let harness = start().await;
    let request = json!({});
    let mut waiting = Box::pin(harness.polled(&request));
    while !harness.has_metric("svc_polls_waiting 1") {
        assert!(futures::poll!(&mut waiting).is_pending());
        tokio::task::yield_now().await;
    }
    harness.poller.shutdown.cancel();
    let stopped = waiting.await.expect("polled");
    assert_eq!((stopped.sets.len(), stopped.more_available), (0, Some(false)));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn poll_waits_for_a_change_up_to_its_limit() {
    let (sender, mut end) = watch::channel(EventId::default());
    let (longest, almost) = (limits::POLL_WAIT_MAX, limits::POLL_WAIT_MAX.mul_f64(0.999));
    assert!(tokio::time::timeout(almost, changed_within(&mut end, longest)).await.is_err(), "it still waits");
    assert!(!changed_within(&mut end, longest).await, "no longer");
    let append = async {
        tokio::task::yield_now().await;
        sender.send_replace(EventId { index: 1, number: 0 });
    };
    let (woken, ()) = tokio::join!(changed_within(&mut end, longest), append);
    assert!(woken);
    // A change since the scan began.
    sender.send_replace(EventId { index: 2, number: 0 });
    assert!(changed_within(&mut end, Duration::ZERO).await);
    drop(sender);
    assert!(!changed_within(&mut end, longest).await, "the node is gone");
}

#[tokio::test]
async fn overtaken_poll_retries_a_limited_number_of_times() {
    let overtaken_until = async |last: usize| {
        let attempts = AtomicUsize::new(0);
        let outcome = retry_if_overtaken(async || {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            if attempt < last { Err(state::Error::Refused(Refusal::StreamChanged).into()) } else { Ok(()) }
        });
        let outcome = outcome.await;
        (outcome, attempts.into_inner())
    };
    let most = limits::POLL_ADVANCE_ATTEMPTS_MAX;
    assert!(matches!(overtaken_until(1).await, (Ok(()), 1)));
    let (outcome, attempts) = overtaken_until(most).await;
    assert_eq!((outcome.is_ok(), attempts), (true, most));
    let (outcome, attempts) = overtaken_until(most + 1).await;
    assert_eq!((matches!(outcome, Err(Error::Busy)), attempts), (true, most));
    let gone = retry_if_overtaken(async || Err(state::Error::Refused(Refusal::UnknownStream).into())).await;
    assert!(matches!(gone, Err(Error::UnknownStream)));
}
