//! Snapshot transfer, complete and damaged.

use futures::{FutureExt as _, StreamExt as _};
use openraft::async_runtime::watch::WatchReceiver as _;
use proto::snapshot_part::Part;
use proto::{SnapshotFile, SnapshotHead, SnapshotPart};

use super::*;
use crate::cluster::apply::database::Generations;
use crate::cluster::apply::snapshot::Snapshots;
use crate::cluster::peers::snapshot_transfer::{
    Digests, SnapshotError, Unfinished, bytes_needed, conclude, head, prepare, read, receive, send,
};
use crate::cluster::peers::transfer_progress::TransferProgress;

type Sent = Vec<Result<SnapshotPart, Status>>;

#[expect(clippy::unnecessary_wraps, reason = "as it is received")]
fn part(part: Part) -> Result<SnapshotPart, Status> {
    Ok(SnapshotPart { part: Some(part) })
}

fn digest(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

const FILES: [(&str, &[u8]); 2] = [("000001.sst", b"the first"), ("CURRENT", b"and another")];

fn head_of(files: &[(&str, u64)]) -> SnapshotHead {
    let file = |(name, bytes): &(&str, u64)| SnapshotFile { name: (*name).to_owned(), bytes: *bytes };
    SnapshotHead { vote: None, last_log_id: None, files: files.iter().map(file).collect() }
}

/// A valid transfer.
fn whole() -> Sent {
    let files: Vec<_> = FILES.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect();
    let mut sent = vec![part(Part::Head(head_of(&files)))];
    for (_, bytes) in FILES {
        let (one, two) = bytes.split_at(4);
        sent.extend([one, two].map(|data| part(Part::Data(Bytes::from_static(data)))));
        sent.push(part(Part::Digest(digest(bytes))));
    }
    sent
}

/// The files of one transfer, or of several that were interrupted.
struct Received {
    directory: TempDir,
    digests: Digests,
    progress: TransferProgress,
}

impl Received {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        Self { directory, digests: Digests::new(), progress: TransferProgress::default() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("receiving")
    }

    async fn take(
        &mut self,
        mut parts: impl futures::Stream<Item = Result<SnapshotPart, Status>> + Unpin,
    ) -> Result<BTreeMap<String, Vec<u8>>, SnapshotError> {
        let head = head(&mut parts).await?;
        let into = (&*self.directory.path().join("receiving"), &mut self.digests);
        prepare(&head, into.0, into.1).await?;
        let received = receive(&head, &mut parts, into, &self.progress).await;
        assert_eq!(self.progress.get(), None, "it has ended");
        received.map(|()| self.files())
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let read = |item: std::io::Result<fs::DirEntry>| {
            let item = item.expect("item");
            (item.file_name().into_string().expect("UTF-8"), fs::read(item.path()).expect("read"))
        };
        fs::read_dir(self.path()).expect("directory").map(read).collect()
    }
}

async fn take(sent: Sent) -> Result<BTreeMap<String, Vec<u8>>, SnapshotError> {
    Received::new().take(futures::stream::iter(sent)).await
}

/// All parts that a sender with the files of [`whole`] sends to a receiver that holds `held`.
async fn sent_to_holder(held: &Digests) -> Sent {
    let directory = tempfile::tempdir().expect("directory");
    for (name, bytes) in FILES {
        fs::write(directory.path().join(name), bytes).expect("file");
    }
    let Ok(SnapshotPart { part: Some(Part::Head(head)) }) = whole().remove(0) else { panic!("a head") };
    let (sender, mut parts) = tokio::sync::mpsc::channel(16);
    read(head, directory.path(), held, sender).await.expect("read");
    let mut sent = Vec::new();
    while let Ok(part) = parts.try_recv() {
        sent.push(Ok(part));
    }
    sent
}

fn expected_files() -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from(FILES.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())))
}

