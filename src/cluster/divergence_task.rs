//! Decides the disputes of this node: requests the state hash at the disputed index from every voter.
//!
//! A request states the hash of this node, so that the other one, if it differs, opens the same dispute: a leader that
//! has diverged learns of it from its followers. A node that has diverged stops for good. If no majority has the same
//! hash, as in a cluster of two, every node stops that has another hash than some other, and an operator decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{StreamExt as _, future};

use super::apply::database::{HASH_INTERVAL, StateHash};
use super::divergence::{Answer, Verdict, decide};
use super::log::LogReader;
use super::peers::Purpose;
use super::peers::proto::{StateHashRequest, StateHashResponse};
use super::{Corrupt, Handle, Machine};
use crate::limits;

/// Advice about a node that must not serve again.
const REPLACE: &str = "keep its data directory for analysis, and replace the member by a new node \
                       (`trust-fabric cluster replace`)";

impl<M: Machine> Handle<M> {
    /// Decides one dispute after the other, and applies the entries of `log` that waited. Runs for ever.
    pub(super) async fn settle_disputes(self, log: LogReader) {
        loop {
            let index = self.shared.divergence.until_disputed().await;
            let (verdict, unanswered) = self.verdict(index).await;
            match verdict {
                Verdict::Agreed => {
                    if !self.settle(index, &log).await {
                        return;
                    }
                    // A voter that has diverged learns of it from the request.
                    unanswered.for_each(|_| future::ready(())).await;
                }
                Verdict::Diverged => return self.stop_as_diverged(index),
                Verdict::NoMajority => {
                    return self.channels.local.stop(format!(
                        "the voters' states differ at log index {index}, and no majority has the same: keep the data \
                         directories of all members; the members serve nothing until they agree, or until an operator \
                         chooses one of them (`trust-fabric restore --force-new-cluster --accept-dispute`)"
                    ));
                }
                Verdict::Unretained => {
                    // A node that lags may retain a hash that the others no longer do, and a newer one that they do.
                    let (newest, verdict) = self.newest_verdict(index).await;
                    match verdict.unwrap_or(Verdict::Unretained) {
                        Verdict::Agreed => {
                            if !self.settle(newest, &log).await {
                                return;
                            }
                        }
                        Verdict::Diverged => return self.stop_as_diverged(newest),
                        Verdict::Open => tokio::time::sleep(limits::DISPUTE_RETRY_PAUSE).await,
                        Verdict::NoMajority | Verdict::Unretained => {
                            return self.channels.local.stop(format!(
                                "the state of this node is in dispute at log index {index}, and too few voters retain \
                                 their state hash of that index: no comparison can decide it; {REPLACE}"
                            ));
                        }
                    }
                }
                Verdict::Open => {
                    self.agree_on_snapshot(index).await;
                    tokio::time::sleep(limits::DISPUTE_RETRY_PAUSE).await;
                }
            }
        }
    }

    fn stop_as_diverged(&self, index: u64) {
        self.channels.local.stop_for_good(format!(
            "the state of this node differs from that of a majority of the voters at log index {index}: {REPLACE}"
        ));
    }

    /// Ends the dispute at `index`, at which a majority has the hash of this node; and with it every other one up to the
    /// newest index at which a majority has: a member that states wrong hashes opens one dispute, not one for each
    /// retained index. Returns whether this node goes on.
    async fn settle(&self, index: u64, log: &LogReader) -> bool {
        let (newest, later) = self.newest_verdict(index).await;
        if later == Some(Verdict::Diverged) {
            self.stop_as_diverged(newest);
            return false;
        }
        self.shared.divergence.settle(if later == Some(Verdict::Agreed) { newest } else { index });
        self.apply_deferred(log).await;
        true
    }

    /// The newest index with a hash that this node has applied, and the verdict there if it is after `index`.
    async fn newest_verdict(&self, index: u64) -> (u64, Option<Verdict>) {
        let newest = self.applied() / HASH_INTERVAL * HASH_INTERVAL;
        (newest, if newest > index { Some(self.verdict(newest).await.0) } else { None })
    }

    /// Applies the entries that waited for the end of a dispute.
    async fn apply_deferred(&self, log: &LogReader) {
        let (log, local) = (log.clone(), Arc::clone(&self.channels.local));
        let requested = self.raft.external_state_machine_request(move |state| {
            Box::pin(async move {
                if let Err(error) = state.apply_deferred(&log).await {
                    local.stop(format!(
                        "failed to apply the entries that waited for the end of a dispute: {error}"
                    ));
                }
            })
        });
        if let Err(error) = requested.await {
            tracing::debug!(%error, "Raft has stopped");
        }
    }

