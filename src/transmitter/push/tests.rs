//! Pushes over a single-node cluster to receivers within the test.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Map, json};
use tokio::task::JoinSet;

use self::receiver::{Arrived, Receiver};
use super::*;
use crate::clock::Timestamp;
use crate::keyring::Keyring;
use crate::outbound::client;
use crate::outbound::guard::{Guard, Rules};
use crate::state::testing::TestNode;
use crate::state::{DeadLetter, SecurityEvent, Signal, StreamConfig, StreamCursor, StreamStatus};

mod fairness;
pub(super) mod receiver;
mod recovery;
mod refusals;
mod retention;

pub(super) const EVENT: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const ISSUER: &str = "https://fabric.example";
const UPDATED: &str = "https://schemas.openid.net/secevent/ssf/event-type/stream-updated";

/// A node, and a transmitter that can be stopped and started.
pub(super) struct Harness {
    pub(super) node: TestNode,
    keyring: Keyring,
    metrics: Metrics,
    pub(super) limits: PushLimits,
    /// Whether owners have `streams.manage`.
    may_own: bool,
    client: Client,
    signals: u64,
    streams: u64,
    transmitter: JoinSet<()>,
}

/// Backoffs short enough for tests.
fn limits() -> PushLimits {
    let backoff = Backoff { min: Duration::from_millis(5), max: Duration::from_millis(50) };
    PushLimits { backoff, sweep_interval: Duration::from_millis(20), ..PushLimits::default() }
}

impl Harness {
    /// Without a running transmitter.
    pub(super) async fn still() -> Self {
        let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let keyring = node.keyring().await;
        let metrics = Metrics::new().expect("metrics");
        let (signals, streams, limits) = (0, 0, limits());
        let client = client(client::CallLimits::default());
        let (may_own, transmitter) = (true, JoinSet::new());
        Self { node, keyring, metrics, limits, may_own, client, signals, streams, transmitter }
    }

    async fn start() -> Self {
        let mut harness = Self::still().await;
        harness.transmit();
        harness
    }

    /// Starts the transmitter.
    fn transmit(&mut self) {
        let transmitter = self.transmitter(self.node.clock.clone());
        self.transmitter.spawn(transmitter.run());
    }

    fn transmitter(&self, clock: Clock) -> PushWorkers {
        let (state, metrics, client) = (self.node.state.clone(), self.metrics.clone(), self.client.clone());
        let sets = SetBuilder::new(ISSUER.to_owned(), self.keyring.clone(), state.clone());
        let may_own = self.may_own;
        let may_own = Arc::new(move |_: &str| may_own);
        let guard = client.guard().clone();
        let obstacles = Obstacles::new(ISSUER.to_owned(), may_own, guard, state.clone(), clock.clone());
        PushWorkers { state, sets, obstacles, client, clock, metrics, seed: [3; 16], limits: self.limits }
    }

