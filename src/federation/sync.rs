//! `POST /v1/federation/sync`: the entries of our own ledger after a position, for a peer.
//!
//! The node proves that it is current after the call has arrived, and answers from a state that is at least as new. A
//! response therefore states that no other entry existed before the call, also if it was held.

use std::collections::{BTreeMap, HashMap};
use std::pin::{Pin, pin};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::peers::Peer;
use super::serve::invalid;
use super::wire::{SyncEntry, SyncKeys, SyncRequest, SyncResponse, VERSION};
use super::{Error, Federation};
use crate::id::LogPosition;
use crate::limiter::KeyedLimiter;
use crate::state::{
    LedgerCursor, LedgerEntry, LedgerPage, LedgerQuery, LedgerSums, LinearizableRead, ReaderCall, peer_key,
    stated,
};
use crate::token::signing_key::SigningAlgorithm;
use crate::{json, limits};

/// Capacity of a response for everything but entries and keys.
const HEAD_BYTES: usize = 2048;
/// Maximum length of an entry in a response, with its comma and without the texts of its fact.
const ENTRY_BYTES: usize = 176;

/// Calls of peers.
pub(super) struct Calls {
    held: KeyedLimiter<String>,
    /// The last call of each peer, by issuer.
    last: Mutex<BTreeMap<String, LastCall>>,
    /// Boot time of the last call that was ahead of our log, by the issuer of the peer.
    ahead: Mutex<BTreeMap<String, Duration>>,
}

/// The last call of a peer to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCall {
    /// The position that it named.
    pub since: Option<LogPosition>,
    /// The position up to which it enforces our ledger, as this or an earlier call stated.
    pub enforced: Option<LogPosition>,
    /// Boot time of its arrival.
    pub at: Duration,
}

impl Default for Calls {
    fn default() -> Self {
        let held = KeyedLimiter::new(limits::SYNC_HELD_PER_PEER_MAX, limits::SYNC_HELD_MAX);
        Self { held, last: Mutex::default(), ahead: Mutex::default() }
    }
}

impl Calls {
    fn record(&self, issuer: &str, mut call: LastCall) {
        let mut last = self.last.lock();
        let before = last.get(issuer).and_then(|before| before.enforced);
        // A call of a deposed leader may arrive late.
        let is_older = |stated: &LogPosition| {
            before
                .is_some_and(|before| before.incarnation == stated.incarnation && before.index > stated.index)
        };
        call.enforced = call.enforced.filter(|stated| !is_older(stated)).or(before);
        last.insert(issuer.to_owned(), call);
        self.ahead.lock().remove(issuer);
    }

    /// Whether a call that is ahead of our log is the first one since a valid call of the peer.
    fn is_first_ahead(&self, issuer: &str, now: Duration) -> bool {
        self.ahead.lock().insert(issuer.to_owned(), now).is_none()
    }

    /// Whether a peer names a position beyond the end of our log. It repeats its call, also after it was answered by another
    /// node: so an old call says nothing.
    pub(super) fn are_ahead(&self, now: Duration) -> bool {
        self.ahead.lock().values().any(|at| now.saturating_sub(*at) < limits::PEER_FABRIC_AHEAD_RETENTION)
    }

    /// The last call of a peer.
    pub(super) fn last(&self, issuer: &str) -> Option<LastCall> {
        self.last.lock().get(issuer).copied()
    }
}

/// A valid call.
pub(super) struct Call {
    /// Log index of the position, if that is of our incarnation.
    since: Option<u64>,
    position: Option<LogPosition>,
    cursor: Option<LedgerCursor>,
    floor_epoch: u32,
    hold: Duration,
    limit: usize,
    keys: Option<String>,
    honours_lease: bool,
    enforced: Option<LogPosition>,
    /// Boot time of its arrival.
    at: Duration,
}

impl Call {
    /// The report to the leader.
    fn reported(&self, peer: &Peer) -> ReaderCall {
        ReaderCall {
            reader: peer_key(&peer.issuer),
            lease: self.honours_lease.then_some(limits::PEER_FABRIC_LEASE),
            enforced: self.enforced.map_or(0, |enforced| enforced.index),
        }
    }
}