/// Interrupted within the second file: the data of the first is not sent again.
#[tokio::test]
async fn interrupted_transfer_is_resumed() {
    let mut received = Received::new();
    let interrupted: Sent = whole().into_iter().take(5).collect();
    let refused = received.take(futures::stream::iter(interrupted)).await.expect_err("interrupted");
    assert!(refused.is_interruption(), "{refused}");
    assert_eq!(received.digests.keys().collect::<Vec<_>>(), [FILES[0].0]);

    let resumed = sent_to_holder(&received.digests).await;
    let data = resumed.iter().filter(|part| matches!(part, Ok(SnapshotPart { part: Some(Part::Data(_)) })));
    assert_eq!((resumed.len(), data.count()), (4, 1), "head, digest, data and digest");
    let files = received.take(futures::stream::iter(resumed)).await.expect("taken");
    assert_eq!(files, expected_files());
}

/// Regression: files that were complete were lost when the sender's time ended during their verification.
#[tokio::test]
async fn files_stay_held_if_their_verification_is_cancelled() {
    let directory = tempfile::tempdir().expect("directory");
    let root = directory.path().join("snapshots");
    let (open, _closed) = tokio::sync::mpsc::channel(1);
    let files = Snapshots::new(root, Rows::TABLES, open).expect("snapshots").receiving();
    let path = files.directory().to_owned();
    fs::create_dir(&path).expect("directory");
    let mut received = Some(Unfinished { files, digests: Digests::new(), begun: Duration::ZERO });
    assert!(conclude(&mut received, std::future::pending::<()>()).now_or_never().is_none());
    assert!(received.is_some() && path.exists());
    conclude(&mut received, std::future::ready(())).await;
    assert!(received.is_none() && !path.exists(), "verified, and installed or refused");
}

#[test]
fn held_tables_need_no_space_and_other_files_that_of_copies() {
    let head = head_of(&[("a.sst", 5), ("b.log", 70)]);
    let held = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), digest(b""))).collect();
    for (names, needed) in
        [(&[][..], 215), (&["a.sst"], 210), (&["b.log"], 145), (&["a.sst", "b.log", "gone"], 140)]
    {
        assert_eq!(bytes_needed(&head, &held(names)), needed, "{names:?}");
    }
    assert_eq!(bytes_needed(&head_of(&[("a", u64::MAX), ("b", u64::MAX)]), &Digests::new()), u64::MAX);
}

/// The sender has another file of that name.
#[tokio::test]
async fn held_file_with_other_content_is_sent_again() {
    let mut received = Received::new();
    fs::create_dir(received.path()).expect("directory");
    for name in [FILES[0].0, "000009.sst"] {
        fs::write(received.path().join(name), b"an older.").expect("file");
        received.digests.insert(name.to_owned(), digest(b"an older."));
    }
    let sent = sent_to_holder(&received.digests).await;
    assert_eq!(sent.len(), 5, "head, and data and digest of each file");
    assert_eq!(received.take(futures::stream::iter(sent)).await.expect("taken"), expected_files());
}

#[tokio::test]
async fn digest_alone_confirms_held_files_only() {
    let alone = |digest: Bytes| {
        let mut sent = whole();
        sent.splice(1..4, [part(Part::Digest(digest))]);
        futures::stream::iter(sent)
    };
    let refused = Received::new().take(alone(digest(FILES[0].1))).await;
    assert!(matches!(refused, Err(SnapshotError::Length(_))), "not held: {refused:?}");

    let mut received = Received::new();
    received.take(futures::stream::iter(whole())).await.expect("taken");
    let refused = received.take(alone(digest(b"another"))).await.expect_err("another digest");
    assert!(matches!(refused, SnapshotError::Digest(_)) && !refused.is_interruption(), "{refused}");
    assert!(!received.digests.contains_key(FILES[0].0), "it is not held any more");

    let mut received = Received::new();
    received.take(futures::stream::iter(whole())).await.expect("taken");
    fs::write(received.path().join(FILES[0].0), b"cut").expect("file");
    let refused = received.take(alone(digest(FILES[0].1))).await;
    assert!(matches!(refused, Err(SnapshotError::Length(_))), "shorter than stated: {refused:?}");
}

