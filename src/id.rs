//! Identifiers: trust domains, workload identifiers, digests of facts, log positions.
//!
//! Identifiers are compared byte for byte, never by prefix and never after decoding (WIMSE identifier §4;
//! contract §3). Parsing is the only way to construct one.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::limits;

/// Reason why an identifier is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A trust domain is 1 to 255 of `[a-z0-9._-]` (SPIFFE-ID §2.1).
    #[error("trust domain must be 1 to 255 of a-z, 0-9, '.', '-', '_'")]
    TrustDomain,
    /// A workload identifier is `wimse://` or `spiffe://`, a trust domain, and a path.
    #[error(
        "workload identifier must be wimse:// or spiffe://, a trust domain, and a path of non-empty segments of A-Z, a-z, 0-9, '.', '-', '_'"
    )]
    WorkloadId,
    /// A digest is 16 bytes in base64url without padding.
    #[error("digest must be 16 bytes in base64url")]
    Digest,
    /// A log position is `<incarnation>-<index>`.
    #[error("log position must be <incarnation>-<index>")]
    LogPosition,
}

/// The name of a trust domain, for example `trust.example.com`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(String);

impl TrustDomain {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TrustDomain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let well_formed = (1..=limits::TRUST_DOMAIN_BYTES_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_'));
        if well_formed { Ok(Self(text.to_owned())) } else { Err(Error::TrustDomain) }
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A workload identifier: `wimse://<trust-domain>/<path>` or `spiffe://<trust-domain>/<path>`.
///
/// The path uses the SPIFFE alphabet for both schemes: no percent-encoding, no empty, `.` or `..`
/// segment, no trailing slash (SPIFFE-ID §2.2), so two spellings never name one workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId {
    text: String,
    trust_domain: TrustDomain,
}

impl WorkloadId {
    /// The identifier as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The trust domain it belongs to.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Whether it has the form that is reserved for agents of `trust_domain`:
    /// `<scheme>://<trust domain>/agent/…` (contract §4).
    #[must_use]
    pub fn is_agent_of(&self, trust_domain: &TrustDomain) -> bool {
        let path = self.text.splitn(4, '/').nth(3).unwrap_or_default();
        self.trust_domain == *trust_domain && path.split('/').next() == Some("agent")
    }
}

impl FromStr for WorkloadId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > limits::WORKLOAD_ID_BYTES_MAX {
            return Err(Error::WorkloadId);
        }
        let rest = text
            .strip_prefix("wimse://")
            .or_else(|| text.strip_prefix("spiffe://"))
            .ok_or(Error::WorkloadId)?;
        let (trust_domain, path) = rest.split_once('/').ok_or(Error::WorkloadId)?;
        let trust_domain = trust_domain.parse().map_err(|_| Error::WorkloadId)?;
        if !path.split('/').all(is_path_segment) {
            return Err(Error::WorkloadId);
        }
        Ok(Self { text: text.to_owned(), trust_domain })
    }
}

impl fmt::Display for WorkloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether `text` is a valid path segment of a workload identifier (SPIFFE-ID §2.2).
#[must_use]
pub fn is_path_segment(text: &str) -> bool {
    !text.is_empty()
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// Kind of the value under a [`Digest128`]. The number is part of the digest and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DigestKind {
    /// A subject identifier.
    Subject = 1,
    /// A verified email address.
    Email = 2,
    /// A `client_id`.
    Client = 3,
    /// A token, by `jti`.
    Token = 4,
    /// A signing key, by `kid`.
    SigningKey = 5,
    /// An execution scope's nonce; the issuer is the subject it is spent for.
    Nonce = 6,
    /// An `Idempotency-Key`; the issuer is the caller.
    IdempotencyKey = 7,
    /// The body of a request that carried an `Idempotency-Key`.
    RequestBody = 8,
    /// An execution-scoped token, used up by its first verification.
    Execution = 9,
    /// A tool, by its `tool_id`.
    Tool = 10,
    /// A security event token, by `jti`.
    Signal = 11,
    /// A family of security events; the issuer is that of the signals.
    SignalFamily = 12,
    /// The claims of a security event token, as canonical JSON.
    SignalContent = 13,
    /// A family of identity tokens, by the part of `jti` that its tokens share.
    TokenFamily = 14,
    /// A caller, as the owner of rows under a quota.
    Owner = 15,
    /// A fabric, by its issuer.
    Fabric = 16,
}

