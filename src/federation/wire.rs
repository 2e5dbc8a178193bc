//! Bodies of `POST /v1/federation/sync`: one format for both sides.
//!
//! A response is another fabric's statement. [`Expected::read`] refuses all of it for one violation, so that no part of
//! a malformed response has an effect. Unknown fields are ignored: a newer peer stays readable.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::id::{Digest128, Incarnation, LogPosition};
use crate::state::{LedgerState, PEER_INDEX_MAX};
use crate::token::jws::Algorithm;
use crate::token::key_set::VerifyingKey;
use crate::token::lineage;
use crate::{json, limits};

/// Version of the format.
pub const VERSION: u32 = 1;

/// A call: every entry of the ledger after a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SyncRequest {
    /// Version of the format: 1.
    pub version: u32,
    /// The log position, `<incarnation>-<index>`, up to which the caller has the ledger; absent: it has none of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The lowest epoch that `root` shall cover.
    #[serde(rename = "floor", skip_serializing_if = "Option::is_none")]
    pub floor_epoch: Option<u32>,
    /// Time in milliseconds for which the call may be held while there is no entry, up to 10000; default: 0.
    #[serde(default)]
    pub hold_ms: u64,
    /// Maximum number of entries, 1 to 5000; default: 5000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The `etag` of the key set that the caller has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// `next` of the previous response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Whether the caller accepts our credentials for `lease_ms` after the call at most, if it takes a lease from the
    /// response at all.
    #[serde(default, skip_serializing_if = "is_false")]
    pub honours_lease: bool,
    /// Log index, not after `since`: no node of the caller serves a request from a state without an entry up to it. Only
    /// with `honours_lease`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The entries after a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SyncResponse {
    /// Version of the format: 1.
    pub version: u32,
    /// The `iss` of the fabric whose ledger it is.
    pub issuer: String,
    /// The incarnation of every log index in the response.
    pub incarnation: String,
    /// Log index of `since`, or 0 with `reset`.
    pub from: u64,
    /// The response completes the entries up to this log index.
    pub through: u64,
    /// Cursor of the next page; absent if `entries` is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Entries up to this log index may be forgotten.
    #[serde(rename = "floor")]
    pub forgotten_to: u64,
    /// The present epoch.
    pub epoch: u32,
    /// The first epoch of which no entry is forgotten.
    #[serde(rename = "floor_epoch")]
    pub complete_from: u32,
    /// Whether the ledger is read from its beginning, because entries after `since` are forgotten, or `since` is absent
    /// or of another incarnation. The caller deletes the blocks that it had before.
    pub reset: bool,
    /// With `honours_lease`: time in milliseconds after the call for which the caller may accept our credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Time of the response. RFC 3339, UTC.
    pub time: String,
    /// Hash over the entries of epochs from the higher of `floor_epoch` and the requested `floor` on, and the blocks in
    /// force, at `through`; absent on a page that is not the last, and while entries change faster than they are read.
    /// Base64url.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Number of entries under `root`.
    pub count: u64,
    /// The token keys; absent if their `etag` is the one of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<SyncKeys>,
    /// The entries after `from`, the latest of each fact, in the order of the log.
    pub entries: Vec<SyncEntry>,
}

/// The keys that verify the fabric's tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SyncKeys {
    /// Identifies this set of keys.
    pub etag: String,
    /// Public JWKs for ES256.
    pub keys: Vec<Map<String, Value>>,
}

/// An entry of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SyncEntry {
    /// Log index.
    pub n: u64,
    /// Epoch.
    pub e: u32,
    /// `revoked`, `key`, `blocked` or `lifted`.
    pub state: String,
    /// The digest of the fact. Base64url.
    pub id: String,
    /// The digest of author and family, of a block or lift. Base64url.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The kind of the fact; like `issuer`, `value` and `reason`, only if the fact is disclosed to the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// The revoked or blocked value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The reason; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The rule that a response breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct Malformed {
    /// Name of the field.
    pub field: String,
    /// The rule.
    pub rule: String,
}

fn malformed(field: &str, rule: &str) -> Malformed {
    Malformed { field: field.to_owned(), rule: rule.to_owned() }
}

/// Refuses unless `is_so`.
fn check(is_so: bool, field: &str, rule: &str) -> Result<(), Malformed> {
    if is_so { Ok(()) } else { Err(malformed(field, rule)) }
}

