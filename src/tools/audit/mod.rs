//! What was decided about tools, and by whom: kept on this node before it is answered, then shipped
//! through the log in blocks, so that any node shows it (contract §5, Audit).
//!
//! [`entry`] is what is written, [`Open`] one that is begun before something is done, `writer` the one
//! thread that writes it into the journal, `shipping` what takes it from there to the log, [`trail`] what
//! reads it, and [`chain`] what checks it, offline too.

pub mod chain;
pub mod entry;
mod pending_entry;
mod shipper;
pub mod trail;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use tokio::sync::{Mutex, Semaphore, mpsc};

pub use self::pending_entry::Open;
use self::shipper::Shipping;
use self::writer::{Head, Job, Writer};
use super::Caller;
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::journal::{self, Directory, Opened};
use crate::limits;
use crate::state::{self, State};
use crate::telemetry::Metrics;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tool was registered.
    Register,
    /// A tool was replaced.
    Replace,
    /// A tool was deregistered.
    Deregister,
    /// A call was checked.
    Verify,
    /// The fabric was administered.
    Admin,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was allowed, or done.
    Allow,
    /// It was refused.
    Deny,
    /// It is not known to have been either.
    Error,
}

/// What an entry says; its id, its node and its place in the chain come with being written.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When it was decided.
    pub timestamp: Timestamp,
    /// The tool; empty for an administrative act.
    pub tool_id: String,
    /// What was done.
    pub action: Action,
    /// What came of it.
    pub decision: Decision,
    /// The check that failed, as the answer names it.
    pub check: Option<&'static str>,
    /// For people: why, without any secret or token.
    pub notes: String,
    /// The protocol of a call.
    pub protocol: Option<String>,
    /// `sub` of a token that was verified.
    pub subject: Option<String>,
    /// Its current actor; of an administrative act, the identity that acted.
    pub actor: Option<String>,
    /// Its `jti`.
    pub jti: Option<String>,
    /// Its `txn`.
    pub txn: Option<String>,
    /// Who asked, as authenticated.
    pub caller: Option<String>,
    /// Who acts for the caller.
    pub caller_actor: Option<String>,
    /// `X-Request-Id` of the request.
    pub request_id: String,
}

impl Draft {
    /// Of what `caller` asked for at `now`: what comes of it is not known yet.
    #[must_use]
    pub fn undecided(action: Action, tool_id: &str, caller: &Caller, now: Timestamp) -> Self {
        Self {
            timestamp: now,
            tool_id: tool_id.to_owned(),
            action,
            decision: Decision::Error,
            check: None,
            notes: String::new(),
            protocol: None,
            subject: None,
            actor: None,
            jti: None,
            txn: None,
            caller: caller.id.clone(),
            caller_actor: caller.actor.clone(),
            request_id: caller.request_id.clone(),
        }
    }

    /// Of an administrative act: its actor is the caller, or the one that acts for it.
    #[must_use]
    pub fn act(caller: &Caller, now: Timestamp) -> Self {
        let actor = caller.actor.clone().or_else(|| caller.id.clone());
        Self { actor, ..Self::undecided(Action::Admin, "", caller, now) }
    }
}

/// Why an entry was not written. What it is about must not be answered then.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// More waits to be shipped, or to be written, than the limit.
    #[error("too much audit is waiting to be shipped")]
    Overloaded,
    /// The file could not be written.
    #[error("audit could not be written")]
    Unwritten,
}

/// Why what was recorded is not in the log yet.
#[derive(Debug, thiserror::Error)]
pub enum ShipError {
    /// The file.
    #[error("the journal of the audit: {0}")]
    Journal(#[from] io::Error),
    /// What is being written did not come to an end.
    #[error("the journal of the audit: {0}")]
    Unsealed(Error),
    /// The log.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A row is not what was written.
    #[error("a row of the state is damaged")]
    Damaged(#[from] Corrupt),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// What the audit of a node is made of.
pub struct Parts<'p> {
    /// Where the journal is; made if it is not there.
    pub directory: &'p Path,
    /// What this node calls itself.
    pub node: String,
    /// 16 random bytes.
    pub seed: [u8; 16],
    /// Time.
    pub clock: Clock,
    /// The replicated state, as far as this node's log goes.
    pub state: State,
    /// Counters.
    pub metrics: Metrics,
}

/// Writes the audit of this node, and reads that of all. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    queue: mpsc::Sender<Job>,
    backlog: Backlog,
    shipping: Arc<Mutex<Shipping>>,
    /// How many shipments have begun.
    shipments: Arc<AtomicU64>,
    /// Places of readers.
    readers: Arc<Semaphore>,
    state: State,
}

impl Audit {
    /// Opens the journal. What it still holds goes on from where it was.
    ///
    /// Also answers what writes: it needs a thread of its own, and ends after [`Audit::end`].
    ///
    /// # Errors
    /// If the journal or a row cannot be read.
    pub fn open(parts: Parts<'_>) -> Result<(Self, impl FnOnce() + Send + use<>), ShipError> {
        let Parts { directory, node, seed, clock, state, metrics } = parts;
        let done = state.last_audit_block()?.sequence;
        let Opened { directory, last, missing } = Directory::open(directory, done)?;
        let backlog = Backlog::new(metrics.clone());
        let heads = heads_of(&directory, done, last, &backlog)?;
        let journal = journal::Writer::behind(directory.clone(), last);
        let of_state = state.clone();
        let writer = Writer::new(writer::Parts {
            journal,
            heads,
            shipped_head: Box::new(move |tool| of_state.audit_head(tool)),
            node,
            seed,
            clock,
            backlog: backlog.clone(),
            metrics: metrics.clone(),
        });
        let (queue, jobs) = mpsc::channel(limits::AUDIT_QUEUED_MAX);
        let mut shipping = Shipping::new(directory, queue.clone(), backlog.clone(), metrics, done);
        if missing > 0 {
            shipping.note(format!(
                "{missing} segments of the audit of this node are missing before block {}",
                last.saturating_add(1)
            ));
        }
        let shipping = Arc::new(Mutex::new(shipping));
        let readers = Arc::new(Semaphore::new(limits::AUDIT_READS_MAX));
        let audit = Self { queue, backlog, shipping, shipments: Arc::default(), readers, state };
        Ok((audit, move || writer.run(jobs)))
    }