/// The first 128 bits of SHA-256 over (kind, issuer, value), each length-prefixed, so that no
/// value of one kind or issuer can form the digest of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest128([u8; 16]);

impl Digest128 {
    /// The digest of one fact.
    #[must_use]
    pub fn of(kind: DigestKind, issuer: &[u8], value: &[u8]) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&[kind as u8]);
        for part in [issuer, value] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&context.finish().as_ref()[..16]);
        Self(bytes)
    }

    /// From its raw bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl FromStr for Digest128 {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Error::Digest)?;
        bytes.try_into().map(Self).map_err(|_| Error::Digest)
    }
}

impl fmt::Display for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identity of one life of the cluster, from one bootstrap or restore to the next: 128 random bits. Log indexes of
/// different incarnations are never compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation([u8; 16]);

impl Incarnation {
    /// From raw bytes, which the caller has drawn at random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A position in the replicated log, written `<incarnation>-<index>` (claim `idx`, contract §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    /// Incarnation that the index belongs to.
    pub incarnation: Incarnation,
    /// The log index.
    pub index: u64,
}

impl FromStr for LogPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (incarnation, index) = text.split_once('-').ok_or(Error::LogPosition)?;
        let well_formed = incarnation.len() == 32
            && incarnation.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            && !index.is_empty()
            && index.bytes().all(|b| b.is_ascii_digit());
        if !well_formed {
            return Err(Error::LogPosition);
        }
        let bits = u128::from_str_radix(incarnation, 16).map_err(|_| Error::LogPosition)?;
        Ok(Self {
            incarnation: Incarnation(bits.to_be_bytes()),
            index: index.parse().map_err(|_| Error::LogPosition)?,
        })
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.incarnation, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_id_of_either_scheme_is_accepted() {
        for text in ["wimse://trust.example.com/ns/prod/sa/web", "spiffe://trust.example.com/web"] {
            let id: WorkloadId = text.parse().expect("well formed");
            assert_eq!(id.as_str(), text);
            assert_eq!(id.trust_domain().as_str(), "trust.example.com");
        }
    }

    #[test]
    fn alternative_spelling_of_a_workload_id_is_refused() {
        for text in [
            "",
            "wimse://trust.example.com",
            "wimse://trust.example.com/",
            "wimse://trust.example.com/a/",
            "wimse://trust.example.com//a",
            "wimse://trust.example.com/a/../b",
            "wimse://trust.example.com/a/./b",
            "wimse://trust.example.com/a%2fb",
            "wimse://Trust.example.com/a",
            "wimse://trust.example.com:8693/a",
            "wimse://user@trust.example.com/a",
            "wimse://trust.example.com/a?b",
            "wimse://trust.example.com/a#b",
            "WIMSE://trust.example.com/a",
            "https://trust.example.com/a",
            "wimse:///a",
        ] {
            assert_eq!(text.parse::<WorkloadId>(), Err(Error::WorkloadId), "{text}");
        }
    }

    #[test]
    fn bytes_shifted_between_fields_change_the_digest() {
        let one = Digest128::of(DigestKind::Subject, b"ab", b"c");
        assert_ne!(one, Digest128::of(DigestKind::Subject, b"a", b"bc"));
        assert_ne!(one, Digest128::of(DigestKind::Client, b"ab", b"c"));
        assert_eq!(one.to_string().parse(), Ok(one));
    }

    #[test]
    fn log_position_round_trips_through_text() {
        let position = LogPosition { incarnation: Incarnation([7; 16]), index: 42 };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in
            ["", "-", "07-1", "07070707070707070707070707070707-", "07070707070707070707070707070707-+1"]
        {
            assert_eq!(text.parse::<LogPosition>(), Err(Error::LogPosition), "{text}");
        }
    }

    #[test]
    fn identifier_over_the_length_limit_is_refused() {
        let trust_domain = |bytes: usize| "a".repeat(bytes).parse::<TrustDomain>();
        assert!(trust_domain(limits::TRUST_DOMAIN_BYTES_MAX).is_ok());
        assert_eq!(trust_domain(limits::TRUST_DOMAIN_BYTES_MAX + 1), Err(Error::TrustDomain));
        let start = "wimse://a/";
        let id = |bytes: usize| format!("{start}{}", "b".repeat(bytes - start.len())).parse::<WorkloadId>();
        assert!(id(limits::WORKLOAD_ID_BYTES_MAX).is_ok());
        assert_eq!(id(limits::WORKLOAD_ID_BYTES_MAX + 1), Err(Error::WorkloadId));
    }
}
