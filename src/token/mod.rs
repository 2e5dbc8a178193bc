//! Pure JOSE: compact JWS, key sets, claim rules, the three credential kinds, minting, security event tokens.
//!
//! Everything here is a function of its arguments: no network, no files, no clock. Keys of foreign
//! issuers are brought by `outbound`; whether a credential is revoked is asked in `exchange`.
//! Everything that remembers a token remembers `(iss, jti)`, never its text: ES256 signatures are
//! malleable (contract §3). The one exception is [`signature_cache`], which remembers only that
//! exactly this text was signed by exactly this key.

pub mod act;
pub mod claims;
pub mod confirmation;
mod credential;
pub mod encryption_key;
mod error;
pub mod event_types;
pub mod execution;
pub mod foreign;
pub mod issued;
pub mod issuer;
mod jwk;
pub mod jws;
pub mod key_set;
pub mod lineage;
pub mod mint;
mod rsa;
pub mod security_event;
pub mod signature_cache;
pub mod signing_key;
pub mod subject_id;
pub mod subject_mapping;
#[cfg(test)]
pub(crate) mod testing;

pub use confirmation::CertificateDigest;
pub use error::Error;
pub use execution::BodyHash;
