//! The files of TLS: size, permissions and content. `config` interprets them.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::bundle::Bundle;
use super::{Error, svid};
use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::limits;

/// A certificate and its private key, both PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// Its private key: PKCS #8, PKCS #1 or SEC1.
    pub private_key: PathBuf,
}

/// Paths of the PEM files of TLS.
#[derive(Clone, Debug)]
pub struct Files {
    /// Our own certificate and its private key.
    pub own: KeyPairFiles,
    /// The accepted CAs, each trust domain with its own (SPIFFE X509-SVID §5).
    pub authorities: Vec<Authorities>,
}

/// The CAs of one trust domain, accepted for its SPIFFE IDs only.
#[derive(Clone, Debug)]
pub struct Authorities {
    pub trust_domain: TrustDomain,
    pub roots: Roots,
    /// Their revocation lists. If set, a certificate without a current list is refused.
    pub crl: Option<PathBuf>,
}

/// The source of the CAs of a trust domain.
#[derive(Clone, Debug)]
pub enum Roots {
    /// A PEM file.
    Pem(PathBuf),
    /// The bundle of a peer fabric, which that fabric changes.
    Bundle(Bundle),
}

impl Roots {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Pem(path) => path,
            Self::Bundle(bundle) => bundle.file(),
        }
    }

    /// Whether they are those of the file, and not newer ones that a peer has published.
    pub(super) fn are_of_file(&self) -> bool {
        match self {
            Self::Pem(_) => true,
            Self::Bundle(bundle) => bundle.is_of_file(),
        }
    }
}

/// CAs as they were read.
pub(super) enum ReadRoots {
    /// The file, and how many of its certificates have expired by now.
    Pem { pem: Vec<u8>, expired: u64 },
    /// Checked and unexpired; none if all are revoked.
    Bundle(Vec<CertificateDer<'static>>),
}

/// Contents of all files, read together.
pub(super) struct Contents {
    pub certificate: Vec<u8>,
    pub private_key: Vec<u8>,
    /// CAs and revocation lists, in the order of [`Files::authorities`].
    pub authorities: Vec<(ReadRoots, Option<ReadCrl>)>,
}

/// Revocation lists as they were read. Those of a peer that cannot be read concern that peer alone.
pub(super) type ReadCrl = Result<Vec<u8>, Error>;

impl Contents {
    pub fn read(files: &Files, now: Timestamp) -> Result<Self, Error> {
        let authorities = files.authorities.iter().map(|of| {
            let crl = of.crl.as_deref().map(|path| read(path, limits::TLS_CRL_BYTES_MAX, check_mode));
            let roots = match &of.roots {
                Roots::Pem(path) => {
                    let pem = read(path, limits::TLS_FILE_BYTES_MAX, check_mode)?;
                    ReadRoots::Pem { expired: expired(&pem, now), pem }
                }
                Roots::Bundle(bundle) => ReadRoots::Bundle(bundle.unexpired(now)),
            };
            match crl {
                Some(Err(error)) if matches!(roots, ReadRoots::Pem { .. }) => Err(error),
                crl => Ok((roots, crl)),
            }
        });
        Ok(Self {
            certificate: read(&files.own.certificate, limits::TLS_FILE_BYTES_MAX, check_mode)?,
            private_key: read(&files.own.private_key, limits::TLS_FILE_BYTES_MAX, check_key_mode)?,
            authorities: authorities.collect::<Result<_, Error>>()?,
        })
    }

    /// Digest that detects a change of our certificate or its private key.
    pub fn own_digest(&self) -> [u8; 32] {
        digest_of([self.certificate.as_slice(), &self.private_key])
    }

    /// Digest that detects a change of a file, and the expiry of a CA, without retaining the private key.
    pub fn file_digest(&self) -> [u8; 32] {
        let authorities: Vec<[Cow<'_, [u8]>; 3]> = self
            .authorities
            .iter()
            .map(|(roots, crl)| {
                let (ca, expired) = match roots {
                    ReadRoots::Pem { pem, expired } => (pem.as_slice(), *expired),
                    ReadRoots::Bundle(_) => (&[][..], 0),
                };
                let crl: Cow<'_, [u8]> = match crl {
                    Some(Ok(pem)) => pem.into(),
                    // An unreadable file is identified by its error.
                    Some(Err(error)) => error.to_string().into_bytes().into(),
                    None => Cow::default(),
                };
                [ca.into(), expired.to_be_bytes().to_vec().into(), crl]
            })
            .collect();
        let authorities = authorities.iter().flatten().map(AsRef::as_ref);
        digest_of([self.certificate.as_slice(), &self.private_key].into_iter().chain(authorities))
    }

