//! Test support: tables in memory with a machine over them, and a cluster of one node with its state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::command::{
    AcceptSignal, Command, CreateStream, DeleteStream, Replied, Reply, SecurityEvent, Stream, decode_reply,
    encode, encode_batch,
};
use super::resources::events::SESSION_REVOKED;
use super::resources::{feed, outbox};
use super::tables::{FEED, LEDGER_SUM, META, OUTBOX, PROPOSER, REPLY, REVOCATION_ORDER};
use super::{Replicated, State, feature_level};
use crate::clock::{Clock, Timestamp};
use crate::cluster::{self, Corrupt, Machine as _, MemberEntry, ProposerId, Stamp, Submission, View, Write};
use crate::id::{Digest128, DigestKind};
use crate::keyring::{GenerateEventKey, Keyring};
use crate::limits;
use crate::token::signing_key::EventSigningKey;

/// An issuer of signals.
pub const ISS: &str = "https://idp.example";

/// Proposer id of commands for which a test states none.
const TEST_PROPOSER: ProposerId = ProposerId::from_bytes([8; 16]);

/// Number of commands in batches that belong to no harness.
static PROPOSED: AtomicU64 = AtomicU64::new(0);

/// A batch of new commands, to be applied to any tables.
pub fn batch(stamp: Stamp, commands: Vec<Bytes>) -> Bytes {
    let earlier = PROPOSED.fetch_add(commands.len() as u64, Ordering::Relaxed);
    batch_after(stamp, commands, ProposerId::from_bytes([9; 16]), earlier)
}

/// A batch of commands of one proposer, to which its `earlier` ones were answered.
fn batch_after(stamp: Stamp, commands: Vec<Bytes>, proposer: ProposerId, earlier: u64) -> Bytes {
    let submissions = commands.into_iter().zip(earlier + 1..).map(|(command, sequence)| Submission {
        proposer,
        sequence,
        low_watermark: sequence,
        command,
    });
    encode_batch(stamp, submissions.collect())
}

/// An event; only its subject distinguishes it from another.
pub fn about(subject: &str) -> SecurityEvent {
    SecurityEvent {
        event_type: SESSION_REVOKED.to_owned(),
        sub_id: json!({"format": "iss_sub", "iss": ISS, "sub": subject}).to_string(),
        claims: "{}".to_owned(),
        txn: String::new(),
        via: Vec::new(),
    }
}

/// A signal with an event about each of these subjects.
pub fn signal(jti: &str, subjects: &[&str]) -> Command {
    let jti = Digest128::of(DigestKind::Signal, ISS.as_bytes(), jti.as_bytes());
    Command::AcceptSignal(AcceptSignal {
        jti: Bytes::copy_from_slice(jti.as_bytes()),
        issuer: ISS.to_owned(),
        quota: 1000,
        content: Bytes::from_static(&[7; 16]),
        events: subjects.iter().map(|subject| about(subject)).collect(),
        ..AcceptSignal::default()
    })
}

/// Creates a poll stream for every event.
pub fn create_stream(stream_id: &str, owner: &str) -> Command {
    let stream = Stream {
        stream_id: stream_id.to_owned(),
        owner: owner.to_owned(),
        aud: "https://receiver.example".to_owned(),
        events_requested: vec![SESSION_REVOKED.to_owned()],
        events_delivered: vec![SESSION_REVOKED.to_owned()],
        ..Stream::default()
    };
    Command::CreateStream(CreateStream { stream: Some(stream) })
}

pub fn delete_stream(stream_id: &str) -> Command {
    Command::DeleteStream(DeleteStream { stream_id: stream_id.to_owned() })
}

/// A cluster of one node with bootstrapped state and a manual clock.
pub struct TestNode {
    /// Directory of the databases and of files of the test.
    pub directory: TempDir,
    pub state: State,
    pub clock: Clock,
    tasks: JoinSet<()>,
    closed: cluster::Closed,
}

impl TestNode {
    /// Starts at `now`.
    pub async fn start(now: Timestamp) -> Self {
        Self::start_at_level(now, feature_level::NEWEST).await
    }

    /// Starts a cluster of this feature level.
    #[expect(clippy::disallowed_methods, reason = "the log writer needs its thread here as in the product")]
    pub async fn start_at_level(now: Timestamp, level: u32) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let clock = Clock::manual(now);
        let options = cluster::Options {
            data: directory.path().to_owned(),
            node_id: 1,
            drawn_disk_id: [7; 16],
            drawn_cluster_id: [1; 16],
            drawn_proposer_id: TEST_PROPOSER,
            heartbeat: Duration::from_millis(20),
            clock: clock.clone(),
            freshness: cluster::FreshnessMode::default(),
            log_bytes_max: limits::LOG_BYTES_MAX_DEFAULT,
            settings_digest: None,
            transport: None,
        };
        let started = cluster::start(options, Replicated::default(), |writer| {
            // The runtime ends after its blocking tasks: a thread of its own may close the log's database while the
            // process ends, which RocksDB answers with an abort.
            tokio::task::spawn_blocking(writer);
            Ok(())
        });
        let started = started.await.expect("starts");
        let mut tasks = JoinSet::new();
        for work in started.work {
            tasks.spawn(work);
        }
        let state = State::new(started.handle);
        state.cluster().until_recovered(Duration::from_secs(20)).await.expect("recovers");
        state.bootstrap([1; 16], [2; 16], level).await.expect("bootstraps");
        Self { directory, state, clock, tasks, closed: started.closed }
    }

    /// The keys of this node, including those for security event tokens.
    pub async fn keyring(&self) -> Keyring {
        let make: GenerateEventKey = Arc::new(|| Box::pin(async { EventSigningKey::generate() }));
        let keys = self.directory.path().join("keys");
        let keyring = Keyring::open(&keys, self.state.clone(), Some(make)).expect("opens");
        keyring.ensure().await.expect("keys");
        keyring
    }

    /// Closes the databases: a process that ends while they are open may abort. Blocks as long as another clone of the
    /// state exists.
    pub async fn end(self) {
        let Self { directory, state, mut tasks, closed, .. } = self;
        tasks.shutdown().await;
        state.cluster().shutdown().await.expect("shuts down");
        drop(state);
        closed.wait().await;
        drop(directory);
    }
}

