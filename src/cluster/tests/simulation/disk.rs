//! The log of a simulated node, in memory: each write takes time, and a crash loses what is not written then.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard};

use openraft::entry::RaftEntry as _;
use openraft::rt::AsyncRuntime as _;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{mpsc, oneshot, watch};

use super::random::Random;
use super::{SimConfig, SimRuntime};
use crate::cluster::type_config::{Entry, LogId, Vote};

/// Everything on a disk.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The last entry that was purged.
    purged: Option<LogId>,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub entries: BTreeMap<u64, Entry>,
}

enum Write {
    Vote(Vote),
    Committed(LogId),
    Append(Vec<Entry>),
    Truncate(u64),
    Purge(LogId),
}

impl Content {
    fn write(&mut self, write: &Write) {
        match write {
            Write::Vote(vote) => self.vote = Some(*vote),
            Write::Committed(committed) => self.committed = Some(*committed),
            Write::Append(entries) => {
                self.entries.extend(entries.iter().map(|entry| (entry.log_id().index, entry.clone())));
            }
            Write::Truncate(first) => drop(self.entries.split_off(first)),
            Write::Purge(last) => {
                self.purged = Some(*last);
                self.entries = self.entries.split_off(&(last.index + 1));
            }
        }
    }

    fn end(&self) -> u64 {
        let last = self.entries.last_key_value().map(|(index, _)| *index);
        last.max(self.purged.map(|purged| purged.index)).map_or(0, |last| last + 1)
    }
}

enum Done {
    Nothing,
    Flushed(IOFlushed<SimConfig>),
    Signal(oneshot::Sender<()>),
}

struct Disk {
    /// As the node sees it.
    memory: Content,
    /// As it is after a crash.
    durable: Content,
}

/// The log store that openraft writes to.
#[derive(Clone)]
pub struct SimLog {
    disk: Arc<Mutex<Disk>>,
    jobs: mpsc::UnboundedSender<(Write, Done)>,
    durable: watch::Receiver<u64>,
}

/// Writes in order, several at once. Now and then the disk hangs for a moment.
async fn write(
    disk: Arc<Mutex<Disk>>,
    mut jobs: mpsc::UnboundedReceiver<(Write, Done)>,
    durable: watch::Sender<u64>,
    mut random: Random,
) {
    while let Some(first) = jobs.recv().await {
        let mut group = vec![first];
        while let Ok(next) = jobs.try_recv() {
            group.push(next);
        }
        let (from, to) = if random.percent(1) { (100_000, 500_000) } else { (300, 4_000) };
        SimRuntime::sleep(random.micros(from, to)).await;
        let end = {
            let mut disk = disk.lock().expect("disk");
            for (write, _) in &group {
                disk.durable.write(write);
            }
            disk.durable.end()
        };
        durable.send_replace(end);
        for (_, done) in group {
            match done {
                Done::Nothing => {}
                Done::Flushed(flushed) => flushed.io_completed(Ok(())),
                Done::Signal(done) => drop(done.send(())),
            }
        }
    }
}

impl SimLog {
    /// A log with the content that a crash left.
    pub fn open(content: Content, random: Random) -> Self {
        let (sender, durable) = watch::channel(content.end());
        let (jobs, queue) = mpsc::unbounded_channel();
        let disk = Arc::new(Mutex::new(Disk { memory: content.clone(), durable: content }));
        drop(SimRuntime::spawn(write(Arc::clone(&disk), queue, sender, random)));
        Self { disk, jobs, durable }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("disk")
    }

    /// The state that a crash leaves now.
    pub fn after_a_crash(&self) -> Content {
        self.disk().durable.clone()
    }

    /// Ids of the entries, as the node sees them. Those before a purged entry that is committed are the committed ones.
    pub fn log_ids(&self, committed: &BTreeMap<u64, LogId>) -> BTreeMap<u64, LogId> {
        let disk = self.disk();
        let mut ids: BTreeMap<_, _> =
            disk.memory.entries.iter().map(|(index, entry)| (*index, entry.log_id())).collect();
        if let Some(purged) = disk.memory.purged {
            let is_committed = committed.get(&purged.index) == Some(&purged);
            ids.extend(
                committed.range(..=purged.index).filter(|_| is_committed).map(|(index, id)| (*index, *id)),
            );
        }
        ids
    }

    /// Watches the end of the durable entries.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.durable.clone()
    }

    fn queue(&self, write: Write, done: Done) {
        self.disk().memory.write(&write);
        drop(self.jobs.send((write, done)));
    }
}

impl RaftLogReader<SimConfig> for SimLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.disk().memory.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.disk().durable.vote)
    }
}

impl RaftLogStorage<SimConfig> for SimLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<SimConfig>> {
        let disk = self.disk();
        let last = disk.memory.entries.last_key_value().map(|(_, entry)| entry.log_id());
        Ok(LogState { last_purged_log_id: disk.memory.purged, last_log_id: last.or(disk.memory.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.queue(Write::Vote(*vote), Done::Signal(done));
        written.await.map_err(io::Error::other)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(committed) = committed {
            self.queue(Write::Committed(committed), Done::Nothing);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.disk().memory.committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<SimConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.queue(Write::Append(entries.into_iter().collect()), Done::Flushed(flushed));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.queue(Write::Truncate(last.map_or(0, |last| last.index + 1)), Done::Signal(done));
        written.await.map_err(io::Error::other)
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.queue(Write::Purge(last), Done::Signal(done));
        written.await.map_err(io::Error::other)
    }
}
