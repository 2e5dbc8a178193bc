//! The compact form: parts modified, missing or too many, and keys taken for what they are not.

use serde_json::json;
use trust_fabric::token::Error;
use trust_fabric::token::jws::Compact;

use super::keys::{Key, header};
use super::{Refusal, encode, verify};

/// Every way to spoil a token that is `header.payload.signature`, with the refusal. The first is good.
fn forms(token: &str, spoiled_header: &str) -> Vec<(&'static str, String, Option<Error>)> {
    let [header, payload, signature] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("a compact JWS has three parts")
    };
    let other = |part: &str| format!("{}{}", if part.starts_with('X') { 'Y' } else { 'X' }, &part[1..]);
    let unsigned = encode(r#"{"alg":"none","kid":"k"}"#);
    let json = json!({"payload": payload, "signatures": [
        {"protected": header, "header": {"unknown": "x"}, "signature": signature}
    ]});
    let not_compact = Some(Error::NotCompact);
    let no_header = Some(Error::HeaderMalformed);
    let no_signature = Some(Error::SignatureInvalid);
    vec![
        ("good", token.to_owned(), None),
        ("modified signature", format!("{header}.{payload}.{}", other(signature)), no_signature.clone()),
        ("no signature", format!("{header}.{payload}."), no_signature.clone()),
        ("no signature, no dot", format!("{header}.{payload}"), not_compact.clone()),
        ("modified payload", format!("{header}.{}.{signature}", other(payload)), no_signature.clone()),
        ("no payload", format!("{header}..{signature}"), no_signature),
        ("no payload, no dot", format!("{header}.{signature}"), not_compact.clone()),
        ("modified header", format!("{spoiled_header}.{payload}.{signature}"), Some(Error::UnknownKey)),
        ("no header", format!(".{payload}.{signature}"), no_header.clone()),
        ("no header, no dot", format!("{payload}.{signature}"), not_compact.clone()),
        ("no header, no signature", format!(".{payload}."), no_header),
        ("only a payload", payload.to_owned(), not_compact.clone()),
        ("nothing", String::new(), not_compact.clone()),
        ("an empty part more", format!("{token}."), not_compact.clone()),
        ("a part more", format!("{token}.foo"), not_compact.clone()),
        ("none", format!("{unsigned}.{payload}."), Some(Error::AlgorithmRefused)),
        ("JSON serialization", json.to_string(), not_compact),
    ]
}

/// A header that names another key.
fn spoiled(alg: &str) -> String {
    encode(header(alg).replace(r#""k""#, r#""X""#))
}

#[test]
fn only_the_token_that_was_signed_is_accepted() {
    for key in [Key::es256(), Key::rsa("RS256")] {
        let forms = forms(&key.token(b"foo"), &spoiled(key.alg));
        assert_eq!(forms.len(), 17);
        for (form, text, refusal) in forms {
            let expected = refusal.map_or_else(|| Ok(b"foo".to_vec()), |error| Err(Refusal::Token(error)));
            assert_eq!(verify(&key.document(), &text), expected, "{} {form}", key.alg);
        }
    }
}

#[test]
fn no_form_of_a_token_with_a_mac_is_accepted() {
    let key = Key::mac("HS256", &[7; 32]);
    let forms = forms(&key.token(b"foo"), &spoiled(key.alg));
    assert_eq!(forms.len(), 17);
    for (form, text, refusal) in forms {
        let malformed = |error: &Error| matches!(error, Error::NotCompact | Error::HeaderMalformed);
        let expected = refusal.filter(malformed).unwrap_or(Error::AlgorithmRefused);
        assert_eq!(Compact::parse(&text).err(), Some(expected), "{form}");
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for key in [Key::es256(), Key::rsa("RS256")] {
        for secret in [key.public_bytes(), key.jwk().to_string().into_bytes()] {
            let token = Key::mac("HS256", &secret).token(b"foo");
            assert_eq!(verify(&key.document(), &token), Err(Refusal::Token(Error::AlgorithmRefused)));
        }
    }
}

#[test]
fn a_key_that_comes_with_the_token_verifies_nothing() {
    let (key, attacker) = (Key::es256(), Key::es256());
    for (document, claimed) in [(key.document(), attacker.jwk()), (attacker.document(), attacker.jwk())] {
        let header = json!({"alg": "ES256", "kid": "k", "jwk": claimed}).to_string();
        let token = attacker.token_with_header(&header, b"foo");
        assert_eq!(verify(&document, &token), Err(Refusal::Token(Error::KeyInToken)));
    }
}
