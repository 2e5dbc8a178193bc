//! The tables of the state, and the read view and changes of one entry while it is applied.

pub(crate) mod packed_rows;
pub(crate) mod packed_table;
pub(crate) mod quotas;
pub(crate) mod row_cache;
pub(crate) mod ttl_buckets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use prost::Message;

use super::command::EventId;
use crate::breaks::{self, Break};
use crate::clock::{Clock, Timestamp};
use crate::cluster::{Corrupt, Stamp, View, Write};

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*

        /// Every table.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

tables! {
    /// Cluster id, incarnation, log time, counters, the oldest TTL buckets.
    META = "meta";
    /// Used nonces, by (bucket, digest).
    NONCE = "nonce";
    /// Used execution-scoped tokens, by (bucket, digest).
    SPENT_TOKEN = "spent_token";
    /// Idempotency keys, by (bucket, digest).
    IDEMPOTENCY = "idempotency";
    /// Signing keys, by `kid`.
    SIGNING_KEY = "signing_key";
    /// Policy bundles, by digest.
    POLICY = "policy";
    /// Changes of the policy, by number.
    POLICY_HISTORY = "policy_history";

    /// Tools, by `tool_id`.
    TOOL = "tool";
    /// Index of tools by protocol, by (protocol, 0, `tool_id`); rows are empty.
    TOOL_OF_PROTOCOL = "tool_of_protocol";
    /// Agents, by `agent_id`.
    AGENT = "agent";
    /// Index of agents by the caller that issued them, by (caller, 0, `agent_id`); rows are empty.
    AGENT_OF_ISSUER = "agent_of_issuer";
    /// Callers that were revoked after issuing agents, by caller: the log index of the revocation, 8 bytes. Retained as
    /// long as their agents.
    AGENT_ISSUER_REVOKED = "agent_issuer_revoked";
    /// Ends of agents, by (log time in milliseconds, `agent_id`); rows are empty.
    AGENT_END = "agent_end";
    /// Quota counters: tools, agents and streams of a caller, subjects with encryption keys of a trust domain; by (kind, 0,
    /// owner): 8 bytes.
    OWNED = "owned";
    /// Encryption keys, by (workload identifier, 0, `kid`).
    ENCRYPTION_KEY = "encryption_key";
    /// Encryption keys by the facts that their registrar's token derived from, by (digest of the fact, log index of the
    /// token's `idx`, workload identifier, 0, `kid`); rows are empty.
    ENCRYPTION_KEY_OF = "encryption_key_of";
    /// Ends of encryption keys, by (elapsed time in milliseconds, workload identifier, 0, `kid`); rows are empty.
    ENCRYPTION_KEY_END = "encryption_key_end";
    /// Revocations, by digest.
    REVOCATION = "revocation";
    /// Ends of revocations and of lifted subject blocks, by (elapsed time in milliseconds, their key); rows
    /// are empty.
    REVOCATION_END = "revocation_end";
    /// Revocation quota of an issuer, by `iss`.
    REVOCATION_QUOTA = "revocation_quota";
    /// Subject blocks, by (digest of the fact, digest of issuer and family).
    BLOCK = "block";
    /// The ledger in its order: (log index, key of the revocation or block): its state, 1 byte, and its epoch, 4 bytes.
    REVOCATION_ORDER = "revocation_order";
    /// Sums of ledgers, by origin, and by (origin, epoch). The origin of our own is 16 zero bytes, that of a copy is
    /// (peer, generation).
    LEDGER_SUM = "ledger_sum";
    /// Peer fabrics, by the digest of their issuer.
    PEER = "peer";
    /// Signing keys of peers, by peer.
    PEER_KEYS = "peer_keys";
    /// Entries of the copies of peers' ledgers, by (peer, generation, digest of the fact).
    PEER_LEDGER = "peer_ledger";
    /// Ends of these entries, by (elapsed time in milliseconds, their key); rows are empty.
    PEER_LEDGER_END = "peer_ledger_end";
    /// Blocks of peers that are in force, by (peer, log index of the import that began to read them, digest of the fact,
    /// digest of the author): the log index in the peer, 8 bytes.
    PEER_BLOCK = "peer_block";
    /// Received security event tokens, by (bucket, digest): the digest of the content, 16 bytes, and the log index, 8.
    SIGNAL = "signal";
    /// Headers of audit blocks, by number.
    AUDIT_BLOCK = "audit_block";
    /// Contents of audit blocks, by (bucket, number).
    AUDIT_CONTENT = "audit_content";
    /// Index of audit blocks with content by tool, by (digest of `tool_id`, number); rows are empty.
    AUDIT_TRAIL = "audit_trail";
    /// Head of the hash chain of a tool in a bucket on a node, by (digest of `tool_id`, bucket, node): the hash of its
    /// last entry.
    AUDIT_HEAD = "audit_head";
    /// The last audit block of each node, by node id.
    AUDIT_NODE = "audit_node";

    /// Node ids with their disks and roles, by node id: 8 bytes.
    NODES = "nodes";

    /// Streams, by `stream_id`.
    STREAM = "stream";
    /// Cursors of streams, by `stream_id`.
    STREAM_CURSOR = "stream_cursor";
    /// Dead letters, by (`stream_id`, 0, event id).
    DEAD_LETTER = "dead_letter";
    /// Security events for streams (outbox), by event id.
    OUTBOX = "outbox";
    /// Events of the live feed, by event id.
    FEED = "feed";

    /// Proposers, by proposer id.
    PROPOSER = "proposer";
    /// Replies to commands that may be resent, by (proposer id, sequence / [`limits::REPLIES_PER_ROW`]).
    REPLY = "reply";
}

