//! JWK Sets (RFC 7517) and SPIFFE bundles as verification keys, prepared once.
//!
//! A key for another purpose (`kty`, curve, `use`, `alg` or `key_ops`) is ignored, as the standards require. A
//! malformed document (a private, symmetric or weak key, a point off its curve, a repeated `kid`) is refused as a
//! whole.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    VerificationAlgorithm,
};
use serde_json::{Map, Value};

use super::jwk::{self, Malformed, bytes, optional_text};
use super::jws::{self, Algorithm};
use super::rsa;
use crate::{json, limits};

/// Refusal of a key document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a JSON object with an array `keys` of objects (RFC 7517 §5).
    #[error("key document is not a JWK Set")]
    NotKeySet,
    /// More than `KEYS_PER_SET_MAX` keys.
    #[error("key document has too many keys")]
    TooManyKeys,
    /// A private or symmetric key: its readers could sign.
    #[error("key document has a private or symmetric key")]
    PrivateKey,
    /// A field is absent, of a wrong type or not base64url, or a point is not on its curve.
    #[error("key document has a malformed key")]
    KeyMalformed,
    /// An RSA key that is too short or known to be factorable.
    #[error("key document has a weak key")]
    KeyWeak,
    /// `alg` does not fit the key type (RFC 8725 §3.1).
    #[error("key document has a key whose alg does not fit its type")]
    AlgorithmMismatch,
    /// `kid` is malformed, or missing in a SPIFFE bundle (JWT-SVID §5).
    #[error("key document has a key without a usable kid")]
    KidMissing,
    /// One `kid` names two keys.
    #[error("key document has one kid twice")]
    KidDuplicate,
}

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Self::KeyMalformed
    }
}

/// Rules that a key document follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A JWK Set of a token issuer: keys whose `use` is `sig` or absent.
    Issuer,
    /// A SPIFFE trust bundle: keys whose `use` is `jwt-svid`, each with a `kid`.
    SpiffeBundle,
}

/// A public key and the algorithms that it may verify.
pub struct VerifyingKey {
    kid: Option<String>,
    thumbprint: String,
    prepared: Vec<(Algorithm, ParsedPublicKey)>,
}

impl VerifyingKey {
    /// Reads one public JWK for signatures.
    ///
    /// # Errors
    /// [`Error::KeyMalformed`] also for a key of another purpose.
    pub fn from_jwk(jwk: &Value) -> Result<Self, Error> {
        let fields = jwk.as_object().ok_or(Error::KeyMalformed)?;
        Self::read(fields, Purpose::Issuer)?.ok_or(Error::KeyMalformed)
    }

    /// `None` for a key of another purpose.
    fn read(jwk: &Map<String, Value>, purpose: Purpose) -> Result<Option<Self>, Error> {
        if jwk::SECRET_FIELDS.iter().any(|name| jwk.contains_key(*name)) {
            return Err(Error::PrivateKey);
        }
        if !is_for_signatures(jwk, purpose)? {
            return Ok(None);
        }
        let Some(family) = Family::of(jwk)? else { return Ok(None) };
        let algorithms = match optional_text(jwk, "alg")?.map(str::parse::<Algorithm>) {
            None => family.algorithms().to_vec(),
            // An unsupported algorithm is no error: the key is ignored.
            Some(Err(_)) => return Ok(None),
            Some(Ok(algorithm)) if family.algorithms().contains(&algorithm) => vec![algorithm],
            Some(Ok(_)) => return Err(Error::AlgorithmMismatch),
        };
        let kid = optional_text(jwk, "kid")?.map(ToOwned::to_owned);
        match &kid {
            Some(kid) if !jws::is_kid(kid) => return Err(Error::KidMissing),
            None if purpose == Purpose::SpiffeBundle => return Err(Error::KidMissing),
            _ => {}
        }
        let prepared = family.prepare(jwk, &algorithms)?;
        Ok(Some(Self { kid, thumbprint: family.thumbprint(jwk)?, prepared }))
    }