#[tokio::test]
async fn sent_files_arrive() {
    assert_eq!(take(whole()).await.expect("taken"), expected_files());
}

#[tokio::test]
async fn truncated_snapshot_is_rejected() {
    for length in 0..whole().len() {
        let sent: Sent = whole().into_iter().take(length).collect();
        let refused = take(sent).await.expect_err("refused");
        assert!(
            matches!(refused, SnapshotError::NoHead | SnapshotError::Truncated(_)),
            "{length}: {refused}"
        );
    }
    let mut broken = whole();
    broken[3] = Err(Status::cancelled("the leader was deposed"));
    assert!(matches!(take(broken).await, Err(SnapshotError::Sender(_))));
}

/// Regression: a silent sender kept the only transfer permit, while it answered every ping.
#[tokio::test(start_paused = true)]
async fn silent_sender_times_out() {
    for length in 0..whole().len() {
        let sent: Sent = whole().into_iter().take(length).collect();
        let parts = futures::stream::iter(sent).chain(futures::stream::pending());
        let refused = Received::new().take(parts).await;
        assert!(matches!(refused, Err(SnapshotError::Silent)), "{length}: {refused:?}");
    }
}

#[tokio::test]
async fn reordered_parts_are_rejected() {
    for first in 1..whole().len() {
        for second in first + 1..whole().len() {
            let mut sent = whole();
            sent.swap(first, second);
            take(sent).await.expect_err("refused");
        }
    }
    let mut twice = whole();
    twice.insert(2, part(Part::Head(head_of(&[]))));
    assert!(matches!(take(twice).await, Err(SnapshotError::Trailing)));
    let mut more = whole();
    more.push(part(Part::Data(Bytes::from_static(b"more"))));
    assert!(matches!(take(more).await, Err(SnapshotError::Trailing)));
}

#[tokio::test]
async fn every_altered_byte_is_detected() {
    for at in 1..whole().len() {
        let Ok(SnapshotPart { part: Some(Part::Data(data) | Part::Digest(data)) }) = &whole()[at] else {
            panic!("a part with bytes")
        };
        for byte in 0..data.len() {
            let mut sent = whole();
            let Ok(SnapshotPart { part: Some(Part::Data(data) | Part::Digest(data)) }) = &mut sent[at] else {
                panic!("a part with bytes")
            };
            let mut altered = data.to_vec();
            altered[byte] ^= 1;
            *data = altered.into();
            assert!(matches!(take(sent).await, Err(SnapshotError::Digest(_))), "part {at}, byte {byte}");
        }
    }
    let mut longer = whole();
    longer.insert(1, part(Part::Data(Bytes::from_static(b"longer than was said"))));
    assert!(matches!(take(longer).await, Err(SnapshotError::Length(_))));
}

#[tokio::test]
async fn file_names_outside_the_directory_are_rejected() {
    let long = "a".repeat(limits::SNAPSHOT_NAME_BYTES_MAX + 1);
    for name in
        ["", ".", "..", "../CURRENT", "/etc/passwd", "a/b", "a\\b", ".hidden", "-x", "a\0b", "ä", &long]
    {
        let refused = take(vec![part(Part::Head(head_of(&[(name, 1)])))]).await.expect_err("refused");
        assert!(matches!(refused, SnapshotError::Name(_)), "{name:?}: {refused}");
    }
    let refused = take(vec![part(Part::Head(head_of(&[("CURRENT", 1), ("CURRENT", 1)])))]).await;
    assert!(matches!(refused, Err(SnapshotError::Name(_))));
}

