//! The facts from which a token derives, and their digests: defined once, so that the claim `lineage` and the
//! revocation index agree (contract §3, `lineage`).
//!
//! A workload identifier contains its trust domain, so its digest has no issuer. Every other fact is qualified by its
//! issuer. Digests are computed over canonical spellings ([`canonical_name`], [`canonical_email`]), so that revoking
//! one spelling covers the other. A [`Fact`] retains the given spelling, which may be the only one that a receiver
//! knows.

use std::borrow::Cow;

use crate::id::{Digest128, DigestKind, WorkloadId};

/// Kind of a workload identifier, and of a subject qualified by its issuer.
pub const SUBJECT: &str = "subject";
/// Kind of a token, and of a token family.
pub const TOKEN: &str = "token";

/// Kind of a fabric.
pub const FABRIC: &str = "fabric";

/// The canonical spelling of a subject or client: a SPIFFE ID and the WIMSE identifier with the same trust domain and
/// path name one workload.
#[must_use]
pub fn canonical_name(name: &str) -> Cow<'_, str> {
    name.strip_prefix("spiffe://").map_or(Cow::Borrowed(name), |rest| format!("wimse://{rest}").into())
}

/// Whether two spellings name one subject.
#[must_use]
pub fn is_same_name(one: &str, other: &str) -> bool {
    canonical_name(one) == canonical_name(other)
}

/// The canonical spelling of an email address: the domain, after the last `@`, in ASCII lower case. Equivalence of
/// local parts is known to the host of the domain only (RFC 5321 §2.3.11).
#[must_use]
pub fn canonical_email(email: &str) -> Cow<'_, str> {
    match email.rsplit_once('@') {
        Some((local, domain)) if domain.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            format!("{local}@{}", domain.to_ascii_lowercase()).into()
        }
        _ => Cow::Borrowed(email),
    }
}

/// One fact from which credentials derive: the unit of revocation.
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

    /// A token that this fabric, `iss`, minted. An identity token stands for its [`family`], so that revoking a leaked one
    /// also covers its renewals.
    #[must_use]
    pub fn own_token(iss: &str, jti: &str) -> Self {
        let is_identity_token = jti.contains(FAMILY_END);
        let kind = if is_identity_token { DigestKind::TokenFamily } else { DigestKind::Token };
        Self::new(kind, iss, jti)
    }

    /// As [`signing_key`].
    #[must_use]
    pub fn signing_key(iss: &str, kid: &str) -> Self {
        Self::new(DigestKind::SigningKey, iss, kid)
    }

    /// As [`fabric`].
    #[must_use]
    pub fn fabric(iss: &str) -> Self {
        Self::new(DigestKind::Fabric, "", iss)
    }

    fn new(kind: DigestKind, issuer: &str, value: &str) -> Self {
        Self { kind, issuer: issuer.to_owned(), value: value.to_owned() }
    }

    /// The digest, as in `lineage`.
    #[must_use]
    pub fn digest(&self) -> Digest128 {
        match self.kind {
            DigestKind::TokenFamily => family(&self.issuer, &self.value),
            kind => digest(kind, &self.issuer, &self.value),
        }
    }

    /// `subject`, `email`, `client`, `token`, `key` or `fabric`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.kind {
            DigestKind::Email => "email",
            DigestKind::Client => "client",
            DigestKind::Token | DigestKind::TokenFamily => TOKEN,
            DigestKind::SigningKey => "key",
            DigestKind::Fabric => FABRIC,
            _ => SUBJECT,
        }
    }

    /// The issuer; empty for a workload identifier and a fabric.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The subject, the address, the `client_id`, the `jti`, the `kid`, or the fabric's issuer.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }
}

/// The digest of a fact in its canonical spelling.
fn digest(kind: DigestKind, issuer: &str, value: &str) -> Digest128 {
    let canonical = match kind {
        DigestKind::Subject | DigestKind::Client => canonical_name(value),
        DigestKind::Email => canonical_email(value),
        _ => Cow::Borrowed(value),
    };
    Digest128::of(kind, issuer.as_bytes(), canonical.as_bytes())
}

