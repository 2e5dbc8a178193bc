//! The command by which an operator pauses, resumes, approves, repairs or forgets a peer.

use super::import::load_or_new;
use super::rows::Peer;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{PeerAct, PeerFault, PeerRow, Refusal, Reply, SetPeer};
use crate::state::tables::{EntryTime, Tables};

/// Applies the command.
pub fn set(tables: &mut Tables<'_>, time: EntryTime, command: &SetPeer) -> Result<Reply, Corrupt> {
    if !(1..=limits::URI_BYTES_MAX).contains(&command.issuer.len()) {
        return Ok(Reply::Refused(Refusal::UnknownPeer));
    }
    let Some(mut peer) = load_or_new(tables, &command.issuer)? else {
        return Ok(Reply::Refused(Refusal::TooManyPeers));
    };
    let is_known = Peer::load(tables, peer.key)?.is_some();
    if !is_known && command.act() != PeerAct::Pause {
        return Ok(Reply::Refused(Refusal::UnknownPeer));
    }
    let changed = match command.act() {
        PeerAct::Pause => !std::mem::replace(&mut peer.row.is_paused, true),
        PeerAct::Resume => std::mem::replace(&mut peer.row.is_paused, false),
        PeerAct::Approve => match approve(tables, &mut peer)? {
            Some(changed) => changed,
            None => return Ok(Reply::Refused(Refusal::PeerNotApprovable)),
        },
        PeerAct::Forget => {
            forget(tables, &mut peer)?;
            true
        }
        PeerAct::Repair if peer.row.fault() != PeerFault::Unspecified => {
            return Ok(Reply::Refused(Refusal::PeerHeld));
        }
        PeerAct::Repair => repair(tables, &mut peer)?,
        PeerAct::Unspecified => return Ok(Reply::Refused(Refusal::Unspecified)),
    };
    if changed {
        peer.store(tables);
        super::note(tables, time.now, &command.issuer, &command.caller, detail_of(command.act()))?;
    }
    Ok(Reply::Done { changed })
}

const fn detail_of(act: PeerAct) -> &'static str {
    match act {
        PeerAct::Unspecified => "",
        PeerAct::Pause => "peer is paused",
        PeerAct::Resume => "peer is resumed",
        PeerAct::Approve => "peer is approved",
        PeerAct::Forget => "peer is forgotten",
        PeerAct::Repair => "copy of the peer is read again",
    }
}

/// Whether it changed anything; `None` without a fault that may be approved. A log that lost its end without
/// a new incarnation is never accepted in place: no index distinguishes its tokens from those that are issued
/// later.
fn approve(tables: &mut Tables<'_>, peer: &mut Peer) -> Result<Option<bool>, Corrupt> {
    match peer.row.fault() {
        PeerFault::Unspecified | PeerFault::PeerRolledBack => Ok(None),
        PeerFault::PeerIncarnationReused => {
            peer.row.fault = PeerFault::Unspecified.into();
            Ok(Some(true))
        }
        PeerFault::PeerRootDiffers => forget(tables, peer).map(|()| Some(true)),
        // The peer stays held until the incarnation is adopted.
        PeerFault::PeerAwaitsApproval => {
            let before = std::mem::replace(&mut peer.row.approved, peer.row.awaited.clone());
            Ok(Some(before != peer.row.awaited))
        }
    }
}

/// Deletes the copy, which is read again from its beginning. Replaced incarnations stay refused, and so do
/// the tokens of the deleted copy's incarnation that it could judge. A log that lost its end has no index
/// that distinguishes those tokens from later ones, so its incarnation stays refused as a whole.
fn forget(tables: &mut Tables<'_>, peer: &mut Peer) -> Result<(), Corrupt> {
    let (is_rolled_back, known_to) = (peer.row.is_rolled_back, peer.row.known_to.max(peer.row.floor_n));
    let incarnation = peer.begin_generation(tables)?;
    if is_rolled_back {
        peer.retire(incarnation);
    } else if !incarnation.is_empty() {
        (peer.row.forgotten, peer.row.forgotten_to) = (incarnation, known_to);
    }
    Ok(())
}

/// Deletes the rows of the copy, which are read again from the beginning of the peer's log. Whether it changed anything.
/// The peer has not changed, so its floors and the credentials above them stay: an entry that is read again covers no less
/// than before, because it is imported later. Nothing is judged until the log was read to the former position, so a log
/// that has lost its end is not accepted by this.
fn repair(tables: &mut Tables<'_>, peer: &mut Peer) -> Result<bool, Corrupt> {
    if !peer.has_copy() {
        return Ok(false);
    }
    let old = peer.row.clone();
    peer.begin_generation(tables)?;
    let new = std::mem::take(&mut peer.row);
    peer.row = PeerRow {
        incarnation: old.incarnation,
        known_to: old.known_to,
        floor_n: old.floor_n,
        void_m: old.void_m,
        complete_from: old.complete_from,
        epoch: old.epoch,
        is_repaired: true,
        ..new
    };
    Ok(true)
}
