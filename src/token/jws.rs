//! The only parser of compact JWS (RFC 7515 §7.1).
//!
//! A [`Compact`] gives access to its header and to an unverified hint at its issuer. The payload is in [`Signed`],
//! which only a valid signature creates.

use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::Error;
use super::encoding::{decode, sha256_of};
use super::key_set::VerifyingKey;
use crate::id::LogPosition;
use crate::{json, limits};

/// Supported signature algorithms, in the order of RFC 7518 §3.1, then RFC 8037. `none` and HMAC have no variant (RFC
/// 8725 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE", parse_err_fn = algorithm_refused, parse_err_ty = Error)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    Ps256,
    Ps384,
    Ps512,
    /// Ed25519, spelled `EdDSA` (RFC 8037) or `Ed25519` (RFC 9864).
    #[strum(serialize = "Ed25519", to_string = "EdDSA")]
    EdDsa,
}

fn algorithm_refused(_: &str) -> Error {
    Error::AlgorithmRefused
}

/// The header fields that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub algorithm: Algorithm,
    /// `typ`, as spelled.
    pub typ: Option<String>,
    /// `kid`: up to `KID_BYTES_MAX` of printable ASCII; looked up in a map, never used as a path.
    pub kid: Option<String>,
    /// Whether there are fields besides `alg`, `typ` and `kid` (JWT-SVID §2 allows none).
    pub has_other_fields: bool,
}

impl Header {
    /// Refuses forbidden fields before any field is used.
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        let Ok(Value::Object(mut fields)) = json::parse(bytes) else { return Err(Error::HeaderMalformed) };
        // RFC 7515 §4.1.11: an extension that must be understood and is not makes the JWS invalid.
        if ["crit", "b64", "zip"].iter().any(|name| fields.contains_key(*name)) {
            return Err(Error::HeaderExtension);
        }
        // Contract §3: "no key taken from the token (`jwk`, `jku`, `x5u`, `x5c`)". A thumbprint (`x5t`) is no key; common
        // issuers send it, so it is ignored like any unknown field.
        if ["jwk", "jku", "x5u", "x5c"].iter().any(|name| fields.contains_key(*name)) {
            return Err(Error::KeyInToken);
        }
        let algorithm = match text_field(&mut fields, "alg")? {
            Some(name) => name.parse()?,
            None => return Err(Error::AlgorithmRefused),
        };
        let typ = text_field(&mut fields, "typ")?;
        let kid = text_field(&mut fields, "kid")?;
        if kid.as_deref().is_some_and(|kid| !is_kid(kid)) {
            return Err(Error::KidMalformed);
        }
        Ok(Self { algorithm, typ, kid, has_other_fields: !fields.is_empty() })
    }
}

fn text_field(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Error> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::HeaderMalformed),
    }
}

/// Whether `text` may be a `kid`: 1 to `KID_BYTES_MAX` of printable ASCII.
pub(super) fn is_kid(text: &str) -> bool {
    (1..=limits::KID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}

/// A well-formed compact JWS, not verified.
pub struct Compact<'t> {
    text: &'t str,
    signing_input: &'t str,
    header: Header,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// The unverified issuer of a token, only for choosing the keys that verify it. A claim that is no text is absent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct IssuerHint {
    #[serde(default, deserialize_with = "text_or_none")]
    pub iss: Option<String>,
    #[serde(default, deserialize_with = "text_or_none")]
    pub sub: Option<String>,
}

