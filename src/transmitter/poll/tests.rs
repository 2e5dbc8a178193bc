//! Polls over a real core: what is given, what is written down, and how much of it at once.

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
use crate::state::{CallerFacts, DeadLetter, STREAM_UPDATED, SecurityEvent, Signal, StreamConfig};

const WANTED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const OTHER: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";
const NOBODY: Asking<'_> = Asking { id: None, is_operator: true, facts: &CallerFacts::ANONYMOUS };

/// A core with one stream that is for one type of events, and a poller over it.
struct Bench {
    core: TestNode,
    poller: Poller,
    metrics: Metrics,
    stream_id: String,
    signals: AtomicUsize,
}

async fn start() -> Bench {
    let core = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
    let metrics = Metrics::new().expect("metrics");
    let (state, clock) = (core.state.clone(), core.clock.clone());
    let sets = SetMaker::new("https://fabric.example".to_owned(), core.keyring().await, state.clone());
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
    state.as_node().create_stream(config, None).await.expect("created");
    Bench { core, poller, metrics, stream_id, signals: AtomicUsize::new(0) }
}

fn event(event_type: &str, claims: Map<String, Value>) -> SecurityEvent {
    let sub_id = json!({"format": "email", "email": "a@b.example"});
    SecurityEvent { event_type: event_type.to_owned(), sub_id, claims, txn: None, via: Vec::new() }
}

fn at_once(more: &Value) -> Value {
    let mut value = json!({"returnImmediately": true});
    for (name, member) in more.as_object().expect("object") {
        value[name] = member.clone();
    }
    value
}

impl Bench {
    async fn end(self) {
        drop(self.poller);
        self.core.end().await;
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
        assert!(self.core.state.as_node().accept_signal(signal).await.expect("accepted"));
    }

    /// So many in one entry.
    async fn append_many(&self, event_type: &str, count: usize) {
        self.append(vec![event(event_type, Map::new()); count]).await;
    }

    async fn polled(&self, request: &Value) -> Result<Polled, Error> {
        self.poller.poll(&self.stream_id, NOBODY, Request::read(request).expect("a request")).await
    }

    async fn poll(&self, more: &Value) -> Polled {
        self.polled(&at_once(more)).await.expect("polled")
    }

    fn cursor(&self) -> StreamCursor {
        StreamCursor::clone(&self.core.state.stream_cursor(&self.stream_id).expect("a cursor"))
    }

    fn stream(&self) -> Arc<Stream> {
        self.core.state.stream(&self.stream_id).expect("a stream")
    }

    /// As its transmitter.
    async fn pause(&self, reason: &str) {
        self.core.state.pause_stream(&self.stream(), reason).await.expect("paused");
    }

    async fn enable(&self) {
        let status = StreamStatus::Enabled;
        self.core
            .state
            .as_node()
            .set_stream_status(&self.stream_id, status, String::new())
            .await
            .expect("enabled");
    }

    fn dead_letters(&self) -> Vec<DeadLetter> {
        self.core.state.dead_letters(&self.stream_id, None, 100).expect("rows").0
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.render().expect("page").lines().any(|shown| shown == line)
    }
}

fn jtis(polled: &Polled) -> Vec<&str> {
    polled.sets.iter().map(|(jti, _)| jti.as_str()).collect()
}

/// What a token says happened.
fn events(set: &str) -> Value {
    let payload = set.split('.').nth(1).expect("three parts");
    let payload = URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    crate::json::parse(&payload).expect("JSON")["events"].clone()
}

