//! Progress of a snapshot transfer, for the status of this node.

use std::sync::atomic::{AtomicU64, Ordering};

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
