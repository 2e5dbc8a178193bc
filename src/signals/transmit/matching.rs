//! Whether a stream is for an event: it is addressed to the stream, or is of a type that the stream delivers
//! and about a subject that was not removed from it.

use crate::state::{OutboxEvent, Stream};
use crate::token::subject_id::SubjectId;

/// Whether `event` is to be delivered by `stream`. What is addressed to one stream (its verification, a change
/// that the transmitter made of it) is for that stream alone, whatever it delivers otherwise: SSF 1.0 lets
/// both be sent "even if" the type is not among `events_delivered`. How the stream stands is not asked.
#[must_use]
pub fn is_for(stream: &Stream, event: &OutboxEvent) -> bool {
    let config = &stream.config;
    match &event.stream_id {
        Some(addressed) => *addressed == config.stream_id,
        None => {
            config.events_delivered.contains(&event.event.event_type)
                && !is_removed(&stream.removed_subjects, event)
        }
    }
}

/// A subject that cannot be read is none that could have been removed.
fn is_removed(removed: &[SubjectId], event: &OutboxEvent) -> bool {
    if removed.is_empty() {
        return false;
    }
    let subject = SubjectId::read(&event.event.sub_id, "sub_id");
    subject.is_ok_and(|subject| removed.iter().any(|removed| removed.matches(&subject)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::state::{EventId, SecurityEvent, StreamConfig, StreamStatus};

    const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
    const CHANGED: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";
    const VERIFICATION: &str = "https://schemas.openid.net/secevent/ssf/event-type/verification";

    fn stream(events_delivered: &[&str], removed: &[Value]) -> Stream {
        let subject = |value| SubjectId::read(value, "sub_id").expect("a subject");
        Stream {
            config: StreamConfig {
                stream_id: "a".repeat(32),
                owner: String::new(),
                aud: "https://receiver.example".to_owned(),
                events_requested: Vec::new(),
                events_delivered: events_delivered.iter().map(|uri| (*uri).to_owned()).collect(),
                endpoint_url: None,
                description: None,
            },
            status: StreamStatus::Enabled,
            reason: None,
            owes_update: false,
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            removed_subjects: removed.iter().map(subject).collect(),
            revision: 1,
        }
    }

    fn event(event_type: &str, sub_id: Value, stream_id: Option<&str>) -> OutboxEvent {
        OutboxEvent {
            id: EventId { index: 1, number: 0 },
            event: SecurityEvent { event_type: event_type.to_owned(), sub_id, claims: Map::new(), txn: None },
            at: Timestamp::default(),
            passed: Timestamp::default(),
            stream_id: stream_id.map(str::to_owned),
        }
    }

    fn email(address: &str) -> Value {
        json!({"format": "email", "email": address})
    }

    #[test]
    fn a_stream_is_for_the_types_that_it_delivers() {
        let stream = stream(&[REVOKED], &[]);
        assert!(is_for(&stream, &event(REVOKED, email("a@b.example"), None)));
        assert!(!is_for(&stream, &event(CHANGED, email("a@b.example"), None)));
        assert!(!is_for(&stream, &event(&REVOKED[1..], email("a@b.example"), None)));
        assert!(!is_for(&stream, &event(&format!("{REVOKED}x"), email("a@b.example"), None)));
    }

    #[test]
    fn what_is_addressed_to_a_stream_is_for_that_stream_alone_whatever_it_delivers() {
        let (own, other) = ("a".repeat(32), "b".repeat(32));
        let removed = json!({"format": "opaque", "id": own});
        for stream in [stream(&[], &[]), stream(&[VERIFICATION], std::slice::from_ref(&removed))] {
            assert!(is_for(&stream, &event(VERIFICATION, removed.clone(), Some(&own))));
            assert!(!is_for(&stream, &event(VERIFICATION, removed.clone(), Some(&other))));
        }
    }

    #[test]
    fn a_subject_that_was_removed_is_left_out_and_no_other() {
        let stream = stream(&[REVOKED], &[email("a@b.example"), email("c@b.example")]);
        assert!(!is_for(&stream, &event(REVOKED, email("a@b.example"), None)));
        assert!(!is_for(&stream, &event(REVOKED, email("c@b.example"), None)));
        assert!(is_for(&stream, &event(REVOKED, email("b@b.example"), None)));
        // Better one too many than one too few.
        assert!(is_for(&stream, &event(REVOKED, json!({"format": "strange"}), None)));
    }
}
