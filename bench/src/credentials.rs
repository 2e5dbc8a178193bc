//! The issuer that the node under test trusts, and its tokens: any number of valid ones, and invalid ones of
//! every kind.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::certificates::write_private;
use crate::load::Write;

/// `iss` of the credentials: the issuer in the shipped policy.
pub const ISSUER: &str = "http://127.0.0.1:8698";
/// `iss` of the node in the shipped policy.
pub const FABRIC: &str = "http://127.0.0.1:8693";
/// A service that `demo:reporter` may call by the shipped policy.
pub const AUDIENCE: &str = "https://tools.dev.trust-fabric.local/sql-query";

/// A private key of an issuer.
pub struct Issuer {
    key: Key,
    kid: &'static str,
    header: String,
    /// Unix seconds.
    issued_at_secs: u64,
}

enum Key {
    P256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Issuer {
    /// Generates a P-256 key.
    pub fn new(kid: &'static str) -> Result<Self> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .map_err(|_| anyhow!("failed to generate a key"))?;
        Self::of(Key::P256(key), kid)
    }

    /// Generates an RSA key of 2048 bits, for RS256.
    pub fn rsa(kid: &'static str) -> Result<Self> {
        let key = RsaKeyPair::generate(KeySize::Rsa2048).map_err(|_| anyhow!("failed to generate a key"))?;
        Self::of(Key::Rsa(key), kid)
    }

    fn of(key: Key, kid: &'static str) -> Result<Self> {
        let alg = match key {
            Key::P256(_) => "ES256",
            Key::Rsa(_) => "RS256",
        };
        let header = encode(json!({"alg": alg, "kid": kid, "typ": "JWT"}).to_string());
        let issued_at_secs = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(Self { key, kid, header, issued_at_secs })
    }

    /// Uses the P-256 key in the PEM file at `path`, which is created if missing.
    pub fn kept(kid: &'static str, path: &Path) -> Result<Self> {
        if !path.exists() {
            write_private(path, &rcgen::KeyPair::generate()?.serialize_pem())?;
        }
        let key = PrivateKeyDer::from_pem_file(path).with_context(|| path.display().to_string())?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_der())
            .map_err(|_| anyhow!("{}: not a P-256 key in PKCS #8", path.display()))?;
        Self::of(Key::P256(key), kid)
    }

    /// The public half as a JWK Set.
    pub fn key_set(&self) -> Value {
        json!({"keys": [self.jwk()]})
    }

    /// The public half.
    pub fn jwk(&self) -> Value {
        match &self.key {
            Key::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "use": "sig", "alg": "ES256",
                    "x": encode(x), "y": encode(y)})
            }
            Key::Rsa(key) => {
                let (n, e) = (key.public_key().modulus(), key.public_key().exponent());
                json!({"kty": "RSA", "kid": self.kid, "use": "sig", "alg": "RS256",
                    "n": encode(n.big_endian_without_leading_zero()),
                    "e": encode(e.big_endian_without_leading_zero())})
            }
        }
    }

    /// Claims of `demo:reporter` as a Kubernetes API server writes them. The number makes them unique, and
    /// their length is constant.
    pub fn claims(&self, number: u64) -> Value {
        json!({
            "iss": ISSUER,
            "sub": "system:serviceaccount:demo:reporter",
            "aud": [FABRIC],
            "iat": self.issued_at_secs,
            "nbf": self.issued_at_secs,
            "exp": self.issued_at_secs + 7200,
            "jti": format!("{number:032x}"),
            "kubernetes.io": {
                "namespace": "demo",
                "serviceaccount": {"name": "reporter", "uid": "9f2d7b4e-0d6c-4d2a-8d0c-0b6f2e0a4c11"},
            },
        })
    }

    pub fn sign(&self, claims: &Value) -> Result<String> {
        let mut token = format!("{}.{}", self.header, encode(claims.to_string()));
        let signature = self.signature(token.as_bytes()).map_err(|_| anyhow!("sign a token"))?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, Unspecified> {
        match &self.key {
            Key::P256(key) => Ok(key.sign(&SystemRandom::new(), message)?.as_ref().to_vec()),
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)?;
                Ok(signature)
            }
        }
    }

    /// A credential that is unique for the number.
    pub fn credential(&self, number: u64) -> Result<String> {
        self.sign(&self.claims(number))
    }

    /// A credential of the service account `demo:<account>`, issued now; the number makes it unique.
    pub fn credential_of(&self, account: &str, number: u64) -> Result<String> {
        let mut claims = self.claims(number);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        claims["sub"] = json!(format!("system:serviceaccount:demo:{account}"));
        claims["kubernetes.io"]["serviceaccount"]["name"] = json!(account);
        (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now), json!(now), json!(now + 600));
        self.sign(&claims)
    }

    /// Invalid bearer tokens, each with its fault. `minted` is a token of the node for another audience.
    pub fn bad_bearers(&self, minted: &str) -> Result<Vec<(&'static str, String)>> {
        let with = |member: &str, value: Value| {
            let mut claims = self.claims(1);
            claims[member] = value;
            claims
        };
        let stranger = Self::new(self.kid)?;
        let none = format!(
            "{}.{}.",
            encode(json!({"alg": "none", "typ": "at+jwt"}).to_string()),
            encode(with("iss", json!(FABRIC)).to_string())
        );
        Ok(vec![
            ("garbage", "garbage".to_owned()),
            ("three empty parts", "..".to_owned()),
            ("very long", "a".repeat(12_000)),
            ("of an issuer of credentials", self.credential(1)?),
            ("of an unknown key", stranger.credential(1)?),
            ("in our name, by an issuer's key", self.sign(&with("iss", json!(FABRIC)))?),
            ("in our name, without a signature", none),
            ("expired", self.sign(&with("exp", json!(self.issued_at_secs - 60)))?),
            ("for another audience", self.sign(&with("aud", json!([AUDIENCE])))?),
            ("ours, for another audience", minted.to_owned()),
            ("ours, last part changed", tampered(minted)),
            ("ours, without its signature", minted.rsplit_once('.').map_or("", |(head, _)| head).to_owned()),
        ])
    }
}

