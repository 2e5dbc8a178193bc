//! Subjects of certificates: callers and hosts, with their rules.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::str::FromStr;

use super::Error;
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;

/// Reserved file stems.
const TAKEN: [&str; 3] = ["ca", "node", "issuer"];

/// First path segment of a node's SPIFFE ID.
pub(super) const PEERS: &str = "node";

/// Prefix of the stems of peers.
const PEER_BEGINNING: &str = "peer-";

/// Suffix of the stem of a private key.
const KEY_ENDING: &str = "-key";

/// A caller that gets a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSubject {
    id: WorkloadId,
    file_stem: String,
}

impl CertificateSubject {
    /// Parses `ci`, `ns/demo/sa/reporter` or `spiffe://<trust domain>/ci`. The file stem is the path with `-` for `/`.
    ///
    /// # Errors
    /// [`Error::Caller`] with the rule it breaks.
    pub fn within(text: &str, trust_domain: &TrustDomain) -> Result<Self, Error> {
        let refused = |rule| Error::Caller { text: text.to_owned(), rule };
        let path = match text.split_once("://") {
            None => text,
            Some(("spiffe", rest)) => rest
                .split_once('/')
                .filter(|(domain, _)| *domain == trust_domain.as_str())
                .map(|(_, path)| path)
                .ok_or_else(|| refused("a SPIFFE ID must be of the trust domain, see --trust-domain"))?,
            Some(_) => return Err(refused("must be a path, or a SPIFFE ID that begins with spiffe://")),
        };
        if path.len() > limits::PKI_CALLER_BYTES_MAX {
            return Err(refused("its path is too long for the name of a file and of a subject"));
        }
        let id: WorkloadId = format!("spiffe://{trust_domain}/{path}").parse().map_err(|_| {
            refused("must be segments of A-Z, a-z, 0-9, '.', '-', '_' with a slash between, none of them '.' or '..'")
        })?;
        let file_stem = path.replace('/', "-");
        if path.split('/').next() == Some(PEERS) && path != PEERS {
            return Err(refused("paths below node/ are reserved for cluster members, see --peer"));
        }
        let is_peer = file_stem.strip_prefix(PEER_BEGINNING).is_some_and(|id| id.parse::<u64>().is_ok());
        if TAKEN.contains(&file_stem.as_str()) || is_peer || file_stem.ends_with(KEY_ENDING) {
            return Err(refused(
                "its files would be those of another subject: not 'ca', 'node', 'issuer', 'peer-1' and the like, and not ending in '-key'",
            ));
        }
        Ok(Self { id, file_stem })
    }

    /// `spiffe://<trust domain>/<path>`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Stem of its files: `<stem>.pem` and `<stem>-key.pem`.
    #[must_use]
    pub fn file_stem(&self) -> &str {
        &self.file_stem
    }
}

/// Stem of the files of peer `id`: `peer-1.pem` and `peer-1-key.pem`.
pub(super) fn peer_stem(id: NonZeroU64) -> String {
    format!("{PEER_BEGINNING}{id}")
}

/// A host name or address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A DNS name in lower case.
    Name(String),
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        // RFC 1034 §3.5 and RFC 1123 §2.1; a last label of digits would be parsed as an address.
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_name = text.len() <= limits::DNS_NAME_BYTES_MAX
            && text.split('.').all(is_label)
            && text.rsplit('.').next().is_some_and(|last| !last.bytes().all(|b| b.is_ascii_digit()));
        if is_name { Ok(Self::Name(text.to_owned())) } else { Err(Error::Host(text.to_owned())) }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> TrustDomain {
        "dev.example".parse().expect("trust domain")
    }

    #[test]
    fn caller_is_a_path_or_a_spiffe_id_of_the_trust_domain() {
        for (text, id, stem) in [
            ("ci", "spiffe://dev.example/ci", "ci"),
            ("ns/demo/sa/reporter", "spiffe://dev.example/ns/demo/sa/reporter", "ns-demo-sa-reporter"),
            ("spiffe://dev.example/ci", "spiffe://dev.example/ci", "ci"),
            ("keys", "spiffe://dev.example/keys", "keys"),
            ("peer-one", "spiffe://dev.example/peer-one", "peer-one"),
            ("nodes/1", "spiffe://dev.example/nodes/1", "nodes-1"),
        ] {
            let caller = CertificateSubject::within(text, &domain()).expect(text);
            assert_eq!((caller.id(), caller.file_stem()), (id, stem));
        }
    }

    #[test]
    fn caller_outside_directory_or_trust_domain_is_refused() {
        let longest = "a".repeat(limits::PKI_CALLER_BYTES_MAX);
        assert!(CertificateSubject::within(&longest, &domain()).is_ok());
        for (text, rule) in [
            ("", "segments"),
            ("..", "segments"),
            ("../ca", "segments"),
            ("a/../../b", "segments"),
            ("/etc/passwd", "segments"),
            ("a//b", "segments"),
            ("a/", "segments"),
            ("a\0b", "segments"),
            ("a\nb", "segments"),
            ("a b", "segments"),
            ("%2e%2e", "segments"),
            ("a\\b", "segments"),
            ("é", "segments"),
            ("a@b:1", "segments"),
            ("spiffe://dev.example/", "segments"),
            ("spiffe://dev.example/../x", "segments"),
            ("spiffe://other.example/ci", "trust domain"),
            ("spiffe://dev.example", "trust domain"),
            ("spiffe://dev.example.evil/ci", "trust domain"),
            ("spiffe:///ci", "trust domain"),
            ("wimse://dev.example/ci", "spiffe://"),
            ("SPIFFE://dev.example/ci", "spiffe://"),
            ("ca", "of another"),
            ("node", "of another"),
            ("issuer", "of another"),
            ("ca-key", "of another"),
            ("ci-key", "of another"),
            ("a/key", "of another"),
            ("peer-1", "of another"),
            ("peer/18446744073709551615", "of another"),
            ("node/1", "cluster members"),
            ("node/1/x", "cluster members"),
            ("spiffe://dev.example/node/1", "cluster members"),
            (&format!("{longest}a"), "too long"),
        ] {
            let refused = CertificateSubject::within(text, &domain()).expect_err(text);
            let Error::Caller { rule: content, .. } = &refused else { panic!("{text}: {refused}") };
            assert!(content.contains(rule), "{text}: {content}");
            let line = refused.to_string();
            assert!(line.starts_with("caller \"") && !line.contains(['\n', '\0']), "{line}");
        }
    }

    #[test]
    fn host_is_an_address_or_a_dns_name() {
        let longest = format!("{}{}", "a.".repeat(126), "a");
        assert_eq!(longest.len(), limits::DNS_NAME_BYTES_MAX);
        for good in ["localhost", "fabric.example.org", "a-1.b", "10.0.0.1", "::1", "2001:db8::1", &longest] {
            assert!(good.parse::<Host>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "*",
            "*.example.org",
            "A.example",
            "a..b",
            ".a",
            "a.",
            "-a",
            "a-",
            "a_b",
            "a b",
            "[::1]",
            "h:8694",
            "https://h",
            "1.2.3",
            "127.1",
            "10.0.0.256",
            "é.example",
            &"a".repeat(64),
            &format!("{longest}a"),
        ] {
            assert!(matches!(bad.parse::<Host>(), Err(Error::Host(_))), "{bad}");
        }
    }
}
