//! The feed over a table in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt as _;

use super::*;

mod edges;

const LIFE: Incarnation = Incarnation::from_bytes([0xab; 16]);
const OTHER_LIFE: Incarnation = Incarnation::from_bytes([0xac; 16]);

/// Rows as the state keeps them.
struct Rows {
    kept: Mutex<BTreeMap<EventId, FeedEvent>>,
    begin: Mutex<EventId>,
    end: watch::Sender<EventId>,
    reads: Mutex<usize>,
    is_damaged: Mutex<bool>,
}

impl Table for Rows {
    fn incarnation(&self) -> Option<Incarnation> {
        Some(LIFE)
    }

    fn read(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
        *self.reads.lock().expect("lock") += 1;
        if *self.is_damaged.lock().expect("lock") {
            return Err(Corrupt::row("damaged"));
        }
        let rows: Vec<_> =
            self.kept.lock().expect("lock").range(from..).map(|(_, row)| row.clone()).collect();
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

/// A feed, and what it tells of.
struct Told {
    rows: Arc<Rows>,
    feed: Feed,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl Told {
    fn new() -> (Self, Teller) {
        let end = watch::Sender::new(EventId::default());
        let rows = Rows {
            kept: Mutex::default(),
            begin: Mutex::default(),
            end,
            reads: Mutex::default(),
            is_damaged: Mutex::default(),
        };
        let (rows, shutdown) = (Arc::new(rows), CancellationToken::new());
        let metrics = Metrics::new().expect("metrics");
        let (feed, teller) = Feed::new(Parts {
            table: Arc::<Rows>::clone(&rows),
            unit_id: "unit-1".to_owned(),
            clock: Clock::manual(Timestamp::from_secs(1_800_000_000)),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
        });
        (Self { rows, feed, metrics, shutdown }, teller)
    }

    /// Appends an event of each of these types, each in an entry of its own, as one change.
    fn append(&self, kinds: &[&str]) {
        let end = self.write(kinds);
        self.rows.end.send_replace(end);
    }

    /// The same as far as the table goes, before anybody is told. Answers the end.
    fn write(&self, kinds: &[&str]) -> EventId {
        let mut rows = self.rows.kept.lock().expect("lock");
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

    /// The oldest rows are dropped, up to this entry.
    fn drop_before(&self, index: u64) {
        let begin = EventId { index, number: 0 };
        let mut rows = self.rows.kept.lock().expect("lock");
        *rows = rows.split_off(&begin);
        *self.rows.begin.lock().expect("lock") = begin;
    }

    fn subscribe(&self, after: Option<FeedId>) -> Reader {
        self.feed.subscribe(None, after, Kinds::default()).expect("a reader")
    }

    fn dropped(&self, reason: &str) -> bool {
        let line = format!("svc_event_readers_dropped_total{{reason=\"{reason}\"}} 1");
        self.metrics.render().expect("page").lines().any(|shown| shown == line)
    }

    fn says(&self, kind: ActivityKind) {
        self.feed.activity(|| Activity {
            kind,
            subject: "s".to_owned(),
            target: None,
            result: Outcome::Ok,
            detail: None,
            duration: Duration::ZERO,
        });
    }
}

fn id(index: u64) -> FeedId {
    FeedId { incarnation: LIFE, event: EventId { index, number: 0 } }
}

/// Runs the test while the teller tells.
async fn beside<T>(teller: Teller, test: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        () = teller.run() => panic!("the teller ended"),
        outcome = test => outcome,
    }
}

fn text(chunk: &Chunk) -> &str {
    std::str::from_utf8(&chunk.bytes).expect("text")
}

async fn next(reader: &mut Reader) -> String {
    text(&reader.next().await.expect("a chunk")).to_owned()
}

/// The entries of the events in a text, and the types of those without an id.
fn events(text: &str) -> Vec<String> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data: "));
    let name = |block: &str| {
        let line = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let id = line("id: ").and_then(|id| id.split('-').nth(1).map(str::to_owned));
        id.or_else(|| line("event: ")).expect("an event")
    };
    blocks.map(name).collect()
}

/// What is told until so many events were.
async fn told(reader: &mut Reader, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    while told.len() < count {
        told.extend(events(&next(reader).await));
    }
    told
}

fn now() -> tokio::time::Instant {
    tokio::time::sleep(Duration::ZERO).deadline()
}

fn numbers(indexes: impl IntoIterator<Item = u64>) -> Vec<String> {
    indexes.into_iter().map(|index| index.to_string()).collect()
}

#[tokio::test]
async fn a_reader_is_told_how_to_come_back_and_then_what_happens_from_then_on() {
    let (feed, teller) = Told::new();
    let mut first = feed.subscribe(None);
    assert_eq!(next(&mut first).await, "retry: 3000\n\n", "nothing has ever happened");
    feed.append(&["cluster", "key"]);
    let mut reader = feed.subscribe(None);
    assert_eq!(next(&mut reader).await, format!("retry: 3000\nid: {}\n\n", id(11)));
    feed.append(&["tool"]);
    beside(teller, async {
        assert_eq!(told(&mut first, 3).await, numbers(10..13));
        assert_eq!(told(&mut reader, 1).await, numbers([12]));
        assert!(reader.next().now_or_never().is_none(), "and nothing more");
    })
    .await;
}

#[tokio::test]
async fn a_reader_far_behind_reads_page_by_page_and_joins_without_a_gap() {
    let (feed, teller) = Told::new();
    let rows = 5 * limits::FEED_ROWS_AT_ONCE;
    feed.append(&vec!["tool"; rows]);
    let mut reader = feed.subscribe(Some(id(10)));
    let mut live = feed.subscribe(None);
    assert_eq!(next(&mut reader).await, format!("retry: 3000\nid: {}\n\n", id(10)));
    next(&mut live).await;
    beside(teller, async {
        let (mut seen, mut appended, mut pages) = (Vec::new(), rows, 0);
        // While it reads, more is appended, and told to others before it reads on.
        while seen.len() < appended - 1 {
            let page = events(&next(&mut reader).await);
            assert!(page.len() <= limits::FEED_ROWS_AT_ONCE, "{}", page.len());
            seen.extend(page);
            pages += 1;
            if pages <= 20 {
                feed.append(&["key", "tool", "agent"]);
                appended += 3;
                told(&mut live, 3).await;
            }
        }
        assert!(pages > 5);
        let expected = numbers((11..).take(appended - 1));
        assert_eq!(seen, expected);
        assert!(reader.next().now_or_never().is_none(), "and nothing twice");
    })
    .await;
}

/// A reader whose place in what is told was lost while it read the table goes on in the table.
#[tokio::test(start_paused = true)]
async fn what_is_told_faster_than_a_table_is_read_is_not_missed() {
    let (feed, teller) = Told::new();
    feed.append(&vec!["tool"; 2 * limits::FEED_ROWS_AT_ONCE]);
    let mut reader = feed.subscribe(Some(id(10)));
    let mut live = feed.subscribe(None);
    next(&mut live).await;
    beside(teller, async {
        let mut seen = events(&next(&mut reader).await);
        seen.extend(events(&next(&mut reader).await));
        let more = 3 * limits::FEED_READER_QUEUE;
        feed.append(&vec!["key"; more]);
        told(&mut live, more).await;
        let all = 2 * limits::FEED_ROWS_AT_ONCE + more - 1;
        seen.extend(told(&mut reader, all - seen.len()).await);
        assert_eq!(seen, numbers((11..).take(all)));
        assert!(!feed.dropped("slow"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_off_and_others_get_everything() {
    for (events, is_cut) in [(limits::FEED_READER_QUEUE, false), (limits::FEED_READER_QUEUE + 1, true)] {
        let (feed, teller) = Told::new();
        let (mut slow, mut reader) = (feed.subscribe(None), feed.subscribe(None));
        next(&mut slow).await;
        next(&mut reader).await;
        feed.append(&vec!["tool"; events]);
        beside(teller, async {
            assert_eq!(told(&mut reader, events).await, numbers((10..).take(events)));
            if is_cut {
                assert!(slow.next().await.is_none());
            } else {
                assert_eq!(told(&mut slow, events).await, numbers((10..).take(events)));
            }
        })
        .await;
        assert_eq!(feed.dropped("slow"), is_cut);
        let after = slow.next().now_or_never();
        assert!(if is_cut { matches!(after, Some(None)) } else { after.is_none() }, "it stays cut off");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_events_cuts_off_nobody_who_reads() {
    let (feed, teller) = Told::new();
    let mut reader = feed.subscribe(None);
    next(&mut reader).await;
    let burst = 10 * limits::FEED_READER_QUEUE;
    feed.append(&vec!["tool"; burst]);
    beside(teller, async {
        let mut seen = Vec::new();
        while seen.len() < burst {
            let chunk = next(&mut reader).await;
            let one = chunk.find("\n\n").expect("an event") + 2;
            assert!(chunk.len() < limits::FEED_CHUNK_BYTES_FULL + one, "{}", chunk.len());
            seen.extend(events(&chunk));
        }
        assert_eq!(seen, numbers((10..).take(burst)));
    })
    .await;
}

#[tokio::test]
async fn what_nobody_reads_is_not_read_from_the_table_and_who_comes_then_misses_nothing() {
    let (feed, teller) = Told::new();
    feed.append(&["cluster"]);
    beside(teller, async {
        for _ in 0..5 {
            feed.append(&["tool"]);
            tokio::task::yield_now().await;
        }
        assert_eq!(*feed.rows.reads.lock().expect("lock"), 0);
        let mut reader = feed.subscribe(Some(id(12)));
        next(&mut reader).await;
        feed.append(&["key"]);
        assert_eq!(told(&mut reader, 4).await, numbers(13..17));
        drop(reader);
        feed.append(&["key", "key"]);
        tokio::task::yield_now().await;
        let mut again = feed.subscribe(Some(id(16)));
        next(&mut again).await;
        assert_eq!(told(&mut again, 2).await, numbers(17..19));
    })
    .await;
}

#[tokio::test]
async fn who_asks_for_what_is_not_kept_is_reset_and_reads_from_now_on() {
    let (feed, teller) = Told::new();
    let reset = |first: &str| format!("event: reset\ndata: {{\"first_available\":{first}}}\n\n");
    let quoted = |id: FeedId| format!("\"{id}\"");
    beside(teller, async {
        // Nothing has ever happened.
        let mut reader = feed.subscribe(Some(id(3)));
        assert_eq!(next(&mut reader).await, format!("retry: 3000\n\n{}", reset("null")));
        feed.append(&["tool"; 10]);
        assert_eq!(told(&mut reader, 10).await, numbers(10..20));
        feed.drop_before(13);
        let unknown = [
            id(12),
            id(20),
            FeedId { event: EventId { index: 19, number: 1 }, ..id(19) },
            FeedId { incarnation: OTHER_LIFE, ..id(15) },
        ];
        let mut readers = Vec::new();
        for after in unknown {
            let mut reader = feed.subscribe(Some(after));
            let greeting = format!("retry: 3000\nid: {}\n\n{}", id(19), reset(&quoted(id(13))));
            assert_eq!(next(&mut reader).await, greeting, "{after}");
            readers.push(reader);
        }
        let (mut oldest, mut newest) = (feed.subscribe(Some(id(13))), feed.subscribe(Some(id(19))));
        feed.append(&["key"]);
        for reader in &mut readers {
            assert_eq!(told(reader, 1).await, numbers([20]));
        }
        assert_eq!(told(&mut oldest, 7).await, numbers(14..21));
        assert_eq!(told(&mut newest, 1).await, numbers([20]));
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_is_overtaken_by_what_is_dropped_is_cut_off() {
    let (feed, _teller) = Told::new();
    feed.append(&vec!["tool"; 3 * limits::FEED_ROWS_AT_ONCE]);
    let mut reader = feed.subscribe(Some(id(10)));
    next(&mut reader).await;
    let read = events(&next(&mut reader).await).len() as u64;
    // While the last that it has read is kept nothing is missing; once it is not, something may be.
    feed.drop_before(10 + read);
    let more = events(&next(&mut reader).await).len() as u64;
    assert!(more > 0);
    feed.drop_before(10 + read + more + 1);
    assert!(reader.next().await.is_none());
    assert!(feed.dropped("overtaken"));
}

#[tokio::test]
async fn only_the_types_that_are_asked_for_are_told_and_a_revocation_is_noticed_all_the_same() {
    let (feed, teller) = Told::new();
    let kinds = ["tool", "key", "caep", "revocation", "tool", "agent", "stream"];
    feed.append(&kinds);
    let only = Kinds::named(["tool", "denial"]).expect("types");
    let mut reader = feed.feed.subscribe(None, Some(id(10)), only.clone()).expect("a reader");
    let mut live = feed.feed.subscribe(None, None, only).expect("a reader");
    next(&mut reader).await;
    next(&mut live).await;
    let page = reader.next().await.expect("a page");
    assert_eq!((events(text(&page)), page.concerns_authority), (numbers([14]), true));
    beside(teller, async {
        for (kind, concerns_authority) in
            [("tool", false), ("revocation", true), ("agent", true), ("key", true), ("tool", false)]
        {
            feed.append(&[kind]);
            let chunk = live.next().await.expect("a chunk");
            assert_eq!(chunk.concerns_authority, concerns_authority, "{kind}");
            assert_eq!(events(text(&chunk)).len(), usize::from(kind == "tool"), "{kind}");
        }
        feed.append(&["caep"]);
        tokio::task::yield_now().await;
        feed.says(ActivityKind::Exchange);
        feed.says(ActivityKind::Denial);
        assert_eq!(told(&mut live, 1).await, ["denial"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_comes_every_fifteen_seconds_and_says_where_the_reader_is() {
    let (feed, teller) = Told::new();
    feed.append(&["tool"]);
    let only = Kinds::named(["tool"]).expect("types");
    let mut reader = feed.feed.subscribe(None, None, only).expect("a reader");
    next(&mut reader).await;
    let begun = now();
    beside(teller, async {
        assert_eq!(next(&mut reader).await, ": ping\n\n");
        assert_eq!(now() - begun, limits::FEED_HEARTBEAT);
        // It has passed by what it did not ask for.
        feed.append(&["caep", "caep"]);
        assert_eq!(next(&mut reader).await, format!(": ping\nid: {}\n\n", id(12)));
        assert_eq!(now() - begun, 2 * limits::FEED_HEARTBEAT);
        // What it was told has said so.
        tokio::time::sleep(limits::FEED_HEARTBEAT / 2).await;
        feed.append(&["tool"]);
        assert_eq!(told(&mut reader, 1).await, numbers([13]));
        let heartbeat = reader.next().await.expect("a heartbeat");
        assert_eq!(text(&heartbeat), ": ping\n\n");
        assert!(heartbeat.concerns_authority, "it is asked whether the reader may read");
        assert_eq!(now() - begun, 3 * limits::FEED_HEARTBEAT);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_reads_the_table_slowly_gets_heartbeats_too() {
    let (feed, _teller) = Told::new();
    feed.append(&vec!["tool"; 4 * limits::FEED_ROWS_AT_ONCE]);
    let mut reader = feed.subscribe(Some(id(10)));
    next(&mut reader).await;
    let first = events(&next(&mut reader).await);
    tokio::time::sleep(limits::FEED_HEARTBEAT).await;
    assert_eq!(next(&mut reader).await, ": ping\n\n");
    let page = events(&next(&mut reader).await);
    assert_eq!(page.first(), numbers([11 + first.len() as u64]).first());
}

#[tokio::test(start_paused = true)]
async fn activity_beyond_its_queue_is_not_told_and_counted() {
    const BEYOND: usize = 7;
    let (feed, teller) = Told::new();
    feed.feed.activity(|| panic!("nobody reads"));
    let mut reader = feed.subscribe(None);
    next(&mut reader).await;
    for _ in 0..limits::FEED_ACTIVITIES_AT_ONCE + BEYOND {
        feed.says(ActivityKind::Exchange);
    }
    let page = feed.metrics.render().expect("page");
    assert!(page.contains(&format!("svc_event_activities_dropped_total {BEYOND}")), "{page}");
    let begun = now();
    beside(teller, async {
        let all = told(&mut reader, limits::FEED_ACTIVITIES_AT_ONCE).await;
        assert_eq!(all, vec!["exchange"; limits::FEED_ACTIVITIES_AT_ONCE]);
        assert_eq!(now() - begun, Duration::ZERO, "the first at once");
        feed.says(ActivityKind::Denial);
        assert_eq!(told(&mut reader, 1).await, ["denial"]);
        assert_eq!(now() - begun, limits::FEED_ACTIVITY_PAUSE, "the next after a pause");
    })
    .await;
}

#[tokio::test]
async fn when_the_node_stops_every_reader_is_let_go_and_nobody_is_taken() {
    let (feed, teller) = Told::new();
    feed.append(&vec!["tool"; 3 * limits::FEED_ROWS_AT_ONCE]);
    let (mut live, mut behind) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
    for reader in [&mut live, &mut behind] {
        next(reader).await;
    }
    next(&mut behind).await;
    beside(teller, async {
        feed.shutdown.cancel();
        assert!(live.next().await.is_none());
        assert!(behind.next().await.is_none());
    })
    .await;
    let refused = feed.feed.subscribe(None, None, Kinds::default());
    assert!(matches!(refused, Err(Error::NotNow)));
    assert!(!feed.dropped("slow"));
    drop((live, behind));
    assert!(feed.metrics.render().expect("page").contains("svc_event_readers 0"));
}
