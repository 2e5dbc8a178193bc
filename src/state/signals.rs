//! Signals as replicated state: each security event token counts once, with all that it does.
//!
//! Who may say what of whom, and which event does what, was decided before it was proposed; here it is
//! decided once in the cluster whether it came before and whether its issuer has not revoked too much.

use bytes::Bytes;
use prost::Message as _;

use super::blocks;
use super::bucket::Bucketed;
use super::command::{
    self, AcceptSignal, AllowRevocations, Command, EffectKind, Refusal, Reply, RevocationQuotaRow,
};
use super::idempotency::digest;
use super::revocations::{self, Note, fact_row};
use super::tables::{REVOCATION_QUOTA, REVOCATIONS, SIGNAL, Tables, decode};
use super::{Error, State};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::token::lineage::Fact;

/// Tokens that came, by the digest of (iss, jti).
const SIGNALS: Bucketed =
    Bucketed { table: SIGNAL, oldest: b"oldest_signal_bucket", retention: limits::SIGNAL_RETENTION };

/// A security event token that is accepted.
#[derive(Clone, Debug)]
pub struct Signal {
    /// `iss`.
    pub issuer: String,
    /// `jti`.
    pub jti: String,
    /// Most facts that this issuer may revoke, block or lift in a minute of log time.
    pub quota: u32,
    /// What it does; nothing, if it is only to be remembered.
    pub effects: Vec<Effect>,
    /// What the issuer says of the cause; empty for nothing.
    pub reason: String,
}

/// What an event does to a fact (contract §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What was issued before is refused.
    Watermark(Fact),
    /// The same, and what is issued after, until it is lifted.
    Block {
        /// What is blocked.
        fact: Fact,
        /// Only an event of the same family lifts it.
        family: String,
        /// When it happened, as the issuer says.
        happened_at: Timestamp,
    },
    /// Lifts what the same issuer blocked for the sake of the same family, if that happened before.
    Lift {
        /// What was blocked.
        fact: Fact,
        /// The family of events.
        family: String,
        /// When it happened, as the issuer says.
        happened_at: Timestamp,
    },
}

impl Signal {
    fn into_command(self) -> AcceptSignal {
        let jti = Digest128::of(DigestKind::Signal, self.issuer.as_bytes(), self.jti.as_bytes());
        AcceptSignal {
            jti: Bytes::copy_from_slice(jti.as_bytes()),
            issuer: self.issuer,
            quota: self.quota,
            effects: self.effects.into_iter().map(Effect::into_row).collect(),
            reason: self.reason,
        }
    }
}

impl Effect {
    fn into_row(self) -> command::Effect {
        let (kind, fact, family, happened_at) = match self {
            Self::Watermark(fact) => (EffectKind::Watermark, fact, String::new(), Timestamp::default()),
            Self::Block { fact, family, happened_at } => (EffectKind::Block, fact, family, happened_at),
            Self::Lift { fact, family, happened_at } => (EffectKind::Lift, fact, family, happened_at),
        };
        command::Effect {
            kind: kind.into(),
            fact: Some(fact_row(&fact)),
            family,
            happened_at_millis: happened_at.millis(),
        }
    }
}