/// Row of [`META`], 16 bytes.
pub const CLUSTER_ID: &[u8] = b"cluster_id";
/// Row of [`META`], 16 bytes.
pub const INCARNATION: &[u8] = b"incarnation";
/// Row of [`META`]: feature level of the cluster, 8 bytes; absent: 0.
pub const FEATURE_LEVEL: &[u8] = b"feature_level";
/// Row of [`META`]: elapsed time of the bootstrap or of the last restore in milliseconds, 8 bytes.
pub const BOOTSTRAPPED_AT: &[u8] = b"bootstrapped_at";
/// Row of [`META`]: epoch floor of the incarnation, if it began with a restore.
pub const FLOOR: &[u8] = b"floor";
/// Row of [`META`]: log time, milliseconds, 8 bytes.
pub const TIME: &[u8] = b"time";
/// Row of [`META`]: elapsed time, milliseconds, 8 bytes ([`EntryTime::elapsed`]).
pub const ELAPSED: &[u8] = b"elapsed";
/// Row of [`META`]: the digest of the current policy.
pub const CURRENT_POLICY: &[u8] = b"current_policy";
/// Row of [`META`]: number of tools, 8 bytes.
pub const TOOLS: &[u8] = b"tools";
/// Row of [`META`]: number of revocations, 8 bytes.
pub const REVOCATIONS: &[u8] = b"revocations";
/// Row of [`META`]: number of rows of [`BLOCK`], 8 bytes.
pub const BLOCKS: &[u8] = b"blocks";
/// Row of [`META`]: number of rows of [`PEER_LEDGER_END`] and [`PEER_BLOCK`], 8 bytes.
pub const FEDERATED: &[u8] = b"federated_entries";
/// Row of [`META`]: number of audit blocks dropped by age or number, 8 bytes.
pub const DROPPED_BY_AGE: &[u8] = b"audit_blocks_dropped_by_age";
/// Row of [`META`]: number of audit blocks whose content was dropped by total size, 8 bytes.
pub const DROPPED_BY_BYTES: &[u8] = b"audit_blocks_dropped_by_bytes";

/// Row of [`META`]: number of streams, 8 bytes.
pub const STREAMS: &[u8] = b"streams";

