//! Signals as replicated state: each security event token counts once, with all that it does.
//!
//! Who may say what of whom, and which event does what, was decided before it was proposed; here it is
//! decided once in the cluster whether it came before and whether its issuer has not revoked too much.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::events::SecurityEvent;
use super::revocations::{self, Note, fact_row};
use super::{feed, outbox, subject_blocks};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::state::command;
use crate::state::command::{
    AcceptSignal, AllowRevocations, Command, EffectKind, Refusal, Reply, RevocationQuotaRow,
};
use crate::state::machine::idempotency::digest;
use crate::state::tables::ttl_buckets::Bucketed;
use crate::state::tables::{
    BLOCK, Moment, REVOCATION, REVOCATION_QUOTA, REVOCATIONS, SIGNAL, Tables, decode,
};
use crate::state::{Error, OnBehalf, State};
use crate::token::lineage::Fact;

/// Tokens that came, by the digest of (iss, jti).
const SIGNALS: Bucketed = Bucketed {
    table: SIGNAL,
    oldest: b"oldest_signal_bucket",
    retention: limits::SIGNAL_RETENTION,
    bucket: Duration::from_secs(6 * 3600),
};

/// A security event token that is accepted.
#[derive(Clone, Debug)]
pub struct Signal {
    /// `iss`.
    pub issuer: String,
    /// `jti`.
    pub jti: String,
    /// `iat`.
    pub issued_at: Timestamp,
    /// Most facts that this issuer may revoke, block or lift in a minute of log time.
    pub quota: u32,
    /// What it does; nothing, if it is only to be remembered.
    pub effects: Vec<Effect>,
    /// What the issuer says of the cause; empty for nothing.
    pub reason: String,
    /// Digest of its claims.
    pub content: Digest128,
    /// What of it is passed on to streams, in this order.
    pub events: Vec<SecurityEvent>,
    /// Whom it is about, as text, for the live feed.
    pub subject: String,
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
        AcceptSignal {
            jti: Bytes::copy_from_slice(key_of(&self.issuer, &self.jti).as_bytes()),
            issuer: self.issuer,
            quota: self.quota,
            effects: self.effects.into_iter().map(Effect::into_row).collect(),
            reason: self.reason,
            content: Bytes::copy_from_slice(self.content.as_bytes()),
            events: self.events.into_iter().map(Into::into).collect(),
            subject: self.subject,
            issued_at_millis: self.issued_at.millis(),
        }
    }
}

fn key_of(issuer: &str, jti: &str) -> Digest128 {
    Digest128::of(DigestKind::Signal, issuer.as_bytes(), jti.as_bytes())
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

/// Accepts a signal: its `jti` is spent, all of its effects stand and its events are on their way, or nothing of
/// it. What came before changes nothing; another token under the same `jti` is refused.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn accept(
    tables: &mut Tables<'_>,
    moment: Moment,
    index: u64,
    command: AcceptSignal,
) -> Result<Reply, Corrupt> {
    let (jti, content) = (digest(&command.jti)?, digest(&command.content)?);
    if let Some(known) = SIGNALS.find(tables, moment.passed, &jti)? {
        let is_same = read_row(&known)?.0 == content;
        return Ok(if is_same { Reply::Done { changed: false } } else { Reply::Refused(Refusal::JtiReused) });
    }
    if !has_room(tables, &command)? {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    if !take_of_quota(tables, moment, &command)? {
        return Ok(Reply::Refused(Refusal::RevocationQuota));
    }
    let row = [content.as_bytes(), &index.to_be_bytes()[..]].concat();
    SIGNALS.remember(tables, moment.passed, &jti, row)?;
    // By its own clock the issuer knew of it then: what it issued until then is covered.
    let latest = moment.latest.max(Timestamp::from_millis(command.issued_at_millis));
    let covering = Moment { latest, ..moment };
    for effect in &command.effects {
        let note = (command.issuer.as_str(), command.reason.as_str());
        take_effect(tables, covering, index, effect, note)?;
    }
    tell(tables, moment, command)?;
    Ok(Reply::Done { changed: true })
}

/// Tells streams what is passed on to them, and the live feed of all of it.
fn tell(tables: &mut Tables<'_>, moment: Moment, command: AcceptSignal) -> Result<(), Corrupt> {
    let detail = match command.effects.len() {
        1 => "1 effect".to_owned(),
        effects => format!("{effects} effects"),
    };
    let note =
        feed::Note { kind: "signal", subject: &command.subject, target: &command.issuer, detail: &detail };
    feed::note(tables, moment.now, note)?;
    if !command.effects.is_empty() {
        let note = feed::Note { kind: "revocation", detail: &command.reason, ..note };
        feed::note(tables, moment.now, note)?;
    }
    command.events.into_iter().try_for_each(|event| outbox::append(tables, moment, event))
}

fn take_effect(
    tables: &mut Tables<'_>,
    moment: Moment,
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
            let (reason, by) = (reason.to_owned(), issuer.to_owned());
            let note = Note { fact: Some(fact.clone()), reason, by, of_signal: true };
            revocations::revoke(tables, moment, index, &fact.digest, note)?;
        }
    }
    if kind != EffectKind::Watermark {
        subject_blocks::put(tables, moment, effect, fact, issuer, reason)?;
    }
    Ok(())
}

