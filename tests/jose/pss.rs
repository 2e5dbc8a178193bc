//! RSASSA-PSS: signatures over encodings with one fault, signature values out of place, tokens of
//! another algorithm than the key's, and `none` (RFC 8017 §8.1.2, §9.1.2).

use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::rand;
use num_bigint::BigUint;
use trust_fabric::token::Error;

use super::keys::{Key, header, payloads};
use super::pkcs1::hash_of;
use super::rsa_key::{RsaKey, padded};
use super::{Refusal, encode as base64url, signature_of, verify, with_signature};

/// What goes into an encoded message, and what is changed on the way (RFC 8017 §9.1.1).
#[derive(Clone)]
pub struct Encoding {
    hash: &'static digest::Algorithm,
    /// The eight zeros before the digest.
    zeros: [u8; 8],
    digest: Vec<u8>,
    salt: Vec<u8>,
    /// Done to H after it is computed.
    change_hash: Change,
    /// Done to the zeros and the 1 before the salt.
    change_padding: Change,
    /// Done to the salt after it is hashed.
    change_salt: Change,
    change_masked: Change,
    change_encoded: Change,
}

type Change = fn(&mut [u8]);

const NONE: Change = |_| {};

impl Encoding {
    /// The good one, with a salt as long as the hash (RFC 7518 §3.5).
    pub fn of(hash: &'static digest::Algorithm, input: &[u8]) -> Self {
        Self {
            hash,
            zeros: [0; 8],
            digest: digest::digest(hash, input).as_ref().to_vec(),
            salt: random(hash.output_len()),
            change_hash: NONE,
            change_padding: NONE,
            change_salt: NONE,
            change_masked: NONE,
            change_encoded: NONE,
        }
    }

    /// The encoded message for a modulus of `bytes` whose highest bit is set.
    pub fn encode(&self, bytes: usize) -> Vec<u8> {
        let mut hashed = digest::digest(self.hash, &[&self.zeros[..], &self.digest, &self.salt].concat())
            .as_ref()
            .to_vec();
        (self.change_hash)(&mut hashed);
        let mut padding = vec![0; bytes - hashed.len() - self.salt.len() - 1];
        padding[bytes - hashed.len() - self.salt.len() - 2] = 1;
        (self.change_padding)(&mut padding);
        let mut salt = self.salt.clone();
        (self.change_salt)(&mut salt);
        let block = [padding, salt].concat();
        let mask = self.mask(&hashed, block.len());
        let mut masked: Vec<u8> = block.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        (self.change_masked)(&mut masked);
        masked[0] &= 0x7f;
        let mut encoded = [masked, hashed, vec![0xbc]].concat();
        (self.change_encoded)(&mut encoded);
        encoded
    }

    /// MGF1 (RFC 8017 appendix B.2.1).
    fn mask(&self, seed: &[u8], bytes: usize) -> Vec<u8> {
        let block = |counter: u32| {
            let hashed = digest::digest(self.hash, &[seed, &counter.to_be_bytes()].concat());
            hashed.as_ref().to_vec()
        };
        (0..).flat_map(block).take(bytes).collect()
    }
}

fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    rand::fill(&mut random).expect("random bytes");
    random
}

/// The 34 encodings with a fault.
fn faults(good: &Encoding) -> Vec<(&'static str, Encoding)> {
    let mut faults = Vec::new();
    let digests: [Change; 5] =
        [|d| d[0] ^= 1, |d| d[15] ^= 0x10, |d| d.fill(0), |d| d.reverse(), |d| d[31] ^= 1];
    for change in digests {
        let mut digest = good.digest.clone();
        change(&mut digest);
        faults.push(("digest", Encoding { digest, ..good.clone() }));
    }
    // The longest that fits is the modulus less the hash and two bytes.
    for bytes in [0, 1, 20, 31, 33, 222] {
        faults.push(("length of salt", Encoding { salt: random(bytes), ..good.clone() }));
    }
    for zeros in [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1], [0xff; 8]] {
        faults.push(("zeros before the digest", Encoding { zeros, ..good.clone() }));
    }
    let hashes: [Change; 8] = [
        |h| h[0] ^= 1,
        |h| h[0] ^= 0x80,
        |h| h[15] ^= 1,
        |h| h[31] ^= 1,
        |h| h[31] ^= 0x80,
        |h| h.fill(0),
        |h| h.fill(0xff),
        |h| h.reverse(),
    ];
    faults.extend(hashes.map(|change_hash| ("hash", Encoding { change_hash, ..good.clone() })));
    let paddings: [Change; 6] = [
        |p| p[0] ^= 1,
        |p| p[1] ^= 0x80,
        |p| p[189] ^= 1,
        |p| p[190] = 0,
        |p| p[190] = 2,
        |p| p[1..190].fill(0xff),
    ];
    faults.extend(paddings.map(|change_padding| ("padding", Encoding { change_padding, ..good.clone() })));
    let salts: [Change; 2] = [|s| s[0] ^= 1, |s| s[31] ^= 1];
    faults.extend(salts.map(|change_salt| ("salt", Encoding { change_salt, ..good.clone() })));
    faults.push(("masked block", Encoding { change_masked: |m| m.fill(0), ..good.clone() }));
    // The first keeps the message below the modulus, whose two highest bits are 1 and 0 or 1 and 1.
    let messages: [Change; 3] = [|m| m[0] |= 0x80, |m| m[255] = 0, |m| m[255] = 0xcc];
    faults.extend(
        messages.map(|change_encoded| ("encoded message", Encoding { change_encoded, ..good.clone() })),
    );
    faults
}