/// Row of [`META`]: number of rows of [`PROPOSER`], 8 bytes.
pub const PROPOSERS: &[u8] = b"proposers";
/// Row of [`META`]: elapsed time of the last sweep of unused proposers, milliseconds, 8 bytes.
pub const PROPOSERS_SWEPT: &[u8] = b"proposers_swept";

/// Times of an entry, equal on all nodes.
#[derive(Clone, Copy, Debug)]
pub struct EntryTime {
    /// Log time: the time of records and events, by which agents end.
    pub now: Timestamp,
    /// Upper bound of the nodes' wall clocks and of the `iat` of a signal's SET: a watermark at it covers what other
    /// issuers issued before. Not used for anything else, because one wrong clock moves it.
    pub latest: Timestamp,
    /// Elapsed time: log time of the first entry plus boot time counted since. Waits and retention, except that of used
    /// tokens, are measured by it, because no wall clock changes it; the retention of revocations lasts in log time too. Time
    /// during which no node ran does not count, so it is late, never early.
    pub elapsed: Timestamp,
}

/// Rows by key; `None` for a deleted row.
type Changed = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The tables as one entry sees them: the rows before it, and its own changes.
pub struct Tables<'v> {
    view: &'v dyn View,
    /// By table. Later commands of the entry overwrite earlier ones.
    changed: BTreeMap<&'static str, Changed>,
    /// Deleted ranges, which apply before everything in `changed`.
    removed: Vec<Write>,
    next_event: EventId,
}

impl<'v> Tables<'v> {
    /// A read-only view.
    #[must_use]
    pub fn new(view: &'v dyn View) -> Self {
        Self::of_entry(view, 0)
    }

    /// The view of the entry with this log index.
    #[must_use]
    pub fn of_entry(view: &'v dyn View, index: u64) -> Self {
        let next_event = EventId { index, number: 0 };
        Self { view, changed: BTreeMap::new(), removed: Vec::new(), next_event }
    }

    /// Log index of the entry.
    #[must_use]
    pub fn entry_index(&self) -> u64 {
        self.next_event.index
    }

    /// Id of the next event of this entry; counted across its commands.
    #[must_use]
    pub fn next_event(&self) -> EventId {
        self.next_event
    }

    /// Allocates an event id.
    pub fn take_event(&mut self) -> EventId {
        let taken = self.next_event;
        self.next_event = taken.next();
        taken
    }

    /// The writes of the entry, each row once, in the order in which they apply.
    #[must_use]
    pub fn into_writes(self) -> Vec<Write> {
        let rows = self.changed.into_iter().flat_map(|(table, rows)| {
            rows.into_iter().map(move |(key, row)| match row {
                Some(value) => Write::Put { table, key, value },
                None => Write::Delete { table, key },
            })
        });
        self.removed.into_iter().chain(rows).collect()
    }

    pub fn row(&self, table: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        match self.changed_row(table, key) {
            Some(changed) => Ok(changed.clone()),
            None => self.view.get(table, key),
        }
    }

    /// As [`Self::row`], decoded.
    pub fn message<M: Message + Default>(
        &self,
        table: &'static str,
        key: &[u8],
    ) -> Result<Option<M>, Corrupt> {
        self.row(table, key)?.map(|row| decode(table, &row)).transpose()
    }

    /// All rows of a small table, decoded, in key order.
    pub fn messages<M: Message + Default>(&self, table: &'static str) -> Result<Vec<(Vec<u8>, M)>, Corrupt> {
        self.messages_under(table, &[])
    }

    /// The rows whose keys begin with `prefix`, decoded, in key order. There must be few.
    pub fn messages_under<M: Message + Default>(
        &self,
        table: &'static str,
        prefix: &[u8],
    ) -> Result<Vec<(Vec<u8>, M)>, Corrupt> {
        let rows = self.rows_under(table, prefix)?;
        rows.into_iter().map(|(key, row)| Ok((key, decode(table, &row)?))).collect()
    }