/// Whether what a signal adds has room: what is there already needs none, and no issuer takes all of it.
fn has_room(tables: &Tables<'_>, command: &AcceptSignal) -> Result<bool, Corrupt> {
    let (mut revocations, mut blocks) = (BTreeSet::new(), BTreeSet::new());
    for effect in &command.effects {
        let Some(fact) = &effect.fact else { continue };
        if effect.kind() != EffectKind::Lift && tables.row(REVOCATION, &fact.digest)?.is_none() {
            revocations.insert(&fact.digest);
        }
        let key = subject_blocks::key(&fact.digest, &command.issuer, &effect.family);
        if effect.kind() != EffectKind::Watermark && tables.row(BLOCK, &key)?.is_none() {
            blocks.insert(key);
        }
    }
    let of_issuer = quota_of(tables, &command.issuer)?;
    let fits = |new: usize, of_all: u64, most: u64, of_issuer: u64, most_of_issuer: u64| {
        let new = new as u64;
        new == 0 || (of_all.saturating_add(new) <= most && of_issuer.saturating_add(new) <= most_of_issuer)
    };
    let (all, all_blocks) = (tables.number(REVOCATIONS)?, subject_blocks::count(tables)?);
    let (most, most_of_issuer) = (limits::REVOCATIONS_MAX, limits::REVOCATIONS_PER_ISSUER_MAX);
    Ok(fits(revocations.len(), all, most, of_issuer.revocations, most_of_issuer)
        && fits(
            blocks.len(),
            all_blocks,
            limits::BLOCKS_MAX,
            of_issuer.blocks,
            limits::BLOCKS_PER_ISSUER_MAX,
        ))
}

/// Whether the issuer may revoke so much: first of what it may in this minute, then of what an operator
/// allowed it beyond. A signal without effect counts as one; the first in a minute passes however large it
/// is, or it never would.
fn take_of_quota(tables: &mut Tables<'_>, moment: Moment, command: &AcceptSignal) -> Result<bool, Corrupt> {
    let Ok(mut facts) = u32::try_from(command.effects.len().max(1)) else { return Ok(false) };
    let mut row = quota_of(tables, &command.issuer)?;
    let minute = moment.passed.secs().div_euclid(60);
    if row.minute != minute {
        row = RevocationQuotaRow { minute, used: 0, ..row };
    }
    if row.used == 0 {
        facts = facts.min(command.quota);
    }
    let of_quota = facts.min(command.quota.saturating_sub(row.used));
    let Some(more) = row.more.checked_sub(facts - of_quota) else { return Ok(false) };
    row = RevocationQuotaRow { used: row.used.saturating_add(of_quota), more, ..row };
    tables.put(REVOCATION_QUOTA, command.issuer.as_bytes(), row.encode_to_vec());
    Ok(true)
}

/// What of an issuer's is counted.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    /// Revocations.
    Revocation,
    /// Blocks.
    Block,
}

/// One more, or one less, of what is remembered of an issuer.
///
/// # Errors
/// [`Corrupt`] if the row is not what was written.
pub fn count(tables: &mut Tables<'_>, issuer: &str, kept: Kept, is_more: bool) -> Result<(), Corrupt> {
    let mut row = quota_of(tables, issuer)?;
    let number = match kept {
        Kept::Revocation => &mut row.revocations,
        Kept::Block => &mut row.blocks,
    };
    *number = if is_more { number.saturating_add(1) } else { number.saturating_sub(1) };
    tables.put(REVOCATION_QUOTA, issuer.as_bytes(), row.encode_to_vec());
    Ok(())
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

/// The content of the token that came under a `jti`, and the log index of its entry.
fn find(tables: &Tables<'_>, jti: &Digest128) -> Result<Option<(Digest128, u64)>, Corrupt> {
    SIGNALS.find(tables, tables.passed()?, jti)?.map(|row| read_row(&row)).transpose()
}

fn read_row(row: &[u8]) -> Result<(Digest128, u64), Corrupt> {
    let (content, index) = row.split_at_checked(16).ok_or_else(|| Corrupt::row("a signal's row is short"))?;
    let index = index.try_into().map_err(|_| Corrupt::row("a signal's row has no log index"))?;
    Ok((digest(content)?, u64::from_be_bytes(index)))
}

impl State {
    /// Whether a signal came before with the same content. That is answered under the promise that the first was:
    /// only when no member can answer from before it.
    ///
    /// # Errors
    /// [`Error::JtiReused`] if another one came under this `jti`, [`Error::Damaged`], or as [`Error::Write`] says.
    pub async fn knows_signal(&self, issuer: &str, jti: &str, content: &Digest128) -> Result<bool, Error> {
        let found = find(&Tables::new(self.core.view()), &key_of(issuer, jti))?;
        let Some((known, index)) = found else { return Ok(false) };
        if known != *content {
            return Err(Error::JtiReused);
        }
        // A row can be read a moment before what it does is known in memory.
        self.core.until_applied(index).await;
        self.acknowledged().await?;
        Ok(true)
    }
}

impl OnBehalf<'_> {
    /// Accepts a signal. Whether it is new: one that came before changes nothing. Either way it is answered
    /// only when no member can answer from before it.
    ///
    /// # Errors
    /// [`Error::JtiReused`], [`Error::RevocationQuota`], [`Error::TooManyRevocations`], or as [`Error::Write`] says.
    pub async fn accept_signal(self, signal: Signal) -> Result<bool, Error> {
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
    pub async fn allow_revocations(self, issuer: String, more: u32) -> Result<bool, Error> {
        self.propose(Command::AllowRevocations(AllowRevocations { issuer, more })).await
    }
}

#[cfg(test)]
mod tests;
