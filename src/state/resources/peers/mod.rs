//! Peers: the copy of another fabric's ledger, and the judgement of credentials that came from it
//! (docs/design/federation.md).
//!
//! A copy is compacted like its original: one row for each fact, with the index of its entry in the peer (n) and that of
//! its import here (m). No decision uses a clock.

#[cfg(not(feature = "level-0"))]
pub(crate) mod act;
mod entries;
pub(crate) mod expiry;
#[cfg(not(feature = "level-0"))]
pub(crate) mod import;
pub(crate) mod index;
mod judge;
mod parts;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::judge::{PeerVerdict, Unjudged};
pub use self::parts::import_parts;
pub use crate::state::command::PeerAct;

use self::rows::copy_key;
#[cfg(not(feature = "level-0"))]
use super::feed::{self, FeedKind, NewFeedEvent};
use super::ledger::sums_of;
#[cfg(not(feature = "level-0"))]
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, SourceProof, View};
use crate::id::{Digest128, Incarnation, LogPosition};
use crate::limits;
#[cfg(not(feature = "level-0"))]
use crate::state::command::SetPeer;
use crate::state::command::{self, Command, ImportLedger, PeerRow, Refusal};
use crate::state::tables::{PEER, Tables, decode};
use crate::state::{Error, OnBehalf, State};
use crate::token::key_set::KeySet;
use crate::token::lineage;

/// Largest log index of a peer, in 48 bits.
pub const PEER_INDEX_MAX: u64 = (1 << 48) - 1;

/// Key of a peer: the digest of its issuer.
#[must_use]
pub fn peer_key(issuer: &str) -> Digest128 {
    lineage::fabric(issuer)
}

/// Reason for which a peer is held: its credentials are not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum PeerFault {
    /// Its log ends before the position that was read.
    RolledBack,
    /// It presented an incarnation that another one had replaced.
    IncarnationReused,
    /// Its root is not that of the copy.
    RootDiffers,
    /// Its new incarnation waits for an operator.
    AwaitsApproval,
    /// The copy on this node is not the one that was imported: its disk lost rows, or changed them.
    CopyDamaged,
}

impl PeerFault {
    const fn from_row(fault: command::PeerFault) -> Option<Self> {
        match fault {
            command::PeerFault::Unspecified => None,
            command::PeerFault::PeerIncarnationReused => Some(Self::IncarnationReused),
            command::PeerFault::PeerRootDiffers => Some(Self::RootDiffers),
            command::PeerFault::PeerRolledBack => Some(Self::RolledBack),
            command::PeerFault::PeerAwaitsApproval => Some(Self::AwaitsApproval),
        }
    }
}

impl PeerRow {
    /// Incarnation of the copy; `None` without a copy.
    #[must_use]
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.as_ref().try_into().map(Incarnation::from_bytes).ok()
    }
}

/// State of a peer and of the copy of its ledger.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Deref)]
pub struct PeerCopy {
    #[deref]
    row: PeerRow,
    /// Reason for which the peer is held, on this node or on all.
    pub fault: Option<PeerFault>,
}

impl PeerCopy {
    fn from_row(row: PeerRow) -> Self {
        Self { fault: PeerFault::from_row(row.fault()), row }
    }
}

/// Outcome of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Whether it changed anything. A response that ends before the position does not.
    pub changed: bool,
    /// The peer after it, in the state of this node. It may be held.
    pub copy: PeerCopy,
}

/// Number of entries of peers' ledgers that a command adds at most.
#[must_use]
pub fn entries_of(command: &Command) -> usize {
    match command {
        #[cfg(not(feature = "level-0"))]
        Command::ImportLedger(import) => import.entries.len(),
        _ => 0,
    }
}

/// Appends an event about a peer to the live feed; `by` is the caller.
#[cfg(not(feature = "level-0"))]
fn note(tables: &mut Tables<'_>, now: Timestamp, peer: &str, by: &str, detail: &str) -> Result<(), Corrupt> {
    let event = NewFeedEvent { kind: FeedKind::Federation, subject: peer, target: by, detail };
    feed::append(tables, now, event)
}

fn row_of(view: &dyn View, issuer: &str) -> Result<Option<PeerRow>, Corrupt> {
    view.get(PEER, peer_key(issuer).as_bytes())?.map(|row| decode(PEER, &row)).transpose()
}

/// Root and number of entries of the copy; `None` without one, or while it changes all the time.
fn root_of(view: &dyn View, issuer: &str, floor: u32) -> Result<Option<([u8; 32], u64)>, Corrupt> {
    for _ in 0..limits::LEDGER_SCAN_ATTEMPTS_MAX {
        let Some(row) = row_of(view, issuer)? else { return Ok(None) };
        let Some(incarnation) = row.incarnation() else { return Ok(None) };
        let sums = sums_of(&Tables::new(view), &copy_key(&peer_key(issuer), row.generation))?;
        // Row and sums are of the same instant.
        if row_of(view, issuer)?.as_ref() == Some(&row) {
            return Ok(Some((sums.root(&incarnation, floor), sums.count(floor))));
        }
    }
    Ok(None)
}

impl State {
    /// A peer; `None` if nothing was imported of it, nor set.
    pub fn peer_copy(&self, issuer: &str) -> Result<Option<PeerCopy>, Error> {
        let copy = row_of(self.cluster.view(), issuer)?.map(PeerCopy::from_row);
        Ok(copy.map(|copy| self.with_damage(copy)))
    }

