//! Whether a stream is for an event: it is addressed to the stream, or is of a type that the stream delivers
//! and about a subject that was not removed from it. What was added to a stream counts from there on.

use serde_json::Value;

use crate::state::{EventId, OutboxEvent, Stream};
use crate::token::subject_id::SubjectId;

/// Whether `event` is to be delivered by `stream`. What is addressed to one stream (its verification, a change
/// that the transmitter made of it) is for that stream alone, whatever it delivers otherwise: SSF 1.0 lets
/// both be sent "even if" the type is not among `events_delivered`. How the stream stands is not asked.
#[must_use]
pub fn is_for(stream: &Stream, event: &OutboxEvent) -> bool {
    if let Some(addressed) = &event.stream_id {
        return *addressed == stream.config.stream_id;
    }
    let (event_type, sub_id) = (&event.event.event_type, &event.event.sub_id);
    let is_earlier = |since: &EventId| event.id < *since;
    let added_later = stream.added.subjects.iter().filter(|(_, since)| is_earlier(since));
    let left_out = stream.removed_subjects.iter().chain(added_later.map(|(subject, _)| subject));
    stream.config.events_delivered.contains(event_type)
        && !stream.added.types.get(event_type).is_some_and(is_earlier)
        && !is_any(left_out, sub_id)
}

/// A subject that cannot be read is none that could have been removed.
fn is_any<'s>(left_out: impl Iterator<Item = &'s SubjectId>, sub_id: &Value) -> bool {
    let mut left_out = left_out.peekable();
    if left_out.peek().is_none() {
        return false;
    }
    let subject = SubjectId::read(sub_id, "sub_id");
    subject.is_ok_and(|subject| left_out.any(|left_out| left_out.matches(&subject)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::state::{Added, EventId, SecurityEvent, StreamConfig, StreamStatus};

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
            added: Added::default(),
            revision: 1,
            changes: 1,
            filter: 1,
        }
    }

    fn event(event_type: &str, sub_id: Value, stream_id: Option<&str>) -> OutboxEvent {
        OutboxEvent {
            id: EventId { index: 1, number: 0 },
            event: SecurityEvent {
                event_type: event_type.to_owned(),
                sub_id,
                claims: Map::new(),
                txn: None,
                via: Vec::new(),
            },
            at: Timestamp::default(),
            elapsed: Timestamp::default(),
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
    fn what_was_added_to_a_stream_counts_from_there_on() {
        let id = |index| EventId { index, number: 0 };
        let at = |index, name, address| OutboxEvent { id: id(index), ..event(name, email(address), None) };
        let mut stream = stream(&[REVOKED, CHANGED], &[]);
        stream.added.types.insert(CHANGED.to_owned(), id(5));
        let subject = SubjectId::read(&email("a@b.example"), "sub_id").expect("a subject");
        stream.added.subjects.push((subject, id(7)));
        for (event, expected) in [
            (at(4, REVOKED, "b@b.example"), true),
            (at(4, CHANGED, "b@b.example"), false),
            (at(5, CHANGED, "b@b.example"), true),
            (at(6, REVOKED, "a@b.example"), false),
            (at(7, REVOKED, "a@b.example"), true),
            (at(7, CHANGED, "a@b.example"), true),
        ] {
            assert_eq!(is_for(&stream, &event), expected, "{event:?}");
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