    /// `kid`, if present.
    #[must_use]
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// The RFC 7638 thumbprint, independent of `kid`.
    #[must_use]
    pub fn thumbprint(&self) -> &str {
        &self.thumbprint
    }

    /// Whether this key may verify `algorithm`.
    #[must_use]
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        self.prepared.iter().any(|(fitting, _)| *fitting == algorithm)
    }

    /// Verifies `signature` over `message`.
    ///
    /// # Errors
    /// [`super::Error::AlgorithmNotAllowed`] if the key is not for `algorithm`,
    /// [`super::Error::SignatureInvalid`].
    pub fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Result<(), super::Error> {
        let (_, key) = self
            .prepared
            .iter()
            .find(|(fitting, _)| *fitting == algorithm)
            .ok_or(super::Error::AlgorithmNotAllowed)?;
        key.verify_sig(message, signature).map_err(|_| super::Error::SignatureInvalid)
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyingKey")
            .field("kid", &self.kid)
            .field("thumbprint", &self.thumbprint)
            .finish_non_exhaustive()
    }
}

/// RFC 7517 §4.2, §4.3 and SPIFFE bundle §4.2: keys with another `use` are ignored.
fn is_for_signatures(jwk: &Map<String, Value>, purpose: Purpose) -> Result<bool, Error> {
    let fitting_use = match (purpose, optional_text(jwk, "use")?) {
        (Purpose::Issuer, used) => used.is_none_or(|used| used == "sig"),
        (Purpose::SpiffeBundle, used) => used == Some("jwt-svid"),
    };
    let fitting_operations = match jwk.get("key_ops") {
        None => true,
        Some(Value::Array(operations)) => operations.iter().any(|operation| operation == "verify"),
        Some(_) => return Err(Error::KeyMalformed),
    };
    Ok(fitting_use && fitting_operations)
}

/// Supported key types; the type determines the algorithms.
#[derive(Clone, Copy)]
enum Family {
    P256,
    P384,
    Rsa,
    Ed25519,
}

impl Family {
    /// `None` for an unknown `kty` or curve, which is ignored (RFC 7517 §5).
    fn of(jwk: &Map<String, Value>) -> Result<Option<Self>, Error> {
        Ok(match (optional_text(jwk, "kty")?.ok_or(Error::KeyMalformed)?, optional_text(jwk, "crv")?) {
            ("RSA", _) => Some(Self::Rsa),
            ("EC", Some("P-256")) => Some(Self::P256),
            ("EC", Some("P-384")) => Some(Self::P384),
            ("OKP", Some("Ed25519")) => Some(Self::Ed25519),
            _ => None,
        })
    }

    fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::P256 => &[Algorithm::Es256],
            Self::P384 => &[Algorithm::Es384],
            Self::Ed25519 => &[Algorithm::EdDsa],
            Self::Rsa => &[
                Algorithm::Rs256,
                Algorithm::Rs384,
                Algorithm::Rs512,
                Algorithm::Ps256,
                Algorithm::Ps384,
                Algorithm::Ps512,
            ],
        }
    }

    fn prepare(
        self,
        jwk: &Map<String, Value>,
        algorithms: &[Algorithm],
    ) -> Result<Vec<(Algorithm, ParsedPublicKey)>, Error> {
        match self {
            Self::P256 => Ok(vec![(Algorithm::Es256, point(jwk, 32, &ECDSA_P256_SHA256_FIXED)?)]),
            Self::P384 => Ok(vec![(Algorithm::Es384, point(jwk, 48, &ECDSA_P384_SHA384_FIXED)?)]),
            Self::Ed25519 => {
                let x = bytes(jwk, "x")?;
                let key = ParsedPublicKey::new(&ED25519, x).map_err(|_| Error::KeyMalformed)?;
                Ok(vec![(Algorithm::EdDsa, key)])
            }
            Self::Rsa => {
                let (n, e) = (bytes(jwk, "n")?, bytes(jwk, "e")?);
                rsa::refuse_weak(&n, &e)?;
                let components = RsaPublicKeyComponents { n, e };
                let prepare = |&algorithm: &Algorithm| {
                    let parameters = rsa_parameters(algorithm).ok_or(Error::AlgorithmMismatch)?;
                    let key = components.to_parsed_public_key(parameters).map_err(|_| Error::KeyMalformed)?;
                    Ok((algorithm, key))
                };
                algorithms.iter().map(prepare).collect()
            }
        }
    }

    fn thumbprint(self, jwk: &Map<String, Value>) -> Result<String, Error> {
        let required: &[&str] = match self {
            Self::P256 | Self::P384 => &["crv", "kty", "x", "y"],
            Self::Rsa => &["e", "kty", "n"],
            Self::Ed25519 => &["crv", "kty", "x"],
        };
        Ok(jwk::thumbprint(jwk, required)?)
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
        Algorithm::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
        Algorithm::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
        Algorithm::Es256 | Algorithm::Es384 | Algorithm::EdDsa => None,
    }
}

/// The cryptographic library refuses a point off the curve.
fn point(
    jwk: &Map<String, Value>,
    coordinate_bytes: usize,
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<ParsedPublicKey, Error> {
    let point = jwk::uncompressed_point(jwk, coordinate_bytes)?;
    ParsedPublicKey::new(algorithm, point).map_err(|_| Error::KeyMalformed)
}

/// The RFC 7638 SHA-256 thumbprint of a public JWK, in base64url.
pub fn thumbprint(jwk: &Value) -> Result<String, Error> {
    VerifyingKey::from_jwk(jwk).map(|key| key.thumbprint)
}

/// The keys of one issuer. Sets of two issuers are never merged: a `kid` is unique within its issuer only.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<Arc<VerifyingKey>>,
    refresh_hint: Option<Duration>,
    sequence: Option<u64>,
}

impl KeySet {
    /// Reads a JWK Set or SPIFFE bundle. An empty set is valid: all keys were withdrawn.
    ///
    /// # Errors
    /// One malformed key refuses the whole document.
    pub fn parse(document: &[u8], purpose: Purpose) -> Result<Self, Error> {
        let (refresh_hint, sequence, jwks) = match purpose {
            Purpose::Issuer => (None, None, jwks(document)?.1),
            Purpose::SpiffeBundle => {
                let bundle = SpiffeDocument::parse(document)?;
                (bundle.refresh_hint, bundle.sequence, bundle.keys)
            }
        };
        Ok(Self { refresh_hint, sequence, ..Self::read(&jwks, purpose)? })
    }

    fn read(jwks: &[Map<String, Value>], purpose: Purpose) -> Result<Self, Error> {
        let mut keys: Vec<Arc<VerifyingKey>> = Vec::new();
        for jwk in jwks {
            let Some(key) = VerifyingKey::read(jwk, purpose)? else { continue };
            if key.kid.is_some() && keys.iter().any(|other| other.kid == key.kid) {
                return Err(Error::KidDuplicate);
            }
            keys.push(Arc::new(key));
        }
        Ok(Self { keys, refresh_hint: None, sequence: None })
    }

