//! The files of TLS, read as they are: how large, who may touch them, what is in them. What they
//! mean is decided in `config`.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;

use super::{Error, KeyPairFiles};
use crate::id::TrustDomain;
use crate::limits;

/// Where the PEM files of TLS are.
#[derive(Clone, Debug)]
pub struct Files {
    /// Our own certificate and its private key.
    pub own: KeyPairFiles,
    /// The CAs whose certificates are accepted, each trust domain with its own (SPIFFE X509-SVID §5).
    pub authorities: Vec<Authorities>,
}

/// The CAs of one trust domain, which vouch for its SPIFFE IDs and for no others.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// The trust domain.
    pub trust_domain: TrustDomain,
    /// Its CA certificates.
    pub ca: PathBuf,
    /// Their revocation lists. With it, a certificate that no current list covers is refused.
    pub crl: Option<PathBuf>,
}

/// What was in them at one look.
pub(super) struct Contents {
    pub certificate: Vec<u8>,
    pub private_key: Vec<u8>,
    /// CAs and revocation lists, in the order of [`Files::authorities`].
    pub authorities: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Contents {
    /// Reads every file.
    pub fn read(files: &Files) -> Result<Self, Error> {
        let authorities = files.authorities.iter().map(|of| {
            let crl = of.crl.as_deref().map(|path| read(path, limits::TLS_CRL_BYTES_MAX, check_mode));
            Ok((read(&of.ca, limits::TLS_FILE_BYTES_MAX, check_mode)?, crl.transpose()?))
        });
        Ok(Self {
            certificate: read(&files.own.certificate, limits::TLS_FILE_BYTES_MAX, check_mode)?,
            private_key: read(&files.own.private_key, limits::TLS_FILE_BYTES_MAX, check_key_mode)?,
            authorities: authorities.collect::<Result<_, Error>>()?,
        })
    }

    /// What they are known by, so that no private key need be kept to see that it changed.
    pub fn digest(&self) -> [u8; 32] {
        let mut whole = digest::Context::new(&digest::SHA256);
        let none: &[u8] = &[];
        let authorities =
            self.authorities.iter().flat_map(|(ca, crl)| [ca.as_slice(), crl.as_deref().unwrap_or(none)]);
        for part in [self.certificate.as_slice(), &self.private_key].into_iter().chain(authorities) {
            whole.update(&(part.len() as u64).to_be_bytes());
            whole.update(part);
        }
        sha256(whole)
    }
}

/// The end of a SHA-256.
pub(super) fn sha256(whole: digest::Context) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(whole.finish().as_ref());
    bytes
}

type ModeCheck = fn(path: &Path, mode: u32, owner: u32) -> Result<(), Error>;

pub(super) fn read(path: &Path, bytes_max: usize, check: ModeCheck) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    // Opened without waiting: a pipe in the place of a file would hold the start-up for ever.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    // Of the opened file, so that it is judged where a symbolic link leads and cannot be exchanged
    // between check and use.
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

/// Whoever may write one of these files decides who our callers are.
pub(super) fn check_mode(path: &Path, mode: u32, _owner: u32) -> Result<(), Error> {
    if mode & 0o022 == 0 { Ok(()) } else { Err(Error::WritableByOthers { path: path.to_owned(), mode }) }
}

/// The rule of `PostgreSQL` for `ssl_key_file`: nothing for others, no writing for the group, and reading
/// for the group only if root owns it. The last is how Kubernetes mounts a secret. It is root's or ours.
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
    fn a_private_key_is_its_owners_and_if_that_is_root_its_groups_to_read() {
        let allowed = |mode, owner| check_key_of(Path::new("key.pem"), mode, owner, 1000).is_ok();
        assert!(check_key_of(Path::new("key.pem"), 0o600, 1001, 1000).is_err(), "a stranger's");
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
    fn contents_that_shift_from_one_file_to_the_next_have_another_digest() {
        let of = |certificate: &[u8], private_key: &[u8], crl: Option<&[u8]>| {
            Contents {
                certificate: certificate.to_vec(),
                private_key: private_key.to_vec(),
                authorities: vec![(Vec::new(), crl.map(<[u8]>::to_vec))],
            }
            .digest()
        };
        assert_ne!(of(b"ab", b"c", None), of(b"a", b"bc", None));
        assert_ne!(of(b"a", b"b", Some(b"c")), of(b"a", b"b", None));
        assert_eq!(of(b"a", b"b", Some(b"c")), of(b"a", b"b", Some(b"c")));
    }
}
