//! Keys under the name `k`, and the tokens they sign.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
};
use serde_json::{Value, json};

use super::rsa_key::RsaKey;
use super::{encode, pkcs1, pss};

/// A key and the one algorithm it is for.
pub struct Key {
    pub alg: &'static str,
    secret: Secret,
}

enum Secret {
    Ec { pair: EcdsaKeyPair, curve: &'static str },
    Rsa(RsaKey),
    Mac(Vec<u8>),
}

impl Key {
    pub fn es256() -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("key");
        Self { alg: "ES256", secret: Secret::Ec { pair, curve: "P-256" } }
    }

    pub fn es512() -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P521_SHA512_FIXED_SIGNING).expect("key");
        Self { alg: "ES512", secret: Secret::Ec { pair, curve: "P-521" } }
    }

    pub fn rsa(alg: &'static str) -> Self {
        Self::of_rsa(alg, RsaKey::generate(2048))
    }

    pub fn of_rsa(alg: &'static str, key: RsaKey) -> Self {
        Self { alg, secret: Secret::Rsa(key) }
    }

    /// HS256, HS384 or HS512 with these bytes.
    pub fn mac(alg: &'static str, secret: &[u8]) -> Self {
        Self { alg, secret: Secret::Mac(secret.to_vec()) }
    }

    /// The public half; of a MAC there is only the whole.
    pub fn jwk(&self) -> Value {
        match &self.secret {
            Secret::Ec { pair, curve } => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
                json!({"kty": "EC", "kid": "k", "alg": self.alg, "crv": curve,
                    "x": encode(x), "y": encode(y)})
            }
            Secret::Rsa(key) => key.jwk(self.alg),
            Secret::Mac(secret) => json!({"kty": "oct", "kid": "k", "alg": self.alg, "k": encode(secret)}),
        }
    }

    /// A JWK Set of this key alone.
    pub fn document(&self) -> Value {
        json!({"keys": [self.jwk()]})
    }

    /// The bytes that make the public half: what a confused verifier takes for a secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        match &self.secret {
            Secret::Ec { pair, .. } => pair.public_key().as_ref().to_vec(),
            Secret::Rsa(key) => key.modulus().to_bytes_be(),
            Secret::Mac(secret) => secret.clone(),
        }
    }

    /// The signature of `input` by `alg`, which need not be this key's own.
    pub fn sign_as(&self, alg: &str, input: &[u8]) -> Vec<u8> {
        match &self.secret {
            Secret::Ec { pair, .. } => {
                pair.sign(&SystemRandom::new(), input).expect("signature").as_ref().to_vec()
            }
            Secret::Rsa(key) => {
                let hash = pkcs1::hash_of(alg);
                let encoded = match &alg[..2] {
                    "RS" => pkcs1::encode(&pkcs1::good_digest_info(hash, input), key.bytes()),
                    _ => pss::Encoding::of(hash, input).encode(key.bytes()),
                };
                key.sign(&encoded)
            }
            Secret::Mac(secret) => {
                let algorithm = match alg {
                    "HS256" => hmac::HMAC_SHA256,
                    "HS384" => hmac::HMAC_SHA384,
                    _ => hmac::HMAC_SHA512,
                };
                hmac::sign(&hmac::Key::new(algorithm, secret), input).as_ref().to_vec()
            }
        }
    }

    /// A signed token of these two parts as they are spelled.
    pub fn token_of_parts(&self, header: &str, payload: &str) -> String {
        let input = format!("{header}.{payload}");
        let signature = self.sign_as(self.alg, input.as_bytes());
        format!("{input}.{}", encode(signature))
    }

    /// A token whose header says exactly this.
    pub fn token_with_header(&self, header: &str, payload: &[u8]) -> String {
        self.token_of_parts(&encode(header), &encode(payload))
    }

    /// A good token.
    pub fn token(&self, payload: &[u8]) -> String {
        self.token_with_header(&header(self.alg), payload)
    }
}

/// The header of a token of the key `k`.
pub fn header(alg: &str) -> String {
    format!(r#"{{"alg":"{alg}","kid":"k"}}"#)
}

/// Payloads that every good signature is tried over: no bytes, bytes of zero, one byte, text, and bytes
/// that are no text.
pub fn payloads() -> [Vec<u8>; 5] {
    [vec![], vec![0; 20], b"a".to_vec(), b"Test".to_vec(), (0xe0..=0xff).collect()]
}
