//! Snapshot transfer between nodes: file by file, each with its digest, into a directory that becomes a snapshot only
//! when every file is complete and matches its digest. The complete files of an interrupted transfer are held for the
//! next one.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use openraft::alias::SnapshotMetaOf;
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::channels::Client;
use super::transfer_progress::{Transfer, TransferProgress};
use super::wire::proto::snapshot_part::Part;
use super::wire::proto::{
    HeldSnapshotFilesRequest, SnapshotFile, SnapshotHead, SnapshotPart, SnapshotResponse,
};
use crate::cluster::apply::database::is_table_file;
use crate::cluster::apply::snapshot::{SnapshotFiles, is_file_name};
use crate::cluster::codec;
use crate::cluster::type_config::{TypeConfig, Vote};
use crate::limits;

/// SHA-256 of complete files, by file name.
pub(crate) type Digests = BTreeMap<String, Bytes>;

/// The files of a transfer that has not ended, or was interrupted.
pub(crate) struct Unfinished {
    /// Their directory.
    pub(crate) files: SnapshotFiles,
    /// The complete files.
    pub(crate) digests: Digests,
    /// Boot time at which it began.
    pub(crate) begun: Duration,
}

/// Verifies received files, which are not held any longer afterwards. If this call is cancelled meanwhile, they still
/// are, for the next transfer.
pub(crate) async fn conclude<T>(
    received: &mut Option<Unfinished>,
    verification: impl Future<Output = T>,
) -> T {
    let verified = verification.await;
    *received = None;
    verified
}

