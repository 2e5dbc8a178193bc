//! Tests of event ids, events and spans.

use super::*;

const ISS: &str = "https://idp.example";

#[test]
fn ids_and_their_keys_sort_in_log_order() {
    let id = |index, number| EventId { index, number };
    let ids = [id(0, 0), id(0, 1), id(1, 0), id(1, u32::MAX), id(2, 0), id(256, 0), id(u64::MAX, u32::MAX)];
    assert!(ids.is_sorted());
    assert!(ids.map(EventId::key).is_sorted());
    for id in ids {
        assert_eq!(EventId::from_key(&id.key()).expect("a key"), id);
    }
    assert_eq!(id(3, 4).next(), id(3, 5));
    assert_eq!(id(3, u32::MAX).next(), id(4, 0));
    for key in [&[][..], &[0; 8], &[0; 11], &[0; 13]] {
        assert!(EventId::from_key(key).is_err(), "{key:?}");
    }
}

#[test]
fn id_has_exactly_one_spelling() {
    let id = EventId { index: 120, number: 7 };
    assert_eq!((id.to_string().as_str(), "120-7".parse()), ("120-7", Ok(id)));
    for text in [
        "",
        "-",
        "120",
        "120-",
        "-7",
        "+120-7",
        "120-+7",
        "0120-7",
        "120-07",
        "120-7-1",
        " 120-7",
        "1-4294967296",
    ] {
        assert_eq!(text.parse::<EventId>(), Err(InvalidEventId), "{text}");
    }
}

#[test]
fn event_round_trips_and_one_without_objects_is_corrupt() {
    let claims = json!({"a": [1, {"b": "\u{e4}\""}]});
    let event = SecurityEvent {
        event_type: SESSION_REVOKED.to_owned(),
        sub_id: json!({"format": "email", "email": "a@b.example"}),
        claims: claims.as_object().expect("object").clone(),
        txn: Some("t".to_owned()),
        via: vec!["https://idp.example".to_owned()],
    };
    let row = command::SecurityEvent::from(event.clone());
    assert_eq!(SecurityEvent::try_from(row.clone()).expect("reads"), event);
    let without = command::SecurityEvent { txn: String::new(), ..row.clone() };
    assert_eq!(SecurityEvent::try_from(without).expect("reads").txn, None);
    for text in ["", "[]", "1", "{", "{}{}", r#"{"a":1,"a":2}"#] {
        let text = text.to_owned();
        let (sub_id, claims) = (row.sub_id.clone(), row.claims.clone());
        let of_nobody = command::SecurityEvent { sub_id: text.clone(), claims, ..row.clone() };
        let of_nothing = command::SecurityEvent { claims: text, sub_id, ..row.clone() };
        assert!(SecurityEvent::try_from(of_nobody).is_err() && SecurityEvent::try_from(of_nothing).is_err());
    }
}

#[test]
fn revoked_event_has_the_subject_identifier_of_its_fact() {
    let at = Timestamp::from_millis(1_800_000_000_999);
    let id = "wimse://a.example/agent/mcp/1".parse().expect("an id");
    let said = |fact: &Fact| SecurityEvent::revoked(fact, "admin", "", at).map(|event| event.sub_id);
    for (fact, sub_id) in [
        (Fact::workload(&id), json!({"format": "uri", "uri": "wimse://a.example/agent/mcp/1"})),
        (Fact::subject(ISS, "alice"), json!({"format": "iss_sub", "iss": ISS, "sub": "alice"})),
        (Fact::client(ISS, "app"), json!({"format": "iss_sub", "iss": ISS, "sub": "app"})),
        (Fact::email(ISS, "a@b.example"), json!({"format": "email", "email": "a@b.example"})),
        (Fact::token(ISS, "t-1"), json!({"format": "jwt_id", "iss": ISS, "jti": "t-1"})),
    ] {
        assert_eq!(said(&fact), Some(sub_id), "{fact:?}");
    }
    assert_eq!(said(&Fact::signing_key(ISS, "k")), None);
    let event = SecurityEvent::revoked(&Fact::workload(&id), "user", "left", at).expect("an event");
    let claims = json!({"event_timestamp": 1_800_000_000, "initiating_entity": "user", "reason_admin": {"en": "left"}});
    assert_eq!((event.event_type.as_str(), Value::Object(event.claims)), (SESSION_REVOKED, claims));
    let event = SecurityEvent::revoked(&Fact::workload(&id), "user", "", at).expect("an event");
    assert!(!event.claims.contains_key("reason_admin"), "no empty reason");
}

#[test]
fn span_round_trips_and_another_row_is_corrupt() {
    let (begin, end) = (EventId { index: 1, number: 2 }, EventId { index: 3, number: 4 });
    let span = Span { begin, end, events: 5, bytes: u64::MAX };
    let rows = crate::state::testing::Rows::default();
    let mut tables = Tables::new(&rows);
    span.put(&mut tables, b"a");
    let row = tables.row(META, b"a").expect("reads").expect("there");
    assert_eq!((row.len(), Span::read(&row).expect("reads")), (40, span));
    assert_eq!(Span::of(&tables, b"a").expect("reads"), span);
    assert_eq!(Span::of(&tables, b"b").expect("reads"), Span::default());
    for other in [&row[..39], &[&row[..], &[0]].concat(), &[]] {
        assert!(Span::read(other).is_err(), "{} bytes", other.len());
    }
}

#[test]
fn text_is_truncated_between_characters() {
    assert_eq!(
        (truncate("abc", 3), truncate("abc", 2), truncate("a\u{e4}", 2), truncate("", 2)),
        ("abc", "ab", "a", "")
    );
}