/// Whether the caller learns anything from a response but that nothing has changed.
fn has_news(response: &SyncResponse) -> bool {
    !response.entries.is_empty() || response.next.is_some() || response.reset || response.keys.is_some()
}

impl Federation {
    /// Answers a call of a peer: at once if there are entries, otherwise with the first one, or without any when the
    /// time for which it may be held is over or the node stops. The leader learns of every call, whatever the configuration
    /// of this node states about the peer: revocations of another node may wait for it.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Position`] if the position is ahead of our log; [`Error::TooManyCalls`];
    /// [`Error::Paused`], also if the peer is paused while the call is held; [`Error::State`] if the node is not current, or
    /// loses its lease meanwhile.
    pub async fn sync(&self, peer: &Peer, request: SyncRequest) -> Result<SyncResponse, Error> {
        self.check_not_paused(peer)?;
        let permit = self.calls.held.try_acquire(Some(peer.issuer.clone()));
        let _permit = permit.map_err(|_| Error::TooManyCalls)?;
        let call = self.call(request)?;
        let current = self.parts.state.current_for(call.reported(peer)).await?;
        self.answer(&current, peer, &call).await
    }

    /// Answers a call that the leader has recorded.
    pub(super) async fn answer(
        &self,
        current: &LinearizableRead,
        peer: &Peer,
        call: &Call,
    ) -> Result<SyncResponse, Error> {
        self.check_not_ahead(peer, call)?;
        let last = LastCall { since: call.position, enforced: call.enforced, at: call.at };
        self.calls.record(&peer.issuer, last);
        let mut held = pin!(tokio::time::sleep(call.hold));
        let mut changes = self.parts.state.ledger_changes();
        let mut is_over = call.hold.is_zero();
        loop {
            // An entry from here on ends the wait, whether or not the response has it.
            changes.mark_unchanged();
            let response = self.response(current, peer, call).await?;
            if is_over || has_news(&response) {
                self.check_not_paused(peer)?;
                return Ok(response);
            }
            is_over = self.wait(&mut changes, held.as_mut()).await?;
        }
    }

    /// Waits until the ledger has changed; true if the call is not to be held any longer. A node without a lease does
    /// not learn of entries, so it sends its callers to another one.
    async fn wait(
        &self,
        changes: &mut watch::Receiver<u64>,
        mut held: Pin<&mut tokio::time::Sleep>,
    ) -> Result<bool, Error> {
        loop {
            tokio::select! {
                changed = changes.changed() => return Ok(changed.is_err()),
                () = held.as_mut() => return Ok(true),
                () = self.parts.stop_requested.cancelled() => return Ok(true),
                () = tokio::time::sleep(limits::SYNC_LEASE_CHECK_INTERVAL) => {}
            }
            self.parts.state.fresh().await?;
        }
    }

    /// Checks a request.
    pub(super) fn call(&self, request: SyncRequest) -> Result<Call, Error> {
        if request.version != VERSION {
            return Err(invalid("version", format_args!("must be {VERSION}")));
        }
        let SyncRequest { since, floor_epoch, hold_ms, limit, keys, cursor, honours_lease, enforced, .. } =
            request;
        let hold = Duration::from_millis(hold_ms);
        if hold > limits::SYNC_HOLD_MAX {
            let most = limits::SYNC_HOLD_MAX.as_millis();
            return Err(invalid("hold_ms", format_args!("must be at most {most}")));
        }
        let limit = limit.map_or(Some(limits::SYNC_ENTRIES_MAX), |limit| usize::try_from(limit).ok());
        let limit = limit.filter(|limit| (1..=limits::SYNC_ENTRIES_MAX).contains(limit));
        let limit = limit.ok_or_else(|| {
            invalid("limit", format_args!("must be from 1 to {}", limits::SYNC_ENTRIES_MAX))
        })?;
        let incarnation = self.incarnation()?;
        let position = since.as_deref().map(str::parse::<LogPosition>).transpose();
        let position =
            position.map_err(|_| invalid("since", "must be a log position, <incarnation>-<index>"))?;
        let since = position.filter(|since| since.incarnation == incarnation).map(|since| since.index);
        let ours = position.filter(|_| since.is_some());
        // A caller that continues a copy of another incarnation repeats its acknowledgement until it is told so.
        let is_of_another = position.is_some() && since.is_none();
        let enforced = enforced.filter(|_| !is_of_another);
        let enforced = enforced.map(|index| enforced_to(index, ours, honours_lease)).transpose()?;
        // Epochs of another incarnation mean nothing here. One ahead of ours is valid: the caller forgets by a clock that
        // runs while this fabric is down.
        let floor_epoch = floor_epoch.filter(|_| since.is_some()).unwrap_or_default();
        let cursor = cursor.map(|text| self.read_cursor(&text)).transpose()?;
        let at = self.parts.clock.boot();
        Ok(Call { since, position, cursor, floor_epoch, hold, limit, keys, honours_lease, enforced, at })
    }

