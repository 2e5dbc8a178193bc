//! Our own signing keys, ES256 for tokens and RS256 for security event tokens: generated, stored and used. State
//! (pending, active, retired, tainted) is in the replicated log (contract §3, Keys).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::{Value, json};

use super::key_set;

/// Failure to create, read or use a signing key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cryptographic library returned no key.
    #[error("signing key could not be generated")]
    Generation,
    /// The stored bytes are not a key of the expected kind.
    #[error("stored signing key is not {0} in PKCS#8")]
    StoredKeyMalformed(&'static str),
    /// The cryptographic library returned no signature.
    #[error("signature could not be created")]
    Signature,
    /// The claims cannot be serialized as JSON.
    #[error("claims could not be encoded")]
    Encoding(#[source] serde_json::Error),
}

/// Algorithm of one of our keys, which also fixes its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE", const_into_str, parse_err_fn = unknown, parse_err_ty = UnknownAlgorithm)]
pub enum SigningAlgorithm {
    /// Tokens: [`SigningKey`].
    Es256,
    /// Security event tokens: [`EventSigningKey`].
    Rs256,
}

impl SigningAlgorithm {
    pub const ALL: [Self; 2] = [Self::Es256, Self::Rs256];
}

/// Not the name of one of our algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ES256 or RS256")]
pub struct UnknownAlgorithm;

const fn unknown(_: &str) -> UnknownAlgorithm {
    UnknownAlgorithm
}

const NOT_P256: Error = Error::StoredKeyMalformed("a P-256 key");
const NOT_RSA: Error = Error::StoredKeyMalformed("an RSA key of 2048 bits or more");

/// An ES256 key pair, prepared for signing.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    kid: String,
    public_jwk: Value,
}

impl SigningKey {
    /// Generates a key from the library's random source.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn generate() -> Result<Self, Error> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| Error::Generation)?;
        Self::prepare(pair)
    }

    /// Reads the output of [`SigningKey::to_pkcs8`].
    ///
    /// # Errors
    /// [`Error::StoredKeyMalformed`].
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map_err(|_| NOT_P256)?;
        Self::prepare(pair)
    }

    fn prepare(pair: EcdsaKeyPair) -> Result<Self, Error> {
        // An uncompressed point: 4, x, y (SEC 1 §2.3.3).
        let (x, y) = pair
            .public_key()
            .as_ref()
            .strip_prefix(&[4])
            .filter(|coordinates| coordinates.len() == 64)
            .and_then(|coordinates| coordinates.split_at_checked(32))
            .ok_or(NOT_P256)?;
        let public_jwk = json!({
            "kty": "EC",
            "crv": "P-256",
            "use": "sig",
            "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x),
            "y": URL_SAFE_NO_PAD.encode(y),
        });
        let (kid, public_jwk) = with_thumbprint(public_jwk).ok_or(NOT_P256)?;
        Ok(Self { pair, kid, public_jwk })
    }

    /// The private key in PKCS#8 DER, for a file that only its owner can read.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        self.pair.to_pkcs8v1().map(|document| document.as_ref().to_vec()).map_err(|_| Error::Generation)
    }

    /// `kid`: the RFC 7638 thumbprint of the public half.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public half as a JWK with `kid`, `use` and `alg`.
    #[must_use]
    pub fn public_jwk(&self) -> &Value {
        &self.public_jwk
    }

    /// A compact JWS over `claims` with the header `{alg, typ, kid}` (contract §3, Header).
    ///
    /// # Errors
    /// [`Error::Encoding`] or [`Error::Signature`].
    pub fn sign(&self, claims: &impl Serialize, typ: &str) -> Result<String, Error> {
        let input = signing_input(SigningAlgorithm::Es256, &self.kid, typ, claims)?;
        let signature =
            self.pair.sign(&SystemRandom::new(), input.as_bytes()).map_err(|_| Error::Signature)?;
        Ok(compact(input, signature.as_ref()))
    }
}

