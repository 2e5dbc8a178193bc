//! The audit on a real replica: from a record to a trail, across shipments, failures and restarts.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;

use super::chain::{ChainVerifier, Summary};
use super::entry::Entry;
use super::trail::{Page, Query, ReadError};
use super::*;
use crate::state::LinearizableRead;
use crate::state::testing::TestNode;

mod data_loss;
mod shares;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A replica and an audit on it that ships on demand.
struct Harness {
    node: TestNode,
    audit: Audit,
    metrics: Metrics,
    writer: tokio::task::JoinHandle<()>,
}

fn journal_of(directory: &TempDir) -> PathBuf {
    directory.path().join("audit")
}

async fn start() -> Harness {
    let node = TestNode::start(START).await;
    let metrics = Metrics::new().expect("metrics");
    let (audit, writer) = open(&node, &metrics);
    Harness { node, audit, metrics, writer }
}

#[expect(clippy::disallowed_methods, reason = "the writer is a task here as in the product")]
fn open(node: &TestNode, metrics: &Metrics) -> (Audit, tokio::task::JoinHandle<()>) {
    let (audit, writer) = Audit::open(Parts {
        directory: &journal_of(&node.directory),
        node: "unit".into(),
        seed: [3; 16],
        clock: node.clock.clone(),
        state: node.state.clone(),
        metrics: metrics.clone(),
    })
    .expect("opens");
    (audit, tokio::spawn(writer))
}

impl Harness {
    async fn end(self) {
        let Self { node, audit, writer, .. } = self;
        drop(audit);
        writer.await.expect("the writer ends");
        node.end().await;
    }

    /// Ends without shipping, as a killed process would, and opens the journal again.
    async fn kill(mut self) -> Self {
        drop(self.audit.queue.send(Job::End).await);
        self.writer.await.expect("writer");
        (self.audit, self.writer) = open(&self.node, &self.metrics);
        self
    }

    async fn record(&self, tool_id: &str, notes: &str) {
        self.audit.record(draft(tool_id, notes)).await.expect("recorded");
    }

    async fn current(&self) -> LinearizableRead {
        self.node.state.current().await.expect("it leads")
    }

    async fn trail(&self, tool_id: &str) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut query = Query { limit: 1000, ..Query::default() };
        loop {
            let page = self.audit.trail(&self.current().await, tool_id, &query).await.expect("trail");
            entries.extend(page.entries);
            query.before = page.next;
            if query.before.is_none() {
                return entries;
            }
        }
    }

    /// Verifies an export of all blocks.
    async fn verified(&self) -> Summary {
        let (mut verifier, mut after) = (ChainVerifier::default(), 0);
        loop {
            let (blocks, is_more) =
                self.audit.blocks(&self.current().await, after, 10).await.expect("blocks");
            for block in &blocks {
                assert_eq!(block.number, after + 1);
                after = block.number;
                verifier.line(&serde_json::to_vec(&block.block).expect("JSON")).expect("holds");
            }
            if !is_more {
                return verifier.finish();
            }
        }
    }
}

fn draft(tool_id: &str, notes: &str) -> Draft {
    Draft {
        timestamp: START,
        tool_id: tool_id.into(),
        action: Action::Verify,
        decision: if notes.starts_with("deny") { Decision::Deny } else { Decision::Allow },
        check: notes.starts_with("deny").then_some("audience"),
        count: None,
        notes: notes.into(),
        protocol: Some("mcp".into()),
        // Equal denials are joined.
        subject: format!("wimse://a.example/{}", if notes.starts_with("deny") { notes } else { "agent" }),
        actor: None,
        jti: Some("j".into()),
        txn: None,
        caller: None,
        caller_actor: None,
        request_id: "r".into(),
    }
}

