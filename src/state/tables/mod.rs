//! The tables of the state, and what one entry sees of them while it is applied.

pub(crate) mod packed_rows;
pub(crate) mod packed_table;
pub(crate) mod quotas;
pub(crate) mod row_cache;
pub(crate) mod ttl_buckets;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use prost::Message;

use super::resources::events::EventId;
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, Stamp, View, Write};

/// Cluster id, incarnation, log time, the oldest buckets.
pub const META: &str = "meta";
/// Spent nonces, by (bucket, digest).
pub const NONCE: &str = "nonce";
/// Spent execution-scoped tokens, by (bucket, digest).
pub const SPENT_TOKEN: &str = "spent_token";
/// Idempotency keys, by (bucket, digest).
pub const IDEMPOTENCY: &str = "idempotency";
/// Signing keys, by `kid`.
pub const SIGNING_KEY: &str = "signing_key";
/// Policy bundles, by digest.
pub const POLICY: &str = "policy";
/// Which policy was applied when, by number.
pub const POLICY_HISTORY: &str = "policy_history";

/// Tools, by `tool_id`.
pub const TOOL: &str = "tool";
/// Which tools take a protocol, by (protocol, 0, `tool_id`); rows are empty.
pub const TOOL_OF_PROTOCOL: &str = "tool_of_protocol";
/// Agents, by `agent_id`.
pub const AGENT: &str = "agent";
/// Who had which agent issued, by (who, 0, `agent_id`); rows are empty.
pub const AGENT_OF_ISSUER: &str = "agent_of_issuer";
/// Who was revoked after having agents issued, by who: the log index of that, 8 bytes. As long as agents of
/// theirs are remembered.
pub const AGENT_ISSUER_REVOKED: &str = "agent_issuer_revoked";
/// When agents end, by (log time in milliseconds, `agent_id`); rows are empty.
pub const AGENT_END: &str = "agent_end";
/// How many tools, agents and streams a caller has, and a trust domain subjects with encryption keys, by (what, 0,
/// who): 8 bytes.
pub const OWNED: &str = "owned";
/// Encryption keys, by (workload identifier, 0, `kid`).
pub const ENCRYPTION_KEY: &str = "encryption_key";
/// Which encryption keys were registered with a token that derives from a fact, by (digest of the fact, log index of
/// the token's `idx`, workload identifier, 0, `kid`); rows are empty.
pub const ENCRYPTION_KEY_OF: &str = "encryption_key_of";
/// When encryption keys end, by (elapsed time in milliseconds, workload identifier, 0, `kid`); rows are empty.
pub const ENCRYPTION_KEY_END: &str = "encryption_key_end";
/// Revocations, by digest.
pub const REVOCATION: &str = "revocation";
/// When revocations, and blocks that block nothing, may be forgotten, by (log time in milliseconds, their
/// key); rows are empty.
pub const REVOCATION_END: &str = "revocation_end";
/// What an issuer has revoked of late, by `iss`.
pub const REVOCATION_QUOTA: &str = "revocation_quota";
/// Blocks, by (digest of the fact, digest of issuer and family).
pub const BLOCK: &str = "block";
/// Security event tokens that came, by (bucket, digest): the digest of what each says, 16 bytes, and its log
/// index, 8; empty if an older version wrote it.
pub const SIGNAL: &str = "signal";
/// Blocks of audit entries, by number.
pub const AUDIT_BLOCK: &str = "audit_block";
/// Which blocks are about a tool, by (digest of `tool_id`, number); rows are empty.
pub const AUDIT_TRAIL: &str = "audit_trail";
/// The last entry about a tool that a node wrote, by (digest of `tool_id`, node): its hash.
pub const AUDIT_HEAD: &str = "audit_head";
/// The last block of each node, by its id.
pub const AUDIT_NODE: &str = "audit_node";

/// Streams, by `stream_id`.
pub const STREAM: &str = "stream";
/// Where each stream stands, by `stream_id`.
pub const STREAM_CURSOR: &str = "stream_cursor";
/// Events that a stream's receiver refused for good, by (`stream_id`, 0, event id).
pub const DEAD_LETTER: &str = "dead_letter";
/// Security events for streams, by event id.
pub const OUTBOX: &str = "outbox";
/// What the live feed tells, by event id.
pub const FEED: &str = "feed";

/// Processes that propose, by origin.
pub const ORIGIN: &str = "origin";
/// What was replied to commands that may be sent again, by (origin, sequence): the reply as it was encoded.
pub const REPLY: &str = "reply";

