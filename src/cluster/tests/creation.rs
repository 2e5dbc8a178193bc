//! A new cluster from the data directory of a stopped node, and every point at which that may be interrupted.

use std::fs;
use std::io;
use std::path::Path;

use openraft::EntryPayload;
use openraft::vote::RaftLeaderId as _;

use super::restarts::{COMMAND_BYTES, Rows, Running, in_the_log, start_in};
use crate::clock::Clock;
use crate::cluster::disk_rollback::{DiskRecord, Life};
use crate::cluster::type_config::{Commands, Entry, LeaderId, LogId};
use crate::cluster::*;

const CLUSTER: [u8; 16] = [9; 16];
const OTHER_CLUSTER: [u8; 16] = [4; 16];

fn new_cluster() -> NewCluster {
    NewCluster {
        cluster_id: OTHER_CLUSTER,
        address: None,
        accept_dispute: false,
        command: Bytes::from(vec![200; COMMAND_BYTES]),
        reply: Bytes::new(),
        drawn_proposer_id: ProposerId::from_bytes([3; 16]),
    }
}

async fn create(data: &Path, may_be_ahead: bool) -> Result<u64, Corrupt> {
    create_with(data, new_cluster(), may_be_ahead, || Ok(())).await
}

async fn create_with(
    data: &Path,
    new: NewCluster,
    may_be_ahead: bool,
    begin: impl FnOnce() -> io::Result<()>,
) -> Result<u64, Corrupt> {
    let stopped = StoppedNode::open(data, 1, [7; 16])?;
    stopped.create(&Arc::new(Rows), new, &Clock::system(), may_be_ahead, begin).await
}

/// A stopped node that has applied some entries, of which some are purged. Returns the last index.
async fn stopped_node(data: &Path) -> u64 {
    let node = start_in(data).await.expect("starts");
    node.write(10).await;
    node.purge_log().await;
    node.write(10).await;
    let last = node.handle.applied();
    node.stop().await;
    last
}

/// Appends an entry of this term that is not known to be committed.
fn append(data: &Path, term: u64, index: u64) {
    in_the_log(data, |log| {
        let log_id = LogId::new(LeaderId::new(term, 1).to_committed(), index);
        let payload = EntryPayload::Normal(Commands(Bytes::from(vec![100; COMMAND_BYTES])));
        let entry = codec::encode_entry(&Entry { log_id, payload });
        let key = log::log_key(index);
        let family = log.cf_handle(log::LOG).expect("entries");
        log.put_cf(family, key, record::seal(&key, &entry)).expect("written");
    });
}

fn has_row(node: &Running, index: u64, byte: u8) -> bool {
    let row = node.handle.view().get("row", &index.to_be_bytes()).expect("reads");
    row.is_some_and(|row| row == vec![byte; COMMAND_BYTES])
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for item in fs::read_dir(from).expect("directory") {
        let item = item.expect("item");
        let target = to.join(item.file_name());
        if item.path().is_dir() { copy(&item.path(), &target) } else { drop(fs::copy(item.path(), target)) }
    }
}

/// Starts the node and writes: it leads the new cluster alone, after every earlier entry.
async fn assert_created(data: &Path, last: u64) {
    let node = start_in(data).await.expect("starts");
    assert_eq!(node.handle.cluster_id(), Some(OTHER_CLUSTER));
    let members = node.handle.known_members();
    assert_eq!(members.all().keys().copied().collect::<Vec<_>>(), [1]);
    assert!(has_row(&node, last, 200), "the command of the new incarnation");
    node.write(3).await;
    assert!(node.handle.applied() > last);
    node.purge_log().await;
    node.stop().await;
    let node = start_in(data).await.expect("starts again");
    node.write(1).await;
    node.stop().await;
}

/// An entry that no quorum is known to have may have been acknowledged by a leader that is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_of_the_log_is_applied_before_the_creation() {
    let data = tempfile::tempdir().expect("directory");
    let last = stopped_node(data.path()).await;
    append(data.path(), 1, last + 1);
    append(data.path(), 1, last + 2);
    assert_eq!(create(data.path(), false).await.expect("created"), last + 4);
    let node = start_in(data.path()).await.expect("starts");
    assert!(has_row(&node, last + 1, 100) && has_row(&node, last + 2, 100));
    node.stop().await;
    assert_created(data.path(), last + 4).await;
    // The new cluster may be lost too.
    let again = create(data.path(), false).await.expect("created again");
    assert_created(data.path(), again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_before_the_mark_leaves_the_old_cluster() {
    let data = tempfile::tempdir().expect("directory");
    let last = stopped_node(data.path()).await;
    let refused = NewCluster { reply: Bytes::from_static(b"x"), ..new_cluster() };
    let failed = create_with(data.path(), refused, false, || Ok(())).await.expect_err("refused").to_string();
    assert!(failed.contains("the new incarnation was refused"), "{failed}");
    let full = || Err(io::Error::other("disk full"));
    create_with(data.path(), new_cluster(), false, full).await.expect_err("no mark");
    let node = start_in(data.path()).await.expect("starts");
    assert_eq!(node.handle.cluster_id(), Some(CLUSTER));
    assert!(!has_row(&node, last + 2, 200));
    node.stop().await;
}

/// The state is switched, and the log is still that of the old cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creation_is_repeated_after_an_interruption() {
    let (data, done) = (tempfile::tempdir().expect("directory"), tempfile::tempdir().expect("directory"));
    let last = stopped_node(data.path()).await;
    copy(data.path(), done.path());
    assert_eq!(create(done.path(), false).await.expect("created"), last + 2);
    fs::remove_dir_all(data.path().join("state")).expect("removed");
    copy(&done.path().join("state"), &data.path().join("state"));
    let refused = create(data.path(), false).await.expect_err("not marked").to_string();
    assert!(refused.contains("the state is ahead of the log"), "{refused}");
    assert!(start_in(data.path()).await.is_err(), "it is no node of either cluster");
    let remains = StoppedNode::open(data.path(), 1, [7; 16]).expect("opens").remains::<Rows>();
    // Regression: the last log id was that of the entries which the interrupted attempt invented.
    assert_eq!(remains.expect("reads").last, Some(format!("T1-N1.{last}")));
    let again = create(data.path(), true).await.expect("repeated");
    assert_eq!(again, last + 4);
    assert_created(data.path(), again).await;
    // Both are switched, and only the mark was left.
    let again = create(done.path(), true).await.expect("repeated");
    assert_created(done.path(), again).await;
}

