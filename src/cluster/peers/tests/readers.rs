//! Waits for outside readers over connections between three nodes. They share a clock that tests advance.

use futures::FutureExt as _;

use super::*;
use crate::cluster::{ReaderCall, ReaderState, ReaderTimeout};
use crate::id::Digest128;

const READER: Digest128 = Digest128::from_bytes([7; 16]);
/// Longer than every lease.
const LONGEST: Duration = Duration::from_secs(320);
const SHORT: ReaderCall = ReaderCall { reader: READER, lease: Some(limits::PEER_FABRIC_LEASE), enforced: 0 };

async fn three(clock: &Clock) -> (Site, Vec<Node>) {
    let (site, nodes) = three_by(clock).await;
    // Since then the leader is known to lead.
    leader(&nodes).read_for(SHORT).await;
    (site, nodes)
}

impl Node {
    /// Answers a call of the reader.
    async fn read_for(&self, call: ReaderCall) {
        let read = async {
            while self.handle.linearizable_for(call).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, read).await.expect("a leader");
    }

    async fn reader_barrier(&self, index: u64) -> Result<ReaderState, ReaderTimeout> {
        self.handle.reader_barrier(index, READER).await
    }
}

/// Every node asks the leader, and the leader knows the calls at every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_is_waited_for_whichever_node_it_called() {
    let clock = manual_clock();
    let (_site, nodes) = three(&clock).await;
    clock.advance(LONGEST);
    let index = leader(&nodes).write("revoked").await;
    let silent = Ok(ReaderState::Lapsed);
    for node in &nodes {
        assert_eq!(node.reader_barrier(index).await, silent, "it called {LONGEST:?} ago");
    }
    follower(&nodes).read_for(SHORT).await;
    // The call arrived after the entry, and is answered with it.
    clock.advance(Duration::from_secs(6));
    assert_eq!(follower(&nodes).reader_barrier(index).await, silent);
    follower(&nodes).read_for(SHORT).await;
    let next = leader(&nodes).write("revoked too").await;
    let acknowledged = async {
        let call = ReaderCall { enforced: next, ..SHORT };
        follower(&nodes).read_for(call).await;
    };
    let (waited, ()) = tokio::join!(leader(&nodes).reader_barrier(next), acknowledged);
    assert_eq!(waited, Ok(ReaderState::Enforced));
    for node in &nodes {
        assert_eq!(node.reader_barrier(next).await, Ok(ReaderState::Enforced));
        let knows = node.handle.node_id() == leader(&nodes).handle.node_id();
        assert_eq!(node.handle.reader_enforced(READER), knows.then_some(next));
    }
    stop_all(nodes).await;
}

/// The lease of a call that is not answered yet counts: the leader notes it when the report arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_is_noted_before_its_index_is_confirmed() {
    let clock = manual_clock();
    let (_site, nodes) = three(&clock).await;
    clock.advance(LONGEST);
    let leads = leader(&nodes);
    let index = leads.write("revoked").await;
    // Begun and abandoned before its first answer, as if the response were lost on the way.
    let begun = leads.handle.linearizable_for(SHORT).now_or_never();
    assert!(begun.is_none(), "no quorum has answered yet");
    assert_eq!(leads.reader_barrier(index).await, Err(ReaderTimeout), "a lease of it may be held");
    stop_all(nodes).await;
}

/// A new leader does not know the earlier calls: it waits for the longest lease, or for a statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_waits_until_the_reader_repeats_itself() {
    let clock = manual_clock();
    let (_site, nodes) = three(&clock).await;
    clock.advance(LONGEST);
    let old = leader(&nodes);
    let index = old.write("revoked").await;
    old.read_for(ReaderCall { enforced: index, ..SHORT }).await;
    assert_eq!(old.reader_barrier(index).await, Ok(ReaderState::Enforced));
    assert!(old.handle.transfer_leadership().await);
    for node in &nodes {
        let led_by_another = node.handle.until_another_leader_than(old.handle.node_id());
        timeout(LONG, led_by_another).await.expect("another leads");
    }
    let new = leader(&nodes);
    assert_eq!(new.reader_barrier(index).await, Err(ReaderTimeout));
    let waits = old.reader_barrier(index);
    let (waited, ()) = tokio::join!(waits, new.read_for(ReaderCall { enforced: index, ..SHORT }));
    assert_eq!(waited, Ok(ReaderState::Enforced));
    clock.advance(LONGEST);
    let next = new.write("revoked too").await;
    assert_eq!(old.reader_barrier(next).await, Ok(ReaderState::Lapsed));
    stop_all(nodes).await;
}

/// Only the leader knows the calls of a reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_ends_no_wait_for_a_reader() {
    let clock = manual_clock();
    let (_site, nodes) = three(&clock).await;
    clock.advance(LONGEST);
    let index = leader(&nodes).write("revoked").await;
    let follower = follower(&nodes);
    timeout(LONG, follower.handle.until_applied(index)).await.expect("applied");
    assert_eq!(follower.handle.reader_barrier_as_leader(index, READER).await, Err(ReaderTimeout));
    assert_eq!(follower.reader_barrier(index).await, Ok(ReaderState::Lapsed), "it asks the leader");
    stop_all(nodes).await;
}
