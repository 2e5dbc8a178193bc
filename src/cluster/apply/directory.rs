//! A directory that lasts as long as its owner.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A directory that is removed with its owner, unless it is retained.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    is_kept: AtomicBool,
}

impl Directory {
    pub(super) fn new(path: PathBuf, is_kept: bool) -> Self {
        Self { path, is_kept: AtomicBool::new(is_kept) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the directory removed with its owner.
    pub(super) fn discard(&self) {
        self.is_kept.store(false, Ordering::Relaxed);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed)
            && let Err(error) = remove_if_there(&self.path)
        {
            // It is removed at the next start.
            tracing::warn!(%error, path = %self.path.display(), "failed to remove an obsolete directory");
        }
    }
}

pub(super) fn remove_if_there(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
