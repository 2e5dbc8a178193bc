//! Private keys of issuers, and tokens with any header and payload, valid or not.

use std::sync::OnceLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Base64url without padding.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key with its `kid`.
pub struct Signer {
    kid: &'static str,
    key: Key,
}

enum Key {
    P256(EcdsaKeyPair),
    Rsa(&'static RsaKeyPair),
}

impl Signer {
    /// A new P-256 key.
    pub fn es256(kid: &'static str) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("key");
        Self { kid, key: Key::P256(key) }
    }

    /// The RSA key of this process: generating one takes long.
    pub fn rsa(kid: &'static str) -> Self {
        static KEY: OnceLock<RsaKeyPair> = OnceLock::new();
        let key = KEY.get_or_init(|| RsaKeyPair::generate(KeySize::Rsa2048).expect("key"));
        Self { kid, key: Key::Rsa(key) }
    }

    pub fn kid(&self) -> &'static str {
        self.kid
    }

    pub fn alg(&self) -> &'static str {
        match self.key {
            Key::P256(_) => "ES256",
            Key::Rsa(_) => "RS256",
        }
    }

    pub fn jwk(&self) -> Value {
        match &self.key {
            Key::P256(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "use": "sig", "alg": "ES256",
                    "x": encode(&point[1..33]), "y": encode(&point[33..])})
            }
            Key::Rsa(key) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
                json!({"kty": "RSA", "kid": self.kid, "use": "sig",
                    "n": encode(public.n), "e": encode(public.e)})
            }
        }
    }

    /// The default header of its tokens.
    pub fn header(&self) -> Value {
        json!({"alg": self.alg(), "kid": self.kid})
    }

    /// A token of `claims` with [`Signer::header`].
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.header(), claims)
    }

    /// A token with exactly this header and payload.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        self.sign_bytes(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    /// A token with exactly these bytes.
    pub fn sign_bytes(&self, header: &[u8], payload: &[u8]) -> String {
        let input = format!("{}.{}", encode(header), encode(payload));
        let signature = match &self.key {
            Key::P256(key) => {
                key.sign(&SystemRandom::new(), input.as_bytes()).expect("signature").as_ref().to_vec()
            }
            Key::Rsa(key) => {
                let pss = String::from_utf8_lossy(header).contains("PS256");
                let padding: &'static dyn RsaEncoding = if pss { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(padding, &SystemRandom::new(), input.as_bytes(), &mut signature).expect("signature");
                signature
            }
        };
        format!("{input}.{}", encode(signature))
    }
}

/// The same ES256 token with the other valid signature: (r, n - s).
pub fn malleate(token: &str) -> String {
    const ORDER: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa,
        0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
    let (input, signature) = token.rsplit_once('.').expect("a signature");
    let mut signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
    let mut borrow = 0i16;
    for at in (0..32).rev() {
        let difference = i16::from(ORDER[at]) - i16::from(signature[32 + at]) - borrow;
        borrow = i16::from(difference < 0);
        signature[32 + at] = difference.rem_euclid(256).to_le_bytes()[0];
    }
    format!("{input}.{}", encode(signature))
}
