//! The feed over an in-memory table.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt as _;

use self::gathering::Members;
use super::subscriber::Chunk;
use super::*;

mod edges;
mod gathering;

const INCARNATION: Incarnation = Incarnation::from_bytes([0xab; 16]);
const OTHER_INCARNATION: Incarnation = Incarnation::from_bytes([0xac; 16]);

/// In-memory table.
struct Rows {
    events: Mutex<BTreeMap<EventId, FeedEvent>>,
    begin: Mutex<EventId>,
    end: watch::Sender<EventId>,
    reads: Mutex<usize>,
    is_corrupt: Mutex<bool>,
}

impl FeedTable for Rows {
    fn incarnation(&self) -> Option<Incarnation> {
        Some(INCARNATION)
    }

    fn read(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
        *self.reads.lock().expect("lock") += 1;
        if *self.is_corrupt.lock().expect("lock") {
            return Err(Corrupt::row("damaged"));
        }
        let rows: Vec<_> =
            self.events.lock().expect("lock").range(from..).map(|(_, row)| row.clone()).collect();
        rows.into_iter().all(visit);
        Ok(())
    }

    fn begin(&self) -> Result<EventId, Corrupt> {
        Ok(*self.begin.lock().expect("lock"))
    }

    fn end(&self) -> watch::Receiver<EventId> {
        self.end.subscribe()
    }
}

/// A feed with its table.
struct Harness {
    rows: Arc<Rows>,
    feed: Feed,
    metrics: Metrics,
    shutdown: CancellationToken,
    members: Arc<Members>,
}

impl Harness {
    fn new() -> (Self, Broadcaster) {
        let (harness, broadcaster, _) = Self::with_gatherer();
        (harness, broadcaster)
    }

    fn with_gatherer() -> (Self, Broadcaster, Gatherer) {
        let end = watch::Sender::new(EventId::default());
        let rows = Rows {
            events: Mutex::default(),
            begin: Mutex::default(),
            end,
            reads: Mutex::default(),
            is_corrupt: Mutex::default(),
        };
        let (rows, shutdown, members) = (Arc::new(rows), CancellationToken::new(), Arc::<Members>::default());
        let metrics = Metrics::new().expect("metrics");
        let (feed, broadcaster, gatherer) = Feed::new(Parts {
            peers: Arc::<Members>::clone(&members),
            table: Arc::<Rows>::clone(&rows),
            unit_id: "unit-1".to_owned(),
            clock: Clock::manual(Timestamp::from_secs(1_800_000_000)),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
        });
        (Self { rows, feed, metrics, shutdown, members }, broadcaster, gatherer)
    }

    /// Appends one event per type, each in its own log entry, in one change.
    fn append(&self, kinds: &[&str]) {
        let end = self.write(kinds);
        self.rows.end.send_replace(end);
    }

    /// Writes to the table only, without moving the end; returns the new end.
    fn write(&self, kinds: &[&str]) -> EventId {
        let mut rows = self.rows.events.lock().expect("lock");
        for kind in kinds {
            let index = rows.last_key_value().map_or(10, |(id, _)| id.index + 1);
            let id = EventId { index, number: 0 };
            let row = FeedEvent {
                id,
                kind: (*kind).to_owned(),
                at: Timestamp::from_secs(1_800_000_000),
                subject: "s".to_owned(),
                target: None,
                result: "ok".to_owned(),
                detail: None,
            };
            rows.insert(id, row);
        }
        rows.last_key_value().map(|(id, _)| id.next()).unwrap_or_default()
    }

    /// Drops all rows before a log index.
    fn drop_before(&self, index: u64) {
        let begin = EventId { index, number: 0 };
        let mut rows = self.rows.events.lock().expect("lock");
        *rows = rows.split_off(&begin);
        *self.rows.begin.lock().expect("lock") = begin;
    }

    fn subscribe(&self, after: Option<FeedId>) -> Subscriber {
        self.feed.subscribe(None, after, Kinds::default()).expect("a subscription")
    }