    /// Lets a voter decide that lacks entries which this node has purged: it needs a snapshot of this node, whose state
    /// must not be in dispute. That is so up to an index before the disputed one at which a majority has the same hash.
    async fn agree_on_snapshot(&self, disputed: u64) {
        let current = self.shared.snapshots.current().ok().flatten();
        let Some(last) = current.and_then(|snapshot| snapshot.meta.last_log_id) else { return };
        let index = last.index.div_ceil(HASH_INTERVAL).saturating_mul(HASH_INTERVAL);
        if index < disputed
            && !self.shared.divergence.is_agreed(index)
            && self.verdict(index).await.0 == Verdict::Agreed
        {
            tracing::info!(index, "a majority of the voters has the state up to the snapshot of this node");
            self.shared.divergence.agree(index);
        }
    }

    /// Verdict of the voters about the state of this node at an index, and the requests that are not answered
    /// yet.
    async fn verdict(&self, index: u64) -> (Verdict, BoxStream<'_, (u64, Option<Answer>)>) {
        let applied = self.applied();
        let unasked = |verdict| (verdict, stream::empty().boxed());
        let Ok(ours) = self.hash_at(index) else { return unasked(Verdict::Open) };
        let Some(ours) = ours else {
            // A node that lost applied entries in a crash applies them again, up to the index.
            return unasked(if applied < index { Verdict::Open } else { Verdict::Unretained });
        };
        let voters: BTreeSet<u64> = self.known_members().effective.voter_ids().collect();
        let others = voters.iter().copied().filter(|voter| *voter != self.node_id);
        let mut hashes: BTreeMap<u64, Option<Answer>> = others.clone().map(|voter| (voter, None)).collect();
        let ask = move |voter| async move { (voter, self.hash_of(voter, index, ours).await) };
        let mut answers: FuturesUnordered<_> = others.map(ask).collect();
        loop {
            let known: Vec<_> = hashes.values().copied().collect();
            let verdict = decide(ours, voters.contains(&self.node_id), &known);
            // A majority need not wait for a voter that does not answer.
            if verdict != Verdict::Open {
                return (verdict, answers.boxed());
            }
            let Some((voter, hash)) = answers.next().await else { return unasked(verdict) };
            hashes.insert(voter, hash);
        }
    }

    /// The state hash of another voter; `None` if it does not answer, or has not applied the index yet.
    async fn hash_of(&self, voter: u64, index: u64, ours: StateHash) -> Option<Answer> {
        let record = self.known_members().get(voter)?.clone();
        let client = self.channels.shared(Purpose::Administration, voter, &record).ok()?;
        let mut peer = client.peer();
        let request = StateHashRequest { index, hash: ours.to_vec().into() };
        let answer = peer.state_hash(client.request(request));
        let answer = tokio::time::timeout(limits::REPORT_TIMEOUT, answer).await.ok()?;
        let StateHashResponse { hash, applied_index } = answer.ok()?.into_inner();
        match hash.as_ref().try_into() {
            Ok(hash) => Some(Answer::Hash(hash)),
            Err(_) if hash.is_empty() && applied_index >= index => Some(Answer::Unretained),
            Err(_) => None,
        }
    }

    /// The state hash of this node at an index, if it is retained.
    fn hash_at(&self, index: u64) -> Result<Option<StateHash>, Corrupt> {
        self.shared.database.load().hash_at(index)
    }

    /// Answers member `by`, which has the hash `theirs` at `index`, and opens a dispute if that of this node differs.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is corrupt.
    pub(super) fn compare_hash(
        &self,
        by: u64,
        index: u64,
        theirs: StateHash,
    ) -> Result<StateHashResponse, Corrupt> {
        // Read before the hash, which is retained for some time after the index was applied.
        let applied_index = self.applied();
        let ours = self.hash_at(index)?;
        if ours.is_some_and(|ours| ours != theirs) {
            self.shared.divergence.report(index, Some(by));
        }
        Ok(StateHashResponse {
            hash: ours.map(|ours| ours.to_vec().into()).unwrap_or_default(),
            applied_index,
        })
    }

    /// Refuses a snapshot during a dispute: it would replace the state about which the voters decide.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check_agreement(&self) -> Result<(), &'static str> {
        match self.disputed_index() {
            Some(_) => Err("the state of this node is in dispute"),
            None => Ok(()),
        }
    }

    /// Log index at which the state of this node is in dispute.
    pub(crate) fn disputed_index(&self) -> Option<u64> {
        self.shared.divergence.disputed()
    }
}
