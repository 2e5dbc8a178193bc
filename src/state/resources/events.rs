//! Security events and their ids, and the span of a table of events.
//!
//! Two tables hold events, in the order of their ids: the outbox those for streams, the feed those of the live feed. Both
//! are spans: rows are added at the end and dropped from the front.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

pub use crate::state::command::EventId;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::json;
use crate::limits;
use crate::state::command;
use crate::state::command::stated;
use crate::state::tables::{META, Tables, try_scan};
use crate::token::lineage::{Fact, SUBJECT};
use crate::token::subject_id;

/// CAEP 1.0: a session, and everything that derives from it, is revoked.
pub const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
/// SSF 1.0: the receiver verifies the stream.
pub const VERIFICATION: &str = "https://schemas.openid.net/secevent/ssf/event-type/verification";
/// SSF 1.0: the transmitter has changed the status of the stream.
pub const STREAM_UPDATED: &str = "https://schemas.openid.net/secevent/ssf/event-type/stream-updated";

impl EventId {
    /// The smallest id after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.number.checked_add(1) {
            Some(number) => Self { index: self.index, number },
            None => Self { index: self.index.saturating_add(1), number: 0 },
        }
    }

    /// Key of its row; keys sort like ids.
    #[must_use]
    pub fn key(self) -> [u8; 12] {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&self.index.to_be_bytes());
        key[8..].copy_from_slice(&self.number.to_be_bytes());
        key
    }

    /// Parses the key of a row.
    pub fn from_key(key: &[u8]) -> Result<Self, Corrupt> {
        let read = || {
            let (index, number) = key.split_first_chunk::<8>()?;
            let number = u32::from_be_bytes(number.try_into().ok()?);
            Some(Self { index: u64::from_be_bytes(*index), number })
        };
        read().ok_or_else(|| Corrupt::row("the id of an event is not 12 bytes"))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.number)
    }
}

/// The text is not two numbers as [`EventId`] displays them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be two numbers with a hyphen between them")]
pub struct InvalidEventId;

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let (index, number) = text.split_once('-').ok_or(InvalidEventId)?;
        let id = Self {
            index: index.parse().map_err(|_| InvalidEventId)?,
            number: number.parse().map_err(|_| InvalidEventId)?,
        };
        // Exactly one spelling: no sign and no leading zeros.
        if id.to_string() == text { Ok(id) } else { Err(InvalidEventId) }
    }
}

/// A security event without the fields that differ between streams.
#[derive(Clone, Debug, PartialEq)]
pub struct SecurityEvent {
    /// Event type, a URI.
    pub event_type: String,
    /// Subject identifier.
    pub sub_id: Value,
    /// Claims of the event.
    pub claims: Map<String, Value>,
    /// Transaction id.
    pub txn: Option<String>,
    /// Issuers that relayed it; empty for our own event.
    pub via: Vec<String>,
}

impl SecurityEvent {
    /// The event of a revocation (CAEP `session-revoked`): `by` is the initiating entity, `admin` or `user`; an empty
    /// reason is left out. `None` for a signing key, which has no subject identifier.
    #[must_use]
    pub fn revoked(fact: &Fact, by: &str, reason: &str, at: Timestamp) -> Option<Self> {
        let (issuer, value) = (fact.issuer(), fact.value());
        let sub_id = match fact.kind() {
            SUBJECT if issuer.is_empty() => json!({"format": "uri", "uri": value}),
            SUBJECT | "client" => json!({"format": "iss_sub", "iss": issuer, "sub": value}),
            "email" => json!({"format": "email", "email": value}),
            "token" => json!({"format": "jwt_id", "iss": issuer, "jti": value}),
            _ => return None,
        };
        let mut claims = Map::new();
        claims.insert("event_timestamp".to_owned(), at.secs().into());
        claims.insert("initiating_entity".to_owned(), by.into());
        if !reason.is_empty() {
            claims.insert("reason_admin".to_owned(), json!({ "en": reason }));
        }
        Some(Self { event_type: SESSION_REVOKED.to_owned(), sub_id, claims, txn: None, via: Vec::new() })
    }

