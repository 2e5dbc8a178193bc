//! ECDSA signatures as two numbers r and s (RFC 7518 §3.4): 64 bytes, each number from 1 to n - 1.

use num_bigint::BigUint;
use trust_fabric::token::Error;

use super::keys::Key;
use super::rsa_key::padded;
use super::{Refusal, signature_of, verify, with_signature};

/// The order of P-256 (SP 800-186 §3.2.1.3).
const ORDER: &[u8] = b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";

fn order() -> BigUint {
    BigUint::parse_bytes(ORDER, 16).expect("a number")
}

/// r and s of a good token.
fn numbers(token: &str) -> (BigUint, BigUint) {
    let signature = signature_of(token);
    (BigUint::from_bytes_be(&signature[..32]), BigUint::from_bytes_be(&signature[32..]))
}

fn written(r: &BigUint, s: &BigUint, bytes: usize) -> Vec<u8> {
    [padded(r, bytes), padded(s, bytes)].concat()
}

#[test]
fn both_signatures_of_a_message_are_accepted() {
    let key = Key::es256();
    let token = key.token(b"foo");
    let (r, s) = numbers(&token);
    let other = with_signature(&token, &written(&r, &(order() - s), 32));
    assert_eq!(verify(&key.document(), &other).as_deref(), Ok(&b"foo"[..]));
}

#[test]
fn a_number_out_of_range_or_of_a_wrong_length_is_no_signature() {
    let key = Key::es256();
    let token = key.token(b"foo");
    let ((r, s), n) = (numbers(&token), order());
    let above = BigUint::from(1u32) << 256;
    let trailing = [padded(&r, 32), vec![0], padded(&s, 32), vec![0]].concat();
    let mut signatures = vec![
        ("33 bytes each".to_owned(), written(&r, &s, 33)),
        ("a zero behind each".to_owned(), trailing),
        ("r + n".to_owned(), written(&(&r + &n), &s, 33)),
        ("s + n".to_owned(), written(&r, &(&s + &n), 33)),
        ("r + 2^256".to_owned(), written(&(&r + &above), &s, 33)),
        ("s + 2^256".to_owned(), written(&r, &(&s + &above), 33)),
        ("288 bytes each".to_owned(), written(&r, &s, 288)),
    ];
    let edges = [("0", BigUint::ZERO), ("1", BigUint::from(1u32)), ("n - 1", &n - 1u32), ("n", n)];
    for (name_of_r, r) in &edges {
        for (name_of_s, s) in &edges {
            signatures.push((format!("r is {name_of_r}, s is {name_of_s}"), written(r, s, 32)));
        }
    }
    assert_eq!(signatures.len(), 23);
    for (case, signature) in signatures {
        let refused = verify(&key.document(), &with_signature(&token, &signature));
        assert_eq!(refused, Err(Refusal::Token(Error::SignatureInvalid)), "{case}");
    }
}