    /// For tests of single steps.
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.transmitter(self.node.clock.clone()).shared()
    }

    /// All permits of an owner at one host.
    async fn all_permits(&self, url: &str) -> Vec<PushPermit> {
        let mut permits = Vec::new();
        for _ in 0..limits::PUSHES_PER_CALLER_AND_HOST_MAX {
            let url = self.client.guard().push_url(url).expect("url");
            permits.push(self.client.push_permit(url, "").await.expect("permit"));
        }
        permits
    }

    pub(super) fn last_event(&self) -> OutboxEvent {
        let mut last = None;
        let mut visit = |event| {
            last = Some(event);
            true
        };
        self.node.state.outbox(EventId::default(), &mut visit).expect("rows");
        last.expect("an event")
    }

    /// Waits until the metrics contain `part`.
    async fn until_metric(&self, part: &str) {
        while !self.metrics.render().expect("page").contains(part) {
            tokio::task::yield_now().await;
        }
    }

    /// Stops the transmitter abruptly.
    async fn stop_abruptly(&mut self) {
        self.transmitter.shutdown().await;
    }

    /// Would wait for ever for a worker that outlives its transmitter.
    pub(super) async fn end(self) {
        let Self { node, keyring, mut transmitter, .. } = self;
        transmitter.shutdown().await;
        drop(keyring);
        node.end().await;
    }

    /// A pushed or polled stream.
    pub(super) async fn stream(&mut self, url: Option<&str>) -> String {
        self.streams += 1;
        let stream_id = format!("{:032x}", self.streams);
        let config = StreamConfig {
            stream_id: stream_id.clone(),
            owner: String::new(),
            aud: "https://receiver.example".to_owned(),
            events_requested: vec![EVENT.to_owned()],
            events_delivered: vec![EVENT.to_owned()],
            endpoint_url: url.map(str::to_owned),
            description: None,
        };
        self.node.state.as_node().create_stream(config).await.expect("created");
        stream_id
    }

    /// Appends events about these subjects in one log entry.
    pub(super) async fn append(&mut self, subjects: &[&str]) {
        let events = subjects.iter().map(|subject| event(subject)).collect();
        self.signals += 1;
        let signal = Signal {
            issuer: "https://idp.example".to_owned(),
            jti: self.signals.to_string(),
            issued_at: Timestamp::default(),
            quota: u32::MAX,
            effects: Vec::new(),
            reason: String::new(),
            content: Digest128::from_bytes([0; 16]),
            events,
            subject: "subject".to_owned(),
        };
        assert!(self.node.state.as_node().accept_signal(signal).await.expect("accepted").0);
    }

    pub(super) fn cursor(&self, stream_id: &str) -> StreamCursor {
        StreamCursor::clone(&self.node.state.stream_cursor(stream_id).expect("a cursor"))
    }

    /// Waits for such a cursor in the log.
    async fn until_cursor(
        &self,
        stream_id: &str,
        mut is_so: impl FnMut(&StreamCursor) -> bool,
    ) -> StreamCursor {
        self.until(|| Some(self.cursor(stream_id)).filter(&mut is_so)).await
    }

    /// Waits for a status; returns its reason.
    async fn until_status(&self, stream_id: &str, status: StreamStatus) -> String {
        let stream =
            self.until(|| self.node.state.stream(stream_id).filter(|stream| stream.status == status)).await;
        stream.reason.clone().unwrap_or_default()
    }

    /// Retries after each applied entry.
    async fn until<T>(&self, mut probe: impl FnMut() -> Option<T>) -> T {
        let mut applied = self.node.state.cluster().applied();
        loop {
            if let Some(result) = probe() {
                return result;
            }
            self.node.state.cluster().until_applied(applied + 1).await;
            applied = self.node.state.cluster().applied();
        }
    }

    pub(super) async fn set_status(&self, stream_id: &str, status: StreamStatus) {
        self.node.state.as_node().set_stream_status(stream_id, status, String::new()).await.expect("set");
    }

    fn dead_letters(&self, stream_id: &str) -> Vec<DeadLetter> {
        self.node.state.dead_letters(stream_id, None, 100).expect("rows").0
    }

    fn assert_metric(&self, line: &str) {
        let page = self.metrics.render().expect("page");
        assert!(page.lines().any(|metric| metric == line), "{line} in {page}");
    }
}

fn client(limits: client::CallLimits) -> Client {
    Client::new(limits, Guard::new(Rules::default())).expect("client")
}

fn event(subject: &str) -> SecurityEvent {
    let sub_id = json!({"format": "email", "email": subject});
    SecurityEvent { event_type: EVENT.to_owned(), sub_id, claims: Map::new(), txn: None, via: Vec::new() }
}

/// Accepts `count` pushes with 202; returns their subjects.
async fn accept(receiver: &mut Receiver, count: usize) -> Vec<String> {
    let mut subjects = Vec::new();
    for _ in 0..count {
        let arrived = receiver.next().await;
        subjects.push(arrived.subject());
        arrived.respond(202, "");
    }
    subjects
}

