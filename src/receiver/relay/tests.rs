//! Relay of events to streams.

use serde_json::json;

use super::*;
use crate::clock::Timestamp;
use crate::token::subject_id::SubjectId;

const SESSION_REVOKED: &str = EVENTS_SUPPORTED[0];
const RISK: &str = EVENTS_SUPPORTED[7];

fn set(sub_id: &Value, events: &[(&str, &Value)]) -> SecurityEventToken {
    let event = |(uri, claims): &(&str, &Value)| EventClaims {
        uri: (*uri).to_owned(),
        claims: claims.as_object().expect("object").clone(),
        happened_at: None,
    };
    SecurityEventToken {
        iss: "https://idp.example".to_owned(),
        jti: "1".to_owned(),
        iat: Timestamp::from_secs(100),
        aud: vec!["https://fabric.example".to_owned()],
        txn: Some("t-1".to_owned()),
        via: vec!["https://first.example".to_owned()],
        subject: SubjectId::read(sub_id, "sub_id").expect("a subject"),
        sub_id: sub_id.clone(),
        events: events.iter().map(event).collect(),
    }
}

fn relayed(set: &SecurityEventToken) -> Result<Vec<SecurityEvent>, Error> {
    events(set, Timestamp::from_secs(150))
}

fn alice() -> Value {
    json!({"format": "opaque", "id": "alice"})
}

/// Claims of exactly `bytes` bytes as JSON.
fn claims(bytes: usize) -> Value {
    let empty = json!({"a": "", "event_timestamp": 100}).to_string().len();
    json!({"a": "x".repeat(bytes - empty), "event_timestamp": 100})
}

#[test]
fn supported_events_are_relayed_unchanged() {
    let claims = json!({"event_timestamp": 1.5, "reason_admin": {"en": "left"}, "extra": [null]});
    let nothing = json!({});
    let set = set(&alice(), &[(RISK, &claims), ("urn:other", &nothing), (SESSION_REVOKED, &nothing)]);
    let sub_id = json!({"format": "iss_sub", "iss": "https://idp.example", "sub": "alice"});
    let expected = |event_type: &str, claims: &Value| SecurityEvent {
        event_type: event_type.to_owned(),
        sub_id: sub_id.clone(),
        claims: claims.as_object().expect("object").clone(),
        txn: Some("t-1".to_owned()),
        via: vec!["https://first.example".to_owned(), "https://idp.example".to_owned()],
    };
    assert_eq!(
        relayed(&set).expect("is relayed"),
        [expected(RISK, &claims), expected(SESSION_REVOKED, &json!({"event_timestamp": 100}))]
    );
}

/// Regression: receivers of a relayed event took our time of relay for its time, and lifted a block that is later.
#[test]
fn event_time_is_relayed() {
    let time = |happened_at: Option<i64>, claims: Value| {
        let mut set = set(&alice(), &[(RISK, &claims)]);
        set.events[0].happened_at = happened_at.map(Timestamp::from_secs);
        relayed(&set).expect("is relayed")[0].claims["event_timestamp"].clone()
    };
    assert_eq!(time(None, json!({})), 100, "iat");
    assert_eq!(time(Some(90), json!({})), 90, "toe");
    assert_eq!(time(Some(200), json!({})), 150, "a time ahead of ours would be refused");
    assert_eq!(time(Some(90), json!({"event_timestamp": 90.5})), 90.5, "as stated");
}

#[test]
fn stream_management_and_unknown_events_are_not_relayed() {
    for uri in [
        "https://schemas.openid.net/secevent/ssf/event-type/verification",
        "https://schemas.openid.net/secevent/ssf/event-type/stream-updated",
        "https://schemas.openid.net/secevent/caep/event-type/session-revoked/",
        "https://schemas.openid.net/secevent/CAEP/event-type/session-revoked",
    ] {
        assert_eq!(relayed(&set(&alice(), &[(uri, &json!({}))])).expect("is accepted"), [], "{uri}");
    }
}

/// `svc_via` of a relayed [`set`], as JSON.
const VIA: &str = r#"["https://first.example","https://idp.example"]"#;

/// The part of the limit that `txn`, `svc_via` and the subject leave.
fn left_by(sub_id: &Value) -> usize {
    limits::RELAYED_EVENT_BYTES_MAX - sub_id.to_string().len() - r#""t-1""#.len() - VIA.len()
}

