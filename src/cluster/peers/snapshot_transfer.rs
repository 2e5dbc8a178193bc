//! Snapshot transfer between nodes: file by file, each with its digest, into a directory that becomes a snapshot only
//! when every file is complete and matches its digest.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use aws_lc_rs::digest;
use futures::{Stream, StreamExt as _};
use openraft::alias::SnapshotMetaOf;
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::channels::Client;
use super::wire::proto::snapshot_part::Part;
use super::wire::proto::{SnapshotFile, SnapshotHead, SnapshotPart, SnapshotResponse};
use crate::cluster::apply::snapshot::is_file_name;
use crate::cluster::codec;
use crate::cluster::type_config::{TypeConfig, Vote};
use crate::limits;

/// Sends the files in `directory`. The outer error is a read error, the inner one the receiver's status.
pub(crate) async fn send(
    client: &Client,
    vote: &Vote,
    meta: &SnapshotMetaOf<TypeConfig>,
    directory: &Path,
) -> io::Result<Result<SnapshotResponse, Status>> {
    let head = SnapshotHead {
        vote: Some(codec::vote_to_proto(vote)),
        last_log_id: meta.last_log_id.as_ref().map(codec::log_id_to_proto),
        files: files_in(directory).await?,
    };
    let (sender, parts) = mpsc::channel(limits::SNAPSHOT_PARTS_QUEUED_MAX);
    let mut peer = client.peer();
    let taken = peer.install_snapshot(client.request(ReceiverStream::new(parts)));
    let (read, taken) = tokio::join!(read(head, directory, sender), taken);
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
async fn read(head: SnapshotHead, directory: &Path, parts: mpsc::Sender<SnapshotPart>) -> io::Result<()> {
    let files = head.files.clone();
    let send = |part| parts.send(SnapshotPart { part: Some(part) });
    if send(Part::Head(head)).await.is_err() {
        return Ok(());
    }
    for file in files {
        let mut rest = fs::File::open(directory.join(&file.name)).await?.take(file.bytes);
        let mut context = digest::Context::new(&digest::SHA256);
        loop {
            let mut data = Vec::with_capacity(limits::SNAPSHOT_PART_BYTES);
            let mut part = (&mut rest).take(limits::SNAPSHOT_PART_BYTES as u64);
            if part.read_to_end(&mut data).await? == 0 {
                break;
            }
            context.update(&data);
            if send(Part::Data(data.into())).await.is_err() {
                return Ok(());
            }
        }
        let digest = bytes::Bytes::copy_from_slice(context.finish().as_ref());
        if send(Part::Digest(digest)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
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

/// Writes the files durably into the new `directory`.
pub(crate) async fn receive(
    head: &SnapshotHead,
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
    directory: &Path,
) -> Result<(), SnapshotError> {
    fs::create_dir(directory).await?;
    for file in &head.files {
        let mut written = fs::File::create(directory.join(&file.name)).await?;
        let mut context = digest::Context::new(&digest::SHA256);
        let mut bytes = 0_u64;
        let digest = loop {
            match next(parts).await? {
                Some(Part::Data(data)) => {
                    bytes = bytes.saturating_add(data.len() as u64);
                    if bytes > file.bytes {
                        return Err(SnapshotError::Length(file.name.clone()));
                    }
                    context.update(&data);
                    written.write_all(&data).await?;
                }
                Some(Part::Digest(digest)) => break digest,
                Some(Part::Head(_)) => return Err(SnapshotError::Trailing),
                None => return Err(SnapshotError::Truncated(file.name.clone())),
            }
        };
        if bytes != file.bytes {
            return Err(SnapshotError::Length(file.name.clone()));
        }
        if context.finish().as_ref() != digest.as_ref() {
            return Err(SnapshotError::Digest(file.name.clone()));
        }
        written.sync_all().await?;
    }
    if next(parts).await?.is_some() {
        return Err(SnapshotError::Trailing);
    }
    fs::File::open(directory).await?.sync_all().await?;
    Ok(())
}