#[tokio::test]
async fn what_is_acknowledged_is_not_given_again_and_the_rest_is_the_same() {
    let bench = start().await;
    bench.append_many(WANTED, 5).await;
    bench.append_many(OTHER, 2).await;
    let first = bench.poll(&json!({"maxEvents": 3})).await;
    assert_eq!((first.sets.len(), first.more_available), (3, Some(true)));
    let again = bench.poll(&json!({"maxEvents": 3})).await;
    assert_eq!(again.sets, first.sets, "text by text");
    let all = bench.poll(&json!({})).await;
    assert_eq!((&all.sets[..3], all.sets.len(), all.more_available), (&first.sets[..], 5, Some(false)));
    // The second and the fourth, and what is nothing of this stream.
    let others = bench.stream_id.replace('5', "6");
    let strange = jtis(&all)[0].replace(&bench.stream_id, &others);
    let ack = [jtis(&all)[1], jtis(&all)[3], &strange, "", "x", &format!(" {}", jtis(&all)[0])];
    let left = bench.poll(&json!({"ack": ack})).await;
    assert_eq!(jtis(&left), [jtis(&all)[0], jtis(&all)[2], jtis(&all)[4]]);
    assert_eq!((bench.cursor().delivered, bench.cursor().done.len()), (2, 2));
    let version = bench.cursor().version;
    bench.poll(&json!({"ack": ack})).await;
    assert_eq!(bench.cursor().version, version, "what is known already is not written");
    let none = bench.poll(&json!({"ack": jtis(&all), "maxEvents": 0})).await;
    assert_eq!((none.sets.len(), none.more_available), (0, None));
    assert!(bench.poll(&json!({})).await.sets.is_empty());
    assert_eq!((bench.cursor().delivered, bench.cursor().done.len()), (5, 0));
    assert!(bench.shows(r#"svc_polled_sets_total{result="acknowledged"} 5"#));
    bench.end().await;
}

#[tokio::test]
async fn what_is_refused_is_a_dead_letter_once_and_not_given_again() {
    let bench = start().await;
    bench.append_many(WANTED, 3).await;
    let all = bench.poll(&json!({})).await;
    let said = json!({"err": "invalid_key", "description": "who\u{7}?"});
    let errors = json!({jtis(&all)[1]: said, "x": said});
    let left = bench.poll(&json!({"setErrs": errors, "ack": [jtis(&all)[0]]})).await;
    assert_eq!(jtis(&left), [jtis(&all)[2]]);
    bench.poll(&json!({"setErrs": errors})).await;
    let letters = bench.dead_letters();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!((letter.err.as_str(), letter.description.as_str()), ("invalid_key", "who??"));
    assert_eq!((letter.event_type.as_str(), letter.sub_id.contains("a@b.example")), (WANTED, true));
    let cursor = bench.cursor();
    assert_eq!((cursor.delivered, cursor.dead_letters, cursor.done.len()), (1, 1, 0));
    // What was acknowledged is not refused any more.
    bench.poll(&json!({"setErrs": {jtis(&all)[0]: said}})).await;
    assert_eq!(bench.dead_letters().len(), 1);
    assert!(bench.shows(r#"svc_polled_sets_total{result="refused"} 1"#));
    bench.end().await;
}

#[tokio::test]
async fn several_that_acknowledge_at_once_are_all_heard() {
    let bench = start().await;
    bench.append_many(WANTED, 60).await;
    let all = bench.poll(&json!({})).await;
    let polls = jtis(&all).into_iter().map(|jti| {
        let request = at_once(&json!({"ack": [jti], "maxEvents": 0}));
        let bench = &bench;
        // Who was overtaken too often says it again.
        async move { while matches!(bench.polled(&request).await, Err(Error::Busy)) {} }
    });
    join_all(polls).await;
    let cursor = bench.cursor();
    assert_eq!((cursor.delivered, cursor.done.len()), (60, 0));
    assert!(bench.poll(&json!({})).await.sets.is_empty());
    bench.end().await;
}

#[tokio::test]
async fn whoever_never_acknowledges_is_given_the_same_window_and_nothing_beyond() {
    let bench = start().await;
    let window = limits::STREAM_WINDOW;
    bench.append_many(WANTED, window + 50).await;
    let first = bench.poll(&json!({})).await;
    assert_eq!((first.sets.len(), first.more_available), (limits::POLL_EVENTS_MAX, Some(true)));
    for _ in 0..5 {
        assert_eq!(bench.poll(&json!({})).await.sets, first.sets);
    }
    // All but the first are acknowledged, page by page.
    let oldest = jtis(&first)[0].to_owned();
    let mut given = first;
    while given.sets.len() > 1 {
        given = bench.poll(&json!({"ack": &jtis(&given)[1..]})).await;
        assert_eq!(jtis(&given)[0], oldest);
    }
    let cursor = bench.cursor();
    assert_eq!((cursor.done.len(), given.more_available), (window - 1, Some(true)));
    let rest = bench.poll(&json!({"ack": [oldest]})).await;
    assert_eq!((rest.sets.len(), rest.more_available), (50, Some(false)));
    assert_eq!((bench.cursor().delivered, bench.cursor().done.len()), (window as u64, 0));
    bench.end().await;
}

#[tokio::test]
async fn large_events_come_in_several_answers() {
    let bench = start().await;
    let large = || {
        let text = "a".repeat(limits::EVENT_SAID_BYTES_MAX - 100);
        event(WANTED, json!({ "reason": text }).as_object().cloned().expect("object"))
    };
    let most = limits::POLL_EVENTS_MAX;
    bench.append((0..most).map(|_| large()).collect()).await;
    let first = bench.poll(&json!({})).await;
    let said = limits::POLL_ANSWER_BYTES_FULL.div_ceil(limits::EVENT_SAID_BYTES_MAX);
    assert!((said..said + 5).contains(&first.sets.len()), "{}", first.sets.len());
    assert_eq!(first.more_available, Some(true));
    let second = bench.poll(&json!({"ack": jtis(&first)})).await;
    assert_eq!((first.sets.len() + second.sets.len(), second.more_available), (most, Some(false)));
    bench.end().await;
}

#[tokio::test]
async fn a_stream_that_is_for_little_passes_the_rest_once() {
    let bench = start().await;
    let few = limits::POLL_ROWS_PASSED_MIN - 1;
    let start = bench.cursor();
    bench.append_many(OTHER, few).await;
    assert!(bench.poll(&json!({})).await.sets.is_empty());
    assert_eq!(bench.cursor(), start, "no write for a few rows");
    bench.append_many(OTHER, 1).await;
    assert_eq!(bench.poll(&json!({})).await.more_available, Some(false));
    let passed = bench.cursor();
    assert!(passed.next > start.next, "{passed:?}");
    assert_eq!((passed.version, passed.delivered), (start.version + 1, 0));
    bench.poll(&json!({})).await;
    assert_eq!(bench.cursor(), passed, "once");
    // Nothing is passed behind what is open.
    bench.append_many(WANTED, 1).await;
    bench.append_many(OTHER, 2 * few).await;
    let open = bench.poll(&json!({})).await;
    assert_eq!((open.sets.len(), &bench.cursor()), (1, &passed));
    bench.poll(&json!({"ack": jtis(&open)})).await;
    assert_eq!(bench.cursor().delivered, 1);
    bench.end().await;
}

#[tokio::test]
async fn a_poll_that_waits_looks_only_at_what_is_new_and_goes_by_the_stream_as_it_is_then() {
    let bench = start().await;
    bench.append_many(OTHER, 3).await;
    let asked = json!({});
    let mut waiting = Box::pin(bench.polled(&asked));
    let until_it_waits = async |waiting: &mut std::pin::Pin<Box<_>>| {
        while !bench.shows("svc_polls_waiting 1") {
            assert!(futures::poll!(&mut *waiting).is_pending());
            tokio::task::yield_now().await;
        }
    };
    until_it_waits(&mut waiting).await;
    bench.append_many(OTHER, 1).await;
    assert!(futures::poll!(&mut waiting).is_pending(), "not for what it is not for");
    bench.append_many(WANTED, 1).await;
    let woken = waiting.await.expect("polled");
    assert_eq!((woken.sets.len(), woken.more_available), (1, Some(false)));
    bench.poll(&json!({"ack": jtis(&woken)})).await;

    let mut waiting = Box::pin(bench.polled(&asked));
    until_it_waits(&mut waiting).await;
    bench.pause("for a test").await;
    bench.append_many(WANTED, 1).await;
    for _ in 0..100 {
        assert!(futures::poll!(&mut waiting).is_pending(), "paused meanwhile");
        tokio::task::yield_now().await;
    }
    bench.enable().await;
    assert_eq!(waiting.await.expect("polled").sets.len(), 2, "what was held, and what became of it");
    bench.end().await;
}

/// Its client would ask again at once, for as long as it is paused.
#[tokio::test]
async fn a_poll_of_a_stream_that_is_not_enabled_waits_until_it_is() {
    let bench = start().await;
    let asked = json!({});
    for status in [StreamStatus::Paused, StreamStatus::Disabled] {
        bench
            .core
            .state
            .as_node()
            .set_stream_status(&bench.stream_id, status, String::new())
            .await
            .expect("set");
        let mut waiting = Box::pin(bench.polled(&asked));
        while !bench.shows("svc_polls_waiting 1") {
            assert!(futures::poll!(&mut waiting).is_pending());
            tokio::task::yield_now().await;
        }
        let at_once = bench.poll(&json!({})).await;
        assert_eq!((at_once.sets.len(), at_once.more_available), (0, None), "who does not wait is told");
        bench.enable().await;
        bench.append_many(WANTED, 1).await;
        let given = waiting.await.expect("polled");
        assert_eq!(given.sets.len(), 1);
        bench.poll(&json!({"ack": jtis(&given)})).await;
    }
    bench.end().await;
}

/// It had looked for one type when the receiver asked for another one too, and an event of that came.
#[tokio::test]
async fn a_poll_that_looked_for_other_events_passes_nothing_of_what_was_added() {
    let bench = start().await;
    let many = limits::POLL_ROWS_PASSED_MIN;
    bench.append_many(OTHER, many).await;
    let (stream, cursor) = (bench.stream(), bench.cursor());
    let mut config = stream.config.clone();
    config.events_delivered.push(OTHER.to_owned());
    bench.core.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    bench.append_many(OTHER, 1).await;
    let mut found = Found::from(&cursor);
    let mut take = |_, _| ControlFlow::Continue(());
    scan::look(&bench.core.state, &stream, &mut found, &mut take).await.expect("rows");
    bench.poller.pass(&stream, &cursor, &found, found.rows).await;
    assert_eq!(bench.cursor(), cursor);
    // And nothing of what was before it was asked for.
    assert_eq!(bench.poll(&json!({})).await.sets.len(), 1);
    bench.end().await;
}

/// Each would have been looked for through the whole outbox, and nothing of it been written down.
#[tokio::test]
async fn an_attack_with_names_of_events_that_have_not_happened_has_nothing_looked_for() {
    let bench = start().await;
    bench.append_many(WANTED, 1).await;
    let end = *bench.core.state.outbox_end().borrow();
    let forged = SetMaker::jti(bench.poller.sets.incarnation().expect("bootstrapped"), &bench.stream_id, end);
    let mut permits = Vec::new();
    for _ in 0..limits::POLL_LOOKS_MAX {
        permits.push(bench.poller.limiter.scan(None).await.expect("a permit"));
    }
    let only = |members: &Value| {
        let mut members = at_once(members);
        members["maxEvents"] = 0.into();
        members
    };
    for members in [json!({"ack": [forged]}), json!({"setErrs": {forged.as_str(): {"err": "x"}}})] {
        assert!(bench.polled(&only(&members)).await.is_ok(), "nobody looks for {members}");
    }
    drop(permits);
    let given = bench.poll(&json!({})).await;
    bench.poll(&json!({"ack": [jtis(&given)[0], forged.as_str()]})).await;
    assert_eq!(bench.cursor().delivered, 1, "what is named beside it counts");
    bench.end().await;
}

#[tokio::test]
async fn a_receiver_that_refuses_more_than_one_command_takes_is_heard_to_the_end() {
    let bench = start().await;
    let most = limits::DEAD_LETTERS_AT_ONCE_MAX;
    bench.append_many(WANTED, most + 5).await;
    let given = bench.poll(&json!({})).await;
    let names = jtis(&given);
    let (ack, refused) = names.split_at(2);
    let errors: Map<_, _> = refused.iter().map(|jti| ((*jti).to_owned(), json!({"err": "x"}))).collect();
    let version = bench.cursor().version;
    assert!(bench.poll(&json!({"ack": ack, "setErrs": errors})).await.sets.is_empty());
    let cursor = bench.cursor();
    assert_eq!((cursor.delivered, cursor.dead_letters, cursor.done.len()), (2, most as u64 + 3, 0));
    assert_eq!(cursor.version, version + 2, "in two commands");
    assert_eq!(bench.dead_letters().len(), most + 3);
    for line in [
        r#"svc_stream_events_total{result="delivered"} 2"#,
        r#"svc_stream_events_total{result="dead_letter"} 67"#,
    ] {
        assert!(bench.shows(line), "{line}");
    }
    bench.end().await;
}

#[tokio::test]
async fn a_stream_that_we_paused_is_told_so_when_it_is_enabled_again() {
    let bench = start().await;
    bench.append_many(WANTED, 1).await;
    bench.pause("it is behind").await;
    bench.append_many(WANTED, 1).await;
    let paused = bench.poll(&json!({})).await;
    assert_eq!((paused.sets.len(), paused.more_available), (0, None));
    bench.enable().await;
    // What was held, and then what became of the stream, which is not among what it delivers.
    let given = bench.poll(&json!({})).await;
    let events = given.sets.iter().map(|(_, set)| events(set)).collect::<Vec<_>>();
    let [_, _, told] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(told[STREAM_UPDATED]["status"], "enabled", "{told}");
    assert!(events[..2].iter().all(|event| event.get(WANTED).is_some()), "{events:?}");
    bench.end().await;
}

#[tokio::test]
async fn a_node_that_stops_answers_polls_that_wait() {
    let bench = start().await;
    let asked = json!({});
    let mut waiting = Box::pin(bench.polled(&asked));
    while !bench.shows("svc_polls_waiting 1") {
        assert!(futures::poll!(&mut waiting).is_pending());
        tokio::task::yield_now().await;
    }
    bench.poller.shutdown.cancel();
    let stopped = waiting.await.expect("polled");
    assert_eq!((stopped.sets.len(), stopped.more_available), (0, Some(false)));
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_poll_waits_until_something_happens_and_no_longer_than_it_may() {
    let (sender, mut end) = watch::channel(EventId::default());
    let (longest, almost) = (limits::POLL_WAIT_MAX, limits::POLL_WAIT_MAX.mul_f64(0.999));
    assert!(tokio::time::timeout(almost, happened(&mut end, longest)).await.is_err(), "it still waits");
    assert!(!happened(&mut end, longest).await, "no longer");
    let append = async {
        tokio::task::yield_now().await;
        sender.send_replace(EventId { index: 1, number: 0 });
    };
    let (woken, ()) = tokio::join!(happened(&mut end, longest), append);
    assert!(woken);
    // What came since it began to look.
    sender.send_replace(EventId { index: 2, number: 0 });
    assert!(happened(&mut end, Duration::ZERO).await);
    drop(sender);
    assert!(!happened(&mut end, longest).await, "the node is gone");
}

#[tokio::test]
async fn a_poll_that_others_overtake_tries_so_often_and_no_more() {
    let overtaken_until = async |last: usize| {
        let attempts = AtomicUsize::new(0);
        let outcome = unless_overtaken(async || {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            if attempt < last { Err(state::Error::StreamChanged.into()) } else { Ok(()) }
        });
        let outcome = outcome.await;
        (outcome, attempts.into_inner())
    };
    let most = limits::POLL_ADVANCES_MAX;
    assert!(matches!(overtaken_until(1).await, (Ok(()), 1)));
    let (outcome, attempts) = overtaken_until(most).await;
    assert_eq!((outcome.is_ok(), attempts), (true, most));
    let (outcome, attempts) = overtaken_until(most + 1).await;
    assert_eq!((matches!(outcome, Err(Error::Busy)), attempts), (true, most));
    let gone = unless_overtaken(async || Err(state::Error::UnknownStream.into())).await;
    assert!(matches!(gone, Err(Error::UnknownStream)));
}
