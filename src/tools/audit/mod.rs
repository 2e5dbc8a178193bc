//! Audit of decisions about tools (contract §5, Audit): each entry is in this node's journal before the decision is
//! returned, and is then shipped through the log in blocks, so that any node serves it.
//!
//! [`entry`]: the format. [`PendingEntry`]: an entry begun before its action. `denials`: equal ones become
//! one entry. `writer`: the task that appends to the journal. `shipper`: from the journal to the log.
//! [`trail`]: reads. [`chain`]: offline verification.

pub mod chain;
mod denials;
pub mod entry;
mod pending_entry;
mod shipper;
pub mod trail;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, Semaphore, mpsc};
use utoipa::ToSchema;

use self::denials::Denials;
pub(crate) use self::pending_entry::PendingEntry;
use self::shipper::Shipper;
use self::writer::{Chain, Head, Job, Writer};
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::journal::{self, Directory, Opened};
use crate::limits;
use crate::state::{self, CallContext, State};
use crate::telemetry::{FailureLog, Metrics};

/// Audited kind of action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, ToSchema)]
#[schema(as = AuditAction, rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Action {
    /// A tool was registered.
    Register,
    /// A tool was replaced.
    Replace,
    /// A tool was deregistered.
    Deregister,
    /// A tool call was verified.
    Verify,
    /// An administrative act.
    Admin,
}

/// Outcome of the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, ToSchema)]
#[schema(as = AuditDecision, rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Decision {
    /// Allowed or done.
    Allow,
    /// Refused.
    Deny,
    /// Unknown.
    Error,
}

/// Content of an entry; the writer adds id, node and links.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Time of the decision.
    pub timestamp: Timestamp,
    /// The tool; empty for an administrative act.
    pub tool_id: String,
    pub action: Action,
    pub decision: Decision,
    pub check: Option<&'static str>,
    /// Number of equal denials, if it represents several requests.
    pub count: Option<u64>,
    /// Reason for people, without secrets and tokens.
    pub notes: String,
    /// Protocol of a tool call.
    pub protocol: Option<String>,
    /// `sub` of a verified token, empty if its signature is not verified; of any other action, the caller.
    pub subject: String,
    /// Its current actor; of an administrative act, the acting identity.
    pub actor: Option<String>,
    /// Its `jti`.
    pub jti: Option<String>,
    /// Its `txn`.
    pub txn: Option<String>,
    /// Authenticated caller.
    pub caller: Option<String>,
    /// Actor of the caller's bearer token.
    pub caller_actor: Option<String>,
    /// `X-Request-Id` of the request.
    pub request_id: String,
}

impl Draft {
    /// Draft with the outcome still unknown.
    #[must_use]
    pub fn undecided(action: Action, tool_id: &str, caller: &CallContext, now: Timestamp) -> Self {
        let subject = match action {
            Action::Verify => String::new(),
            _ => caller.id.clone().unwrap_or_default(),
        };
        Self {
            timestamp: now,
            tool_id: tool_id.to_owned(),
            action,
            decision: Decision::Error,
            check: None,
            count: None,
            notes: String::new(),
            protocol: None,
            subject,
            actor: None,
            jti: None,
            txn: None,
            caller: caller.id.clone(),
            caller_actor: caller.actor.clone(),
            request_id: caller.request_id.clone(),
        }
    }

    /// Administrative act: its actor is the bearer's actor, else the caller.
    #[must_use]
    pub fn act(caller: &CallContext, now: Timestamp) -> Self {
        let actor = caller.actor.clone().or_else(|| caller.id.clone());
        Self { actor, ..Self::undecided(Action::Admin, "", caller, now) }
    }
}

/// Reason for which an entry was not written. Its decision must not be returned then.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Backlog or queue at its limit.
    #[error("audit backlog limit reached")]
    Overloaded,
    /// Writing to the journal failed.
    #[error("the audit entry could not be written")]
    Unwritten,
}

/// Reason for which recorded entries are not in the log yet.
#[derive(Debug, thiserror::Error)]
pub enum ShipError {
    /// Reading the journal failed.
    #[error("audit journal: {0}")]
    Journal(#[from] io::Error),
    /// The current segment could not be sealed.
    #[error("audit journal: {0}")]
    Unsealed(Error),
    /// The proposal failed.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A row is corrupt.
    #[error("a row of the state is corrupt")]
    Damaged(#[from] Corrupt),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// Parts of a node's audit.
pub struct Parts<'p> {
    /// Directory of the journal; created if absent.
    pub directory: &'p Path,
    pub node: String,
    /// 16 random bytes for entry ids.
    pub seed: [u8; 16],
    pub clock: Clock,
    /// Replicated state as applied on this node.
    pub state: State,
    pub metrics: Metrics,
}

/// Records this node's audit and reads that of all nodes. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    queue: mpsc::Sender<Job>,
    backlog: Backlog,
    denials: Arc<Denials>,
    shipper: Arc<Mutex<Shipper>>,
    /// Number of the newest shipment begun.
    shipments: Arc<AtomicU64>,
    /// Limits concurrent reads.
    readers: Arc<Semaphore>,
    failures: Arc<FailureLog<&'static str>>,
    state: State,
}

impl Audit {
    /// Opens the journal, whose unshipped entries are shipped next. Also returns the writer, which ends after
    /// [`Audit::end`].
    ///
    /// # Errors
    /// If the journal or a row cannot be read.
    pub fn open(parts: Parts<'_>) -> Result<(Self, impl Future<Output = ()> + Send + use<>), ShipError> {
        let Parts { directory, node, seed, clock, state, metrics } = parts;
        let done = state.last_audit_block()?.segment;
        let Opened { directory, last, missing } = Directory::open(directory, done)?;
        let backlog = Backlog::new(metrics.clone());
        let heads = heads_of(&directory, done, last, &backlog);
        let journal = journal::Writer::after(directory.clone(), last);
        let of_state = state.clone();
        let failures = Arc::new(FailureLog::new(clock.clone(), "shipping audit entries"));
        let writer = Writer::new(writer::Parts {
            journal,
            heads,
            shipped_head: Box::new(move |tool, bucket| of_state.audit_head(tool, bucket)),
            node,
            seed,
            clock: clock.clone(),
            backlog: backlog.clone(),
            metrics: metrics.clone(),
        });
        let (queue, jobs) = mpsc::channel(limits::AUDIT_QUEUED_MAX);
        let mut shipper = Shipper::new(directory, queue.clone(), backlog.clone(), metrics, done);
        if missing > 0 {
            shipper.note(format!(
                "audit journal segments missing before segment {}: {missing}",
                last.saturating_add(1)
            ));
        }
        let shipper = Arc::new(Mutex::new(shipper));
        let readers = Arc::new(Semaphore::new(limits::AUDIT_READS_MAX));
        let denials = Arc::new(Denials::new(clock));
        let audit =
            Self { queue, backlog, denials, shipper, shipments: Arc::default(), readers, failures, state };
        Ok((audit, writer.run(jobs)))
    }

