//! Pushes over a real core to receivers that the tests are: what comes when, and what becomes of it.

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

/// A core, and a transmitter that can be stopped and started.
pub(super) struct Bench {
    pub(super) core: TestNode,
    keyring: Keyring,
    metrics: Metrics,
    pub(super) limits: Limits,
    /// Whether owners may have streams.
    may_own: bool,
    client: Client,
    signals: u64,
    streams: u64,
    transmitter: JoinSet<()>,
}

/// Waits that a test can wait for.
fn limits() -> Limits {
    let waits = Waits { min: Duration::from_millis(5), max: Duration::from_millis(50) };
    Limits { waits, look_interval: Duration::from_millis(20), ..Limits::default() }
}

impl Bench {
    /// Without a transmitter.
    pub(super) async fn still() -> Self {
        let core = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let keyring = core.keyring().await;
        let metrics = Metrics::new().expect("metrics");
        let (signals, streams, limits) = (0, 0, limits());
        let client = client(client::CallLimits::default());
        let (may_own, transmitter) = (true, JoinSet::new());
        Self { core, keyring, metrics, limits, may_own, client, signals, streams, transmitter }
    }

    async fn start() -> Self {
        let mut bench = Self::still().await;
        bench.transmit();
        bench
    }

    /// Begins to push.
    fn transmit(&mut self) {
        let transmitter = self.transmitter(self.core.clock.clone());
        self.transmitter.spawn(transmitter.run());
    }

    fn transmitter(&self, clock: Clock) -> Transmitter {
        let (state, metrics, client) = (self.core.state.clone(), self.metrics.clone(), self.client.clone());
        let sets = SetMaker::new(ISSUER.to_owned(), self.keyring.clone(), state.clone());
        let may_own = self.may_own;
        let may_own = Arc::new(move |_: &str| may_own);
        let guard = client.guard().clone();
        let obstacles = Obstacles::new(ISSUER.to_owned(), may_own, guard, state.clone(), clock.clone());
        Transmitter { state, sets, obstacles, client, clock, metrics, seed: [3; 16], limits: self.limits }
    }

    /// What a transmitter's workers share, for a test that is one of them.
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.transmitter(self.core.clock.clone()).shared()
    }

    /// Every place that an owner has at one host.
    async fn all_places(&self, url: &str) -> Vec<PushPermit> {
        let mut places = Vec::new();
        for _ in 0..limits::PUSHES_PER_OWNER_AT_HOST_MAX {
            let url = self.client.guard().push_url(url).expect("url");
            places.push(self.client.push_permit(url, "").await.expect("place"));
        }
        places
    }

    /// The last event of the outbox.
    pub(super) fn last_event(&self) -> OutboxEvent {
        let mut last = None;
        let mut look = |event| {
            last = Some(event);
            true
        };
        self.core.state.outbox(EventId::default(), &mut look).expect("rows");
        last.expect("an event")
    }

    /// Until a page of metrics has this in it.
    async fn until_shown(&self, part: &str) {
        while !self.metrics.render().expect("page").contains(part) {
            tokio::task::yield_now().await;
        }
    }

    /// As if the node had ended without a word.
    async fn fall_silent(&mut self) {
        self.transmitter.shutdown().await;
    }

    /// It would wait for ever for a worker that outlives its transmitter.
    pub(super) async fn end(self) {
        let Self { core, keyring, mut transmitter, .. } = self;
        transmitter.shutdown().await;
        drop(keyring);
        core.end().await;
    }

    /// A stream that is pushed there, or polled.
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
        self.core.state.as_node().create_stream(config, None).await.expect("created");
        stream_id
    }

    /// Events about these subjects, in one entry.
    pub(super) async fn tell(&mut self, subjects: &[&str]) {
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
            subject: "somebody".to_owned(),
        };
        assert!(self.core.state.as_node().accept_signal(signal).await.expect("accepted"));
    }

    pub(super) fn cursor(&self, stream_id: &str) -> StreamCursor {
        StreamCursor::clone(&self.core.state.stream_cursor(stream_id).expect("a cursor"))
    }

    /// Waits until the log has a cursor that is so.
    async fn until_cursor(
        &self,
        stream_id: &str,
        mut is_so: impl FnMut(&StreamCursor) -> bool,
    ) -> StreamCursor {
        self.until(|| Some(self.cursor(stream_id)).filter(&mut is_so)).await
    }

    /// Waits until the stream has this status; why it has.
    async fn until_status(&self, stream_id: &str, status: StreamStatus) -> String {
        let stream =
            self.until(|| self.core.state.stream(stream_id).filter(|stream| stream.status == status)).await;
        stream.reason.clone().unwrap_or_default()
    }

    /// Looks again whenever something was applied.
    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut applied = self.core.state.cluster().applied();
        loop {
            if let Some(found) = look() {
                return found;
            }
            self.core.state.cluster().until_applied(applied + 1).await;
            applied = self.core.state.cluster().applied();
        }
    }

    pub(super) async fn set_status(&self, stream_id: &str, status: StreamStatus) {
        self.core.state.as_node().set_stream_status(stream_id, status, String::new()).await.expect("set");
    }

    fn dead_letters(&self, stream_id: &str) -> Vec<DeadLetter> {
        self.core.state.dead_letters(stream_id, None, 100).expect("rows").0
    }

    fn shows(&self, line: &str) {
        let page = self.metrics.render().expect("page");
        assert!(page.lines().any(|shown| shown == line), "{line} in {page}");
    }
}

