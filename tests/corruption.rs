//! Damaged data directories. A node either refuses to start and names the remedy, or has all of its state. It
//! never drops data silently and never panics.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "the stack of a test holds a whole node and its configuration")]

mod node_under_test;

use std::fs;
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use node_under_test::{Node, Site, copy, files, newest_snapshot};
use trust_fabric::cluster::StateHash;
use trust_fabric::id::Digest128;
use trust_fabric::node;
use trust_fabric::state::{self, MintedToken, PolicySource, Refusal};

const NONCES: u8 = 60;
const FLIPS: usize = 240;
const AT_ONCE: usize = 6;
/// Attempts on a machine whose disk stalls for longer than a write waits.
const ATTEMPTS_MAX: usize = 3;

fn nonce(number: u8) -> Digest128 {
    Digest128::from_bytes([number; 16])
}

/// A write had no outcome in time, so nothing is known of the node.
type Unanswered = String;

/// A data directory with history: tables on disk, tables only in the log, a snapshot, three starts.
struct History {
    site: Site,
    /// State hash after one more start.
    hash: (u64, StateHash),
}

impl History {
    async fn make() -> Self {
        const POLICY: &str = include_str!("../policies/exchange.rego");
        let site = Site::new();
        let data = site.data();
        let live = async |from: u8, to: u8| {
            let node = site.start(&data).await.expect("starts");
            for number in from..to {
                node.running
                    .state
                    .as_node()
                    .record_exchange(Some(nonce(number)), state::owner("test"), MintedToken::default())
                    .await
                    .expect("fresh");
            }
            let source = PolicySource { path: "a.rego".into(), text: format!("{POLICY}\n# {from}") };
            let put = node.running.state.as_node().put_policy(
                format!("policy-{from}"),
                vec![source],
                String::new(),
            );
            put.await.expect("policy");
            node
        };
        live(0, NONCES / 3).await.stop().await;
        let node = live(NONCES / 3, 2 * NONCES / 3).await;
        snapshot(&node, &data).await;
        node.stop().await;
        live(2 * NONCES / 3, NONCES).await.stop().await;
        let copied = site.beside("reference");
        copy(&data, &copied);
        let node = site.start(&copied).await.expect("starts");
        let hash = node.running.state.cluster().state_hash().expect("hash");
        node.stop().await;
        Self { site, hash }
    }

    /// Starts a node on a damaged copy. Returns its error, or `None` if its state is complete.
    async fn start_damaged(&self, name: &str, damage: impl Fn(&Path)) -> Option<String> {
        for attempt in 0..ATTEMPTS_MAX {
            let data = self.site.beside(&format!("{attempt}-{name}"));
            copy(&self.site.data(), &data);
            damage(&data);
            let outcome = self.start_on(&data, name).await;
            // Tasks of the refused node may still write here. The site removes the rest.
            drop(fs::remove_dir_all(&data));
            match outcome {
                Ok(refusal) => return refusal,
                Err(unanswered) => println!("{name}: {unanswered}"),
            }
        }
        panic!("{name}: the node answered no write in {ATTEMPTS_MAX} attempts");
    }

    async fn start_on(&self, data: &Path, name: &str) -> Result<Option<String>, Unanswered> {
        match self.site.start(data).await {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(data.to_str().expect("path")), "{name}: no place in {text:?}");
                Ok(Some(text))
            }
            Ok(node) => {
                let complete = self.assert_complete(&node, name).await;
                node.stop().await;
                complete.map(|()| None)
            }
        }
    }

    async fn assert_complete(&self, node: &Node, name: &str) -> Result<(), Unanswered> {
        let state = &node.running.state;
        // A node that lost a private key publishes another, which adds a log entry.
        if !name.ends_with("p8") {
            assert_eq!(state.cluster().state_hash().expect("hash"), self.hash, "{name}: not the same state");
        }
        let spent = (0..NONCES).map(|number| {
            state.as_node().record_exchange(Some(nonce(number)), state::owner("test"), MintedToken::default())
        });
        for (number, outcome) in futures::future::join_all(spent).await.into_iter().enumerate() {
            match outcome {
                Err(state::Error::Refused(Refusal::NonceSpent)) => {}
                Err(state::Error::Write(unanswered)) => return Err(unanswered.to_string()),
                other => panic!("{name}: nonce {number} was forgotten: {other:?}"),
            }
        }
        let digests: Vec<_> =
            state.index().policy_history.values().map(|change| change.digest.clone()).collect();
        assert_eq!(digests.len(), 4, "{name}: {digests:?}");
        for digest in digests {
            assert!(state.policy_sources(&digest).expect("row").is_some(), "{name}: {digest}");
        }
        Ok(())
    }
}