/// Tables in memory, and a machine over them.
#[derive(Default)]
pub struct StateHarness {
    /// State machine with the rows in memory.
    pub machine: Replicated,
    /// Tables.
    pub rows: Rows,
    entries: u64,
    /// Number of commands without an id of the test's own.
    proposed: u64,
    elapsed: Timestamp,
}

/// Rows by table and key.
#[derive(Clone, Debug, Default)]
pub struct Rows(pub BTreeMap<(String, Vec<u8>), Vec<u8>>);

impl View for Rows {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        Ok(self.0.get(&(table.to_owned(), key.to_vec())).cloned())
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let first = (table.to_owned(), from.to_vec());
        for ((row_table, key), row) in self.0.range(first..) {
            if row_table != table || !visit(key, row) {
                break;
            }
        }
        Ok(())
    }
}

impl Rows {
    pub fn write(&mut self, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Put { table, key, value } => {
                    self.0.insert((table.to_owned(), key), value);
                }
                Write::Delete { table, key } => {
                    self.0.remove(&(table.to_owned(), key));
                }
                Write::DeleteRange { table, from, to } => {
                    self.0.retain(|(row_table, key), _| row_table != table || *key < from || *key >= to);
                }
            }
        }
    }

    /// The rows without those of deduplication, which every command changes, also a refused one.
    #[must_use]
    pub fn without_deduplication(&self) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
        let mut rows = self.0.clone();
        rows.retain(|(table, _), _| table != PROPOSER && table != REPLY);
        rows
    }

    /// The rows without those that depend on the log index of their entry and without those of deduplication: both
    /// differ when the same commands come in fewer or more entries.
    #[must_use]
    pub fn without_events(&self) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
        let is_span = |key: &[u8]| key == outbox::SPAN || key == feed::SPAN;
        let mut rows = self.0.clone();
        let differs = [OUTBOX, FEED, REVOCATION_ORDER, LEDGER_SUM, PROPOSER, REPLY];
        rows.retain(|(table, key), _| !(differs.contains(&&table[..]) || table == META && is_span(key)));
        rows
    }
}

impl StateHarness {
    /// Applies commands as one entry.
    pub fn apply(&mut self, at: Timestamp, commands: Vec<Command>) -> Vec<Reply> {
        self.encoded(at, commands.into_iter().map(encode).collect())
    }

    /// As [`Self::apply`], with encoded commands.
    pub fn encoded(&mut self, at: Timestamp, commands: Vec<Bytes>) -> Vec<Reply> {
        self.replied(at, commands).into_iter().map(|replied| replied.outcome).collect()
    }

    /// As [`Self::encoded`]; returns also whether each outcome is that of an earlier command.
    pub fn replied(&mut self, at: Timestamp, commands: Vec<Bytes>) -> Vec<Replied<Reply>> {
        let stamp = self.stamp(at);
        self.stamped_as(stamp, commands)
    }

    /// Applies commands with their ids as one entry.
    pub fn submitted(&mut self, at: Timestamp, submissions: Vec<Submission>) -> Vec<Replied<Reply>> {
        let stamp = self.stamp(at);
        self.entry(&Replicated::batch(stamp, submissions))
    }

    /// Elapsed time follows `at`, but does not go back with it.
    fn stamp(&mut self, at: Timestamp) -> Stamp {
        self.elapsed = self.elapsed.max(at);
        Stamp { time: at, latest: at, elapsed: self.elapsed }
    }

    /// As [`Self::replied`], with independent times.
    pub fn stamped_as(&mut self, stamp: Stamp, commands: Vec<Bytes>) -> Vec<Replied<Reply>> {
        let earlier = self.proposed;
        self.proposed += commands.len() as u64;
        self.entry(&batch_after(stamp, commands, TEST_PROPOSER, earlier))
    }

    /// Applies an encoded batch.
    pub fn entry(&mut self, batch: &[u8]) -> Vec<Replied<Reply>> {
        self.entries += 1;
        let applied = self.machine.apply(&self.rows, batch, self.entries).expect("applies");
        self.rows.write(applied.writes.clone());
        self.machine.project(&applied.writes, self.entries).expect("projects");
        applied.replies.iter().map(|reply| decode_reply(reply).expect("reply")).collect()
    }

    /// Applies a membership entry.
    pub fn members(&mut self, members: &[MemberEntry]) {
        self.entries += 1;
        let writes = self.machine.record_members(&self.rows, members, self.entries).expect("records");
        self.rows.write(writes.clone());
        self.machine.project(&writes, self.entries).expect("projects");
    }

    /// Log index of the last entry.
    pub fn last_index(&self) -> u64 {
        self.entries
    }

    /// Skips log indexes.
    pub fn skip_to(&mut self, index: u64) {
        self.entries = index;
    }

    /// Applies one command as one entry.
    pub fn one(&mut self, at: Timestamp, command: Command) -> Reply {
        self.apply(at, vec![command]).remove(0)
    }
}