    /// Damage concerns this node alone and is not in the replicated state.
    fn with_damage(&self, mut copy: PeerCopy) -> PeerCopy {
        let in_memory = self.cluster.machine().peers().get(&peer_key(&copy.issuer));
        let is_damaged =
            in_memory.is_some_and(|known| known.is_damaged && known.row.generation == copy.generation);
        copy.fault = copy.fault.or(is_damaged.then_some(PeerFault::CopyDamaged));
        copy
    }

    /// The root of the copy over epochs from `floor` on and the blocks in force, and the number of entries under it.
    /// `None` without a copy, and while it changes.
    pub fn peer_root(&self, issuer: &str, floor: u32) -> Result<Option<([u8; 32], u64)>, Error> {
        Ok(root_of(self.cluster.view(), issuer, floor)?)
    }

    /// Number of the present copy of a peer's ledger; 0 without one.
    #[must_use]
    pub fn peer_generation(&self, issuer: &str) -> u64 {
        self.cluster.machine().peers().get(&peer_key(issuer)).map_or(0, |copy| copy.row.generation)
    }

    /// Whether an operator has paused a peer.
    #[must_use]
    pub fn is_peer_paused(&self, issuer: &str) -> bool {
        self.cluster.machine().peers().get(&peer_key(issuer)).is_some_and(|copy| copy.row.is_paused)
    }

    /// The signing keys of the peer in the copy that the proof is about; `None` if that is replaced or deleted.
    #[must_use]
    pub fn peer_keys(&self, proof: &SourceProof) -> Option<Arc<KeySet>> {
        self.proven_copy(proof).map(|copy| copy.keys)
    }

    /// The verdict of a peer's ledger about a token of the peer with this `idx`, by the copy that the proof
    /// is about. This fabric's own revocations and blocks are checked separately.
    #[must_use]
    pub fn judge_peer_token(
        &self,
        proof: &SourceProof,
        idx: LogPosition,
        lineage: &[Digest128],
    ) -> PeerVerdict {
        judge::judge_token(self.proven_copy(proof).as_ref(), idx, lineage)
    }

    /// Whether every key that the peer had published at `idx` is known by the copy that the proof is about, or no token of
    /// that time is accepted.
    #[must_use]
    pub fn has_peer_keys_of(&self, proof: &SourceProof, idx: LogPosition) -> bool {
        let copy = self.proven_copy(proof);
        copy.is_some_and(|copy| {
            let is_read = copy.incarnation == Some(idx.incarnation) && copy.row.keys_through >= idx.index;
            is_read || copy.has_retired(&idx.incarnation)
        })
    }

    /// The same about a token of this fabric, with this log index in its `idx`, that came from a credential of the peer.
    #[must_use]
    pub fn judge_through_token(&self, proof: &SourceProof, idx: u64, lineage: &[Digest128]) -> PeerVerdict {
        judge::judge_through_token(self.proven_copy(proof).as_ref(), idx, lineage)
    }

    /// The copy in memory, unless another one has replaced the copy that the proof is about: the age of
    /// another copy is unknown.
    fn proven_copy(&self, proof: &SourceProof) -> Option<index::PeerState> {
        let source = proof.source();
        let copy = self.cluster.machine().peers().get(&source.id);
        copy.filter(|copy| copy.row.generation == source.generation)
    }

    /// Imports entries of a peer's ledger. Later parts of the same response follow only if the copy is of its incarnation
    /// afterwards.
    ///
    /// # Errors
    /// `Refusal::PeerGenerationChanged`, `Refusal::PeerEntriesMissing`, `Refusal::PeerOverQuota`,
    /// `Refusal::PeerImportMalformed`, `Refusal::TooManyPeers`, `Refusal::FeatureLevelTooLow`. Nothing was changed then.
    #[cfg(not(feature = "level-0"))]
    pub async fn import_ledger(&self, import: ImportLedger) -> Result<Imported, Error> {
        let issuer = import.issuer.clone();
        let changed = self.as_node().propose(Command::ImportLedger(import)).await?;
        let copy = self.peer_copy(&issuer)?.ok_or(Error::Refused(Refusal::UnknownPeer))?;
        Ok(Imported { changed, copy })
    }

    /// Feature level 0 imports none.
    #[cfg(feature = "level-0")]
    pub async fn import_ledger(&self, _import: ImportLedger) -> Result<Imported, Error> {
        Err(Error::Refused(Refusal::FeatureLevelTooLow))
    }
}

impl OnBehalf<'_> {
    /// Pauses, resumes, approves, repairs or forgets a peer. Returns after the barrier, as a revocation does.
    ///
    /// # Errors
    /// `Refusal::UnknownPeer`, `Refusal::PeerNotApprovable`, `Refusal::PeerHeld`, `Refusal::TooManyPeers`,
    /// `Refusal::FeatureLevelTooLow`, `Refusal::IdempotencyKeyReused`.
    #[cfg(not(feature = "level-0"))]
    pub async fn set_peer(self, issuer: &str, act: PeerAct) -> Result<PeerCopy, Error> {
        let command = SetPeer { issuer: issuer.to_owned(), act: act.into(), caller: self.name() };
        self.propose_acknowledged(Command::SetPeer(command)).await?;
        self.state.peer_copy(issuer)?.ok_or(Error::Refused(Refusal::UnknownPeer))
    }

    /// Feature level 0 has no peers.
    #[cfg(feature = "level-0")]
    pub async fn set_peer(self, _issuer: &str, _act: PeerAct) -> Result<PeerCopy, Error> {
        Err(Error::Refused(Refusal::FeatureLevelTooLow))
    }
}
