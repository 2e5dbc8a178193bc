//! Judgement by both complete logs: the specification that the tables must meet. Nothing is compacted or
//! forgotten here, and no floor is kept: everything is read again for each verdict.

use super::{Change, Command, Fact, Index, OriginEvent, Position, Response, State, Token, Verdict, facts};
use std::collections::BTreeMap;

/// An entry of one life of the origin fabric's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    n: Index,
    change: Change,
    /// Number of events before it.
    event: usize,
}

/// All entries of one incarnation of the origin fabric, with those that it was restored with.
fn life(events: &[OriginEvent], incarnation: u8) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut present = 0;
    for (event, what) in events.iter().enumerate() {
        match *what {
            OriginEvent::Entry(change) => {
                let n = entries.last().map_or(0, |last| last.n) + 1;
                entries.push(Entry { n, change, event });
            }
            OriginEvent::Forget => {}
            OriginEvent::Restore(_) if present == incarnation => break,
            OriginEvent::Restore(index) => {
                present += 1;
                entries.retain(|entry| entry.n <= index);
            }
        }
    }
    entries
}

fn revokes(change: Change, token: &Token) -> bool {
    matches!(change, Change::Revoke(fact) | Change::Taint(fact) if token.names(fact))
}

fn is_taint_of(change: Change, token: &Token) -> bool {
    matches!(change, Change::Taint(fact) if token.names(fact))
}

/// Whether a block on a fact of the lineage is in force after these entries.
fn blocks<'a>(entries: impl Iterator<Item = &'a Entry>, token: &Token) -> bool {
    let mut last = BTreeMap::new();
    for entry in entries {
        if let Change::Block(fact) | Change::Lift(fact) = entry.change {
            last.insert(fact, matches!(entry.change, Change::Block(_)));
        }
    }
    facts(token.lineage).iter().any(|fact| last.get(fact) == Some(&true))
}

/// A command of the relying fabric's log that is still in effect, at index `m`.
struct Applied<'a> {
    m: Index,
    command: &'a Command,
    /// Present if the command is a response that was applied.
    before: Option<Before>,
}

/// The peer's position before a response, if there was one.
#[derive(Clone, Copy)]
struct Before(Option<Position>);

/// The relying fabric's log without the commands that a restore lost.
struct RelyingLog<'a> {
    incarnation: u8,
    applied: Vec<Applied<'a>>,
}

impl<'a> RelyingLog<'a> {
    fn read(commands: &'a [Command]) -> Self {
        let mut log = Self { incarnation: 0, applied: Vec::new() };
        for command in commands {
            if let Command::Restore(index) = command {
                log.applied.retain(|applied| applied.m <= *index);
                log.incarnation += 1;
            }
            let m = log.applied.last().map_or(0, |applied| applied.m) + 1;
            let present = log.position();
            let before = match command {
                Command::Import(response) if log.accepts(response) => Some(Before(present)),
                _ => None,
            };
            log.applied.push(Applied { m, command, before });
        }
        log
    }

    /// The peer's position.
    fn position(&self) -> Option<Position> {
        let last = self
            .applied
            .iter()
            .rev()
            .find(|applied| applied.before.is_some() || matches!(applied.command, Command::ForgetPeer))?;
        match last.command {
            Command::Import(response) => Some(response.through),
            _ => None,
        }
    }

    /// Whether this response continues the copy of the ledger, or begins that of a new incarnation.
    fn accepts(&self, response: &Response) -> bool {
        let present = self.position();
        let is_asked = response.request.generation == self.generation();
        let continues = match present {
            Some(at) if at.incarnation == response.through.incarnation => {
                response.begin() <= at.index && response.through.index >= at.index
            }
            _ => !self.has_retired(response.through.incarnation),
        };
        is_asked && continues
    }

