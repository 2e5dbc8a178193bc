//! What a token derives from, as digests: one place that says how each fact is digested, so that the
//! revocation index and the claim `lineage` never disagree (contract §3, `lineage`).
//!
//! A workload identifier names its owner by itself, so its digest has no issuer. Everything else
//! means only what its issuer says it means.

use crate::id::{Digest128, DigestKind, WorkloadId};

/// A workload identifier, ours or a SPIFFE ID, as it stands in `sub`.
#[must_use]
pub fn workload(id: &WorkloadId) -> Digest128 {
    Digest128::of(DigestKind::Subject, b"", id.as_str().as_bytes())
}

/// A subject as its issuer names it, before mapping.
#[must_use]
pub fn subject(iss: &str, sub: &str) -> Digest128 {
    Digest128::of(DigestKind::Subject, iss.as_bytes(), sub.as_bytes())
}

/// An email address that `iss` says it has verified.
#[must_use]
pub fn email(iss: &str, email: &str) -> Digest128 {
    Digest128::of(DigestKind::Email, iss.as_bytes(), email.as_bytes())
}

/// A `client_id` known to `iss`.
#[must_use]
pub fn client(iss: &str, client_id: &str) -> Digest128 {
    Digest128::of(DigestKind::Client, iss.as_bytes(), client_id.as_bytes())
}

/// A token of `iss`, by `jti`.
#[must_use]
pub fn token(iss: &str, jti: &str) -> Digest128 {
    Digest128::of(DigestKind::Token, iss.as_bytes(), jti.as_bytes())
}

/// A signing key of `iss`, by `kid`.
#[must_use]
pub fn signing_key(iss: &str, kid: &str) -> Digest128 {
    Digest128::of(DigestKind::SigningKey, iss.as_bytes(), kid.as_bytes())
}