/// A good encoding whose highest byte leaves room for one bit more below any modulus.
fn low(input: &[u8], bytes: usize) -> Encoding {
    loop {
        let encoding = Encoding::of(&SHA256, input);
        if encoding.encode(bytes)[0] < 0x10 {
            return encoding;
        }
    }
}

#[test]
fn an_encoding_with_a_fault_is_no_signature() {
    let key = RsaKey::generate(2048);
    let document = serde_json::json!({"keys": [key.jwk("PS256")]});
    let input = format!("{}.{}", base64url(header("PS256")), base64url("123400"));
    let outcome = |encoding: &Encoding| {
        let signature = key.sign(&encoding.encode(key.bytes()));
        verify(&document, &format!("{input}.{}", base64url(signature)))
    };
    let good = low(input.as_bytes(), key.bytes());
    for salt in [good.salt.clone(), vec![0; 32], vec![0xff; 32]] {
        let accepted = outcome(&Encoding { salt, ..good.clone() });
        assert_eq!(accepted.as_deref(), Ok(&b"123400"[..]));
    }
    let faults = faults(&good);
    assert_eq!(faults.len(), 34);
    for (at, (fault, encoding)) in faults.iter().enumerate() {
        assert_eq!(outcome(encoding), Err(Refusal::Token(Error::SignatureInvalid)), "{at}: {fault}");
    }
}

#[test]
fn a_signature_value_out_of_place_is_no_signature() {
    let rsa = RsaKey::generate(2048);
    let (modulus, bytes) = (rsa.modulus().clone(), rsa.bytes());
    let key = Key::of_rsa("PS256", rsa);
    let token = key.token(b"123400");
    assert!(verify(&key.document(), &token).is_ok());
    let signature = signature_of(&token);
    let not_reduced = BigUint::from_bytes_be(&signature) + &modulus;
    let values = [
        ("0", vec![0; bytes]),
        ("1", padded(&BigUint::from(1u32), bytes)),
        ("n - 1", padded(&(&modulus - 1u32), bytes)),
        ("n", padded(&modulus, bytes)),
        ("s + n", padded(&not_reduced, bytes)),
        ("zeros before", [&[0, 0][..], &signature].concat()),
        ("zeros behind", [&signature[..], &[0, 0]].concat()),
        ("without the last byte", signature[..bytes - 1].to_vec()),
    ];
    for (value, signature) in values {
        let refused = verify(&key.document(), &with_signature(&token, &signature));
        assert_eq!(refused, Err(Refusal::Token(Error::SignatureInvalid)), "{value}");
    }
}

#[test]
fn good_signatures_over_any_payload_are_accepted() {
    let mut cases = 0;
    for alg in ["PS256", "PS384", "PS512"] {
        let key = Key::rsa(alg);
        for payload in payloads() {
            let token = key.token(&payload);
            assert_eq!(verify(&key.document(), &token), Ok(payload), "{alg}");
            let mut signature = signature_of(&token);
            signature[9] ^= 1;
            let refused = verify(&key.document(), &with_signature(&token, &signature));
            assert_eq!(refused, Err(Refusal::Token(Error::SignatureInvalid)), "{alg}");
            cases += 1;
        }
    }
    assert_eq!(cases, 15, "12 there, and one modified signature of PS384");
}

#[test]
fn another_digest_of_ps512_is_refused() {
    let rsa = RsaKey::generate(2048);
    let document = serde_json::json!({"keys": [rsa.jwk("PS512")]});
    let input = format!("{}.{}", base64url(header("PS512")), base64url("123400"));
    let good = Encoding::of(hash_of("PS512"), input.as_bytes());
    let outcome = |encoding: &Encoding| {
        let signature = rsa.sign(&encoding.encode(rsa.bytes()));
        verify(&document, &format!("{input}.{}", base64url(signature)))
    };
    assert!(outcome(&good).is_ok());
    for at in [0, 63] {
        let mut digest = good.digest.clone();
        digest[at] ^= 1;
        let refused = outcome(&Encoding { digest, ..good.clone() });
        assert_eq!(refused, Err(Refusal::Token(Error::SignatureInvalid)), "byte {at}");
    }
}

#[test]
fn a_key_for_ps512_verifies_no_other_algorithm() {
    let key = Key::rsa("PS512");
    let payload = base64url("123400");
    let mut cases = 0;
    for alg in ["RS256", "RS384", "RS512", "PS256", "PS384"] {
        for (stated, refusal) in [("PS512", Error::SignatureInvalid), (alg, Error::AlgorithmNotAllowed)] {
            let input = format!("{}.{payload}", base64url(header(stated)));
            let token = format!("{input}.{}", base64url(key.sign_as(alg, input.as_bytes())));
            assert_eq!(verify(&key.document(), &token), Err(Refusal::Token(refusal)), "{alg} as {stated}");
            cases += 1;
        }
    }
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"NONE"}"#,
        r#"{"alg":"none","kid":"none"}"#,
        r#"{"alg":"none","kid":"k"}"#,
    ] {
        let refused = verify(&key.document(), &format!("{}.{payload}.", base64url(header)));
        assert_eq!(refused, Err(Refusal::Token(Error::AlgorithmRefused)), "{header}");
        cases += 1;
    }
    assert_eq!(cases, 14);
}