/// Without the private key.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// An RS256 key pair, prepared for signing.
pub struct EventSigningKey {
    pair: RsaKeyPair,
    kid: String,
    public_jwk: Value,
}

impl EventSigningKey {
    /// Generates a key of 2048 bits. The search for two primes takes a tenth of a second, sometimes several seconds.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn generate() -> Result<Self, Error> {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).map_err(|_| Error::Generation)?;
        Self::prepare(pair)
    }

    /// Reads the output of [`EventSigningKey::to_pkcs8`].
    ///
    /// # Errors
    /// [`Error::StoredKeyMalformed`], also for a weak key.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        Self::prepare(RsaKeyPair::from_pkcs8(der).map_err(|_| NOT_RSA)?)
    }

    fn prepare(pair: RsaKeyPair) -> Result<Self, Error> {
        let public = PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
        let public_jwk = json!({
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "n": URL_SAFE_NO_PAD.encode(public.n),
            "e": URL_SAFE_NO_PAD.encode(public.e),
        });
        let (kid, public_jwk) = with_thumbprint(public_jwk).ok_or(NOT_RSA)?;
        Ok(Self { pair, kid, public_jwk })
    }

    /// The private key in PKCS#8 DER, for a file that only its owner can read.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        let document: Pkcs8V1Der<'_> = self.pair.as_der().map_err(|_| Error::Generation)?;
        Ok(document.as_ref().to_vec())
    }

    /// `kid`: the RFC 7638 thumbprint of the public half.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public half as a JWK with `kid`, `use` and `alg`.
    #[must_use]
    pub fn public_jwk(&self) -> &Value {
        &self.public_jwk
    }

    /// A compact JWS over `claims` with the header `{alg, typ, kid}`. Equal claims give equal text: the signature is
    /// deterministic (RFC 8017 §8.2).
    ///
    /// # Errors
    /// [`Error::Encoding`] or [`Error::Signature`].
    pub fn sign(&self, claims: &impl Serialize, typ: &str) -> Result<String, Error> {
        let input = signing_input(SigningAlgorithm::Rs256, &self.kid, typ, claims)?;
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), input.as_bytes(), &mut signature)
            .map_err(|_| Error::Signature)?;
        Ok(compact(input, &signature))
    }
}

/// Without the private key.
impl fmt::Debug for EventSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// A stored key pair of either kind.
#[derive(Clone, Debug)]
pub enum StoredKey {
    Tokens(Arc<SigningKey>),
    Sets(Arc<EventSigningKey>),
}

impl StoredKey {
    /// Reads the output of [`StoredKey::to_pkcs8`]; PKCS#8 states the kind.
    ///
    /// # Errors
    /// [`Error::StoredKeyMalformed`].
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        if let Ok(key) = SigningKey::from_pkcs8(der) {
            return Ok(Self::Tokens(Arc::new(key)));
        }
        let key = EventSigningKey::from_pkcs8(der);
        let key =
            key.map_err(|_| Error::StoredKeyMalformed("a P-256 key or an RSA key of 2048 bits or more"))?;
        Ok(Self::Sets(Arc::new(key)))
    }

    /// The private key in PKCS#8 DER, for a file that only its owner can read.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::Tokens(key) => key.to_pkcs8(),
            Self::Sets(key) => key.to_pkcs8(),
        }
    }

    #[must_use]
    pub const fn algorithm(&self) -> SigningAlgorithm {
        match self {
            Self::Tokens(_) => SigningAlgorithm::Es256,
            Self::Sets(_) => SigningAlgorithm::Rs256,
        }
    }

    /// `kid`: the RFC 7638 thumbprint of the public half.
    #[must_use]
    pub fn kid(&self) -> &str {
        match self {
            Self::Tokens(key) => key.kid(),
            Self::Sets(key) => key.kid(),
        }
    }

    /// The public half as a JWK with `kid`, `use` and `alg`.
    #[must_use]
    pub fn public_jwk(&self) -> &Value {
        match self {
            Self::Tokens(key) => key.public_jwk(),
            Self::Sets(key) => key.public_jwk(),
        }
    }
}

