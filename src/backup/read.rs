//! Reading: every member is checked before it is written, and nothing is written outside the given directory.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;
use tar::{Archive, Entry, EntryType};
use zstd::stream::read::Decoder;

use super::{DigestCheck, Error, FORMAT, FileEntry, MANIFEST, Manifest, hex, sha256};
use crate::cluster::{self, StateFiles};
use crate::state::{Replicated, StateIdentity, feature_level};
use crate::{json, limits};

/// Maximum zeros at the end of an archive.
const END_BYTES_MAX: u64 = 64 * 1024;

type Members<'f> = Decoder<'static, BufReader<&'f File>>;

/// Reads the manifest alone. The rest of the file is not verified.
///
/// # Errors
/// [`Error::NotABackup`], [`Error::Newer`], [`Error::Manifest`].
pub(crate) fn inspect(file: &File) -> Result<Manifest, Error> {
    let mut archive = open(file)?;
    let mut members = archive.entries().map_err(|error| unreadable(&error))?.raw(true);
    let first = members.next().ok_or_else(|| Error::NotABackup("the archive is empty".to_owned()))?;
    read_manifest(first.map_err(|error| Error::NotABackup(error.to_string()))?)
}

/// Verifies the digest of the whole file.
///
/// # Errors
/// Those of [`DigestCheck::finish`]; [`Error::Disk`].
pub(crate) fn verify_digest(mut file: &File, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
    file.rewind()?;
    let (mut check, mut part, mut sum) = (DigestCheck::default(), vec![0; limits::BACKUP_PART_BYTES], 0);
    loop {
        let read = file.read(&mut part)?;
        if read == 0 {
            return check.finish();
        }
        check.push(&part[..read]);
        sum += read as u64;
        progress(sum);
    }
}

/// Writes the files durably into the new `directory`, each with the size and digest that the manifest states.
///
/// # Errors
/// Every [`Error`] but [`Error::State`].
pub(crate) fn extract(
    file: &File,
    directory: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Manifest, Error> {
    let mut archive = open(file)?;
    let mut members = archive.entries().map_err(|error| unreadable(&error))?.raw(true);
    let first = members.next().ok_or_else(|| Error::NotABackup("the archive is empty".to_owned()))?;
    let manifest = read_manifest(first.map_err(|error| unreadable(&error))?)?;
    feature_level::check(manifest.feature_level, &feature_level::SUPPORTED).map_err(|refused| {
        Error::FeatureLevel { version: manifest.product_version.clone(), reason: refused.to_string() }
    })?;
    let mut missing: BTreeMap<&str, &FileEntry> =
        manifest.files.iter().map(|file| (file.name.as_str(), file)).collect();
    fs::create_dir(directory)?;
    let mut sum = 0;
    for member in members {
        let mut member = member.map_err(|error| unreadable(&error))?;
        let name = name_of(&member);
        let rule = |rule| Error::Member { name: name.clone(), rule };
        if member.header().entry_type() != EntryType::Regular {
            return Err(rule("must be a regular file"));
        }
        let entry = missing.remove(name.as_str()).ok_or_else(|| {
            let is_known = manifest.files.iter().any(|file| file.name == name);
            rule(if is_known { "duplicate" } else { "not in the manifest" })
        })?;
        if member.size() != entry.bytes {
            return Err(rule("the size differs from the manifest"));
        }
        write_file(&mut member, entry, &directory.join(&entry.name), &mut |part| {
            sum += part;
            progress(sum);
        })?;
    }
    if let Some(name) = missing.keys().next() {
        return Err(Error::Missing((*name).to_owned()));
    }
    check_end(archive.into_inner())?;
    File::open(directory)?.sync_all()?;
    Ok(manifest)
}

/// Opens the state in the files of a backup, and compares it with the manifest. Verifies every row.
///
/// # Errors
/// [`Error::State`].
pub(crate) fn check_state(directory: &Path, manifest: &Manifest) -> Result<(), Error> {
    let bad = |error: io::Error| Error::State(error.to_string());
    let state = StateFiles::open::<Replicated>(directory).map_err(bad)?;
    state.verify().map_err(bad)?;
    let (term, node_id, index) = state.last().map_err(bad)?;
    let identity = StateIdentity::read(state.view()).map_err(|error| bad(io::Error::other(error)))?;
    let identity = identity.ok_or_else(|| Error::State("it is not bootstrapped".to_owned()))?;
    let log_id = &manifest.log_id;
    for (field, is_equal) in [
        ("log_id", (log_id.term, log_id.node_id, log_id.index) == (term, node_id, index)),
        ("state_hash", manifest.state_hash == hex(&state.hash().map_err(bad)?)),
        ("cluster_id", manifest.cluster_id == identity.cluster_id.to_string()),
        ("incarnation", manifest.incarnation == identity.incarnation.to_string()),
        ("feature_level", manifest.feature_level == identity.feature_level),
        ("log_time", manifest.log_time == identity.time.to_rfc3339()),
    ] {
        if !is_equal {
            return Err(Error::State(format!("{field} differs from the manifest")));
        }
    }
    Ok(())
}

fn unreadable(error: &io::Error) -> Error {
    Error::Unreadable(error.to_string())
}

/// Raw members: long names and extensions of tar are refused, not interpreted.
fn open(mut file: &File) -> Result<Archive<Members<'_>>, Error> {
    file.rewind()?;
    Ok(Archive::new(Decoder::new(file)?.single_frame()))
}