    /// Number of copies of the peer's ledger that were begun or deleted.
    fn generation(&self) -> u8 {
        let changes = |applied: &Applied<'_>| match (applied.before, applied.command) {
            (Some(Before(before)), Command::Import(response)) => {
                before.map(|at| at.incarnation) != Some(response.through.incarnation)
            }
            (_, command) => matches!(command, Command::ForgetPeer),
        };
        self.applied.iter().map(|applied| u8::from(changes(applied))).sum()
    }

    /// Whether another incarnation of the peer replaced this one.
    fn has_retired(&self, incarnation: u8) -> bool {
        let replaces = |applied: &Applied<'_>| match (applied.before, applied.command) {
            (Some(Before(Some(before))), Command::Import(response)) => {
                before.incarnation == incarnation && response.through.incarnation != incarnation
            }
            _ => false,
        };
        self.applied.iter().any(replaces)
    }

    /// Responses that were applied, each with its index and with the peer's position before it.
    fn imports(&self) -> impl DoubleEndedIterator<Item = (Index, Option<Position>, &'a Response)> + '_ {
        self.applied.iter().filter_map(|applied| match (applied.before, applied.command) {
            (Some(Before(before)), Command::Import(response)) => Some((applied.m, before, response)),
            _ => None,
        })
    }

    /// Index from which a response of this incarnation brought anything new.
    fn begin(before: Option<Position>, response: &Response) -> Index {
        let is_same = |at: &Position| at.incarnation == response.through.incarnation;
        before.filter(is_same).map_or(0, |at| at.index)
    }

    /// For each time the fabric forgot an entry of the peer: the incarnation and n of the entry, and the m of its import.
    fn forgotten(&self) -> Vec<(u8, Index, Index)> {
        let mut found = Vec::new();
        for applied in &self.applied {
            let Command::Forget(fact) = applied.command else { continue };
            found.extend(self.held(*fact, applied.m));
        }
        found
    }

    /// The entry about this fact that the fabric held just before index `until`.
    fn held(&self, fact: Fact, until: Index) -> Option<(u8, Index, Index)> {
        let mut held = None;
        for applied in self.applied.iter().filter(|applied| applied.m < until) {
            match (applied.before, applied.command) {
                (Some(Before(before)), Command::Import(response)) => {
                    let begin = Self::begin(before, response);
                    let incarnation = response.through.incarnation;
                    held = held.filter(|(of, _, _)| *of == incarnation);
                    let is_it = |entry: &&super::LedgerEntry| {
                        entry.fact == fact && entry.state == State::Revoked && entry.n > begin
                    };
                    held = response
                        .entries
                        .iter()
                        .find(is_it)
                        .map(|entry| (incarnation, entry.n, applied.m))
                        .or(held);
                }
                (_, Command::Forget(forgotten)) if *forgotten == fact => held = None,
                (_, Command::ForgetPeer) => held = None,
                _ => {}
            }
        }
        held
    }
}

/// The verdict of both logs, about a token that exists at their ends.
#[must_use]
pub fn judge_by_logs(token: &Token, events: &[OriginEvent], commands: &[Command]) -> Verdict {
    let log = RelyingLog::read(commands);
    if is_revoked_by_us(token, &log) {
        return Verdict::Revoked;
    }
    if token.is_ours && !token.is_through {
        return Verdict::Clear;
    }
    let Some(position) = log.position() else { return Verdict::Unjudged };
    let entries = life(events, position.incarnation);
    let is_blocked = blocks(entries.iter().filter(|entry| entry.n <= position.index), token);
    let verdict = if token.is_ours {
        is_through_token_revoked(token, events, &log)
    } else if log.has_retired(token.at.incarnation) {
        return Verdict::Revoked;
    } else if token.at.incarnation != position.incarnation {
        return Verdict::Unjudged;
    } else {
        is_origin_token_revoked(token, &entries, position, &log)
    };
    if is_blocked || verdict { Verdict::Revoked } else { Verdict::Clear }
}

fn is_revoked_by_us(token: &Token, log: &RelyingLog<'_>) -> bool {
    let later = |applied: &&Applied<'_>| applied.m > token.at.index;
    let is_named =
        |applied: &Applied<'_>| matches!(applied.command, Command::Revoke(fact) if token.names(*fact));
    let is_covered = log.applied.iter().filter(later).any(is_named);
    let is_blocked = facts(token.lineage).iter().any(|fact| {
        let last = log.applied.iter().rev().find_map(|applied| match applied.command {
            Command::Block(of) if of == fact => Some(true),
            Command::Lift(of) if of == fact => Some(false),
            _ => None,
        });
        last == Some(true)
    });
    is_blocked || (token.is_ours && (token.at.incarnation != log.incarnation || is_covered))
}

