//! Signals: each accepted security event token takes effect once, with all of its effects.
//!
//! Authority and effects were decided before the proposal; here the cluster decides whether the token is new and its
//! issuer within its quota.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::events::SecurityEvent;
use super::issuer_quotas::quota_of;
use super::revocations::{self, RevocationDetails};
use super::revoked_fact::fact_row;
use super::{feed, outbox, subject_blocks};
use crate::breaks::{self, Break};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::state::command;
use crate::state::command::{
    AcceptSignal, AllowRevocations, Command, EffectKind, Refusal, Reply, RevocationQuotaRow,
};
use crate::state::machine::idempotency::digest;
use crate::state::tables::ttl_buckets::TtlBuckets;
use crate::state::tables::{BLOCK, EntryTime, REVOCATION, REVOCATION_QUOTA, REVOCATIONS, SIGNAL, Tables};
use crate::state::{Awaited, Error, OnBehalf, State};
use crate::token::lineage::Fact;

/// Accepted tokens, by the digest of (iss, jti).
const SIGNALS: TtlBuckets = TtlBuckets {
    table: SIGNAL,
    oldest: b"oldest_signal_bucket",
    retention: limits::SIGNAL_RETENTION,
    bucket: Duration::from_secs(6 * 3600),
};

/// An accepted security event token.
#[derive(Clone, Debug)]
pub struct Signal {
    pub issuer: String,
    pub jti: String,
    pub issued_at: Timestamp,
    /// Maximum number of facts that the issuer may revoke, block or lift per minute.
    pub quota: u32,
    /// Effects; empty if the token is only recorded.
    pub effects: Vec<Effect>,
    /// Reason that the issuer states; may be empty.
    pub reason: String,
    /// Digest of its claims.
    pub content: Digest128,
    /// Events to relay to streams, in this order.
    pub events: Vec<SecurityEvent>,
    /// Its subject as text, for the live feed.
    pub subject: String,
}

/// Effect of an event on a fact (contract §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Credentials issued before are refused.
    Watermark(Fact),
    /// The same, and credentials issued later, until the block is lifted.
    Block {
        /// The blocked fact.
        fact: Fact,
        /// Only an event of the same family lifts the block.
        family: String,
        /// Time of the event, as the issuer states it.
        happened_at: Timestamp,
    },
    /// Lifts the block of the same issuer and family, if that is earlier.
    Lift {
        /// The blocked fact.
        fact: Fact,
        /// The family of events.
        family: String,
        /// Time of the event, as the issuer states it.
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

/// Accepts a signal: its `jti` is recorded, all of its effects apply and its events are in the outbox, or none of it. A
/// duplicate changes nothing; another token with the same `jti` is refused.
pub fn accept(tables: &mut Tables<'_>, time: EntryTime, command: AcceptSignal) -> Result<Reply, Corrupt> {
    let (jti, content) = (digest(&command.jti)?, digest(&command.content)?);
    if let Some(known) = SIGNALS.find(tables, time.elapsed, &jti)? {
        let is_same = read_row(&known)?.0 == content;
        return Ok(if is_same { Reply::Done { changed: false } } else { Reply::Refused(Refusal::JtiReused) });
    }
    if !has_capacity(tables, &command)? {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    if !use_quota(tables, time, &command)? {
        return Ok(Reply::Refused(Refusal::RevocationQuota));
    }
    let row = [content.as_bytes(), &tables.entry_index().to_be_bytes()[..]].concat();
    SIGNALS.insert(tables, time.elapsed, &jti, row)?;
    // The issuer knew of it at that time by its own clock: what it issued until then is covered.
    let latest = time.latest.max(Timestamp::from_millis(command.issued_at_millis));
    let covering = EntryTime { latest, ..time };
    for effect in &command.effects {
        let source = (command.issuer.as_str(), command.reason.as_str());
        apply_effect(tables, covering, effect, source)?;
    }
    publish(tables, time, command)?;
    Ok(Reply::Done { changed: true })
}

/// Appends the relayed events to the outbox, and all of it to the live feed.
fn publish(tables: &mut Tables<'_>, time: EntryTime, command: AcceptSignal) -> Result<(), Corrupt> {
    let detail = match command.effects.len() {
        1 => "1 effect".to_owned(),
        effects => format!("{effects} effects"),
    };
    let feed_event = feed::NewFeedEvent {
        kind: feed::FeedKind::Signal,
        subject: &command.subject,
        target: &command.issuer,
        detail: &detail,
    };
    feed::append(tables, time.now, feed_event)?;
    if !command.effects.is_empty() {
        let feed_event =
            feed::NewFeedEvent { kind: feed::FeedKind::Revocation, detail: &command.reason, ..feed_event };
        feed::append(tables, time.now, feed_event)?;
    }
    command.events.into_iter().try_for_each(|event| outbox::append(tables, time, event))
}

fn apply_effect(
    tables: &mut Tables<'_>,
    time: EntryTime,
    effect: &command::Effect,
    (issuer, reason): (&str, &str),
) -> Result<(), Corrupt> {
    let kind = effect.kind();
    let fact = effect.fact.clone().ok_or_else(|| Corrupt::row("an effect has no fact"))?;
    match kind {
        EffectKind::Unspecified => return Err(Corrupt::newer("the log has an unknown effect")),
        EffectKind::Lift => {}
        EffectKind::Watermark | EffectKind::Block => {
            let (reason, by) = (reason.to_owned(), issuer.to_owned());
            let of = Some(fact.clone());
            let details = RevocationDetails { fact: of, reason, by, of_signal: true, is_own_key: false };
            revocations::revoke(tables, time, &fact.digest, details)?;
        }
    }
    if kind != EffectKind::Watermark {
        subject_blocks::put(tables, time, effect, fact, issuer, reason)?;
    }
    Ok(())
}

/// Whether the rows that a signal adds fit into the limits of the cluster and of the issuer.
fn has_capacity(tables: &Tables<'_>, command: &AcceptSignal) -> Result<bool, Corrupt> {
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
            limits::SUBJECT_BLOCKS_MAX,
            of_issuer.blocks,
            limits::SUBJECT_BLOCKS_PER_ISSUER_MAX,
        ))
}