/// Accepts a signal: its `jti` is spent and all of its effects stand, or nothing of it. What came before
/// changes nothing.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn accept(
    tables: &mut Tables<'_>,
    now: Timestamp,
    index: u64,
    command: AcceptSignal,
) -> Result<Reply, Corrupt> {
    let jti = digest(&command.jti)?;
    if SIGNALS.find(tables, now, &jti)?.is_some() {
        return Ok(Reply::Done { changed: false });
    }
    let (facts, blocks) = (command.effects.len() as u64, blocks::count(tables)?);
    let is_full = tables.number(REVOCATIONS)?.saturating_add(facts) > limits::REVOCATIONS_MAX
        || blocks.saturating_add(facts) > limits::BLOCKS_MAX;
    if facts > 0 && is_full {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    if !take_of_quota(tables, now, &command)? {
        return Ok(Reply::Refused(Refusal::RevocationQuota));
    }
    SIGNALS.remember(tables, now, &jti, Vec::new())?;
    for effect in command.effects {
        let note = (command.issuer.as_str(), command.reason.as_str());
        take_effect(tables, now, index, &effect, note)?;
    }
    Ok(Reply::Done { changed: true })
}

fn take_effect(
    tables: &mut Tables<'_>,
    now: Timestamp,
    index: u64,
    effect: &command::Effect,
    (issuer, reason): (&str, &str),
) -> Result<(), Corrupt> {
    let kind = effect.kind();
    let fact = effect.fact.clone().ok_or_else(|| Corrupt::row("an effect is on no fact"))?;
    match kind {
        EffectKind::Unspecified => return Err(Corrupt::newer("the log holds an effect that is not known")),
        EffectKind::Lift => {}
        EffectKind::Watermark | EffectKind::Block => {
            let note = Note { fact: Some(fact.clone()), reason: reason.to_owned(), by: issuer.to_owned() };
            revocations::revoke(tables, now, index, &fact.digest, note)?;
        }
    }
    if kind != EffectKind::Watermark {
        blocks::put(tables, now, effect, fact, issuer, reason)?;
    }
    Ok(())
}

/// Whether the issuer may revoke so much: first of what it may in this minute, then of what an operator
/// allowed it beyond.
fn take_of_quota(tables: &mut Tables<'_>, now: Timestamp, command: &AcceptSignal) -> Result<bool, Corrupt> {
    let Ok(facts) = u32::try_from(command.effects.len()) else { return Ok(false) };
    if facts == 0 {
        return Ok(true);
    }
    let mut row = quota_of(tables, &command.issuer)?;
    let minute = now.secs().div_euclid(60);
    if row.minute != minute {
        row = RevocationQuotaRow { minute, used: 0, more: row.more };
    }
    let of_quota = facts.min(command.quota.saturating_sub(row.used));
    let Some(more) = row.more.checked_sub(facts - of_quota) else { return Ok(false) };
    row = RevocationQuotaRow { used: row.used.saturating_add(of_quota), more, ..row };
    tables.put(REVOCATION_QUOTA, command.issuer.as_bytes(), row.encode_to_vec());
    Ok(true)
}

/// Lets an issuer revoke more than its quota, for once.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn allow(tables: &mut Tables<'_>, command: &AllowRevocations) -> Result<Reply, Corrupt> {
    let row = quota_of(tables, &command.issuer)?;
    if row.more == command.more {
        return Ok(Reply::Done { changed: false });
    }
    let row = RevocationQuotaRow { more: command.more, ..row };
    tables.put(REVOCATION_QUOTA, command.issuer.as_bytes(), row.encode_to_vec());
    Ok(Reply::Done { changed: true })
}

fn quota_of(tables: &Tables<'_>, issuer: &str) -> Result<RevocationQuotaRow, Corrupt> {
    let row = tables.row(REVOCATION_QUOTA, issuer.as_bytes())?;
    row.map_or_else(
        || Ok(RevocationQuotaRow::default()),
        |row| decode::<RevocationQuotaRow>(REVOCATION_QUOTA, &row),
    )
}

impl State {
    /// Accepts a signal. Whether it is new: one that came before changes nothing. Either way it is answered
    /// only when no member can answer from before it.
    ///
    /// # Errors
    /// [`Error::RevocationQuota`], [`Error::TooManyRevocations`], or as [`Error::Write`] says.
    pub async fn accept_signal(&self, signal: Signal) -> Result<bool, Error> {
        let command = Command::AcceptSignal(signal.into_command());
        match self.propose_revocation(command, None).await?.outcome {
            Reply::Done { changed } => Ok(changed),
            _ => Err(Error::Undecodable),
        }
    }

    /// Lets an issuer revoke so many facts more than its quota, for once; replaces what was allowed before.
    /// Whether that changed anything.
    ///
    /// # Errors
    /// As [`Error::Write`] says.
    pub async fn allow_revocations(&self, issuer: String, more: u32) -> Result<bool, Error> {
        self.propose(Command::AllowRevocations(AllowRevocations { issuer, more })).await
    }
}

#[cfg(test)]
mod tests;
