//! A development CA with certificates for nodes and their callers, in one directory, and a development issuer
//! of credentials.
//!
//! For development only: the CA's key lies beside what it signed. What production does instead is in
//! `docs/guide/certificates.md`. Nothing here is used by a node; it only reads what this makes.

mod certificate;
mod files;
mod issuer;
mod names;

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

pub use self::issuer::{DevelopmentIssuer, IssuerFiles};
pub use self::names::{Caller, Host};
use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::token::signing_key;

/// Why certificates were not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A caller's name that is no path below the trust domain, or cannot name a file.
    #[error("caller {text:?}: {rule}")]
    Caller {
        /// What was given.
        text: String,
        /// What it must be.
        rule: &'static str,
    },
    /// Two callers of one request would share a file.
    #[error("caller {0}: another caller has the same file name")]
    CallerTwice(String),
    /// A host that is neither an IP address nor a DNS name.
    #[error("host {0:?}: must be an IP address, or a DNS name in lower case without wildcard")]
    Host(String),
    /// A file or the directory.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A directory or private key that others than its owner can reach.
    #[error("{}: mode {mode:o} is too open, it must be for its owner alone", path.display())]
    TooOpen {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// One half of a certificate and its key is there without the other.
    #[error("{}: {} is not beside it; remove it to have both made", present.display(), missing.display())]
    HalfMissing {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// A file of an earlier run that does not fit what is asked for.
    #[error("{}: {reason}; it is never overwritten: remove it and its key, or choose another directory", path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: Unfit,
    },
    /// A key or certificate could not be made.
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The development issuer's key.
    #[error("key of the development issuer: {0}")]
    IssuerKey(#[from] signing_key::Error),
    /// There is no development issuer in the directory.
    #[error("{}: there is no development issuer", .0.display())]
    NoIssuer(PathBuf),
    /// A credential that the development issuer would not sign.
    #[error("credential: {0}")]
    Credential(String),
    /// The machine's clock stands where no certificate can be valid.
    #[error("make a certificate: the clock is outside the years a certificate can name")]
    Clock,
}

/// Why a certificate of an earlier run does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It cannot be read as one certificate in PEM.
    #[error("it is not a certificate in PEM")]
    NotACertificate,
    /// The file beside it is no private key in PEM.
    #[error("the file beside it is not a private key in PEM")]
    NotAKey,
    /// It is not a CA's.
    #[error("it is not a CA's certificate")]
    NotACa,
    /// Its time is over, or has not begun.
    #[error("it is not valid now")]
    Expired,
    /// It is not the key set of the key beside it.
    #[error("it is not the key set of the private key beside it")]
    OtherKeySet,
    /// Another CA signed it.
    #[error("the CA in this directory did not sign it")]
    OtherCa,
    /// The key beside it is another's.
    #[error("the private key beside it does not belong to it")]
    OtherKey,
    /// It lacks a name that was asked for, or has another.
    #[error("it does not name {0}")]
    OtherName(String),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where the files are; made if it is not there.
    pub directory: PathBuf,
    /// The trust domain that the certificates are of.
    pub trust_domain: TrustDomain,
    /// More names of the node, beside `localhost`, `127.0.0.1` and `::1`.
    pub hosts: Vec<Host>,
    /// The nodes of a cluster that get a certificate for each other, by `node.id`.
    pub peers: Vec<NonZeroU64>,
    /// Who gets a certificate.
    pub callers: Vec<Caller>,
    /// How long what is made is valid; no certificate is valid longer than its CA.
    pub lifetime_days: u32,
}

/// A certificate and its private key on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its private key, PKCS #8 in PEM, mode 0600.
    pub private_key: PathBuf,
    /// The last second at which the certificate is valid.
    pub not_after: Timestamp,
    /// Whether it was made now; otherwise it was there already and is unchanged.
    pub is_new: bool,
}

/// What is in the directory now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The CA, of nodes and callers both.
    pub ca: Pair,
    /// The node.
    pub node: Pair,
    /// The nodes of a cluster among each other, in the order of the request.
    pub peers: Vec<(NonZeroU64, Pair)>,
    /// The callers, in the order of the request.
    pub callers: Vec<(Caller, Pair)>,
}

/// Makes what is asked for and not there yet, valid from `now` on. Nothing is ever overwritten.
///
/// # Errors
/// As [`Error`] says. What was made before the error stays, and is kept by the next attempt.
pub fn make(request: &Request, now: Timestamp) -> Result<Made, Error> {
    for (index, caller) in request.callers.iter().enumerate() {
        if request.callers.iter().take(index).any(|other| other.file_stem() == caller.file_stem()) {
            return Err(Error::CallerTwice(caller.id().to_owned()));
        }
    }
    files::make_directory(&request.directory)?;
    let validity = certificate::Validity::from(now, request.lifetime_days);
    let (ca, issuer) = certificate::ca(&place(&request.directory, "ca"), &request.trust_domain, validity)?;
    let validity = validity.within(ca.not_after);
    let node_names = certificate::Names::of_node(&request.trust_domain, &request.hosts);
    let node = certificate::pair(&place(&request.directory, "node"), &issuer, &node_names, validity)?;
    let mut peers = Vec::with_capacity(request.peers.len());
    for id in &request.peers {
        let place = place(&request.directory, &names::peer_stem(*id));
        let names = certificate::Names::of_peer(&request.trust_domain, *id);
        peers.push((*id, certificate::pair(&place, &issuer, &names, validity)?));
    }
    let mut callers = Vec::with_capacity(request.callers.len());
    for caller in &request.callers {
        let place = place(&request.directory, caller.file_stem());
        let pair = certificate::pair(&place, &issuer, &certificate::Names::of_caller(caller), validity)?;
        callers.push((caller.clone(), pair));
    }
    Ok(Made { ca, node, peers, callers })
}

fn place(directory: &Path, stem: &str) -> files::Place {
    files::Place {
        certificate: directory.join(format!("{stem}.pem")),
        private_key: directory.join(format!("{stem}-key.pem")),
    }
}

#[cfg(test)]
mod tests;