/// One against one, and the third is lost: only an operator can tell which state is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_in_dispute_creates_a_cluster_by_decision_only() {
    let data = tempfile::tempdir().expect("directory");
    let last = stopped_node(data.path()).await;
    in_the_log(data.path(), |log| {
        log::write_meta(log, log::DISPUTE, &10_u64.to_be_bytes()).expect("written");
    });
    let disputed = || {
        let stopped = StoppedNode::open(data.path(), 1, [7; 16]).expect("opens");
        stopped.remains::<Rows>().expect("reads").disputed
    };
    assert_eq!(disputed(), Some(10));
    let refused = create(data.path(), false).await.expect_err("in dispute").to_string();
    assert!(refused.contains("log index 10") && refused.contains("--accept-dispute"), "{refused}");
    let decided = || NewCluster { accept_dispute: true, ..new_cluster() };
    let full = || Err(io::Error::other("disk full"));
    create_with(data.path(), decided(), false, full).await.expect_err("no mark");
    assert_eq!(disputed(), Some(10), "nothing is decided before the new cluster is created");
    let end = create_with(data.path(), decided(), false, || Ok(())).await.expect("created");
    assert_eq!((end, disputed()), (last + 2, None));
    assert_created(data.path(), end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_that_lacks_purged_entries_is_refused() {
    let data = tempfile::tempdir().expect("directory");
    stopped_node(data.path()).await;
    fs::remove_dir_all(data.path().join("state")).expect("lose the state");
    let refused = create(data.path(), false).await.expect_err("refused").to_string();
    assert!(refused.contains("start the node once"), "{refused}");
    start_in(data.path()).await.expect("installs its snapshot").stop().await;
    let last = create(data.path(), false).await.expect("created");
    assert_created(data.path(), last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remains_name_members_that_had_more() {
    let data = tempfile::tempdir().expect("directory");
    let last = stopped_node(data.path()).await;
    let end = |term: u64, index: u64| Some(LogId::new(LeaderId::new(term, 1).to_committed(), index));
    let record = |node_id: u64, held: Option<LogId>, end: Option<LogId>| {
        let life = Life { start: 1, id: [1; 16], vote: None, end };
        ((node_id, [node_id.to_be_bytes()[7]; 16]), DiskRecord { held, ..DiskRecord::new(life) })
    };
    let records = [
        record(2, end(1, last + 1), None),
        record(3, end(1, last), end(1, last)),
        record(4, None, end(1, last + 7)),
        record(5, end(0, last + 9), None),
    ];
    let records = records.iter().map(|(disk, record)| codec::memory_to_proto(*disk, record)).collect();
    let remains = || StoppedNode::open(data.path(), 1, [7; 16]).expect("opens").remains::<Rows>();
    in_the_log(data.path(), |log| {
        log::write_meta(log, log::MEMORIES, &codec::encode_memories(records)).expect("written");
    });
    let found_remains = remains().expect("reads");
    assert_eq!(found_remains.applied, Some(last));
    assert_eq!(found_remains.last, Some(format!("T1-N1.{last}")));
    assert!(found_remains.vote.is_some_and(|vote| vote.contains("T1-N1")));
    let ahead: Vec<u64> = found_remains.ahead.iter().map(|(node_id, _)| *node_id).collect();
    assert_eq!((ahead, found_remains.rejected), (vec![2, 4], None));
    in_the_log(data.path(), |log| log::write_meta(log, log::REFUSED, b"rolled back").expect("written"));
    assert_eq!(remains().expect("reads").rejected.as_deref(), Some("rolled back"));
    // The new cluster knows nothing of them.
    create(data.path(), false).await.expect("created");
    let after = remains().expect("reads");
    assert_eq!((after.ahead, after.rejected), (vec![], None));
}

#[test]
fn directory_without_a_log_has_no_remains() {
    let data = tempfile::tempdir().expect("directory");
    let stopped = StoppedNode::open(data.path(), 1, [7; 16]).expect("opens");
    let refused = stopped.remains::<Rows>().expect_err("empty").to_string();
    assert!(refused.contains("no log of a cluster"), "{refused}");
}