    fn dropped(&self, reason: &str) -> bool {
        let line = format!("svc_event_readers_dropped_total{{reason=\"{reason}\"}} 1");
        self.metrics.render().expect("page").lines().any(|metric| metric == line)
    }

    fn publish(&self, kind: ActivityKind) {
        self.feed.activity(|| Activity {
            kind,
            subject: "s".to_owned(),
            target: None,
            result: ActivityResult::Ok,
            detail: None,
            duration: Duration::ZERO,
        });
    }
}

fn id(index: u64) -> FeedId {
    FeedId { incarnation: INCARNATION, event: EventId { index, number: 0 } }
}

/// Runs the test while the broadcaster runs.
async fn with_broadcaster<T>(broadcaster: Broadcaster, test: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        () = broadcaster.run() => panic!("the broadcaster ended"),
        outcome = test => outcome,
    }
}

fn text(chunk: &Chunk) -> &str {
    std::str::from_utf8(&chunk.bytes).expect("text")
}

async fn next(subscriber: &mut Subscriber) -> String {
    text(&subscriber.next().await.expect("a chunk")).to_owned()
}

/// Log indexes of the events in a text, and types of those without an id.
fn events(text: &str) -> Vec<String> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data: "));
    let name = |block: &str| {
        let line = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let id = line("id: ").and_then(|id| id.split('-').nth(1).map(str::to_owned));
        id.or_else(|| line("event: ")).expect("an event")
    };
    blocks.map(name).collect()
}

/// Collects `count` events.
async fn receive(subscriber: &mut Subscriber, count: usize) -> Vec<String> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(events(&next(subscriber).await));
    }
    received
}

fn now() -> tokio::time::Instant {
    tokio::time::sleep(Duration::ZERO).deadline()
}

fn numbers(indexes: impl IntoIterator<Item = u64>) -> Vec<String> {
    indexes.into_iter().map(|index| index.to_string()).collect()
}

#[tokio::test]
async fn subscriber_gets_resume_position_then_new_events() {
    let (feed, broadcaster) = Harness::new();
    let mut first = feed.subscribe(None);
    assert_eq!(next(&mut first).await, "retry: 3000\n\n", "an empty feed");
    feed.append(&["cluster", "key"]);
    let mut subscriber = feed.subscribe(None);
    assert_eq!(next(&mut subscriber).await, format!("retry: 3000\nid: {}\n\n", id(11)));
    feed.append(&["tool"]);
    with_broadcaster(broadcaster, async {
        assert_eq!(receive(&mut first, 3).await, numbers(10..13));
        assert_eq!(receive(&mut subscriber, 1).await, numbers([12]));
        assert!(subscriber.next().now_or_never().is_none(), "no more");
    })
    .await;
}

#[tokio::test]
async fn lagging_subscriber_replays_in_pages_and_joins_without_gap() {
    let (feed, broadcaster) = Harness::new();
    let rows = 5 * limits::FEED_ROWS_PER_READ;
    feed.append(&vec!["tool"; rows]);
    let mut subscriber = feed.subscribe(Some(id(10)));
    let mut live = feed.subscribe(None);
    assert_eq!(next(&mut subscriber).await, format!("retry: 3000\nid: {}\n\n", id(10)));
    next(&mut live).await;
    with_broadcaster(broadcaster, async {
        let (mut seen, mut appended, mut pages) = (Vec::new(), rows, 0);
        // During the replay more is appended, and broadcast before the next page.
        while seen.len() < appended - 1 {
            let page = events(&next(&mut subscriber).await);
            assert!(page.len() <= limits::FEED_ROWS_PER_READ, "{}", page.len());
            seen.extend(page);
            pages += 1;
            if pages <= 20 {
                feed.append(&["key", "tool", "agent"]);
                appended += 3;
                receive(&mut live, 3).await;
            }
        }
        assert!(pages > 5);
        let expected = numbers((11..).take(appended - 1));
        assert_eq!(seen, expected);
        assert!(subscriber.next().now_or_never().is_none(), "no duplicate");
    })
    .await;
}

