//! Snapshots between nodes: file by file, each with its digest, into a directory that becomes a snapshot only
//! when all of it is there and is what it was said to be.

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
use crate::cluster::codec;
use crate::cluster::type_config::{TypeConfig, Vote};
use crate::limits;

/// Sends the files in `directory`. The outer error is one of reading them.
///
/// # Errors
/// If a file cannot be read, or the other node refuses.
pub async fn send(
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
        // It was refused before all of it was read, or because reading it ended early.
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

/// Ends without an error when nobody takes the parts any more: who does not says why.
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

/// Why a snapshot is not taken. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It does not begin with what it is.
    #[error("the snapshot does not begin with its head")]
    NoHead,
    /// It has as many files as none of ours has.
    #[error("the snapshot has more than {} files", limits::SNAPSHOT_FILES_MAX)]
    TooManyFiles,
    /// It is larger than any of ours.
    #[error("the snapshot is larger than {} bytes", limits::SNAPSHOT_BYTES_MAX)]
    TooLarge,
    /// A name that could lead out of the directory, or stands there twice.
    #[error("{0:?} is not the name of a file of a snapshot")]
    Name(String),
    /// It ended before its last file did.
    #[error("the snapshot ends in the middle of {0}")]
    Truncated(String),
    /// A file is longer or shorter than it was said to be.
    #[error("{0} has another length than was said")]
    Length(String),
    /// A file is not what was sent.
    #[error("{0} is not what was sent: its digest differs")]
    Digest(String),
    /// Something comes behind its last file.
    #[error("something comes behind the last file of the snapshot")]
    Trailing,
    /// The disk refuses.
    #[error("the snapshot cannot be written: {0}")]
    Disk(#[from] io::Error),
    /// Nothing came for [`limits::SNAPSHOT_PART_TIMEOUT`]. There is one place for a snapshot that is received, and
    /// whoever says no more may not keep it.
    #[error("nothing more of the snapshot has come")]
    Silent,
    /// The sender gave up.
    #[error("the snapshot was not sent to its end: {0}")]
    Sender(String),
}

/// The head of a snapshot, checked as far as that can be done before its files are there.
pub async fn head(
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
) -> Result<SnapshotHead, Refused> {
    let Some(Part::Head(head)) = next(parts).await? else { return Err(Refused::NoHead) };
    if head.files.len() > limits::SNAPSHOT_FILES_MAX {
        return Err(Refused::TooManyFiles);
    }
    let bytes = head.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    if bytes.is_none_or(|bytes| bytes > limits::SNAPSHOT_BYTES_MAX) {
        return Err(Refused::TooLarge);
    }
    let mut names = BTreeSet::new();
    for SnapshotFile { name, .. } in &head.files {
        if !is_name(name) || !names.insert(name) {
            return Err(Refused::Name(name.clone()));
        }
    }
    Ok(head)
}

/// As the database names its files: letters, digits, and `.`, `_`, `-` but not in the first place.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= limits::SNAPSHOT_NAME_BYTES_MAX
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(is_inner)
}

async fn next(
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
) -> Result<Option<Part>, Refused> {
    match timeout(limits::SNAPSHOT_PART_TIMEOUT, parts.next()).await {
        Ok(Some(Ok(part))) => Ok(part.part),
        Ok(Some(Err(status))) => Err(Refused::Sender(status.message().to_owned())),
        Ok(None) => Ok(None),
        Err(_) => Err(Refused::Silent),
    }
}

/// Writes the files into `directory`, which is made for them, durably.
pub async fn receive(
    head: &SnapshotHead,
    parts: &mut (impl Stream<Item = Result<SnapshotPart, Status>> + Unpin),
    directory: &Path,
) -> Result<(), Refused> {
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
                        return Err(Refused::Length(file.name.clone()));
                    }
                    context.update(&data);
                    written.write_all(&data).await?;
                }
                Some(Part::Digest(digest)) => break digest,
                Some(Part::Head(_)) => return Err(Refused::Trailing),
                None => return Err(Refused::Truncated(file.name.clone())),
            }
        };
        if bytes != file.bytes {
            return Err(Refused::Length(file.name.clone()));
        }
        if context.finish().as_ref() != digest.as_ref() {
            return Err(Refused::Digest(file.name.clone()));
        }
        written.sync_all().await?;
    }
    if next(parts).await?.is_some() {
        return Err(Refused::Trailing);
    }
    fs::File::open(directory).await?.sync_all().await?;
    Ok(())
}