async fn snapshot(node: &Node, data: &Path) {
    node.running.state.cluster().snapshot().await.expect("snapshot");
    let mut number = 200;
    while newest_snapshot(data).is_none() {
        // These entries are applied while the snapshot is built.
        drop(
            node.running
                .state
                .as_node()
                .record_exchange(Some(nonce(number)), state::owner("test"), MintedToken::default())
                .await,
        );
        number = if number == 255 { 200 } else { number + 1 };
    }
}

fn names_the_remedy(text: &str) -> bool {
    ["start the node with", "start again", "start it", "start the version"]
        .iter()
        .any(|advice| text.contains(advice))
}

/// Excludes RocksDB's info log, lock file and options files, which hold no data of ours.
fn has_data(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).expect("name");
    let is_diary = name.starts_with("LOG") || name == "LOCK" || name.starts_with("OPTIONS");
    !is_diary && fs::metadata(path).expect("size").len() > 0
}

/// Positions in every file, more of them in larger files.
fn positions(data: &Path, count: usize) -> Vec<(PathBuf, u64)> {
    let files: Vec<_> = files(data).into_iter().filter(|path| has_data(path)).collect();
    let per_file = count.div_ceil(files.len());
    let mut positions = Vec::new();
    for path in files {
        let length = fs::metadata(&path).expect("size").len();
        let step = (length / per_file as u64).max(1);
        // An odd offset in each step hits headers and payloads.
        let at = (0..length).step_by(usize::try_from(step).expect("step"));
        positions.extend(at.enumerate().map(|(turn, at)| {
            let within = (at + (turn as u64 * 7) % step).min(length - 1);
            (path.strip_prefix(data).expect("below").to_owned(), within)
        }));
    }
    positions
}

fn flip(path: &Path, at: u64, mask: u8) {
    let mut bytes = fs::read(path).expect("read");
    bytes[usize::try_from(at).expect("position")] ^= mask;
    fs::write(path, bytes).expect("write");
}

