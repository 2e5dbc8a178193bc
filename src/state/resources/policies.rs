//! Policy bundles: the current one and those before it.

use prost::Message as _;

use super::feed::{self, FeedKind, NewFeedEvent};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{Command, PolicyHistoryRow, PolicyRow, PolicySource, PutPolicy, Refusal, Reply};
use crate::state::tables::{CURRENT_POLICY, META, POLICY, POLICY_HISTORY, Tables};
use crate::state::{Error, OnBehalf, State};

/// Row of the meta table: number of the last change.
const LAST_CHANGE: &[u8] = b"last_policy_change";

/// Makes a bundle current. The proposing node has compiled it.
pub fn put(tables: &mut Tables<'_>, now: Timestamp, command: &PutPolicy) -> Result<Reply, Corrupt> {
    let current = tables.row(META, CURRENT_POLICY)?.unwrap_or_default();
    if command.is_seed && !current.is_empty() {
        return Ok(Reply::Refused(Refusal::PolicyChanged));
    }
    // Also of a repetition, whose first attempt has changed the expected policy.
    if command.digest.as_bytes() == current {
        return Ok(Reply::Done { changed: false });
    }
    if !command.expected_current.is_empty() && command.expected_current.as_bytes() != current {
        return Ok(Reply::Refused(Refusal::PolicyChanged));
    }
    let bundle = PolicyRow { sources: command.sources.clone() };
    tables.put(POLICY, command.digest.as_bytes(), bundle.encode_to_vec());
    tables.put(META, CURRENT_POLICY, command.digest.clone().into_bytes());

    let number = tables.add(LAST_CHANGE, 1)?;
    let change = PolicyHistoryRow {
        digest: command.digest.clone(),
        applied_at_millis: now.millis(),
        applied_by: command.applied_by.clone(),
    };
    tables.put(POLICY_HISTORY, &number.to_be_bytes(), change.encode_to_vec());
    delete_oldest(tables)?;
    let (subject, target) = (command.digest.as_str(), command.applied_by.as_str());
    feed::append(
        tables,
        now,
        NewFeedEvent { kind: FeedKind::Cluster, subject, target, detail: "policy applied" },
    )?;
    Ok(Reply::Done { changed: true })
}

fn delete_oldest(tables: &mut Tables<'_>) -> Result<(), Corrupt> {
    let history = tables.messages::<PolicyHistoryRow>(POLICY_HISTORY)?;
    let Some(surplus) = history.len().checked_sub(limits::POLICY_HISTORY_MAX) else { return Ok(()) };
    let (forgotten, kept) = history.split_at(surplus);
    for (number, change) in forgotten {
        tables.delete(POLICY_HISTORY, number);
        if !kept.iter().any(|(_, other)| other.digest == change.digest) {
            tables.delete(POLICY, change.digest.as_bytes());
        }
    }
    Ok(())
}

impl State {
    /// Sets the first policy of the cluster; `Refusal::PolicyChanged` if it has one already.
    pub async fn seed_policy(&self, digest: String, sources: Vec<PolicySource>) -> Result<(), Error> {
        let command = PutPolicy { digest, sources, is_seed: true, ..Default::default() };
        self.as_node().propose(Command::PutPolicy(command)).await.map(drop)
    }
}

impl OnBehalf<'_> {
    /// Makes a policy bundle current; false if it was. `Refusal::PolicyChanged` if the current policy is not
    /// `expected_current`.
    pub async fn put_policy(
        self,
        digest: String,
        sources: Vec<PolicySource>,
        expected_current: String,
    ) -> Result<bool, Error> {
        let applied_by = self.name();
        let command = PutPolicy { digest, sources, applied_by, expected_current, is_seed: false };
        self.propose(Command::PutPolicy(command)).await
    }
}
