//! The bound of a step over the outbox.

use crate::limits;

/// Work done before yielding.
#[derive(Default)]
pub struct Turn {
    pub rows: usize,
    dispatched: usize,
}

impl Turn {
    /// Counts a row that was dispatched to `dispatched` streams; returns whether to continue.
    pub const fn has_capacity(&mut self, dispatched: usize) -> bool {
        self.rows += 1;
        self.dispatched = self.dispatched.saturating_add(dispatched);
        !self.is_exhausted()
    }

    /// Whether to yield.
    pub const fn is_exhausted(&self) -> bool {
        self.rows >= limits::OUTBOX_ROWS_PER_STEP || self.dispatched >= limits::OUTBOX_MATCHES_PER_STEP
    }
}
