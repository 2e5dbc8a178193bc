//! Free space of the file system with the data directory.
//!
//! If it is low, this node refuses commands that add data; revocations, removals and the commands of nodes
//! may use the remaining space. If it is almost gone, the node should not lead either: its next write of the
//! log may fail, which stops the node.

use std::fs;
use std::io;
use std::path::Path;

use tokio::sync::watch;

use super::{Handle, Machine};
use crate::limits;

/// State of the free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceState {
    /// Every command is accepted.
    #[default]
    Enough,
    /// Commands that add data are refused.
    Low,
    /// This node should not lead either, and is not ready while another voter is able to lead.
    Full,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Free, for a process without privileges.
    pub(crate) free: u64,
    /// Size of the file system.
    pub(crate) total: u64,
}

/// The disk of a node is short of space, and the command adds data. Nothing was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk of node {node_id} has {free} bytes free, and a write that adds data needs {needed}")]
pub struct DiskShortage {
    pub(crate) node_id: u64,
    /// Free bytes.
    pub(crate) free: u64,
    /// Free bytes from which such commands are accepted again.
    pub(crate) needed: u64,
}

impl Space {
    /// Space of the file system with `path`; `None` if it cannot be read.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let space = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        Some(Self { free: bytes(space.f_bavail), total: bytes(space.f_blocks) })
    }

    /// Error if the file system with `path` has less than `needed` bytes free.
    pub(crate) fn require(path: &Path, needed: u64) -> io::Result<()> {
        match Self::of(path).filter(|space| space.free < needed) {
            Some(Self { free, .. }) => {
                Err(io::Error::other(format!("{needed} bytes are needed, and the disk has {free} free")))
            }
            None => Ok(()),
        }
    }

    /// Bytes that opening or copying a database in `directory`, or in a directory below it, may write: those of its write-ahead
    /// logs, of which the tables lack no more than the write buffers of `buffer_bytes` hold.
    pub(crate) fn unflushed(directory: &Path, buffer_bytes: usize) -> u64 {
        let items = fs::read_dir(directory).into_iter().flatten().flatten();
        let bytes = items.map(|item| match item.metadata() {
            Ok(metadata) if metadata.is_dir() => Self::unflushed(&item.path(), buffer_bytes),
            Ok(metadata) if item.path().extension().is_some_and(|end| end == "log") => metadata.len(),
            _ => 0,
        });
        bytes.fold(0, u64::saturating_add).min(buffer_bytes as u64)
    }

    /// Below it, the space is low.
    fn low(self) -> u64 {
        let part = self.total / limits::DISK_LOW_DIVISOR;
        part.clamp(limits::DISK_LOW_BYTES_MIN, limits::DISK_LOW_BYTES_MAX)
    }

    /// Below it, the space is almost gone.
    pub(crate) fn reserve(self) -> u64 {
        self.low() / limits::DISK_RESERVE_DIVISOR
    }

    /// The state after `before`. It improves only when a quarter more than the limit is free, so that it does not
    /// change back and forth.
    fn state(self, before: SpaceState) -> SpaceState {
        let is_below = |limit: u64, holds: bool| self.free < if holds { regained(limit) } else { limit };
        if is_below(self.reserve(), before == SpaceState::Full) {
            SpaceState::Full
        } else if is_below(self.low(), before != SpaceState::Enough) {
            SpaceState::Low
        } else {
            SpaceState::Enough
        }
    }
}

const fn regained(limit: u64) -> u64 {
    limit + limit / limits::DISK_REGAINED_DIVISOR
}

/// The last measurement.
#[derive(Default)]
pub(crate) struct DiskSpace {
    measured: watch::Sender<(Space, SpaceState)>,
    /// Whether another voter was able to lead at the last measurement while this disk is full.
    pub(crate) others_can_lead: watch::Sender<bool>,
    /// Space that a test pretends; it replaces the measured one.
    #[cfg(test)]
    pub(crate) pretended: parking_lot::Mutex<Option<Space>>,
}

impl DiskSpace {
    /// Records a measurement, and logs a change of the state.
    pub(crate) fn record(&self, space: Space) {
        self.measured.send_modify(|(last, state)| {
            let before = std::mem::replace(state, space.state(*state));
            *last = space;
            let (free, limit) = (space.free, space.low());
            match *state {
                now if now == before => {}
                SpaceState::Enough => tracing::info!(free, limit, "disk space is sufficient again"),
                SpaceState::Low => {
                    tracing::warn!(free, limit, "disk space is low: writes that add data are refused");
                }
                SpaceState::Full => {
                    let limit = space.reserve();
                    tracing::error!(
                        free,
                        limit,
                        "disk space is almost gone: this node gives up leadership if another voter can lead"
                    );
                }
            }
        });
    }

