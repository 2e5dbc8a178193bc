//! JOSE and claim rules: compact JWS, key sets, the three credential kinds, minting, security event tokens.
//!
//! Pure functions: no network, no files, no clock. Keys of foreign issuers come from `outbound`; revocation is checked
//! by the use-cases. ES256 signatures are malleable, so stored state names a token by `(iss, jti)`, never by its text
//! (contract §3). The exception is [`signature_cache`], which stores that one text was signed by one key.

pub mod act;
pub(crate) mod claims;
pub(crate) mod confirmation;
mod credential;
mod encoding;
pub mod encryption_key;
mod error;
pub(crate) mod event_types;
pub(crate) mod execution;
pub mod fabric_peers;
pub mod federated;
pub mod foreign;
pub mod issued;
pub mod issuer;
mod jwk;
pub mod jws;
pub mod key_set;
pub mod lineage;
pub(crate) mod mint;
mod rsa;
pub mod security_event;
pub mod signature_cache;
pub mod signing_key;
pub(crate) mod subject_id;
pub(crate) mod subject_mapping;
#[cfg(test)]
pub(crate) mod testing;

pub use confirmation::CertificateDigest;
pub use error::Error;
pub use execution::BodyHash;