/// The thumbprint, and the JWK with it as `kid`. `None` for a weak key.
fn with_thumbprint(mut public_jwk: Value) -> Option<(String, Value)> {
    let kid = key_set::thumbprint(&public_jwk).ok()?;
    public_jwk.as_object_mut()?.insert("kid".to_owned(), kid.clone().into());
    Some((kid, public_jwk))
}

/// Header and claims as signed (RFC 7515 §5.1).
fn signing_input(
    algorithm: SigningAlgorithm,
    kid: &str,
    typ: &str,
    claims: &impl Serialize,
) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Header<'h> {
        alg: &'static str,
        typ: &'h str,
        kid: &'h str,
    }
    let header = Header { alg: algorithm.into_str(), typ, kid };
    let header = serde_json::to_vec(&header).map_err(Error::Encoding)?;
    let payload = serde_json::to_vec(claims).map_err(Error::Encoding)?;
    let mut input = URL_SAFE_NO_PAD.encode(header);
    input.push('.');
    URL_SAFE_NO_PAD.encode_string(payload, &mut input);
    Ok(input)
}

/// The compact serialization (RFC 7515 §7.1).
fn compact(mut input: String, signature: &[u8]) -> String {
    input.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut input);
    input
}

#[cfg(test)]
impl SigningKey {
    pub(super) fn sign_raw(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(&SystemRandom::new(), message).expect("signature").as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};

    use super::*;
    use crate::token::Error as Refusal;
    use crate::token::jws::Compact;
    use crate::token::key_set::{KeySet, Purpose, VerifyingKey};

    /// A key of each kind.
    fn keys() -> [StoredKey; 2] {
        [
            StoredKey::Tokens(Arc::new(SigningKey::generate().expect("key"))),
            StoredKey::Sets(Arc::new(EventSigningKey::generate().expect("key"))),
        ]
    }

    fn signed(key: &StoredKey, claims: &Value, typ: &str) -> String {
        match key {
            StoredKey::Tokens(key) => key.sign(claims, typ),
            StoredKey::Sets(key) => key.sign(claims, typ),
        }
        .expect("signed")
    }

    #[test]
    fn stored_key_is_restored() {
        for key in keys() {
            let stored = StoredKey::from_pkcs8(&key.to_pkcs8().expect("stored")).expect("read");
            assert_eq!((stored.kid(), stored.public_jwk()), (key.kid(), key.public_jwk()));
            assert_eq!(stored.algorithm(), key.algorithm());
            let token = signed(&stored, &json!({"sub": "x"}), "at+jwt");
            let public = VerifyingKey::from_jwk(key.public_jwk()).expect("public");
            let compact = Compact::parse(&token).expect("compact");
            assert_eq!(compact.header().kid.as_deref(), Some(key.kid()));
            assert_eq!(compact.header().typ.as_deref(), Some("at+jwt"));
            assert_eq!(compact.header().algorithm.to_string(), key.algorithm().into_str());
            assert!(!compact.header().has_other_fields);
            assert!(compact.verify(&public).is_ok());
        }
    }

    #[test]
    fn stored_bytes_of_no_or_another_key_are_refused() {
        for key in keys() {
            let mut der = key.to_pkcs8().expect("stored");
            assert_eq!(SigningKey::from_pkcs8(&der).is_ok(), key.algorithm() == SigningAlgorithm::Es256);
            assert_eq!(EventSigningKey::from_pkcs8(&der).is_ok(), key.algorithm() == SigningAlgorithm::Rs256);
            der.truncate(der.len() - 1);
            for bytes in [der.as_slice(), b"not a key", b""] {
                assert!(matches!(SigningKey::from_pkcs8(bytes), Err(Error::StoredKeyMalformed(_))));
                assert!(matches!(EventSigningKey::from_pkcs8(bytes), Err(Error::StoredKeyMalformed(_))));
                assert!(matches!(StoredKey::from_pkcs8(bytes), Err(Error::StoredKeyMalformed(_))));
            }
        }
    }

