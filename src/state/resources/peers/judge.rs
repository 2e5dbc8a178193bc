//! The judgement of credentials that came from a peer, by the copy of its ledger: two comparisons of integers of one log,
//! and no clock (docs/design/federation.md §8.4).
//!
//! The fabric's own revocations and blocks, and the source lease, are checked separately.

use super::PeerFault;
use super::index::PeerState;
use crate::breaks::{self, Break};
use crate::id::{Digest128, LogPosition};

/// Verdict about a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerVerdict {
    /// The peer's ledger does not refuse it.
    Clear,
    /// It is revoked or blocked, or too old for the copy to know.
    Revoked,
    /// An operator has paused the peer.
    Paused,
    /// The state cannot be known.
    Unjudged(Unjudged),
}

/// Reason why a credential is not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unjudged {
    /// There is no copy, or it was not read to its end yet.
    Joining,
    /// The peer is held.
    Held(PeerFault),
    /// The credential is of an incarnation that was not read.
    UnknownIncarnation,
}

/// The copy, if credentials may be judged by it.
fn usable(copy: Option<&PeerState>) -> Result<&PeerState, PeerVerdict> {
    let joining = PeerVerdict::Unjudged(Unjudged::Joining);
    let copy = copy.ok_or(joining)?;
    if copy.row.is_paused {
        return Err(PeerVerdict::Paused);
    }
    if let Some(fault) = PeerFault::from_row(copy.row.fault()) {
        return Err(PeerVerdict::Unjudged(Unjudged::Held(fault)));
    }
    if copy.is_damaged {
        return Err(PeerVerdict::Unjudged(Unjudged::Held(PeerFault::CopyDamaged)));
    }
    if copy.incarnation.is_some() && copy.row.is_complete { Ok(copy) } else { Err(joining) }
}

fn verdict(is_refused: bool) -> PeerVerdict {
    if is_refused && !breaks::active(Break::IgnorePeerLedger) {
        PeerVerdict::Revoked
    } else {
        PeerVerdict::Clear
    }
}

/// The verdict about a token of the peer that carries `idx`.
#[must_use]
pub fn judge_token(copy: Option<&PeerState>, idx: LogPosition, lineage: &[Digest128]) -> PeerVerdict {
    let copy = match usable(copy) {
        Ok(copy) => copy,
        Err(verdict) => return verdict,
    };
    if copy.has_retired(&idx.incarnation) {
        return PeerVerdict::Revoked;
    }
    if copy.incarnation != Some(idx.incarnation) {
        return PeerVerdict::Unjudged(Unjudged::UnknownIncarnation);
    }
    verdict(copy.blocks(lineage) || copy.covers_n(lineage, idx.index))
}

/// The verdict about a token of this fabric, with this log index in its `idx`, that came from a credential of the peer.
#[must_use]
pub fn judge_through_token(copy: Option<&PeerState>, idx: u64, lineage: &[Digest128]) -> PeerVerdict {
    match usable(copy) {
        Ok(copy) => verdict(copy.blocks(lineage) || copy.covers_m(lineage, idx)),
        Err(verdict) => verdict,
    }
}