    /// An event about a stream itself.
    #[must_use]
    pub fn of_stream(event_type: &str, stream_id: &str, claims: Map<String, Value>) -> Self {
        let sub_id = json!({"format": "opaque", "id": stream_id});
        Self { event_type: event_type.to_owned(), sub_id, claims, txn: None, via: Vec::new() }
    }

    /// Its subject identifier as one text.
    #[must_use]
    pub fn subject(&self) -> String {
        subject_id::text(&self.sub_id)
    }
}

impl From<SecurityEvent> for command::SecurityEvent {
    fn from(event: SecurityEvent) -> Self {
        Self {
            event_type: event.event_type,
            sub_id: event.sub_id.to_string(),
            claims: Value::Object(event.claims).to_string(),
            txn: event.txn.unwrap_or_default(),
            via: event.via,
        }
    }
}

impl TryFrom<command::SecurityEvent> for SecurityEvent {
    type Error = Corrupt;

    fn try_from(event: command::SecurityEvent) -> Result<Self, Corrupt> {
        Ok(Self {
            sub_id: Value::Object(object(&event.sub_id)?),
            claims: object(&event.claims)?,
            event_type: event.event_type,
            txn: stated(event.txn),
            via: event.via,
        })
    }
}

/// Bounds and size of a table of events. One row of the meta table, of 40 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Every event before it was dropped.
    pub begin: EventId,
    /// The id after the last event.
    pub end: EventId,
    /// Number of events.
    pub events: u64,
    /// Total size of the events.
    pub bytes: u64,
}

impl Span {
    /// As the entry sees it.
    pub fn of(tables: &Tables<'_>, row: &'static [u8]) -> Result<Self, Corrupt> {
        tables.row(META, row)?.map_or(Ok(Self::default()), |row| Self::read(&row))
    }

    /// As it was after the last entry.
    pub fn at(view: &dyn View, row: &'static [u8]) -> Result<Self, Corrupt> {
        view.get(META, row)?.map_or(Ok(Self::default()), |row| Self::read(&row))
    }

    /// Decodes its row.
    pub fn read(row: &[u8]) -> Result<Self, Corrupt> {
        let number = |at: usize| {
            let bytes = row.get(at..).and_then(|rest| rest.first_chunk::<8>());
            bytes.map(|bytes| u64::from_be_bytes(*bytes))
        };
        let read = || {
            let (begin, rest) = row.split_at_checked(12)?;
            let (end, _) = rest.split_at_checked(12).filter(|(_, numbers)| numbers.len() == 16)?;
            Some((begin, end, number(24)?, number(32)?))
        };
        let (begin, end, events, bytes) = read().ok_or_else(|| Corrupt::row("a span is not 40 bytes"))?;
        Ok(Self { begin: EventId::from_key(begin)?, end: EventId::from_key(end)?, events, bytes })
    }

    pub fn put(self, tables: &mut Tables<'_>, row: &'static [u8]) {
        let numbers = [self.events.to_be_bytes(), self.bytes.to_be_bytes()].concat();
        tables.put(META, row, [&self.begin.key()[..], &self.end.key(), &numbers].concat());
    }
}

/// Visits the events of a table from `from` on, in order, until `visit` returns false.
pub fn scan<E>(
    view: &dyn View,
    (table, span): (&'static str, &'static [u8]),
    from: EventId,
    read: impl Fn(&[u8], &[u8]) -> Result<E, Corrupt>,
    visit: &mut dyn FnMut(E) -> bool,
) -> Result<(), Corrupt> {
    // Dropped rows are not scanned.
    let from = from.max(Span::at(view, span)?.begin);
    try_scan(view, table, &from.key(), |key, row| Ok(visit(read(key, row)?)))
}

/// Parses a JSON object in a row.
pub fn object(text: &str) -> Result<Map<String, Value>, Corrupt> {
    json::parse_object(text.as_bytes()).map_err(|_| Corrupt::row("a field of a row is not a JSON object"))
}

/// Truncates a text to at most `bytes_max` bytes.
#[must_use]
pub fn truncate(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// Whether the retention of an event of this elapsed time has ended.
#[must_use]
pub fn is_expired(then: Timestamp, elapsed: Timestamp) -> bool {
    then.plus(limits::OUTBOX_RETENTION) < elapsed
}

#[cfg(test)]
mod tests;