    /// The key that must verify a token: by `kid`, else the only one that fits `algorithm`.
    ///
    /// # Errors
    /// [`super::Error::UnknownKey`]; [`super::Error::AlgorithmNotAllowed`] if `kid` names a key of another algorithm;
    /// [`super::Error::AmbiguousKey`] without `kid` if several keys fit.
    pub fn select(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<VerifyingKey>, super::Error> {
        if let Some(kid) = kid {
            let key = self.keys.iter().find(|key| key.kid() == Some(kid)).ok_or(super::Error::UnknownKey)?;
            return if key.fits(algorithm) {
                Ok(Arc::clone(key))
            } else {
                Err(super::Error::AlgorithmNotAllowed)
            };
        }
        let mut fitting = self.keys.iter().filter(|key| key.fits(algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(Arc::clone(key)),
            (Some(_), Some(_)) => Err(super::Error::AmbiguousKey),
            (None, _) => Err(super::Error::UnknownKey),
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// `spiffe_refresh_hint` (SPIFFE bundle §4.1.2).
    #[must_use]
    pub fn refresh_hint(&self) -> Option<Duration> {
        self.refresh_hint
    }

    /// `spiffe_sequence` (SPIFFE bundle §4.1.1).
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }
}

/// A SPIFFE bundle whose keys are not interpreted yet.
#[derive(Clone, Debug)]
pub struct SpiffeDocument {
    /// Keys for all purposes.
    pub keys: Vec<Map<String, Value>>,
    /// `spiffe_refresh_hint` (SPIFFE bundle §4.1.2).
    pub refresh_hint: Option<Duration>,
    /// `spiffe_sequence` (SPIFFE bundle §4.1.1).
    pub sequence: Option<u64>,
}

impl SpiffeDocument {
    /// Reads a bundle. A set without keys is valid: all were withdrawn.
    ///
    /// # Errors
    /// [`Error::NotKeySet`], [`Error::TooManyKeys`].
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        let (fields, keys) = jwks(document)?;
        let refresh_hint = whole_number(&fields, "spiffe_refresh_hint")?.map(Duration::from_secs);
        Ok(Self { keys, refresh_hint, sequence: whole_number(&fields, "spiffe_sequence")? })
    }
}

/// Time after which a document with this refresh hint is fetched again.
#[must_use]
pub fn refresh_interval(hint: Option<Duration>) -> Duration {
    let hint = hint.unwrap_or(limits::ISSUER_KEYS_REFRESH);
    hint.clamp(limits::SPIFFE_REFRESH_MIN, limits::ISSUER_KEYS_REFRESH)
}

type Fields = Map<String, Value>;

/// The fields of a JWK Set (RFC 7517 §5) other than `keys`, and its keys.
fn jwks(document: &[u8]) -> Result<(Fields, Vec<Fields>), Error> {
    let Ok(Value::Object(mut fields)) = json::parse(document) else { return Err(Error::NotKeySet) };
    let Some(Value::Array(keys)) = fields.remove("keys") else { return Err(Error::NotKeySet) };
    if keys.len() > limits::KEYS_PER_SET_MAX {
        return Err(Error::TooManyKeys);
    }
    let object = |key| if let Value::Object(key) = key { Ok(key) } else { Err(Error::NotKeySet) };
    Ok((fields, keys.into_iter().map(object).collect::<Result<_, _>>()?))
}

fn whole_number(fields: &Map<String, Value>, name: &str) -> Result<Option<u64>, Error> {
    fields.get(name).map(|value| value.as_u64().ok_or(Error::NotKeySet)).transpose()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::token::Error as TokenError;
    use crate::token::signing_key::EventSigningKey;
    use crate::token::testing::{Signer, with};

    fn parse(keys: &Value) -> Result<KeySet, Error> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes(), Purpose::Issuer)
    }

    fn bundle(document: &Value) -> Result<KeySet, Error> {
        KeySet::parse(document.to_string().as_bytes(), Purpose::SpiffeBundle)
    }

    #[test]
    fn the_thumbprint_is_that_of_rfc_7638() {
        // RFC 7638 §3.1.
        let jwk = json!({
            "kty": "RSA",
            "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
            "e": "AQAB",
            "alg": "RS256",
            "kid": "2011-04-29"
        });
        assert_eq!(thumbprint(&jwk).as_deref(), Ok("NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"));
    }

