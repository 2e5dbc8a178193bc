//! Decisions about calls to one peer, without I/O: which endpoint and position, whether a response is imported, and when
//! the next call is due. Time and randomness are arguments.

use std::time::Duration;

use bytes::Bytes;

use super::wire::{Answer, AnswerKeys, Entry, Expected, Malformed, SyncRequest, VERSION};
use crate::id::{Incarnation, LogPosition};
use crate::limits;
use crate::state::command::{ImportLedger, PeerEntry, PeerKeys};

/// The copy of the peer's ledger, as far as calls depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Number of the copy; 0 if there is none.
    pub generation: u64,
    /// The peer's incarnation, if a response was imported.
    pub incarnation: Option<Incarnation>,
    /// Log index in the peer up to which it was imported.
    pub position: u64,
    /// The highest position so far, also if the copy is read again from the beginning.
    pub reached: u64,
    /// The first epoch of which the copy has forgotten nothing.
    pub complete_from: u32,
    /// `etag` of the key set.
    pub keys_etag: String,
    /// The import under which its blocks are stored; another one after each reset.
    pub blocks_of: u64,
    /// Whether everything up to the position was imported at least once.
    pub is_complete: bool,
}

impl Known {
    /// Whether the peer's log ends before a position that it had reached. A call states the position of the copy only, which is
    /// 0 while the copy is read again.
    pub fn is_ahead_of(&self, answer: &Answer) -> bool {
        self.incarnation == Some(answer.incarnation) && answer.is_whole() && answer.through < self.reached
    }

    const fn copy_position(&self) -> CopyPosition {
        CopyPosition { generation: self.generation, blocks_of: self.blocks_of, position: self.position }
    }
}

/// A copy, and the position up to which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyPosition {
    generation: u64,
    blocks_of: u64,
    position: u64,
}

/// A call that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the endpoint.
    pub endpoint: usize,
    /// Its body.
    pub request: SyncRequest,
    /// The checks of its response.
    pub expected: Expected,
    /// The copy for which it is sent.
    pub known: Known,
}

/// Reason why a call had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Failure {
    /// No response.
    #[error("{0}")]
    Unanswered(String),
    /// A response with another status than 200.
    #[error("answered with status {0}")]
    Status(u16),
    /// The peer does not have our position in its log.
    #[error("the peer has lost the end of its log")]
    RolledBack,
    /// A response that breaks a rule.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The response could not be imported.
    #[error("{0}")]
    NotImported(String),
    /// The copy has no room for the entries.
    #[error("the peer has more entries than max_entries")]
    OverQuota,
}

impl Failure {
    /// Whether another attempt soon would have the same result.
    const fn is_lasting(&self) -> bool {
        matches!(self, Self::RolledBack | Self::Malformed(_) | Self::OverQuota)
    }
}

/// Effect of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Outcome {
    /// It is imported; the pause of the import.
    Imported(Duration),
    /// It states nothing new.
    NothingNew,
    /// An operator has to decide about the peer; the pause of the import.
    Held(Duration),
}

/// The import of a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    pub command: ImportLedger,
    /// Wait after it.
    pub pause: Duration,
}

/// The position up to which responses stated nothing new. It is not in the log, which 300 idle peers would fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadTo {
    /// The copy that was up to date.
    copy: CopyPosition,
    through: u64,
}

/// The next page of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    /// The copy after the page before it. In any other copy, it would leave out what lies between the two.
    copy: CopyPosition,
    cursor: String,
}

/// The calls to one peer.
#[derive(Clone, Debug)]
pub struct Engine {
    issuer: String,
    endpoints: usize,
    /// Time for which a peer may hold a call, and maximum wait after a response: its lease is renewed several times before
    /// it ends.
    hold: Duration,
    endpoint: usize,
    /// Maximum entries of a response until the copy is up to date again.
    entries_max: usize,
    /// Whether the last call was answered. Only then may the next one be held: meanwhile, the lease runs out.
    is_answered: bool,
    failures: u32,
    page: Option<Page>,
    read_to: Option<ReadTo>,
    /// Boot time of the last import.
    imported_at: Duration,
    /// Boot time of the last import that began to read the ledger again.
    restarted_at: Option<Duration>,
}

impl Engine {
    /// The calls to a peer with this number of endpoints, whose credentials are accepted for `lease` after a call.
    #[must_use]
    pub fn new(issuer: String, endpoints: usize, lease: Duration, now: Duration) -> Self {
        Self {
            issuer,
            endpoints: endpoints.max(1),
            hold: (lease / 4).min(limits::SYNC_HOLD_MAX),
            endpoint: 0,
            entries_max: limits::SYNC_ENTRIES_MAX,
            is_answered: false,
            failures: 0,
            page: None,
            read_to: None,
            imported_at: now,
            restarted_at: None,
        }
    }

