//! Key documents: a good one makes a good token acceptable, and each single change ends that.

use serde_json::{Value, json};
use trust_fabric::token::Error as TokenError;
use trust_fabric::token::jws::Compact;
use trust_fabric::token::key_set::Error as DocumentError;

use super::keys::Key;
use super::rsa_key::RsaKey;
use super::{Refusal, signature_of, verify, with_signature};

const UNKNOWN_KEY: Refusal = Refusal::Token(TokenError::UnknownKey);
const PRIVATE_KEY: Refusal = Refusal::Document(DocumentError::PrivateKey);
const MALFORMED: Refusal = Refusal::Document(DocumentError::KeyMalformed);
const WEAK: Refusal = Refusal::Document(DocumentError::KeyWeak);
const MISMATCH: Refusal = Refusal::Document(DocumentError::AlgorithmMismatch);

/// A document of this key alone, with `changes` in it.
fn changed(key: &Key, changes: &Value) -> Value {
    json!({"keys": [with(&key.jwk(), changes)]})
}

fn with(jwk: &Value, changes: &Value) -> Value {
    let mut jwk = jwk.clone();
    for (name, value) in changes.as_object().expect("changes") {
        jwk[name] = value.clone();
    }
    jwk
}

#[test]
fn a_key_for_signatures_verifies_them_and_one_for_anything_else_does_not() {
    let mut cases = 0;
    for key in [Key::es256(), Key::rsa("RS256"), Key::rsa("PS384")] {
        let token = key.token(b"foo");
        for good in [json!({}), json!({"use": "sig"}), json!({"key_ops": ["verify"]})] {
            assert_eq!(verify(&changed(&key, &good), &token).as_deref(), Ok(&b"foo"[..]), "{good}");
            cases += 1;
        }
        for other in [json!({"use": "enc"}), json!({"key_ops": ["encrypt"]})] {
            assert_eq!(verify(&changed(&key, &other), &token), Err(UNKNOWN_KEY), "{other}");
            cases += 1;
        }
    }
    assert_eq!(cases, 15);
}

#[test]
fn a_key_whose_alg_is_another_is_refused_whatever_it_could_do() {
    let key = Key::rsa("PS256");
    let payload = super::encode("foo");
    let input = format!("{}.{payload}", super::encode(super::keys::header("PS384")));
    let token = format!("{input}.{}", super::encode(key.sign_as("PS384", input.as_bytes())));
    for purpose in [json!({"use": "sig"}), json!({"key_ops": ["verify"]})] {
        let refused = verify(&changed(&key, &purpose), &token);
        assert_eq!(refused, Err(Refusal::Token(TokenError::AlgorithmNotAllowed)));
        let stated = with(&purpose, &json!({"alg": "PS384"}));
        assert!(verify(&changed(&key, &stated), &token).is_ok());
    }
}

#[test]
fn algorithms_that_are_good_there_and_do_not_exist_here_are_refused() {
    let key = Key::es512();
    let token = key.token(b"foo");
    for purpose in [json!({"use": "sig"}), json!({"key_ops": ["verify"]})] {
        // An `alg` that names nothing, as it stands in the case, and the right one.
        for alg in ["ES521", "ES512"] {
            let document = changed(&key, &with(&purpose, &json!({"alg": alg})));
            assert_eq!(verify(&document, &token), Err(Refusal::Token(TokenError::AlgorithmRefused)));
        }
        let document = changed(&key, &purpose);
        // Nor does the key become another algorithm's.
        assert_eq!(verify(&document, &Key::es256().token(b"foo")), Err(UNKNOWN_KEY));
    }
}

#[test]
fn a_document_with_a_symmetric_key_is_refused_whole() {
    let mut cases = 0;
    let is_refused = |document: &Value, token: &str| {
        assert_eq!(verify(document, token), Err(PRIVATE_KEY), "{document}");
        assert_eq!(Compact::parse(token).err(), Some(TokenError::AlgorithmRefused));
    };
    for (alg, bytes) in [("HS256", 32), ("HS384", 48), ("HS512", 64)] {
        // Too short by a byte, longer than needed, and empty.
        for secret in [vec![1; bytes - 1], vec![1; 65], vec![]] {
            let key = Key::mac(alg, &secret);
            is_refused(&key.document(), &key.token(b"foo"));
            cases += 1;
        }
    }
    let (key, other) = (Key::mac("HS256", &[1; 32]), Key::mac("HS256", &[2; 32]));
    let token = key.token(b"foo");
    for alg in ["A256GCM", "A256KW"] {
        is_refused(&changed(&key, &json!({"alg": alg})), &token);
        cases += 1;
    }
    let second = with(&other.jwk(), &json!({"kid": "k2"}));
    let public = Key::es256();
    let mixed = json!({"keys": [with(&key.jwk(), &json!({"kid": "s"})), public.jwk()]});
    let mut modified = signature_of(&token);
    modified[0] ^= 1;
    for (document, token) in [
        (json!({"keys": [key.jwk(), second]}), token.clone()),
        (json!({"keys": [key.jwk(), second]}), with_signature(&token, &modified)),
        (json!({"keys": [key.jwk(), other.jwk()]}), token.clone()),
        (mixed.clone(), token),
    ] {
        is_refused(&document, &token);
        cases += 1;
    }
    assert_eq!(verify(&mixed, &public.token(b"foo")), Err(PRIVATE_KEY), "its public key neither");
    assert_eq!(cases, 15);
}