fn client(limits: client::CallLimits) -> Client {
    Client::new(limits, Guard::new(Rules::default())).expect("client")
}

fn event(subject: &str) -> SecurityEvent {
    let sub_id = json!({"format": "email", "email": subject});
    SecurityEvent { event_type: EVENT.to_owned(), sub_id, claims: Map::new(), txn: None, via: Vec::new() }
}

/// Takes so many pushes, each with 202; whom they are about.
async fn take(receiver: &mut Receiver, count: usize) -> Vec<String> {
    let mut subjects = Vec::new();
    for _ in 0..count {
        let arrived = receiver.next().await;
        subjects.push(arrived.subject());
        arrived.answer(202, "");
    }
    subjects
}

#[tokio::test]
async fn what_happens_is_pushed_once_and_recorded() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    bench.tell(&["before"]).await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "b"]).await;
    bench.tell(&["a"]).await;
    let mut jtis = Vec::new();
    for _ in 0..3 {
        let arrived = receiver.next().await;
        assert_eq!(arrived.claims["events"], json!({EVENT: {}}));
        jtis.push(arrived.jti());
        arrived.answer(202, "");
    }
    let cursor = bench.until_cursor(&stream_id, |cursor| cursor.delivered == 3).await;
    assert_eq!((cursor.dropped, cursor.dead_letters, cursor.done.len()), (0, 0, 0));
    assert!(jtis.iter().all(|jti| jti.ends_with(&format!("-{stream_id}"))), "{jtis:?}");
    assert_eq!(jtis.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    bench.shows(r#"svc_push_total{result="delivered"} 3"#);
    bench
        .until(|| {
            let page = bench.metrics.render().expect("page");
            page.contains(r#"svc_stream_events_total{result="delivered"} 3"#).then_some(())
        })
        .await;
    bench.end().await;
}

#[tokio::test]
async fn so_many_subjects_at_once_and_never_two_of_one() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..12).map(|subject| format!("s{subject}")).collect();
    let subjects: Vec<&str> = (0..10).flat_map(|_| names.iter().map(String::as_str)).collect();
    bench.tell(&subjects).await;
    let mut open = VecDeque::<Arrived>::new();
    let mut taken = BTreeMap::<String, Vec<u64>>::new();
    for arrival in 1..=120 {
        let arrived = receiver.next().await;
        let subject = arrived.subject();
        assert!(open.iter().all(|open| open.subject() != subject), "two of one subject at once");
        taken.entry(subject).or_default().push(arrived.number());
        open.push_back(arrived);
        assert!(open.len() <= limits::PUSHES_PER_STREAM_MAX);
        // The ninth comes only when one of the eight is answered.
        if open.len() == limits::PUSHES_PER_STREAM_MAX || arrival > 112 {
            open.pop_front().expect("open").answer(202, "");
        }
    }
    for (subject, numbers) in taken {
        assert!(numbers.is_sorted() && numbers.len() == 10, "{subject}: {numbers:?}");
    }
    for arrived in open {
        arrived.answer(202, "");
    }
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 120).await;
    bench.end().await;
}

#[tokio::test]
async fn what_was_not_taken_is_pushed_again_and_holds_up_only_its_subject() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "a", "b"]).await;
    let (mut refused, mut taken) = (Vec::new(), Vec::new());
    while taken.len() < 3 {
        let arrived = receiver.next().await;
        if arrived.subject() == "a" && refused.len() < 4 {
            refused.push(arrived.jti());
            let status = [500, 429, 408, 404][refused.len() - 1];
            arrived.answer(status, r#"{"err": "invalid_key"}"#);
        } else {
            taken.push((arrived.subject(), arrived.jti()));
            arrived.answer(202, "");
        }
    }
    assert!(refused.iter().all(|jti| *jti == refused[0]), "{refused:?}");
    let of_a: Vec<_> = taken.iter().filter(|(subject, _)| subject == "a").map(|(_, jti)| jti).collect();
    assert_eq!(of_a[0], &refused[0], "first the one that was refused");
    assert_ne!(of_a[1], &refused[0]);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 3 && cursor.done.is_empty()).await;
    bench.end().await;
}

