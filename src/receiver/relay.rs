//! What of a signal is passed on to streams: its events of the types that we know, about the same subject.
//!
//! We say it in our own name, so that a subject is named as others can know it. Pure.

use serde_json::Value;

use super::Error;
use crate::limits;
use crate::state::SecurityEvent;
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::token::security_event::{EventClaims, SecurityEventToken};
use crate::token::subject_id;

/// Whether a signal has come back to `own_issuer`, or went through more issuers than signals do that come to an end.
/// It is ignored: two fabrics that are receiver and stream of each other would circulate it for ever.
#[must_use]
pub fn is_loop(set: &SecurityEventToken, own_issuer: &str) -> bool {
    set.via.len() > limits::SIGNAL_VIA_MAX || set.via.iter().any(|issuer| issuer == own_issuer)
}

/// What of a signal is passed on, in the order of its events. What it says is not changed.
///
/// # Errors
/// [`Error::Invalid`] if an event that is passed on is larger, with its subject, than streams take.
pub fn events(set: &SecurityEventToken) -> Result<Vec<SecurityEvent>, Error> {
    let is_supported = |event: &&EventClaims| EVENTS_SUPPORTED.contains(&event.uri.as_str());
    let supported: Vec<&EventClaims> = set.events.iter().filter(is_supported).collect();
    if supported.is_empty() {
        return Ok(Vec::new());
    }
    let sub_id = subject_id::relayed(&set.sub_id, Some(&set.iss));
    // All that others have written of a token that we sign.
    let txn = set.txn.as_ref().map_or(0, |txn| Value::from(txn.as_str()).to_string().len());
    let via: Vec<String> = set.via.iter().chain([&set.iss]).cloned().collect();
    let through = Value::from(via.as_slice()).to_string().len();
    let about = sub_id.to_string().len().saturating_add(txn).saturating_add(through);
    if about > limits::EVENT_SAID_BYTES_MAX {
        let rule = "must be at most 5120 bytes as JSON, with txn and svc_via, to be passed on";
        return Err(Error::Invalid { field: "sub_id".to_owned(), rule });
    }
    let event = |event: &EventClaims| {
        let claims = Value::Object(event.claims.clone()).to_string().len();
        if about.saturating_add(claims) > limits::EVENT_SAID_BYTES_MAX {
            let name = event.uri.rsplit('/').next().unwrap_or_default();
            let rule = "must be at most 5120 bytes as JSON, with sub_id, txn and svc_via, to be passed on";
            return Err(Error::Invalid { field: format!("events.{name}"), rule });
        }
        Ok(SecurityEvent {
            event_type: event.uri.clone(),
            sub_id: sub_id.clone(),
            claims: event.claims.clone(),
            txn: set.txn.clone(),
            via: via.clone(),
        })
    };
    supported.into_iter().map(event).collect()
}

#[cfg(test)]
mod tests;
