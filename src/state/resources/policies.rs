//! Policy bundles: the current one and those before it.

use prost::Message as _;

use super::feed::{self, NewFeedEvent};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{PolicyHistoryRow, PolicyRow, PutPolicy, Refusal, Reply};
use crate::state::tables::{CURRENT_POLICY, META, POLICY, POLICY_HISTORY, Tables};

/// Row of the meta table: number of the last change.
const LAST_CHANGE: &[u8] = b"last_policy_change";

/// Makes a bundle current. The proposing node has compiled it.
pub fn put(tables: &mut Tables<'_>, now: Timestamp, command: &PutPolicy) -> Result<Reply, Corrupt> {
    let current = tables.row(META, CURRENT_POLICY)?.unwrap_or_default();
    if command.is_seed && !current.is_empty() {
        return Ok(Reply::Refused(Refusal::PolicyChanged));
    }
    if !command.expected_current.is_empty() && command.expected_current.as_bytes() != current {
        return Ok(Reply::Refused(Refusal::PolicyChanged));
    }
    if command.digest.as_bytes() == current {
        return Ok(Reply::Done { changed: false });
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
    feed::append(tables, now, NewFeedEvent { kind: "cluster", subject, target, detail: "policy applied" })?;
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