    #[test]
    fn private_or_symmetric_key_refuses_the_document() {
        let public = Signer::es256().jwk("public");
        for (name, value) in [("d", "AAAA"), ("p", "AAAA"), ("k", "AAAA")] {
            let private = with(&Signer::es256().jwk("private"), &json!({ name: value }));
            assert_eq!(parse(&json!([public, private])).err(), Some(Error::PrivateKey), "{name}");
        }
        let symmetric = json!({"kty": "oct", "k": "AAAA", "kid": "s", "use": "sig", "alg": "HS256"});
        assert_eq!(parse(&json!([public, symmetric])).err(), Some(Error::PrivateKey));
    }

    #[test]
    fn point_off_the_curve_or_of_wrong_length_is_refused() {
        let jwk = Signer::es256().jwk("k");
        let x = crate::token::encoding::decode(jwk["x"].as_str().expect("x")).expect("base64url");
        let mut off = x.clone();
        off[31] ^= 1;
        for x in [off, x[..31].to_vec(), [&[0], x.as_slice()].concat(), vec![0xff; 32], vec![]] {
            let jwk = with(&jwk, &json!({"x": URL_SAFE_NO_PAD.encode(x)}));
            assert_eq!(parse(&json!([jwk])).err(), Some(Error::KeyMalformed));
        }
        assert_eq!(
            parse(&json!([with(&jwk, &json!({"crv": "P-384"}))])).err(),
            Some(Error::AlgorithmMismatch)
        );
        let unbound = with(&jwk, &json!({"crv": "P-384", "alg": null}));
        assert_eq!(parse(&json!([unbound])).err(), Some(Error::KeyMalformed));
    }

    #[test]
    fn weak_rsa_key_is_refused() {
        let jwk = Signer::rsa().jwk("k");
        assert_eq!(parse(&json!([jwk])).map(|set| set.len()).ok(), Some(1));
        assert_eq!(parse(&json!([with(&jwk, &json!({"e": "AQ"}))])).err(), Some(Error::KeyWeak));
        let mut short = vec![0x81u8; 128];
        short[0] |= 0x80;
        let short = with(&jwk, &json!({"n": URL_SAFE_NO_PAD.encode(short)}));
        assert_eq!(parse(&json!([short])).err(), Some(Error::KeyWeak));
    }

    #[test]
    fn keys_for_other_purposes_are_ignored() {
        let jwk = Signer::es256().jwk("k");
        for other in [
            with(&jwk, &json!({"use": "enc"})),
            with(&jwk, &json!({"alg": "ECDH-ES"})),
            with(&jwk, &json!({"alg": "ES521"})),
            with(&jwk, &json!({"key_ops": ["deriveBits"]})),
            with(&jwk, &json!({"kty": "AKP"})),
            with(&jwk, &json!({"crv": "P-521", "alg": null})),
        ] {
            let set = parse(&json!([other])).expect("only ignored");
            assert!(set.is_empty(), "{other}");
        }
    }

    #[test]
    fn repeated_kid_among_used_keys_is_refused() {
        let (one, two) = (Signer::es256().jwk("k"), Signer::es256().jwk("k"));
        assert_eq!(parse(&json!([one, two])).err(), Some(Error::KidDuplicate));
        let encryption = with(&two, &json!({"use": "enc"}));
        assert!(parse(&json!([one, encryption])).is_ok());
    }