/// The body of an exchange of `token`.
pub fn exchange(token: &str) -> String {
    format!("{}{token}{}", BODY[0], BODY[1])
}

/// The body of an exchange before and after its subject token.
pub const BODY: [&str; 2] = [
    r#"{"grant_type":"urn:ietf:params:oauth:grant-type:token-exchange","subject_token_type":"urn:ietf:params:oauth:token-type:jwt","audience":"https://tools.dev.trust-fabric.local/sql-query","subject_token":""#,
    r#""}"#,
];

/// Exchange requests that differ only in their token, in one buffer.
pub struct PreparedRequests {
    head: Vec<u8>,
    tokens: Vec<u8>,
    token_bytes: usize,
}

impl PreparedRequests {
    /// Prepares `count` of them, numbered from `first`, for `host`.
    pub fn new(issuer: &Issuer, host: &str, first: u64, count: usize) -> Result<Self> {
        Self::of(host, (first..first + count as u64).map(|number| issuer.credential(number)))
    }

    /// The same for these credentials, all of which have the same length.
    pub fn of(host: &str, credentials: impl IntoIterator<Item = Result<String>>) -> Result<Self> {
        let mut credentials = credentials.into_iter();
        let first = credentials.next().context("no credential")??;
        let token_bytes = first.len();
        let length = BODY[0].len() + token_bytes + BODY[1].len();
        let head = format!(
            "POST /v1/exchange/token HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{}",
            BODY[0]
        );
        let mut tokens = first.into_bytes();
        for credential in credentials {
            let credential = credential?;
            if credential.len() != token_bytes {
                bail!("credentials of different lengths");
            }
            tokens.extend_from_slice(credential.as_bytes());
        }
        Ok(Self { head: head.into_bytes(), tokens, token_bytes })
    }

    pub fn count(&self) -> u64 {
        (self.tokens.len() / self.token_bytes) as u64
    }

    /// The requests for a load.
    pub fn into_write(self) -> Write {
        Arc::new(move |number, request| self.write(number, request))
    }

    /// Writes request `number` into `request`; numbers wrap around.
    pub fn write(&self, number: u64, request: &mut Vec<u8>) {
        let index = usize::try_from(number % self.count()).unwrap_or_default() * self.token_bytes;
        request.clear();
        request.extend_from_slice(&self.head);
        request.extend_from_slice(&self.tokens[index..index + self.token_bytes]);
        request.extend_from_slice(BODY[1].as_bytes());
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The same token with another last part of the same length.
fn tampered(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap_or((token, ""));
    let turned: String = signature.chars().rev().collect();
    format!("{signed}.{turned}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_requests_are_whole_and_differ() {
        let issuer = Issuer::new("k").expect("issuer");
        let prepared = PreparedRequests::new(&issuer, "localhost", 7, 3).expect("requests");
        assert_eq!(prepared.count(), 3);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        prepared.write(0, &mut first);
        prepared.write(1, &mut second);
        assert_ne!(first, second);
        let text = String::from_utf8(first).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["subject_token"].as_str().expect("token").split('.').count(), 3);
        assert_eq!(body["audience"], AUDIENCE);
    }
}
