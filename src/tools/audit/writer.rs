//! The task that writes this node's audit: it links every entry to its predecessor, and appends all that are queued
//! in one write.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use aws_lc_rs::digest;
use tokio::sync::{mpsc, oneshot};

use super::entry::{Entry, text_of};
use super::{Backlog, Decision, Draft, Error};
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::journal::{self, Writer as Journal};
use crate::limits;
use crate::state::AuditHash;
use crate::telemetry::{FailureLog, Metrics};

/// Reply channel of a job.
pub type Done<T> = oneshot::Sender<Result<T, Error>>;

/// A job of the writer; done in order.
#[derive(Debug)]
pub enum Job {
    /// Write an entry.
    Record(Box<Draft>, Done<()>),
    /// Write an entry about the audit itself.
    Note(String, Done<()>),
    /// Seal the current segment; replies with the last sealed one.
    Seal(Done<u64>),
    /// Segments up to this one are applied in the replicated state.
    Shipped(u64),
    /// End.
    End,
}

/// A chain: a tool, and the bucket of the callers.
pub type Chain = (Digest128, u8);

/// Newest entry of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its hash.
    pub hash: AuditHash,
    /// Its segment.
    pub segment: u64,
}

/// Looks up the newest entry of a chain in the replicated state.
pub type ShippedHead = Box<dyn Fn(&Digest128, u8) -> Result<Option<AuditHash>, Corrupt> + Send>;

/// Parts of the writer.
pub struct Parts {
    pub journal: Journal,
    /// Newest entry of each chain with an entry in a segment.
    pub heads: HashMap<Chain, Head>,
    /// The same for chains without one.
    pub shipped_head: ShippedHead,
    pub node: String,
    /// 16 random bytes for entry ids.
    pub seed: [u8; 16],
    /// Time of entries about the audit itself.
    pub clock: Clock,
    /// Unshipped bytes.
    pub backlog: Backlog,
    pub metrics: Metrics,
}

/// Writes entries to the journal.
pub struct Writer {
    parts: Parts,
    /// The time of the last entry.
    last: Timestamp,
    /// Number of ids drawn.
    ids: u64,
    failures: FailureLog<&'static str>,
}

/// Jobs between two turns of other tasks.
const JOBS_PER_TURN: usize = 256;
/// Name of the journal in log lines.
pub(super) const JOURNAL: &str = "audit journal";