fn is_origin_token_revoked(
    token: &Token,
    entries: &[Entry],
    position: Position,
    log: &RelyingLog<'_>,
) -> bool {
    let idx = token.at.index;
    let is_covered = |entry: &Entry| {
        let covers = entry.n > idx && revokes(entry.change, token);
        entry.n <= position.index && (covers || is_taint_of(entry.change, token))
    };
    let is_forgotten =
        |(incarnation, n, _): &(u8, Index, Index)| *incarnation == position.incarnation && *n > idx;
    // Since the peer was last forgotten, which deletes the floors with the copy.
    let since = log.applied.iter().rev().find(|applied| matches!(applied.command, Command::ForgetPeer));
    let since = since.map_or(0, |applied| applied.m);
    let missed = log.imports().any(|(m, before, response)| {
        let is_of_it = response.through.incarnation == position.incarnation && m > since;
        let begin = RelyingLog::begin(before, response).max(response.begin());
        is_of_it && response.floor > begin && response.floor > idx
    });
    let forgotten = log.forgotten_after(since);
    entries.iter().any(is_covered) || missed || forgotten.iter().any(is_forgotten)
}

fn is_through_token_revoked(token: &Token, events: &[OriginEvent], log: &RelyingLog<'_>) -> bool {
    let idx = token.at.index;
    let by_import = log.imports().filter(|(m, _, _)| *m > idx).any(|(_, before, response)| {
        let begin = RelyingLog::begin(before, response);
        let through = response.through;
        let is_new = before.map(|at| at.incarnation) != Some(through.incarnation);
        let is_read = |entry: &&Entry| entry.n > begin && entry.n <= through.index;
        let entries = life(events, through.incarnation);
        is_new
            || response.floor > begin.max(response.begin())
            || entries.iter().filter(is_read).any(|entry| revokes(entry.change, token))
    });
    let by_forgetting = log.forgotten().iter().any(|(_, _, m)| *m > idx);
    let by_deletion =
        log.applied.iter().any(|applied| applied.m > idx && matches!(applied.command, Command::ForgetPeer));
    by_import || by_forgetting || by_deletion
}

impl RelyingLog<'_> {
    fn forgotten_after(&self, since: Index) -> Vec<(u8, Index, Index)> {
        let is_after = |applied: &&Applied<'_>| applied.m > since;
        let facts = self.applied.iter().filter(is_after).filter_map(|applied| match applied.command {
            Command::Forget(fact) => self.held(*fact, applied.m),
            _ => None,
        });
        facts.collect()
    }
}

/// Whether a token must not be accepted: the origin fabric revoked or blocked a fact of its lineage after the token's root
/// was issued, and before it answered a response that the relying fabric applied.
#[must_use]
pub fn must_be_refused(token: &Token, events: &[OriginEvent], commands: &[Command]) -> bool {
    if !token.is_through && token.is_ours {
        return false;
    }
    let log = RelyingLog::read(commands);
    let (incarnation, view) = token.root;
    let answers = log.imports().filter(|(_, _, response)| response.through.incarnation == incarnation);
    let Some(informed) = answers.map(|(_, _, response)| response.answered).max() else { return false };
    let entries = life(events, incarnation);
    let is_known = |entry: &&Entry| entry.event < informed;
    let covers = |entry: &Entry| {
        (entry.event >= view && revokes(entry.change, token)) || is_taint_of(entry.change, token)
    };
    entries.iter().filter(is_known).any(covers) || blocks(entries.iter().filter(is_known), token)
}

/// Whether the relying fabric has read the log of the incarnation that issued this token, and no later one.
#[must_use]
pub fn is_incarnation_read(token: &Token, commands: &[Command]) -> bool {
    let position = RelyingLog::read(commands).position();
    token.is_ours || position.is_some_and(|at| at.incarnation == token.at.incarnation)
}