#[tokio::test]
async fn a_receiver_is_left_alone_for_as_long_as_it_asks() {
    let mut bench = Bench::still().await;
    bench.limits.waits = Waits { min: Duration::from_millis(1), max: Duration::from_secs(300) };
    bench.transmit();
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "b"]).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    let refused = first.subject();
    first.answer_with(503, "retry-after: 3600\r\n", "");
    second.answer(202, "");
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    // That one succeeded says nothing about what it asked for.
    bench.tell(&["c"]).await;
    let waited = tokio::time::timeout(Duration::from_millis(200), receiver.next()).await;
    assert!(waited.is_err(), "it was not left alone");
    // A receiver that resumes does not ask for it any more.
    bench.set_status(&stream_id, StreamStatus::Paused).await;
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut left = take(&mut receiver, 2).await;
    left.sort();
    assert_eq!(left, [refused.as_str(), "c"]);
    bench.end().await;
}

#[tokio::test]
async fn what_a_receiver_refuses_for_good_is_a_dead_letter_and_the_next_goes_on() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "a"]).await;
    let first = receiver.next().await;
    let number = first.number();
    first.answer(400, r#"{"err": "invalid_request", "description": "not mine\n"}"#);
    let second = receiver.next().await;
    assert!(second.number() > number);
    second.answer(202, "");
    let cursor =
        bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1 && cursor.dead_letters == 1).await;
    assert!(cursor.done.is_empty());
    let letters = bench.dead_letters(&stream_id);
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.err.as_str(), letter.description.as_str()), ("invalid_request", "not mine?"));
    assert_eq!(
        (letter.event_type.as_str(), letter.sub_id.as_str()),
        (EVENT, r#"{"email":"a","format":"email"}"#)
    );
    bench.shows(r#"svc_push_total{result="dead_letter"} 1"#);
    bench.end().await;
}

#[tokio::test]
async fn receiver_that_refuses_a_verification_too_pauses_its_stream() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    for _ in 0..limits::PUSH_REFUSALS_MAX {
        assert_eq!(
            bench.core.state.stream(&stream_id).map(|stream| stream.status),
            Some(StreamStatus::Enabled)
        );
        receiver.next().await.answer(401, "a secret of theirs");
    }
    receiver.next().await.answer(400, r#"{"err": "invalid_issuer"}"#);
    let reason = bench.until_status(&stream_id, StreamStatus::Paused).await;
    assert_eq!(reason, "the receiver refuses a verification event too: it answered invalid_issuer");
    bench.tell(&["d"]).await;
    assert!(receiver.is_idle(), "a paused stream is pushed");
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut arrived = Vec::new();
    for _ in 0..3 {
        let push = receiver.next().await;
        arrived.push((push.number(), push.claims["events"].clone(), push.subject()));
        push.answer(202, "");
    }
    arrived.sort_by_key(|(number, _, _)| *number);
    let (_, events, _) = arrived.pop().expect("three");
    assert_eq!(events[UPDATED]["status"], "enabled", "its place is behind what was held");
    assert_eq!(events[UPDATED]["reason"], reason.as_str());
    let held: Vec<_> = arrived.into_iter().map(|(_, _, subject)| subject).collect();
    assert_eq!(held, ["a", "d"]);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 3 && cursor.dead_letters == 0).await;
    bench.end().await;
}

#[tokio::test]
async fn a_receiver_that_fails_for_too_long_is_paused_and_begins_anew_when_resumed() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    let since = bench.core.clock.now().to_rfc3339();
    receiver.next().await.answer(500, "");
    let almost = limits::PUSH_FAILING_MAX.saturating_sub(Duration::from_millis(1));
    // The second answer is judged after the first, whose time counts.
    let second = receiver.next().await;
    bench.core.clock.advance(almost);
    second.answer(500, "");
    let third = receiver.next().await;
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    bench.core.clock.advance(Duration::from_millis(1));
    third.answer(502, "");
    let reason = bench.until_status(&stream_id, StreamStatus::Paused).await;
    assert_eq!(reason, format!("push has failed since {since}: the receiver answered 502"));
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    for _ in 0..3 {
        receiver.next().await.answer(500, "");
    }
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    let mut left = Vec::new();
    while left.len() < 2 {
        left.extend(take(&mut receiver, 1).await);
    }
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    bench.end().await;
}

#[tokio::test]
async fn a_success_ends_the_time_for_which_a_receiver_has_failed() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    receiver.next().await.answer(500, "");
    let again = receiver.next().await;
    bench.core.clock.advance(limits::PUSH_FAILING_MAX);
    again.answer(202, "");
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    bench.tell(&["b"]).await;
    receiver.next().await.answer(500, "");
    take(&mut receiver, 1).await;
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    bench.end().await;
}