    /// Refuses a position in a part of our log that does not exist. Logged once until the peer calls validly.
    fn check_not_ahead(&self, peer: &Peer, call: &Call) -> Result<(), Error> {
        let end = self.parts.state.position().ok_or(Error::NotBootstrapped)?.index;
        if call.since.is_none_or(|since| since <= end) {
            return Ok(());
        }
        if self.calls.is_first_ahead(&peer.issuer, call.at) {
            let peer = &peer.name;
            tracing::warn!(
                peer,
                end,
                "a peer fabric names a log index beyond the end: one of the two has lost its past"
            );
        }
        Err(Error::Position(format!("is ahead of the log of this fabric, which ends at {end}")))
    }

    /// The response as of now. `root` needs entries and sums of the same instant, so it is attempted a few
    /// times.
    async fn response(
        &self,
        current: &LinearizableRead,
        peer: &Peer,
        call: &Call,
    ) -> Result<SyncResponse, Error> {
        for _ in 1..limits::LEDGER_SCAN_ATTEMPTS_MAX {
            let response = self.attempt(current, peer, call).await?;
            if response.root.is_some() || response.next.is_some() {
                return Ok(response);
            }
        }
        self.attempt(current, peer, call).await
    }

    async fn attempt(
        &self,
        current: &LinearizableRead,
        peer: &Peer,
        call: &Call,
    ) -> Result<SyncResponse, Error> {
        let here = self.parts.state.position().ok_or(Error::NotBootstrapped)?;
        let (page, sums, is_reset) = self.page(current, call).await?;
        let from = call.since.filter(|_| !is_reset).unwrap_or_default();
        // After the page, so that a key that it taints is not in the set.
        let keys = self.keys();
        let (entries, next) = self.cut(peer, page, &keys);
        let through = match &next {
            // Other entries of that index may follow.
            Some(next) => from.max(next.parts().0.saturating_sub(1)),
            None => entries.last().map_or(from, |entry| entry.n).max(here.index),
        };
        let floor_epoch = call.floor_epoch.max(sums.complete_from);
        let is_consistent = next.is_none() && sums.changed_at <= through;
        let root = is_consistent.then(|| sums.root(&here.incarnation, floor_epoch));
        let epoch = entries.last().map_or(0, |entry| entry.e).max(self.parts.state.ledger_epoch());
        Ok(SyncResponse {
            version: VERSION,
            issuer: self.parts.issuer.clone(),
            incarnation: here.incarnation.to_string(),
            from,
            through,
            keys: Some(keys).filter(|keys| next.is_none() && call.keys.as_ref() != Some(&keys.etag)),
            next: next.map(|next| self.write_cursor(&next)).transpose()?,
            forgotten_to: sums.forgotten_to,
            epoch,
            complete_from: sums.complete_from,
            reset: is_reset,
            lease_ms: call.honours_lease.then(lease_ms),
            time: self.parts.state.not_before_log(self.parts.clock.now()).to_rfc3339(),
            root: root.map(|root| URL_SAFE_NO_PAD.encode(root)),
            count: sums.count(floor_epoch),
            entries,
        })
    }

