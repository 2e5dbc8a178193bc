//! The public key to which others encrypt for an agent, read from a JWK (RFC 7517; contract §4).
//!
//! Unlike a key set, which ignores what is not for it, this is somebody's one key: whatever is wrong
//! with it is refused by name. What is kept is only what was checked.

use aws_lc_rs::agreement::{
    self, Algorithm, ECDH_P256, ECDH_P384, ECDH_P521, ParsedPublicKey, PrivateKey, UnparsedPublicKey, X25519,
};
use serde_json::{Map, Value};

use super::jwk::{self, Malformed, bytes, fixed_bytes, optional_text};
use super::{key_set, rsa};

/// Why a key was refused: `<member>: <rule>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A JWK is a JSON object (RFC 7517 §4).
    #[error("key: must be a JWK, a JSON object")]
    NotAJwk,
    /// With this member whoever reads the request can decrypt.
    #[error("key.{0}: makes the key private or symmetric; only a public key is registered")]
    Private(&'static str),
    /// The key is said to be somewhere else, or is vouched for by somebody else.
    #[error("key.{0}: must be absent; certificates are not looked at")]
    Elsewhere(&'static str),
    /// Another `kty`.
    #[error("key.kty: must be EC, OKP or RSA")]
    TypeUnknown,
    /// Another `crv` than these.
    #[error("key.crv: must be {0} for this kty")]
    CurveUnknown(&'static str),
    /// `use` is for another purpose (RFC 7517 §4.2).
    #[error("key.use: must be enc, or absent")]
    Use,
    /// `key_ops` is for another purpose (RFC 7517 §4.3).
    #[error("key.key_ops: must be a list of {0}, each once, or absent")]
    Operations(&'static str),
    /// `RSA1_5`, and `RSA-OAEP` with SHA-1.
    #[error("key.alg: is too weak; must be {0}, or absent")]
    AlgorithmWeak(&'static str),
    /// `alg` is not one that this type of key is for (RFC 8725 §3.1).
    #[error("key.alg: must be {0}, or absent")]
    AlgorithmMismatch(&'static str),
    /// A member is missing, of the wrong type or length, or not base64url.
    #[error(
        "key.{0}: must be a string; as a part of the key, base64url without padding of exactly its length"
    )]
    Malformed(&'static str),
    /// Not a point of its curve: agreeing on a secret with it gives away the other private key.
    #[error("key.x: is not, with y, a point of the curve")]
    OffCurve,
    /// One u-coordinate has several spellings, of which RFC 7748 §5 knows one for senders.
    #[error("key.x: must be less than 2^255 - 19")]
    NotReduced,
    /// Zero, one, minus one, or one of the two of order 8: whatever the other private key is, the secret
    /// is zero (RFC 7748 §6.1).
    #[error("key.x: is a point of small order, with which every shared secret is zero")]
    SmallOrder,
    /// Too short or too long, even, of the generator of CVE-2017-15361, or with an exponent that is no
    /// odd number from 3 to 2^33.
    #[error("key.n: an RSA key must have 2048 to 8192 bits, and no form known to be weak")]
    RsaWeak,
    /// `kid` is not the thumbprint (RFC 7638).
    #[error("key.kid: must be {0}, the thumbprint of the key, or absent")]
    KidMismatch(String),
}

impl From<Malformed> for Error {
    fn from(Malformed(name): Malformed) -> Self {
        Self::Malformed(name)
    }
}

/// A public key that somebody can encrypt to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionKey {
    kid: String,
    jwk: Map<String, Value>,
}

impl EncryptionKey {
    /// Reads a JWK, in this order:
    ///
    /// 1. it is an object, it is public, and it is here
    /// 2. it is of a type and on a curve that is known
    /// 3. `use` and `key_ops`, if they are there, are for encryption
    /// 4. `alg`, if it is there, is one that such a key is for, and strong
    /// 5. the point is on its curve, or the modulus is not weak
    /// 6. `kid`, if it is there, is the thumbprint
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn from_jwk(jwk: &Value) -> Result<Self, Error> {
        let jwk = jwk.as_object().ok_or(Error::NotAJwk)?;
        if let Some(name) = jwk::SECRET_MEMBERS.into_iter().find(|name| jwk.contains_key(*name)) {
            return Err(Error::Private(name));
        }
        if let Some(name) = ["x5u", "x5c"].into_iter().find(|name| jwk.contains_key(*name)) {
            return Err(Error::Elsewhere(name));
        }
        let family = Family::of(jwk)?;
        // RFC 7517 §4.3: `use` and `key_ops`, if both are there, say the same.
        if optional_text(jwk, "use")?.is_some_and(|used| used != "enc") {
            return Err(Error::Use);
        }
        family.check_operations(jwk)?;
        let alg = optional_text(jwk, "alg")?;
        alg.map_or(Ok(()), |alg| family.check_algorithm(alg))?;
        family.check_material(jwk)?;
        let kid = jwk::thumbprint(jwk, family.members())?;
        if optional_text(jwk, "kid")?.is_some_and(|given| given != kid) {
            return Err(Error::KidMismatch(kid));
        }
        let checked = family.members().iter().chain(&["alg"]);
        let mut kept: Map<String, Value> =
            checked.filter_map(|&name| Some((name.to_owned(), jwk.get(name)?.clone()))).collect();
        kept.insert("use".to_owned(), "enc".into());
        kept.insert("kid".to_owned(), kid.clone().into());
        Ok(Self { kid, jwk: kept })
    }

    /// The RFC 7638 thumbprint.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The key with its members that were checked, `use`, and its `kid`.
    #[must_use]
    pub fn jwk(&self) -> &Map<String, Value> {
        &self.jwk
    }
}

/// The types of key that can be encrypted to.
#[derive(Clone, Copy)]
enum Family {
    P256,
    P384,
    P521,
    X25519,
    Rsa,
}

impl Family {
    fn of(jwk: &Map<String, Value>) -> Result<Self, Error> {
        match (optional_text(jwk, "kty")?, optional_text(jwk, "crv")?) {
            (Some("RSA"), _) => Ok(Self::Rsa),
            (Some("EC"), Some("P-256")) => Ok(Self::P256),
            (Some("EC"), Some("P-384")) => Ok(Self::P384),
            (Some("EC"), Some("P-521")) => Ok(Self::P521),
            (Some("EC"), _) => Err(Error::CurveUnknown("P-256, P-384 or P-521")),
            (Some("OKP"), Some("X25519")) => Ok(Self::X25519),
            (Some("OKP"), _) => Err(Error::CurveUnknown("X25519")),
            _ => Err(Error::TypeUnknown),
        }
    }

    /// The members that make the key, in the order of RFC 7638 §3.
    fn members(self) -> &'static [&'static str] {
        match self {
            Self::P256 | Self::P384 | Self::P521 => &["crv", "kty", "x", "y"],
            Self::X25519 => &["crv", "kty", "x"],
            Self::Rsa => &["e", "kty", "n"],
        }
    }

    /// RFC 7517 §4.3: "Duplicate key operation values MUST NOT be present in the array". It may be empty:
    /// browsers write the public half of a pair for key agreement so.
    fn check_operations(self, jwk: &Map<String, Value>) -> Result<(), Error> {
        let Some(operations) = jwk.get("key_ops") else { return Ok(()) };
        let (known, rule) = match self {
            Self::Rsa => (["encrypt", "wrapKey"], "encrypt and wrapKey"),
            _ => (["deriveKey", "deriveBits"], "deriveKey and deriveBits"),
        };
        let refusal = Error::Operations(rule);
        let Some(operations) = operations.as_array() else { return Err(refusal) };
        let is_fitting = |(at, operation): (usize, &Value)| {
            known.iter().any(|known| operation == known)
                && !operations.iter().take(at).any(|o| o == operation)
        };
        if operations.iter().enumerate().all(is_fitting) { Ok(()) } else { Err(refusal) }
    }

    /// RFC 7518 §4.1, without what RFC 8725 §3.2 calls weak.
    fn check_algorithm(self, alg: &str) -> Result<(), Error> {
        let (known, rule): (&[&str], _) = match self {
            Self::Rsa => (
                &["RSA-OAEP-256", "RSA-OAEP-384", "RSA-OAEP-512"],
                "RSA-OAEP-256, RSA-OAEP-384 or RSA-OAEP-512",
            ),
            _ => (
                &["ECDH-ES", "ECDH-ES+A128KW", "ECDH-ES+A192KW", "ECDH-ES+A256KW"],
                "ECDH-ES, ECDH-ES+A128KW, ECDH-ES+A192KW or ECDH-ES+A256KW",
            ),
        };
        match (self, alg) {
            _ if known.contains(&alg) => Ok(()),
            (Self::Rsa, "RSA1_5" | "RSA-OAEP") => Err(Error::AlgorithmWeak(rule)),
            _ => Err(Error::AlgorithmMismatch(rule)),
        }
    }

    fn check_material(self, jwk: &Map<String, Value>) -> Result<(), Error> {
        match self {
            Self::P256 => check_point(jwk, 32, &ECDH_P256),
            Self::P384 => check_point(jwk, 48, &ECDH_P384),
            Self::P521 => check_point(jwk, 66, &ECDH_P521),
            Self::X25519 => check_x25519(&fixed_bytes(jwk, "x", 32)?),
            Self::Rsa => {
                let (n, e) = (bytes(jwk, "n")?, bytes(jwk, "e")?);
                let is_padded = |number: &[u8]| number.first().is_none_or(|byte| *byte == 0);
                rsa::refuse_weak(&n, &e).map_err(|error| match error {
                    key_set::Error::KeyMalformed if is_padded(&n) => Error::Malformed("n"),
                    key_set::Error::KeyMalformed => Error::Malformed("e"),
                    _ => Error::RsaWeak,
                })
            }
        }
    }
}

/// SEC 1 §3.2.2.1: the coordinates are below p and the point is on the curve. The curves have a prime
/// order, so that it has no small one.
fn check_point(
    jwk: &Map<String, Value>,
    coordinate_bytes: usize,
    algorithm: &'static Algorithm,
) -> Result<(), Error> {
    let point = UnparsedPublicKey::new(algorithm, jwk::uncompressed_point(jwk, coordinate_bytes)?);
    ParsedPublicKey::try_from(point).map(drop).map_err(|_| Error::OffCurve)
}

/// What a secret is tried with. RFC 7748 §5 makes every private key 8 times a number that is below the
/// large prime factor of the order: with a point of small order each gives zero, with another none.
const ANY_PRIVATE_KEY: [u8; 32] = [7; 32];

/// Every u-coordinate is on the curve or on its twist, and the function is safe on both.
fn check_x25519(x: &[u8]) -> Result<(), Error> {
    // Little-endian, 2^255 - 19 is 0xed, 30 times 0xff, 0x7f.
    let is_reduced = match x {
        [low, middle @ .., high] => {
            *high < 0x7f || (*high == 0x7f && (*low < 0xed || middle.iter().any(|byte| *byte != 0xff)))
        }
        _ => false,
    };
    if !is_reduced {
        return Err(Error::NotReduced);
    }
    let ours = PrivateKey::from_private_key(&X25519, &ANY_PRIVATE_KEY).map_err(|_| Error::SmallOrder)?;
    // RFC 7748 §6.1: "check, without leaking extra information about the value of K, whether K is the
    // all-zero value and abort if so"; the cryptographic library does.
    agreement::agree(&ours, UnparsedPublicKey::new(&X25519, x), Error::SmallOrder, |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;
    use crate::json;
    use crate::token::testing::{Signer, with};

    const ECDH: &str = "ECDH-ES, ECDH-ES+A128KW, ECDH-ES+A192KW or ECDH-ES+A256KW";
    const OAEP: &str = "RSA-OAEP-256, RSA-OAEP-384 or RSA-OAEP-512";

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn decode(jwk: &Value, name: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(jwk[name].as_str().expect("text")).expect("base64url")
    }

    fn public(algorithm: &'static Algorithm) -> Vec<u8> {
        let private = PrivateKey::generate(algorithm).expect("key");
        private.compute_public_key().expect("public").as_ref().to_vec()
    }

    fn ec(crv: &str, algorithm: &'static Algorithm) -> Value {
        let point = public(algorithm);
        let (x, y) = point[1..].split_at(point.len() / 2);
        json!({"kty": "EC", "crv": crv, "x": encode(x), "y": encode(y)})
    }

    fn x25519() -> Value {
        json!({"kty": "OKP", "crv": "X25519", "x": encode(public(&X25519))})
    }

    fn rsa() -> Value {
        let mut jwk = Signer::rsa().jwk("");
        jwk.as_object_mut().expect("object").remove("kid");
        jwk
    }

    /// A key of each kind that is taken, with the length of its coordinates.
    fn curves() -> [(Value, usize); 3] {
        [(ec("P-256", &ECDH_P256), 32), (ec("P-384", &ECDH_P384), 48), (ec("P-521", &ECDH_P521), 66)]
    }

    fn each() -> Vec<Value> {
        curves().into_iter().map(|(jwk, _)| jwk).chain([x25519(), rsa()]).collect()
    }

    #[track_caller]
    fn refused(jwk: &Value) -> Error {
        EncryptionKey::from_jwk(jwk).expect_err("must be refused")
    }

    #[test]
    fn what_is_kept_of_a_key_is_what_was_checked() {
        for jwk in each() {
            let key = EncryptionKey::from_jwk(&jwk).expect("a good key");
            let expected = with(&jwk, &json!({"use": "enc", "kid": key.kid()}));
            assert_eq!(Value::Object(key.jwk().clone()), expected);
            // What was kept is taken again, and is the same key.
            assert_eq!(EncryptionKey::from_jwk(&expected).expect("again"), key);
            let more = json!({
                "use": "enc", "kid": key.kid(), "ext": true, "key_ops": [], "note": {"a": [1]}, "x5t": "AAAA",
            });
            assert_eq!(EncryptionKey::from_jwk(&with(&jwk, &more)).expect("unknown members"), key);
        }
    }

    #[test]
    fn the_kid_is_the_thumbprint_of_rfc_7638() {
        // RFC 8037 §A.3 hashes an Ed25519 key; the X25519 key of §A.6, hashed by hand as RFC 7638 §3 says.
        let jwk = json!({"kty": "OKP", "crv": "X25519", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"});
        let text = r#"{"crv":"X25519","kty":"OKP","x":"3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"}"#;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        assert_eq!(EncryptionKey::from_jwk(&jwk).expect("key").kid(), encode(digest));
        let rsa = rsa();
        let key = EncryptionKey::from_jwk(&rsa).expect("key");
        assert_eq!(Ok(key.kid().to_owned()), key_set::thumbprint(&rsa));
        for other in ["", "mine", &"k".repeat(10_000)] {
            let expected = Error::KidMismatch(key.kid().to_owned());
            assert_eq!(refused(&with(&rsa, &json!({"kid": other}))), expected);
        }
        assert_eq!(refused(&with(&rsa, &json!({"kid": 1}))), Error::Malformed("kid"));
    }

    #[test]
    fn refuses_each_private_member_of_each_key() {
        for jwk in each() {
            for name in jwk::SECRET_MEMBERS {
                for value in [json!("AAAA"), json!(null), json!([{}])] {
                    let mut private = jwk.clone();
                    private[name] = value;
                    assert_eq!(refused(&private), Error::Private(name), "{private}");
                }
            }
        }
        let symmetric = json!({"kty": "oct", "k": "AAAA", "use": "enc"});
        assert_eq!(refused(&symmetric), Error::Private("k"));
        assert_eq!(refused(&json!({"kty": "oct", "use": "enc"})), Error::TypeUnknown);
    }

    #[test]
    fn refuses_a_key_that_is_elsewhere() {
        for (name, value) in [("x5u", json!("https://evil.example/key")), ("x5c", json!(["MIIB"]))] {
            let mut jwk = x25519();
            jwk[name] = value;
            assert_eq!(refused(&jwk), Error::Elsewhere(name));
        }
    }

    #[test]
    fn refuses_another_type_or_curve_and_keys_that_only_sign() {
        let ed25519 = Signer::ed25519().jwk("");
        let cases = [
            (ed25519, Error::CurveUnknown("X25519")),
            (with(&x25519(), &json!({"crv": "X448"})), Error::CurveUnknown("X25519")),
            (with(&x25519(), &json!({"crv": null})), Error::CurveUnknown("X25519")),
            (ec("secp256k1", &ECDH_P256), Error::CurveUnknown("P-256, P-384 or P-521")),
            (ec("p-256", &ECDH_P256), Error::CurveUnknown("P-256, P-384 or P-521")),
            (with(&rsa(), &json!({"kty": "rsa"})), Error::TypeUnknown),
            (with(&rsa(), &json!({"kty": "AKP"})), Error::TypeUnknown),
            (with(&rsa(), &json!({"kty": null})), Error::TypeUnknown),
            (with(&rsa(), &json!({"kty": 1})), Error::Malformed("kty")),
            (with(&x25519(), &json!({"crv": ["X25519"]})), Error::Malformed("crv")),
        ];
        for (jwk, expected) in cases {
            assert_eq!(refused(&jwk), expected, "{jwk}");
        }
        for no_object in [json!("key"), json!([]), json!(null), json!(1)] {
            assert_eq!(refused(&no_object), Error::NotAJwk);
        }
    }

    #[test]
    fn refuses_a_use_or_operations_that_are_not_for_encryption() {
        let (ec, rsa) = (ec("P-256", &ECDH_P256), rsa());
        for used in ["sig", "ENC", "", "jwt-svid"] {
            assert_eq!(refused(&with(&ec, &json!({"use": used}))), Error::Use, "{used}");
        }
        assert_eq!(refused(&with(&ec, &json!({"use": ["enc"]}))), Error::Malformed("use"));
        let derive = Error::Operations("deriveKey and deriveBits");
        let wrap = Error::Operations("encrypt and wrapKey");
        for (jwk, operations, expected) in [
            (&ec, json!(["verify"]), &derive),
            (&ec, json!(["deriveKey", "sign"]), &derive),
            (&ec, json!(["wrapKey"]), &derive),
            (&ec, json!(["deriveBits", "deriveBits"]), &derive),
            (&ec, json!("deriveBits"), &derive),
            (&ec, json!([["deriveBits"]]), &derive),
            (&rsa, json!(["decrypt"]), &wrap),
            (&rsa, json!(["unwrapKey", "wrapKey"]), &wrap),
            (&rsa, json!(["deriveKey"]), &wrap),
            (&rsa, json!({}), &wrap),
        ] {
            for used in [json!(null), json!("enc")] {
                let jwk = with(jwk, &json!({"key_ops": operations, "use": used}));
                assert_eq!(refused(&jwk), *expected, "{jwk}");
            }
        }
        for (jwk, operations) in [
            (&ec, json!(["deriveKey"])),
            (&ec, json!(["deriveBits", "deriveKey"])),
            (&rsa, json!(["wrapKey", "encrypt"])),
        ] {
            let key =
                EncryptionKey::from_jwk(&with(jwk, &json!({"key_ops": operations}))).expect("a good key");
            assert_eq!(key.jwk().get("key_ops"), None);
        }
    }

    #[test]
    fn refuses_an_algorithm_that_signs_is_weak_or_is_for_another_type() {
        let (ec, x25519, rsa) = (ec("P-521", &ECDH_P521), x25519(), rsa());
        for alg in ["ECDH-ES", "ECDH-ES+A128KW", "ECDH-ES+A192KW", "ECDH-ES+A256KW"] {
            for jwk in [&ec, &x25519] {
                let key = EncryptionKey::from_jwk(&with(jwk, &json!({"alg": alg}))).expect(alg);
                assert_eq!(key.jwk()["alg"], alg);
            }
            assert_eq!(refused(&with(&rsa, &json!({"alg": alg}))), Error::AlgorithmMismatch(OAEP));
        }
        for alg in ["RSA-OAEP-256", "RSA-OAEP-384", "RSA-OAEP-512"] {
            assert!(EncryptionKey::from_jwk(&with(&rsa, &json!({"alg": alg}))).is_ok(), "{alg}");
            assert_eq!(refused(&with(&ec, &json!({"alg": alg}))), Error::AlgorithmMismatch(ECDH));
        }
        for alg in ["RSA1_5", "RSA-OAEP"] {
            assert_eq!(refused(&with(&rsa, &json!({"alg": alg}))), Error::AlgorithmWeak(OAEP));
            assert_eq!(refused(&with(&ec, &json!({"alg": alg}))), Error::AlgorithmMismatch(ECDH));
        }
        for alg in ["ES256", "RS256", "EdDSA", "none", "", "dir", "A256KW", "HPKE-0", "ecdh-es"] {
            assert_eq!(refused(&with(&rsa, &json!({"alg": alg}))), Error::AlgorithmMismatch(OAEP), "{alg}");
            assert_eq!(
                refused(&with(&x25519, &json!({"alg": alg}))),
                Error::AlgorithmMismatch(ECDH),
                "{alg}"
            );
        }
        assert_eq!(refused(&with(&ec, &json!({"alg": ["ECDH-ES"]}))), Error::Malformed("alg"));
    }

    #[test]
    fn refuses_a_point_off_its_curve_or_at_infinity() {
        for (jwk, coordinate_bytes) in curves() {
            let y = decode(&jwk, "y");
            for (name, bit) in [("x", 0), ("y", 0), ("y", coordinate_bytes - 1)] {
                let mut moved = decode(&jwk, name);
                moved[bit] ^= 1;
                let off = with(&jwk, &json!({ name: encode(moved) }));
                assert_eq!(refused(&off), Error::OffCurve, "{off}");
            }
            let zero = encode(vec![0; coordinate_bytes]);
            for (x, y) in [(&zero, &zero), (&encode(&y), &zero)] {
                assert_eq!(refused(&with(&jwk, &json!({"x": x, "y": y}))), Error::OffCurve);
            }
            let swapped = json!({"x": jwk["y"], "y": jwk["x"]});
            assert_eq!(refused(&with(&jwk, &swapped)), Error::OffCurve);
        }
        // A point of one curve under the name of another is not on it, if it has the length at all.
        let moved = with(&ec("P-256", &ECDH_P256), &json!({"crv": "P-384"}));
        assert_eq!(refused(&moved), Error::Malformed("x"));
    }

    #[test]
    fn refuses_a_coordinate_that_is_not_below_the_prime() {
        // The points with x = 0 + p and y: the same as with x = 0, which is on the curve P-256, and
        // written with x = p they would be a second spelling of one key.
        let prime = "ffffffff00000001000000000000000000000000ffffffffffffffffffffffff";
        let y = "66485c780e2f83d72433bd5d84a06bb6541c2af31dae871728bf856a174f93f4";
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
                .collect()
        };
        let jwk = |x: &[u8]| json!({"kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(bytes(y))});
        assert!(EncryptionKey::from_jwk(&jwk(&[0; 32])).is_ok());
        assert_eq!(refused(&jwk(&bytes(prime))), Error::OffCurve);
        for (good, coordinate_bytes) in curves() {
            let largest = with(&good, &json!({"x": encode(vec![0xff; coordinate_bytes])}));
            assert_eq!(refused(&largest), Error::OffCurve);
        }
    }

    #[test]
    fn refuses_coordinates_of_another_length_or_encoding() {
        for (jwk, _) in curves().into_iter().chain([(x25519(), 32)]) {
            for name in ["x", "y"] {
                let Some(text) = jwk[name].as_str() else { continue };
                let bytes = decode(&jwk, name);
                let cases = [
                    json!(encode(&bytes[1..])),
                    json!(encode([&[0], bytes.as_slice()].concat())),
                    json!(encode([bytes.as_slice(), &[0]].concat())),
                    json!(""),
                    json!(format!("{text}=")),
                    json!(format!(" {text}")),
                    json!(format!("{text}\n")),
                    json!("+/".repeat(text.len() / 2)),
                    json!(encode(vec![0; 48 * 1024])),
                    json!(null),
                    json!(1),
                    json!({ "x": text }),
                    json!([text]),
                ];
                for case in cases {
                    let mut bad = jwk.clone();
                    bad[name] = case;
                    assert_eq!(refused(&bad), Error::Malformed(name), "{bad}");
                }
                assert_eq!(refused(&with(&jwk, &json!({ name: null }))), Error::Malformed(name));
            }
        }
        let padded = with(&rsa(), &json!({"n": URL_SAFE.encode(decode(&rsa(), "n"))}));
        assert_eq!(refused(&padded), Error::Malformed("n"));
    }

    #[test]
    fn refuses_the_points_of_small_order_of_curve25519() {
        let hex = |text: &str| -> [u8; 32] {
            std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
        };
        let mut one = [0; 32];
        one[0] = 1;
        let mut prime = [0xff; 32];
        (prime[0], prime[31]) = (0xed, 0x7f);
        let mut minus_one = prime;
        minus_one[0] = 0xec;
        let jwk = |x: [u8; 32]| json!({"kty": "OKP", "crv": "X25519", "x": encode(x)});
        for point in [
            [0; 32],
            one,
            hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
            hex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
            minus_one,
        ] {
            assert_eq!(refused(&jwk(point)), Error::SmallOrder, "{point:?}");
            // RFC 7748 §5 masks the last bit: a second spelling of the same point.
            let mut second = point;
            second[31] |= 0x80;
            assert_eq!(refused(&jwk(second)), Error::NotReduced, "{second:?}");
        }
        let mut above = prime;
        above[0] = 0xee;
        for spelling in [prime, above, [0xff; 32]] {
            assert_eq!(refused(&jwk(spelling)), Error::NotReduced, "{spelling:?}");
        }
        // The base point, and the largest coordinate but one.
        let mut base = [0; 32];
        base[0] = 9;
        let mut largest = prime;
        largest[0] = 0xeb;
        for good in [base, largest] {
            assert!(EncryptionKey::from_jwk(&jwk(good)).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn refuses_a_weak_rsa_key() {
        let jwk = rsa();
        let modulus = decode(&jwk, "n");
        let mut even = modulus.clone();
        even[255] &= 0xfe;
        let mut short = modulus.clone();
        short[0] &= 0x7f;
        short[0] |= 1;
        for n in [modulus[..128].to_vec(), even, short, vec![0xff; 1025], vec![0xff; 48 * 1024]] {
            assert_eq!(refused(&with(&jwk, &json!({"n": encode(n)}))), Error::RsaWeak);
        }
        for e in [&[1][..], &[2], &[1, 0, 0], &[0xff; 5], &[1; 9]] {
            assert_eq!(refused(&with(&jwk, &json!({"e": encode(e)}))), Error::RsaWeak, "{e:?}");
        }
        let padded = [&[0], modulus.as_slice()].concat();
        assert_eq!(refused(&with(&jwk, &json!({"n": encode(padded)}))), Error::Malformed("n"));
        assert_eq!(refused(&with(&jwk, &json!({"e": "AAEAAQ"}))), Error::Malformed("e"));
        for name in ["n", "e"] {
            assert_eq!(refused(&with(&jwk, &json!({ name: null }))), Error::Malformed(name));
        }
    }

    #[test]
    fn a_member_that_is_given_twice_never_gets_here() {
        let text = r#"{"kty":"OKP","crv":"X25519","x":"AAAA","x":"AAAA"}"#;
        assert!(json::parse(text.as_bytes()).is_err());
    }
}