/// The request to which a response belongs, as far as the response is checked against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// `iss` of the peer.
    pub issuer: String,
    /// The position of the request.
    pub since: Option<LogPosition>,
    /// The cursor of the request.
    pub cursor: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// A response that breaks no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The peer's incarnation.
    pub incarnation: Incarnation,
    /// Entries begin after this log index.
    pub from: u64,
    /// Entries are complete up to this log index.
    pub through: u64,
    /// Cursor of the next page.
    pub next: Option<String>,
    /// The peer may have forgotten entries up to this log index.
    pub forgotten_to: u64,
    /// The peer's epoch.
    pub epoch: u32,
    /// The first epoch of which the peer has forgotten nothing.
    pub complete_from: u32,
    /// Whether the ledger is read from its beginning, and earlier blocks are no longer in force.
    pub is_reset: bool,
    /// Time after the call for which the peer allows its credentials to be accepted.
    pub lease: Option<Duration>,
    /// The peer's clock.
    pub at: Timestamp,
    /// Root of the peer's ledger.
    pub root: Option<[u8; 32]>,
    /// Number of entries under it.
    pub count: u64,
    /// The peer's token keys, if they have changed.
    pub keys: Option<AnswerKeys>,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Answer {
    /// Whether it is the last page.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.next.is_none()
    }
}

/// Token keys of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerKeys {
    /// Identifies the set.
    pub etag: String,
    /// A JWK Set, of public keys for ES256, each with a `kid` of its own.
    pub key_set: String,
}

/// An entry of a peer's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Log index in the peer.
    pub n: u64,
    /// The peer's epoch.
    pub epoch: u32,
    /// State.
    pub state: LedgerState,
    /// Digest of the fact.
    pub id: Digest128,
    /// Digest of author and family of a block.
    pub by: Option<Digest128>,
}

impl Expected {
    /// Reads the body of a response.
    ///
    /// # Errors
    /// [`Malformed`]; nothing of the response may then be used.
    pub fn read(&self, body: &[u8]) -> Result<Answer, Malformed> {
        let response: SyncResponse = json::read(body).map_err(|error| match error {
            json::Error::Field { path, rule } => Malformed { field: path, rule },
            other => malformed("body", &other.to_string()),
        })?;
        check(response.version == VERSION, "version", "must be 1")?;
        check(response.issuer == self.issuer, "issuer", "must be the issuer of the peer")?;
        let incarnation = incarnation(&response.incarnation)?;
        let since = self.since.filter(|since| since.incarnation == incarnation);
        let is_reset = response.reset;
        check(is_reset || since.is_some(), "reset", "must be true for another incarnation")?;
        let from = since.filter(|_| !is_reset).map_or(0, |since| since.index);
        check(response.from == from, "from", "must be the log index of the request, or 0 with reset")?;
        let through = response.through;
        check((from..=PEER_INDEX_MAX).contains(&through), "through", "must be from `from` to 2^48 - 1")?;
        check_next(response.next.as_deref(), self.cursor.as_deref())?;
        let is_whole = response.next.is_none();
        let forgotten_max = if is_whole { through } else { PEER_INDEX_MAX };
        check(response.forgotten_to <= forgotten_max, "floor", "must not be above `through`")?;
        check(response.complete_from <= response.epoch, "floor_epoch", "must not be above `epoch`")?;
        check(response.entries.len() <= self.limit, "entries", "must not be more than requested")?;
        let bounds = Bounds {
            from,
            // A page may end within the entries of a log index.
            to: (through + u64::from(!is_whole)).min(PEER_INDEX_MAX),
            epoch: response.epoch,
        };
        Ok(Answer {
            incarnation,
            from,
            through,
            next: response.next,
            forgotten_to: response.forgotten_to,
            epoch: response.epoch,
            complete_from: response.complete_from,
            is_reset,
            lease: response.lease_ms.map(lease).transpose()?,
            at: Timestamp::from_rfc3339(&response.time)
                .ok_or_else(|| malformed("time", "must be RFC 3339"))?,
            root: response.root.filter(|_| is_whole).map(|root| hash(&root)).transpose()?,
            count: response.count,
            keys: response.keys.map(keys).transpose()?,
            entries: entries(&bounds, response.entries)?,
        })
    }
}

/// The lease that a response names. A shorter one would end before the next call.
fn lease(millis: u64) -> Result<Duration, Malformed> {
    let lease = Duration::from_millis(millis);
    check(lease >= limits::PEER_FABRIC_STALE_AFTER_MIN, "lease_ms", "must be at least 2000")?;
    Ok(lease)
}

fn incarnation(text: &str) -> Result<Incarnation, Malformed> {
    let position: Result<LogPosition, _> = format!("{text}-0").parse();
    position
        .map(|position| position.incarnation)
        .map_err(|_| malformed("incarnation", "must be 32 hexadecimal digits"))
}