#[test]
fn several_keys_of_different_names_are_a_good_document() {
    for (key, other) in [(Key::es256(), Key::es256()), (Key::rsa("RS256"), Key::es256())] {
        let token = key.token(b"foo");
        let second = with(&other.jwk(), &json!({"kid": "k2"}));
        let document = json!({"keys": [key.jwk(), second]});
        assert_eq!(verify(&document, &token).as_deref(), Ok(&b"foo"[..]));
        let mut modified = signature_of(&token);
        modified[0] ^= 1;
        let refused = verify(&document, &with_signature(&token, &modified));
        assert_eq!(refused, Err(Refusal::Token(TokenError::SignatureInvalid)));
        let twice = json!({"keys": [key.jwk(), other.jwk()]});
        assert_eq!(verify(&twice, &token), Err(Refusal::Document(DocumentError::KidDuplicate)));
    }
}

#[test]
fn a_weak_rsa_key_is_refused_though_its_signature_is_right() {
    for key in [RsaKey::roca(), RsaKey::generate(1024), RsaKey::with_exponent_one()] {
        let key = Key::of_rsa("RS256", key);
        assert_eq!(verify(&key.document(), &key.token(b"")), Err(WEAK));
    }
}

#[test]
fn each_change_of_an_rsa_key_ends_the_acceptance_of_its_token() {
    let key = Key::rsa("RS256");
    let token = key.token(b"foo");
    assert!(verify(&key.document(), &token).is_ok());
    for (changes, refusal) in [
        (json!({"use": "enc", "alg": "RSA1_5"}), UNKNOWN_KEY),
        (json!({"alg": "RSA1_5"}), UNKNOWN_KEY),
        (json!({"alg": "RS384"}), Refusal::Token(TokenError::AlgorithmNotAllowed)),
        (json!({"alg": "ES256"}), MISMATCH),
        (json!({"d": "AQAB"}), PRIVATE_KEY),
        (json!({"e": "AAEAAQ"}), MALFORMED),
    ] {
        assert_eq!(verify(&changed(&key, &changes), &token), Err(refusal), "{changes}");
    }
}

#[test]
fn each_change_of_an_elliptic_key_ends_the_acceptance_of_its_token() {
    let (key, other) = (Key::es256(), Key::es256());
    let token = key.token(b"foo");
    assert!(verify(&key.document(), &token).is_ok());
    let y = key.jwk()["y"].as_str().expect("y").to_owned();
    let moved = format!("{}{}", if y.starts_with('A') { 'B' } else { 'A' }, &y[1..]);
    for (changes, refusal) in [
        (json!({"alg": "ES521"}), UNKNOWN_KEY),
        (json!({"alg": "ES224"}), UNKNOWN_KEY),
        (json!({"alg": "ES384"}), MISMATCH),
        (json!({"alg": "RS256"}), MISMATCH),
        (json!({"use": "enc"}), UNKNOWN_KEY),
        (json!({"y": moved}), MALFORMED),
        (json!({"crv": "P-384", "alg": "ES256"}), MISMATCH),
        (json!({"crv": "P-384", "alg": "ES384"}), MALFORMED),
        (json!({"kty": "RSA", "alg": "ES256"}), MISMATCH),
        (json!({"kty": "RSA", "alg": "RS256"}), MALFORMED),
        (json!({"d": "AAAA"}), PRIVATE_KEY),
        (json!({"kid": "other"}), UNKNOWN_KEY),
    ] {
        assert_eq!(verify(&changed(&key, &changes), &token), Err(refusal), "{changes}");
    }
    assert_eq!(verify(&json!({"keys": []}), &token), Err(UNKNOWN_KEY));
    let of_another = verify(&other.document(), &token);
    assert_eq!(of_another, Err(Refusal::Token(TokenError::SignatureInvalid)));
}
