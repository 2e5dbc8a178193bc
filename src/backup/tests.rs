//! A backup of a running node, and every kind of damage to it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use zstd::stream::write::Encoder;

use super::trailer::trailer;
use super::*;
use crate::clock::Timestamp;
use crate::state::feature_level;
use crate::state::testing::TestNode;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const ISSUER: &str = "https://fabric.example";

async fn saved(node: &TestNode) -> Vec<u8> {
    let origin = Origin { mode: "production", issuer: ISSUER.to_owned(), node_id: 1 };
    let checkpoint = node.state.cluster().checkpoint().expect("checkpoint");
    let mut backup = BackupStream::new(checkpoint, origin).expect("begins");
    let mut bytes = Vec::new();
    while let Some(part) = backup.next().await.expect("a part") {
        bytes.extend_from_slice(&part);
    }
    bytes
}

/// A backup in its directory.
struct Saved {
    directory: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Saved {
    async fn of_a_node() -> Self {
        let node = TestNode::start(START).await;
        node.state.as_node().allow_revocations(ISSUER.to_owned(), 1).await.expect("an entry");
        let bytes = saved(&node).await;
        node.end().await;
        Self { directory: tempfile::tempdir().expect("directory"), bytes }
    }

    fn file(&self, bytes: &[u8]) -> File {
        let path = self.directory.path().join("backup");
        std::fs::write(&path, bytes).expect("written");
        File::open(path).expect("opens")
    }

    fn target(&self) -> PathBuf {
        self.directory.path().join("unpacked")
    }

    /// Verifies as the command does.
    fn verify(&self, bytes: &[u8]) -> Result<Manifest, Error> {
        let file = self.file(bytes);
        inspect(&file)?;
        verify_digest(&file, &mut |_| {})?;
        self.unpack(&file)
    }

    /// Without the digest of the whole.
    fn unpack(&self, file: &File) -> Result<Manifest, Error> {
        let target = self.target();
        if target.exists() {
            std::fs::remove_dir_all(&target).expect("removed");
        }
        let manifest = extract(file, &target, &mut |_| {})?;
        check_state(&target, &manifest)?;
        Ok(manifest)
    }

    /// The members of the archive.
    fn members(&self) -> Vec<(String, Vec<u8>)> {
        let manifest = self.verify(&self.bytes).expect("whole");
        let file = self.file(&self.bytes);
        let mut text = serde_json::to_vec(&inspect(&file).expect("manifest")).expect("JSON");
        text.push(b'\n');
        let read = |file: &FileEntry| {
            (file.name.clone(), std::fs::read(self.target().join(&file.name)).expect("a file"))
        };
        std::iter::once((MANIFEST.to_owned(), text)).chain(manifest.files.iter().map(read)).collect()
    }

    /// The members, with another manifest.
    fn with_manifest(&self, change: impl FnOnce(&mut Value)) -> Vec<(String, Vec<u8>)> {
        let mut members = self.members();
        let mut manifest = crate::json::parse(&members[0].1).expect("JSON");
        change(&mut manifest);
        members[0].1 = manifest.to_string().into_bytes();
        members
    }
}

/// A header with a name that a path would not accept.
fn raw_header(name: &str, bytes: u64, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_entry_type(kind);
    header.set_cksum();
    header
}

/// An archive with a right digest.
fn packed(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let regular = |(name, bytes): &(String, Vec<u8>)| {
        (raw_header(name, bytes.len() as u64, tar::EntryType::Regular), bytes.clone())
    };
    packed_with(&members.iter().map(regular).collect::<Vec<_>>())
}

fn packed_with(members: &[(tar::Header, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (header, bytes) in members {
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    let mut encoder = Encoder::new(Vec::new(), 1).expect("encoder");
    encoder.write_all(&archive).expect("encodes");
    let mut bytes = encoder.finish().expect("encodes");
    let mut context = sha256();
    context.update(&bytes);
    bytes.extend(trailer(context));
    bytes
}

#[tokio::test]
async fn backup_of_a_running_node_is_verified() {
    let saved = Saved::of_a_node().await;
    let manifest = saved.verify(&saved.bytes).expect("whole");
    assert_eq!((manifest.format, manifest.issuer.as_str(), manifest.node_id), (FORMAT, ISSUER, 1));
    assert_eq!(manifest.cluster_id, "01".repeat(16));
    assert_eq!(manifest.incarnation, "02".repeat(16));
    assert!(manifest.log_id.index >= 3 && manifest.files.len() >= 3, "{manifest:?}");
    assert_eq!(inspect(&saved.file(&saved.bytes)).expect("manifest"), manifest);
    assert!(saved.verify(&packed(&saved.members())).is_ok(), "the tests pack as the product does");
}

#[tokio::test]
async fn changed_byte_anywhere_is_noticed() {
    let saved = Saved::of_a_node().await;
    let last = saved.bytes.len() - 1;
    let positions = (0..64).chain((64..last - 64).step_by(last / 100)).chain(last - 64..=last);
    for position in positions {
        for flip in [1, 0x80] {
            let mut bytes = saved.bytes.clone();
            bytes[position] ^= flip;
            assert!(saved.verify(&bytes).is_err(), "byte {position}");
            assert!(verify_digest(&saved.file(&bytes), &mut |_| {}).is_err(), "byte {position}");
        }
    }
}

#[tokio::test]
async fn truncated_or_longer_backup_is_refused() {
    let saved = Saved::of_a_node().await;
    let bytes = saved.bytes.len();
    for end in (0..20).chain((20..bytes).step_by(bytes / 50)).chain(bytes - 60..bytes) {
        let refused = verify_digest(&saved.file(&saved.bytes[..end]), &mut |_| {}).expect_err("truncated");
        assert!(matches!(refused, Error::Truncated) == (end >= 4), "{end}: {refused}");
        assert!(saved.verify(&saved.bytes[..end]).is_err(), "{end}");
    }
    let longer = [&saved.bytes[..], &[0]].concat();
    assert!(matches!(saved.verify(&longer), Err(Error::Truncated)));
}

#[tokio::test]
async fn other_files_are_no_backup() {
    let saved = Saved::of_a_node().await;
    for bytes in [&b""[..], b"text", &[0; 4096], &packed(&[]), &packed(&saved.members()[1..])] {
        let refused = saved.verify(bytes).expect_err("no backup");
        assert!(matches!(refused, Error::NotABackup(_)), "{refused}");
    }
}

#[tokio::test]
async fn newer_format_is_refused_as_such() {
    let saved = Saved::of_a_node().await;
    let newer = saved.with_manifest(|manifest| {
        *manifest = json!({"format": FORMAT + 1, "product_version": "9.0.0", "new": true});
    });
    let refused = saved.verify(&packed(&newer)).expect_err("newer");
    assert!(matches!(&refused, Error::Newer { format: 2, version } if version == "9.0.0"), "{refused}");
}

#[tokio::test]
async fn backup_of_a_newer_feature_level_is_refused() {
    let saved = Saved::of_a_node().await;
    let newest = feature_level::NEWEST;
    assert_eq!(saved.verify(&saved.bytes).expect("whole").feature_level, newest);
    let newer = saved.with_manifest(|manifest| manifest["feature_level"] = json!(newest + 1));
    let refused = saved.verify(&packed(&newer)).expect_err("newer").to_string();
    let expected = format!("feature level {}, and this program", newest + 1);
    assert!(refused.contains("written by version") && refused.contains(&expected), "{refused}");
}

/// Rule of the refused member.
fn rule_of(outcome: Result<Manifest, Error>) -> &'static str {
    match outcome {
        Err(Error::Member { rule, .. }) => rule,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn name_outside_the_directory_is_refused() {
    let saved = Saved::of_a_node().await;
    for name in ["../x", "/x", "a/b", "..", ".x", "", "x\\y"] {
        let named = saved.with_manifest(|manifest| manifest["files"][0]["name"] = json!(name));
        assert_eq!(rule_of(saved.verify(&packed(&named))), "not a file name of a state", "{name}");
        let mut members = saved.members();
        members[1].0 = name.to_owned();
        assert_eq!(rule_of(saved.verify(&packed(&members))), "not in the manifest", "{name}");
    }
    assert!(!saved.directory.path().join("x").exists() && !Path::new("/x").exists());
}

#[tokio::test]
async fn surplus_and_missing_members_are_refused() {
    let saved = Saved::of_a_node().await;
    let mut twice = saved.members();
    twice.push(twice[1].clone());
    assert_eq!(rule_of(saved.verify(&packed(&twice))), "duplicate");
    let mut more = saved.members();
    more.push(("more".to_owned(), Vec::new()));
    assert_eq!(rule_of(saved.verify(&packed(&more))), "not in the manifest");
    let mut fewer = saved.members();
    let missing = fewer.pop().expect("a file").0;
    let refused = saved.verify(&packed(&fewer)).expect_err("missing");
    assert!(matches!(&refused, Error::Missing(name) if *name == missing), "{refused}");
    let listed_twice = saved.with_manifest(|manifest| {
        let first = manifest["files"][0].clone();
        manifest["files"].as_array_mut().expect("files").push(first);
    });
    assert_eq!(rule_of(saved.verify(&packed(&listed_twice))), "duplicate");
}

#[tokio::test]
async fn size_and_digest_of_each_file_are_checked() {
    let saved = Saved::of_a_node().await;
    for bytes in [0, 1_u64 << 30] {
        let sized = saved.with_manifest(|manifest| manifest["files"][0]["bytes"] = json!(bytes));
        assert_eq!(rule_of(saved.verify(&packed(&sized))), "the size differs from the manifest");
    }
    let huge = saved.with_manifest(|manifest| manifest["files"][0]["bytes"] = json!(u64::MAX));
    assert!(matches!(saved.verify(&packed(&huge)), Err(Error::Manifest(_))));
    let mut longer = saved.members();
    longer[1].1.push(0);
    assert_eq!(rule_of(saved.verify(&packed(&longer))), "the size differs from the manifest");
    let mut changed = saved.members();
    let last = changed.iter_mut().rfind(|(_, bytes)| !bytes.is_empty()).expect("a file");
    last.1[0] ^= 1;
    assert_eq!(rule_of(saved.verify(&packed(&changed))), "the digest does not match");
}

#[tokio::test]
async fn member_that_is_no_regular_file_is_refused() {
    let saved = Saved::of_a_node().await;
    for kind in [
        tar::EntryType::Symlink,
        tar::EntryType::Link,
        tar::EntryType::Directory,
        tar::EntryType::Fifo,
        tar::EntryType::GNULongName,
        tar::EntryType::XHeader,
        tar::EntryType::GNUSparse,
    ] {
        let members = saved.members();
        let member = |(at, (name, bytes)): (usize, &(String, Vec<u8>))| {
            let kind = if at == 1 { kind } else { tar::EntryType::Regular };
            (raw_header(name, bytes.len() as u64, kind), bytes.clone())
        };
        let packed = packed_with(&members.iter().enumerate().map(member).collect::<Vec<_>>());
        assert_eq!(rule_of(saved.verify(&packed)), "must be a regular file", "{kind:?}");
    }
}

/// All digests are right, and the manifest states another state.
#[tokio::test]
async fn state_other_than_the_manifest_states_is_refused() {
    let saved = Saved::of_a_node().await;
    for (field, value) in [
        ("state_hash", json!("00".repeat(32))),
        ("cluster_id", json!("00".repeat(16))),
        ("incarnation", json!("00".repeat(16))),
        ("log_time", json!("2020-01-01T00:00:00.000Z")),
        ("log_id", json!({"term": 1, "node_id": 1, "index": 1_000_000})),
    ] {
        let other = saved.with_manifest(|manifest| manifest[field] = value);
        let refused = saved.verify(&packed(&other)).expect_err("another state");
        assert_eq!(
            refused.to_string(),
            format!("the state in the backup: {field} differs from the manifest")
        );
    }
}
