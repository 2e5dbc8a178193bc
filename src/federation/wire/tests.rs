//! Responses of a peer that keep and that break the rules.

use serde_json::json;

use super::*;
use crate::token::key_set::{KeySet, Purpose};
use crate::token::lineage::Fact;
use crate::token::signing_key::SigningKey;

const PEER: &str = "https://eu.example";
const HERE: Incarnation = Incarnation::from_bytes([0x0f; 16]);
const SINCE: u64 = 100;

fn expected() -> Expected {
    let since = LogPosition { incarnation: HERE, index: SINCE };
    Expected { issuer: PEER.to_owned(), since: Some(since), cursor: None, limit: 5 }
}

fn id(byte: u8) -> String {
    Digest128::from_bytes([byte; 16]).to_string()
}

/// A response with three entries.
fn response() -> Value {
    json!({
        "version": 1, "issuer": PEER, "incarnation": HERE.to_string(), "from": SINCE, "through": 131,
        "next": null, "floor": 90, "epoch": 3021, "floor_epoch": 2877, "reset": false,
        "time": "2026-11-23T09:00:00.123Z", "root": URL_SAFE_NO_PAD.encode([7; 32]), "count": 3, "keys": null,
        "entries": [
            {"n": 123, "e": 3020, "state": "revoked", "id": id(1)},
            {"n": 124, "e": 3021, "state": "key", "id": id(2)},
            {"n": 131, "e": 3021, "state": "blocked", "id": id(1), "by": id(3)},
        ],
    })
}

fn read(response: &Value) -> Result<Answer, Malformed> {
    expected().read(response.to_string().as_bytes())
}

/// The field that a response violates after a change at a JSON pointer.
fn refused(pointer: &str, value: Value) -> String {
    let mut changed = response();
    *changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    read(&changed).expect_err(pointer).field
}

fn with(pointer: &str, fields: &Value) -> Value {
    let mut changed = response();
    let object = changed.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object");
    object.extend(fields.as_object().expect("an object").clone());
    changed
}

#[test]
fn response_of_a_peer_is_read() {
    let answer = read(&with("", &json!({"lease_ms": 5000}))).expect("unknown fields are ignored");
    assert_eq!(answer.lease, Some(Duration::from_secs(5)));
    let short = read(&with("", &json!({"lease_ms": 1999}))).expect_err("it would end before the next call");
    assert_eq!(short.field, "lease_ms");
    assert_eq!((answer.incarnation, answer.from, answer.through), (HERE, SINCE, 131));
    assert_eq!((answer.forgotten_to, answer.epoch, answer.complete_from, answer.count), (90, 3021, 2877, 3));
    assert_eq!((answer.root, answer.is_reset, answer.is_whole()), (Some([7; 32]), false, true));
    let block = Entry {
        n: 131,
        epoch: 3021,
        state: LedgerState::Blocked,
        id: Digest128::from_bytes([1; 16]),
        by: Some(Digest128::from_bytes([3; 16])),
    };
    assert_eq!((answer.entries.len(), answer.entries.last()), (3, Some(&block)));
}