#[tokio::test]
async fn head_beyond_the_limits_is_rejected() {
    let names: Vec<String> = (0..=limits::SNAPSHOT_FILES_MAX).map(|number| format!("f{number}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 0)).collect();
    assert!(matches!(take(vec![part(Part::Head(head_of(&files)))]).await, Err(SnapshotError::TooManyFiles)));
    for files in [&[("a", limits::SNAPSHOT_BYTES_MAX + 1)][..], &[("a", u64::MAX), ("b", 2)]] {
        assert!(matches!(take(vec![part(Part::Head(head_of(files)))]).await, Err(SnapshotError::TooLarge)));
    }
}

/// A cluster of three with one node down whose missing entries the others have purged.
async fn with_one_away(site: &Site) -> (Vec<Node>, u64, u64) {
    let mut nodes = site.cluster().await;
    let away = follower(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == away).expect("there");
    nodes.remove(at).stop().await;
    let mut last = 0;
    for _ in 0..50 {
        last = nodes[0].write("while it is away").await;
    }
    for node in &nodes {
        purge_log(node, last).await;
    }
    (nodes, away, last)
}

/// Takes a snapshot, and purges the log up to an entry.
pub(super) async fn purge_log<M: Machine>(node: &Node<M>, last: u64) {
    timeout(LONG, node.handle.until_applied(last)).await.expect("applied");
    node.handle.snapshot().await.expect("snapshot");
    let wait = || node.handle.raft.wait(Some(LONG));
    let taken = |index: Option<u64>| index >= Some(last);
    wait().metrics(|m| taken(m.snapshot.map(|id| id.index)), "snapshot").await.expect("taken");
    node.handle.raft.trigger().purge_log(last).await.expect("purge");
    wait().metrics(|m| taken(m.purged.map(|id| id.index)), "purge").await.expect("purged");
}

async fn goes_on_with(mut nodes: Vec<Node>, back: Node, last: u64) {
    timeout(LONG, back.handle.until_applied(last)).await.expect("caught up");
    assert_eq!(back.handle.state_hash().expect("hash").1, nodes[0].handle.state_hash().expect("hash").1);
    let index = back.write("it goes on").await;
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
    }
    nodes.push(back);
    stop_all(nodes).await;
}

/// A follower whose next entry is purged receives a snapshot. Regression: its earlier state remained on the disk until
/// the next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_behind_the_purged_log_gets_a_snapshot() {
    let site = Site::new(3);
    let (nodes, away, last) = with_one_away(&site).await;
    let back = site.node(away).await;
    goes_on_with(nodes, back, last).await;
    let state = site.data(away).join("state");
    let generations = fs::read_dir(&state).expect("state").map(|item| item.expect("item").file_name());
    let generations: Vec<_> = generations.filter(|name| name != "CURRENT").collect();
    assert_eq!(generations, ["2"]);
}

/// Copies the files of a snapshot.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for item in fs::read_dir(from).expect("files") {
        let item = item.expect("file");
        fs::copy(item.path(), to.join(item.file_name())).expect("copied");
    }
}

/// Files with data, each with offsets in it.
fn places(directory: &Path, per_file: u64) -> Vec<(String, usize)> {
    let mut places = Vec::new();
    for item in fs::read_dir(directory).expect("files") {
        let item = item.expect("file");
        let (name, length) =
            (item.file_name().into_string().expect("UTF-8"), item.metadata().expect("size").len());
        let is_diary = name.starts_with("LOG") || name == "LOCK" || name.starts_with("OPTIONS");
        let steps = if is_diary { 0 } else { per_file.min(length) };
        places.extend(
            (0..steps).map(|step| (name.clone(), usize::try_from(step * length / steps).expect("small"))),
        );
    }
    // Tables first: once a harmless one was installed, none is installed again.
    places.sort_by_key(|(name, _)| !name.contains(".sst"));
    places
}

