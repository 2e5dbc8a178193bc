//! Writing: the files of a checkpoint as a stream of parts, compressed while they are sent.

use std::io::{self, Write as _};
use std::path::Path;

use aws_lc_rs::digest;
use bytes::Bytes;
use tokio::fs;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use zstd::stream::write::Encoder;

use super::trailer::trailer;
use super::{FORMAT, FileEntry, MANIFEST, Manifest, ManifestLogId, hex, sha256};
use crate::cluster::{SnapshotFiles, StateFiles};
use crate::limits;
use crate::state::{Replicated, StateIdentity};

/// Compression level: the default of zstd, faster than most networks.
const LEVEL: i32 = 3;
/// Size of a block of a tar archive.
const BLOCK_BYTES: usize = 512;

/// Origin of a backup, which its manifest states beside the content of the state.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// `production` or `development`.
    pub(crate) mode: &'static str,
    /// `iss` of the fabric.
    pub(crate) issuer: String,
    pub(crate) node_id: u64,
}

/// A file that is being sent.
struct OpenFile {
    entry: FileEntry,
    rest: fs::File,
    digest: digest::Context,
    sent: u64,
}

/// The bytes of a backup. The checkpoint exists as long as this value.
pub(crate) struct BackupStream {
    checkpoint: SnapshotFiles,
    /// Taken once the manifest is written.
    manifest: Option<Manifest>,
    /// The files that are not sent yet, last first.
    files: Vec<FileEntry>,
    open: Option<OpenFile>,
    /// `None` after the trailer.
    encoder: Option<Encoder<'static, Vec<u8>>>,
    whole: digest::Context,
}

impl BackupStream {
    /// A stream of this checkpoint. Digests are computed when it is read.
    ///
    /// # Errors
    /// If the disk fails, or the cluster is not bootstrapped.
    pub(crate) fn new(checkpoint: SnapshotFiles, origin: Origin) -> io::Result<Self> {
        // Before the state is opened, which adds files that do not belong to it.
        let files = files_in(checkpoint.directory())?;
        let manifest = describe(checkpoint.directory(), origin)?;
        let mut encoder = Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_checksum(true)?;
        let encoder = Some(encoder);
        Ok(Self { checkpoint, manifest: Some(manifest), files, open: None, encoder, whole: sha256() })
    }

    /// Index of the last log entry that the backup covers; 0 once it is being read.
    pub(crate) fn index(&self) -> u64 {
        self.manifest.as_ref().map_or(0, |manifest| manifest.log_id.index)
    }

    /// The next part; `None` after the last.
    ///
    /// # Errors
    /// If the disk fails, or a file changed.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        while let Some(mut encoder) = self.encoder.take() {
            if self.write_part(&mut encoder).await? {
                let part = encoder.finish()?;
                let mut whole = self.whole.clone();
                whole.update(&part);
                return Ok(Some([part, trailer(whole)].concat().into()));
            }
            let part = std::mem::take(encoder.get_mut());
            self.whole.update(&part);
            self.encoder = Some(encoder);
            if !part.is_empty() {
                return Ok(Some(part.into()));
            }
        }
        Ok(None)
    }

    /// Writes the next part of the archive; returns whether it was the last.
    async fn write_part(&mut self, encoder: &mut Encoder<'static, Vec<u8>>) -> io::Result<bool> {
        if let Some(manifest) = self.manifest.take() {
            self.write_manifest(manifest, encoder).await?;
        } else if let Some(open) = self.open.take() {
            self.open = open.write_part(encoder).await?;
        } else if let Some(entry) = self.files.pop() {
            encoder.write_all(header(&entry.name, entry.bytes)?.as_bytes())?;
            let rest = fs::File::open(self.checkpoint.directory().join(&entry.name)).await?;
            self.open = Some(OpenFile { entry, rest, digest: sha256(), sent: 0 });
        } else {
            // The end of an archive.
            encoder.write_all(&[0; 2 * BLOCK_BYTES])?;
            return Ok(true);
        }
        Ok(false)
    }

    async fn write_manifest(
        &mut self,
        mut manifest: Manifest,
        encoder: &mut Encoder<'static, Vec<u8>>,
    ) -> io::Result<()> {
        for file in &mut self.files {
            file.sha256 = digest_of(&self.checkpoint.directory().join(&file.name)).await?;
        }
        manifest.files = std::mem::take(&mut self.files);
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        encoder.write_all(header(MANIFEST, text.len() as u64)?.as_bytes())?;
        encoder.write_all(&text)?;
        encoder.write_all(padding(text.len() as u64))?;
        self.files = manifest.files;
        self.files.reverse();
        Ok(())
    }
}

impl OpenFile {
    /// Returns itself unless it is complete.
    async fn write_part(mut self, encoder: &mut Encoder<'static, Vec<u8>>) -> io::Result<Option<Self>> {
        let part = read_part(&mut self.rest).await?;
        if !part.is_empty() {
            self.digest.update(&part);
            self.sent += part.len() as u64;
            encoder.write_all(&part)?;
            return Ok(Some(self));
        }
        if self.sent != self.entry.bytes || hex(self.digest.finish().as_ref()) != self.entry.sha256 {
            return Err(io::Error::other(format!("{} changed while it was read", self.entry.name)));
        }
        encoder.write_all(padding(self.sent))?;
        Ok(None)
    }
}

/// The manifest without its files.
fn describe(directory: &Path, origin: Origin) -> io::Result<Manifest> {
    let state = StateFiles::open::<Replicated>(directory)?;
    let (term, node_id, index) = state.last()?;
    let identity = StateIdentity::read(state.view()).map_err(io::Error::other)?;
    let identity = identity.ok_or_else(|| io::Error::other("the cluster is not bootstrapped"))?;
    Ok(Manifest {
        format: FORMAT,
        product_version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: origin.mode.to_owned(),
        issuer: origin.issuer,
        cluster_id: identity.cluster_id.to_string(),
        incarnation: identity.incarnation.to_string(),
        feature_level: identity.feature_level,
        node_id: origin.node_id,
        log_id: ManifestLogId { term, node_id, index },
        log_time: identity.time.to_rfc3339(),
        state_hash: hex(&state.hash()?),
        files: Vec::new(),
    })
}

/// The files, without digests.
fn files_in(directory: &Path) -> io::Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    for item in std::fs::read_dir(directory)? {
        let item = item?;
        let name = item.file_name().into_string();
        let name = name.map_err(|_| io::Error::other("a file name is not UTF-8"))?;
        files.push(FileEntry { name, bytes: item.metadata()?.len(), sha256: String::new() });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

async fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path).await?;
    let mut context = sha256();
    loop {
        let part = read_part(&mut file).await?;
        if part.is_empty() {
            return Ok(hex(context.finish().as_ref()));
        }
        context.update(&part);
    }
}

async fn read_part(file: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut part = Vec::with_capacity(limits::BACKUP_PART_BYTES);
    file.take(limits::BACKUP_PART_BYTES as u64).read_to_end(&mut part).await?;
    Ok(part)
}

/// Header of a regular file. Nothing in it depends on the machine.
fn header(name: &str, bytes: u64) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    Ok(header)
}

fn padding(bytes: u64) -> &'static [u8] {
    const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let rest = usize::try_from(bytes % BLOCK_BYTES as u64).unwrap_or_default();
    if rest == 0 { &[] } else { &ZEROS[rest..] }
}
