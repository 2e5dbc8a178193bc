//! Progress of snapshot transfers: of the one to this node, for its status, and of those from it, for the purge of its
//! log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Progress of the snapshot that is being received.
#[derive(Debug, Default)]
pub(crate) struct TransferProgress {
    received: AtomicU64,
    /// 0 while no snapshot is being received.
    total: AtomicU64,
}

impl TransferProgress {
    /// Received and all bytes, while a snapshot is being received.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        let total = self.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.received.load(Ordering::Relaxed).min(total), total))
    }

    /// Begins a transfer.
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

/// By node id, index of the last entry of the snapshot that this node is sending to it, or sent last.
#[derive(Debug, Default)]
pub(crate) struct SentSnapshots(Mutex<BTreeMap<u64, u64>>);

impl SentSnapshots {
    fn ends(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transfer begins.
    pub(crate) fn begin(&self, to: u64, end: u64) {
        self.ends().insert(to, end);
    }

    /// The transfer failed: the next one may be of a newer snapshot.
    pub(crate) fn failed(&self, to: u64) {
        self.ends().remove(&to);
    }

    /// Index up to which a node has, or is being sent, a snapshot.
    pub(crate) fn end_of(&self, node_id: u64) -> Option<u64> {
        self.ends().get(&node_id).copied()
    }
}