    /// Time for which a response may be awaited. A node that does not answer leaves time to call another one before the lease
    /// ends.
    #[must_use]
    pub fn response_timeout(&self) -> Duration {
        let answer = self.hold.clamp(limits::SYNC_RESPONSE_WAIT_MIN, limits::SYNC_RESPONSE_WAIT);
        self.next_hold() + answer
    }

    /// Time for which the peer may hold the next call.
    fn next_hold(&self) -> Duration {
        if self.is_answered { self.hold } else { Duration::ZERO }
    }

    /// The next call.
    pub fn call(&mut self, known: Known) -> Call {
        // The import of a former leader, or an operator, may have changed the copy since.
        let copy = known.copy_position();
        self.page = self.page.take().filter(|page| page.copy == copy);
        self.read_to = self.read_to.filter(|read| read.copy == copy);
        let cursor = self.page.as_ref().map(|page| page.cursor.clone());
        let index = self.read_to.map_or(known.position, |read| read.through);
        let since = known.incarnation.map(|incarnation| LogPosition { incarnation, index });
        let request = SyncRequest {
            version: VERSION,
            since: since.map(|since| since.to_string()),
            floor_epoch: since.map(|_| known.complete_from),
            hold_ms: u64::try_from(self.next_hold().as_millis()).unwrap_or_default(),
            limit: Some(self.entries_max as u64),
            keys: Some(known.keys_etag.clone()).filter(|etag| !etag.is_empty()),
            cursor: cursor.clone(),
            honours_lease: false,
            enforced: None,
        };
        let expected = Expected { issuer: self.issuer.clone(), since, cursor, limit: self.entries_max };
        Call { endpoint: self.endpoint, request, expected, known }
    }

    /// The import of a response; `None` if that states nothing new. `is_equal` states whether the copy has the root that the
    /// response states.
    pub fn answered(
        &mut self,
        call: &Call,
        answer: &Answer,
        is_equal: bool,
        now: Duration,
    ) -> Option<Import> {
        self.page = None;
        let known = &call.known;
        let is_same = known.incarnation == Some(answer.incarnation);
        let is_idle = is_same
            && known.is_complete
            && is_equal
            && answer.is_whole()
            && answer.entries.is_empty()
            && !answer.is_reset
            && answer.keys.is_none();
        let is_to_be_written = answer.through > known.position
            && now.saturating_sub(self.imported_at) >= limits::PEER_FABRIC_POSITION_WRITE_INTERVAL;
        if is_idle && !is_to_be_written {
            self.read_to = Some(ReadTo { copy: known.copy_position(), through: answer.through });
            return None;
        }
        self.imported_at = now;
        let pause = self.pause_after(known, answer, now);
        // Nothing was between the position of the copy and that of the call.
        let begin = if answer.is_reset { 0 } else { known.position };
        Some(Import { command: self.import(call, begin, answer), pause })
    }

    /// Wait after the import of a response. A peer can repeat resets, key sets and empty pages without a revocation, and
    /// each costs entries of our log, events and deletions: they are paced, the first copy of its ledger is not.
    fn pause_after(&mut self, known: &Known, answer: &Answer, now: Duration) -> Duration {
        let is_restart =
            known.incarnation.is_some_and(|before| before != answer.incarnation || answer.is_reset);
        if is_restart {
            let last = self.restarted_at.replace(now);
            if last.is_some_and(|last| now.saturating_sub(last) < limits::PEER_FABRIC_RETRY_LASTING) {
                return limits::PEER_FABRIC_RETRY_LASTING;
            }
        }
        if answer.keys.is_some() && !known.keys_etag.is_empty() {
            limits::PEER_FABRIC_RETRY_MAX.min(self.hold)
        } else if answer.entries.is_empty() {
            limits::PEER_FABRIC_RETRY_MIN
        } else {
            Duration::ZERO
        }
    }

    /// Records the copy after the import of a response, which the next page continues.
    pub fn imported(&mut self, answer: &Answer, copy: &Known) {
        let is_same = copy.incarnation == Some(answer.incarnation);
        let copy = CopyPosition { position: answer.through, ..copy.copy_position() };
        self.page = answer.next.clone().filter(|_| is_same).map(|cursor| Page { copy, cursor });
    }

