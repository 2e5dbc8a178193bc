//! Clusters of three whose wall clocks do not agree.

use super::*;
use crate::clock::Timestamp;
use crate::cluster::ClockReport;
use crate::cluster::ClockVerdict::{self, FarApart, Good};
use crate::id::{Digest128, DigestKind};
use crate::state::command::{self as commands, Command, Fact, Revoke};
use crate::state::{Epoch, Replicated};

const HOUR: i64 = 3_600_000;

/// Three nodes and their clocks.
struct Three {
    site: Site,
    clocks: BTreeMap<u64, Clock>,
    nodes: Vec<Node<Replicated>>,
}

impl Three {
    async fn start() -> Self {
        let (site, mut clocks, mut nodes) = (Site::new(3), BTreeMap::new(), Vec::new());
        for id in 1..=3 {
            let clock = Clock::system();
            clocks.insert(id, clock.clone());
            nodes.push(site.node_by(id, &site.members, Replicated::default(), clock).await);
        }
        for node in &nodes {
            node.recovered().await;
        }
        let three = Self { site, clocks, nodes };
        // Log time starts with the first entry.
        assert!(three.covers_what_was_issued_before(1, 1).await);
        three
    }

    fn leader(&self) -> u64 {
        leader(&self.nodes).handle.node_id()
    }

    fn handle(&self, id: u64) -> &Handle<Replicated> {
        &self.nodes.iter().find(|node| node.handle.node_id() == id).expect("a node").handle
    }

    fn followers(&self) -> Vec<u64> {
        let leader = self.leader();
        (1..=3).filter(|id| *id != leader).collect()
    }

    fn shift(&self, ids: &[u64], millis: i64) {
        for id in ids {
            self.clocks[id].shift(millis);
        }
    }

    /// Revokes a subject through a node. Returns whether the revocation covers, on all nodes, tokens issued now by the
    /// clock of `issuer`.
    async fn covers_what_was_issued_before(&self, through: u64, issuer: u64) -> bool {
        let digest = Digest128::of(DigestKind::Subject, b"", uuid::Uuid::new_v4().as_bytes());
        let fact = Fact { digest: Bytes::copy_from_slice(digest.as_bytes()), ..Fact::default() };
        let revoke = Revoke { fact: Some(fact), ..Revoke::default() };
        let issued_at = self.clocks[&issuer].now();
        let outcome = self.handle(through).propose(commands::encode(Command::Revoke(revoke))).await;
        let index = outcome.expect("applied").index;
        self.handle(through).barrier(index).await.expect("known to all");
        let covers = |node: &Node<Replicated>| {
            node.handle.machine().revocations().covers(Epoch::default(), &[digest], None, issued_at)
        };
        self.nodes.iter().all(covers)
    }

    fn log_time(&self, id: u64) -> Timestamp {
        self.handle(id).machine().times().time
    }

    /// Polls the leader until its clock report satisfies `is_so`.
    async fn until(&self, id: u64, is_so: impl Fn(&ClockReport) -> bool) {
        let reported = async {
            while !is_so(&self.handle(id).clocks()) {
                // Leadership may be transferred meanwhile.
                drop(self.handle(id).linearizable().await);
            }
        };
        timeout(LONG, reported).await.unwrap_or_else(|_| panic!("{:?}", self.handle(id).clocks()));
    }

    async fn until_is(&self, id: u64, verdict: ClockVerdict) {
        self.until(id, |report| report.verdict(id) == verdict).await;
    }

    async fn stop(self) {
        stop_all(self.nodes).await;
        drop(self.site);
    }
}

