//! A relying fabric under test, and the rules of the copy of a peer's ledger.

mod acts;
mod attacks;
mod expiry;
mod histories;
mod imports;
mod logs;
mod node;
mod origin;
mod repair;

use std::time::Duration;

use bytes::Bytes;

use super::index::PeerIndex;
use super::judge::{judge_through_token, judge_token};
use super::*;
use crate::clock::Timestamp;
use crate::cluster::Machine as _;
use crate::id::LogPosition;
use crate::state::command::{
    AllowRevocations, Bootstrap, Command, ImportLedger, PeerEntry, Refusal, Reply, SetPeer,
};
use crate::state::tables::{FEDERATED, META};
use crate::state::testing::{Rows, StateHarness};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const PEER: &str = "https://a.example";
const OTHER: &str = "https://c.example";
const DONE: Reply = Reply::Done { changed: true };
const UNCHANGED: Reply = Reply::Done { changed: false };

/// An incarnation of the peer.
fn incarnation(number: u8) -> Incarnation {
    Incarnation::from_bytes([number; 16])
}

/// Digest of a fact.
fn fact(number: u8) -> Digest128 {
    Digest128::from_bytes([number; 16])
}

fn bytes_of(digest: &Digest128) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

fn revoked(n: u64, number: u8) -> PeerEntry {
    PeerEntry { n, epoch: 10, state: 1, id: bytes_of(&fact(number)), by: Bytes::new() }
}

fn covering_all(n: u64, number: u8) -> PeerEntry {
    PeerEntry { state: 4, ..revoked(n, number) }
}

fn blocked(n: u64, number: u8) -> PeerEntry {
    PeerEntry { state: 2, by: bytes_of(&fact(99)), ..revoked(n, number) }
}

fn lifted(n: u64, number: u8) -> PeerEntry {
    PeerEntry { state: 3, ..blocked(n, number) }
}

/// A response of the first incarnation to the first copy's call.
fn response(from: u64, through: u64, entries: Vec<PeerEntry>) -> ImportLedger {
    ImportLedger {
        issuer: PEER.to_owned(),
        generation: 1,
        incarnation: Bytes::copy_from_slice(incarnation(1).as_bytes()),
        from,
        through,
        epoch: 10,
        is_whole: true,
        entries,
        entries_max: 1000,
        ..ImportLedger::default()
    }
}

/// The first response.
fn first(through: u64, entries: Vec<PeerEntry>) -> ImportLedger {
    ImportLedger { generation: 0, is_reset: true, ..response(0, through, entries) }
}

/// A relying fabric, with one entry of its log for each command.
struct Relying {
    harness: StateHarness,
    at: Timestamp,
}

impl Relying {
    fn new() -> Self {
        let mut harness = StateHarness::default();
        let id = Bytes::from_static(&[7; 16]);
        let bootstrap = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 1 };
        assert_eq!(harness.one(START, Command::Bootstrap(bootstrap)), DONE);
        Self { harness, at: START }
    }

    /// One that has imported these entries up to log index 10 of the peer.
    fn joined(entries: Vec<PeerEntry>) -> Self {
        let mut relying = Self::new();
        assert_eq!(relying.import(first(10, entries)), DONE);
        relying
    }

    fn import(&mut self, import: ImportLedger) -> Reply {
        self.harness.one(self.at, Command::ImportLedger(import))
    }

    fn set(&mut self, act: PeerAct) -> Reply {
        let command = SetPeer { issuer: PEER.to_owned(), act: act.into(), caller: "alice".to_owned() };
        self.harness.one(self.at, Command::SetPeer(command))
    }

    /// An entry that changes nothing but the time.
    fn wait(&mut self, duration: Duration) {
        self.at = self.at.plus(duration);
        self.harness.one(self.at, Command::AllowRevocations(AllowRevocations::default()));
    }

    fn row_of(&self, issuer: &str) -> PeerRow {
        row_of(&self.harness.rows, issuer).expect("reads").unwrap_or_default()
    }

    fn row(&self) -> PeerRow {
        self.row_of(PEER)
    }

    fn copy(&self) -> PeerCopy {
        PeerCopy::from_row(self.row())
    }

    /// Log index of the last entry.
    fn m(&self) -> u64 {
        self.harness.last_index()
    }

    /// Verdict about a token of an incarnation of the peer, by the index in memory and by one that is read from the rows.
    fn token_of(&self, number: u8, idx: u64, lineage: &[u8]) -> PeerVerdict {
        let lineage: Vec<_> = lineage.iter().map(|number| fact(*number)).collect();
        let idx = LogPosition { incarnation: incarnation(number), index: idx };
        self.both(|index| judge_token(index.get(&peer_key(PEER)).as_ref(), idx, &lineage))
    }

    fn token(&self, idx: u64, lineage: &[u8]) -> PeerVerdict {
        self.token_of(1, idx, lineage)
    }

    /// Verdict about a through-token of this fabric.
    fn through(&self, idx: u64, lineage: &[u8]) -> PeerVerdict {
        let lineage: Vec<_> = lineage.iter().map(|number| fact(*number)).collect();
        self.both(|index| judge_through_token(index.get(&peer_key(PEER)).as_ref(), idx, &lineage))
    }

    fn both(&self, judge: impl Fn(&PeerIndex) -> PeerVerdict) -> PeerVerdict {
        let rebuilt = PeerIndex::default();
        rebuilt.rebuild(&self.harness.rows).expect("rebuilds");
        let verdict = judge(self.harness.machine.peers());
        assert_eq!(verdict, judge(&rebuilt), "a node that restarts judges alike");
        verdict
    }

    fn root(&self, floor: u32) -> Option<([u8; 32], u64)> {
        root_of(&self.harness.rows, PEER, floor).expect("reads")
    }

    /// Rows of this table.
    fn count(&self, table: &str) -> usize {
        self.harness.rows.0.keys().filter(|(of, _)| of == table).count()
    }

    /// The number of entries of all peers, which is that of their rows.
    fn federated(&self) -> u64 {
        let row = self.harness.rows.0.get(&(META.to_owned(), FEDERATED.to_vec()));
        let number = row.map_or(0, |row| u64::from_be_bytes(row.as_slice().try_into().expect("a number")));
        let rows = self.count("peer_ledger_end") + self.count("peer_block");
        assert_eq!(number, rows as u64, "every entry is counted");
        number
    }

    /// Checks that a command is refused, and changes nothing of the peers.
    fn refuses(&mut self, import: ImportLedger, refusal: Refusal) {
        let before = peer_rows(&self.harness.rows);
        let described = format!("{import:?}");
        assert_eq!(self.import(import), Reply::Refused(refusal), "{described}");
        assert_eq!(peer_rows(&self.harness.rows), before, "{described}");
    }
}

/// Rows of every table of peers.
fn peer_rows(rows: &Rows) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let of_peers = |(table, key): &(String, Vec<u8>)| {
        table.starts_with("peer") || (table == "ledger_sum" && key[..16] != [0; 16])
    };
    let rows = rows.0.iter().filter(|(key, _)| of_peers(key));
    rows.map(|((table, key), row)| (table.clone(), key.clone(), row.clone())).collect()
}
