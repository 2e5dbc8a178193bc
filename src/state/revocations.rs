//! Revocations as rows: what was revoked, when, by whom and why, and for how long that is kept.
//!
//! A revocation is a watermark: it refuses what was issued before its entry. It is kept, by log time, until
//! every credential it could cover is dead. What is looked up for each request is in `revocation_index`.

use bytes::Bytes;
use prost::Message as _;

use super::command::{self, Command, Fact as FactRow, Refusal, Reply, RevocationRow};
use super::idempotency::digest;
use super::tables::{META, REVOCATION, REVOCATION_END, REVOCATIONS, Tables, decode};
use super::{Error, Idempotency, State, agents, blocks};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::{Digest128, LogPosition};
use crate::limits;
use crate::token::lineage::{Fact, SUBJECT};

/// Row of the meta table: below this key of [`REVOCATION_END`] nothing is left.
const FORGOTTEN_UP_TO: &[u8] = b"revocations_forgotten_up_to";

/// A revocation that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The digest of what is revoked, as it stands in `lineage`.
    pub id: Digest128,
    /// The log index of its entry: tokens of this cluster with a smaller `idx` are refused.
    pub index: u64,
    /// Log time of its entry.
    pub at: Timestamp,
    /// When it is forgotten, by log time, at the earliest.
    pub ends_at: Timestamp,
    /// What the digest is of; `None` where only the digest was known.
    pub fact: Option<FactText>,
    /// Why, as whoever revoked it said; may be empty.
    pub reason: String,
    /// The issuer of the signal or the caller; empty for nobody.
    pub by: String,
}

/// What a digest is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactText {
    /// `subject`, `email`, `client`, `token` or `key`.
    pub kind: String,
    /// Whose word it is; empty for a workload identifier.
    pub issuer: String,
    /// The value.
    pub value: String,
}

impl Revoked {
    fn read(key: &[u8], row: &[u8]) -> Result<Self, Corrupt> {
        let id = digest(key)?;
        let row = decode::<RevocationRow>(REVOCATION, row)?;
        let at = Timestamp::from_millis(row.at_millis);
        let text = |fact: FactRow| FactText { kind: fact.kind, issuer: fact.issuer, value: fact.value };
        Ok(Self {
            id,
            index: row.index,
            at,
            ends_at: at.plus(limits::REVOCATION_RETENTION),
            fact: row.fact.map(text),
            reason: row.reason,
            by: row.by,
        })
    }
}

/// What the index in memory needs of a row of [`REVOCATION`].
///
/// # Errors
/// [`Corrupt`] if it is not what was written.
pub fn watermark(key: &[u8], row: &[u8]) -> Result<(Digest128, u64, Timestamp), Corrupt> {
    let row = decode::<RevocationRow>(REVOCATION, row)?;
    Ok((digest(key)?, row.index, Timestamp::from_millis(row.at_millis)))
}

/// A fact as a command carries it.
#[must_use]
pub fn fact_row(fact: &Fact) -> FactRow {
    FactRow {
        digest: Bytes::copy_from_slice(fact.digest().as_bytes()),
        kind: fact.kind().to_owned(),
        issuer: fact.issuer().to_owned(),
        value: fact.value().to_owned(),
    }
}

/// What is noted of a revocation.
#[derive(Default)]
pub struct Note {
    /// What it is of.
    pub fact: Option<FactRow>,
    /// Why.
    pub reason: String,
    /// Whose word it is.
    pub by: String,
}

/// Revokes everything that derives from the fact with this digest and was issued before this entry.
///
/// # Errors
/// [`Corrupt`] if a row or the digest is not what was written.
pub fn revoke(
    tables: &mut Tables<'_>,
    now: Timestamp,
    index: u64,
    fact_digest: &[u8],
    note: Note,
) -> Result<(), Corrupt> {
    let digest = digest(fact_digest)?;
    if let Some(fact) = note.fact.as_ref().filter(|fact| fact.kind == SUBJECT && fact.issuer.is_empty()) {
        agents::note_revoked(tables, now, &fact.value, &note.by)?;
    }
    if tables.row(REVOCATION, digest.as_bytes())?.is_none() {
        let revocations = tables.number(REVOCATIONS)?.saturating_add(1);
        tables.put(META, REVOCATIONS, revocations.to_be_bytes().to_vec());
    }
    let fact = note.fact.map(|fact| FactRow { digest: Bytes::new(), ..fact });
    let row = RevocationRow { index, at_millis: now.millis(), fact, reason: note.reason, by: note.by };
    tables.put(REVOCATION, digest.as_bytes(), row.encode_to_vec());
    forget_later(tables, now, digest.as_bytes());
    Ok(())
}

/// Has a row looked at again when it may have ended: by its key, of a revocation or of a block.
pub fn forget_later(tables: &mut Tables<'_>, now: Timestamp, key: &[u8]) {
    let at = now.plus(limits::REVOCATION_RETENTION).millis().to_be_bytes();
    tables.put(REVOCATION_END, &[&at[..], key].concat(), Vec::new());
}