#[test]
fn event_at_limit_is_relayed_and_one_byte_more_is_refused() {
    assert_eq!(limits::RELAYED_EVENT_BYTES_MAX, 5120, "as the refusal says");
    // As it is relayed.
    let alice_of_idp = json!({"format": "iss_sub", "iss": "https://idp.example", "sub": "alice"});
    let most = left_by(&alice_of_idp);
    let (full, more) = (claims(most), claims(most + 1));
    assert!(relayed(&set(&alice(), &[(SESSION_REVOKED, &full), (RISK, &full)])).is_ok());
    let refusal = relayed(&set(&alice(), &[(SESSION_REVOKED, &full), (RISK, &more)])).expect_err("refused");
    assert_eq!(
        refusal.to_string(),
        "events.risk-level-change: must be at most 5120 bytes as JSON, with sub_id, txn and svc_via, to be relayed"
    );
    let silent = SecurityEventToken { txn: None, ..set(&alice(), &[(RISK, &more)]) };
    assert!(relayed(&silent).is_ok(), "txn takes its part");
    // An event that is not relayed may be as large as the signal itself.
    assert_eq!(relayed(&set(&alice(), &[("urn:other", &more)])).expect("is accepted"), []);
}

#[test]
fn subject_at_limit_is_relayed_and_one_byte_more_is_refused() {
    let iss_sub = |sub: usize| json!({"format": "iss_sub", "iss": "i".repeat(2048), "sub": "s".repeat(sub)});
    let nothing = json!({"event_timestamp": 1});
    let relay = |sub_id: &Value, uri: &str| relayed(&set(sub_id, &[(uri, &nothing)]));
    let two = |sub: usize| json!({"format": "aliases", "identifiers": [iss_sub(1), iss_sub(sub)]});
    let spare = left_by(&two(0));
    assert!(relay(&two(spare - nothing.to_string().len()), SESSION_REVOKED).is_ok());
    let refusal = relay(&two(spare), SESSION_REVOKED).expect_err("refused").to_string();
    assert!(refusal.starts_with("events.session-revoked: "), "no room for claims: {refusal}");
    let refusal = relay(&two(spare + 1), SESSION_REVOKED).expect_err("refused");
    assert_eq!(
        refusal.to_string(),
        "sub_id: must be at most 5120 bytes as JSON, with txn and svc_via, to be relayed"
    );
    assert_eq!(relay(&two(spare + 1), "urn:other").expect("is accepted"), []);
    // Fields that the format does not have are not relayed and do not count.
    let wordy =
        json!({"format": "opaque", "id": "alice", "more": "x".repeat(limits::RELAYED_EVENT_BYTES_MAX)});
    assert!(relay(&wordy, SESSION_REVOKED).is_ok());
}

#[test]
fn supported_event_types_are_unique() {
    let types: std::collections::BTreeSet<&str> = EVENTS_SUPPORTED.into();
    assert_eq!(types.len(), EVENTS_SUPPORTED.len());
    assert_eq!(types.iter().filter(|uri| uri.contains("/caep/event-type/")).count(), 8);
    assert_eq!(SESSION_REVOKED, crate::state::SESSION_REVOKED);
}

/// Regression: two fabrics that are receiver and transmitter of each other relayed an event for ever; each
/// round moved the watermark.
#[test]
fn returned_signal_is_a_loop() {
    let nothing = json!({});
    let own = "https://fabric.example";
    let relayed_by = |via: &[&str]| SecurityEventToken {
        via: via.iter().map(|issuer| (*issuer).to_owned()).collect(),
        ..set(&alice(), &[(SESSION_REVOKED, &nothing)])
    };
    let others = ["https://a.example", "https://b.example", "https://c.example", "https://d.example"];
    assert_eq!(others.len(), limits::SIGNAL_VIA_MAX);
    for (via, expected) in [
        (&[][..], false),
        (&others[..], false),
        (&["https://fabric.example/"], false),
        (&[own], true),
        (&["https://a.example", own, "https://b.example"], true),
        (
            &[
                "https://a.example",
                "https://a.example",
                "https://a.example",
                "https://a.example",
                "https://a.example",
            ],
            true,
        ),
    ] {
        assert_eq!(is_loop(&relayed_by(via), own), expected, "{via:?}");
    }
}