/// Whether the effects of a signal are within its issuer's quota: first that of this minute, then the extra quota of an
/// operator. A signal without effects counts as one; the first of a minute always passes, however large, because it would
/// never pass otherwise.
fn use_quota(tables: &mut Tables<'_>, time: EntryTime, command: &AcceptSignal) -> Result<bool, Corrupt> {
    let Ok(mut facts) = u32::try_from(command.effects.len().max(1)) else { return Ok(false) };
    let mut row = quota_of(tables, &command.issuer)?;
    let minute = time.elapsed.secs().div_euclid(60);
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

/// Sets the extra quota of an issuer, to be used once.
pub fn allow(tables: &mut Tables<'_>, command: &AllowRevocations) -> Result<Reply, Corrupt> {
    let row = quota_of(tables, &command.issuer)?;
    if row.more == command.more {
        return Ok(Reply::Done { changed: false });
    }
    let row = RevocationQuotaRow { more: command.more, ..row };
    tables.put(REVOCATION_QUOTA, command.issuer.as_bytes(), row.encode_to_vec());
    Ok(Reply::Done { changed: true })
}

/// The content of the token with this `jti`, and the log index of its entry.
fn find(tables: &Tables<'_>, jti: &Digest128) -> Result<Option<(Digest128, u64)>, Corrupt> {
    SIGNALS.find(tables, tables.elapsed()?, jti)?.map(|row| read_row(&row)).transpose()
}

fn read_row(row: &[u8]) -> Result<(Digest128, u64), Corrupt> {
    let (content, index) =
        row.split_at_checked(16).ok_or_else(|| Corrupt::row("a row of a signal is too short"))?;
    let index = index.try_into().map_err(|_| Corrupt::row("a row of a signal has no log index"))?;
    Ok((digest(content)?, u64::from_be_bytes(index)))
}

impl State {
    /// The state at the awaited peers of a signal with the same content that was accepted before; `None` if there is none.
    /// Returns it only after the waits of the first acceptance.
    ///
    /// # Errors
    /// `Refusal::JtiReused` if another token has this `jti`; [`Error::PeersSilent`], [`Error::Damaged`].
    pub async fn has_signal(
        &self,
        issuer: &str,
        jti: &str,
        content: &Digest128,
    ) -> Result<Option<Awaited>, Error> {
        let found = find(&Tables::new(self.cluster.view()), &key_of(issuer, jti))?;
        let Some((known, index)) = found else { return Ok(None) };
        if known != *content {
            return Err(Error::Refused(Refusal::JtiReused));
        }
        // A row can be read shortly before the index in memory includes its effects.
        self.cluster.until_applied(index).await;
        if breaks::active(Break::DuplicateWithoutBarrier) {
            return Ok(Some(Awaited::default()));
        }
        self.enforced_everywhere(index).await.map(Some)
    }
}

impl OnBehalf<'_> {
    /// Accepts a signal; false for a duplicate. Returns after the barrier and the waits for peers in either case.
    ///
    /// # Errors
    /// `Refusal::JtiReused`, `Refusal::RevocationQuota`, `Refusal::TooManyRevocations`, [`Error::PeersSilent`].
    pub async fn accept_signal(self, signal: Signal) -> Result<(bool, Awaited), Error> {
        let command = Command::AcceptSignal(signal.into_command());
        let (reply, awaited) = self.once(None).propose_revocation(command).await?;
        Ok((reply.outcome.changed()?, awaited))
    }

    /// Sets the extra quota of an issuer, to be used once; replaces the previous one. Returns whether that changed
    /// anything.
    pub async fn allow_revocations(self, issuer: String, more: u32) -> Result<bool, Error> {
        self.propose(Command::AllowRevocations(AllowRevocations { issuer, more })).await
    }
}

#[cfg(test)]
mod tests;
