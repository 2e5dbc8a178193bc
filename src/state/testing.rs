//! What the tests of the state share: tables in memory, and a machine over them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::Replicated;
use super::command::{Command, Reply, Told, decode_reply, encode};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, Machine as _, Stamp, View, Write};

/// Tables in memory, and a machine that writes them as the core does.
#[derive(Default)]
pub struct Bench {
    /// What is kept in memory.
    pub machine: Replicated,
    /// What is in the tables.
    pub rows: Rows,
    entries: u64,
    stamped: Option<Timestamp>,
}

/// Rows by table and key.
#[derive(Default)]
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

impl Bench {
    /// Applies commands as one entry.
    pub fn apply(&mut self, at: Timestamp, commands: Vec<Command>) -> Vec<Reply> {
        self.encoded(at, commands.into_iter().map(encode).collect())
    }

    /// The same with commands as they are in the log.
    pub fn encoded(&mut self, at: Timestamp, commands: Vec<Bytes>) -> Vec<Reply> {
        self.told(at, commands).into_iter().map(|told| told.outcome).collect()
    }

    /// The same, with whether each is the outcome of an earlier one.
    pub fn told(&mut self, at: Timestamp, commands: Vec<Bytes>) -> Vec<Told<Reply>> {
        // Time passes as it is told, and is not undone by a clock that is set back.
        let elapsed = self.stamped.map_or(Duration::ZERO, |last| at.since(last));
        self.stamped = self.stamped.max(Some(at));
        self.stamped_as(Stamp { time: at, wall: at, elapsed }, commands)
    }

    /// The same, stamped by clocks that do not agree.
    pub fn stamped_as(&mut self, stamp: Stamp, commands: Vec<Bytes>) -> Vec<Told<Reply>> {
        let batch = Replicated::batch(stamp, commands);
        self.entries += 1;
        let applied = self.machine.apply(&self.rows, &batch, self.entries).expect("applies");
        for write in &applied.writes {
            match write.clone() {
                Write::Put { table, key, value } => {
                    self.rows.0.insert((table.to_owned(), key), value);
                }
                Write::Delete { table, key } => {
                    self.rows.0.remove(&(table.to_owned(), key));
                }
                Write::DeleteRange { table, from, to } => {
                    self.rows.0.retain(|(row_table, key), _| row_table != table || *key < from || *key >= to);
                }
            }
        }
        self.machine.project(&applied.writes, self.entries).expect("projects");
        applied.replies.iter().map(|reply| decode_reply(reply).expect("reply")).collect()
    }

    /// Applies one command as one entry.
    pub fn one(&mut self, at: Timestamp, command: Command) -> Reply {
        self.apply(at, vec![command]).remove(0)
    }
}