/// Lets the tasks run that are ready on this thread. Unlike `tokio::task::yield_now`, another thread may go on with this task.
async fn behind_ready_tasks() {
    let mut is_behind = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_behind, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Entries of one write.
#[derive(Default)]
struct Group {
    framed: Vec<u8>,
    heads: HashMap<Chain, AuditHash>,
    waiting: Vec<(Decision, Done<()>)>,
}

impl Writer {
    /// Constructs a writer.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let failures = FailureLog::new(parts.clock.clone(), "writing audit entries");
        Self { parts, last: Timestamp::default(), ids: 0, failures }
    }

    /// Runs until [`Job::End`], or until no sender is left.
    pub async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let (mut group, mut ready) = (Group::default(), Vec::new());
        while let Some(first) = jobs.recv().await {
            // Requests that are ready meanwhile add their entries to the same write.
            behind_ready_tasks().await;
            ready.push(first);
            while ready.len() < JOBS_PER_TURN
                && let Ok(job) = jobs.try_recv()
            {
                ready.push(job);
            }
            let mut is_ended = false;
            for job in ready.drain(..) {
                is_ended |= self.take(job, &mut group);
            }
            self.write(&mut group);
            if is_ended {
                return self.finish(&mut jobs, &mut group).await;
            }
        }
    }

    /// Writes the rest of the queue, including jobs of senders that hold a reserved slot; ends when no slot is held.
    async fn finish(&mut self, jobs: &mut mpsc::Receiver<Job>, group: &mut Group) {
        jobs.close();
        while let Some(job) = jobs.recv().await {
            self.take(job, group);
            // The waiting caller may hold the next slot.
            self.write(group);
        }
    }

    /// Does one job; returns whether it was [`Job::End`].
    fn take(&mut self, job: Job, group: &mut Group) -> bool {
        match job {
            Job::Record(draft, done) => {
                let (timestamp, decision) = (draft.timestamp, draft.decision);
                self.add(group, Entry::of(*draft), timestamp, decision, done);
            }
            Job::Note(notes, done) => {
                let decision = Decision::Error;
                let entry = Entry { decision: decision.into_str().to_owned(), notes, ..Entry::default() };
                self.add(group, entry, self.parts.clock.now(), decision, done);
            }
            Job::Seal(done) => {
                self.write(group);
                let sealed = self.parts.journal.seal().map_err(|error| unwritten(&error));
                // The shipment may have been cancelled.
                drop(done.send(sealed));
            }
            Job::Shipped(segment) => self.parts.heads.retain(|_, head| head.segment > segment),
            Job::End => {
                self.write(group);
                return true;
            }
        }
        if group.framed.len() >= limits::AUDIT_WRITE_BYTES_FULL {
            self.write(group);
        }
        false
    }

    fn add(&mut self, group: &mut Group, entry: Entry, at: Timestamp, decision: Decision, done: Done<()>) {
        match self.link(group, entry, at) {
            Ok(()) => group.waiting.push((decision, done)),
            Err(error) => drop(done.send(Err(error))),
        }
    }

    /// Links an entry to the newest one of its chain, and adds it to the group.
    fn link(&mut self, group: &mut Group, mut entry: Entry, at: Timestamp) -> Result<(), Error> {
        let tool = Digest128::of(DigestKind::Tool, b"", entry.tool_id.as_bytes());
        let chain = (tool, entry.bucket());
        let known = group.heads.get(&chain).or(self.parts.heads.get(&chain).map(|head| &head.hash));
        let head = match known {
            Some(hash) => Some(*hash),
            None => (self.parts.shipped_head)(&tool, chain.1).map_err(|error| unwritten(&error))?,
        };
        cut(&mut entry.notes, limits::AUDIT_NOTES_BYTES_MAX);
        let at = self.in_order(at);
        entry.timestamp = at.to_rfc3339();
        entry.prev_hash = head.map(|hash| text_of(&hash)).unwrap_or_default();
        entry.node.clone_from(&self.parts.node);
        entry.id = self.id(at);
        let (hash, text) = entry.into_sealed().map_err(|error| unwritten(&error))?;
        if text.len() > limits::AUDIT_ENTRY_BYTES_MAX {
            return Err(unwritten(&format_args!("an entry of {} bytes is too large", text.len())));
        }
        journal::frame(&mut group.framed, &[&[chain.1], &tool.as_bytes()[..], &hash, &text].concat());
        group.heads.insert(chain, hash);
        Ok(())
    }

    /// Time stamps of concurrent decisions do not go back.
    fn in_order(&mut self, at: Timestamp) -> Timestamp {
        let at = if self.last.since(at) <= limits::AUDIT_REORDERED_MAX { at.max(self.last) } else { at };
        self.last = at;
        at
    }

    /// A UUID of version 7 (RFC 9562 §5.7). Its random part is a digest of the seed and a counter.
    fn id(&mut self, at: Timestamp) -> String {
        self.ids = self.ids.wrapping_add(1);
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.parts.seed);
        context.update(&self.ids.to_be_bytes());
        let mut random = [0; 10];
        random.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
        let millis = u64::try_from(at.millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().to_string()
    }

    /// Appends the group and replies to its callers.
    fn write(&mut self, group: &mut Group) {
        let Group { framed, heads, waiting } = std::mem::take(group);
        if framed.is_empty() {
            return;
        }
        let written = self.append(&framed);
        if let Err(error) = &written {
            self.failures.failed(&JOURNAL, error);
        } else {
            self.failures.succeeded(&JOURNAL);
            let segment = self.parts.journal.number();
            let heads = heads.into_iter().map(|(chain, hash)| (chain, Head { hash, segment }));
            self.parts.heads.extend(heads);
        }
        for (decision, done) in waiting {
            let answer = match &written {
                Ok(()) => {
                    self.parts.metrics.audit_entries.inc([decision.into_str()]);
                    Ok(())
                }
                Err(_) => Err(Error::Unwritten),
            };
            // The caller may have disconnected; its entry is written.
            drop(done.send(answer));
        }
    }

    /// A segment becomes one block, so it is sealed before it exceeds the maximum of a block.
    fn append(&mut self, framed: &[u8]) -> std::io::Result<()> {
        let journal = &mut self.parts.journal;
        let bytes = framed.len() as u64;
        if journal.bytes() + bytes > limits::AUDIT_BLOCK_BYTES_MAX as u64 {
            journal.seal()?;
        }
        journal.append(framed)?;
        self.parts.backlog.add(journal.number(), bytes);
        Ok(())
    }
}

fn unwritten(error: &dyn fmt::Display) -> Error {
    tracing::error!(%error, "failed to write an audit entry");
    Error::Unwritten
}