#[test]
fn response_and_request_are_read_as_written() {
    let written: SyncResponse = json::from_value(response()).expect("a response");
    assert_eq!(json::from_value(serde_json::to_value(&written).expect("JSON")), Ok(written));
    let request = SyncRequest {
        version: VERSION,
        since: Some(format!("{HERE}-7")),
        floor_epoch: Some(3),
        hold_ms: 250,
        limit: Some(5),
        keys: Some("etag".to_owned()),
        cursor: None,
        honours_lease: true,
        enforced: Some(6),
    };
    let text = serde_json::to_vec(&request).expect("JSON");
    assert_eq!(json::read(&text), Ok(request));
    let least: SyncRequest = json::read(br#"{"version": 1, "later": true}"#).expect("a request");
    assert_eq!((least.since, least.hold_ms, least.honours_lease, least.enforced), (None, 0, false, None));
}

/// Attack: a response that another fabric, or another request, would explain.
#[test]
fn response_to_another_request_is_refused() {
    for (pointer, value) in [
        ("/version", json!(2)),
        ("/issuer", json!("https://us.example")),
        ("/incarnation", json!("0F".repeat(16))),
        ("/incarnation", json!("0f".repeat(15))),
        ("/from", json!(SINCE + 1)),
        ("/from", json!(SINCE - 1)),
        ("/from", json!(0)),
        ("/through", json!(SINCE - 1)),
    ] {
        assert_eq!(format!("/{}", refused(pointer, value.clone())), pointer, "{value}");
    }
    // Log indexes of another incarnation begin at 0.
    let other = |fields: &Value| {
        let mut changed = with("", &json!({"incarnation": "01".repeat(16)}));
        changed.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        read(&changed).map(|answer| answer.from).map_err(|refused| refused.field)
    };
    assert_eq!(other(&json!({})), Err("reset".to_owned()));
    assert_eq!(other(&json!({"reset": true})), Err("from".to_owned()));
    assert_eq!(other(&json!({"reset": true, "from": 0})), Ok(0));
}

/// Attack: numbers beyond the range that a log reaches, which would make every later truth look old.
#[test]
fn number_beyond_its_bound_is_refused() {
    for (pointer, value, field) in [
        ("/through", json!(1_u64 << 48), "through"),
        ("/through", json!(1_u64 << 63), "through"),
        ("/through", json!(-1), "through"),
        ("/through", json!(1.5e20), "through"),
        ("/floor", json!(132), "floor"),
        ("/floor_epoch", json!(3022), "floor_epoch"),
        ("/epoch", json!(1_u64 << 32), "epoch"),
        ("/entries/2/n", json!(132), "entries.n"),
        ("/entries/0/n", json!(SINCE), "entries.n"),
        ("/entries/2/e", json!(3022), "entries.e"),
    ] {
        assert_eq!(refused(pointer, value.clone()), field, "{pointer} {value}");
    }
    let largest = json!({"next": "more", "through": (1_u64 << 48) - 1});
    let mut page = with("", &largest);
    assert!(read(&page).is_ok());
    page["entries"][2]["n"] = json!(1_u64 << 48);
    assert_eq!(read(&page).expect_err("an entry above the largest position").field, "entries.n");
}

#[test]
fn order_of_entries_must_not_decrease() {
    assert_eq!(refused("/entries/1/n", json!(122)), "entries.n");
    assert_eq!(refused("/entries/1/e", json!(3019)), "entries.e");
    assert!(read(&with("/entries/1", &json!({"n": 123}))).is_ok(), "several facts have one index");
}

#[test]
fn entry_that_is_not_understood_refuses_the_response() {
    for (pointer, value, field) in [
        ("/entries/0/state", json!("suspended"), "entries.state"),
        ("/entries/0/state", json!("blocked"), "entries.by"),
        ("/entries/2/state", json!("revoked"), "entries.by"),
        ("/entries/0/id", json!("AAAA"), "entries.id"),
        ("/entries/2/by", json!("*"), "entries.by"),
        ("/entries/0/id", json!(7), "entries[0].id"),
        ("/root", json!("AAAA"), "root"),
        ("/time", json!("yesterday"), "time"),
    ] {
        assert_eq!(refused(pointer, value), field, "{pointer}");
    }
}

/// Attack: a disclosed fact that is not the one under the digest.
#[test]
fn digest_of_another_fact_is_refused() {
    let subject = Fact::subject(PEER, "ada");
    let facts = [
        subject.clone(),
        Fact::subject("", "spiffe://eu.example/a"),
        Fact::email(PEER, "ada@EU.example"),
        Fact::client(PEER, "c"),
        Fact::token(PEER, "t"),
        Fact::own_token(PEER, "family.1"),
        Fact::signing_key(PEER, "k"),
    ];
    let disclosed = |fact: &Fact| json!({"id": fact.digest().to_string(), "kind": fact.kind(), "issuer": fact.issuer(), "value": fact.value()});
    for fact in &facts {
        let mut fields = disclosed(fact);
        assert!(read(&with("/entries/0", &fields)).is_ok(), "{fact:?}");
        fields["value"] = json!("bob");
        assert_eq!(read(&with("/entries/0", &fields)).expect_err("bob").field, "entries.id", "{fact:?}");
    }
    for (field, value) in [("kind", "client"), ("kind", "future"), ("issuer", "https://us.example")] {
        let mut fields = disclosed(&subject);
        fields[field] = json!(value);
        assert_eq!(read(&with("/entries/0", &fields)).expect_err(value).field, "entries.id");
    }
}

#[test]
fn page_that_is_not_the_last_has_no_root() {
    let page = json!({"next": "more", "through": 130, "floor": 1000});
    let answer = read(&with("", &page)).expect("a page");
    assert_eq!((answer.root, answer.is_whole(), answer.entries.len()), (None, false, 3));
    let beyond = with("", &json!({"next": "more", "through": 129}));
    assert_eq!(read(&beyond).expect_err("later entries").field, "entries.n");
    for next in ["", "with space", "caf\u{e9}", &"x".repeat(limits::SYNC_CURSOR_BYTES_MAX + 1)] {
        assert_eq!(refused("/next", json!(next)), "next", "{next}");
    }
    // A page that leads to itself would be read for ever.
    let again = Expected { cursor: Some("more".to_owned()), ..expected() };
    let body = with("", &page).to_string();
    assert_eq!(again.read(body.as_bytes()).expect_err("the same page").field, "next");
}

#[test]
fn reset_begins_at_the_beginning_of_the_log() {
    let reset = json!({"reset": true, "from": 0, "floor": 120});
    let mut changed = with("", &reset);
    changed["entries"][0]["n"] = json!(5);
    assert!(read(&changed).expect("a reset").is_reset);
    changed["from"] = json!(SINCE);
    assert_eq!(read(&changed).expect_err("not the beginning").field, "from");
}

/// Attack: an older entry of a fact after a later one.
#[test]
fn fact_that_is_there_twice_is_refused() {
    assert_eq!(refused("/entries/1/id", json!(id(1))), "entries.id");
    let block = response()["entries"][2].clone();
    let mut changed = response();
    changed["entries"].as_array_mut().expect("entries").push(block);
    assert_eq!(read(&changed).expect_err("twice").field, "entries.id");
}

#[test]
fn more_entries_than_requested_are_refused() {
    let few = Expected { limit: 2, ..expected() };
    assert_eq!(few.read(response().to_string().as_bytes()).expect_err("three").field, "entries");
}

#[test]
fn body_that_is_no_strict_json_is_refused() {
    let text = response().to_string();
    let deep = "[".repeat(limits::JSON_DEPTH_MAX + 1) + &"]".repeat(limits::JSON_DEPTH_MAX + 1);
    let bodies = [
        text.replacen("{\"", "{\"from\": 0, \"", 1),
        format!("{text} {{}}"),
        text[..text.len() - 1].to_owned(),
        text.replacen("\"root\":", &format!("\"unknown\": {deep}, \"root\":"), 1),
        "[1]".to_owned(),
        String::new(),
    ];
    for body in bodies {
        assert_eq!(expected().read(body.as_bytes()).expect_err(&body).field, "body", "{body}");
    }
    assert_eq!(expected().read(b"\xff").expect_err("not UTF-8").field, "body");
}

fn jwk(kid: &str) -> Value {
    let key = SigningKey::generate().expect("a key");
    let mut jwk = json::parse(key.public_jwk().to_string().as_bytes()).expect("JSON");
    jwk["kid"] = json!(kid);
    jwk
}

#[test]
fn key_set_is_read_and_any_other_key_refused() {
    let keys = |keys: Vec<Value>| with("", &json!({"keys": {"etag": "e", "keys": keys}}));
    let read_keys = read(&keys(vec![jwk("a"), jwk("b")])).expect("keys").keys.expect("keys");
    let set = KeySet::parse(read_keys.key_set.as_bytes(), Purpose::Issuer).expect("a key set");
    assert_eq!((read_keys.etag.as_str(), set.len()), ("e", 2));
    assert_eq!(read(&keys(vec![])).expect("none").keys.expect("a set").key_set, r#"{"keys":[]}"#);
    let mut without_kid = jwk("a");
    without_kid.as_object_mut().expect("a key").remove("kid");
    let mut private = jwk("a");
    private["d"] = json!("AAAA");
    let mut of_encryption = jwk("a");
    of_encryption["use"] = json!("enc");
    let of_rsa = json!({"kty": "RSA", "kid": "a", "n": "AQAB", "e": "AQAB"});
    let of_mac = json!({"kty": "oct", "kid": "a", "k": "AAAA"});
    for bad in [
        vec![jwk("a"), jwk("a")],
        vec![without_kid],
        vec![private],
        vec![of_encryption],
        vec![of_rsa],
        vec![of_mac],
    ] {
        assert_eq!(read(&keys(bad.clone())).expect_err("a bad key").field, "keys.keys", "{bad:?}");
    }
    let many: Vec<_> = vec![jwk("a"); limits::PEER_FABRIC_KEYS_MAX + 1];
    assert_eq!(read(&keys(many)).expect_err("too many").field, "keys.keys");
    let bad_etag = with("", &json!({"keys": {"etag": "", "keys": []}}));
    assert_eq!(read(&bad_etag).expect_err("no etag").field, "keys.etag");
}