/// The digests of damaged files match. Regression: such a snapshot stopped its receiver, and then every other
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_a_damaged_disk_is_refused() {
    let site = Site::new(3);
    let (nodes, away, last) = with_one_away(&site).await;
    let leads = leader(&nodes);
    let (from, disk, cluster_id) = (leads.handle.node_id(), leads.disk_id(), leads.handle.cluster_id());
    let vote = leads.handle.raft.metrics().borrow_watched().vote;
    let sent = leads.handle.raft.get_snapshot().await.expect("runs").expect("a snapshot");
    let hash = leads.handle.state_hash().expect("hash").1;
    let made = tempfile::tempdir().expect("directory");
    // Opening it moves the rows from the write-ahead log to a table file.
    let generations = Generations::new(made.path().to_owned()).expect("state");
    let expected = sent.meta.last_log_id;
    drop(generations.install(sent.snapshot.directory(), Rows::TABLES, &[], expected).expect("installed"));
    let whole = made.path().join("1");
    stop_all(nodes).await;

    let back = site.node(away).await;
    let caller = site.caller(&format!("node/{from}"), (from, disk), cluster_id);
    let client = site.client_of(&caller, away, Some(back.disk_id()));
    let (mut refused, places) = (0, places(&whole, 12));
    for (number, (name, at)) in places.iter().enumerate() {
        let damaged = made.path().join(format!("damaged-{number}"));
        copy(&whole, &damaged);
        let mut bytes = fs::read(damaged.join(name)).expect("file");
        match number % 5 {
            0 => bytes.truncate(*at),
            bit => bytes[*at] ^= 1 << bit,
        }
        fs::write(damaged.join(name), bytes).expect("damaged");
        match send(&client, &vote, &sent.meta, &damaged, || ()).await.expect("read") {
            Ok(_) => println!("harmless: {name}:{at}"),
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{name}:{at}: {status}");
                refused += 1;
            }
        }
        if back.handle.applied_log_id().expect("applied") == expected {
            assert_eq!(back.handle.state_hash().expect("hash").1, hash, "{name}:{at}");
        }
    }
    println!("{} places: {refused} refused", places.len());
    assert!(places.len() >= 50 && refused > places.len() / 2, "{refused} of {}", places.len());
    let taken = send(&client, &vote, &sent.meta, &whole, || ()).await.expect("read");
    taken.expect("installed");
    timeout(LONG, back.handle.until_applied(last)).await.expect("applied");
    assert_eq!(back.handle.state_hash().expect("hash").1, hash);
    back.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_without_space_for_it_is_refused() {
    let site = Site::new(3);
    let (nodes, away, last) = with_one_away(&site).await;
    let leads = leader(&nodes);
    let (from, disk, cluster_id) = (leads.handle.node_id(), leads.disk_id(), leads.handle.cluster_id());
    let vote = leads.handle.raft.metrics().borrow_watched().vote;
    let sent = leads.handle.raft.get_snapshot().await.expect("runs").expect("a snapshot");
    let directory = sent.snapshot.directory();
    stop_all(nodes).await;

    let back = site.node(away).await;
    let caller = site.caller(&format!("node/{from}"), (from, disk), cluster_id);
    let client = site.client_of(&caller, away, Some(back.disk_id()));
    // The reserve, which the log needs while the snapshot arrives.
    back.pretend(limits::DISK_LOW_BYTES_MAX / limits::DISK_RESERVE_DIVISOR);
    let refused =
        send(&client, &vote, &sent.meta, directory, || ()).await.expect("read").expect_err("no space");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("more bytes and a reserve of"), "{refused}");
    back.pretend(disk_space::ENOUGH);
    send(&client, &vote, &sent.meta, directory, || ()).await.expect("read").expect("installed");
    timeout(LONG, back.handle.until_applied(last)).await.expect("applied");
    back.stop().await;
}

/// A snapshot replaces the state, and then the log. Regression: a node killed between the two found its state
/// ahead of its log, took that for lost log entries, and never started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_killed_during_snapshot_install_restarts() {
    let site = Site::new(3);
    let (nodes, away, last) = with_one_away(&site).await;
    let sent = nodes[0].handle.raft.get_snapshot().await.expect("runs").expect("a snapshot");
    let generations = Generations::new(site.data(away).join("state")).expect("state");
    let (files, expected) = (sent.snapshot.directory(), sent.meta.last_log_id);
    drop(generations.install(files, Rows::TABLES, &[], expected).expect("installed"));
    let back = site.node(away).await;
    let purged = back.handle.raft.wait(Some(LONG)).metrics(|m| m.purged >= expected, "purge").await;
    purged.expect("the log is purged");
    back.stop().await;
    let back = site.node(away).await;
    goes_on_with(nodes, back, last).await;
}
