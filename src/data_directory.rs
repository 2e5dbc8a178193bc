//! Checks of the data directory before it is opened: only its owner has access, and it belongs to one mode for good.
//! In development mode no caller is authenticated, so development data must not be trusted in production, and
//! production data must not be opened in development.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::{cluster, text};

/// File with the name of the mode.
const MODE_FILE: &str = "mode";

/// File with the name of an unfinished restore.
const RESTORE_FILE: &str = "restoring";

/// A restore, which is unfinished as long as the directory contains [`RESTORE_FILE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// Of a backup, into an empty directory.
    Backup,
    /// Of a new cluster from the node of the directory.
    NewCluster,
}

impl Restore {
    /// The command line.
    const fn command(self) -> &'static str {
        match self {
            Self::Backup => "trust-fabric restore FILE",
            Self::NewCluster => "trust-fabric restore --force-new-cluster",
        }
    }
}

/// Mode that the data of a directory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Mode {
    /// Callers are authenticated.
    Production,
    /// No caller is authenticated.
    Development,
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
    #[error("data directory {}: mode {mode:o} gives other users access; set it to 0700{}", path.display(), text::fs_group_advice(*mode))]
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
    /// A restore was interrupted.
    #[error("data directory {}: `{command}` was interrupted; repeat the command", path.display())]
    Unfinished {
        /// Path of the directory.
        path: PathBuf,
        /// The command to repeat.
        command: String,
    },
    /// Another restore is running.
    #[error("data directory {}: another restore is running on it", path.display())]
    Restoring {
        /// Path of the directory.
        path: PathBuf,
    },
    /// It is not empty.
    #[error("data directory {}: not empty, it contains {found}; a backup is restored into an empty directory", path.display())]
    Used {
        /// Path of the directory.
        path: PathBuf,
        /// An entry.
        found: String,
    },
    /// It has no log.
    #[error("data directory {}: it has no log of a cluster", path.display())]
    NoLog {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The data belongs to the other mode.
    #[error("data directory {}: holds {found} data, and node.mode is {wanted}; take another directory, or change the mode, and start again", path.display())]
    OtherMode {
        /// Path of the directory.
        path: PathBuf,
        /// Mode of the data.
        found: Mode,
        /// Configured mode.
        wanted: Mode,
    },
}

/// Creates the directory if it is missing, and checks its permissions and mode. Existing files are not changed if
/// it is refused.
pub fn prepare(path: &Path, mode: Mode) -> Result<(), Error> {
    create(path)?;
    check_restored(path)?;
    check_mode(path, mode)
}

/// Refuses a directory with an unfinished restore.
pub fn check_restored(path: &Path) -> Result<(), Error> {
    match unfinished(path)? {
        Some((command, _)) => Err(Error::Unfinished { path: path.to_owned(), command }),
        None => Ok(()),
    }
}

/// Locks the directory against another restore until the file is dropped.
pub fn lock_for_restore(path: &Path) -> Result<fs::File, Error> {
    let unusable = |source| Error::Unusable { path: path.to_owned(), source };
    create(path)?;
    let directory = fs::File::open(path).map_err(unusable)?;
    let locked = rustix::fs::flock(&directory, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    match locked {
        Ok(()) => Ok(directory),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Restoring { path: path.to_owned() }),
        Err(error) => Err(unusable(error.into())),
    }
}

/// Prepares an empty directory for the restore of a backup, and marks it as unfinished. The remains of an interrupted one
/// are removed.
pub fn begin_restore(path: &Path, mode: Mode) -> Result<(), Error> {
    create(path)?;
    match unfinished(path)? {
        Some((command, _)) if command == Restore::Backup.command() => clear(path)?,
        Some((command, _)) => return Err(Error::Unfinished { path: path.to_owned(), command }),
        None => {
            if let Some(found) = entries(path)?.into_iter().next() {
                return Err(Error::Used { path: path.to_owned(), found });
            }
        }
    }
    check_mode(path, mode)?;
    mark(path, Restore::Backup, "")
}

/// Checks the directory of a node from which a new cluster is created. If that was interrupted before, returns the note
/// of the first attempt.
pub fn prepare_new_cluster(path: &Path, mode: Mode) -> Result<Option<String>, Error> {
    if !path.join("raft").exists() {
        return Err(Error::NoLog { path: path.to_owned() });
    }
    create(path)?;
    let unfinished = unfinished(path)?;
    let note = match unfinished {
        Some((command, _)) if command != Restore::NewCluster.command() => {
            return Err(Error::Unfinished { path: path.to_owned(), command });
        }
        unfinished => unfinished.map(|(_, note)| note),
    };
    check_mode(path, mode).map(|()| note)
}

/// Marks the directory: no node starts on it until the restore has ended. The note is for an attempt that repeats it.
pub fn mark(path: &Path, restore: Restore, note: &str) -> Result<(), Error> {
    let text = format!("{}\n{note}", restore.command());
    let marked = cluster::replace_file(&path.join(RESTORE_FILE), text.as_bytes());
    marked.map_err(|source| Error::Unusable { path: path.to_owned(), source })
}

/// Ends the restore.
pub fn unmark(path: &Path) -> Result<(), Error> {
    let file = path.join(RESTORE_FILE);
    let removed = fs::remove_file(&file).and_then(|()| cluster::sync_name_of(&file));
    removed.map_err(|source| Error::Unusable { path: path.to_owned(), source })
}

/// Removes everything that a restore wrote, but not the mark.
pub fn clear(path: &Path) -> Result<(), Error> {
    for name in entries(path)? {
        let entry = path.join(name);
        let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
        removed.map_err(|source| Error::Unusable { path: path.to_owned(), source })?;
    }
    Ok(())
}