    /// The page of a call, the sums after it, and whether the ledger is read from its beginning. The next page of a
    /// ledger that is read from its beginning is not a beginning, although entries below it are forgotten.
    async fn page(
        &self,
        current: &LinearizableRead,
        call: &Call,
    ) -> Result<(LedgerPage, LedgerSums, bool), Error> {
        let after = call.cursor.clone().or_else(|| call.since.map(LedgerCursor::after_index));
        if after.is_some() {
            let (page, sums) = self.read(current, after, call.limit).await?;
            if call.cursor.is_some() || call.since >= Some(sums.forgotten_to) {
                return Ok((page, sums, false));
            }
        }
        let (page, sums) = self.read(current, None, call.limit).await?;
        Ok((page, sums, true))
    }

    /// Reads a page in steps: other tasks run meanwhile, and entries may move.
    async fn read(
        &self,
        current: &LinearizableRead,
        after: Option<LedgerCursor>,
        limit: usize,
    ) -> Result<(LedgerPage, LedgerSums), Error> {
        let mut page = LedgerPage { entries: Vec::new(), next: after };
        loop {
            let capacity = limit.saturating_sub(page.entries.len());
            let query = LedgerQuery {
                after: page.next.take(),
                limit: capacity.min(limits::LEDGER_ROWS_PER_STEP),
                ..LedgerQuery::default()
            };
            let step = self.parts.state.ledger_page(current, &query)?;
            page.entries.extend(step.entries);
            page.next = step.next;
            if page.next.is_none() || page.entries.len() >= limit {
                // After the page, so that entries that were forgotten before it are not missed unnoticed.
                return Ok((page, self.parts.state.ledger_sums(current)?));
            }
            tokio::task::yield_now().await;
        }
    }

    /// The entries of a page as this peer may see them, as many as the size of a response allows, and the cursor of the
    /// next page.
    fn cut(&self, peer: &Peer, page: LedgerPage, keys: &SyncKeys) -> (Vec<SyncEntry>, Option<LedgerCursor>) {
        let bytes_of_keys = serde_json::to_string(keys).map_or(usize::MAX, |text| text.len());
        let capacity = limits::SYNC_RESPONSE_BYTES_MAX - HEAD_BYTES;
        let mut capacity = capacity.saturating_sub(bytes_of_keys);
        let (mut entries, mut last) = (Vec::with_capacity(page.entries.len()), None);
        for mut entry in latest(page.entries) {
            let cursor = cursor_of(&entry);
            self.conceal(&peer.disclose, &mut entry);
            let entry = entry_of(entry);
            let bytes = bytes_max(&entry);
            if bytes > capacity && last.is_some() {
                return (entries, last);
            }
            capacity = capacity.saturating_sub(bytes);
            entries.push(entry);
            last = cursor;
        }
        (entries, page.next)
    }

    /// The keys that verify our tokens.
    fn keys(&self) -> SyncKeys {
        let elapsed = self.parts.state.elapsed_time();
        let index = self.parts.state.index();
        let verifying = index
            .signing_keys
            .values()
            .filter(|key| key.algorithm == SigningAlgorithm::Es256 && key.verifies(elapsed));
        let keys: Vec<Map<String, Value>> =
            verifying.filter_map(|key| json::parse_object(key.jwk.as_bytes()).ok()).collect();
        let objects = keys.iter().cloned().map(Value::Object).collect();
        let hash = digest(&SHA256, json::canonical(&Value::Array(objects)).as_bytes());
        SyncKeys { etag: URL_SAFE_NO_PAD.encode(&hash.as_ref()[..16]), keys }
    }
}

/// The position that a caller states to be enforced; `since` is of this incarnation.
fn enforced_to(index: u64, since: Option<LogPosition>, honours_lease: bool) -> Result<LogPosition, Error> {
    if !honours_lease {
        return Err(invalid("enforced", "needs honours_lease"));
    }
    let has_it = |since: &LogPosition| index <= since.index;
    let since = since
        .filter(has_it)
        .ok_or_else(|| invalid("enforced", "must not be after since, of this incarnation"))?;
    Ok(LogPosition { index, ..since })
}

