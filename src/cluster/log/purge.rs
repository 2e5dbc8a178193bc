//! Size of the log, and the index up to which it is to be purged.
//!
//! Entries may be large (audit blocks, policies), so bytes are counted, not entries.

use std::collections::VecDeque;

use crate::limits;

/// A run grows to the limit divided by this number.
const RUNS: u64 = 128;

/// The log exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surplus {
    /// Index up to which it is to be purged: half of the limit remains.
    pub(crate) upto: u64,
    /// Whether it may not grow any more, even if a member lacks these entries.
    pub(crate) is_urgent: bool,
}

/// Consecutive entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    bytes: u64,
}

/// Sizes of the log entries, summed in about a hundred runs.
#[derive(Clone, Debug)]
pub(crate) struct LogSize {
    runs: VecDeque<Run>,
    bytes: u64,
    most: u64,
}

impl LogSize {
    /// An empty log with a limit of `most` bytes.
    pub(crate) const fn new(most: u64) -> Self {
        Self { runs: VecDeque::new(), bytes: 0, most }
    }

    /// Counts an appended entry.
    pub(crate) fn append(&mut self, index: u64, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        match self.runs.back_mut() {
            Some(run) if run.bytes < self.most / RUNS => *run = Run { last: index, bytes: run.bytes + bytes },
            _ => self.runs.push_back(Run { last: index, bytes }),
        }
    }

    /// The log was truncated from `first` on. A run that is only partly removed keeps its size.
    pub(crate) fn truncate(&mut self, first: u64) {
        while let Some(run) = self.runs.pop_back() {
            let begins_before = self.runs.back().map_or(0, |before| before.last + 1) < first;
            if begins_before {
                self.runs.push_back(Run { last: run.last.min(first.saturating_sub(1)), ..run });
                return;
            }
            self.bytes -= run.bytes;
        }
    }

    /// The log was purged up to `last`. A run that is only partly removed keeps its size.
    pub(crate) fn purge(&mut self, last: u64) {
        while let Some(run) = self.runs.front().copied().filter(|run| run.last <= last) {
            self.bytes -= run.bytes;
            self.runs.pop_front();
        }
    }

    /// The surplus, if the log exceeds its limit.
    pub(crate) fn surplus(&self) -> Option<Surplus> {
        if self.bytes <= self.most {
            return None;
        }
        let mut kept = 0;
        let purged = self.runs.iter().rev().find(|run| {
            kept += run.bytes;
            kept > self.most / 2
        });
        let held_max = self.most.max(limits::LOG_HELD_BYTES_MIN);
        let is_urgent = self.bytes - self.most > held_max;
        purged.map(|run| Surplus { upto: run.last, is_urgent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 128 * 1024;
    const RUN_BYTES: u64 = MOST / RUNS;

    fn with(entries: u64, bytes: u64) -> LogSize {
        let mut size = LogSize::new(MOST);
        for index in 1..=entries {
            size.append(index, usize::try_from(bytes).expect("fits"));
        }
        size
    }

    #[test]
    fn log_beyond_its_limit_is_purged_to_half() {
        let mut size = with(RUNS, RUN_BYTES);
        assert_eq!((size.bytes, size.surplus()), (MOST, None));
        size.append(RUNS + 1, 1);
        let surplus = size.surplus().expect("too large");
        assert_eq!(surplus, Surplus { upto: RUNS / 2 + 1, is_urgent: false });
        size.purge(surplus.upto);
        assert_eq!(size.surplus(), None);
        assert!(size.bytes <= MOST / 2 && size.bytes > MOST / 4, "{}", size.bytes);
    }

    /// Of a small log, and of one whose limit is larger than the bytes that every log may hold.
    #[test]
    fn log_held_for_a_member_is_urgent_beyond_the_limit() {
        for most in [MOST, 4 * limits::LOG_HELD_BYTES_MIN] {
            let all = most + most.max(limits::LOG_HELD_BYTES_MIN);
            let mut size = LogSize::new(most);
            for index in 1..=all / MOST {
                size.append(index, usize::try_from(MOST).expect("fits"));
            }
            assert_eq!(size.surplus().map(|surplus| surplus.is_urgent), Some(false), "{most}");
            size.append(all / MOST + 1, 1);
            let surplus = size.surplus().expect("too large");
            assert!(surplus.is_urgent, "{most}");
            size.purge(surplus.upto);
            assert_eq!(size.surplus(), None);
        }
    }

    #[test]
    fn small_entries_share_a_run() {
        let size = with(RUN_BYTES * 10, 1);
        assert_eq!((size.bytes, size.runs.len()), (RUN_BYTES * 10, 10));
    }

    #[test]
    fn truncated_entries_are_not_counted() {
        let mut size = with(10, RUN_BYTES);
        size.truncate(6);
        assert_eq!((size.bytes, size.runs.len()), (5 * RUN_BYTES, 5));
        size.append(6, 7);
        assert_eq!(size.bytes, 5 * RUN_BYTES + 7);
        size.truncate(0);
        assert_eq!((size.bytes, size.runs.len()), (0, 0));
        // A run that is cut in the middle keeps its bytes and ends earlier.
        let mut size = with(99, RUN_BYTES / 10);
        let whole = size.bytes;
        size.truncate(96);
        assert_eq!(size.runs.back().map(|run| run.last), Some(95));
        assert_eq!(size.bytes, whole);
        size.purge(95);
        assert_eq!(size.bytes, 0);
    }
}