fn notes(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.notes.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_read_newest_first_and_verify() {
    let harness = start().await;
    for at in 0..5 {
        harness.record("a", &at.to_string()).await;
        harness.record("b\"\\\u{1}", &at.to_string()).await;
        harness.audit.ship().await.expect("shipped");
    }
    assert_eq!(notes(&harness.trail("a").await), ["4", "3", "2", "1", "0"]);
    let mut verifier = ChainVerifier::default();
    for entry in harness.trail("b\"\\\u{1}").await {
        verifier.line(&serde_json::to_vec(&entry).expect("JSON")).expect("holds");
    }
    assert_eq!(verifier.finish().entries, 5);
    let summary = harness.verified().await;
    assert_eq!((summary.entries, summary.blocks, summary.chains_begun_before), (10, 5, 0));
    assert!(matches!(
        harness.audit.trail(&harness.current().await, "c", &Query { limit: 1, ..Query::default() }).await,
        Err(ReadError::UnknownTool)
    ));
    assert!(harness.audit.backlog.is_empty());
    let left = std::fs::read_dir(journal_of(&harness.node.directory)).expect("journal").count();
    assert_eq!(left, 0, "shipped segments leave the journal");
    harness.end().await;
}

/// Regression: the entries of a segment were sorted by their times, so that the trail of a tool did not verify.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trail_verifies_after_the_clock_was_set_back() {
    let harness = start().await;
    for (secs, notes) in [(60, "0"), (60, "1"), (0, "2"), (0, "3")] {
        let timestamp = START.plus(Duration::from_secs(secs));
        harness.audit.record(Draft { timestamp, ..draft("a", notes) }).await.expect("recorded");
    }
    harness.audit.ship().await.expect("shipped");
    let trail = harness.trail("a").await;
    assert_eq!(notes(&trail), ["3", "2", "1", "0"]);
    let mut verifier = ChainVerifier::default();
    for entry in trail {
        verifier.line(&serde_json::to_vec(&entry).expect("JSON")).expect("holds");
    }
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "the shipper needs its task here as in the product")]
async fn entries_are_shipped_without_a_read() {
    let harness = start().await;
    let following = tokio::spawn(harness.audit.clone().follow());
    harness.record("a", "x").await;
    let before = harness.node.state.cluster().applied();
    harness.node.state.cluster().until_applied(before + 1).await;
    assert_eq!(harness.node.state.last_audit_block().expect("row").sequence, 1);
    following.abort();
    drop(following.await);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_each_entry_exists_once_and_the_chain_continues() {
    let mut harness = start().await;
    for round in 0..4 {
        harness.record("a", &format!("{round} shipped")).await;
        if round % 2 == 0 {
            harness.audit.ship().await.expect("shipped");
        }
        harness.record("a", &format!("{round} kept")).await;
        harness = harness.kill().await;
    }
    let expected: Vec<_> =
        (0..4).rev().flat_map(|round| [format!("{round} kept"), format!("{round} shipped")]).collect();
    assert_eq!(notes(&harness.trail("a").await), expected);
    assert_eq!(harness.verified().await.chains_begun_before, 0);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segment_left_after_its_block_is_not_shipped_twice() {
    let mut harness = start().await;
    harness.record("a", "x").await;
    let segment = journal_of(&harness.node.directory).join("1");
    let copy = std::fs::read(&segment).expect("segment");
    harness.audit.ship().await.expect("shipped");
    harness = harness.kill().await;
    // The kill came before the segment was removed.
    drop(harness.audit.queue.send(Job::End).await);
    std::fs::write(&segment, copy).expect("segment");
    harness = harness.kill().await;
    harness.record("a", "y").await;
    assert_eq!(notes(&harness.trail("a").await), ["y", "x"]);
    assert_eq!(harness.verified().await.entries, 2);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_shipment_is_completed_once() {
    let harness = start().await;
    for at in 0..40_u64 {
        harness.record("a", &at.to_string()).await;
        // Cancelled at different points; the next shipment completes it.
        let given_up = tokio::time::timeout(Duration::from_micros(at * 50), harness.audit.ship());
        drop(given_up.await);
    }
    let expected: Vec<_> = (0..40).rev().map(|at: u64| at.to_string()).collect();
    assert_eq!(notes(&harness.trail("a").await), expected);
    assert_eq!(harness.verified().await.entries, 40);
    assert!(harness.audit.backlog.is_empty());
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beyond_the_limit_wait_and_then_fail() {
    let harness = start().await;
    harness.record("a", "x").await;
    let most = u32::try_from(limits::AUDIT_READS_MAX).expect("small");
    let permits = harness.audit.readers.acquire_many(most).await.expect("permits");
    let query = Query { limit: 1, ..Query::default() };
    assert!(matches!(harness.audit.trail(&harness.current().await, "a", &query).await, Err(ReadError::Busy)));
    assert!(matches!(harness.audit.blocks(&harness.current().await, 0, 1).await, Err(ReadError::Busy)));
    let current = harness.current().await;
    let (waited, ()) = futures::join!(harness.audit.trail(&current, "a", &query), async { drop(permits) });
    assert_eq!(waited.expect("a permit").entries.len(), 1);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_reads_share_one_shipment() {
    let harness = start().await;
    harness.record("a", "0").await;
    harness.trail("a").await;
    let applied = harness.node.state.cluster().applied();
    for _ in 0..10 {
        harness.trail("a").await;
    }
    assert_eq!(harness.node.state.cluster().applied(), applied, "nothing to ship");
    for at in 1..=3 {
        harness.record("a", &at.to_string()).await;
        let (audit, query) = (&harness.audit, Query { limit: 10, ..Query::default() });
        let current = harness.current().await;
        let pages = futures::future::join_all((0..10).map(|_| audit.trail(&current, "a", &query))).await;
        assert!(pages.iter().all(|page| page.as_ref().is_ok_and(|page| page.entries.len() == 1 + at)));
    }
    let shipped = harness.node.state.last_audit_block().expect("row").sequence;
    assert_eq!(shipped, 4);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_entries_fill_several_blocks_of_one_trail() {
    let harness = start().await;
    let long = "n".repeat(limits::AUDIT_NOTES_BYTES_MAX - 8);
    let entries = 2 * limits::AUDIT_BLOCK_BYTES_MAX / limits::AUDIT_NOTES_BYTES_MAX;
    let records = (0..entries).map(|at| {
        let notes = format!("{at:04}{long}");
        let audit = harness.audit.clone();
        async move { audit.record(draft("a", &notes)).await.expect("recorded") }
    });
    futures::future::join_all(records).await;
    let trail = harness.trail("a").await;
    let expected: Vec<_> = (0..entries).rev().map(|at| format!("{at:04}")).collect();
    let read: Vec<_> = trail.iter().map(|entry| entry.notes[..4].to_owned()).collect();
    assert_eq!(read, expected);
    let summary = harness.verified().await;
    assert!((3..=4).contains(&summary.blocks), "{} blocks", summary.blocks);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_filter_and_follow_each_other() {
    let harness = start().await;
    for at in 0..10 {
        let notes = if at % 3 == 0 { format!("deny {at}") } else { at.to_string() };
        // The clock of a node may be ahead of log time only by a bound.
        let timestamp = START.plus(Duration::from_millis(500 * at));
        harness.audit.record(Draft { timestamp, ..draft("a", &notes) }).await.expect("recorded");
        if at % 4 == 0 {
            harness.audit.ship().await.expect("shipped");
        }
    }
    let page =
        async |query: Query| harness.audit.trail(&harness.current().await, "a", &query).await.expect("trail");
    let mut query = Query { limit: 4, ..Query::default() };
    let mut sizes = Vec::new();
    let mut all = Vec::new();
    loop {
        let Page { entries, next } = page(query.clone()).await;
        sizes.push(entries.len());
        all.extend(entries);
        let Some(next) = next else { break };
        query.before = Some(next.to_string().parse().expect("cursor"));
    }
    assert_eq!((sizes, all.len()), (vec![4, 4, 2], 10));
    let denied = page(Query { limit: 10, decision: Some(Decision::Deny), ..Query::default() }).await;
    assert_eq!(notes(&denied.entries), ["deny 9", "deny 6", "deny 3", "deny 0"]);
    let whole = page(Query { limit: 10, ..Query::default() }).await;
    assert_eq!((whole.entries.len(), whole.next), (10, None), "a full last page has no cursor");
    let since = START.plus(Duration::from_secs(4));
    let since = page(Query { limit: 10, since: Some(since), ..Query::default() }).await;
    assert_eq!(notes(&since.entries), ["deny 9", "8"]);
    let never =
        page(Query { limit: 10, since: Some(START.plus(Duration::from_secs(9999))), ..Query::default() });
    assert_eq!(never.await, Page::default());
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_opens_blocks_of_bounded_size_and_returns_a_cursor() {
    let harness = start().await;
    harness.record("a", "deny the first").await;
    let long = "n".repeat(limits::AUDIT_NOTES_BYTES_MAX);
    let records = limits::AUDIT_PAGE_READ_BYTES_FULL / limits::AUDIT_NOTES_BYTES_MAX;
    for _ in 0..4 {
        futures::future::join_all((0..records / 4).map(|_| harness.audit.record(draft("a", &long)))).await;
    }
    let query = Query { limit: 10, decision: Some(Decision::Deny), ..Query::default() };
    let first = harness.audit.trail(&harness.current().await, "a", &query).await.expect("trail");
    assert!(first.entries.is_empty());
    let query = Query { before: Some(first.next.expect("goes on")), ..query };
    let second = harness.audit.trail(&harness.current().await, "a", &query).await.expect("trail");
    assert_eq!((notes(&second.entries), second.next), (vec!["deny the first"], None));
    harness.end().await;
}

/// Regression: a page ended after 64 blocks, whatever its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_many_small_blocks_is_full() {
    let harness = start().await;
    for at in 0..70 {
        harness.record("a", &at.to_string()).await;
        harness.audit.ship().await.expect("shipped");
    }
    let query = Query { limit: 1000, ..Query::default() };
    let page = harness.audit.trail(&harness.current().await, "a", &query).await.expect("trail");
    assert_eq!((page.entries.len(), page.next), (70, None));
    let (blocks, is_more) = harness.audit.blocks(&harness.current().await, 0, 1000).await.expect("blocks");
    assert_eq!((blocks.len(), is_more), (70, false));
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_bounded_in_bytes() {
    let harness = start().await;
    let entries = limits::AUDIT_PAGE_BYTES_FULL / limits::AUDIT_NOTES_BYTES_MAX + 2;
    let long = "n".repeat(limits::AUDIT_NOTES_BYTES_MAX);
    futures::future::join_all((0..entries).map(|_| harness.audit.record(draft("a", &long)))).await;
    let query = Query { limit: usize::MAX, ..Query::default() };
    let page = harness.audit.trail(&harness.current().await, "a", &query).await.expect("trail");
    let bytes: usize = page.entries.iter().map(|entry| serde_json::to_vec(entry).expect("JSON").len()).sum();
    let largest = limits::AUDIT_NOTES_BYTES_MAX + 1024;
    assert!(
        (limits::AUDIT_PAGE_BYTES_FULL..limits::AUDIT_PAGE_BYTES_FULL + largest).contains(&bytes),
        "{bytes}"
    );
    assert!(page.next.is_some() && page.entries.len() < entries);
    assert_eq!(harness.trail("a").await.len(), entries);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_backlog_refuses_entries() {
    let harness = start().await;
    harness.record("a", "x").await;
    let waits = harness.audit.backlog.bytes.load(Ordering::Acquire);
    harness.audit.backlog.add(u64::MAX, limits::AUDIT_BACKLOG_BYTES_MAX - waits - 1);
    harness.record("a", "the last").await;
    assert!(matches!(harness.audit.record(draft("a", "more")).await, Err(Error::Overloaded)));
    harness.audit.backlog.remove(u64::MAX);
    harness.record("a", "again").await;
    assert_eq!(notes(&harness.trail("a").await), ["again", "the last", "x"]);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn begun_entry_is_always_written() {
    let harness = start().await;
    let begin = |notes: &str| harness.audit.begin(draft("a", notes)).expect("begun");
    begin("recorded").record(|draft| draft.notes.push_str(" whole")).await.expect("written");
    drop(begin("allowed, so it seemed"));
    // Handlers are dropped both while they wait for their entry and before.
    drop(begin("never waited for").record(|_| ()));
    let mut waiting = Box::pin(begin("asked for").record(|_| ()));
    drop(futures::poll!(&mut waiting));
    drop(waiting);
    begin("not done").withdraw();
    harness.record("a", "last").await;
    let trail = harness.trail("a").await;
    assert_eq!(
        notes(&trail),
        ["last", "asked for", pending_entry::ABANDONED, pending_entry::ABANDONED, "recorded whole"]
    );
    assert_eq!((trail[2].decision.as_str(), trail[3].decision.as_str()), ("error", "error"));
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauditable_change_is_not_made() {
    use crate::tools::entry::ToolEntry;
    use crate::tools::registry::{self, Precondition, Registry, RegistryView};
    let harness = start().await;
    let registry = Registry {
        state: harness.node.state.clone(),
        audit: harness.audit.clone(),
        clock: harness.node.clock.clone(),
        metrics: harness.metrics.clone(),
    };
    let tool = |name: &str| {
        let text = |text: &str| Some(text.to_owned());
        let (resource_uri, protocols) = (text("https://a.example/a"), Some(vec!["mcp".to_owned()]));
        let entry = ToolEntry {
            tool_id: text("a"),
            name: text(name),
            resource_uri,
            protocols,
            ..ToolEntry::default()
        };
        entry.validate().expect("an entry")
    };
    let caller = CallContext { is_operator: true, ..Default::default() };
    let precondition = Precondition::default;
    let replace = async |name| registry.replace(tool(name), precondition(), &caller).await.map(drop);
    let deregister =
        async || registry.deregister("a".into(), RegistryView::Every, precondition(), &caller).await;
    replace("before").await.expect("registered");
    let waits = harness.audit.backlog.bytes.load(Ordering::Acquire);
    harness.audit.backlog.add(u64::MAX, limits::AUDIT_BACKLOG_BYTES_MAX - waits);
    let applied = harness.node.state.cluster().applied();
    for refused in [replace("after").await, deregister().await] {
        assert!(matches!(refused, Err(registry::Error::Audit(Error::Overloaded))), "{refused:?}");
    }
    assert_eq!(harness.node.state.cluster().applied(), applied, "no proposal");
    harness.audit.backlog.remove(u64::MAX);
    deregister().await.expect("deregistered");
    assert_eq!(notes(&harness.trail("a").await), ["the tool was deregistered", "the tool was registered"]);
    drop(registry);
    harness.end().await;
}

#[tokio::test]
async fn full_queue_refuses_entries() {
    let harness = start().await;
    // Nothing receives from this queue.
    let (queue, jobs) = mpsc::channel(limits::AUDIT_QUEUED_MAX);
    let audit = Audit { queue, ..harness.audit.clone() };
    let mut waiting = Vec::new();
    for _ in 0..limits::AUDIT_QUEUED_MAX {
        let mut record = Box::pin(audit.record(draft("a", "x")));
        assert!(futures::poll!(&mut record).is_pending());
        waiting.push(record);
    }
    assert!(matches!(audit.record(draft("a", "x")).await, Err(Error::Overloaded)));
    drop(jobs);
    assert!(matches!(audit.record(draft("a", "x")).await, Err(Error::Unwritten)));
    for record in waiting {
        assert!(matches!(record.await, Err(Error::Unwritten)));
    }
    drop(audit);
    harness.end().await;
}