    /// Ships what was recorded before, and waits until it is in the log and applied on this node.
    ///
    /// # Errors
    /// As [`ShipError`] says; it is tried again by itself.
    pub async fn ship(&self) -> Result<(), ShipError> {
        let begun = self.shipments.load(Ordering::Acquire);
        let mut shipping = self.shipping.lock().await;
        // Of many readers at once, one ships for all that came before it began.
        if shipping.has_completed_after(begun) {
            return Ok(());
        }
        let shipment = self.shipments.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        shipping.ship(&self.state, shipment).await
    }

    /// The same for readers, who do not ship when there is nothing to ship, and not more often than
    /// [`limits::AUDIT_SHIP_INTERVAL`] all together: each shipment is a write of the whole cluster.
    async fn ship_for_reader(&self) -> Result<(), ShipError> {
        if self.backlog.is_empty() {
            return Ok(());
        }
        let begun = self.shipments.load(Ordering::Acquire);
        let mut shipping = self.shipping.lock().await;
        if shipping.has_completed_after(begun) {
            return Ok(());
        }
        shipping.rest().await;
        let shipment = self.shipments.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        shipping.ship(&self.state, shipment).await
    }

    /// Ships what is recorded, again and again, until nothing writes any more.
    pub async fn follow(self) {
        let mut pause = limits::AUDIT_SHIP_INTERVAL;
        while !self.queue.is_closed() {
            tokio::time::sleep(pause).await;
            pause = match self.ship().await {
                Ok(()) => limits::AUDIT_SHIP_INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "ship the audit");
                    (pause * 2).min(limits::AUDIT_SHIP_PAUSE_MAX)
                }
            };
        }
    }

    /// Ends what writes. What was recorded is shipped before, if that is possible in time; else it is at
    /// the next start.
    pub async fn end(self) {
        match tokio::time::timeout(limits::DRAIN_TIMEOUT, self.ship()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "ship the audit before the end"),
            Err(_) => tracing::warn!("the audit was not shipped in time before the end"),
        }
        // It may have ended already.
        drop(self.queue.send(Job::End).await);
    }
}

/// The last entry about each tool in the segments behind `done`. Counts what they hold.
fn heads_of(
    directory: &Directory,
    done: u64,
    last: u64,
    backlog: &Backlog,
) -> Result<HashMap<Digest128, Head>, io::Error> {
    let mut heads = HashMap::new();
    for segment in done.saturating_add(1)..=last {
        let contents = directory.read(segment)?;
        backlog.add(segment, contents.bytes);
        for (tool, hash, _) in contents.records.iter().filter_map(shipper::parts) {
            heads.insert(tool, Head { hash, segment });
        }
    }
    Ok(heads)
}

/// How many bytes of the journal wait to be shipped.
#[derive(Clone, Debug)]
struct Backlog {
    /// By segment: one that is gone counts no more, whatever became of it.
    segments: Arc<SegmentBytes>,
    bytes: Arc<AtomicU64>,
    metrics: Metrics,
}

type SegmentBytes = std::sync::Mutex<BTreeMap<u64, u64>>;

impl Backlog {
    fn new(metrics: Metrics) -> Self {
        Self { segments: Arc::default(), bytes: Arc::default(), metrics }
    }

    fn add(&self, segment: u64, bytes: u64) {
        self.change(|segments| {
            let of_segment = segments.entry(segment).or_default();
            *of_segment = of_segment.saturating_add(bytes);
        });
    }

    fn remove(&self, segment: u64) {
        self.change(|segments| segments.retain(|number, _| *number != segment));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        // A sum of what is there is right after any panic.
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut segments);
        let bytes = segments.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        self.bytes.store(bytes, Ordering::Release);
        self.metrics.set_audit_backlog(bytes);
    }

    fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Acquire) == 0
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Acquire) >= limits::AUDIT_BACKLOG_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