#[tokio::test]
async fn event_is_pushed_once_and_recorded() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    harness.append(&["before"]).await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "b"]).await;
    harness.append(&["a"]).await;
    let mut jtis = Vec::new();
    for _ in 0..3 {
        let arrived = receiver.next().await;
        assert_eq!(arrived.claims["events"], json!({EVENT: {}}));
        jtis.push(arrived.jti());
        arrived.respond(202, "");
    }
    let cursor = harness.until_cursor(&stream_id, |cursor| cursor.delivered == 3).await;
    assert_eq!((cursor.dropped, cursor.dead_letters, cursor.done.len()), (0, 0, 0));
    assert!(jtis.iter().all(|jti| jti.ends_with(&format!("-{stream_id}"))), "{jtis:?}");
    assert_eq!(jtis.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    harness.assert_metric(r#"svc_push_total{result="delivered"} 3"#);
    harness
        .until(|| {
            let page = harness.metrics.render().expect("page");
            page.contains(r#"svc_stream_events_total{result="delivered"} 3"#).then_some(())
        })
        .await;
    harness.end().await;
}

#[tokio::test]
async fn subjects_are_pushed_in_parallel_up_to_the_limit() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..12).map(|subject| format!("s{subject}")).collect();
    let subjects: Vec<&str> = (0..10).flat_map(|_| names.iter().map(String::as_str)).collect();
    harness.append(&subjects).await;
    let mut open = VecDeque::<Arrived>::new();
    let mut accepted = BTreeMap::<String, Vec<u64>>::new();
    for arrival in 1..=120 {
        let arrived = receiver.next().await;
        let subject = arrived.subject();
        assert!(open.iter().all(|open| open.subject() != subject), "two of one subject at once");
        accepted.entry(subject).or_default().push(arrived.number());
        open.push_back(arrived);
        assert!(open.len() <= limits::PUSHES_PER_STREAM_MAX);
        // The ninth arrives only after one of the eight was answered.
        if open.len() == limits::PUSHES_PER_STREAM_MAX || arrival > 112 {
            open.pop_front().expect("open").respond(202, "");
        }
    }
    for (subject, numbers) in accepted {
        assert!(numbers.is_sorted() && numbers.len() == 10, "{subject}: {numbers:?}");
    }
    for arrived in open {
        arrived.respond(202, "");
    }
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 120).await;
    harness.end().await;
}

#[tokio::test]
async fn failed_push_is_retried_and_blocks_only_its_subject() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "a", "b"]).await;
    let (mut refused, mut accepted) = (Vec::new(), Vec::new());
    while accepted.len() < 3 {
        let arrived = receiver.next().await;
        if arrived.subject() == "a" && refused.len() < 4 {
            refused.push(arrived.jti());
            let status = [500, 429, 408, 404][refused.len() - 1];
            arrived.respond(status, r#"{"err": "invalid_key"}"#);
        } else {
            accepted.push((arrived.subject(), arrived.jti()));
            arrived.respond(202, "");
        }
    }
    assert!(refused.iter().all(|jti| *jti == refused[0]), "{refused:?}");
    let of_a: Vec<_> = accepted.iter().filter(|(subject, _)| subject == "a").map(|(_, jti)| jti).collect();
    assert_eq!(of_a[0], &refused[0], "first the one that failed");
    assert_ne!(of_a[1], &refused[0]);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 3 && cursor.done.is_empty()).await;
    harness.end().await;
}

#[tokio::test]
async fn retry_after_is_honoured_until_the_stream_is_enabled() {
    let mut harness = Harness::still().await;
    harness.limits.backoff = Backoff { min: Duration::from_millis(1), max: Duration::from_secs(300) };
    harness.transmit();
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "b"]).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    let refused = first.subject();
    first.respond_with(503, "retry-after: 3600\r\n", "");
    second.respond(202, "");
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    // A success does not cancel the receiver's request.
    harness.append(&["c"]).await;
    let waited = tokio::time::timeout(Duration::from_millis(200), receiver.next()).await;
    assert!(waited.is_err(), "pushed during Retry-After");
    // Enabling the stream does.
    harness.set_status(&stream_id, StreamStatus::Paused).await;
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut left = accept(&mut receiver, 2).await;
    left.sort();
    assert_eq!(left, [refused.as_str(), "c"]);
    harness.end().await;
}

