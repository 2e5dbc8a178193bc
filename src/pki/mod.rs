//! A development CA with certificates for nodes and callers, and a development issuer, in one directory.
//!
//! For development only: the CA's key lies beside the certificates. `docs/guide/certificates.md` describes production. A node
//! uses nothing of this module.

mod certificate;
mod files;
mod issuer;
mod names;

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

pub use self::issuer::{DevelopmentIssuer, IssuerFiles};
pub use self::names::{CertificateSubject, Host};
use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::token::signing_key;

/// Reason for which certificates were not created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A caller that is not a path below the trust domain, or is not a valid file name.
    #[error("caller {text:?}: {rule}")]
    Caller { text: String, rule: &'static str },
    /// Two callers of one request map to the same file.
    #[error("caller {0}: another caller has the same file name")]
    CallerTwice(String),
    /// Neither an IP address nor a DNS name.
    #[error("host {0:?}: must be an IP address, or a DNS name in lower case without wildcard")]
    Host(String),
    /// A file or the directory is not accessible.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A directory or private key is accessible to others.
    #[error("{}: mode {mode:o} allows access to others than its owner", path.display())]
    TooOpen { path: PathBuf, mode: u32 },
    /// Only one of certificate and key exists.
    #[error("{}: {} is missing; remove the former to create both", present.display(), missing.display())]
    HalfMissing { present: PathBuf, missing: PathBuf },
    /// A file of an earlier run does not match the request.
    #[error("{}: {reason}; it is never overwritten: remove it and its key, or choose another directory", path.display())]
    Unfit { path: PathBuf, reason: Unfit },
    /// Creating a key or certificate failed.
    #[error("failed to create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The development issuer's key is invalid.
    #[error("key of the development issuer: {0}")]
    IssuerKey(#[from] signing_key::Error),
    /// The directory has no development issuer.
    #[error("{}: there is no development issuer", .0.display())]
    NoIssuer(PathBuf),
    /// The development issuer refused a credential.
    #[error("credential: {0}")]
    Credential(String),
    /// The system clock is outside the years of a certificate.
    #[error("failed to create a certificate: the system clock is out of range")]
    Clock,
}

/// Reason for which a certificate of an earlier run does not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Not a certificate in PEM.
    #[error("it is not a certificate in PEM")]
    NotACertificate,
    /// The file beside it is not a private key in PEM.
    #[error("the file beside it is not a private key in PEM")]
    NotAKey,
    /// Not a CA certificate.
    #[error("it is not a CA certificate")]
    NotACa,
    /// Expired, or not valid yet.
    #[error("it is not valid now")]
    Expired,
    /// A JWK Set of another key.
    #[error("it is not the key set of the private key beside it")]
    OtherKeySet,
    /// Signed by another CA.
    #[error("it is not signed by the CA in this directory")]
    OtherCa,
    /// The key beside it is of another certificate.
    #[error("the private key beside it does not belong to it")]
    OtherKey,
    /// It lacks a requested name, or has another SPIFFE ID.
    #[error("it does not name {0}")]
    OtherName(String),
}

/// Requested certificates.
#[derive(Clone, Debug)]
pub struct CertificatePlan {
    /// Directory of the files; created if absent.
    pub directory: PathBuf,
    /// Trust domain of the certificates.
    pub trust_domain: TrustDomain,
    /// Names of the node besides `localhost`, `127.0.0.1` and `::1`.
    pub hosts: Vec<Host>,
    /// Cluster members that get a peer certificate, by `node.id`.
    pub peers: Vec<NonZeroU64>,
    /// Callers that get a certificate.
    pub callers: Vec<CertificateSubject>,
    /// Lifetime of new certificates; none outlives its CA.
    pub lifetime_days: u32,
}

/// A certificate and its private key on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its private key, PKCS #8 in PEM, mode 0600.
    pub private_key: PathBuf,
    /// Last second of its validity.
    pub not_after: Timestamp,
    /// Whether it was created now; otherwise it existed and is unchanged.
    pub is_new: bool,
}

/// Content of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificates {
    /// CA of nodes and callers.
    pub ca: IssuedCertificate,
    pub node: IssuedCertificate,
    /// Peer certificates, in the order of the request.
    pub peers: Vec<(NonZeroU64, IssuedCertificate)>,
    /// Certificates of callers, in the order of the request.
    pub callers: Vec<(CertificateSubject, IssuedCertificate)>,
}

/// Creates the requested certificates that do not exist yet, valid from `now` on. Never overwrites. Files created before
/// an error stay, and the next attempt uses them.
pub fn make(request: &CertificatePlan, now: Timestamp) -> Result<IssuedCertificates, Error> {
    for (index, caller) in request.callers.iter().enumerate() {
        if request.callers.iter().take(index).any(|other| other.file_stem() == caller.file_stem()) {
            return Err(Error::CallerTwice(caller.id().to_owned()));
        }
    }
    files::make_directory(&request.directory)?;
    let validity = certificate::Validity::from(now, request.lifetime_days);
    let (ca, issuer) = certificate::ca(&paths(&request.directory, "ca"), &request.trust_domain, validity)?;
    let validity = validity.within(ca.not_after);
    let node_names = certificate::Names::of_node(&request.trust_domain, &request.hosts);
    let node = certificate::end_entity(&paths(&request.directory, "node"), &issuer, &node_names, validity)?;
    let mut peers = Vec::with_capacity(request.peers.len());
    for id in &request.peers {
        let paths = paths(&request.directory, &names::peer_stem(*id));
        let names = certificate::Names::of_peer(&request.trust_domain, *id);
        peers.push((*id, certificate::end_entity(&paths, &issuer, &names, validity)?));
    }
    let mut callers = Vec::with_capacity(request.callers.len());
    for caller in &request.callers {
        let paths = paths(&request.directory, caller.file_stem());
        let pair =
            certificate::end_entity(&paths, &issuer, &certificate::Names::of_caller(caller), validity)?;
        callers.push((caller.clone(), pair));
    }
    Ok(IssuedCertificates { ca, node, peers, callers })
}

fn paths(directory: &Path, stem: &str) -> files::KeyPairPaths {
    files::KeyPairPaths {
        certificate: directory.join(format!("{stem}.pem")),
        private_key: directory.join(format!("{stem}-key.pem")),
    }
}

#[cfg(test)]
mod tests;