    /// Digest that detects a change of a file or of a bundle.
    pub fn digest(&self) -> [u8; 32] {
        let bundles = self.authorities.iter().map(|(roots, _)| match roots {
            ReadRoots::Pem { .. } => digest_of([]),
            ReadRoots::Bundle(roots) => bundle_digest(roots),
        });
        let parts: Vec<[u8; 32]> = std::iter::once(self.file_digest()).chain(bundles).collect();
        digest_of(parts.iter().map(<[u8; 32]>::as_slice))
    }
}

/// Number of the CAs in a PEM file that have expired. Others than CAs are refused when it is loaded.
fn expired(pem: &[u8], now: Timestamp) -> u64 {
    let ends = CertificateDer::pem_slice_iter(pem).flatten();
    let ends = ends.filter_map(|certificate| svid::client_ca_not_after(&certificate).ok().flatten());
    ends.filter(|not_after| *not_after < now).count() as u64
}

/// Digest that detects a change of the roots of a bundle.
pub(super) fn bundle_digest(roots: &[CertificateDer<'_>]) -> [u8; 32] {
    digest_of(roots.iter().map(AsRef::as_ref))
}

/// SHA-256 of these parts, each with its length.
pub(super) fn digest_of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 32] {
    let mut whole = digest::Context::new(&digest::SHA256);
    for part in parts {
        whole.update(&(part.len() as u64).to_be_bytes());
        whole.update(part);
    }
    sha256(whole)
}

/// Finishes a SHA-256.
pub(super) fn sha256(whole: digest::Context) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(whole.finish().as_ref());
    bytes
}

type ModeCheck = fn(path: &Path, mode: u32, owner: u32) -> Result<(), Error>;

pub(super) fn read(path: &Path, bytes_max: usize, check: ModeCheck) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    // Non-blocking: opening a FIFO in the place of a file would block the start for ever.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    // Of the opened file: follows a symbolic link, and the file cannot be replaced between check and use.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned() });
    }
    check(path, metadata.mode() & 0o7777, metadata.uid())?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > bytes_max {
        return Err(Error::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}

/// Write access to these files determines our callers.
pub(super) fn check_mode(path: &Path, mode: u32, _owner: u32) -> Result<(), Error> {
    if mode & 0o022 == 0 { Ok(()) } else { Err(Error::WritableByOthers { path: path.to_owned(), mode }) }
}

/// The rule of `PostgreSQL` for `ssl_key_file`: no access for others, no writing for the group, and reading for the
/// group only if root owns the file, which is how Kubernetes mounts a secret. The owner is root or this process.
pub(super) fn check_key_mode(path: &Path, mode: u32, owner: u32) -> Result<(), Error> {
    check_key_of(path, mode, owner, rustix::process::geteuid().as_raw())
}

fn check_key_of(path: &Path, mode: u32, owner: u32, ourselves: u32) -> Result<(), Error> {
    let allowed = if owner == 0 { 0o740 } else { 0o700 };
    let is_known = owner == 0 || owner == ourselves;
    if is_known && mode & 0o777 & !allowed == 0 {
        Ok(())
    } else {
        Err(Error::KeyTooOpen { path: path.to_owned(), mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_key_is_readable_by_owner_or_roots_group_only() {
        let allowed = |mode, owner| check_key_of(Path::new("key.pem"), mode, owner, 1000).is_ok();
        assert!(check_key_of(Path::new("key.pem"), 0o600, 1001, 1000).is_err(), "of another owner");
        for mode in [0o400, 0o600] {
            assert!(allowed(mode, 0) && allowed(mode, 1000), "{mode:o}");
        }
        for mode in [0o440, 0o640] {
            assert!(allowed(mode, 0) && !allowed(mode, 1000), "{mode:o}");
        }
        for mode in [0o604, 0o644, 0o660, 0o620, 0o602, 0o601, 0o650, 0o666, 0o777] {
            assert!(!allowed(mode, 0) && !allowed(mode, 1000), "{mode:o}");
        }
    }

    #[test]
    fn content_moved_between_files_changes_the_digest() {
        let of = |certificate: &[u8], private_key: &[u8], crl: Option<&[u8]>| {
            Contents {
                certificate: certificate.to_vec(),
                private_key: private_key.to_vec(),
                authorities: vec![(
                    ReadRoots::Pem { pem: Vec::new(), expired: 0 },
                    crl.map(|crl| Ok(crl.to_vec())),
                )],
            }
            .digest()
        };
        assert_ne!(of(b"ab", b"c", None), of(b"a", b"bc", None));
        assert_ne!(of(b"a", b"b", Some(b"c")), of(b"a", b"b", None));
        assert_eq!(of(b"a", b"b", Some(b"c")), of(b"a", b"b", Some(b"c")));
    }
}