/// Bytes that a transfer needs on the disk: those of the files that are not held, and for the installed state, which links
/// the tables, those of the others twice: they are copied, and then written to new tables.
pub(crate) fn bytes_needed(head: &SnapshotHead, held: &Digests) -> u64 {
    let bytes = |file: &SnapshotFile| {
        let copies = if is_table_file(Path::new(&file.name)) { 0 } else { 2 };
        let received = u64::from(!held.contains_key(&file.name));
        file.bytes.saturating_mul(copies + received)
    };
    head.files.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Sends the files in `directory`, once the receiver has answered. The outer error is a read error, the inner one the
/// receiver's status.
pub(crate) async fn send(
    client: &Client,
    vote: &Vote,
    meta: &SnapshotMetaOf<TypeConfig>,
    directory: &Path,
    answered: impl FnOnce(),
) -> io::Result<Result<SnapshotResponse, Status>> {
    let head = SnapshotHead {
        vote: Some(codec::vote_to_proto(vote)),
        last_log_id: meta.last_log_id.as_ref().map(codec::log_id_to_proto),
        files: files_in(directory).await?,
    };
    let mut peer = client.peer();
    let held = match peer.held_snapshot_files(client.request(HeldSnapshotFilesRequest {})).await {
        Ok(held) => held.into_inner().digests.into_iter().collect(),
        Err(status) => return Ok(Err(status)),
    };
    answered();
    let (sender, parts) = mpsc::channel(limits::SNAPSHOT_PARTS_QUEUED_MAX);
    let taken = peer.install_snapshot(client.request(ReceiverStream::new(parts)));
    let (read, taken) = tokio::join!(read(head, directory, &held, sender), taken);
    match (read, taken) {
        (_, Ok(response)) => Ok(Ok(response.into_inner())),
        // The receiver stopped early, or the stream ended early because reading failed.
        (Ok(()), Err(status)) => Ok(Err(status)),
        (Err(error), Err(_)) => Err(error),
    }
}

async fn files_in(directory: &Path) -> io::Result<Vec<SnapshotFile>> {
    let mut files = Vec::new();
    let mut items = fs::read_dir(directory).await?;
    while let Some(item) = items.next_entry().await? {
        let name =
            item.file_name().into_string().map_err(|_| io::Error::other("a file name is not UTF-8"))?;
        files.push(SnapshotFile { name, bytes: item.metadata().await?.len() });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Ends without an error when the receiver stops: its status has the reason.
pub(crate) async fn read(
    head: SnapshotHead,
    directory: &Path,
    held: &Digests,
    parts: mpsc::Sender<SnapshotPart>,
) -> io::Result<()> {
    let files = head.files.clone();
    if parts.send(SnapshotPart { part: Some(Part::Head(head)) }).await.is_err() {
        return Ok(());
    }
    for file in files {
        let path = directory.join(&file.name);
        let read = match held.get(&file.name) {
            Some(held) => read_file(&path, file.bytes, None).await?.filter(|digest| digest == held),
            None => None,
        };
        let read = match read {
            Some(digest) => Some(digest),
            None => read_file(&path, file.bytes, Some(&parts)).await?,
        };
        let Some(digest) = read else { return Ok(()) };
        if parts.send(SnapshotPart { part: Some(Part::Digest(digest)) }).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads a file, sends its data if there is a receiver for it, and returns the digest; `None` if the receiver stopped.
async fn read_file(
    path: &Path,
    bytes: u64,
    parts: Option<&mpsc::Sender<SnapshotPart>>,
) -> io::Result<Option<Bytes>> {
    let mut rest = fs::File::open(path).await?.take(bytes);
    let mut context = digest::Context::new(&digest::SHA256);
    loop {
        let mut data = Vec::with_capacity(limits::SNAPSHOT_PART_BYTES);
        let mut part = (&mut rest).take(limits::SNAPSHOT_PART_BYTES as u64);
        if part.read_to_end(&mut data).await? == 0 {
            return Ok(Some(Bytes::copy_from_slice(context.finish().as_ref())));
        }
        context.update(&data);
        if let Some(parts) = parts
            && parts.send(SnapshotPart { part: Some(Part::Data(data.into())) }).await.is_err()
        {
            return Ok(None);
        }
    }
}

/// A received snapshot is rejected. Its files are removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The first part is not the head.
    #[error("the first part of the snapshot is not its head")]
    NoHead,
    /// More files than any snapshot has.
    #[error("the snapshot has more than {} files", limits::SNAPSHOT_FILES_MAX)]
    TooManyFiles,
    /// Larger than any snapshot.
    #[error("the snapshot is larger than {} bytes", limits::SNAPSHOT_BYTES_MAX)]
    TooLarge,
    /// A file name that could leave the directory, or a duplicate.
    #[error("{0:?} is not a snapshot file name")]
    Name(String),
    /// The stream ended before the last file.
    #[error("the snapshot ends within {0}")]
    Truncated(String),
    /// The length of a file differs from the head.
    #[error("the length of {0} differs from the head")]
    Length(String),
    /// The digest of a file differs.
    #[error("the digest of {0} does not match")]
    Digest(String),
    /// A part follows the last file, or a second head.
    #[error("a part follows the last file of the snapshot")]
    Trailing,
    /// Write error.
    #[error("failed to write the snapshot: {0}")]
    Disk(#[from] io::Error),
    /// No part for [`limits::SNAPSHOT_PART_TIMEOUT`]. Only one snapshot is received at a time, so a silent sender must
    /// not block others.
    #[error("timeout while receiving the snapshot")]
    Silent,
    /// The sender ended with an error.
    #[error("the sender aborted the snapshot: {0}")]
    Sender(String),
}

impl SnapshotError {
    /// Whether the transfer was interrupted: what was received until then is good.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, Self::Silent | Self::Sender(_) | Self::Truncated(_))
    }
}

/// Reads and validates the head of a snapshot.
pub(crate) async fn head(
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
) -> Result<SnapshotHead, SnapshotError> {
    let Some(Part::Head(head)) = next(parts).await? else { return Err(SnapshotError::NoHead) };
    if head.files.len() > limits::SNAPSHOT_FILES_MAX {
        return Err(SnapshotError::TooManyFiles);
    }
    let bytes = head.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    if bytes.is_none_or(|bytes| bytes > limits::SNAPSHOT_BYTES_MAX) {
        return Err(SnapshotError::TooLarge);
    }
    let mut names = BTreeSet::new();
    for SnapshotFile { name, .. } in &head.files {
        if !is_file_name(name) || !names.insert(name) {
            return Err(SnapshotError::Name(name.clone()));
        }
    }
    Ok(head)
}

async fn next(
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
) -> Result<Option<Part>, SnapshotError> {
    match timeout(limits::SNAPSHOT_PART_TIMEOUT, parts.next()).await {
        Ok(Some(Ok(part))) => Ok(part.part),
        Ok(Some(Err(status))) => Err(SnapshotError::Sender(status.message().to_owned())),
        Ok(None) => Ok(None),
        Err(_) => Err(SnapshotError::Silent),
    }
}

/// Writes the files durably into `directory`, which has the complete files in `digests` of an interrupted transfer, and
/// is prepared. Afterwards they are the complete files, also after an error.
pub(crate) async fn receive(
    head: &SnapshotHead,
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
    (directory, digests): (&Path, &mut Digests),
    progress: &TransferProgress,
) -> Result<(), SnapshotError> {
    let transfer = progress.begin(head.files.iter().map(|file| file.bytes).sum());
    for file in &head.files {
        let held = digests.remove(&file.name);
        let digest = receive_file(file, parts, (directory, held), &transfer).await?;
        digests.insert(file.name.clone(), digest);
    }
    if next(parts).await?.is_some() {
        return Err(SnapshotError::Trailing);
    }
    fs::File::open(directory).await?.sync_all().await?;
    Ok(())
}

/// Creates the directory, or removes the files in it that are incomplete or not in `head`, also from `digests`.
pub(crate) async fn prepare(head: &SnapshotHead, directory: &Path, digests: &mut Digests) -> io::Result<()> {
    fs::create_dir_all(directory).await?;
    let sizes: BTreeMap<&str, u64> = head.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
    digests.retain(|name, _| sizes.contains_key(name.as_str()));
    let mut items = fs::read_dir(directory).await?;
    while let Some(item) = items.next_entry().await? {
        let name = item.file_name();
        let name = name.to_string_lossy();
        if sizes.get(name.as_ref()) != Some(&item.metadata().await?.len()) {
            digests.remove(name.as_ref());
        }
        if !digests.contains_key(name.as_ref()) {
            fs::remove_file(item.path()).await?;
        }
    }
    Ok(())
}

/// Receives one file, or confirms the one that is held. Returns its digest.
async fn receive_file(
    file: &SnapshotFile,
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
    (directory, held): (&Path, Option<Bytes>),
    transfer: &Transfer<'_>,
) -> Result<Bytes, SnapshotError> {
    let part = |part: Option<Part>| match part {
        Some(Part::Head(_)) => Err(SnapshotError::Trailing),
        Some(part) => Ok(part),
        None => Err(SnapshotError::Truncated(file.name.clone())),
    };
    let mut received = part(next(parts).await?)?;
    if let (Part::Digest(digest), Some(held)) = (&received, held) {
        transfer.add(file.bytes);
        return if *digest == held { Ok(held) } else { Err(SnapshotError::Digest(file.name.clone())) };
    }
    let mut written = fs::File::create(directory.join(&file.name)).await?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut bytes = 0_u64;
    let digest = loop {
        match received {
            Part::Digest(digest) => break digest,
            Part::Head(_) => return Err(SnapshotError::Trailing),
            Part::Data(data) => {
                bytes = bytes.saturating_add(data.len() as u64);
                if bytes > file.bytes {
                    return Err(SnapshotError::Length(file.name.clone()));
                }
                context.update(&data);
                written.write_all(&data).await?;
                transfer.add(data.len() as u64);
            }
        }
        received = part(next(parts).await?)?;
    };
    if bytes != file.bytes {
        return Err(SnapshotError::Length(file.name.clone()));
    }
    if context.finish().as_ref() != digest.as_ref() {
        return Err(SnapshotError::Digest(file.name.clone()));
    }
    // The error of the last write is reported here.
    written.flush().await?;
    written.sync_all().await?;
    Ok(digest)
}
