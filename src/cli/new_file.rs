//! Files that appear as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::Error;

/// A file with a mode of its own, whatever the umask is, which replaces the old one only when it is complete.
pub(super) struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl NewFile {
    pub(super) fn prepare(path: &Path, mode: u32) -> Result<Self, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let temporary = PathBuf::from(name);
        // A leftover of an earlier run may have another mode.
        drop(fs::remove_file(&temporary));
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
        let file = file.map_err(|source| Error::File { path: temporary.clone(), source })?;
        Ok(Self { path: path.to_owned(), temporary, file })
    }

    /// Writes the line, and puts the file in place.
    pub(super) fn store(mut self, line: &str) -> Result<PathBuf, Error> {
        let written = writeln!(self.file, "{line}").and_then(|()| self.file.sync_all());
        let renamed = written.and_then(|()| fs::rename(&self.temporary, &self.path));
        renamed.map_err(|source| Error::File { path: self.path.clone(), source })?;
        Ok(self.path.clone())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Absent if it was renamed.
        drop(fs::remove_file(&self.temporary));
    }
}

/// A file that appears under its name once it is complete, and never replaces another.
pub(super) struct FirstFile {
    path: PathBuf,
    /// `None` if it is to be kept.
    temporary: Option<PathBuf>,
    pub(super) file: File,
}

impl FirstFile {
    /// For the owner only.
    pub(super) fn prepare(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let temporary = PathBuf::from(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        Ok(Self { path: path.to_owned(), temporary: Some(temporary), file: file.map_err(failed)? })
    }

    /// Puts the file in place. Returns its length in bytes. If only that fails, the complete file keeps its temporary name,
    /// which the error has.
    pub(super) fn store(mut self) -> Result<u64, Error> {
        self.file.sync_all().map_err(|source| Error::File { path: self.path.clone(), source })?;
        let temporary = self.temporary.take().unwrap_or_default();
        let placed = fs::hard_link(&temporary, &self.path);
        placed.map_err(|source| Error::File { path: temporary.clone(), source })?;
        self.temporary = Some(temporary);
        let synced = File::open(parent_of(&self.path)).and_then(|parent| parent.sync_all());
        let bytes = synced.and_then(|()| self.file.metadata()).map(|metadata| metadata.len());
        bytes.map_err(|source| Error::File { path: self.path.clone(), source })
    }
}

impl Drop for FirstFile {
    fn drop(&mut self) {
        self.temporary.take().map(fs::remove_file);
    }
}

pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn new_file_has_its_mode_and_replaces_the_old_one_whole() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("token");
        let content = || fs::read_to_string(&path).expect("read");
        fs::write(&path, "old\n").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("mode");
        fs::write(directory.path().join("token.new"), "left").expect("written");
        drop(NewFile::prepare(&path, 0o600).expect("prepared"));
        assert_eq!(content(), "old\n");
        assert_eq!(NewFile::prepare(&path, 0o600).expect("prepared").store("new").expect("stored"), path);
        assert_eq!(content(), "new\n");
        let mode = fs::metadata(&path).expect("file").permissions().mode() & 0o777;
        assert_eq!((mode, fs::read_dir(directory.path()).expect("files").count()), (0o600, 1));
        let nowhere = directory.path().join("no/where");
        assert!(matches!(FirstFile::prepare(&nowhere), Err(Error::File { .. })));
        assert!(matches!(NewFile::prepare(&nowhere, 0o600), Err(Error::File { .. })));
    }

    #[test]
    fn first_file_appears_once_it_is_complete_and_replaces_none() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("export");
        let is_empty = || fs::read_dir(directory.path()).expect("files").count() == 0;
        let mut broken_off = FirstFile::prepare(&path).expect("prepared");
        broken_off.file.write_all(b"half").expect("written");
        assert!(!path.exists());
        drop(broken_off);
        assert!(is_empty(), "nothing blocks the next attempt");
        let mut first = FirstFile::prepare(&path).expect("prepared");
        first.file.write_all(b"whole").expect("written");
        assert_eq!(first.store().expect("stored"), 5);
        assert_eq!(fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
        assert!(matches!(FirstFile::prepare(&path), Err(Error::File { .. })));
        assert_eq!(fs::read(&path).expect("read"), b"whole");
        // A file that appears meanwhile is not replaced, and the new one is not lost.
        let other = directory.path().join("other");
        let second = FirstFile::prepare(&other).expect("prepared");
        fs::write(&other, "first").expect("written");
        let Err(Error::File { path: kept, .. }) = second.store() else { panic!("replaced") };
        assert_eq!((fs::read(&other).expect("read"), kept.exists()), (b"first".to_vec(), true));
    }
}