    /// Ships all entries recorded before the call, and waits until they are applied on this node.
    ///
    /// # Errors
    /// [`ShipError`]; [`Audit::follow`] retries.
    pub async fn ship(&self) -> Result<(), ShipError> {
        self.write_joined(false).await;
        let begun = self.shipments.load(Ordering::Acquire);
        let mut shipper = self.shipper.lock().await;
        // Of concurrent callers, one ships for all that called before it began.
        if shipper.has_completed_after(begun) {
            return Ok(());
        }
        let shipment = self.shipments.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        shipper.ship(&self.state, shipment).await
    }

    /// [`Self::ship`] for reads: not if the backlog is empty, and at most once per [`limits::AUDIT_SHIP_INTERVAL`] for all
    /// of them, because each shipment is a write of the whole cluster.
    async fn ship_for_reader(&self) -> Result<(), ShipError> {
        self.write_joined(false).await;
        if self.backlog.is_empty() {
            return Ok(());
        }
        let begun = self.shipments.load(Ordering::Acquire);
        let mut shipper = self.shipper.lock().await;
        if shipper.has_completed_after(begun) {
            return Ok(());
        }
        shipper.until_next_shipment().await;
        let shipment = self.shipments.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        shipper.ship(&self.state, shipment).await
    }

    /// Ships at intervals until the writer has ended.
    pub async fn follow(self) {
        let mut pause = limits::AUDIT_SHIP_INTERVAL;
        while !self.queue.is_closed() {
            tokio::time::sleep(pause).await;
            pause = match self.ship().await {
                Ok(()) => {
                    self.failures.succeeded(&writer::JOURNAL);
                    limits::AUDIT_SHIP_INTERVAL
                }
                Err(error) => {
                    self.failures.failed(&writer::JOURNAL, &error);
                    (pause * 2).min(limits::AUDIT_SHIP_PAUSE_MAX)
                }
            };
        }
    }

    /// Ends the writer, after shipping the recorded entries if [`limits::DRAIN_TIMEOUT`] suffices; else the
    /// next start ships them.
    pub async fn end(self) {
        self.write_joined(true).await;
        match tokio::time::timeout(limits::DRAIN_TIMEOUT, self.ship()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to ship audit entries before shutdown"),
            Err(_) => tracing::warn!("timed out while shipping audit entries before shutdown"),
        }
        // It may have ended already.
        drop(self.queue.send(Job::End).await);
    }
}

/// Newest entry of each chain in the segments after `done`. Adds their bytes to the backlog.
fn heads_of(directory: &Directory, done: u64, last: u64, backlog: &Backlog) -> HashMap<Chain, Head> {
    let mut heads = HashMap::new();
    for segment in done.saturating_add(1)..=last {
        // The shipper sets aside a segment that cannot be read, and records the loss.
        let contents = directory.read(segment).unwrap_or_default();
        backlog.add(segment, contents.bytes);
        for parts in contents.records.iter().filter_map(shipper::parts) {
            heads.insert((parts.tool, parts.bucket), Head { hash: parts.hash, segment });
        }
    }
    heads
}

/// Bytes of the journal that are not shipped.
#[derive(Clone, Debug)]
struct Backlog {
    /// Bytes by segment.
    segments: Arc<SegmentBytes>,
    bytes: Arc<AtomicU64>,
    metrics: Metrics,
}

type SegmentBytes = parking_lot::Mutex<BTreeMap<u64, u64>>;

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
        // The sum is recomputed, so a panic of another thread leaves nothing wrong.
        let mut segments = self.segments.lock();
        change(&mut segments);
        let bytes = segments.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        self.bytes.store(bytes, Ordering::Release);
        self.metrics.audit_backlog.set([], bytes);
    }

    fn is_empty(&self) -> bool {
        self.segments.lock().is_empty()
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Acquire) >= limits::AUDIT_BACKLOG_BYTES_MAX
    }
}

#[cfg(test)]
mod tests;