    /// State of the free space.
    pub(crate) fn state(&self) -> SpaceState {
        self.measured.borrow().1
    }

    /// Whether this node should not lead for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.state() == SpaceState::Full
    }
}

impl<M: Machine> Handle<M> {
    /// Measures the free space, and transfers leadership to an able voter while it is almost gone. If there is none, this
    /// node goes on: revocations are durable as long as its writes succeed. Runs for ever.
    pub(super) async fn watch_disk_space(self) {
        loop {
            self.measure_disk_space();
            let voters = if self.space.is_full() { self.able_voters().await } else { Vec::new() };
            self.space.others_can_lead.send_replace(!voters.is_empty());
            if self.known_leader() == Some(self.node_id) {
                self.transfer_to_one_of(voters).await;
            }
            tokio::time::sleep(limits::DISK_SPACE_CHECK_INTERVAL).await;
        }
    }

    /// Measures the free space; `None` if it cannot be measured.
    pub(super) fn measure_disk_space(&self) -> Option<Space> {
        // A hung disk would block this call.
        let space = if self.disk.hangs() { None } else { self.channels.local.disk_space() };
        #[cfg(test)]
        let space = self.space.pretended.lock().or(space);
        if let Some(space) = space {
            self.space.record(space);
        }
        space
    }

    /// Other voters that serve, have space and whose clock is not known to be wrong: one of the others would transfer
    /// leadership back.
    pub(super) async fn able_voters(&self) -> Vec<u64> {
        let clocks = self.clocks();
        let reports = self.other_voters().await.into_iter();
        let able = reports.filter(|(voter, report)| {
            report.as_ref().is_ok_and(|report| {
                let serves = report.lease_is_held && report.disputed_index.is_none();
                serves && !report.disk_is_full && !report.disk_hangs && !clocks.is_wrong(*voter)
            })
        });
        able.map(|(voter, _)| voter).collect()
    }

    /// Transfers leadership to the first of `voters` that takes over.
    pub(super) async fn transfer_to_one_of(&self, voters: Vec<u64>) {
        for voter in voters {
            if self.transfer_leadership_to(Some(voter)).await {
                return;
            }
        }
    }

    /// Whether callers should use another node, because the space of this one is almost gone and another voter is able to
    /// lead ([`Self::able_voters`]). While none is, each node accepts revocations.
    pub(crate) fn is_spared(&self) -> bool {
        self.space.is_full() && *self.space.others_can_lead.borrow()
    }

    /// Refuses a command that adds data while the disk of this node is short of space.
    ///
    /// # Errors
    /// [`DiskShortage`].
    pub(super) fn check_space(&self, command: &[u8]) -> Result<(), DiskShortage> {
        let (space, state) = *self.space.measured.borrow();
        if state == SpaceState::Enough || !M::adds_data(command) {
            return Ok(());
        }
        Err(DiskShortage { node_id: self.node_id, free: space.free, needed: regained(space.low()) })
    }

    /// The last measurement of the free space, and its state.
    pub(crate) fn disk_space(&self) -> (Space, SpaceState) {
        *self.space.measured.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn limits_follow_the_size_within_bounds() {
        for (total, low, reserve) in
            [(0, 64, 16), (200, 64, 16), (2_560, 256, 64), (10_240, 1_024, 256), (1 << 30, 1_024, 256)]
        {
            let space = Space { free: 0, total: total * MIB };
            assert_eq!((space.low(), space.reserve()), (low * MIB, reserve * MIB), "{total}");
        }
    }

    /// Just above a limit the state would change with every file that is written and deleted.
    #[test]
    fn state_improves_only_with_a_quarter_more_space() {
        use SpaceState::{Enough, Full, Low};
        let at = |free| Space { free, total: 2_560 * MIB };
        let (low, reserve) = (256 * MIB, 64 * MIB);
        for (before, free, expected) in [
            (Enough, low, Enough),
            (Enough, low - 1, Low),
            (Low, low, Low),
            (Low, low + low / 4 - 1, Low),
            (Low, low + low / 4, Enough),
            (Low, reserve, Low),
            (Low, reserve - 1, Full),
            (Enough, reserve - 1, Full),
            (Full, reserve, Full),
            (Full, reserve + reserve / 4 - 1, Full),
            (Full, reserve + reserve / 4, Low),
            (Full, low, Low),
            (Full, low + low / 4, Enough),
        ] {
            assert_eq!(at(free).state(before), expected, "{before:?} {free}");
        }
    }
}
