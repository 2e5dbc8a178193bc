//! A file that replaces another as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
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
        assert!(matches!(NewFile::prepare(&nowhere, 0o600), Err(Error::File { .. })));
    }
}
