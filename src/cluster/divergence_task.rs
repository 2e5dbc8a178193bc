//! Decides the disputes of this node: asks every voter for its state hash at the disputed index.
//!
//! A request states the hash of this node, so that the other one, if it differs, opens the same dispute: a leader that
//! has diverged learns of it from its followers. A node that has diverged stops for good; if no majority has the same
//! hash, as in a cluster of two, every node stops that has another hash than some other.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::apply::database::StateHash;
use super::divergence::{Verdict, decide};
use super::peers::Purpose;
use super::peers::proto::StateHashRequest;
use super::{Corrupt, Handle, Machine};
use crate::limits;

impl<M: Machine> Handle<M> {
    /// Decides one dispute after the other. Runs for ever.
    pub(super) async fn settle_disputes(self) {
        let divergence = &self.shared.divergence;
        loop {
            let index = divergence.until_disputed().await;
            match self.verdict(index).await {
                Verdict::Agreed => divergence.settle(index),
                Verdict::Diverged => {
                    self.channels.local.stop_for_good(format!(
                        "the state of this node differs from that of a majority of the voters at log index {index}: \
                         keep its data directory for analysis, and replace the member by a new node (`trust-fabric \
                         cluster replace`)"
                    ));
                    return;
                }
                Verdict::NoMajority => {
                    self.channels.local.stop(format!(
                        "the voters' states differ at log index {index}, and no majority has the same: keep the data \
                         directories of all members; the members serve nothing until they agree"
                    ));
                    return;
                }
                Verdict::Open => tokio::time::sleep(limits::DISPUTE_RETRY_PAUSE).await,
            }
        }
    }

    async fn verdict(&self, index: u64) -> Verdict {
        // Absent on a node that has not applied the entry again after a crash.
        let Ok(Some(ours)) = self.hash_at(index) else { return Verdict::Open };
        let voters: BTreeSet<u64> = self.known_members().effective.voter_ids().collect();
        let others = voters.iter().copied().filter(|voter| *voter != self.node_id);
        let mut hashes: BTreeMap<u64, Option<StateHash>> =
            others.clone().map(|voter| (voter, None)).collect();
        let ask = async |voter| (voter, self.hash_of(voter, index, ours).await);
        let mut answers: FuturesUnordered<_> = others.map(ask).collect();
        loop {
            let known: Vec<_> = hashes.values().copied().collect();
            let verdict = decide(ours, voters.contains(&self.node_id), &known);
            // A majority need not wait for a voter that does not answer.
            if verdict != Verdict::Open {
                return verdict;
            }
            let Some((voter, hash)) = answers.next().await else { return verdict };
            hashes.insert(voter, hash);
        }
    }

    /// The state hash of another voter; `None` if it does not answer, or has none at that index yet.
    async fn hash_of(&self, voter: u64, index: u64, ours: StateHash) -> Option<StateHash> {
        let record = self.known_members().get(voter)?.clone();
        let client = self.channels.shared(Purpose::Administration, voter, &record).ok()?;
        let mut peer = client.peer();
        let request = StateHashRequest { index, hash: ours.to_vec().into() };
        let answer = peer.state_hash(client.request(request));
        let answer = tokio::time::timeout(limits::REPORT_TIMEOUT, answer).await.ok()?;
        answer.ok()?.into_inner().hash.as_ref().try_into().ok()
    }

    /// The state hash of this node at an index, if it is retained.
    fn hash_at(&self, index: u64) -> Result<Option<StateHash>, Corrupt> {
        self.shared.database.load().hash_at(index)
    }

    /// Answers a member that has the hash `theirs` at `index`, and opens a dispute if that of this node differs.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is corrupt.
    pub(super) fn compare_hash(&self, index: u64, theirs: StateHash) -> Result<Option<StateHash>, Corrupt> {
        let ours = self.hash_at(index)?;
        if ours.is_some_and(|ours| ours != theirs) {
            self.shared.divergence.report(index);
        }
        Ok(ours)
    }

    /// Log index at which the state of this node is in dispute.
    pub(crate) fn disputed_index(&self) -> Option<u64> {
        self.shared.divergence.disputed()
    }
}
