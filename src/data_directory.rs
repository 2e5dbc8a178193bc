//! Checks of the data directory before it is opened: only its owner has access, and it belongs to one mode for good.
//! In development mode no caller is authenticated, so development data must not be trusted in production, and
//! production data must not be opened in development.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::cluster;

/// File with the name of the mode.
const MODE_FILE: &str = "mode";

/// Mode that the data of a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Callers are authenticated.
    Production,
    /// No caller is authenticated.
    Development,
}

impl Mode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Production => "production",
            Self::Development => "development",
        }
    }
}

/// Reason why a directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be created, read or written.
    #[error("data directory {}: {source}", path.display())]
    Unusable {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Other users have access to it, and thereby to signing keys.
    #[error("data directory {}: mode {mode:o} gives other users access; set it to 0700", path.display())]
    OpenToOthers {
        /// Path of the directory.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// There is data, but no mode file.
    #[error("{}: missing beside the data, so the mode of the data is unknown; write production or development into it, whichever the data is, and start again", path.display())]
    NoMode {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// The mode file names no mode.
    #[error("{}: does not name a mode; write production or development into it, whichever the data is, and start again", path.display())]
    UnknownMode {
        /// Path of the file.
        path: PathBuf,
    },
    /// The data belongs to the other mode.
    #[error("data directory {}: holds {found} data, and node.mode is {}; take another directory, or change the mode, and start again", path.display(), wanted.as_str())]
    OtherMode {
        /// Path of the directory.
        path: PathBuf,
        /// Content of the mode file.
        found: String,
        /// Configured mode.
        wanted: Mode,
    },
}

/// Creates the directory if it is missing, and checks its permissions and mode. Existing files are not changed if
/// it is refused.
pub fn prepare(path: &Path, mode: Mode) -> Result<(), Error> {
    let unusable = |source| Error::Unusable { path: path.to_owned(), source };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| cluster::sync_name_of(path))
        .map_err(unusable)?;
    let permissions = fs::metadata(path).map_err(unusable)?.mode() & 0o777;
    if permissions & 0o077 != 0 {
        return Err(Error::OpenToOthers { path: path.to_owned(), mode: permissions });
    }
    let file = path.join(MODE_FILE);
    let found = match fs::read(&file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Data without a mode file may be production data.
            if path.join("raft").exists() {
                return Err(Error::NoMode { path: file });
            }
            mode.as_str().to_owned()
        }
        Err(error) => return Err(unusable(error)),
    };
    if ![Mode::Production, Mode::Development].map(Mode::as_str).contains(&found.as_str()) {
        return Err(Error::UnknownMode { path: file });
    }
    if found != mode.as_str() {
        return Err(Error::OtherMode { path: path.to_owned(), found, wanted: mode });
    }
    cluster::replace_file(&file, format!("{found}\n").as_bytes()).map_err(unusable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().expect("directory");
        let path = outer.path().join("data");
        (outer, path)
    }

    #[test]
    fn data_of_the_other_mode_is_refused() {
        for (first, second) in [(Mode::Production, Mode::Development), (Mode::Development, Mode::Production)]
        {
            let (_outer, path) = directory();
            prepare(&path, first).expect("new");
            prepare(&path, first).expect("same mode");
            let refused = prepare(&path, second).expect_err("the other mode");
            assert!(matches!(refused, Error::OtherMode { .. }), "{refused}");
        }
    }

    #[test]
    fn data_without_a_mode_file_is_refused_in_both_modes() {
        let (_outer, path) = directory();
        prepare(&path, Mode::Production).expect("new");
        fs::remove_file(path.join(MODE_FILE)).expect("removed");
        fs::create_dir(path.join("raft")).expect("data");
        for mode in [Mode::Production, Mode::Development] {
            assert!(matches!(prepare(&path, mode), Err(Error::NoMode { .. })));
        }
    }

    #[test]
    fn unknown_mode_is_refused() {
        let (_outer, path) = directory();
        prepare(&path, Mode::Production).expect("new");
        for text in ["", "eevelopment", "production development"] {
            fs::write(path.join(MODE_FILE), text).expect("written");
            for mode in [Mode::Production, Mode::Development] {
                assert!(matches!(prepare(&path, mode), Err(Error::UnknownMode { .. })), "{text}");
            }
        }
    }

    #[test]
    fn directory_with_access_for_others_is_refused() {
        for mode in [0o750, 0o701, 0o777] {
            let (_outer, path) = directory();
            fs::create_dir(&path).expect("directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            assert!(matches!(prepare(&path, Mode::Production), Err(Error::OpenToOthers { .. })), "{mode:o}");
        }
    }
}
