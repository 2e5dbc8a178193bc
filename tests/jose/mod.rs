//! JOSE cases that Project Wycheproof lacks, with a generated ES256 key: base64url (Wycheproof's cases use
//! HMAC keys, which are refused earlier), documents with several keys, and keys inside a token.

mod base64;
mod key_documents;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::URL_SAFE_NO_PAD;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use trust_fabric::token;
use trust_fabric::token::jws::Compact;
use trust_fabric::token::key_set::{self, KeySet, Purpose};

const HEADER: &str = r#"{"alg":"ES256","kid":"k"}"#;

#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    Document(key_set::Error),
    Token(token::Error),
}

impl From<key_set::Error> for Refusal {
    fn from(error: key_set::Error) -> Self {
        Self::Document(error)
    }
}

impl From<token::Error> for Refusal {
    fn from(error: token::Error) -> Self {
        Self::Token(error)
    }
}

/// The payload of `token`, verified by the key of `document` that its `kid` selects.
pub fn verify(document: &Value, token: &str) -> Result<Vec<u8>, Refusal> {
    let set = KeySet::parse(document.to_string().as_bytes(), Purpose::Issuer)?;
    let compact = Compact::parse(token)?;
    let header = compact.header();
    let key = set.select(header.kid.as_deref(), header.algorithm)?;
    Ok(compact.verify(&key)?.payload().to_vec())
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An ES256 key with the `kid` `k`.
struct Key(EcdsaKeyPair);

impl Key {
    fn generate() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("key"))
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.0.public_key().as_ref()[1..].split_at(32);
        json!({"kty": "EC", "kid": "k", "alg": "ES256", "crv": "P-256", "x": encode(x), "y": encode(y)})
    }

    /// A JWK Set with this key alone.
    fn document(&self) -> Value {
        json!({"keys": [self.jwk()]})
    }

    /// Signs the two parts as they are, without encoding them.
    fn token_of_parts(&self, header: &str, payload: &str) -> String {
        let input = format!("{header}.{payload}");
        let signature = self.0.sign(&SystemRandom::new(), input.as_bytes()).expect("signature");
        format!("{input}.{}", encode(signature))
    }

    fn token_with_header(&self, header: &str, payload: &[u8]) -> String {
        self.token_of_parts(&encode(header), &encode(payload))
    }

    fn token(&self, payload: &[u8]) -> String {
        self.token_with_header(HEADER, payload)
    }
}