    /// As [`Self::messages_under`], not decoded.
    pub fn rows_under(
        &self,
        table: &'static str,
        prefix: &[u8],
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Corrupt> {
        let mut rows = BTreeMap::new();
        self.view.scan(table, prefix, &mut |key, row| {
            let is_under = key.starts_with(prefix);
            if is_under {
                rows.insert(key.to_vec(), row.to_vec());
            }
            is_under
        })?;
        for (key, row) in self.changed_under(table, prefix, prefix) {
            match row {
                Some(row) => drop(rows.insert(key.clone(), row.clone())),
                None => drop(rows.remove(key)),
            }
        }
        Ok(rows)
    }

    /// At most `limit` of the keys that begin with `prefix`, in order, starting at `prefix` + `from`. Deleted rows
    /// before `from` are not scanned.
    pub fn keys_under(
        &self,
        table: &'static str,
        prefix: &[u8],
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Corrupt> {
        let from = [prefix, from].concat();
        let changed = self.changed_under(table, prefix, &from);
        let put = changed.filter(|(_, row)| row.is_some()).map(|(key, _)| key.clone());
        let mut keys: BTreeSet<Vec<u8>> = put.take(limit).collect();
        let mut earlier = 0;
        self.view.scan(table, &from, &mut |key, _| {
            if earlier >= limit || !key.starts_with(prefix) {
                return false;
            }
            if !self.is_deleted(table, key) {
                keys.insert(key.to_vec());
                earlier += 1;
            }
            true
        })?;
        Ok(keys.into_iter().take(limit).collect())
    }

    /// Whether this entry has deleted the row under `key`.
    #[must_use]
    pub fn is_deleted(&self, table: &'static str, key: &[u8]) -> bool {
        matches!(self.changed_row(table, key), Some(None))
    }

    /// Whether this entry has changed a row whose key begins with `prefix`.
    #[must_use]
    pub fn has_changed_under(&self, table: &'static str, prefix: &[u8]) -> bool {
        self.changed_under(table, prefix, prefix).next().is_some()
    }

    fn changed_row(&self, table: &'static str, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.changed.get(table)?.get(key)
    }

    /// Changes of this entry to keys that begin with `prefix`, starting at `from`.
    fn changed_under<'t>(
        &'t self,
        table: &'static str,
        prefix: &'t [u8],
        from: &[u8],
    ) -> impl Iterator<Item = (&'t Vec<u8>, &'t Option<Vec<u8>>)> {
        let from = (Bound::Included(from), Bound::Unbounded);
        let rows = self.changed.get(table).into_iter().flat_map(move |rows| rows.range::<[u8], _>(from));
        rows.take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The tables as they were before this entry.
    #[must_use]
    pub fn earlier(&self) -> &'v dyn View {
        self.view
    }

    /// Visits the keys of a table as they were before this entry, in order from `from` on, until `visit` returns false.
    pub fn earlier_keys(
        &self,
        table: &'static str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.view.scan(table, from, &mut |key, _| visit(key))
    }

    /// At most `limit` keys of an index by time ([`time_key`]), from `from` on, that are due at `until`, without those that
    /// this entry has deleted.
    pub fn due(
        &self,
        table: &'static str,
        from: &[u8],
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, Corrupt> {
        let mut due = Vec::new();
        let to = time_key(until.millis().saturating_add(1), &[]);
        self.view.scan_between(table, (from, &to), &mut |key, _| {
            if !self.is_deleted(table, key) {
                due.push(key.to_vec());
            }
            due.len() < limit
        })?;
        Ok(due)
    }

    pub fn put(&mut self, table: &'static str, key: &[u8], value: Vec<u8>) {
        self.changed.entry(table).or_default().insert(key.to_vec(), Some(value));
    }

    pub fn delete(&mut self, table: &'static str, key: &[u8]) {
        self.changed.entry(table).or_default().insert(key.to_vec(), None);
    }

    /// Deletes the rows from `from` up to `to`, exclusive. Reads of this entry still see rows from before it,
    /// but none that it has written itself.
    pub fn delete_range(&mut self, table: &'static str, from: Vec<u8>, to: Vec<u8>) {
        let rows = self.changed.entry(table).or_default();
        rows.range_mut(from.clone()..to.clone()).for_each(|(_, row)| *row = None);
        self.removed.push(Write::DeleteRange { table, from, to });
    }

    /// A counter in [`META`], zero if it is absent.
    pub fn number(&self, key: &[u8]) -> Result<u64, Corrupt> {
        let Some(row) = self.row(META, key)? else { return Ok(0) };
        eight_bytes(key, row)
    }

    /// Sets a counter in [`META`].
    pub fn set_number(&mut self, key: &[u8], number: u64) {
        self.put(META, key, number.to_be_bytes().to_vec());
    }

    /// Adds to a counter in [`META`]; returns the sum.
    pub fn add(&mut self, key: &[u8], more: u64) -> Result<u64, Corrupt> {
        let sum = self.number(key)?.saturating_add(more);
        self.set_number(key, sum);
        Ok(sum)
    }

    /// Subtracts from a counter in [`META`].
    pub fn subtract(&mut self, key: &[u8], fewer: u64) -> Result<(), Corrupt> {
        self.set_number(key, self.number(key)?.saturating_sub(fewer));
        Ok(())
    }

    /// Advances the times by the stamp of an entry.
    pub fn advance(&mut self, stamp: &Stamp) -> Result<EntryTime, Corrupt> {
        let wall = breaks::active(Break::ApplyByWallClock).then(|| Clock::system().now());
        let time = wall.unwrap_or(stamp.time);
        let millis = self.number(TIME)?.max(u64::try_from(time.millis()).unwrap_or(0));
        let now = timestamp(millis);
        self.set_number(TIME, millis);
        let known = match self.row(META, ELAPSED)? {
            Some(row) => timestamp(eight_bytes(ELAPSED, row)?),
            None => now,
        };
        let elapsed = known.max(stamp.elapsed);
        self.set_number(ELAPSED, u64::try_from(elapsed.millis()).unwrap_or(0));
        Ok(EntryTime { now, latest: now.max(stamp.latest), elapsed })
    }

    /// Log time of the last entry with a time stamp; zero before the first.
    pub fn log_time(&self) -> Result<Timestamp, Corrupt> {
        Ok(timestamp(self.number(TIME)?))
    }

    /// Elapsed time of the last entry ([`EntryTime::elapsed`]).
    pub fn elapsed(&self) -> Result<Timestamp, Corrupt> {
        Ok(timestamp(self.number(ELAPSED)?))
    }
}

fn timestamp(millis: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// Key of an index by time.
#[must_use]
pub fn time_key(millis: i64, key: &[u8]) -> Vec<u8> {
    [&millis.to_be_bytes()[..], key].concat()
}

/// Visits the rows of a table from `from` on, in order, until `visit` returns false or fails.
pub fn try_scan(
    view: &dyn View,
    table: &str,
    from: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, Corrupt>,
) -> Result<(), Corrupt> {
    let mut outcome = Ok(true);
    view.scan(table, from, &mut |key, row| {
        outcome = visit(key, row);
        matches!(outcome, Ok(true))
    })?;
    outcome.map(drop)
}

/// Decodes a big-endian number of 8 bytes.
pub fn eight_bytes(key: &[u8], row: Vec<u8>) -> Result<u64, Corrupt> {
    let number = row.try_into().map(u64::from_be_bytes);
    number.map_err(|_| Corrupt::row(format_args!("{} is not a number", key.escape_ascii())))
}

/// Decodes a row of `table`.
pub fn decode<M: Message + Default>(table: &str, bytes: &[u8]) -> Result<M, Corrupt> {
    M::decode(bytes).map_err(|error| Corrupt::row(format_args!("decode a row of {table}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::state::testing::Rows;

    /// Regression: each entry skipped the deleted rows up to the next one that is due, of a day in which revocations were
    /// repeated.
    #[test]
    fn due_keys_are_read_up_to_their_time_only() {
        struct Recorded(RefCell<Vec<Vec<u8>>>);
        impl View for Recorded {
            fn get(&self, _: &str, _: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
                panic!("a range is read")
            }

            fn scan(
                &self,
                _: &str,
                _: &[u8],
                _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
            ) -> Result<(), Corrupt> {
                panic!("a range is read")
            }

            fn scan_between(
                &self,
                _: &str,
                (_, to): (&[u8], &[u8]),
                visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
            ) -> Result<(), Corrupt> {
                self.0.borrow_mut().push(to.to_vec());
                visit(&time_key(7, b"a"), &[]);
                Ok(())
            }
        }
        let view = Recorded(RefCell::default());
        let tables = Tables::new(&view);
        let due = tables.due(FEED, &[], Timestamp::from_millis(7), 9).expect("read");
        assert_eq!(due, [time_key(7, b"a")]);
        assert_eq!(*view.0.borrow(), [time_key(8, &[])]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(&'static str, u8, u8),
        Delete(&'static str, u8),
        DeleteRange(&'static str, u8, u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let table = || prop_oneof![Just(FEED), Just(OUTBOX)];
        let step = prop_oneof![
            6 => (table(), 0u8..20, any::<u8>()).prop_map(|(table, key, row)| Step::Put(table, key, row)),
            3 => (table(), 0u8..20).prop_map(|(table, key)| Step::Delete(table, key)),
            1 => (table(), 0u8..20, 1u8..9).prop_map(|(table, key, more)| Step::DeleteRange(table, key, key + more)),
        ];
        vec(step, 0..60)
    }

    proptest! {
        /// The writes have the effect of the single steps, but write each row once. Regression: a counter
        /// that every command of an entry incremented was as many writes on every node.
        #[test]
        fn entry_writes_each_changed_row_once(
            before in vec((0u8..20, any::<u8>()), 0..20),
            steps in steps(),
        ) {
            let rows = || {
                let put = |&(key, row): &(u8, u8)| Write::Put { table: FEED, key: vec![key], value: vec![row] };
                let mut rows = Rows::default();
                rows.write(before.iter().map(put).collect());
                rows
            };
            let (there, mut model) = (rows(), rows());
            let mut tables = Tables::new(&there);
            let mut of_ranges = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Put(table, key, row) => {
                        tables.put(table, &[key], vec![row]);
                        model.write(vec![Write::Put { table, key: vec![key], value: vec![row] }]);
                        of_ranges.remove(&(table, key));
                    }
                    Step::Delete(table, key) => {
                        tables.delete(table, &[key]);
                        model.write(vec![Write::Delete { table, key: vec![key] }]);
                        of_ranges.remove(&(table, key));
                    }
                    Step::DeleteRange(table, from, to) => {
                        tables.delete_range(table, vec![from], vec![to]);
                        model.write(vec![Write::DeleteRange { table, from: vec![from], to: vec![to] }]);
                        // Rows from before the entry, whose reads are undefined after a range deletion.
                        of_ranges.extend((from..to).map(|key| (table, key)));
                    }
                }
                for table in [FEED, OUTBOX] {
                    for key in (0..30).filter(|key| !of_ranges.contains(&(table, *key))) {
                        let expected = model.get(table, &[key]).expect("reads");
                        prop_assert_eq!(tables.row(table, &[key]).expect("reads"), expected);
                    }
                }
            }
            let writes = tables.into_writes();
            let key_of = |write: &Write| match write {
                Write::Put { table, key, .. } | Write::Delete { table, key } => Some((*table, key.clone())),
                Write::DeleteRange { .. } => None,
            };
            let keys: Vec<_> = writes.iter().filter_map(key_of).collect();
            prop_assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
            let mut written = rows();
            written.write(writes);
            prop_assert_eq!(written.0, model.0);
        }
    }
}