/// Revokes a fact as an operator, who has some room beyond the limit.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn by_operator(
    tables: &mut Tables<'_>,
    now: Timestamp,
    index: u64,
    command: command::Revoke,
) -> Result<Reply, Corrupt> {
    let fact = command.fact.ok_or_else(|| Corrupt::row("a command revokes no fact"))?;
    let most = limits::REVOCATIONS_MAX + limits::REVOCATIONS_OF_OPERATORS_MAX;
    if tables.number(REVOCATIONS)? >= most {
        return Ok(Reply::Refused(Refusal::TooManyRevocations));
    }
    let digest = fact.digest.clone();
    let note = Note { fact: Some(fact), reason: command.reason, by: command.caller };
    revoke(tables, now, index, &digest, note)?;
    Ok(Reply::Done { changed: true })
}

/// Forgets a few revocations that cover nothing alive any more, and blocks that have long been lifted.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn forget_ended(tables: &mut Tables<'_>, now: Timestamp) -> Result<(), Corrupt> {
    let mut ended = Vec::new();
    let from = tables.row(META, FORGOTTEN_UP_TO)?.unwrap_or_default();
    tables.earlier_keys(REVOCATION_END, &from, &mut |key| {
        let is_due = at_of(key).is_some_and(|at| at < now);
        if is_due {
            ended.push(key.to_vec());
        }
        is_due && ended.len() < limits::REVOCATIONS_FORGOTTEN_AT_ONCE
    })?;
    let Some(last) = ended.last() else { return Ok(()) };
    tables.put(META, FORGOTTEN_UP_TO, last.clone());
    for key in &ended {
        tables.delete(REVOCATION_END, key);
        match key.get(8..).unwrap_or_default() {
            revocation if revocation.len() == 16 => forget_if_ended(tables, now, revocation)?,
            block => blocks::forget_if_ended(tables, now, block)?,
        }
    }
    Ok(())
}

/// It may have been revoked again since.
fn forget_if_ended(tables: &mut Tables<'_>, now: Timestamp, key: &[u8]) -> Result<(), Corrupt> {
    let Some(row) = tables.row(REVOCATION, key)? else { return Ok(()) };
    if Revoked::read(key, &row)?.ends_at < now {
        tables.delete(REVOCATION, key);
        let revocations = tables.number(REVOCATIONS)?.saturating_sub(1);
        tables.put(META, REVOCATIONS, revocations.to_be_bytes().to_vec());
    }
    Ok(())
}

fn at_of(key: &[u8]) -> Option<Timestamp> {
    key.first_chunk::<8>().map(|at| Timestamp::from_millis(i64::from_be_bytes(*at)))
}

fn list(
    view: &dyn View,
    after: Option<Digest128>,
    limit: usize,
) -> Result<(Vec<Revoked>, Option<Digest128>), Corrupt> {
    // The least key behind another one.
    let from = after.map_or_else(Vec::new, |after| [&after.as_bytes()[..], &[0]].concat());
    let (mut revoked, mut next, mut outcome) = (Vec::new(), None, Ok(()));
    view.scan(REVOCATION, &from, &mut |key, row| {
        if revoked.len() >= limit {
            next = revoked.last().map(|last: &Revoked| last.id);
            return false;
        }
        match Revoked::read(key, row) {
            Ok(read) => revoked.push(read),
            Err(error) => outcome = Err(error),
        }
        outcome.is_ok()
    })?;
    outcome.map(|()| (revoked, next))
}

impl State {
    /// Revokes a fact as an operator: all that derives from it and was issued before.
    ///
    /// # Errors
    /// [`Error::TooManyRevocations`], [`Error::IdempotencyKeyReused`], or as [`Error::Write`] says.
    pub async fn revoke(
        &self,
        fact: &Fact,
        reason: String,
        caller: String,
        idempotency: Option<Idempotency>,
    ) -> Result<(), Error> {
        let command = command::Revoke { fact: Some(fact_row(fact)), reason, caller };
        match self.propose_once(Command::Revoke(command), idempotency).await?.outcome {
            Reply::Done { .. } => Ok(()),
            _ => Err(Error::Undecodable),
        }
    }

    /// Whether a credential that derives from `lineage` is revoked or blocked. `idx` is the claim of that
    /// name, if it is a token of a fabric; it counts only within our own incarnation (contract §3, `idx`).
    #[must_use]
    pub fn revokes(&self, lineage: &[Digest128], idx: Option<LogPosition>, iat: Timestamp) -> bool {
        self.core.machine().revocations().covers(self.index().incarnation, lineage, idx, iat)
    }

    /// At most `limit` revocations behind `after`, in the order of their ids, and behind which there are
    /// more, if there are.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn revocation_list(
        &self,
        after: Option<Digest128>,
        limit: usize,
    ) -> Result<(Vec<Revoked>, Option<Digest128>), Corrupt> {
        list(self.core.view(), after, limit)
    }

    /// The revocation of a fact, if it is remembered.
    ///
    /// # Errors
    /// [`Corrupt`] if its row is not what was written.
    pub fn revocation(&self, fact: &Fact) -> Result<Option<Revoked>, Corrupt> {
        let id = fact.digest();
        let row = self.core.view().get(REVOCATION, id.as_bytes())?;
        row.map(|row| Revoked::read(id.as_bytes(), &row)).transpose()
    }

    /// How many revocations are remembered.
    #[must_use]
    pub fn revocation_count(&self) -> u64 {
        self.index().revocations
    }
}
