//! Reads a directory of policy files as the sources of a policy bundle.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::Error;
use crate::limits;
use crate::policy::Source;

/// See [`super::policy_sources`].
pub(super) fn read(directory: &Path) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    let mut open = vec![(directory.to_owned(), String::new())];
    let mut bytes_left = limits::POLICY_BYTES_MAX;
    let mut directories = 0;
    while let Some((folder, prefix)) = open.pop() {
        directories += 1;
        if directories > limits::POLICY_FILES_MAX {
            let rule = format!("has more than {} directories", limits::POLICY_FILES_MAX);
            return Err(Error::TooLarge { path: directory.to_owned(), rule });
        }
        let unreadable = |source| Error::Unreadable { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                let source = io::Error::new(io::ErrorKind::InvalidData, "name is not UTF-8");
                return Err(Error::Unreadable { path, source });
            };
            if name.starts_with('.') {
                continue;
            }
            if entry.file_type().map_err(unreadable)?.is_dir() {
                open.push((path, format!("{prefix}{name}/")));
            } else if is_source(&path) {
                let text = read_file(&path, bytes_left)?;
                bytes_left = bytes_left.saturating_sub(text.len());
                sources.push(Source { path: format!("{prefix}{name}"), text });
                check_count(directory, sources.len())?;
            }
        }
    }
    if sources.is_empty() {
        let source = io::Error::new(io::ErrorKind::NotFound, "contains no .rego file");
        return Err(Error::Unreadable { path: directory.to_owned(), source });
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rego" || extension == "json")
}

fn check_count(directory: &Path, files: usize) -> Result<(), Error> {
    if files <= limits::POLICY_FILES_MAX {
        return Ok(());
    }
    let rule = format!("has more than {} policy files", limits::POLICY_FILES_MAX);
    Err(Error::TooLarge { path: directory.to_owned(), rule })
}

fn read_file(path: &PathBuf, bytes_max: usize) -> Result<String, Error> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(bytes_max as u64 + 1).read_to_string(&mut text))
        .map_err(|source| Error::Unreadable { path: path.clone(), source })?;
    if text.len() > bytes_max {
        let rule = format!("the policy is larger than {} bytes", limits::POLICY_BYTES_MAX);
        return Err(Error::TooLarge { path: path.clone(), rule });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("directory");
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("in a directory")).expect("directories");
            fs::write(path, text).expect("file");
        }
        directory
    }

    #[test]
    fn reads_policies_tests_and_data_in_path_order() {
        let directory = directory(&[
            ("b.rego", "1"),
            ("a_test.rego", "2"),
            ("deep/data.json", "3"),
            ("notes.md", "x"),
            (".hidden/c.rego", "x"),
            (".d.rego", "x"),
        ]);
        let sources = read(directory.path()).expect("sources");
        let found: Vec<_> =
            sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect();
        assert_eq!(found, [("a_test.rego", "2"), ("b.rego", "1"), ("deep/data.json", "3")]);
    }

    #[test]
    fn directory_without_policies_or_missing_is_refused() {
        let empty = directory(&[("notes.md", "x")]);
        assert!(matches!(read(empty.path()), Err(Error::Unreadable { .. })));
        assert!(matches!(read(&empty.path().join("gone")), Err(Error::Unreadable { .. })));
    }

    #[test]
    fn too_many_bytes_or_files_are_refused() {
        let half = "#".repeat(limits::POLICY_BYTES_MAX / 2 + 1);
        let large = directory(&[("a.rego", &half), ("b.rego", &half)]);
        assert!(matches!(read(large.path()), Err(Error::TooLarge { .. })));
        let names: Vec<String> = (0..=limits::POLICY_FILES_MAX).map(|n| format!("{n}.rego")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(matches!(read(directory(&many).path()), Err(Error::TooLarge { .. })));
    }
}
