//! Test issuers: real keys of each family, and tokens with any header and payload.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::key_set::VerifyingKey;
use super::signing_key::SigningKey;
use crate::clock::Timestamp;

/// The time of verification in tests.
pub const NOW_SECS: i64 = 1_800_000_000;

/// [`NOW_SECS`] as an instant.
pub fn now() -> Timestamp {
    Timestamp::from_secs(NOW_SECS)
}

/// A private key of any family.
pub enum Signer {
    Es256(SigningKey),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

impl Signer {
    pub fn es256() -> Self {
        Self::Es256(SigningKey::generate().expect("key"))
    }

    pub fn ed25519() -> Self {
        Self::Ed25519(Ed25519KeyPair::generate().expect("key"))
    }

    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("key"))
    }

    /// The public half, with this `kid`.
    pub fn jwk(&self, kid: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match self {
            Self::Es256(key) => key.public_jwk().clone(),
            Self::Ed25519(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key().as_ref())})
            }
            Self::Rsa(key) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
                json!({"kty": "RSA", "n": encode(&public.n), "e": encode(&public.e)})
            }
        };
        jwk["kid"] = kid.into();
        jwk
    }

    pub fn verifying(&self, kid: &str) -> VerifyingKey {
        VerifyingKey::from_jwk(&self.jwk(kid)).expect("public key")
    }

    /// A compact JWS with exactly this header; an RSA key follows its `alg`.
    pub fn sign(&self, header: &Value, payload: &Value) -> String {
        self.sign_bytes(header.to_string().as_bytes(), payload.to_string().as_bytes())
    }

    pub fn sign_bytes(&self, header: &[u8], payload: &[u8]) -> String {
        let input = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let signature = match self {
            Self::Es256(key) => key.sign_raw(input.as_bytes()),
            Self::Ed25519(key) => key.sign(input.as_bytes()).as_ref().to_vec(),
            Self::Rsa(key) => {
                let pss = String::from_utf8_lossy(header).contains("PS256");
                let padding: &'static dyn RsaEncoding = if pss { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(padding, &SystemRandom::new(), input.as_bytes(), &mut signature).expect("signature");
                signature
            }
        };
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// `value` with the fields of `changes` set; `null` removes a field.
pub fn with(value: &Value, changes: &Value) -> Value {
    let mut value = value.clone();
    let fields = value.as_object_mut().expect("object");
    for (name, change) in changes.as_object().expect("object") {
        if change.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), change.clone());
        }
    }
    value
}
