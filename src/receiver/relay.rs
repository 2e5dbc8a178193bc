//! Relay of accepted signals to streams: the events of supported types, with the same subject. They are signed in our
//! name, so that the subject is spelled for receivers that do not know the issuer's context. Pure.

use serde_json::Value;

use super::Error;
use crate::clock::Timestamp;
use crate::limits;
use crate::state::SecurityEvent;
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::token::security_event::{EVENT_TIMESTAMP, EventClaims, SecurityEventToken};
use crate::token::subject_id;

/// Whether a signal has come back to `own_issuer`, or was relayed by too many issuers. It is ignored: two fabrics that
/// are receiver and transmitter of each other would relay it for ever.
pub fn is_loop(set: &SecurityEventToken, own_issuer: &str) -> bool {
    set.via.len() > limits::SIGNAL_VIA_MAX || set.via.iter().any(|issuer| issuer == own_issuer)
}

/// The events of a signal received at `now`, to relay, in its order. Their claims are unchanged, but for the event time, which
/// is stated if they lack it: receivers order blocks and lifts by it, and the `toe` and `iat` of the signal are not relayed.
///
/// # Errors
/// [`Error::Invalid`] if an event with its subject is too large to relay.
pub fn events(set: &SecurityEventToken, now: Timestamp) -> Result<Vec<SecurityEvent>, Error> {
    let is_supported = |event: &&EventClaims| EVENTS_SUPPORTED.contains(&event.uri.as_str());
    let supported: Vec<&EventClaims> = set.events.iter().filter(is_supported).collect();
    if supported.is_empty() {
        return Ok(Vec::new());
    }
    let sub_id = subject_id::relayed(&set.sub_id, Some(&set.iss));
    // The parts of a token that we sign but others wrote.
    let txn = set.txn.as_ref().map_or(0, |txn| Value::from(txn.as_str()).to_string().len());
    let via: Vec<String> = set.via.iter().chain([&set.iss]).cloned().collect();
    let via_bytes = Value::from(via.as_slice()).to_string().len();
    let subject_bytes = sub_id.to_string().len().saturating_add(txn).saturating_add(via_bytes);
    if subject_bytes > limits::RELAYED_EVENT_BYTES_MAX {
        let rule = "must be at most 5120 bytes as JSON, with txn and svc_via, to be relayed";
        return Err(Error::Invalid { field: "sub_id".to_owned(), rule });
    }
    let event = |event: &EventClaims| {
        let mut claims = event.claims.clone();
        let happened_at = event.happened_at.unwrap_or(set.iat).min(now);
        claims.entry(EVENT_TIMESTAMP).or_insert_with(|| happened_at.secs().into());
        let claims_bytes = Value::Object(claims.clone()).to_string().len();
        if subject_bytes.saturating_add(claims_bytes) > limits::RELAYED_EVENT_BYTES_MAX {
            let name = event.uri.rsplit('/').next().unwrap_or_default();
            let rule = "must be at most 5120 bytes as JSON, with sub_id, txn and svc_via, to be relayed";
            return Err(Error::Invalid { field: format!("events.{name}"), rule });
        }
        Ok(SecurityEvent {
            event_type: event.uri.clone(),
            sub_id: sub_id.clone(),
            claims,
            txn: set.txn.clone(),
            via: via.clone(),
        })
    };
    supported.into_iter().map(event).collect()
}

#[cfg(test)]
mod tests;