/// Truncates at a character boundary.
fn cut(text: &mut String, bytes_max: usize) {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::executor::block_on;
    use tempfile::TempDir;

    use super::*;
    use crate::journal::Directory;
    use crate::tools::audit::{Action, shipper};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    struct Harness {
        outer: TempDir,
        directory: Directory,
        queue: mpsc::Sender<Job>,
        jobs: mpsc::Receiver<Job>,
        writer: Writer,
    }

    fn harness() -> Harness {
        let outer = tempfile::tempdir().expect("directory");
        let directory = Directory::open(&outer.path().join("audit"), 0).expect("journal").directory;
        let metrics = Metrics::new().expect("metrics");
        let backlog = Backlog::new(metrics.clone());
        let writer = Writer::new(Parts {
            journal: Journal::after(directory.clone(), 0),
            heads: HashMap::new(),
            shipped_head: Box::new(|tool, _| {
                let is_known = *tool == Digest128::of(DigestKind::Tool, b"", b"shipped");
                Ok(is_known.then_some([9; 32]))
            }),
            node: "unit".into(),
            seed: [1; 16],
            clock: Clock::manual(START),
            backlog,
            metrics,
        });
        let (queue, jobs) = mpsc::channel(limits::AUDIT_QUEUED_MAX);
        Harness { outer, directory, queue, jobs, writer }
    }

    fn draft(tool_id: &str, timestamp: Timestamp) -> Draft {
        Draft {
            timestamp,
            tool_id: tool_id.into(),
            action: Action::Verify,
            decision: Decision::Allow,
            check: None,
            count: None,
            notes: String::new(),
            protocol: None,
            subject: String::new(),
            actor: None,
            jti: None,
            txn: None,
            caller: None,
            caller_actor: None,
            request_id: "r".into(),
        }
    }

    impl Harness {
        fn ask(&self, draft: Draft) -> oneshot::Receiver<Result<(), Error>> {
            let (done, answer) = oneshot::channel();
            self.queue.try_send(Job::Record(Box::new(draft), done)).expect("room");
            answer
        }

        fn seal(&self) -> oneshot::Receiver<Result<u64, Error>> {
            let (done, answer) = oneshot::channel();
            self.queue.try_send(Job::Seal(done)).expect("room");
            answer
        }

        /// Runs all queued jobs.
        fn run(self) -> (TempDir, Directory) {
            self.queue.try_send(Job::End).expect("room");
            block_on(self.writer.run(self.jobs));
            (self.outer, self.directory)
        }
    }

    fn entries(directory: &Directory, segment: u64) -> Vec<Entry> {
        let records = directory.read(segment).expect("segment").records;
        let text = |record| shipper::parts(record).expect("entry").text;
        records.iter().map(|record| crate::json::read(&text(record)).expect("entry")).collect()
    }

    #[test]
    fn entry_links_to_the_newest_about_its_tool() {
        let harness = harness();
        let mut answers = Vec::new();
        for tool in ["a", "shipped", "a", "b"] {
            answers.push(harness.ask(draft(tool, START)));
        }
        let sealed = harness.seal();
        for tool in ["a", "shipped"] {
            answers.push(harness.ask(draft(tool, START)));
        }
        // The state is queried only for tools without an entry in a segment.
        harness.queue.try_send(Job::Shipped(1)).expect("room");
        for tool in ["shipped", "b"] {
            answers.push(harness.ask(draft(tool, START)));
        }
        let (_outer, directory) = harness.run();
        assert_eq!(sealed.blocking_recv().expect("answered").expect("sealed"), 1);
        for answer in answers {
            answer.blocking_recv().expect("answered").expect("written");
        }
        let (first, second) = (entries(&directory, 1), entries(&directory, 2));
        let shipped = text_of(&[9; 32]);
        let before: Vec<&str> = first.iter().chain(&second).map(|entry| entry.prev_hash.as_str()).collect();
        let hash = |entry: &'_ Entry| entry.hash.clone();
        assert_eq!(
            before,
            ["", &shipped, &hash(&first[0]), "", &hash(&first[2]), &hash(&first[1]), &hash(&second[1]), ""]
        );
        let mut ids: Vec<_> = first.iter().chain(&second).map(|entry| entry.id.clone()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 8, "ids are unique");
        assert!(ids.iter().all(|id| uuid::Uuid::parse_str(id).is_ok_and(|id| id.get_version_num() == 7)));
    }

    #[test]
    fn jobs_after_the_end_are_written() {
        let harness = harness();
        harness.queue.try_send(Job::End).expect("room");
        let answer = harness.ask(draft("a", START));
        let Harness { outer: _outer, directory, queue, jobs, writer } = harness;
        drop(queue);
        block_on(writer.run(jobs));
        answer.blocking_recv().expect("answered").expect("written");
        assert_eq!(entries(&directory, 1).len(), 1);
    }

    /// A sender that holds a slot when the writer ends may still use it.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the writer runs beside the sender")]
    fn writer_waits_for_reserved_slots() {
        let Harness { outer: _outer, directory, queue, jobs, writer } = harness();
        let slot = queue.clone().try_reserve_owned().expect("room");
        queue.try_send(Job::End).expect("room");
        let running = std::thread::spawn(|| block_on(writer.run(jobs)));
        // A closed queue means that the writer is ending.
        while !queue.is_closed() {
            std::thread::yield_now();
        }
        let (done, answer) = oneshot::channel();
        slot.send(Job::Record(Box::new(draft("a", START)), done));
        running.join().expect("the writer ends");
        answer.blocking_recv().expect("answered").expect("written");
        assert_eq!(entries(&directory, 1).len(), 1);
    }

    #[test]
    fn entry_that_failed_to_write_is_not_linked() {
        let harness = harness();
        std::fs::remove_dir(harness.outer.path().join("audit")).expect("remove");
        let refused = [harness.ask(draft("a", START)), harness.ask(draft("a", START))];
        let not_sealed = harness.seal();
        let Harness { outer, directory, queue, jobs, mut writer } = harness;
        let mut group = Group::default();
        let mut jobs = jobs;
        while let Ok(job) = jobs.try_recv() {
            writer.take(job, &mut group);
        }
        for answer in refused {
            assert!(matches!(answer.blocking_recv(), Ok(Err(Error::Unwritten))));
        }
        assert_eq!(not_sealed.blocking_recv().expect("answered").expect("nothing to end"), 0);
        std::fs::create_dir(outer.path().join("audit")).expect("directory");
        let harness = Harness { outer, directory, queue, jobs, writer };
        let written = [harness.ask(draft("a", START)), harness.ask(draft("a", START))];
        let (_outer, directory) = harness.run();
        for answer in written {
            answer.blocking_recv().expect("answered").expect("written");
        }
        let entries = entries(&directory, 1);
        assert_eq!((entries[0].prev_hash.as_str(), &entries[1].prev_hash), ("", &entries[0].hash));
    }

    #[test]
    fn oversized_entry_is_refused_and_long_notes_are_truncated() {
        let harness = harness();
        let sized = |bytes: usize| Draft { jti: Some("j".repeat(bytes)), ..draft("a", START) };
        let mut empty = Entry { node: "unit".into(), ..Entry::of(sized(0)) };
        empty.id = uuid::Uuid::nil().to_string();
        let hash = text_of(&empty.seal().expect("seal"));
        assert_eq!(hash.len(), 43);
        let rest = limits::AUDIT_ENTRY_BYTES_MAX - serde_json::to_vec(&empty).expect("JSON").len();
        let refused = harness.ask(sized(rest + 1));
        let written = harness.ask(sized(rest));
        let notes = "é".repeat(limits::AUDIT_NOTES_BYTES_MAX);
        let long = harness.ask(Draft { notes: format!("x{notes}"), ..draft("b", START) });
        let exact =
            harness.ask(Draft { notes: notes[..limits::AUDIT_NOTES_BYTES_MAX].into(), ..draft("b", START) });
        let (_outer, directory) = harness.run();
        assert!(matches!(refused.blocking_recv(), Ok(Err(Error::Unwritten))));
        for answer in [written, long, exact] {
            answer.blocking_recv().expect("answered").expect("written");
        }
        let entries = entries(&directory, 1);
        let lengths: Vec<_> = entries.iter().map(|entry| entry.notes.len()).collect();
        assert_eq!(lengths, [0, limits::AUDIT_NOTES_BYTES_MAX - 1, limits::AUDIT_NOTES_BYTES_MAX]);
        assert_eq!(entries[0].prev_hash, "", "a refused entry is not linked");
    }

    #[test]
    fn times_do_not_go_back_unless_the_clock_was_set_back() {
        let harness = harness();
        let back = |by: Duration| START.minus(by);
        let beyond = limits::AUDIT_REORDERED_MAX + Duration::from_millis(1);
        let decided_at_once = limits::FRESHNESS_WAIT + limits::PROPOSE_TIMEOUT;
        assert!(decided_at_once.max(limits::REQUEST_TIMEOUT) < limits::AUDIT_REORDERED_MAX);
        for at in
            [START, back(limits::AUDIT_REORDERED_MAX), back(beyond), back(limits::AUDIT_REORDERED_MAX * 2)]
        {
            drop(harness.ask(draft("a", at)));
        }
        let (_outer, directory) = harness.run();
        let times: Vec<_> = entries(&directory, 1).into_iter().map(|entry| entry.timestamp).collect();
        let expected = [START, START, back(beyond), back(beyond)];
        assert_eq!(times, expected.map(Timestamp::to_rfc3339));
    }
}