#[tokio::test]
async fn rejected_event_is_a_dead_letter_and_the_next_continues() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "a"]).await;
    let first = receiver.next().await;
    let number = first.number();
    first.respond(400, r#"{"err": "invalid_request", "description": "not mine\n"}"#);
    let second = receiver.next().await;
    assert!(second.number() > number);
    second.respond(202, "");
    let cursor =
        harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1 && cursor.dead_letters == 1).await;
    assert!(cursor.done.is_empty());
    let letters = harness.dead_letters(&stream_id);
    assert_eq!(letters.len(), 1);
    let (_, letter) = &letters[0];
    assert_eq!((letter.err.as_str(), letter.description.as_str()), ("invalid_request", "not mine?"));
    assert_eq!(
        (letter.event_type.as_str(), letter.sub_id.as_str()),
        (EVENT, r#"{"email":"a","format":"email"}"#)
    );
    harness.assert_metric(r#"svc_push_total{result="dead_letter"} 1"#);
    harness.end().await;
}

#[tokio::test]
async fn receiver_refusing_the_verification_pauses_its_stream() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    for _ in 0..limits::PUSH_REFUSALS_MAX {
        assert_eq!(
            harness.node.state.stream(&stream_id).map(|stream| stream.status),
            Some(StreamStatus::Enabled)
        );
        receiver.next().await.respond(401, "a secret of theirs");
    }
    receiver.next().await.respond(400, r#"{"err": "invalid_issuer"}"#);
    let reason = harness.until_status(&stream_id, StreamStatus::Paused).await;
    assert_eq!(reason, "the receiver refuses a verification event too: it answered invalid_issuer");
    harness.append(&["d"]).await;
    assert!(receiver.is_idle(), "a paused stream is pushed");
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut arrived = Vec::new();
    for _ in 0..3 {
        let push = receiver.next().await;
        arrived.push((push.number(), push.claims["events"].clone(), push.subject()));
        push.respond(202, "");
    }
    arrived.sort_by_key(|(number, _, _)| *number);
    let (_, events, _) = arrived.pop().expect("three");
    assert_eq!(events[UPDATED]["status"], "enabled", "after the backlog");
    assert_eq!(events[UPDATED]["reason"], reason.as_str());
    let held: Vec<_> = arrived.into_iter().map(|(_, _, subject)| subject).collect();
    assert_eq!(held, ["a", "d"]);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 3 && cursor.dead_letters == 0).await;
    harness.end().await;
}

#[tokio::test]
async fn long_failure_pauses_and_enabling_starts_anew() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    let since = harness.node.clock.now().to_rfc3339();
    receiver.next().await.respond(500, "");
    let almost = limits::PUSH_FAILING_MAX.saturating_sub(Duration::from_millis(1));
    // The second response is handled after the first, whose time counts.
    let second = receiver.next().await;
    harness.node.clock.advance(almost);
    second.respond(500, "");
    let third = receiver.next().await;
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    harness.node.clock.advance(Duration::from_millis(1));
    third.respond(502, "");
    let reason = harness.until_status(&stream_id, StreamStatus::Paused).await;
    assert_eq!(reason, format!("push has failed since {since}: the receiver answered 502"));
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    for _ in 0..3 {
        receiver.next().await.respond(500, "");
    }
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    let mut left = Vec::new();
    while left.len() < 2 {
        left.extend(accept(&mut receiver, 1).await);
    }
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    harness.end().await;
}

#[tokio::test]
async fn success_ends_the_failing_time() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    receiver.next().await.respond(500, "");
    let retry = receiver.next().await;
    harness.node.clock.advance(limits::PUSH_FAILING_MAX);
    retry.respond(202, "");
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    harness.append(&["b"]).await;
    receiver.next().await.respond(500, "");
    accept(&mut receiver, 1).await;
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    harness.end().await;
}
