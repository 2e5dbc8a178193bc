//! Matching of an event to a stream: it is addressed to the stream, or has a delivered type and a subject that is not
//! excluded. A type or subject that was added counts from its addition on.

use serde_json::Value;

use crate::state::{EventId, OutboxEvent, Stream};
use crate::token::subject_id::SubjectId;

/// Whether `stream` delivers `event`, regardless of its status. An addressed event (verification, stream-updated) is
/// for that stream alone, whatever types it delivers: SSF 1.0 lets both be sent "even if" the type is not among
/// `events_delivered`.
pub fn matches(stream: &Stream, event: &OutboxEvent) -> bool {
    if let Some(addressed) = &event.stream_id {
        return *addressed == stream.config.stream_id;
    }
    let (event_type, sub_id) = (&event.event.event_type, &event.event.sub_id);
    let is_before = |since: &EventId| event.id < *since;
    let added_after = stream.added.subjects.iter().filter(|(_, since)| is_before(since));
    let excluded = stream.removed_subjects.iter().chain(added_after.map(|(subject, _)| subject));
    stream.config.events_delivered.contains(event_type)
        && !stream.added.types.get(event_type).is_some_and(is_before)
        && !contains(excluded, sub_id)
}

/// A subject that cannot be parsed cannot have been removed.
fn contains<'s>(excluded: impl Iterator<Item = &'s SubjectId>, sub_id: &Value) -> bool {
    let mut excluded = excluded.peekable();
    if excluded.peek().is_none() {
        return false;
    }
    let subject = SubjectId::read(sub_id, "sub_id");
    subject.is_ok_and(|subject| excluded.any(|excluded| excluded.matches(&subject)))
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
    fn delivered_types_match() {
        let stream = stream(&[REVOKED], &[]);
        assert!(matches(&stream, &event(REVOKED, email("a@b.example"), None)));
        assert!(!matches(&stream, &event(CHANGED, email("a@b.example"), None)));
        assert!(!matches(&stream, &event(&REVOKED[1..], email("a@b.example"), None)));
        assert!(!matches(&stream, &event(&format!("{REVOKED}x"), email("a@b.example"), None)));
    }

    #[test]
    fn addressed_event_matches_its_stream_only() {
        let (own, other) = ("a".repeat(32), "b".repeat(32));
        let removed = json!({"format": "opaque", "id": own});
        for stream in [stream(&[], &[]), stream(&[VERIFICATION], std::slice::from_ref(&removed))] {
            assert!(matches(&stream, &event(VERIFICATION, removed.clone(), Some(&own))));
            assert!(!matches(&stream, &event(VERIFICATION, removed.clone(), Some(&other))));
        }
    }

    #[test]
    fn added_type_or_subject_counts_from_its_addition() {
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
            assert_eq!(matches(&stream, &event), expected, "{event:?}");
        }
    }

    #[test]
    fn removed_subject_is_excluded_and_no_other() {
        let stream = stream(&[REVOKED], &[email("a@b.example"), email("c@b.example")]);
        assert!(!matches(&stream, &event(REVOKED, email("a@b.example"), None)));
        assert!(!matches(&stream, &event(REVOKED, email("c@b.example"), None)));
        assert!(matches(&stream, &event(REVOKED, email("b@b.example"), None)));
        // An event too many is safer than one too few.
        assert!(matches(&stream, &event(REVOKED, json!({"format": "strange"}), None)));
    }
}
