//! `trust-fabric backup …`

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use trust_fabric_client::NodeClient;

use super::Error;
use super::endpoint::ServerArguments;
use super::new_file::{FirstFile, parent_of};
use super::output::{self, Format, Output, counted, printable};
use super::progress::Progress;
use crate::backup::{self, DigestCheck, Manifest};

const PATH: [&str; 3] = ["v1", "sys", "backup"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Save the state of a running cluster to a file, through one of its nodes.
    Save {
        /// File to write, which must not exist; `-` for standard output.
        file: PathBuf,
        #[command(flatten)]
        server: ServerArguments,
    },
    /// Show the manifest of a backup, without verifying the rest.
    Inspect {
        /// File written by `backup save`.
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Verify a backup offline: every byte, every file and every row of the state.
    Verify {
        /// File written by `backup save`.
        file: PathBuf,
        /// Existing directory for the unpacked state, which is removed afterwards; default: that of the file.
        #[arg(long, value_name = "DIR")]
        temp_dir: Option<PathBuf>,
    },
}

pub(super) fn run(command: Command, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    match command {
        Command::Save { file, server } if file.as_os_str() == "-" => {
            super::wait_for(download(&server.client()?, out))
        }
        Command::Save { file, server } => save(&server.client()?, &file, out),
        Command::Inspect { file, output } => {
            let manifest = backup::inspect(&open(&file)?).map_err(|error| refused(&file, error))?;
            show(&manifest, output.format, out)
        }
        Command::Verify { file, temp_dir } => {
            let parent = temp_dir.as_deref().unwrap_or_else(|| parent_of(&file));
            let manifest = verify(&file, parent)?;
            let (index, files) =
                (manifest.log_id.index, counted(manifest.files.len() as u64, "file", "files"));
            writeln!(out, "{}: verified: {files}, state up to log index {index}", file.display())?;
            Ok(())
        }
    }
}

fn refused(path: &Path, source: backup::Error) -> Error {
    Error::Backup { path: path.to_owned(), source }
}

pub(super) fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

fn save(client: &NodeClient, path: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let mut backup = FirstFile::prepare(path)?;
    super::wait_for(download(client, &mut backup.file))?;
    let bytes = backup.store()?;
    writeln!(out, "{}: saved, {bytes} bytes", path.display())?;
    Ok(())
}

/// A directory that is removed when it is dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Writes a backup, and verifies the digest of the bytes that it writes.
async fn download(client: &NodeClient, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let mut body = client.download(&PATH).await?;
    let (mut check, mut progress, mut bytes) = (DigestCheck::default(), Progress::new("save", None), 0);
    while let Some(part) = body.next().await? {
        check.push(part.as_ref());
        out.write_all(part.as_ref())?;
        bytes += part.as_ref().len() as u64;
        progress.show(bytes);
    }
    out.flush()?;
    check.finish().map_err(|source| refused(Path::new("the backup of the node"), source))
}

fn verify(path: &Path, parent: &Path) -> Result<Manifest, Error> {
    let file = open(path)?;
    verify_digest(path, &file)?;
    let directory = Removed(parent.join(format!("trust-fabric-backup-{}", std::process::id())));
    let created = fs::DirBuilder::new().mode(0o700).create(&directory.0);
    created.map_err(|source| Error::File { path: directory.0.clone(), source })?;
    unpack(path, &file, &directory.0.join("state"))
}

/// Verifies the digest of the whole file, and returns the manifest.
pub(super) fn verify_digest(path: &Path, file: &File) -> Result<Manifest, Error> {
    let refused = |error| refused(path, error);
    // Read first, because the manifest of a newer version states that it is newer. Any other error in it may
    // come from a truncated file.
    let stated = match backup::inspect(file) {
        Err(newer @ backup::Error::Newer { .. }) => return Err(refused(newer)),
        stated => stated,
    };
    let bytes = file.metadata().map_err(|source| Error::File { path: path.to_owned(), source })?.len();
    let mut progress = Progress::new("digest", Some(bytes));
    backup::verify_digest(file, &mut |done| progress.show(done)).map_err(refused)?;
    stated.map_err(refused)
}

/// Unpacks the state into a new directory, and verifies every file and row.
pub(super) fn unpack(path: &Path, file: &File, state: &Path) -> Result<Manifest, Error> {
    let refused = |error| refused(path, error);
    let stated = backup::inspect(file).map_err(refused)?;
    let mut progress = Progress::new("unpack", Some(stated.bytes()));
    let manifest = backup::extract(file, state, &mut |done| progress.show(done)).map_err(refused)?;
    drop(progress);
    backup::check_state(state, &manifest).map_err(refused)?;
    Ok(manifest)
}

fn show(manifest: &Manifest, format: Format, out: &mut dyn Write) -> Result<(), Error> {
    if format == Format::Json {
        let value = serde_json::to_value(manifest).unwrap_or(Value::Null);
        return Ok(output::json(out, &value)?);
    }
    let log_id = &manifest.log_id;
    for (name, value) in [
        ("issuer", manifest.issuer.clone()),
        ("mode", manifest.mode.clone()),
        ("cluster", manifest.cluster_id.clone()),
        ("incarnation", manifest.incarnation.clone()),
        ("level", manifest.feature_level.to_string()),
        ("written by", format!("node {}, version {}", manifest.node_id, manifest.product_version)),
        ("log index", format!("{} (term {} of node {})", log_id.index, log_id.term, log_id.node_id)),
        ("log time", manifest.log_time.clone()),
        ("state hash", manifest.state_hash.clone()),
        ("files", format!("{}, {} bytes", manifest.files.len(), manifest.bytes())),
    ] {
        writeln!(out, "{name:<12} {}", printable(&value))?;
    }
    Ok(())
}
