//! Key documents: a valid one makes a token acceptable, and each single change ends that.

use serde_json::{Value, json};
use trust_fabric::token::Error as TokenError;
use trust_fabric::token::key_set::Error as DocumentError;

use super::{Key, Refusal, verify};

const UNKNOWN_KEY: Refusal = Refusal::Token(TokenError::UnknownKey);
const PRIVATE_KEY: Refusal = Refusal::Document(DocumentError::PrivateKey);
const MALFORMED: Refusal = Refusal::Document(DocumentError::KeyMalformed);
const MISMATCH: Refusal = Refusal::Document(DocumentError::AlgorithmMismatch);
const INVALID: Refusal = Refusal::Token(TokenError::SignatureInvalid);

fn with(jwk: &Value, changes: &Value) -> Value {
    let mut jwk = jwk.clone();
    for (name, value) in changes.as_object().expect("changes") {
        jwk[name] = value.clone();
    }
    jwk
}

#[test]
fn document_of_several_kids_accepts_each() {
    let (key, other) = (Key::generate(), Key::generate());
    let document = json!({"keys": [key.jwk(), with(&other.jwk(), &json!({"kid": "k2"}))]});
    assert_eq!(verify(&document, &key.token(b"foo")).as_deref(), Ok(&b"foo"[..]));
    assert_eq!(verify(&document, &other.token(b"foo")), Err(INVALID));
    let twice = json!({"keys": [key.jwk(), other.jwk()]});
    assert_eq!(verify(&twice, &key.token(b"foo")), Err(Refusal::Document(DocumentError::KidDuplicate)));
}

#[test]
fn symmetric_key_refuses_its_whole_document() {
    let key = Key::generate();
    let secret = json!({"kty": "oct", "kid": "s", "alg": "HS256", "k": "AAAA"});
    let mixed = json!({"keys": [secret, key.jwk()]});
    assert_eq!(verify(&mixed, &key.token(b"foo")), Err(PRIVATE_KEY));
}

#[test]
fn key_inside_a_token_verifies_nothing() {
    let (key, attacker) = (Key::generate(), Key::generate());
    let header = json!({"alg": "ES256", "kid": "k", "jwk": attacker.jwk()}).to_string();
    let token = attacker.token_with_header(&header, b"foo");
    for document in [key.document(), attacker.document()] {
        assert_eq!(verify(&document, &token), Err(Refusal::Token(TokenError::KeyInToken)));
    }
}

#[test]
fn changed_elliptic_key_refuses_its_token() {
    let (key, other) = (Key::generate(), Key::generate());
    let token = key.token(b"foo");
    for good in [json!({}), json!({"use": "sig"}), json!({"key_ops": ["verify"]})] {
        let document = json!({"keys": [with(&key.jwk(), &good)]});
        assert_eq!(verify(&document, &token).as_deref(), Ok(&b"foo"[..]), "{good}");
    }
    let y = key.jwk()["y"].as_str().expect("y").to_owned();
    let moved = format!("{}{}", if y.starts_with('A') { 'B' } else { 'A' }, &y[1..]);
    for (changes, refusal) in [
        (json!({"alg": "ES521"}), UNKNOWN_KEY),
        (json!({"alg": "ES224"}), UNKNOWN_KEY),
        (json!({"alg": "ES384"}), MISMATCH),
        (json!({"alg": "RS256"}), MISMATCH),
        (json!({"use": "enc"}), UNKNOWN_KEY),
        (json!({"key_ops": ["encrypt"]}), UNKNOWN_KEY),
        (json!({"y": moved}), MALFORMED),
        (json!({"crv": "P-384", "alg": "ES256"}), MISMATCH),
        (json!({"crv": "P-384", "alg": "ES384"}), MALFORMED),
        (json!({"kty": "RSA", "alg": "ES256"}), MISMATCH),
        (json!({"kty": "RSA", "alg": "RS256"}), MALFORMED),
        (json!({"d": "AAAA"}), PRIVATE_KEY),
        (json!({"kid": "other"}), UNKNOWN_KEY),
    ] {
        let document = json!({"keys": [with(&key.jwk(), &changes)]});
        assert_eq!(verify(&document, &token), Err(refusal), "{changes}");
    }
    assert_eq!(verify(&json!({"keys": []}), &token), Err(UNKNOWN_KEY));
    assert_eq!(verify(&other.document(), &token), Err(INVALID));
}
