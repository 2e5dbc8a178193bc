//! The small tables in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::state::command::{Node, PolicyHistoryRow, SigningKeyRow};
use crate::state::resources::revocation_index::{Epoch, EpochFloor};
use crate::state::resources::signing_keys::SigningKeyRecord;
use crate::state::resources::streams::{Stream, StreamCursor};
use crate::state::resources::{feature_levels, nodes, restore};
use crate::state::tables::{
    self, CLUSTER_ID, CURRENT_POLICY, DROPPED_BY_AGE, DROPPED_BY_BYTES, ELAPSED, FEATURE_LEVEL, FLOOR,
    INCARNATION, META, NODES, POLICY_HISTORY, REVOCATIONS, SIGNING_KEY, STREAM, STREAM_CURSOR, TIME, TOOLS,
};

/// Small tables in memory. Replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// 128 random bits that name the cluster; `None` before its first command.
    pub cluster_id: Option<Incarnation>,
    /// Incarnation of the cluster.
    pub incarnation: Option<Incarnation>,
    /// Epoch floor; `None` in a cluster that was not restored.
    pub floor: Option<EpochFloor>,
    /// Feature level of the cluster.
    pub feature_level: u32,
    /// Log time.
    pub time: Timestamp,
    /// Elapsed time ([`tables::EntryTime::elapsed`]).
    pub elapsed: Timestamp,
    /// The digest of the current policy; empty if there is none.
    pub policy: String,
    /// Signing keys by `kid`. Shared: most entries change none.
    pub signing_keys: Arc<BTreeMap<String, SigningKeyRecord>>,
    /// Nodes by their ids.
    pub nodes: Arc<BTreeMap<u64, Arc<Node>>>,
    /// Policy changes by number, oldest first.
    pub policy_history: Arc<BTreeMap<u64, PolicyHistoryRow>>,
    /// Number of tools.
    pub tools: u64,
    /// Number of revocations.
    pub revocations: u64,
    /// Number of audit blocks ever dropped by age.
    pub audit_dropped_by_age: u64,
    /// Number of audit blocks ever dropped by total size.
    pub audit_dropped_by_bytes: u64,
    /// Streams by their ids.
    pub streams: Arc<BTreeMap<String, Arc<Stream>>>,
    /// Cursors by the ids of their streams.
    pub stream_cursors: Arc<BTreeMap<String, Arc<StreamCursor>>>,
}

impl Index {
    /// Incarnation and floor.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch { incarnation: self.incarnation, floor: self.floor }
    }

    /// Takes a row that was written.
    pub(super) fn put(&mut self, table: &str, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
        match (table, key) {
            (META, CLUSTER_ID) => self.cluster_id = Some(read_incarnation(row)?),
            (META, INCARNATION) => self.incarnation = Some(read_incarnation(row)?),
            (META, FLOOR) => self.floor = Some(restore::floor_from_row(row)?),
            (META, FEATURE_LEVEL) => self.feature_level = feature_levels::from_row(row)?,
            (META, TIME) => self.time = read_time(row)?,
            (META, ELAPSED) => self.elapsed = read_time(row)?,
            (META, CURRENT_POLICY) => {
                let digest = String::from_utf8(row.to_vec());
                self.policy = digest.map_err(|_| Corrupt::row("a policy digest is not UTF-8"))?;
            }
            (META, TOOLS) => self.tools = read_number(row)?,
            (META, REVOCATIONS) => self.revocations = read_number(row)?,
            (META, DROPPED_BY_AGE) => self.audit_dropped_by_age = read_number(row)?,
            (META, DROPPED_BY_BYTES) => self.audit_dropped_by_bytes = read_number(row)?,
            (NODES, key) => {
                let node = nodes::from_row(key, row)?;
                Arc::make_mut(&mut self.nodes).insert(node.node_id, Arc::new(node));
            }
            (SIGNING_KEY, kid) => {
                let facts = SigningKeyRecord::from_row(kid, tables::decode::<SigningKeyRow>(table, row)?)?;
                Arc::make_mut(&mut self.signing_keys).insert(facts.kid.clone(), facts);
            }
            (POLICY_HISTORY, number) => {
                let number = number.try_into().map(u64::from_be_bytes);
                let number = number.map_err(|_| Corrupt::row("a policy change has no number"))?;
                Arc::make_mut(&mut self.policy_history).insert(number, tables::decode(table, row)?);
            }
            (STREAM, _) => {
                let stream = Stream::from_row(row)?;
                let stream_id = stream.config.stream_id.clone();
                Arc::make_mut(&mut self.streams).insert(stream_id, Arc::new(stream));
            }
            (STREAM_CURSOR, stream_id) => {
                let stream_id = String::from_utf8(stream_id.to_vec());
                let stream_id = stream_id.map_err(|_| Corrupt::row("a stream_id is not UTF-8"))?;
                let cursor = Arc::new(StreamCursor::from_row(row)?);
                Arc::make_mut(&mut self.stream_cursors).insert(stream_id, cursor);
            }
            _ => {}
        }
        Ok(())
    }

    /// Forgets a row that was deleted.
    pub(super) fn delete(&mut self, table: &str, key: &[u8]) {
        match table {
            STREAM => Arc::make_mut(&mut self.streams).retain(|id, _| id.as_bytes() != key),
            STREAM_CURSOR => Arc::make_mut(&mut self.stream_cursors).retain(|id, _| id.as_bytes() != key),
            NODES => Arc::make_mut(&mut self.nodes).retain(|id, _| id.to_be_bytes() != key),
            SIGNING_KEY => {
                Arc::make_mut(&mut self.signing_keys).retain(|kid, _| kid.as_bytes() != key);
            }
            POLICY_HISTORY => {
                Arc::make_mut(&mut self.policy_history).retain(|number, _| number.to_be_bytes() != key);
            }
            _ => {}
        }
    }
}

/// A row with 16 bytes.
pub(super) fn read_incarnation(row: &[u8]) -> Result<Incarnation, Corrupt> {
    row.try_into().map(Incarnation::from_bytes).map_err(|_| Corrupt::row("an id is not 16 bytes"))
}

/// A row with a time in milliseconds.
pub(super) fn read_time(row: &[u8]) -> Result<Timestamp, Corrupt> {
    let millis = row.try_into().map(i64::from_be_bytes);
    millis.map(Timestamp::from_millis).map_err(|_| Corrupt::row("a time is not a number"))
}

fn read_number(row: &[u8]) -> Result<u64, Corrupt> {
    row.try_into().map(u64::from_be_bytes).map_err(|_| Corrupt::row("a count is not a number"))
}
