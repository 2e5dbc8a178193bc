//! Our own ES256 signing keys: made, stored and used. Whether a key may sign now is decided from the
//! replicated log, not here (contract §3, Keys).

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::{Value, json};

use super::key_set;

/// Why a key could not be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cryptographic library made no key.
    #[error("signing key could not be generated")]
    Generation,
    /// The stored bytes are not a PKCS#8 key on P-256.
    #[error("stored signing key is not a P-256 key in PKCS#8")]
    StoredKeyMalformed,
    /// The cryptographic library made no signature.
    #[error("signature could not be made")]
    Signature,
    /// The claims cannot be written as JSON.
    #[error("claims could not be encoded")]
    Encoding(#[source] serde_json::Error),
}

/// An ES256 key pair with everything a signature needs, prepared once.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    kid: String,
    public_jwk: Value,
}

impl SigningKey {
    /// A new key from the library's randomness.
    ///
    /// # Errors
    /// [`Error::Generation`].
    pub fn generate() -> Result<Self, Error> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| Error::Generation)?;
        Self::prepare(pair)
    }

    /// The key that [`SigningKey::to_pkcs8`] stored.
    ///
    /// # Errors
    /// [`Error::StoredKeyMalformed`].
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der)
            .map_err(|_| Error::StoredKeyMalformed)?;
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
            .ok_or(Error::StoredKeyMalformed)?;
        let mut public_jwk = json!({
            "kty": "EC",
            "crv": "P-256",
            "use": "sig",
            "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x),
            "y": URL_SAFE_NO_PAD.encode(y),
        });
        let kid = key_set::thumbprint(&public_jwk).map_err(|_| Error::StoredKeyMalformed)?;
        if let Some(members) = public_jwk.as_object_mut() {
            members.insert("kid".to_owned(), kid.clone().into());
        }
        Ok(Self { pair, kid, public_jwk })
    }

    /// The private key in PKCS#8 DER, for a file only its owner can read.
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
        #[derive(Serialize)]
        struct Header<'h> {
            alg: &'static str,
            typ: &'h str,
            kid: &'h str,
        }
        let header = Header { alg: "ES256", typ, kid: &self.kid };
        let header = serde_json::to_vec(&header).map_err(Error::Encoding)?;
        let payload = serde_json::to_vec(claims).map_err(Error::Encoding)?;
        let mut text = URL_SAFE_NO_PAD.encode(header);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(payload, &mut text);
        let signature =
            self.pair.sign(&SystemRandom::new(), text.as_bytes()).map_err(|_| Error::Signature)?;
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut text);
        Ok(text)
    }
}

/// Never the private half.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl SigningKey {
    pub(super) fn sign_raw(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(&SystemRandom::new(), message).expect("signature").as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::jws::Compact;
    use crate::token::key_set::{KeySet, VerifyingKey};

    #[test]
    fn a_stored_key_signs_as_the_key_it_was() {
        let key = SigningKey::generate().expect("key");
        let stored = SigningKey::from_pkcs8(&key.to_pkcs8().expect("stored")).expect("read");
        assert_eq!((stored.kid(), stored.public_jwk()), (key.kid(), key.public_jwk()));
        let token = stored.sign(&json!({"sub": "x"}), "at+jwt").expect("signed");
        let public = VerifyingKey::from_jwk(key.public_jwk()).expect("public");
        let compact = Compact::parse(&token).expect("compact");
        assert_eq!(compact.header().kid.as_deref(), Some(key.kid()));
        assert_eq!(compact.header().typ.as_deref(), Some("at+jwt"));
        assert!(compact.verify(&public).is_ok());
    }

    #[test]
    fn refuses_stored_bytes_that_are_no_key() {
        assert!(matches!(SigningKey::from_pkcs8(b"not a key"), Err(Error::StoredKeyMalformed)));
        let mut der = SigningKey::generate().expect("key").to_pkcs8().expect("stored");
        der.truncate(der.len() - 1);
        assert!(matches!(SigningKey::from_pkcs8(&der), Err(Error::StoredKeyMalformed)));
    }

    #[test]
    fn the_public_jwk_has_no_private_member_and_names_itself_by_thumbprint() {
        let key = SigningKey::generate().expect("key");
        let set = KeySet::from_jwks(&[key.public_jwk().clone()]).expect("public only");
        assert_eq!(set.len(), 1);
        assert_eq!(key_set::thumbprint(key.public_jwk()).as_deref(), Ok(key.kid()));
    }

    #[test]
    fn debug_shows_the_kid_only() {
        let key = SigningKey::generate().expect("key");
        assert_eq!(format!("{key:?}"), format!("SigningKey {{ kid: {:?}, .. }}", key.kid()));
    }
}