/// Every table.
pub const ALL: &[&str] = &[
    META,
    NONCE,
    SPENT_TOKEN,
    IDEMPOTENCY,
    SIGNING_KEY,
    POLICY,
    POLICY_HISTORY,
    TOOL,
    TOOL_OF_PROTOCOL,
    AGENT,
    AGENT_OF_ISSUER,
    AGENT_ISSUER_REVOKED,
    AGENT_END,
    OWNED,
    ENCRYPTION_KEY,
    ENCRYPTION_KEY_OF,
    ENCRYPTION_KEY_END,
    REVOCATION,
    REVOCATION_END,
    REVOCATION_QUOTA,
    BLOCK,
    SIGNAL,
    AUDIT_BLOCK,
    AUDIT_TRAIL,
    AUDIT_HEAD,
    AUDIT_NODE,
    STREAM,
    STREAM_CURSOR,
    DEAD_LETTER,
    OUTBOX,
    FEED,
    ORIGIN,
    REPLY,
];

/// Row of [`META`]: 16 bytes.
pub const CLUSTER_ID: &[u8] = b"cluster_id";
/// Row of [`META`]: 16 bytes.
pub const INCARNATION: &[u8] = b"incarnation";
/// Row of [`META`]: when the cluster was bootstrapped in elapsed time, milliseconds, 8 bytes; absent in a cluster of
/// before that was remembered.
pub const BOOTSTRAPPED_AT: &[u8] = b"bootstrapped_at";
/// Row of [`META`]: log time, milliseconds, 8 bytes.
pub const TIME: &[u8] = b"time";
/// Row of [`META`]: time that has passed, milliseconds, 8 bytes ([`Moment::passed`]).
pub const PASSED: &[u8] = b"passed";
/// Row of [`META`]: the digest of the current policy.
pub const CURRENT_POLICY: &[u8] = b"current_policy";
/// Row of [`META`]: how many tools there are, 8 bytes.
pub const TOOLS: &[u8] = b"tools";
/// Row of [`META`]: how many revocations are remembered, 8 bytes.
pub const REVOCATIONS: &[u8] = b"revocations";
/// Row of [`META`]: how many rows [`BLOCK`] has, 8 bytes.
pub const BLOCKS: &[u8] = b"blocks";
/// Row of [`META`]: how many blocks of audit entries were dropped because they were old, 8 bytes.
pub const DROPPED_BY_AGE: &[u8] = b"audit_blocks_dropped_by_age";
/// Row of [`META`]: how many were dropped because there were too many bytes of them, 8 bytes.
pub const DROPPED_BY_BYTES: &[u8] = b"audit_blocks_dropped_by_bytes";

/// Row of [`META`]: how many streams there are, 8 bytes.
pub const STREAMS: &[u8] = b"streams";

/// Row of [`META`]: how many rows [`ORIGIN`] has, 8 bytes.
pub const ORIGINS: &[u8] = b"origins";
/// Row of [`META`]: when unused origins were last looked for, in time that has passed, milliseconds, 8 bytes.
pub const ORIGINS_SWEPT: &[u8] = b"origins_swept";

/// When an entry is applied, by three times that all nodes agree on.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Log time: what expires does so by it.
    pub now: Timestamp,
    /// No wall clock of a node was further ahead, and none that the SET of a signal was issued by: what other issuers
    /// issued before is covered by it. Nothing else goes by it: a clock that is wrong moves it.
    pub latest: Timestamp,
    /// Elapsed time: log time of the first entry, and what boot clocks counted since. Whatever waits, or is remembered
    /// for a while, does so by it, whatever was done to wall clocks. Time in which no node ran does not count, so it is
    /// late, never early.
    pub passed: Timestamp,
}

/// Rows by their keys; `None` for one that is removed.
type Changed = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The tables as one entry sees them: what was there, and what the entry has changed so far.
pub struct Tables<'v> {
    view: &'v dyn View,
    /// By table. Of a row that several commands of the entry write, what the last one wrote.
    changed: BTreeMap<&'static str, Changed>,
    /// Ranges that were removed: before everything in `changed` was written.
    removed: Vec<Write>,
    next_event: EventId,
}

impl<'v> Tables<'v> {
    /// Over what was applied before, to be read.
    #[must_use]
    pub fn new(view: &'v dyn View) -> Self {
        Self::of_entry(view, 0)
    }

    /// Over what was applied before, for the entry with this log index.
    #[must_use]
    pub fn of_entry(view: &'v dyn View, index: u64) -> Self {
        let next_event = EventId { index, number: 0 };
        Self { view, changed: BTreeMap::new(), removed: Vec::new(), next_event }
    }

    /// The id of the next thing that this entry tells. All of its commands count on.
    #[must_use]
    pub fn next_event(&self) -> EventId {
        self.next_event
    }

    /// Takes that id.
    pub fn take_event(&mut self) -> EventId {
        let taken = self.next_event;
        self.next_event = taken.next();
        taken
    }

    /// The changes, in the order in which they are to be written: each row once, whatever many commands did to it.
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