/// A cursor that repeats that of the request would have the caller repeat the request for ever.
fn check_next(next: Option<&str>, cursor: Option<&str>) -> Result<(), Malformed> {
    let Some(next) = next else { return Ok(()) };
    let is_well_formed = !next.is_empty()
        && next.len() <= limits::SYNC_CURSOR_BYTES_MAX
        && next.bytes().all(|byte| byte.is_ascii_graphic());
    check(is_well_formed, "next", "must be a short text of printable ASCII")?;
    check(cursor != Some(next), "next", "must not repeat the cursor of the request")
}

fn hash(text: &str) -> Result<[u8; 32], Malformed> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| malformed("root", "must be 32 bytes in base64url"))
}

fn keys(keys: SyncKeys) -> Result<AnswerKeys, Malformed> {
    let SyncKeys { etag, keys } = keys;
    let is_etag =
        (1..=limits::SYNC_ETAG_BYTES_MAX).contains(&etag.len()) && etag.bytes().all(|b| b.is_ascii_graphic());
    check(is_etag, "keys.etag", "must be a short text of printable ASCII")?;
    check(keys.len() <= limits::PEER_FABRIC_KEYS_MAX, "keys.keys", "must be at most 256")?;
    let keys: Vec<Value> = keys.into_iter().map(Value::Object).collect();
    let mut kids = BTreeSet::new();
    for jwk in &keys {
        let key = VerifyingKey::from_jwk(jwk).ok().filter(|key| key.fits(Algorithm::Es256));
        let kid = key.and_then(|key| key.kid().map(str::to_owned));
        let kid =
            kid.ok_or_else(|| malformed("keys.keys", "must be public keys for ES256, each with a kid"))?;
        check(kids.insert(kid), "keys.keys", "must not have one kid twice")?;
    }
    let key_set = json!({ "keys": keys }).to_string();
    check(key_set.len() <= limits::FEDERATED_KEY_SET_BYTES_MAX, "keys.keys", "must be at most 128 KiB")?;
    Ok(AnswerKeys { etag, key_set })
}

/// Bounds of the entries of a response.
struct Bounds {
    /// They are after this log index.
    from: u64,
    /// None is after this log index.
    to: u64,
    /// None is of a later epoch.
    epoch: u32,
}

fn entries(bounds: &Bounds, entries: Vec<SyncEntry>) -> Result<Vec<Entry>, Malformed> {
    let mut read: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut facts = HashSet::with_capacity(entries.len());
    for entry in entries {
        let entry = self::entry(&entry)?;
        check(facts.insert((entry.id, entry.by)), "entries.id", "must be there once, with its latest entry")?;
        let is_within = entry.n > bounds.from && entry.n <= bounds.to;
        check(is_within, "entries.n", "must be after `from` and not after `through`")?;
        check(entry.epoch <= bounds.epoch, "entries.e", "must not be after `epoch`")?;
        if let Some(before) = read.last() {
            check(entry.n >= before.n, "entries.n", "must never decrease")?;
            check(entry.epoch >= before.epoch, "entries.e", "must never decrease")?;
        }
        read.push(entry);
    }
    Ok(read)
}

fn entry(entry: &SyncEntry) -> Result<Entry, Malformed> {
    let unknown = |_| malformed("entries.state", "must be revoked, key, blocked or lifted");
    let state: LedgerState = entry.state.parse().map_err(unknown)?;
    let digest = |field, text: &str| {
        text.parse::<Digest128>().map_err(|_| malformed(field, "must be 16 bytes in base64url"))
    };
    let id = digest("entries.id", &entry.id)?;
    let by = entry.by.as_deref().map(|by| digest("entries.by", by)).transpose()?;
    let is_of_block = matches!(state, LedgerState::Blocked | LedgerState::Lifted);
    check(by.is_some() == is_of_block, "entries.by", "must be present of blocks and lifts, and of no other")?;
    if let Some(value) = &entry.value {
        let kind = entry.kind.as_deref().unwrap_or_default();
        let issuer = entry.issuer.as_deref().unwrap_or_default();
        check(
            is_digest_of(id, kind, issuer, value),
            "entries.id",
            "must be the digest of the disclosed fact",
        )?;
    }
    Ok(Entry { n: entry.n, epoch: entry.e, state, id, by })
}

/// Whether `id` is the digest of a fact, by the names of kinds that a ledger uses. A token and its family have one name.
fn is_digest_of(id: Digest128, kind: &str, issuer: &str, value: &str) -> bool {
    match kind {
        lineage::SUBJECT => id == lineage::subject(issuer, value),
        "email" => id == lineage::email(issuer, value),
        "client" => id == lineage::client(issuer, value),
        lineage::TOKEN => id == lineage::token(issuer, value) || id == lineage::family(issuer, value),
        "key" => id == lineage::signing_key(issuer, value),
        lineage::FABRIC => id == lineage::fabric(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
