//! Files of the directory: created exclusively, private keys with mode 0600.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::Error;
use crate::limits;

const PRIVATE: u32 = 0o600;

const PUBLIC: u32 = 0o644;

/// Paths of a certificate and its key.
pub(super) struct KeyPairPaths {
    pub(super) certificate: PathBuf,
    pub(super) private_key: PathBuf,
}

impl KeyPairPaths {
    /// Certificate and key in PEM, if both exist.
    pub(super) fn read(&self) -> Result<Option<(Vec<u8>, String)>, Error> {
        let half_missing = |present: &Path, missing: &Path| Error::HalfMissing {
            present: present.to_owned(),
            missing: missing.to_owned(),
        };
        match (is_there(&self.certificate)?, is_there(&self.private_key)?) {
            (false, false) => return Ok(None),
            (true, false) => return Err(half_missing(&self.certificate, &self.private_key)),
            (false, true) => return Err(half_missing(&self.private_key, &self.certificate)),
            (true, true) => {}
        }
        check_private(&self.private_key)?;
        let key = String::from_utf8(read(&self.private_key)?).unwrap_or_default();
        Ok(Some((read(&self.certificate)?, key)))
    }

    /// Writes both. An existing file is an error and never overwritten; links are not followed.
    pub(super) fn write(&self, certificate: &str, private_key: &str) -> Result<(), Error> {
        for (path, text, mode) in
            [(&self.private_key, private_key, PRIVATE), (&self.certificate, certificate, PUBLIC)]
        {
            let write = || {
                let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()
            };
            write().map_err(|source| Error::File { path: path.clone(), source })?;
        }
        Ok(())
    }
}

/// Creates the directory with mode 0700, or checks that an existing one is private.
pub(super) fn make_directory(directory: &Path) -> Result<(), Error> {
    let file_error = |source| Error::File { path: directory.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(file_error)?;
    check_private(directory)
}

/// A dangling link counts as present: it would block the new file.
fn is_there(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
    }
}

fn check_private(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(Error::TooOpen { path: path.to_owned(), mode }) }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limits::PEM_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(bytes)
}
