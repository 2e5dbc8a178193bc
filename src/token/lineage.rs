//! What a token derives from, as digests: one place that says how each fact is digested, so that the
//! revocation index and the claim `lineage` never disagree (contract §3, `lineage`).
//!
//! A workload identifier names its owner by itself, so its digest has no issuer. Everything else
//! means only what its issuer says it means.

use crate::id::{Digest128, DigestKind, WorkloadId};

/// The kind of a workload identifier, and of a subject as its issuer names it.
pub const SUBJECT: &str = "subject";

/// One fact that credentials derive from, with the words its digest is made of: what is revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    kind: DigestKind,
    issuer: String,
    value: String,
}

impl Fact {
    /// As [`workload`].
    #[must_use]
    pub fn workload(id: &WorkloadId) -> Self {
        Self::new(DigestKind::Subject, "", id.as_str())
    }

    /// As [`subject`].
    #[must_use]
    pub fn subject(iss: &str, sub: &str) -> Self {
        Self::new(DigestKind::Subject, iss, sub)
    }

    /// As [`email`].
    #[must_use]
    pub fn email(iss: &str, email: &str) -> Self {
        Self::new(DigestKind::Email, iss, email)
    }

    /// As [`client`].
    #[must_use]
    pub fn client(iss: &str, client_id: &str) -> Self {
        Self::new(DigestKind::Client, iss, client_id)
    }

    /// As [`token`].
    #[must_use]
    pub fn token(iss: &str, jti: &str) -> Self {
        Self::new(DigestKind::Token, iss, jti)
    }

    /// As [`signing_key`].
    #[must_use]
    pub fn signing_key(iss: &str, kid: &str) -> Self {
        Self::new(DigestKind::SigningKey, iss, kid)
    }

    fn new(kind: DigestKind, issuer: &str, value: &str) -> Self {
        Self { kind, issuer: issuer.to_owned(), value: value.to_owned() }
    }

    /// As it stands in `lineage`.
    #[must_use]
    pub fn digest(&self) -> Digest128 {
        Digest128::of(self.kind, self.issuer.as_bytes(), self.value.as_bytes())
    }

    /// `subject`, `email`, `client`, `token` or `key`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.kind {
            DigestKind::Email => "email",
            DigestKind::Client => "client",
            DigestKind::Token => "token",
            DigestKind::SigningKey => "key",
            _ => SUBJECT,
        }
    }

    /// Whose word it is; empty for a workload identifier.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The subject, the address, the `client_id`, the `jti` or the `kid`.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

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