fn text_or_none<'d, D: Deserializer<'d>>(claim: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(claim)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

impl<'t> Compact<'t> {
    /// Checks size, then form, then header.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NotCompact`], [`Error::HeaderMalformed`],
    /// [`Error::HeaderExtension`], [`Error::KeyInToken`], [`Error::AlgorithmRefused`] or
    /// [`Error::KidMalformed`].
    pub fn parse(text: &'t str) -> Result<Self, Error> {
        if text.len() > limits::TOKEN_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        let (signing_input, signature) = text.rsplit_once('.').ok_or(Error::NotCompact)?;
        let (header, payload) = signing_input.split_once('.').ok_or(Error::NotCompact)?;
        // With a fourth part the payload would contain a dot, which is not base64url.
        let (header, payload, signature) = (decode(header)?, decode(payload)?, decode(signature)?);
        Ok(Self { text, signing_input, header: Header::read(&header)?, payload, signature })
    }

    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// SHA-256 of the whole token, signature included, with the thumbprint of a key and the issuer that it belongs to. No
    /// token and no thumbprint has a line break.
    #[must_use]
    pub fn digest_under(&self, thumbprint: &str, iss: &str) -> [u8; 32] {
        sha256_of(&[self.text, "\n", thumbprint, "\n", iss].map(str::as_bytes))
    }

    /// `iss` and `sub`, unverified. The other claims are checked once the signature is verified.
    ///
    /// # Errors
    /// [`Error::PayloadMalformed`].
    pub fn unverified_issuer(&self) -> Result<IssuerHint, Error> {
        json::peek(&self.payload).ok_or(Error::PayloadMalformed)
    }

    /// `idx`, unverified: only to decide whether an unknown key may be a new one.
    #[must_use]
    pub fn unverified_position(&self) -> Option<LogPosition> {
        let Ok(Value::Object(claims)) = json::parse(&self.payload) else { return None };
        claims.get("idx")?.as_str()?.parse().ok()
    }

    /// Verifies the signature.
    ///
    /// # Errors
    /// [`Error::AlgorithmNotAllowed`] if the key is not for the header's algorithm,
    /// [`Error::SignatureInvalid`].
    pub fn verify(&self, key: &VerifyingKey) -> Result<Signed, Error> {
        key.verify(self.header.algorithm, self.signing_input.as_bytes(), &self.signature)?;
        Ok(Signed { header: self.header.clone(), payload: self.payload.clone() })
    }
}

/// Without the token: one in a log could be used.
impl fmt::Debug for Compact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compact").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Header and payload under a valid signature. Only [`Compact::verify`] creates one.
pub struct Signed {
    header: Header,
    payload: Vec<u8>,
}

impl Signed {
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The payload as signed.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::token::testing::Signer;

    fn refusal(text: &str) -> Error {
        Compact::parse(text).expect_err("must be refused")
    }

    fn with_header(header: &Value) -> String {
        Signer::es256().sign(header, &json!({}))
    }

    #[test]
    fn unsupported_or_absent_algorithm_is_refused() {
        for alg in [
            "none", "None", "nOnE", "", "HS256", "HS384", "HS512", "RS1", "ES512", "ES256K", "es256",
            "RSA1_5",
        ] {
            assert_eq!(refusal(&with_header(&json!({"alg": alg}))), Error::AlgorithmRefused, "{alg}");
        }
        assert_eq!(refusal(&with_header(&json!({}))), Error::AlgorithmRefused);
        assert_eq!(refusal(&with_header(&json!({"alg": 1}))), Error::HeaderMalformed);
        assert_eq!(refusal(&with_header(&json!({"alg": ["ES256"]}))), Error::HeaderMalformed);
    }

    #[test]
    fn hs256_keyed_with_the_public_key_is_refused() {
        let signer = Signer::es256();
        let input = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#),
            URL_SAFE_NO_PAD.encode(r#"{"sub":"x"}"#)
        );
        let public = signer.jwk("k").to_string();
        let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, public.as_bytes());
        let tag = aws_lc_rs::hmac::sign(&secret, input.as_bytes());
        assert_eq!(refusal(&format!("{input}.{}", URL_SAFE_NO_PAD.encode(tag))), Error::AlgorithmRefused);
    }

    #[test]
    fn key_or_key_url_in_the_header_is_refused() {
        let signer = Signer::es256();
        for (name, value) in [
            ("jwk", signer.jwk("k")),
            ("jku", json!("https://evil.example/keys")),
            ("x5u", json!("https://evil.example/cert")),
            ("x5c", json!(["MIIB"])),
            ("jwk", Value::Null),
        ] {
            let mut header = json!({"alg": "ES256"});
            header[name] = value;
            assert_eq!(refusal(&signer.sign(&header, &json!({}))), Error::KeyInToken, "{name}");
        }
    }

    #[test]
    fn unsupported_extension_is_refused() {
        for header in [
            json!({"alg": "ES256", "crit": ["exp"], "exp": 1}),
            json!({"alg": "ES256", "crit": []}),
            json!({"alg": "ES256", "b64": false}),
            json!({"alg": "ES256", "zip": "DEF"}),
        ] {
            assert_eq!(refusal(&with_header(&header)), Error::HeaderExtension, "{header}");
        }
    }

    #[test]
    fn malformed_kid_is_refused_and_path_like_kid_is_kept() {
        let longest = "k".repeat(limits::KID_BYTES_MAX);
        let too_long = format!("{longest}k");
        assert!(Compact::parse(&with_header(&json!({"alg": "ES256", "kid": longest}))).is_ok());
        for kid in ["", &too_long, "k\n", "k\0", "ключ"] {
            assert_eq!(refusal(&with_header(&json!({"alg": "ES256", "kid": kid}))), Error::KidMalformed);
        }
        assert_eq!(refusal(&with_header(&json!({"alg": "ES256", "kid": 1}))), Error::HeaderMalformed);
        let text = with_header(&json!({"alg": "ES256", "kid": "../../etc/passwd"}));
        let compact = Compact::parse(&text).expect("a path-like kid");
        assert_eq!(compact.header().kid.as_deref(), Some("../../etc/passwd"));
    }

    #[test]
    fn token_beyond_the_limit_is_refused_before_decoding() {
        assert_eq!(refusal(&".".repeat(limits::TOKEN_BYTES_MAX + 1)), Error::TooLarge);
        assert_eq!(refusal(&".".repeat(limits::TOKEN_BYTES_MAX)), Error::NotCompact);
    }

    #[test]
    fn token_without_three_base64url_parts_is_refused() {
        let good = with_header(&json!({"alg": "ES256"}));
        assert!(Compact::parse(&good).is_ok());
        let (head, tail) = good.split_at(good.len() - 2);
        for text in [
            String::new(),
            "..".to_owned(),
            good.replace('.', ""),
            format!("{good}."),
            format!("{good}.AAAA"),
            format!(".{good}"),
            format!("{good}="),
            format!("{good}\n"),
            format!(" {good}"),
            format!("{head}+/{tail}"),
            good.rsplit_once('.').expect("dots").0.to_owned(),
            r#"{"payload":"e30","protected":"e30","signature":""}"#.to_owned(),
            "a.b.c.d.e".to_owned(),
        ] {
            assert!(Compact::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn stray_bits_in_the_last_character_are_refused() {
        // The 86th character of a signature of 64 bytes holds two bits of it; the other four are zero.
        let mut text = with_header(&json!({"alg": "ES256"}));
        text.pop();
        let all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".chars();
        let accepted = all.filter(|last| Compact::parse(&format!("{text}{last}")).is_ok());
        assert_eq!(accepted.collect::<String>(), "AQgw");
    }

    #[test]
    fn malformed_header_json_is_refused() {
        let signer = Signer::es256();
        for header in [
            br#"{"alg":"ES256","alg":"ES256"}"#.as_slice(),
            br#"{"alg":"ES256"} {}"#,
            b"{\"alg\":\"ES256\",\"kid\":\"\xff\"}",
            br#"["ES256"]"#,
            b"",
        ] {
            assert_eq!(refusal(&signer.sign_bytes(header, b"{}")), Error::HeaderMalformed);
        }
    }

    #[test]
    fn issuer_is_read_without_the_other_claims() {
        let signer = Signer::es256();
        let hint = |payload: &str| {
            let text = signer.sign_bytes(br#"{"alg":"ES256"}"#, payload.as_bytes());
            Compact::parse(&text).expect("compact").unverified_issuer().map(|hint| (hint.iss, hint.sub))
        };
        let named = |iss: &str| Ok((Some(iss.to_owned()), None));
        assert_eq!(hint(r#"{"a":[{"b":1}],"iss":"x"}"#), named("x"));
        assert_eq!(hint(" {\"iss\":\"\\u0078\",\"sub\":{}}"), named("x"));
        assert_eq!(hint("{}"), Ok((None, None)));
        // Attack: an issuer that two parsers could read differently.
        for payload in
            [r#"{"iss":"x","iss":"y"}"#, r#"["x","y"]"#, r#"{"iss":"x"} {}"#, r#"{"iss":"x""#, "", "null"]
        {
            assert_eq!(hint(payload), Err(Error::PayloadMalformed), "{payload}");
        }
    }

    #[test]
    fn certificate_thumbprint_is_ignored_but_reported() {
        let text = with_header(&json!({"alg": "ES256", "x5t": "AAAA"}));
        assert!(Compact::parse(&text).expect("no key in it").header().has_other_fields);
    }

    #[test]
    fn changed_part_is_refused() {
        let signer = Signer::es256();
        let key = signer.verifying("k");
        let text = signer.sign(&json!({"alg": "ES256"}), &json!({"sub": "x"}));
        assert!(Compact::parse(&text).expect("compact").verify(&key).is_ok());
        let other = signer.sign(&json!({"alg": "ES256", "typ": "JWT"}), &json!({"sub": "y"}));
        let parts = |text: &'_ str| text.split('.').map(ToOwned::to_owned).collect::<Vec<_>>();
        for part in 0..3 {
            let mut mixed = parts(&text);
            mixed[part].clone_from(&parts(&other)[part]);
            let mixed = mixed.join(".");
            let outcome = Compact::parse(&mixed).expect("compact").verify(&key);
            assert_eq!(outcome.err(), Some(Error::SignatureInvalid), "part {part}");
        }
    }

    #[test]
    fn zero_or_wrong_length_signature_is_refused() {
        let signer = Signer::es256();
        let text = signer.sign(&json!({"alg": "ES256"}), &json!({}));
        let input = text.rsplit_once('.').expect("dots").0;
        for bytes in [0, 1, 63, 64, 65, 72] {
            let text = format!("{input}.{}", URL_SAFE_NO_PAD.encode(vec![0; bytes]));
            let outcome = Compact::parse(&text).expect("compact").verify(&signer.verifying("k"));
            assert_eq!(outcome.err(), Some(Error::SignatureInvalid), "{bytes}");
        }
    }

    #[test]
    fn signature_verifies_only_with_its_own_key_family() {
        let signers = [
            (Signer::es256(), "ES256"),
            (Signer::ed25519(), "EdDSA"),
            (Signer::ed25519(), "Ed25519"),
            (Signer::rsa(), "RS256"),
            (Signer::rsa(), "PS256"),
        ];
        for (index, (signer, alg)) in signers.iter().enumerate() {
            let text = signer.sign(&json!({"alg": alg}), &json!({}));
            let compact = Compact::parse(&text).expect("compact");
            for (other_index, (other, _)) in signers.iter().enumerate() {
                let good = compact.verify(&other.verifying("k")).is_ok();
                assert_eq!(good, index == other_index, "{alg} with key {other_index}");
            }
        }
    }

    #[test]
    fn debug_never_shows_the_token() {
        let text = with_header(&json!({"alg": "ES256"}));
        let shown = format!("{:?}", Compact::parse(&text).expect("compact"));
        assert!(text.split('.').all(|part| !shown.contains(part)), "{shown}");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics_the_parser(text in "\\PC{0,200}") {
            if Compact::parse(&text).is_ok() {
                prop_assert_eq!(text.matches('.').count(), 2);
            }
        }

        #[test]
        fn a_flipped_bit_anywhere_is_refused(position in 0usize..10_000, bit in 0u8..7) {
            let signer = Signer::es256();
            let text = signer.sign(&json!({"alg": "ES256"}), &json!({"sub": "x"}));
            let mut bytes = text.clone().into_bytes();
            let at = position % bytes.len();
            bytes[at] ^= 1 << bit;
            let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
            let accepted = Compact::parse(&changed).is_ok_and(|c| c.verify(&signer.verifying("k")).is_ok());
            prop_assert!(!accepted, "{}", changed);
        }
    }
}
