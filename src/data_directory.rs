//! The data directory before anything is opened in it: it is its owner's alone, and it belongs to
//! one mode for ever. In development mode everybody may do everything, so neither may data made
//! there be trusted in production, nor production's data be opened there.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::cluster;

/// Holds the mode's name.
const MODE_FILE: &str = "mode";

/// What a data directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Callers are authenticated.
    Production,
    /// Everybody on the machine may do everything.
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

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be made, read or written.
    #[error("data directory {}: {source}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read or write what is in it, signing keys among it.
    #[error("data directory {}: mode {mode:o} lets others in; make it 0700", path.display())]
    OpenToOthers {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is data, and nothing says of which mode.
    #[error("{}: is missing beside the data, so its mode is not known; write production or development into it, whichever the data is, and start again", path.display())]
    NoMode {
        /// Where it should be.
        path: PathBuf,
    },
    /// The file of the mode holds no mode: it was damaged.
    #[error("{}: names no mode; write production or development into it, whichever the data is, and start again", path.display())]
    UnknownMode {
        /// Where it is.
        path: PathBuf,
    },
    /// It belongs to the other mode.
    #[error("data directory {}: holds {found} data, and node.mode is {}; take another directory, or change the mode, and start again", path.display(), wanted.as_str())]
    OtherMode {
        /// Which.
        path: PathBuf,
        /// What its file says.
        found: String,
        /// What was configured.
        wanted: Mode,
    },
}

/// Makes the directory if it is not there, and refuses it if it is another's.
///
/// # Errors
/// As [`Error`] says; of what was there before, nothing was changed then.
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
            // Data that lost its mode may be production's: nobody guesses.
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
    fn production_data_is_never_opened_for_everybody_nor_the_other_way_round() {
        for (first, second) in [(Mode::Production, Mode::Development), (Mode::Development, Mode::Production)]
        {
            let (_outer, path) = directory();
            prepare(&path, first).expect("new");
            prepare(&path, first).expect("the same again");
            let refused = prepare(&path, second).expect_err("the other mode");
            assert!(matches!(refused, Error::OtherMode { .. }), "{refused}");
        }
    }

    #[test]
    fn data_that_lost_its_mode_is_opened_in_neither() {
        let (_outer, path) = directory();
        prepare(&path, Mode::Production).expect("new");
        fs::remove_file(path.join(MODE_FILE)).expect("removed");
        fs::create_dir(path.join("raft")).expect("data");
        for mode in [Mode::Production, Mode::Development] {
            assert!(matches!(prepare(&path, mode), Err(Error::NoMode { .. })));
        }
    }

    #[test]
    fn a_mode_that_is_not_known_is_refused() {
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
    fn a_directory_that_others_may_enter_is_refused() {
        for mode in [0o750, 0o701, 0o777] {
            let (_outer, path) = directory();
            fs::create_dir(&path).expect("directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            assert!(matches!(prepare(&path, Mode::Production), Err(Error::OpenToOthers { .. })), "{mode:o}");
        }
    }
}
