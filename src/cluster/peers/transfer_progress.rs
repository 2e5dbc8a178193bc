//! Progress of snapshot transfers: of the one to this node, for its status, and of those from it, for the purge of its
//! log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::limits;

/// Progress of the snapshot that is being received.
#[derive(Debug, Default)]
pub(crate) struct TransferProgress {
    received: AtomicU64,
    /// 0 while no snapshot is being received.
    total: AtomicU64,
}

impl TransferProgress {
    /// Received and total bytes, while a snapshot is being received.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.received.load(Ordering::Relaxed).min(total), total))
    }

    pub(crate) fn begin(&self, total: u64) -> Transfer<'_> {
        self.received.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        Transfer(self)
    }
}

/// A transfer that counts its bytes until it is dropped.
pub(crate) struct Transfer<'p>(&'p TransferProgress);

impl Transfer<'_> {
    /// Counts received bytes.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.received.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.total.store(0, Ordering::Relaxed);
    }
}

/// A snapshot that this node is sending to another, or sent last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentSnapshot {
    /// Index of its last entry.
    pub(crate) end: u64,
    /// Until when the receiver counts as one that answers, on the boot clock. openraft answers no heartbeat while it
    /// installs a snapshot, but a transfer to a node that is gone fails.
    pub(crate) answers_until: Duration,
}

/// By node id, the snapshots that this node sends.
#[derive(Debug, Default)]
pub(crate) struct SentSnapshots(Mutex<BTreeMap<u64, SentSnapshot>>);

impl SentSnapshots {
    /// A transfer begins.
    pub(crate) fn begin(&self, to: u64, end: u64) {
        self.0.lock().insert(to, SentSnapshot { end, answers_until: Duration::ZERO });
    }

    /// The receiver answered.
    pub(crate) fn answered(&self, to: u64) {
        if let Some(sent) = self.0.lock().get_mut(&to) {
            sent.answers_until = Duration::MAX;
        }
    }

    /// The transfer ended at `now`. If it failed, the next one may be of a newer snapshot.
    pub(crate) fn ended(&self, to: u64, is_installed: bool, now: Duration) {
        let mut all = self.0.lock();
        match all.get_mut(&to) {
            Some(sent) if is_installed => sent.answers_until = now + limits::LOG_HELD_FOR_SILENT,
            _ => drop(all.remove(&to)),
        }
    }

    /// The snapshot that a node has or is being sent.
    pub(crate) fn get(&self, node_id: u64) -> Option<SentSnapshot> {
        self.0.lock().get(&node_id).copied()
    }
}
