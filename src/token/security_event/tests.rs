//! Security event tokens in both forms, valid and invalid.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::token::Error as TokenError;
use crate::token::testing::{NOW_SECS, Signer, now, with};

const ISS: &str = "https://idp.example";
const US: &str = "https://fabric.example";
const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const CHANGED: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Es256, Algorithm::Rs256];

fn header(alg: &str) -> Value {
    json!({"alg": alg, "kid": "k", "typ": "secevent+jwt"})
}

fn good() -> Value {
    json!({
        "iss": ISS, "jti": "7f3c", "iat": NOW_SECS - 10, "aud": US, "txn": "8675309",
        "sub_id": {"format": "email", "email": "someone@idp.example"},
        "events": {REVOKED: {"event_timestamp": NOW_SECS - 20, "reason": "left"}}
    })
}

fn verified(token: &Compact<'_>, key: &VerifyingKey, rules: &Rules<'_>) -> Result<SecurityEventToken, Error> {
    UncheckedSet::verify(token, key, rules)?.check(rules)
}

/// Calls `f` with the rules of these tests.
fn with_rules<T>(at: Timestamp, f: impl FnOnce(&Rules<'_>) -> T) -> T {
    f(&Rules { audiences: &[US.to_owned()], algorithms: &ALGORITHMS, iss: ISS, now: at })
}

fn unsigned_at(at: Timestamp, set: Value) -> Result<SecurityEventToken, Error> {
    with_rules(at, |rules| UncheckedSet::unsigned(set, rules)?.check(rules))
}

fn unsigned(set: Value) -> Result<SecurityEventToken, Error> {
    unsigned_at(now(), set)
}

fn signed_by(signer: &Signer, header: &Value, set: &Value) -> Result<SecurityEventToken, Error> {
    let text = signer.sign(header, set);
    with_rules(now(), |rules| verified(&Compact::parse(&text)?, &signer.verifying("k"), rules))
}

fn signed(set: &Value) -> Result<SecurityEventToken, Error> {
    signed_by(&Signer::es256(), &header("ES256"), set)
}

/// The refusal, which must be the same for both forms.
fn refusal(changes: &Value) -> Error {
    let set = with(&good(), changes);
    let error = unsigned(set.clone()).expect_err(&set.to_string());
    assert_eq!(signed(&set).expect_err("signed"), error, "{set}");
    error
}

/// The field that a refusal names.
fn fault(error: Error) -> String {
    match error {
        Error::Invalid { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn whole_token_is_read() {
    let set = unsigned(good()).expect("good");
    let Value::Object(claims) = json!({"event_timestamp": NOW_SECS - 20, "reason": "left"}) else {
        panic!("an object");
    };
    let happened_at = Some(Timestamp::from_secs(NOW_SECS - 20));
    let sub_id = json!({"format": "email", "email": "someone@idp.example"});
    let expected = SecurityEventToken {
        iss: ISS.to_owned(),
        jti: "7f3c".to_owned(),
        iat: Timestamp::from_secs(NOW_SECS - 10),
        aud: vec![US.to_owned()],
        txn: Some("8675309".to_owned()),
        via: Vec::new(),
        subject: SubjectId::Email("someone@idp.example".to_owned()),
        sub_id,
        events: vec![EventClaims { uri: REVOKED.to_owned(), claims, happened_at }],
    };
    assert_eq!(set, expected);
    let least = with(&good(), &json!({"txn": null, "events": {REVOKED: {}}}));
    let least = unsigned(least).expect("good");
    assert_eq!((least.txn, least.events[0].happened_at), (None, None));
    // RFC 8417 §2: unknown claims are ignored.
    assert!(unsigned(with(&good(), &json!({"unknown": [1], "sub": "x", "exp": 1}))).is_ok());
}

#[test]
fn event_time_is_event_timestamp_else_toe() {
    let at = |changes: Value| unsigned(with(&good(), &changes)).expect("good").events[0].happened_at;
    let toe = NOW_SECS - 500;
    assert_eq!(at(json!({"toe": toe, "events": {REVOKED: {}}})), Some(Timestamp::from_secs(toe)));
    assert_eq!(at(json!({"toe": toe})), Some(Timestamp::from_secs(NOW_SECS - 20)));
    for wrong in [json!("x"), json!(NOW_SECS + 61), json!(NOW_SECS * 1000), json!(-1)] {
        assert_eq!(fault(refusal(&json!({"toe": wrong}))), "toe");
    }
}

#[test]
fn each_algorithm_of_the_issuer_verifies() {
    for (signer, alg) in [(Signer::es256(), "ES256"), (Signer::rsa(), "RS256")] {
        let set = signed_by(&signer, &header(alg), &good()).expect("good");
        assert_eq!(Ok(set), unsigned(good()), "{alg}");
    }
    for (signer, alg) in [(Signer::ed25519(), "EdDSA"), (Signer::rsa(), "PS256")] {
        let error = signed_by(&signer, &header(alg), &good()).expect_err("not in the list");
        assert_eq!((error.err(), error), ("invalid_key", Error::Key(TokenError::AlgorithmNotAllowed)));
    }
}

#[test]
fn typ_is_compared_as_a_media_type() {
    let typed =
        |typ: Value| signed_by(&Signer::es256(), &with(&header("ES256"), &json!({"typ": typ})), &good());
    for typ in ["secevent+jwt", "application/secevent+jwt", "SECEVENT+JWT", "Application/Secevent+JWT"] {
        assert!(typed(json!(typ)).is_ok(), "{typ}");
    }
    let others =
        ["JWT", "at+jwt", "logout+jwt", "secevent", "secevent+jwt ", "secevent+jwt2", "text/secevent+jwt"];
    for typ in others.map(Value::from).into_iter().chain([json!(""), json!(null)]) {
        let error = typed(typ.clone()).expect_err("another type");
        assert_eq!(error, Error::Malformed(TokenError::TypeMismatch), "{typ}");
        assert_eq!(error.err(), "invalid_request");
    }
}

#[test]
fn missing_or_mistyped_claim_is_refused_by_name() {
    for name in ["iss", "jti", "iat", "aud", "sub_id", "events"] {
        assert_eq!(fault(refusal(&json!({ name: null }))), name);
        let of_another_type = [json!(true), json!({}), json!([]), json!(""), json!([1]), json!([[]])];
        for wrong in of_another_type.into_iter().chain([json!(-1), json!(1.5), json!("9e9")]) {
            if matches!((name, &wrong), ("iss" | "aud" | "jti", Value::String(text)) if !text.is_empty()) {
                continue;
            }
            let expected = if (name, &wrong) == ("sub_id", &json!({})) { "sub_id.format" } else { name };
            assert_eq!(fault(refusal(&json!({ name: wrong }))), expected, "{name} {wrong}");
            let mut set = good();
            set[name] = Value::Null;
            assert_eq!(fault(unsigned(set).expect_err("null")), name);
        }
    }
    for wrong in [json!(1), json!(8_675_309), json!(""), json!([]), json!({}), json!(true)] {
        assert_eq!(fault(refusal(&json!({"txn": wrong}))), "txn", "{wrong}");
    }
    assert_eq!(fault(refusal(&json!({"sub_id": {"format": "email"}}))), "sub_id.email");
    assert_eq!(fault(refusal(&json!({"sub_id": {"format": "unheard-of"}}))), "sub_id.format");
    for set in [json!([]), json!("x"), json!(null), json!(1)] {
        assert_eq!(fault(unsigned(set.clone()).expect_err("no object")), "set", "{set}");
        assert_eq!(fault(signed(&set).expect_err("no object")), "set", "{set}");
    }
}

#[test]
fn claims_are_accepted_at_their_limits_and_refused_beyond() {
    for (name, bytes_max) in [("jti", limits::OPAQUE_BYTES_MAX), ("txn", limits::OPAQUE_BYTES_MAX)] {
        let of = |bytes: usize| json!({ name: "a".repeat(bytes) });
        assert!(unsigned(with(&good(), &of(bytes_max))).is_ok(), "{name}");
        let error = refusal(&of(bytes_max + 1));
        assert_eq!(error.to_string(), format!("{name}: must be a string of 1 to {bytes_max} bytes"));
        assert_eq!(error.err(), "invalid_request");
    }
    // An audience beyond the limit is malformed, not merely another receiver.
    let long = "a".repeat(limits::URI_BYTES_MAX + 1);
    assert_eq!(fault(refusal(&json!({"iss": long}))), "iss");
    assert_eq!(fault(refusal(&json!({"aud": long}))), "aud");
    assert_eq!(refusal(&json!({"iss": long[1..]})), Error::Issuer);
    assert_eq!(refusal(&json!({"aud": long[1..]})), Error::Audience);
}

#[test]
fn iss_and_aud_are_compared_byte_for_byte() {
    for iss in
        ["https://idp.example/", "https://IDP.example", "https://idp.exampl", "https://idp.example.evil"]
    {
        let error = refusal(&json!({"iss": iss}));
        assert_eq!((error.err(), error), ("invalid_issuer", Error::Issuer), "{iss}");
    }
    for aud in ["https://fabric.example/", "https://Fabric.example", "https://fabric.exampl", "https://other"]
    {
        let error = refusal(&json!({"aud": aud}));
        assert_eq!((error.err(), error), ("invalid_audience", Error::Audience), "{aud}");
    }
}

#[test]
fn signed_token_may_have_several_audiences() {
    let of = |aud: Value| with(&good(), &json!({ "aud": aud }));
    let set = signed(&of(json!(["https://other", US]))).expect("one is us");
    assert_eq!(set.aud, ["https://other", US]);
    assert_eq!(signed(&of(json!(["https://other", "https://fabric.example/"]))), Err(Error::Audience));
    for aud in [json!([US, 1]), json!([US, ""]), json!([[US]]), json!([US, null])] {
        assert_eq!(fault(signed(&of(aud.clone())).expect_err("a bad one")), "aud", "{aud}");
    }
    // An unsigned token has one audience.
    assert_eq!(fault(unsigned(of(json!([US]))).expect_err("an array")), "aud");
}

#[test]
fn iat_is_accepted_at_its_limits_and_refused_beyond() {
    let at = |iat: i64, millis: i64| {
        let at = Timestamp::from_millis(NOW_SECS * 1000 + millis);
        unsigned_at(at, with(&good(), &json!({"iat": iat, "events": {REVOKED: {}}}))).err().map(fault)
    };
    let ahead = i64::try_from(limits::SET_IAT_AHEAD_MAX.as_secs()).expect("seconds");
    let age = i64::try_from(limits::SET_AGE_MAX.as_secs()).expect("seconds");
    assert_eq!((ahead, age), (60, 24 * 3600), "as the rules state");
    assert_eq!(at(NOW_SECS + ahead, 0), None);
    assert_eq!(at(NOW_SECS + ahead, -1), Some("iat".to_owned()));
    assert_eq!(at(NOW_SECS - age, 0), None);
    assert_eq!(at(NOW_SECS - age, 1), Some("iat".to_owned()));
    assert_eq!(at(NOW_SECS - 2 * age, 0), Some("iat".to_owned()));
    for iat in [0, limits::NUMERIC_DATE_MAX_SECS, limits::NUMERIC_DATE_MAX_SECS + 1, i64::MAX] {
        assert_eq!(at(iat, 0), Some("iat".to_owned()), "{iat}");
    }
    // Milliseconds lie far in the future.
    assert_eq!(at(NOW_SECS * 1000, 0), Some("iat".to_owned()));
}

#[test]
fn event_time_may_be_ancient_but_not_in_the_future() {
    let of = |time: Value| unsigned(with(&good(), &json!({"events": {REVOKED: {"event_timestamp": time}}})));
    let at = |time: Value| of(time).expect("good").events[0].happened_at.map(Timestamp::millis);
    assert_eq!(at(json!(NOW_SECS + 60)), Some((NOW_SECS + 60) * 1000));
    assert_eq!(at(json!(1_799_999_999.123)), Some(1_799_999_999_123));
    assert_eq!(at(json!(1_799_999_999.000_9)), Some(1_799_999_999_001));
    assert_eq!(at(json!(0)), Some(0));
    assert_eq!(at(json!(0.5)), Some(500));
    let late = [
        json!(NOW_SECS + 61),
        json!(1_800_000_060.001),
        json!(NOW_SECS * 1000),
        json!(1e300),
        json!(u64::MAX),
    ];
    let wrong =
        [json!("1800000000"), json!(null), json!(true), json!([NOW_SECS]), json!({}), json!(-1), json!(-0.5)];
    for time in late.into_iter().chain(wrong) {
        let Err(Error::Invalid { field, rule }) = of(time.clone()) else { panic!("{time}") };
        assert_eq!(field, "events.session-revoked.event_timestamp", "{time}");
        assert!(rule.contains("not milliseconds"), "{rule}");
    }
}

#[test]
fn one_event_to_the_limit_is_accepted() {
    let of = |count: usize| {
        let events: Map<String, Value> = (0..count).map(|n| (format!("urn:event:{n}"), json!({}))).collect();
        with(&good(), &json!({ "events": events }))
    };
    let most = unsigned(of(limits::SET_EVENTS_MAX)).expect("good");
    assert_eq!(most.events.len(), limits::SET_EVENTS_MAX);
    for count in [0, limits::SET_EVENTS_MAX + 1] {
        let error = unsigned(of(count)).expect_err("too few or too many");
        assert_eq!(error.to_string(), format!("events: must have 1 to {} events", limits::SET_EVENTS_MAX));
    }
    assert!(signed(&of(1)).is_ok());
    assert_eq!(fault(signed(&of(2)).expect_err("two")), "events");
    assert_eq!(fault(signed(&of(0)).expect_err("none")), "events");
}

#[test]
fn malformed_event_type_or_claims_are_refused() {
    let of = |uri: &str| unsigned(with(&good(), &json!({"events": {uri: {}}})));
    let longest = format!("urn:{}", "a".repeat(limits::URI_BYTES_MAX - 4));
    for uri in [REVOKED, "urn:x", "a:b", &longest] {
        assert!(of(uri).is_ok(), "{uri}");
    }
    for uri in [
        "",
        "session-revoked",
        "/secevent/caep",
        "//schemas.openid.net/x",
        ":x",
        "urn:",
        "1urn:x",
        "u rn:x",
        "urn:a b",
        "urn:a\n",
        "urn:\u{e9}",
        "urn:<script>",
        "urn:a\"b",
        &format!("{longest}a"),
    ] {
        assert_eq!(fault(of(uri).expect_err(uri)), "events", "{uri}");
    }
    for claims in [json!(null), json!([]), json!("x"), json!(1), json!(true)] {
        let error = unsigned(with(&good(), &json!({"events": {CHANGED: {}, REVOKED: claims}})));
        assert_eq!(fault(error.expect_err("no object")), "events.session-revoked", "{claims}");
    }
    // The error quotes at most 64 characters of the type.
    let field = fault(unsigned(with(&good(), &json!({"events": {longest: 1}}))).expect_err("no object"));
    assert!(field.len() < 100, "{field}");
}

#[test]
fn signed_token_with_sub_or_exp_is_refused() {
    for name in ["sub", "exp"] {
        for value in [json!("x"), json!(NOW_SECS + 600), json!({}), json!(false)] {
            let error = signed(&with(&good(), &json!({ name: value }))).expect_err("an ID token");
            assert_eq!(error.to_string(), format!("{name}: must not be in a security event token"));
        }
        let mut set = good();
        set[name] = Value::Null;
        assert_eq!(fault(signed(&set).expect_err("null is there")), name);
    }
}

#[test]
fn token_of_another_key_or_changed_is_refused() {
    let (signer, other) = (Signer::es256(), Signer::es256());
    let text = signer.sign(&header("ES256"), &good());
    let verify = |text: &str, key: &VerifyingKey| {
        with_rules(now(), |rules| verified(&Compact::parse(text)?, key, rules))
    };
    assert!(verify(&text, &signer.verifying("k")).is_ok());
    // Another issuer's key under the same `kid`.
    let error = verify(&text, &other.verifying("k")).expect_err("another key");
    assert_eq!((error.err(), error), ("authentication_failed", Error::Signature));
    let error = verify(&text, &signer.verifying("another")).expect_err("another name");
    assert_eq!((error.err(), error), ("invalid_key", Error::Key(TokenError::UnknownKey)));
    let error = verify(&text, &Signer::rsa().verifying("k")).expect_err("another family");
    assert_eq!((error.err(), error), ("invalid_key", Error::Key(TokenError::AlgorithmNotAllowed)));
    let changed = signer.sign(&header("ES256"), &with(&good(), &json!({"jti": "7f3d"})));
    let (input, _) = changed.rsplit_once('.').expect("three parts");
    let (_, signature) = text.rsplit_once('.').expect("three parts");
    let error = verify(&format!("{input}.{signature}"), &signer.verifying("k")).expect_err("changed");
    assert_eq!(error, Error::Signature);
    // The signature is checked before the claims that it covers.
    let bad = other.sign(&header("ES256"), &json!({"iss": 1}));
    assert_eq!(verify(&bad, &signer.verifying("k")), Err(Error::Signature));
}

#[test]
fn alg_none_key_in_header_and_extension_are_refused() {
    let signer = Signer::es256();
    for (changes, error, err) in [
        (json!({"alg": "none"}), Error::Key(TokenError::AlgorithmRefused), "invalid_key"),
        (json!({"alg": "HS256"}), Error::Key(TokenError::AlgorithmRefused), "invalid_key"),
        (json!({"jwk": signer.jwk("k")}), Error::Key(TokenError::KeyInToken), "invalid_key"),
        (json!({"jku": "https://evil.example"}), Error::Key(TokenError::KeyInToken), "invalid_key"),
        (json!({"crit": ["exp"]}), Error::Malformed(TokenError::HeaderExtension), "invalid_request"),
        (json!({"b64": false}), Error::Malformed(TokenError::HeaderExtension), "invalid_request"),
    ] {
        let header = with(&header("ES256"), &changes);
        let refused = signed_by(&signer, &header, &good()).expect_err("refused");
        assert_eq!((refused.err(), refused), (err, error), "{changes}");
    }
    let unsigned = signer.sign(&header("ES256"), &good());
    let (input, _) = unsigned.rsplit_once('.').expect("three parts");
    let refused = with_rules(now(), |rules| {
        verified(&Compact::parse(&format!("{input}."))?, &signer.verifying("k"), rules)
    });
    assert_eq!(refused, Err(Error::Signature));
}

#[test]
fn signed_payload_with_duplicate_claim_is_refused() {
    let signer = Signer::es256();
    let set = good().to_string();
    let twice = format!("{},\"jti\":\"other\"}}", set.strip_suffix('}').expect("an object"));
    for payload in [twice.as_bytes(), b"[", "{\"iss\":\"\u{0}\"}".as_bytes()] {
        let text = signer.sign_bytes(header("ES256").to_string().as_bytes(), payload);
        let refused =
            with_rules(now(), |rules| verified(&Compact::parse(&text)?, &signer.verifying("k"), rules));
        assert_eq!(refused, Err(Error::Malformed(TokenError::PayloadMalformed)));
    }
}

#[test]
fn unverified_issuer_is_the_stated_iss() {
    let signer = Signer::es256();
    let stated = |set: &Value| {
        let text = signer.sign(&header("ES256"), set);
        let token = Compact::parse(&text).expect("compact");
        let (signed, unsigned) = (
            SecurityEventToken::unverified_issuer(&token),
            SecurityEventToken::stated_issuer(set).map(str::to_owned),
        );
        (signed, unsigned)
    };
    assert_eq!(stated(&json!({"iss": ISS})), (Ok(ISS.to_owned()), Ok(ISS.to_owned())));
    for set in [json!({}), json!({"iss": 1}), json!({"iss": ""}), json!({"iss": "a".repeat(2049)})] {
        let (signed, unsigned) = stated(&set);
        assert_eq!(
            (fault(signed.expect_err("no issuer")), unsigned.map_err(fault)),
            ("iss".to_owned(), Err("iss".to_owned()))
        );
    }
    let (signed, unsigned) = stated(&json!([]));
    assert_eq!(signed, Err(Error::Malformed(TokenError::PayloadMalformed)));
    assert_eq!(fault(unsigned.expect_err("no object")), "set");
}

#[test]
fn clock_off_by_an_hour_refuses_without_panic() {
    for at in [Timestamp::from_millis(i64::MIN), Timestamp::from_millis(i64::MAX), Timestamp::from_millis(0)]
    {
        assert!(unsigned_at(at, good()).is_err());
    }
    assert!(unsigned_at(now().plus(Duration::from_secs(3600)), good()).is_ok());
    assert!(unsigned_at(now().minus(Duration::from_secs(3600)), good()).is_err());
}

proptest! {
    #[test]
    fn flipped_bit_anywhere_in_a_signed_token_is_refused(position in 0usize..10_000, bit in 0u8..7) {
        let signer = Signer::es256();
        let mut bytes = signer.sign(&header("ES256"), &good()).into_bytes();
        let at = position % bytes.len();
        bytes[at] ^= 1 << bit;
        let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
        let accepted = with_rules(now(), |rules| {
            Compact::parse(&changed).is_ok_and(|token| verified(&token, &signer.verifying("k"), rules).is_ok())
        });
        prop_assert!(!accepted, "{}", changed);
    }

    #[test]
    fn any_claim_value_is_read_or_refused(
        name in "iss|jti|iat|aud|txn|sub_id|events",
        text in "\\PC{0,64}",
        number in any::<f64>(),
    ) {
        for value in [json!(text), json!(number), json!({(text.clone()): {"event_timestamp": number}}), json!([text])] {
            drop(unsigned(with(&good(), &json!({ (name.clone()): value }))));
        }
    }
}