/// A subscriber whose broadcast overflowed during its replay continues in the table.
#[tokio::test(start_paused = true)]
async fn broadcast_faster_than_replay_is_not_missed() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&vec!["tool"; 2 * limits::FEED_ROWS_PER_READ]);
    let mut subscriber = feed.subscribe(Some(id(10)));
    let mut live = feed.subscribe(None);
    next(&mut live).await;
    with_broadcaster(broadcaster, async {
        let mut seen = events(&next(&mut subscriber).await);
        seen.extend(events(&next(&mut subscriber).await));
        let more = 3 * limits::FEED_QUEUED_EVENTS_MAX;
        feed.append(&vec!["key"; more]);
        receive(&mut live, more).await;
        let all = 2 * limits::FEED_ROWS_PER_READ + more - 1;
        seen.extend(receive(&mut subscriber, all - seen.len()).await);
        assert_eq!(seen, numbers((11..).take(all)));
        assert!(!feed.dropped("slow"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_subscriber_is_disconnected_and_others_get_everything() {
    for (events, is_cut) in
        [(limits::FEED_QUEUED_EVENTS_MAX, false), (limits::FEED_QUEUED_EVENTS_MAX + 1, true)]
    {
        let (feed, broadcaster) = Harness::new();
        let (mut slow, mut subscriber) = (feed.subscribe(None), feed.subscribe(None));
        next(&mut slow).await;
        next(&mut subscriber).await;
        feed.append(&vec!["tool"; events]);
        with_broadcaster(broadcaster, async {
            assert_eq!(receive(&mut subscriber, events).await, numbers((10..).take(events)));
            if is_cut {
                assert!(slow.next().await.is_none());
            } else {
                assert_eq!(receive(&mut slow, events).await, numbers((10..).take(events)));
            }
        })
        .await;
        assert_eq!(feed.dropped("slow"), is_cut);
        let after = slow.next().now_or_never();
        assert!(if is_cut { matches!(after, Some(None)) } else { after.is_none() }, "it stays disconnected");
    }
}

#[tokio::test(start_paused = true)]
async fn burst_disconnects_no_reading_subscriber() {
    let (feed, broadcaster) = Harness::new();
    let mut subscriber = feed.subscribe(None);
    next(&mut subscriber).await;
    let burst = 10 * limits::FEED_QUEUED_EVENTS_MAX;
    feed.append(&vec!["tool"; burst]);
    with_broadcaster(broadcaster, async {
        let mut seen = Vec::new();
        while seen.len() < burst {
            let chunk = next(&mut subscriber).await;
            let one = chunk.find("\n\n").expect("an event") + 2;
            assert!(chunk.len() < limits::FEED_CHUNK_BYTES_FULL + one, "{}", chunk.len());
            seen.extend(events(&chunk));
        }
        assert_eq!(seen, numbers((10..).take(burst)));
    })
    .await;
}

#[tokio::test]
async fn without_subscribers_the_table_is_not_read() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&["cluster"]);
    with_broadcaster(broadcaster, async {
        for _ in 0..5 {
            feed.append(&["tool"]);
            tokio::task::yield_now().await;
        }
        assert_eq!(*feed.rows.reads.lock().expect("lock"), 0);
        let mut subscriber = feed.subscribe(Some(id(12)));
        next(&mut subscriber).await;
        feed.append(&["key"]);
        assert_eq!(receive(&mut subscriber, 4).await, numbers(13..17));
        drop(subscriber);
        feed.append(&["key", "key"]);
        tokio::task::yield_now().await;
        let mut resumed = feed.subscribe(Some(id(16)));
        next(&mut resumed).await;
        assert_eq!(receive(&mut resumed, 2).await, numbers(17..19));
    })
    .await;
}

#[tokio::test]
async fn unavailable_position_is_reset_and_continues_from_now() {
    let (feed, broadcaster) = Harness::new();
    let reset = |first: &str| format!("event: reset\ndata: {{\"first_available\":{first}}}\n\n");
    let quoted = |id: FeedId| format!("\"{id}\"");
    with_broadcaster(broadcaster, async {
        // The feed is empty.
        let mut subscriber = feed.subscribe(Some(id(3)));
        assert_eq!(next(&mut subscriber).await, format!("retry: 3000\n\n{}", reset("null")));
        feed.append(&["tool"; 10]);
        assert_eq!(receive(&mut subscriber, 10).await, numbers(10..20));
        feed.drop_before(13);
        let unknown = [
            id(12),
            id(20),
            FeedId { event: EventId { index: 19, number: 1 }, ..id(19) },
            FeedId { incarnation: OTHER_INCARNATION, ..id(15) },
        ];
        let mut subscribers = Vec::new();
        for after in unknown {
            let mut subscriber = feed.subscribe(Some(after));
            let greeting = format!("retry: 3000\nid: {}\n\n{}", id(19), reset(&quoted(id(13))));
            assert_eq!(next(&mut subscriber).await, greeting, "{after}");
            subscribers.push(subscriber);
        }
        let (mut oldest, mut newest) = (feed.subscribe(Some(id(13))), feed.subscribe(Some(id(19))));
        feed.append(&["key"]);
        for subscriber in &mut subscribers {
            assert_eq!(receive(subscriber, 1).await, numbers([20]));
        }
        assert_eq!(receive(&mut oldest, 7).await, numbers(14..21));
        assert_eq!(receive(&mut newest, 1).await, numbers([20]));
    })
    .await;
}

#[tokio::test]
async fn subscriber_overtaken_by_drops_is_disconnected() {
    let (feed, _broadcaster) = Harness::new();
    feed.append(&vec!["tool"; 3 * limits::FEED_ROWS_PER_READ]);
    let mut subscriber = feed.subscribe(Some(id(10)));
    next(&mut subscriber).await;
    let read = events(&next(&mut subscriber).await).len() as u64;
    // While its last event is retained nothing is missing; after that an event may be.
    feed.drop_before(10 + read);
    let more = events(&next(&mut subscriber).await).len() as u64;
    assert!(more > 0);
    feed.drop_before(10 + read + more + 1);
    assert!(subscriber.next().await.is_none());
    assert!(feed.dropped("overtaken"));
}

#[tokio::test]
async fn only_requested_types_are_sent_but_revocations_noticed() {
    let (feed, broadcaster) = Harness::new();
    let kinds = ["tool", "key", "caep", "revocation", "tool", "agent", "stream"];
    feed.append(&kinds);
    let only = Kinds::parse(["tool", "denial"]).expect("types");
    let mut subscriber = feed.feed.subscribe(None, Some(id(10)), only.clone()).expect("a subscription");
    let mut live = feed.feed.subscribe(None, None, only).expect("a subscription");
    next(&mut subscriber).await;
    next(&mut live).await;
    let page = subscriber.next().await.expect("a page");
    assert_eq!((events(text(&page)), page.needs_recheck), (numbers([14]), true));
    with_broadcaster(broadcaster, async {
        for (kind, needs_recheck) in
            [("tool", false), ("revocation", true), ("agent", true), ("key", true), ("tool", false)]
        {
            feed.append(&[kind]);
            let chunk = live.next().await.expect("a chunk");
            assert_eq!(chunk.needs_recheck, needs_recheck, "{kind}");
            assert_eq!(events(text(&chunk)).len(), usize::from(kind == "tool"), "{kind}");
        }
        feed.append(&["caep"]);
        tokio::task::yield_now().await;
        feed.publish(ActivityKind::Exchange);
        feed.publish(ActivityKind::Denial);
        assert_eq!(receive(&mut live, 1).await, ["denial"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn heartbeat_is_periodic_and_has_the_resume_position() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&["tool"]);
    let only = Kinds::parse(["tool"]).expect("types");
    let mut subscriber = feed.feed.subscribe(None, None, only).expect("a subscription");
    next(&mut subscriber).await;
    let begun = now();
    with_broadcaster(broadcaster, async {
        assert_eq!(next(&mut subscriber).await, ": ping\n\n");
        assert_eq!(now() - begun, limits::FEED_HEARTBEAT_INTERVAL);
        // Only other types were processed.
        feed.append(&["caep", "caep"]);
        assert_eq!(next(&mut subscriber).await, format!(": ping\nid: {}\n\n", id(12)));
        assert_eq!(now() - begun, 2 * limits::FEED_HEARTBEAT_INTERVAL);
        // A sent event contains its position.
        tokio::time::sleep(limits::FEED_HEARTBEAT_INTERVAL / 2).await;
        feed.append(&["tool"]);
        assert_eq!(receive(&mut subscriber, 1).await, numbers([13]));
        let heartbeat = subscriber.next().await.expect("a heartbeat");
        assert_eq!(text(&heartbeat), ": ping\n\n");
        assert!(heartbeat.needs_recheck, "the permission is checked");
        assert_eq!(now() - begun, 3 * limits::FEED_HEARTBEAT_INTERVAL);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn replaying_subscriber_gets_heartbeats_too() {
    let (feed, _broadcaster) = Harness::new();
    feed.append(&vec!["tool"; 4 * limits::FEED_ROWS_PER_READ]);
    let mut subscriber = feed.subscribe(Some(id(10)));
    next(&mut subscriber).await;
    let first = events(&next(&mut subscriber).await);
    tokio::time::sleep(limits::FEED_HEARTBEAT_INTERVAL).await;
    assert_eq!(next(&mut subscriber).await, ": ping\n\n");
    let page = events(&next(&mut subscriber).await);
    assert_eq!(page.first(), numbers([11 + first.len() as u64]).first());
}

#[tokio::test(start_paused = true)]
async fn activity_beyond_the_queue_is_dropped_and_counted() {
    const BEYOND: usize = 7;
    let (feed, broadcaster) = Harness::new();
    feed.feed.activity(|| panic!("no subscriber"));
    let mut subscriber = feed.subscribe(None);
    next(&mut subscriber).await;
    for _ in 0..limits::FEED_ACTIVITIES_QUEUED_MAX + BEYOND {
        feed.publish(ActivityKind::Exchange);
    }
    let page = feed.metrics.render().expect("page");
    assert!(page.contains(&format!("svc_event_activities_dropped_total {BEYOND}")), "{page}");
    let begun = now();
    with_broadcaster(broadcaster, async {
        let all = receive(&mut subscriber, limits::FEED_ACTIVITIES_QUEUED_MAX).await;
        assert_eq!(all, vec!["exchange"; limits::FEED_ACTIVITIES_QUEUED_MAX]);
        assert_eq!(now() - begun, Duration::ZERO, "the first at once");
        feed.publish(ActivityKind::Denial);
        assert_eq!(receive(&mut subscriber, 1).await, ["denial"]);
        assert_eq!(now() - begun, limits::FEED_ACTIVITY_INTERVAL, "the next after a pause");
    })
    .await;
}

#[tokio::test]
async fn shutdown_ends_subscriptions_and_refuses_new_ones() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&vec!["tool"; 3 * limits::FEED_ROWS_PER_READ]);
    let (mut live, mut replaying) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
    for subscriber in [&mut live, &mut replaying] {
        next(subscriber).await;
    }
    next(&mut replaying).await;
    with_broadcaster(broadcaster, async {
        feed.shutdown.cancel();
        assert!(live.next().await.is_none());
        assert!(replaying.next().await.is_none());
    })
    .await;
    let refused = feed.feed.subscribe(None, None, Kinds::default());
    assert!(matches!(refused, Err(Error::Unavailable)));
    assert!(!feed.dropped("slow"));
    drop((live, replaying));
    assert!(feed.metrics.render().expect("page").contains("svc_event_readers 0"));
}
