//! Judgement by both complete logs: nothing is compacted or forgotten, no floor is kept, and everything is
//! read again for each verdict.

use std::collections::BTreeMap;

use super::origin::{Change, Event, Response};
use super::*;
use crate::limits;

/// A credential.
#[derive(Clone, Debug)]
pub struct Token {
    /// Whether the relying fabric issued it, from a credential of the peer.
    pub is_through: bool,
    /// Incarnation of its issuer.
    pub incarnation: u8,
    pub idx: u64,
    pub lineage: Vec<u8>,
    /// Incarnation of the peer's token that it comes from, and number of events that its node had applied; no fabric
    /// sees either.
    pub root: (u8, usize),
}

/// Verdict of both logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByLogs {
    Clear,
    Revoked,
    Unjudged,
}

/// An entry of the relying fabric's log.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub m: u64,
    /// Elapsed time.
    pub at: Timestamp,
    pub command: LogCommand,
}

#[derive(Clone, Debug)]
pub enum LogCommand {
    Import(Box<Response>),
    ForgetPeer,
    Other,
}

/// An entry of one life of the peer's log.
#[derive(Clone, Copy)]
struct Entry {
    n: u64,
    change: Change,
    /// Number of events before it.
    event: usize,
}

/// All entries of one incarnation of the peer, with those that it was restored with.
fn life(events: &[Event], incarnation: u8) -> Vec<Entry> {
    let (mut entries, mut present) = (Vec::<Entry>::new(), 0);
    for (event, what) in events.iter().enumerate() {
        match *what {
            Event::Entry(change) => {
                let n = entries.last().map_or(0, |last| last.n) + 1;
                entries.push(Entry { n, change, event });
            }
            Event::Forget | Event::Epochs(_) => {}
            Event::Restore(_) if present == incarnation => break,
            Event::Restore(to) => {
                present += 1;
                entries.retain(|entry| entry.n <= to);
            }
        }
    }
    entries
}

fn revokes(change: Change, token: &Token) -> bool {
    matches!(change, Change::Revoke(fact) | Change::Taint(fact) if token.lineage.contains(&fact))
}

fn taints(change: Change, token: &Token) -> bool {
    matches!(change, Change::Taint(fact) if token.lineage.contains(&fact))
}

/// Whether a block on a fact of the lineage is in force after these entries.
fn blocks<'e>(entries: impl Iterator<Item = &'e Entry>, token: &Token) -> bool {
    let mut last = BTreeMap::new();
    for entry in entries {
        if let Change::Block(fact) | Change::Lift(fact) = entry.change {
            last.insert(fact, matches!(entry.change, Change::Block(_)));
        }
    }
    token.lineage.iter().any(|fact| last.get(fact) == Some(&true))
}

/// A response that was applied.
struct Import<'l> {
    m: u64,
    at: Timestamp,
    /// Incarnation and index that were read before.
    before: Option<(u8, u64)>,
    response: &'l Response,
}

impl Import<'_> {
    /// Index above which it brought anything new.
    fn begin(&self) -> u64 {
        self.before.filter(|(incarnation, _)| *incarnation == self.response.incarnation).map_or(0, |at| at.1)
    }

    fn is_first_of_its_incarnation(&self) -> bool {
        self.before.map(|at| at.0) != Some(self.response.incarnation)
    }

    fn misses_entries(&self) -> bool {
        self.response.import.floor > self.begin()
    }
}

/// A watermark that the relying fabric forgot.
struct Forgotten {
    incarnation: u8,
    n: u64,
    m: u64,
}

pub struct RelyingLog<'l> {
    log: &'l [LogEntry],
    imports: Vec<Import<'l>>,
    deletions: Vec<u64>,
}

impl<'l> RelyingLog<'l> {
    pub fn read(log: &'l [LogEntry]) -> Self {
        let mut read = Self { log, imports: Vec::new(), deletions: Vec::new() };
        for LogEntry { m, at, command } in log {
            match command {
                LogCommand::Import(response) if read.accepts(response) => {
                    let before = read.position();
                    read.imports.push(Import { m: *m, at: *at, before, response });
                }
                LogCommand::ForgetPeer => read.deletions.push(*m),
                _ => {}
            }
        }
        read
    }

    /// Number of events before the newest applied response of this incarnation.
    pub fn informed_by(&self, incarnation: u8) -> Option<usize> {
        let responses = self.imports.iter().map(|import| import.response);
        let responses = responses.filter(|response| response.incarnation == incarnation);
        responses.map(|response| response.answered).max()
    }

    fn last_deletion(&self) -> u64 {
        self.deletions.last().copied().unwrap_or(0)
    }

    fn position(&self) -> Option<(u8, u64)> {
        let last = self.imports.last().filter(|import| import.m > self.last_deletion())?;
        Some((last.response.incarnation, last.response.import.through))
    }

    fn generation(&self) -> u64 {
        let adoptions = self.imports.iter().filter(|import| import.is_first_of_its_incarnation()).count();
        (adoptions + self.deletions.len()) as u64
    }

    fn has_replaced(&self, incarnation: u8) -> bool {
        // Also if the copy was deleted in between.
        let replaces = |pair: &[Import<'_>]| {
            pair[0].response.incarnation == incarnation && pair[1].response.incarnation != incarnation
        };
        self.imports.windows(2).any(replaces)
    }