fn lease_ms() -> u64 {
    u64::try_from(limits::PEER_FABRIC_LEASE.as_millis()).unwrap_or(u64::MAX)
}

/// Upper bound of the length of an entry in JSON, which is therefore written only once.
fn bytes_max(entry: &SyncEntry) -> usize {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    let texts = [&entry.kind, &entry.issuer, &entry.value, &entry.reason].into_iter().flatten();
    ENTRY_BYTES + texts.flat_map(|text| text.bytes()).map(escaped).sum::<usize>()
}

/// The entries without those of a fact that was written again while the page was read, and is on it twice.
fn latest(entries: Vec<LedgerEntry>) -> impl Iterator<Item = LedgerEntry> {
    let fact = |entry: &LedgerEntry| (entry.id, entry.by);
    let last: HashMap<_, _> = entries.iter().map(|entry| (fact(entry), entry.index)).collect();
    entries.into_iter().filter(move |entry| last.get(&fact(entry)) == Some(&entry.index))
}

fn entry_of(entry: LedgerEntry) -> SyncEntry {
    let LedgerEntry { index, epoch, state, id, by, fact, reason, .. } = entry;
    let fact = fact.unwrap_or_default();
    SyncEntry {
        n: index,
        e: epoch,
        state: state.into_str().to_owned(),
        id: id.to_string(),
        by: by.map(|by| by.to_string()),
        kind: stated(fact.kind),
        issuer: stated(fact.issuer),
        value: stated(fact.value),
        reason: stated(reason),
    }
}

/// The position of an entry in the order of the ledger.
fn cursor_of(entry: &LedgerEntry) -> Option<LedgerCursor> {
    let by = entry.by.map(|by| by.as_bytes().to_vec()).unwrap_or_default();
    LedgerCursor::after_entry(entry.index, &[&entry.id.as_bytes()[..], &by].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_ahead_of_the_log_is_recorded_once() {
        let calls = Calls::default();
        let is_first = |issuer| calls.is_first_ahead(issuer, Duration::ZERO);
        assert!(is_first("https://eu.example") && is_first("https://us.example"));
        assert!(!is_first("https://eu.example"));
        calls.record("https://eu.example", LastCall { since: None, enforced: None, at: Duration::ZERO });
        assert!(is_first("https://eu.example"), "after a valid call");
        assert!(!is_first("https://us.example"));
    }

    /// Regression: a node that was called once with such a position warned until its restart, although the peer had called
    /// other nodes validly since.
    #[test]
    fn call_ahead_of_the_log_is_reported_for_a_while() {
        let calls = Calls::default();
        assert!(!calls.are_ahead(Duration::ZERO));
        let at = Duration::from_secs(5);
        calls.is_first_ahead("https://eu.example", at);
        let last = at.saturating_add(limits::PEER_FABRIC_AHEAD_RETENTION);
        assert!(calls.are_ahead(at) && calls.are_ahead(last.saturating_sub(Duration::from_millis(1))));
        assert!(!calls.are_ahead(last));
    }

    #[test]
    fn entry_is_not_longer_than_its_bound() {
        let text = Some("\"\\\u{1}\n\u{7f}\u{e9}\u{2028}x".to_owned());
        let largest = SyncEntry {
            n: u64::MAX,
            e: u32::MAX,
            state: "revoked".to_owned(),
            id: "i".repeat(22),
            by: Some("b".repeat(22)),
            kind: text.clone(),
            issuer: text.clone(),
            value: text.clone(),
            reason: text,
        };
        for entry in [largest, SyncEntry::default()] {
            let written = serde_json::to_string(&entry).expect("JSON").len() + 1;
            assert!((written..written + ENTRY_BYTES).contains(&bytes_max(&entry)), "{written}: {entry:?}");
        }
    }
}
