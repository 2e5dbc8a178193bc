//! Revocations by operators: the command with its further effects on agents, signing keys, blocks, feed and streams.

use super::revocations::{self, RevocationDetails};
use super::{agents, feed, outbox, signing_keys, subject_blocks};
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{self, Command, Refusal, Reply, TaintSigningKey};
use crate::state::tables::{EntryTime, REVOCATIONS, Tables};
use crate::state::{Awaited, Error, OnBehalf};

/// Revokes a fact as an operator, who has some capacity beyond the limit.
pub fn by_operator(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: command::Revoke,
) -> Result<Reply, Corrupt> {
    let fact = command.fact.ok_or_else(|| Corrupt::row("a revoke command has no fact"))?;
    let most = limits::REVOCATIONS_MAX + limits::OPERATOR_REVOCATIONS_MAX;
    if tables.number(REVOCATIONS)? >= most {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    if command.blocks
        && subject_blocks::count(tables)? >= limits::SUBJECT_BLOCKS_MAX + limits::OPERATOR_REVOCATIONS_MAX
    {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    if command.must_be_agent && agents::find(tables, &fact.value)?.is_none() {
        return Ok(Reply::Refused(Refusal::UnknownAgent));
    }
    if command.taints {
        let taint = TaintSigningKey { kid: fact.value.clone(), digest: fact.digest.clone() };
        match signing_keys::taint(tables, time, &taint)? {
            // Of a deleted key: agents that derive from it outlive it, and a block covers them.
            Reply::Refused(Refusal::UnknownSigningKey) if command.blocks => {}
            refused @ Reply::Refused(_) => return Ok(refused),
            _ => {}
        }
    }
    if command.blocks {
        subject_blocks::put_by_operator(tables, time, fact.clone(), &command.reason, &command.caller)?;
    }
    let issuer_revoked_before = agents::issuer_revoked(tables, &fact.value)?.unwrap_or_default();
    let digest = fact.digest.clone();
    let event = feed::NewFeedEvent {
        kind: feed::FeedKind::Revocation,
        subject: &fact.value,
        target: &fact.issuer,
        detail: &command.reason,
    };
    feed::append(tables, time.now, event)?;
    let details = RevocationDetails {
        fact: Some(fact),
        reason: command.reason,
        by: command.caller,
        of_signal: false,
        is_own_key: command.taints,
    };
    revocations::revoke(tables, time, &digest, details)?;
    if let Some(event) = command.event {
        outbox::append(tables, time, event)?;
    }
    let index = tables.entry_index();
    Ok(Reply::Revoked(command::Revoked { index, at_millis: time.now.millis(), issuer_revoked_before }))
}

impl OnBehalf<'_> {
    /// Revokes a fact as the caller, an operator: all that derives from it and was issued before. Returns after the barrier
    /// and the waits for peers; a retry returns the outcome of the first request.
    ///
    /// # Errors
    /// `Refusal::UnknownAgent`, `Refusal::UnknownSigningKey`, `Refusal::TooManyRevocations`,
    /// `Refusal::IdempotencyKeyReused`, [`Error::PeersSilent`].
    pub async fn revoke(self, command: command::Revoke) -> Result<(command::Revoked, Awaited), Error> {
        let command = command::Revoke { caller: self.name(), ..command };
        let (reply, awaited) = self.propose_revocation(Command::Revoke(command)).await?;
        match reply.outcome {
            Reply::Revoked(revoked) => Ok((revoked, awaited)),
            _ => Err(Error::Undecodable),
        }
    }
}