    #[test]
    fn public_jwk_has_thumbprint_kid_and_no_private_field() {
        let [tokens, sets] = keys();
        let set = KeySet::parse(
            json!({"keys": [tokens.public_jwk(), sets.public_jwk()]}).to_string().as_bytes(),
            Purpose::Issuer,
        );
        assert_eq!(set.expect("public only").len(), 2);
        for (key, members) in [
            (tokens, ["alg", "crv", "kid", "kty", "use", "x", "y"].as_slice()),
            (sets, &["alg", "e", "kid", "kty", "n", "use"]),
        ] {
            assert_eq!(key_set::thumbprint(key.public_jwk()).as_deref(), Ok(key.kid()));
            let jwk = key.public_jwk().as_object().expect("object");
            assert_eq!(jwk.keys().collect::<Vec<_>>(), members);
            assert_eq!((&jwk["use"], &jwk["alg"]), (&json!("sig"), &json!(key.algorithm().into_str())));
        }
    }

    #[test]
    fn set_signature_is_deterministic_rs256_of_2048_bits() {
        let key = EventSigningKey::generate().expect("key");
        let claims = json!({"jti": "1-2-3", "events": {}});
        let first = key.sign(&claims, "secevent+jwt").expect("signed");
        assert_eq!(key.sign(&claims, "secevent+jwt").expect("signed"), first);
        let (input, signature) = first.rsplit_once('.').expect("three parts");
        let (header, _) = input.split_once('.').expect("three parts");
        let header = URL_SAFE_NO_PAD.decode(header).expect("base64url");
        let expected = format!(r#"{{"alg":"RS256","typ":"secevent+jwt","kid":"{}"}}"#, key.kid());
        assert_eq!(String::from_utf8_lossy(&header), expected);
        // Verified by the library and the JWK fields alone, without a parser of ours.
        let member = |name: &str| {
            URL_SAFE_NO_PAD.decode(key.public_jwk()[name].as_str().expect("text")).expect("base64url")
        };
        let public = RsaPublicKeyComponents { n: member("n"), e: member("e") };
        assert_eq!((public.n.len() * 8, public.n[0] >> 7, public.e.as_slice()), (2048, 1, &[1, 0, 1][..]));
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
        assert!(public.verify(&RSA_PKCS1_2048_8192_SHA256, input.as_bytes(), &signature).is_ok());
        let other = format!("{input}A");
        assert!(public.verify(&RSA_PKCS1_2048_8192_SHA256, other.as_bytes(), &signature).is_err());
    }

    #[test]
    fn set_key_verifies_rs256_only() {
        let key = EventSigningKey::generate().expect("key");
        let public = VerifyingKey::from_jwk(key.public_jwk()).expect("public");
        for alg in ["RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"] {
            assert!(!public.fits(alg.parse().expect("an algorithm")), "{alg}");
        }
        let token = key.sign(&json!({}), "secevent+jwt").expect("signed");
        let (_, rest) = token.split_once('.').expect("three parts");
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"PS256","kid":"{}"}}"#, key.kid()));
        let text = format!("{header}.{rest}");
        let refused = Compact::parse(&text).expect("compact").verify(&public).err();
        assert_eq!(refused, Some(Refusal::AlgorithmNotAllowed));
    }

    #[test]
    fn only_es256_and_rs256_parse() {
        for algorithm in SigningAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for text in ["", "es256", "RS384", "none", "HS256", "RS256 "] {
            assert_eq!(text.parse::<SigningAlgorithm>(), Err(UnknownAlgorithm), "{text}");
        }
    }

    #[test]
    fn debug_shows_the_kid_only() {
        let [tokens, sets] = keys();
        let shown = |name: &str, kid: &str| format!("{name} {{ kid: {kid:?}, .. }}");
        assert_eq!(format!("{tokens:?}"), format!("Tokens({})", shown("SigningKey", tokens.kid())));
        assert_eq!(format!("{sets:?}"), format!("Sets({})", shown("EventSigningKey", sets.kid())));
    }
}