    /// Largest index of this incarnation that a copy knew which was deleted.
    fn deleted_to(&self, incarnation: u8) -> u64 {
        let of_deleted = |import: &&Import<'_>| {
            import.m < self.last_deletion() && import.response.incarnation == incarnation
        };
        let deleted = self.imports.iter().filter(of_deleted);
        deleted.map(|import| import.response.import.through).max().unwrap_or(0)
    }

    fn accepts(&self, response: &Response) -> bool {
        let continues = match self.position() {
            Some((incarnation, index)) if incarnation == response.incarnation => {
                response.import.from <= index && response.import.through >= index
            }
            _ => !self.has_replaced(response.incarnation),
        };
        response.import.generation == self.generation() && continues
    }

    /// First entry of the log after the retention of what was imported then.
    fn end_of(&self, import: &Import<'_>) -> u64 {
        let end = import.at.plus(limits::FEDERATED_RETENTION);
        self.log.iter().find(|entry| entry.at > end).map_or(u64::MAX, |entry| entry.m)
    }

    /// The import or deletion by which this watermark of an import ceased to be in the copy.
    fn replaced_at(&self, at: usize, id: &Bytes) -> u64 {
        let import = &self.imports[at];
        let replaces = |later: &&Import<'_>| {
            let brings =
                |entry: &PeerEntry| entry.id == *id && entry.by.is_empty() && entry.n > later.begin();
            later.is_first_of_its_incarnation() || later.response.import.entries.iter().any(brings)
        };
        let by_import = self.imports[at + 1..].iter().find(replaces).map(|later| later.m);
        let by_deletion = self.deletions.iter().copied().find(|m| *m > import.m);
        by_import.into_iter().chain(by_deletion).min().unwrap_or(u64::MAX)
    }

    fn forgotten(&self) -> Vec<Forgotten> {
        let mut forgotten = Vec::new();
        for (at, import) in self.imports.iter().enumerate() {
            let new = |entry: &&PeerEntry| entry.by.is_empty() && entry.n > import.begin();
            let epoch = import.response.import.epoch;
            for entry in import.response.import.entries.iter().filter(new) {
                let is_old = entry.epoch + limits::FEDERATED_EPOCHS < epoch;
                let end = self.end_of(import);
                let is_over = end < u64::MAX && end <= self.replaced_at(at, &entry.id);
                if is_old || is_over {
                    let incarnation = import.response.incarnation;
                    forgotten.push(Forgotten { incarnation, n: entry.n, m: import.m });
                }
            }
        }
        forgotten
    }
}

/// The verdict of both logs about a token of the present incarnation of its issuer, if that is the relying fabric.
pub fn judge_by_logs(token: &Token, events: &[Event], log: &RelyingLog<'_>) -> ByLogs {
    let Some((incarnation, index)) = log.position() else { return ByLogs::Unjudged };
    let entries = life(events, incarnation);
    let is_revoked = if token.is_through {
        is_through_token_revoked(token, events, log)
    } else if log.has_replaced(token.incarnation) {
        true
    } else if token.incarnation != incarnation {
        return ByLogs::Unjudged;
    } else {
        is_token_revoked(token, &entries, (incarnation, index), log)
    };
    let is_blocked = || blocks(entries.iter().filter(|entry| entry.n <= index), token);
    let is_replaced = !token.is_through && log.has_replaced(token.incarnation);
    if is_revoked || (!is_replaced && is_blocked()) { ByLogs::Revoked } else { ByLogs::Clear }
}

fn is_token_revoked(
    token: &Token,
    entries: &[Entry],
    (incarnation, index): (u8, u64),
    log: &RelyingLog<'_>,
) -> bool {
    let covers = |entry: &Entry| {
        let is_later = entry.n > token.idx && revokes(entry.change, token);
        entry.n <= index && (is_later || taints(entry.change, token))
    };
    let since = log.last_deletion();
    let of_the_copy =
        log.imports.iter().filter(|import| import.m > since && import.response.incarnation == incarnation);
    let missed = of_the_copy.filter(|import| import.misses_entries());
    let mut missed = missed.map(|import| import.response.import.floor);
    let is_forgotten = |forgotten: &Forgotten| {
        forgotten.incarnation == incarnation && forgotten.m > since && forgotten.n > token.idx
    };
    entries.iter().any(covers)
        || token.idx < log.deleted_to(incarnation)
        || missed.any(|floor| floor > token.idx)
        || log.forgotten().iter().any(is_forgotten)
}

fn is_through_token_revoked(token: &Token, events: &[Event], log: &RelyingLog<'_>) -> bool {
    let by_import = log.imports.iter().filter(|import| import.m > token.idx).any(|import| {
        let (begin, through) = (import.begin(), import.response.import.through);
        let is_read = |entry: &&Entry| entry.n > begin && entry.n <= through;
        let entries = life(events, import.response.incarnation);
        import.is_first_of_its_incarnation()
            || import.misses_entries()
            || entries.iter().filter(is_read).any(|entry| revokes(entry.change, token))
    });
    by_import
        || log.forgotten().iter().any(|forgotten| forgotten.m > token.idx)
        || log.deletions.iter().any(|m| *m > token.idx)
}

/// Whether a token must not be accepted: the peer revoked or blocked a fact of its lineage after its root was issued, and
/// before it answered a response that the relying fabric applied. `informed` is the number of events before the newest.
pub fn must_be_refused(token: &Token, events: &[Event], informed: Option<usize>) -> bool {
    let ((incarnation, view), Some(informed)) = (token.root, informed) else { return false };
    let entries = life(events, incarnation);
    let is_known = |entry: &&Entry| entry.event < informed;
    let covers =
        |entry: &Entry| (entry.event >= view && revokes(entry.change, token)) || taints(entry.change, token);
    entries.iter().filter(is_known).any(covers) || blocks(entries.iter().filter(is_known), token)
}