/// Names of the entries, without the files of this module and the directory that a file system has at its root.
fn entries(path: &Path) -> Result<Vec<String>, Error> {
    let read = || fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
    let names = read().map_err(|source| Error::Unusable { path: path.to_owned(), source })?;
    let names = names.into_iter().map(|name| name.to_string_lossy().into_owned());
    let other = [MODE_FILE, "mode.new", RESTORE_FILE, "restoring.new", "lost+found"];
    Ok(names.filter(|name| !other.contains(&name.as_str())).collect())
}

/// The command of an unfinished restore, and its note.
fn unfinished(path: &Path) -> Result<Option<(String, String)>, Error> {
    match fs::read(path.join(RESTORE_FILE)) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let (command, note) = text.split_once('\n').unwrap_or((&text, ""));
            Ok(Some((command.trim().to_owned(), note.to_owned())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Unusable { path: path.to_owned(), source }),
    }
}

/// Creates the directory if it is missing, and checks its permissions.
fn create(path: &Path) -> Result<(), Error> {
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
    Ok(())
}

/// Checks the mode of the data, which an empty directory gets.
fn check_mode(path: &Path, mode: Mode) -> Result<(), Error> {
    let unusable = |source| Error::Unusable { path: path.to_owned(), source };
    let file = path.join(MODE_FILE);
    match fs::read(&file) {
        // It is not written again: a start must not need space on the disk.
        Ok(bytes) => {
            let known = String::from_utf8_lossy(&bytes).trim().parse();
            let found = known.map_err(|_| Error::UnknownMode { path: file })?;
            let is_same = found == mode;
            is_same.then_some(()).ok_or(Error::OtherMode { path: path.to_owned(), found, wanted: mode })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Data without a mode file may be production data.
            if path.join("raft").exists() {
                return Err(Error::NoMode { path: file });
            }
            cluster::replace_file(&file, format!("{mode}\n").as_bytes()).map_err(unusable)
        }
        Err(error) => Err(unusable(error)),
    }
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
            let inode = || fs::metadata(path.join(MODE_FILE)).expect("file").ino();
            let before = inode();
            prepare(&path, first).expect("same mode");
            assert_eq!(
                inode(),
                before,
                "regression: a start on a full disk failed, because it wrote the file again"
            );
            let refused = prepare(&path, second).expect_err("the other mode");
            assert!(matches!(refused, Error::OtherMode { .. }), "{refused}");
        }
    }

    /// Regression: a second restore cleared the directory under the first one.
    #[test]
    fn directory_has_one_restore_at_a_time() {
        let (_outer, path) = directory();
        let first = lock_for_restore(&path).expect("free");
        let refused = lock_for_restore(&path).expect_err("locked");
        assert!(matches!(refused, Error::Restoring { .. }), "{refused}");
        drop(first);
        lock_for_restore(&path).expect("free again");
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
    fn unfinished_restore_is_repeated_and_nothing_else_starts() {
        for (restore, other) in
            [(Restore::Backup, Restore::NewCluster), (Restore::NewCluster, Restore::Backup)]
        {
            let (_outer, path) = directory();
            prepare(&path, Mode::Production).expect("new");
            fs::create_dir(path.join("raft")).expect("data");
            mark(&path, restore, "the first attempt\n").expect("marked");
            let refused = prepare(&path, Mode::Production).expect_err("unfinished").to_string();
            assert!(refused.contains(restore.command()) && !refused.contains(other.command()), "{refused}");
            let outcomes = [
                begin_restore(&path, Mode::Production),
                prepare_new_cluster(&path, Mode::Production)
                    .map(|note| assert_eq!(note.as_deref(), Some("the first attempt\n"))),
            ];
            let accepted = [restore == Restore::Backup, restore == Restore::NewCluster];
            assert_eq!(outcomes.map(|outcome| outcome.is_ok()), accepted);
            assert_eq!(path.join("raft").exists(), restore == Restore::NewCluster, "remains are removed");
            unmark(&path).expect("ended");
            prepare(&path, Mode::Production).expect("finished");
            if restore == Restore::NewCluster {
                assert_eq!(prepare_new_cluster(&path, Mode::Production).expect("a log"), None);
            }
        }
    }

    #[test]
    fn backup_is_restored_into_an_empty_directory_only() {
        let (_outer, path) = directory();
        begin_restore(&path, Mode::Production).expect("missing");
        unmark(&path).expect("ended");
        begin_restore(&path, Mode::Production).expect("only the mode");
        unmark(&path).expect("ended");
        assert!(matches!(begin_restore(&path, Mode::Development), Err(Error::OtherMode { .. })));
        for name in ["raft", "keys", "identity.json", "x"] {
            fs::create_dir(path.join(name)).expect("data");
            let refused = begin_restore(&path, Mode::Production).expect_err("used");
            assert!(matches!(&refused, Error::Used { found, .. } if found == name), "{refused}");
            fs::remove_dir(path.join(name)).expect("removed");
        }
        assert!(matches!(prepare_new_cluster(&path, Mode::Production), Err(Error::NoLog { .. })));
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

    #[test]
    fn directory_of_a_volume_with_a_group_is_refused_with_advice() {
        for (mode, has_advice) in [(0o2770, true), (0o770, true), (0o750, false), (0o777, false)] {
            let (_outer, path) = directory();
            fs::create_dir(&path).expect("directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
            let refused = prepare(&path, Mode::Production).expect_err("refused").to_string();
            assert_eq!(refused.contains("fsGroupChangePolicy to OnRootMismatch"), has_advice, "{refused}");
        }
    }
}