fn name_of(member: &Entry<'_, impl Read>) -> String {
    String::from_utf8_lossy(&member.path_bytes()).into_owned()
}

fn read_manifest(member: Entry<'_, Members<'_>>) -> Result<Manifest, Error> {
    if name_of(&member) != MANIFEST || member.header().entry_type() != EntryType::Regular {
        return Err(Error::NotABackup(format!("its first member is not {MANIFEST}")));
    }
    if member.size() > limits::BACKUP_MANIFEST_BYTES_MAX {
        let most = limits::BACKUP_MANIFEST_BYTES_MAX;
        return Err(Error::Manifest(format!("larger than {most} bytes")));
    }
    let mut text = Vec::new();
    member
        .take(limits::BACKUP_MANIFEST_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| unreadable(&error))?;
    let bad = |error: json::Error| Error::Manifest(error.to_string());
    let value = json::parse(&text).map_err(bad)?;
    // Before the fields, which another format may not have.
    let format = value.get("format").and_then(Value::as_u64);
    let format = format.ok_or_else(|| Error::Manifest("format: must be a number".to_owned()))?;
    if format > FORMAT {
        let version = value.get("product_version").and_then(Value::as_str);
        return Err(Error::Newer { format, version: version.unwrap_or("unknown").to_owned() });
    }
    let manifest: Manifest = json::from_value(value).map_err(bad)?;
    check_files(&manifest)?;
    Ok(manifest)
}

fn check_files(manifest: &Manifest) -> Result<(), Error> {
    if manifest.files.len() > limits::SNAPSHOT_FILES_MAX {
        return Err(Error::Manifest(format!("files: more than {}", limits::SNAPSHOT_FILES_MAX)));
    }
    if manifest.bytes() > limits::SNAPSHOT_BYTES_MAX {
        return Err(Error::Manifest(format!("files: larger than {} bytes", limits::SNAPSHOT_BYTES_MAX)));
    }
    let mut names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !cluster::is_file_name(name)) {
        return Err(Error::Member { name: (*name).to_owned(), rule: "not a file name of a state" });
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Member { name: pair[0].to_owned(), rule: "duplicate" }),
        None => Ok(()),
    }
}

fn write_file(
    member: &mut impl Read,
    entry: &FileEntry,
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let (mut context, mut part, mut written) = (sha256(), vec![0; limits::BACKUP_PART_BYTES], 0_u64);
    loop {
        let read = member.read(&mut part).map_err(|error| unreadable(&error))?;
        if read == 0 {
            break;
        }
        context.update(&part[..read]);
        file.write_all(&part[..read])?;
        written += read as u64;
        progress(read as u64);
    }
    file.sync_all()?;
    let rule = |rule| Error::Member { name: entry.name.clone(), rule };
    if written != entry.bytes {
        return Err(rule("truncated"));
    }
    if hex(context.finish().as_ref()) != entry.sha256 {
        return Err(rule("the digest does not match"));
    }
    Ok(())
}

/// Nothing but zeros follows the last member.
fn check_end(rest: impl Read) -> Result<(), Error> {
    let mut end = Vec::new();
    rest.take(END_BYTES_MAX + 1).read_to_end(&mut end).map_err(|error| unreadable(&error))?;
    if end.len() as u64 > END_BYTES_MAX || end.iter().any(|byte| *byte != 0) {
        return Err(Error::Unreadable("data follows the last member".to_owned()));
    }
    Ok(())
}
