//! The public key to which others encrypt for an agent, read from a JWK (RFC 7517; contract §4).
//!
//! A key set ignores keys of other kinds. This is the one key of an agent, so each defect is refused with the name of
//! its field, and only checked fields are stored.

use aws_lc_rs::agreement::{
    self, Algorithm, ECDH_P256, ECDH_P384, ECDH_P521, ParsedPublicKey, PrivateKey, UnparsedPublicKey, X25519,
};
use serde_json::{Map, Value};

use super::jwk::{self, Malformed, bytes, fixed_bytes, optional_text};
use super::{key_set, rsa};

/// Refusal of a key, as `<field>: <rule>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A JWK is a JSON object (RFC 7517 §4).
    #[error("key: must be a JWK, a JSON object")]
    NotAJwk,
    /// A field that makes the key private.
    #[error("key.{0}: makes the key private or symmetric; only a public key is registered")]
    Private(&'static str),
    /// The key is located elsewhere or comes with a certificate.
    #[error("key.{0}: must be absent; certificates are not evaluated")]
    Elsewhere(&'static str),
    /// Unsupported `kty`.
    #[error("key.kty: must be EC, OKP or RSA")]
    TypeUnknown,
    /// Unsupported `crv`.
    #[error("key.crv: must be {0} for this kty")]
    CurveUnknown(&'static str),
    /// `use` states another purpose (RFC 7517 §4.2).
    #[error("key.use: must be enc, or absent")]
    Use,
    /// `key_ops` states another purpose (RFC 7517 §4.3).
    #[error("key.key_ops: must be a list of {0}, each once, or absent")]
    Operations(&'static str),
    /// `RSA1_5`, and `RSA-OAEP` with SHA-1.
    #[error("key.alg: is too weak; must be {0}, or absent")]
    AlgorithmWeak(&'static str),
    /// `alg` does not fit the key type (RFC 8725 §3.1).
    #[error("key.alg: must be {0}, or absent")]
    AlgorithmMismatch(&'static str),
    /// A field is absent, of a wrong type or length, or not base64url.
    #[error(
        "key.{0}: must be a string; as a part of the key, base64url without padding of exactly its length"
    )]
    Malformed(&'static str),
    /// Not a point of its curve: key agreement with it would disclose the other private key.
    #[error("key.x: is not, with y, a point of the curve")]
    OffCurve,
    /// RFC 7748 §5 accepts several encodings of one u-coordinate; senders use the reduced one.
    #[error("key.x: must be less than 2^255 - 19")]
    NotReduced,
    /// A point of order 1, 2, 4 or 8: every shared secret with it is zero (RFC 7748 §6.1).
    #[error("key.x: is a point of small order, with which every shared secret is zero")]
    SmallOrder,
    /// Too short or too long, even, from the generator of CVE-2017-15361, or with an exponent that is not an odd number
    /// from 3 to 2^33.
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

/// A checked public key for encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionKey {
    kid: String,
    jwk: Map<String, Value>,
}

impl EncryptionKey {
    /// Reads a JWK, in this order:
    ///
    /// 1. it is an object and a public key, included by value
    /// 2. its type and curve are supported
    /// 3. `use` and `key_ops`, if present, are for encryption
    /// 4. `alg`, if present, fits the key and is strong
    /// 5. the point is on its curve, or the modulus is not weak
    /// 6. `kid`, if present, is the thumbprint
    pub fn from_jwk(jwk: &Value) -> Result<Self, Error> {
        let jwk = jwk.as_object().ok_or(Error::NotAJwk)?;
        if let Some(name) = jwk::SECRET_FIELDS.into_iter().find(|name| jwk.contains_key(*name)) {
            return Err(Error::Private(name));
        }
        if let Some(name) = ["x5u", "x5c"].into_iter().find(|name| jwk.contains_key(*name)) {
            return Err(Error::Elsewhere(name));
        }
        let family = Family::of(jwk)?;
        // RFC 7517 §4.3: `use` and `key_ops`, if both are present, must agree.
        if optional_text(jwk, "use")?.is_some_and(|used| used != "enc") {
            return Err(Error::Use);
        }
        family.check_operations(jwk)?;
        let alg = optional_text(jwk, "alg")?;
        alg.map_or(Ok(()), |alg| family.check_algorithm(alg))?;
        family.check_material(jwk)?;
        let kid = jwk::thumbprint(jwk, family.fields())?;
        if optional_text(jwk, "kid")?.is_some_and(|stated| stated != kid) {
            return Err(Error::KidMismatch(kid));
        }
        let checked = family.fields().iter().chain(&["alg"]);
        let mut stored: Map<String, Value> =
            checked.filter_map(|&name| Some((name.to_owned(), jwk.get(name)?.clone()))).collect();
        stored.insert("use".to_owned(), "enc".into());
        stored.insert("kid".to_owned(), kid.clone().into());
        Ok(Self { kid, jwk: stored })
    }

    /// The RFC 7638 thumbprint.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The checked fields, `use` and `kid`.
    #[must_use]
    pub fn jwk(&self) -> &Map<String, Value> {
        &self.jwk
    }
}

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

    /// The fields of the RFC 7638 thumbprint, in its order.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::P256 | Self::P384 | Self::P521 => &["crv", "kty", "x", "y"],
            Self::X25519 => &["crv", "kty", "x"],
            Self::Rsa => &["e", "kty", "n"],
        }
    }

    /// RFC 7517 §4.3: "Duplicate key operation values MUST NOT be present in the array". Browsers export the public half
    /// of a key-agreement pair with an empty array.
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

    /// RFC 7518 §4.1 without the algorithms that RFC 8725 §3.2 calls weak.
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

/// SEC 1 §3.2.2.1: both coordinates are below p and the point is on the curve. These curves have prime order, so no
/// point has a small one.
fn check_point(
    jwk: &Map<String, Value>,
    coordinate_bytes: usize,
    algorithm: &'static Algorithm,
) -> Result<(), Error> {
    let point = UnparsedPublicKey::new(algorithm, jwk::uncompressed_point(jwk, coordinate_bytes)?);
    ParsedPublicKey::try_from(point).map(drop).map_err(|_| Error::OffCurve)
}

/// Private key of the trial agreement. RFC 7748 §5 makes every private key a multiple of 8, so a point of small order
/// yields zero with each of them, and any other point with none.
const ANY_PRIVATE_KEY: [u8; 32] = [7; 32];

/// Every u-coordinate is on the curve or on its twist, and X25519 is safe on both.
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

    /// A key of each curve, with its coordinate length.
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
    fn only_checked_fields_are_stored() {
        for jwk in each() {
            let key = EncryptionKey::from_jwk(&jwk).expect("a good key");
            let expected = with(&jwk, &json!({"use": "enc", "kid": key.kid()}));
            assert_eq!(Value::Object(key.jwk().clone()), expected);
            assert_eq!(EncryptionKey::from_jwk(&expected).expect("again"), key);
            let more = json!({
                "use": "enc", "kid": key.kid(), "ext": true, "key_ops": [], "note": {"a": [1]}, "x5t": "AAAA",
            });
            assert_eq!(EncryptionKey::from_jwk(&with(&jwk, &more)).expect("unknown members"), key);
        }
    }

    #[test]
    fn the_kid_is_the_thumbprint_of_rfc_7638() {
        // RFC 8037 §A.3 hashes an Ed25519 key; this is the X25519 key of §A.6, hashed as RFC 7638 §3 requires.
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
    fn private_field_of_any_key_is_refused() {
        for jwk in each() {
            for name in jwk::SECRET_FIELDS {
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
    fn key_by_reference_is_refused() {
        for (name, value) in [("x5u", json!("https://evil.example/key")), ("x5c", json!(["MIIB"]))] {
            let mut jwk = x25519();
            jwk[name] = value;
            assert_eq!(refused(&jwk), Error::Elsewhere(name));
        }
    }

    #[test]
    fn unsupported_type_or_curve_is_refused() {
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
    fn use_or_operations_not_for_encryption_are_refused() {
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
    fn signing_weak_or_mismatched_algorithm_is_refused() {
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
    fn point_off_its_curve_or_at_infinity_is_refused() {
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
        // A point of one curve is not on another, even where the coordinate length fits.
        let moved = with(&ec("P-256", &ECDH_P256), &json!({"crv": "P-384"}));
        assert_eq!(refused(&moved), Error::Malformed("x"));
    }

    #[test]
    fn coordinate_not_below_the_prime_is_refused() {
        // The points with x = 0 + p and y: equal to those with x = 0 on P-256, so x = p would be a second encoding of one key.
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
    fn coordinate_of_wrong_length_or_encoding_is_refused() {
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
    fn point_of_small_order_on_curve25519_is_refused() {
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
            // RFC 7748 §5 masks the last bit: a second encoding of the same point.
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
    fn weak_rsa_key_is_refused() {
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
    fn duplicate_field_is_refused_by_the_json_reader() {
        let text = r#"{"kty":"OKP","crv":"X25519","x":"AAAA","x":"AAAA"}"#;
        assert!(json::parse(text.as_bytes()).is_err());
    }
}
