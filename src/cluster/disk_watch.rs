//! Detection of a hanging disk under the log. A hanging disk blocks the leader's own appends while its heartbeats go
//! on: without detection it would lead, and commit nothing, for as long as the disk hangs.
//!
//! A watchdog thread counts its ticks while the log writer's current group does not finish. It counts ticks and not
//! time, so that a pause of the process counts as one tick at most.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::watch;

use super::{Handle, Machine};
use crate::limits;

/// State of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskState {
    /// Writes finish.
    #[default]
    Answers,
    /// A write hangs: this node neither leads nor requests a lease.
    Hangs,
    /// A write hangs for so long that this node stops, if another member leads.
    Lost,
}

/// State shared by the log writer, the watchdog and its readers.
#[derive(Default)]
pub(crate) struct DiskMonitor {
    /// Twice the number of written groups, plus one while a group is being written.
    groups: AtomicU64,
    state: watch::Sender<DiskState>,
    /// Blocks the writer while a test holds it.
    #[cfg(test)]
    pub(crate) hold: tokio::sync::Mutex<()>,
}

impl DiskMonitor {
    /// Whether a write of the log hangs.
    pub(crate) fn hangs(&self) -> bool {
        *self.state.borrow() != DiskState::Answers
    }

    /// The state of the disk, as it changes.
    pub(crate) fn state(&self) -> watch::Receiver<DiskState> {
        self.state.subscribe()
    }
}

/// The log writer's part. The watchdog ends with it.
pub(crate) struct WriterProbe {
    disk: Arc<DiskMonitor>,
    _running: Sender<Infallible>,
}

impl WriterProbe {
    /// Writes one group.
    pub(crate) fn group<T>(&self, write: impl FnOnce() -> T) -> T {
        self.disk.groups.fetch_add(1, Ordering::Release);
        #[cfg(test)]
        drop(self.disk.hold.blocking_lock());
        let written = write();
        self.disk.groups.fetch_add(1, Ordering::Release);
        written
    }
}

/// Polls the log writer.
pub struct Watchdog {
    disk: Arc<DiskMonitor>,
    writer: Receiver<Infallible>,
    /// The value of `groups` at the last tick, and for how many ticks it has not changed.
    seen: u64,
    ticks: u32,
    hangs_after: u32,
    lost_after: u32,
}

/// Creates both parts.
pub(crate) fn watch() -> (WriterProbe, Watchdog) {
    let (running, writer) = channel();
    let disk = Arc::<DiskMonitor>::default();
    let watched = WriterProbe { disk: Arc::clone(&disk), _running: running };
    let (hangs_after, lost_after) = (limits::DISK_HUNG_TICKS, limits::DISK_LOST_TICKS);
    (watched, Watchdog { disk, writer, seen: 0, ticks: 0, hangs_after, lost_after })
}

impl Watchdog {
    /// Sets the thresholds for a heartbeat interval: they grow with slow heartbeats.
    pub(crate) fn with_heartbeat(mut self, heartbeat: Duration) -> Self {
        let heartbeats = heartbeat * limits::DISK_HUNG_HEARTBEATS;
        let ticks = heartbeats.as_millis().div_ceil(limits::DISK_TICK.as_millis());
        self.hangs_after = u32::try_from(ticks).unwrap_or(u32::MAX).max(limits::DISK_HUNG_TICKS);
        self.lost_after = self.hangs_after.max(limits::DISK_LOST_TICKS);
        self
    }

    pub(crate) fn disk(&self) -> Arc<DiskMonitor> {
        Arc::clone(&self.disk)
    }

    /// Polls until the log writer ends. To be run on a thread of its own.
    pub(crate) fn run(mut self) {
        while self.writer.recv_timeout(limits::DISK_TICK) == Err(RecvTimeoutError::Timeout) {
            self.tick();
        }
    }