async fn flip_everywhere(count: usize, masks: &[u8]) {
    let past = &History::make().await;
    let cases: Vec<_> = positions(&past.site.data(), count)
        .into_iter()
        .enumerate()
        .map(|(turn, (file, at))| (file, at, masks[turn % masks.len()]))
        .collect();
    let total = cases.len();
    let outcomes: Vec<_> = futures::stream::iter(cases.into_iter().enumerate())
        .map(|(turn, (file, at, mask))| async move {
            let name = format!("flip-{turn}-{}-{at}-{mask:02x}", file.display()).replace('/', "-");
            let outcome = past.start_damaged(&name, |data| flip(&data.join(&file), at, mask)).await;
            (file, at, mask, outcome)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut refused = 0;
    let mut unhelpful = Vec::new();
    for (file, at, mask, outcome) in outcomes {
        match outcome {
            Some(text) => {
                refused += 1;
                if !names_the_remedy(&text) {
                    unhelpful.push(format!("{}:{at} ^{mask:02x}: {text}", file.display()));
                }
            }
            None => println!("harmless: {}:{at} ^{mask:02x}", file.display()),
        }
    }
    println!("{total} flips: {refused} refused, {} harmless", total - refused);
    assert!(total >= 200, "{total}");
    assert!(unhelpful.is_empty(), "no advice:\n{}", unhelpful.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_stops_the_node_or_is_harmless() {
    Box::pin(flip_everywhere(FLIPS, &[0x01, 0x04, 0x80, 0xff])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "fifteen hundred positions take minutes; part of `make proof`"]
async fn a_flipped_byte_anywhere_stops_the_node_or_is_harmless() {
    Box::pin(flip_everywhere(1500, &[0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff])).await;
}

fn newest(data: &Path, folder: &str, extension: &str) -> PathBuf {
    let wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
    files(&data.join(folder)).into_iter().rfind(wanted).expect("file")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_shorter_than_the_state_is_refused() {
    let past = &History::make().await;
    let length = fs::metadata(newest(&past.site.data(), "raft", "log")).expect("size").len();
    let mut refused = 0;
    for part in 0..16 {
        let keep = length * part / 16;
        let name = format!("cut-{part}");
        let outcome = past.start_damaged(&name, |data| {
            let file = fs::OpenOptions::new().write(true).open(newest(data, "raft", "log")).expect("open");
            file.set_len(keep).expect("cut");
        });
        if let Some(text) = outcome.await {
            refused += 1;
            assert!(names_the_remedy(&text), "{text}");
        }
    }
    assert_eq!(refused, 16, "a cut log was accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_deleted_file_is_missed_or_harmless() {
    let past = &History::make().await;
    for (turn, path) in files(&past.site.data()).into_iter().enumerate() {
        let file = path.strip_prefix(past.site.data()).expect("below").to_owned();
        let name = format!("deleted-{turn}-{}", file.file_name().expect("name").display());
        let outcome = past.start_damaged(&name, |data| fs::remove_file(data.join(&file)).expect("remove"));
        match outcome.await {
            Some(text) => assert!(names_the_remedy(&text), "{}: {text}", file.display()),
            None => println!("harmless: {} deleted", file.display()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_different_lives_are_refused() {
    let past = &History::make().await;
    let other = Site::new();
    other.start(&other.data()).await.expect("starts").stop().await;

    let wiped =
        past.start_damaged("wiped", |data| fs::remove_dir_all(data.join("raft")).expect("remove")).await;
    assert!(wiped.expect("refused").contains("lost its log"));

    let foreign = past.start_damaged("foreign", |data| {
        fs::remove_dir_all(data.join("raft")).expect("remove");
        copy(&other.data().join("raft"), &data.join("raft"));
    });
    assert!(foreign.await.expect("refused").contains("another disk"));

    let adopted = past.start_damaged("adopted", |data| {
        fs::remove_dir_all(data.join("raft")).expect("remove");
        copy(&other.data().join("raft"), &data.join("raft"));
        fs::copy(other.data().join("identity.json"), data.join("identity.json")).expect("copy");
    });
    assert!(adopted.await.expect("refused").contains("ahead of the log"));

    let unnamed = past.start_damaged("unnamed", |data| {
        fs::remove_dir_all(data.join("raft")).expect("remove");
        fs::remove_file(data.join("identity.json")).expect("remove");
    });
    assert!(unnamed.await.expect("refused").contains("ahead of the log"));
}

/// The advice in the error message works: operators have nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_state_rebuilds_it_from_the_log() {
    let past = &History::make().await;
    let without =
        past.start_damaged("without-state", |data| fs::remove_dir_all(data.join("state")).expect("remove"));
    assert_eq!(without.await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_process_on_a_directory_is_refused() {
    let site = Site::new();
    let first = site.spawn().expect("starts");
    let refusal = site.spawn().err().expect("refused");
    assert!(refusal.contains("another process is using it"), "{refusal}");
    let url = format!("http://{}/v1/exchange/token", first.address);
    let body = node_under_test::exchange(&site.credential(), "after the second").to_string();
    let answer = node_under_test::client().post(url).body(body).send().await.expect("answer");
    assert_eq!(answer.status().as_u16(), 400, "a nonce has no spaces");
    let url = format!("http://{}/v1/exchange/token", first.address);
    let body = node_under_test::exchange(&site.credential(), "after-the-second").to_string();
    let answer = node_under_test::client().post(url).body(body).send().await.expect("answer");
    assert_eq!(answer.status().as_u16(), 200);
    first.kill();
}

#[tokio::test]
async fn a_start_that_fails_above_the_core_closes_the_directory() {
    let site = Site::new();
    let data = site.data();
    let mut config = site.config(&data);
    config.policy.directory = site.beside("policies");
    fs::create_dir(&config.policy.directory).expect("directory");
    fs::write(config.policy.directory.join("exchange.rego"), "package").expect("policy");
    let refused = Site::start_with(config).await.err();
    assert!(matches!(refused, Some(node::Error::Policy(_))), "{refused:?}");
    site.start(&data).await.expect("starts").stop().await;

    let keys = files(&data.join("keys"));
    assert!(!keys.is_empty());
    for key in &keys {
        fs::write(key, "no key").expect("key");
    }
    let refused = site.start(&data).await.err();
    assert!(matches!(refused, Some(node::Error::Keyring(_))), "{refused:?}");
    // A node without keys creates new ones.
    for key in &keys {
        fs::remove_file(key).expect("key");
    }
    site.start(&data).await.expect("starts").stop().await;
}