    /// The row under `key`.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    pub fn row(&self, table: &'static str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        match self.changed_row(table, key) {
            Some(changed) => Ok(changed.clone()),
            None => self.view.get(table, key),
        }
    }

    /// Every row of a table that stays small, decoded, in the order of keys.
    ///
    /// # Errors
    /// [`Corrupt`] if one is not what was written.
    pub fn messages<M: Message + Default>(&self, table: &'static str) -> Result<Vec<(Vec<u8>, M)>, Corrupt> {
        self.messages_under(table, &[])
    }

    /// Every row whose key begins with `prefix`, decoded, in the order of keys. There must be few.
    ///
    /// # Errors
    /// [`Corrupt`] if one is not what was written.
    pub fn messages_under<M: Message + Default>(
        &self,
        table: &'static str,
        prefix: &[u8],
    ) -> Result<Vec<(Vec<u8>, M)>, Corrupt> {
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
        rows.into_iter().map(|(key, row)| Ok((key, decode(table, &row)?))).collect()
    }

    /// At most `limit` of the keys that begin with `prefix`, in order, from `from` behind the prefix on. What an
    /// earlier entry deleted before `from` is not walked through.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
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

    /// Whether this entry has removed the row under `key`.
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

    /// What this entry has changed from `from` on, as far as keys begin with `prefix`.
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

    /// Visits the keys of a table from `from` on, in order, as they were before this entry, until
    /// `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn earlier_keys(
        &self,
        table: &'static str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.earlier_rows(table, from, &mut |key, _| visit(key))
    }

    /// The same with what is under each key.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn earlier_rows(
        &self,
        table: &'static str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.view.scan(table, from, visit)
    }

    /// Writes a row.
    pub fn put(&mut self, table: &'static str, key: &[u8], value: Vec<u8>) {
        self.changed.entry(table).or_default().insert(key.to_vec(), Some(value));
    }

    /// Removes a row.
    pub fn delete(&mut self, table: &'static str, key: &[u8]) {
        self.changed.entry(table).or_default().insert(key.to_vec(), None);
    }

    /// Removes rows from `from` on, which is before `to`. This entry does not look for them again, but those that
    /// it has written are gone for it too.
    pub fn delete_range(&mut self, table: &'static str, from: Vec<u8>, to: Vec<u8>) {
        let rows = self.changed.entry(table).or_default();
        rows.range_mut(from.clone()..to.clone()).for_each(|(_, row)| *row = None);
        self.removed.push(Write::DeleteRange { table, from, to });
    }

    /// A number in [`META`], zero if it was never written.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not 8 bytes.
    pub fn number(&self, key: &[u8]) -> Result<u64, Corrupt> {
        let Some(row) = self.row(META, key)? else { return Ok(0) };
        eight_bytes(key, row)
    }

    /// Moves time on by what an entry was stamped with.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn advance(&mut self, stamp: &Stamp) -> Result<Moment, Corrupt> {
        let millis = self.number(TIME)?.max(u64::try_from(stamp.time.millis()).unwrap_or(0));
        let now = timestamp(millis);
        self.put(META, TIME, millis.to_be_bytes().to_vec());
        let known = match self.row(META, PASSED)? {
            Some(row) => timestamp(eight_bytes(PASSED, row)?),
            None => now,
        };
        let passed = known.max(stamp.passed);
        let millis = u64::try_from(passed.millis()).unwrap_or(0);
        self.put(META, PASSED, millis.to_be_bytes().to_vec());
        Ok(Moment { now, latest: now.max(stamp.latest), passed })
    }

    /// As [`Moment::passed`], of the last entry.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn passed(&self) -> Result<Timestamp, Corrupt> {
        Ok(timestamp(self.number(PASSED)?))
    }
}

fn timestamp(millis: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// The number in the row under `key`.
///
/// # Errors
/// [`Corrupt`] if it is not 8 bytes.
pub fn eight_bytes(key: &[u8], row: Vec<u8>) -> Result<u64, Corrupt> {
    let number = row.try_into().map(u64::from_be_bytes);
    number.map_err(|_| Corrupt::row(format_args!("{} is not a number", key.escape_ascii())))
}

/// Decodes a row of `table`.
///
/// # Errors
/// [`Corrupt`] if it is not what was written.
pub fn decode<M: Message + Default>(table: &str, bytes: &[u8]) -> Result<M, Corrupt> {
    M::decode(bytes).map_err(|error| Corrupt::row(format_args!("decode a row of {table}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::state::testing::Rows;

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
        /// The same as if each step had been written at once, but each row only once: a counter that every command
        /// of an entry moves on was as many writes on every node.
        #[test]
        fn an_entry_writes_each_row_once_and_leaves_what_its_steps_would(
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
                        // Rows of before the entry, which it says that it does not look for.
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