/// A workload identifier, ours or a SPIFFE ID.
#[must_use]
pub fn workload(id: &WorkloadId) -> Digest128 {
    digest(DigestKind::Subject, "", id.as_str())
}

/// A fabric, by its issuer.
#[must_use]
pub fn fabric(iss: &str) -> Digest128 {
    digest(DigestKind::Fabric, "", iss)
}

/// A subject within its issuer, before mapping.
#[must_use]
pub fn subject(iss: &str, sub: &str) -> Digest128 {
    digest(DigestKind::Subject, iss, sub)
}

/// An email address that `iss` has verified.
#[must_use]
pub fn email(iss: &str, email: &str) -> Digest128 {
    digest(DigestKind::Email, iss, email)
}

/// A `client_id` of `iss`.
#[must_use]
pub fn client(iss: &str, client_id: &str) -> Digest128 {
    digest(DigestKind::Client, iss, client_id)
}

/// A token of `iss`, by `jti`.
#[must_use]
pub fn token(iss: &str, jti: &str) -> Digest128 {
    digest(DigestKind::Token, iss, jti)
}

/// Separator between the family and the rest of the `jti` of an identity token.
pub const FAMILY_END: char = '.';

/// The family of an identity token of ours, the issued token and all its renewals: the part of the `jti` before
/// [`FAMILY_END`].
#[must_use]
pub fn family(iss: &str, jti: &str) -> Digest128 {
    let name = jti.split_once(FAMILY_END).map_or(jti, |(name, _)| name);
    Digest128::of(DigestKind::TokenFamily, iss.as_bytes(), name.as_bytes())
}

/// A signing key of `iss`, by `kid`.
#[must_use]
pub fn signing_key(iss: &str, kid: &str) -> Digest128 {
    digest(DigestKind::SigningKey, iss, kid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkloadId {
        text.parse().expect("a workload identifier")
    }

    #[test]
    fn both_spellings_of_a_workload_have_one_digest() {
        let (spiffe, wimse) = ("spiffe://trust.example/a/b", "wimse://trust.example/a/b");
        assert_eq!(workload(&id(spiffe)), workload(&id(wimse)));
        assert_eq!(Fact::workload(&id(spiffe)).digest(), workload(&id(wimse)));
        assert_eq!(subject("https://i.example", spiffe), subject("https://i.example", wimse));
        assert_eq!(client("https://i.example", spiffe), Fact::client("https://i.example", wimse).digest());
        assert!(is_same_name(spiffe, wimse));
        assert_eq!(Fact::workload(&id(spiffe)).value(), spiffe, "the spelling is retained");
        for other in ["spiffe://trust.example/a/B", "spiffe://trust.example/a", "wimse://other.example/a/b"] {
            assert_ne!(workload(&id(other)), workload(&id(wimse)), "{other}");
            assert!(!is_same_name(other, wimse), "{other}");
        }
        // Neither a token nor a key is a name.
        assert_ne!(token("https://i.example", spiffe), token("https://i.example", wimse));
        assert_ne!(signing_key("https://i.example", spiffe), signing_key("https://i.example", wimse));
    }

    #[test]
    fn email_domain_is_compared_without_ascii_case() {
        let of = |address: &str| email("https://i.example", address);
        assert_eq!(of("a@B.Example"), of("a@b.example"));
        assert_eq!(of("\"x@Y\"@B.Example"), of("\"x@Y\"@b.example"), "after the last @");
        for other in ["A@b.example", "a@b.example.", "\"x@y\"@b.example", "a+t@b.example", " a@b.example"] {
            assert_ne!(of(other), of("a@b.example"), "{other}");
        }
        assert_ne!(of("\"x@Y\"@b.example"), of("\"x@y\"@b.example"), "the local part is unchanged");
        assert_ne!(of("a@\u{dc}.example"), of("a@\u{fc}.example"), "ASCII only");
    }
}