    #[test]
    fn document_that_is_no_key_set_is_refused() {
        let many: Vec<Value> =
            (0..=limits::KEYS_PER_SET_MAX).map(|_| json!({"kty": "AKP", "use": "enc"})).collect();
        assert_eq!(parse(&json!(many)).err(), Some(Error::TooManyKeys));
        for document in
            ["", "{}", "[]", "<html>", r#"{"keys":{}}"#, r#"{"keys":["x"]}"#, r#"{"keys":[],"keys":[]}"#]
        {
            let refused = KeySet::parse(document.as_bytes(), Purpose::Issuer).err();
            assert_eq!(refused, Some(Error::NotKeySet), "{document}");
        }
    }

    /// A fabric that is an issuer to another publishes up to `SIGNING_KEYS_MAX` keys of the largest kind.
    #[test]
    fn largest_key_set_of_another_fabric_is_accepted() {
        let key = EventSigningKey::generate().expect("a key").public_jwk().clone();
        let kid = "k".repeat(key["kid"].as_str().expect("kid").len() - 3);
        let key_set = |keys| {
            let keys: Vec<_> =
                (0..keys).map(|at| with(&key, &json!({"kid": format!("{kid}{at:03}")}))).collect();
            json!({ "keys": keys }).to_string()
        };
        let document = key_set(limits::SIGNING_KEYS_MAX);
        assert!(document.len() < limits::FETCH_BYTES_MAX, "{}", document.len());
        let set = KeySet::parse(document.as_bytes(), Purpose::Issuer).expect("a key set");
        assert_eq!(set.len(), limits::SIGNING_KEYS_MAX);
        let beyond = key_set(limits::KEYS_PER_SET_MAX + 1);
        assert_eq!(KeySet::parse(beyond.as_bytes(), Purpose::Issuer).err(), Some(Error::TooManyKeys));
    }

    #[test]
    fn key_with_alg_verifies_only_that_algorithm() {
        let signer = Signer::rsa();
        let set = parse(&json!([with(&signer.jwk("k"), &json!({"alg": "PS256"}))])).expect("set");
        assert!(set.select(Some("k"), Algorithm::Ps256).is_ok());
        let refused = set.select(Some("k"), Algorithm::Rs256).err();
        assert_eq!(refused, Some(TokenError::AlgorithmNotAllowed));
        let mismatch = with(&signer.jwk("k"), &json!({"alg": "ES256"}));
        assert_eq!(parse(&json!([mismatch])).err(), Some(Error::AlgorithmMismatch));
    }

    #[test]
    fn without_kid_only_a_single_fitting_key_is_selected() {
        let (one, two) = (Signer::es256().jwk("1"), Signer::es256().jwk("2"));
        let set = parse(&json!([one, Signer::rsa().jwk("r")])).expect("set");
        assert!(set.select(None, Algorithm::Es256).is_ok());
        assert_eq!(set.select(None, Algorithm::EdDsa).err(), Some(TokenError::UnknownKey));
        let set = parse(&json!([one, two])).expect("set");
        assert_eq!(set.select(None, Algorithm::Es256).err(), Some(TokenError::AmbiguousKey));
        assert_eq!(set.select(Some("3"), Algorithm::Es256).err(), Some(TokenError::UnknownKey));
    }

    #[test]
    fn bundle_yields_jwt_svid_keys_hint_and_sequence() {
        let svid = with(&Signer::es256().jwk("j"), &json!({"use": "jwt-svid"}));
        let x509 = json!({"kty": "EC", "crv": "P-256", "use": "x509-svid", "x5c": ["MIIB"]});
        let unused = with(&Signer::es256().jwk("u"), &json!({"use": null}));
        let document = json!({"keys": [svid, x509, unused], "spiffe_sequence": 7, "spiffe_refresh_hint": 60});
        let set = bundle(&document).expect("bundle");
        assert_eq!(
            (set.len(), set.sequence(), set.refresh_hint()),
            (1, Some(7), Some(Duration::from_mins(1)))
        );
        assert!(set.select(Some("j"), Algorithm::Es256).is_ok());
        let nameless = with(&svid, &json!({"kid": null}));
        assert_eq!(bundle(&json!({"keys": [nameless]})).err(), Some(Error::KidMissing));
        assert_eq!(bundle(&json!({"keys": [], "spiffe_sequence": "7"})).err(), Some(Error::NotKeySet));
        assert!(bundle(&json!({"keys": []})).expect("all withdrawn").is_empty());
    }
}