    /// The command that imports a response after `begin`.
    fn import(&self, call: &Call, begin: u64, answer: &Answer) -> ImportLedger {
        ImportLedger {
            issuer: self.issuer.clone(),
            generation: call.known.generation,
            incarnation: Bytes::copy_from_slice(answer.incarnation.as_bytes()),
            from: begin,
            through: answer.through,
            floor: answer.forgotten_to,
            epoch: answer.epoch,
            floor_epoch: floor_epoch(call, answer),
            root: answer.root.map_or_else(Bytes::new, |root| Bytes::copy_from_slice(&root)),
            is_whole: answer.is_whole(),
            is_reset: answer.is_reset,
            entries: answer.entries.iter().map(entry).collect(),
            keys: answer.keys.as_ref().filter(|_| answer.is_whole()).map(keys),
            ..ImportLedger::default()
        }
    }

    /// The command that states that the peer's log ends before our position.
    #[must_use]
    pub fn rolled_back(&self, call: &Call) -> Option<ImportLedger> {
        let Known { generation, incarnation, reached, .. } = &call.known;
        Some(ImportLedger {
            issuer: self.issuer.clone(),
            generation: *generation,
            incarnation: Bytes::copy_from_slice(incarnation.as_ref()?.as_bytes()),
            from: *reached,
            through: reached.checked_sub(1)?,
            ..ImportLedger::default()
        })
    }

    /// Time until the next call after a response. A peer that answers at once although there is nothing new is not
    /// called in a tight loop, nor is one that an operator has to decide about, or that makes us write for nothing.
    pub fn succeeded(&mut self, outcome: Outcome, took: Duration) -> Duration {
        let hold = self.next_hold();
        (self.failures, self.is_answered) = (0, true);
        self.entries_max = (self.entries_max * 2).min(limits::SYNC_ENTRIES_MAX);
        match outcome {
            Outcome::Held(pause) => {
                // Not all of the page is imported.
                self.page = None;
                limits::PEER_FABRIC_RETRY_MAX.max(pause)
            }
            Outcome::NothingNew if took < hold || hold.is_zero() => limits::PEER_FABRIC_RETRY_MIN,
            Outcome::NothingNew => Duration::ZERO,
            Outcome::Imported(pause) => pause,
        }
    }

    /// Time until the next call, to the next endpoint, after a failure. A page is then read again from the position. After a
    /// failure that would repeat, the wait is long once every endpoint has failed: one of them alone must not end the lease.
    pub fn failed(&mut self, failure: &Failure, random: u64) -> Duration {
        self.page = None;
        self.endpoint = (self.endpoint + 1) % self.endpoints;
        self.failures = self.failures.saturating_add(1);
        self.is_answered = false;
        if matches!(failure, Failure::Unanswered(_)) {
            // The connection may be too slow for so many in time.
            self.entries_max = (self.entries_max / 2).max(limits::SYNC_ENTRIES_MIN);
        }
        if failure.is_lasting() && self.failures as usize >= self.endpoints {
            return limits::PEER_FABRIC_RETRY_LASTING;
        }
        let doubled = 2_u32.checked_pow(self.failures.saturating_sub(1));
        let bound = doubled.and_then(|times| limits::PEER_FABRIC_RETRY_MIN.checked_mul(times));
        let bound = bound.unwrap_or(limits::PEER_FABRIC_RETRY_MAX).min(limits::PEER_FABRIC_RETRY_MAX);
        // Half of it is random, so that fabrics that failed together do not call together.
        let half = u64::try_from(bound.as_millis() / 2).unwrap_or_default();
        Duration::from_millis(half + random % (half + 1))
    }
}

/// The first epoch under the root of a response.
#[must_use]
pub fn floor_epoch(call: &Call, answer: &Answer) -> u32 {
    let requested = call.known.complete_from;
    // Our own epoch of another incarnation means nothing.
    let is_same = call.known.incarnation == Some(answer.incarnation);
    answer.complete_from.max(if is_same { requested } else { 0 })
}

fn entry(entry: &Entry) -> PeerEntry {
    PeerEntry {
        n: entry.n,
        epoch: entry.epoch,
        state: entry.state as u32,
        id: Bytes::copy_from_slice(entry.id.as_bytes()),
        by: entry.by.map_or_else(Bytes::new, |by| Bytes::copy_from_slice(by.as_bytes())),
    }
}

fn keys(keys: &AnswerKeys) -> PeerKeys {
    PeerKeys { etag: keys.etag.clone(), key_set: keys.key_set.clone().into() }
}

#[cfg(test)]
mod tests;
