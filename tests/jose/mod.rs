//! Wycheproof's JWS and JWK cases, rebuilt with keys that are made here.
//!
//! `json_web_signature_test.json` has 401 cases and `json_web_key_test.json` 26. Each is here by
//! what it changes, made anew, with the refusal that it must meet; what a library cannot be made to
//! sign wrongly is signed by arithmetic (`rsa_key.rs`). Every test states how many cases it ran, so
//! that none falls out unseen:
//!
//! | Cases | Their numbers there | Where |
//! |---|---|---|
//! | 45 | 1-45 | `forms.rs`: parts modified, missing, too many; key confusion |
//! | 213 | 46-258 | `pkcs1.rs`: faults of the encoding below an RS256 signature |
//! | 13 | 259-271 | `pkcs1.rs`: good signatures over any payload |
//! | 73 | 272-344 | `pss.rs`: faults of the encoding below a PS256 signature, other algorithms, `none` |
//! | 12 | 345-356 | `key_documents.rs`: the RFC 7520 keys, `use` and `key_ops` |
//! | 21 | 357-377 | `base64.rs` |
//! | 24 | 378-401 | `es256.rs`: r and s out of their range or of a wrong length |
//! | 26 | all JWK cases | `key_documents.rs` |
//!
//! Cases that are good there and refused here, each by a rule of ours, and asserted as refused:
//! HMAC, because a key set is public (RFC 8725 §3.1); ES512, which is on no allow-list; a PS384
//! token for a key whose `alg` is PS256 (RFC 7517 §4.4); a character outside the alphabet put into
//! a part that was signed without it, because base64url has no such characters (RFC 7515 §2).
//!
//! Two cases on padding (367 and 370) are there the same text as a good one, so they are rebuilt by
//! their names.

mod base64;
mod es256;
mod forms;
mod key_documents;
mod keys;
mod pkcs1;
mod pss;
mod rsa_key;

use ::base64::Engine as _;
use ::base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use trust_fabric::token;
use trust_fabric::token::jws::Compact;
use trust_fabric::token::key_set::{self, KeySet, Purpose};

/// Why a token was refused under a key document.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
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

/// The payload of `token`, verified by the key of `document` that it names.
fn verify(document: &Value, token: &str) -> Result<Vec<u8>, Refusal> {
    let set = KeySet::parse(document.to_string().as_bytes(), Purpose::Issuer)?;
    let compact = Compact::parse(token)?;
    let header = compact.header();
    let key = set.select(header.kid.as_deref(), header.algorithm)?;
    Ok(compact.verify(&key)?.payload().to_vec())
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).expect("base64url")
}

/// `token` with another signature.
fn with_signature(token: &str, signature: &[u8]) -> String {
    let (input, _) = token.rsplit_once('.').expect("a compact JWS");
    format!("{input}.{}", encode(signature))
}

fn signature_of(token: &str) -> Vec<u8> {
    decode(token.rsplit_once('.').expect("a compact JWS").1)
}