    /// One poll.
    pub(crate) fn tick(&mut self) {
        let groups = self.disk.groups.load(Ordering::Acquire);
        let is_same_group = groups % 2 == 1 && groups == self.seen;
        self.ticks = if is_same_group { self.ticks.saturating_add(1) } else { 0 };
        self.seen = groups;
        let now = match self.ticks {
            ticks if ticks >= self.lost_after => DiskState::Lost,
            ticks if ticks >= self.hangs_after => DiskState::Hangs,
            _ => DiskState::Answers,
        };
        let ticks = self.ticks;
        self.disk.state.send_if_modified(|state| {
            let before = std::mem::replace(state, now);
            match (before, now) {
                (DiskState::Answers, DiskState::Hangs | DiskState::Lost) => {
                    tracing::error!(ticks, "disk of the Raft log hangs: this node does not lead");
                }
                (DiskState::Hangs | DiskState::Lost, DiskState::Answers) => {
                    tracing::info!("disk of the Raft log has recovered");
                }
                _ => {}
            }
            before != now
        });
    }
}

impl<M: Machine> Handle<M> {
    /// Whether the disk of the log hangs. This node then serves no fresh read and no write.
    pub(crate) fn disk_hangs(&self) -> bool {
        self.disk.hangs()
    }

    /// Transfers leadership while the disk hangs, and stops the node if that lasts and another node leads. Without
    /// another leader it stays: storage shared by all members may recover in a moment. Runs for ever.
    pub(super) async fn watch_disk(self) {
        let mut states = self.disk.state();
        loop {
            let state = *states.borrow_and_update();
            let acted = async {
                match state {
                    DiskState::Answers => std::future::pending().await,
                    // Repeatedly: this node may have been elected meanwhile, or had no successor.
                    DiskState::Hangs => drop(self.transfer_leadership().await),
                    DiskState::Lost => {
                        self.until_another_leads().await;
                        let reason = "the disk of the Raft log hangs, and another node leads";
                        self.channels.local.stop(reason.to_owned());
                    }
                }
                tokio::time::sleep(limits::HAND_OVER_ATTEMPT_TIMEOUT).await;
            };
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                () = acted => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_group_is_reported_after_its_ticks() {
        let (watched, mut watchdog) = watch();
        let disk = watchdog.disk();
        let state = disk.state();
        for _ in 0..2 * limits::DISK_LOST_TICKS {
            watchdog.tick();
        }
        assert!(!disk.hangs(), "an idle writer");
        watched.group(|| {
            // The first tick only notices the group.
            for tick in 0..=limits::DISK_LOST_TICKS {
                watchdog.tick();
                let expected = match tick {
                    limits::DISK_LOST_TICKS.. => DiskState::Lost,
                    limits::DISK_HUNG_TICKS.. => DiskState::Hangs,
                    _ => DiskState::Answers,
                };
                assert_eq!(*state.borrow(), expected, "{tick}");
            }
        });
        watchdog.tick();
        assert_eq!(*state.borrow(), DiskState::Answers);
    }

    /// A slow disk: many groups in turn, each shorter than the threshold.
    #[test]
    fn slow_groups_that_finish_are_no_hang() {
        let (watched, mut watchdog) = watch();
        for _ in 0..limits::DISK_LOST_TICKS {
            watched.group(|| (0..limits::DISK_HUNG_TICKS).for_each(|_| watchdog.tick()));
            assert!(!watchdog.disk().hangs());
        }
    }

    #[test]
    fn slow_heartbeats_raise_the_thresholds() {
        let after = |millis| {
            let watchdog = watch().1.with_heartbeat(Duration::from_millis(millis));
            (watchdog.hangs_after, watchdog.lost_after)
        };
        assert_eq!(after(50), (limits::DISK_HUNG_TICKS, limits::DISK_LOST_TICKS));
        assert_eq!(after(101), (11, limits::DISK_LOST_TICKS));
        assert_eq!(after(5_000), (500, 500));
    }

    #[test]
    fn watchdog_ends_with_the_writer() {
        let (watched, watchdog) = watch();
        drop(watched);
        watchdog.run();
    }
}