/// With a leader an hour slow, followers accepted tokens that an issuer with a correct clock had issued before the
/// revocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_under_a_slow_leader_covers_all_tokens() {
    let three = Three::start().await;
    let (slow, followers) = (three.leader(), three.followers());
    for millis in [-10_000, -HOUR] {
        three.shift(&[slow], millis);
        for through in [slow, followers[0]] {
            let covers = three.covers_what_was_issued_before(through, followers[0]).await;
            assert!(covers, "{millis} ms, through {through} of leader {slow}");
        }
    }
    // The same after an hour without writes.
    three.shift(&followers, HOUR);
    three
        .until(followers[0], |report| report.offsets.get(&slow).is_some_and(|millis| *millis < -2 * HOUR))
        .await;
    assert!(three.covers_what_was_issued_before(followers[1], followers[1]).await);
    let off = three.log_time(followers[0]).distance(three.clocks[&followers[0]].now());
    assert!(off < limits::CLOCK_AGREEMENT_OFFSET_MAX, "log time follows the two that agree: {off:?}");
    three.until_is(slow, FarApart).await;
    three.until_is(followers[0], Good).await;
    timeout(LONG, three.handle(slow).until_this_node_does_not_lead())
        .await
        .expect("a node with a correct clock leads");
    three.shift(&[slow], HOUR + HOUR + 10_000);
    three.until_is(slow, Good).await;
    three.stop().await;
}

/// A leader 100 days ahead moved log time, and with it every expiry and waiting period, for one term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_leader_does_not_move_log_time() {
    let three = Three::start().await;
    let (fast, followers) = (three.leader(), three.followers());
    let passed = three.handle(fast).elapsed_time();
    let begun = Clock::system().boot();
    for millis in [HOUR, 99 * 24 * HOUR] {
        three.shift(&[fast], millis);
        let is_heard =
            |report: &ClockReport| report.offsets.get(&fast).is_some_and(|off| *off >= millis - 1_000);
        three.until(fast, is_heard).await;
        for through in [fast, followers[0]] {
            assert!(
                three.covers_what_was_issued_before(through, fast).await,
                "tokens issued by its clock too"
            );
        }
        for id in 1..=3 {
            let off = three.log_time(id).distance(three.clocks[&followers[0]].now());
            assert!(off < limits::CLOCK_AGREEMENT_OFFSET_MAX, "{off:?}");
            let elapsed = three.handle(id).elapsed_time().since(passed);
            assert!(begun + elapsed <= Clock::system().boot() + Duration::from_millis(1), "{elapsed:?}");
        }
        three.until_is(fast, FarApart).await;
        three.until_is(followers[1], Good).await;
    }
    let fresh = three.handle(fast).fresh().await.expect("a lease");
    let refused = three.handle(fast).check_clock(&fresh).expect_err("its clock is wrong");
    assert_eq!(refused, crate::cluster::LeaseError::ClockWrong);
    let fresh = three.handle(followers[0]).fresh().await.expect("a lease");
    three.handle(followers[0]).check_clock_for_foreign(&fresh).expect("its clock is right");
    let (corrected, right) = (three.handle(fast).cluster_time(), three.clocks[&followers[0]].now());
    assert!(corrected.distance(right) < limits::CLOCK_AGREEMENT_OFFSET_MAX, "its corrected time");
    three.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_agreement_writes_continue_and_decisions_stop() {
    let three = Three::start().await;
    let (right, followers) = (three.leader(), three.followers());
    let (slow, fast) = (followers[0], followers[1]);
    let before = three.log_time(right);
    three.shift(&[slow], -HOUR);
    three.shift(&[fast], HOUR);
    let both_are_heard = |report: &ClockReport| report.spread > Duration::from_secs(2 * 3_600 - 60);
    for id in [right, slow, fast] {
        three.until(id, both_are_heard).await;
        three.until_is(id, FarApart).await;
    }
    for id in [right, slow, fast] {
        assert!(
            three.covers_what_was_issued_before(id, fast).await,
            "tokens of any of the clocks are covered"
        );
    }
    let moved = three.log_time(right).since(before);
    assert!(moved < LONG, "by elapsed time: {moved:?}");
    three.shift(&[slow], HOUR);
    for (id, verdict) in [(right, Good), (slow, Good), (fast, FarApart)] {
        three.until_is(id, verdict).await;
    }
    three.stop().await;
}
