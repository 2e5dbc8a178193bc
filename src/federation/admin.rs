//! Peers as operators see and control them. The state of a peer follows from its copy and the time since it was heard, and
//! from nothing that is recorded apart from them.

use std::sync::Arc;
use std::time::Duration;

use super::peers::Peer;
use super::{Error, Federation, LastCall, Report};
use crate::id::{Digest128, LogPosition};
use crate::state::{CallContext, PeerAct, PeerCopy, Source, peer_key};

/// State of a peer whose ledger is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum PeerState {
    /// Nothing is read from it.
    NotRead,
    /// Its ledger was not read to its end yet.
    Joining,
    /// It was heard so recently that this node may decide by the copy of its ledger.
    Live,
    /// It was not heard for too long.
    Stale,
    /// An operator must decide.
    Held,
    /// An operator has paused it.
    Paused,
}

/// A peer, as this node sees it.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its configuration.
    pub peer: Arc<Peer>,
    pub state: PeerState,
    /// The copy of its ledger.
    pub copy: Option<PeerCopy>,
    /// Time since the last call of which this node knows that its response is applied.
    pub heard_ago: Option<Duration>,
    /// The calls of this node, if it leads.
    pub report: Option<Report>,
    /// The last call of the peer to this node, and the time since.
    pub asked: Option<(LastCall, Duration)>,
    /// The log position from before which the peer serves no request any more, as it stated; on the leader only.
    pub acknowledged: Option<LogPosition>,
}

impl PeerStatus {
    /// Position of the copy in the peer's log.
    #[must_use]
    pub fn position(&self) -> Option<LogPosition> {
        let copy = self.copy.as_ref()?;
        Some(LogPosition { incarnation: copy.incarnation()?, index: copy.position })
    }
}

/// The verb of a request about a peer.
#[must_use]
pub fn act_of(verb: &str) -> Option<PeerAct> {
    match verb {
        "pause" => Some(PeerAct::Pause),
        "resume" => Some(PeerAct::Resume),
        "approve" => Some(PeerAct::Approve),
        "forget" => Some(PeerAct::Forget),
        "repair" => Some(PeerAct::Repair),
        _ => None,
    }
}

impl Federation {
    /// The peers as this node sees them, in the order of the configuration.
    ///
    /// # Errors
    /// [`Error::NotConfigured`], [`Error::State`].
    pub fn statuses(&self) -> Result<Vec<PeerStatus>, Error> {
        if !self.parts.peers.is_configured() {
            return Err(Error::NotConfigured);
        }
        self.parts.peers.iter().map(|peer| self.status(peer)).collect()
    }

    /// A peer by name.
    ///
    /// # Errors
    /// [`Error::NotConfigured`], [`Error::UnknownPeer`].
    pub fn peer(&self, name: &str) -> Result<&Arc<Peer>, Error> {
        if !self.parts.peers.is_configured() {
            return Err(Error::NotConfigured);
        }
        self.parts.peers.by_name(name).ok_or(Error::UnknownPeer)
    }

    /// Pauses, resumes, approves, repairs or forgets a peer.
    ///
    /// # Errors
    /// [`Error::State`].
    pub async fn set_peer(&self, peer: &Peer, act: PeerAct, caller: &CallContext) -> Result<(), Error> {
        self.parts.state.on_behalf_of(caller).set_peer(&peer.issuer, act).await?;
        Ok(())
    }

    /// Whether the credentials of a peer are refused although no operator has paused it, or a peer names a position beyond the
    /// end of our log.
    pub fn lacks_a_peer(&self) -> bool {
        if self.calls.are_ahead(self.parts.clock.boot()) {
            return true;
        }
        let is_well = |status: PeerStatus| {
            matches!(status.state, PeerState::NotRead | PeerState::Live | PeerState::Paused)
        };
        self.parts.peers.iter().any(|peer| !self.status(peer).is_ok_and(is_well))
    }

    /// A peer, as this node sees it.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn status(&self, peer: &Arc<Peer>) -> Result<PeerStatus, Error> {
        let copy = self.parts.state.peer_copy(&peer.issuer)?;
        let id = peer_key(&peer.issuer);
        let source = copy.as_ref().map(|copy| Source { id, generation: copy.generation });
        let heard_ago = source.and_then(|source| self.parts.state.cluster().source_heard(source));
        let asked = self.calls.last(&peer.issuer);
        let now = self.parts.clock.boot();
        Ok(PeerStatus {
            state: state_of(peer, copy.as_ref(), heard_ago),
            heard_ago,
            report: self.parts.reports.of(&peer.issuer),
            asked: asked.map(|asked| (asked, now.saturating_sub(asked.at))),
            acknowledged: self.acknowledged(id),
            peer: Arc::clone(peer),
            copy,
        })
    }

    fn acknowledged(&self, id: Digest128) -> Option<LogPosition> {
        let index = self.parts.state.enforced_by(id)?;
        Some(LogPosition { incarnation: self.incarnation().ok()?, index })
    }

    /// Refuses a peer that an operator has paused.
    pub(super) fn check_not_paused(&self, peer: &Peer) -> Result<(), Error> {
        let copy = self.parts.state.peer_copy(&peer.issuer)?;
        if copy.is_some_and(|copy| copy.is_paused) { Err(Error::Paused) } else { Ok(()) }
    }
}

fn state_of(peer: &Peer, copy: Option<&PeerCopy>, heard_ago: Option<Duration>) -> PeerState {
    let is_heard = heard_ago.is_some_and(|ago| ago < peer.lease());
    match copy {
        Some(copy) if copy.is_paused => PeerState::Paused,
        _ if !peer.accept => PeerState::NotRead,
        Some(copy) if copy.fault.is_some() => PeerState::Held,
        Some(copy) if copy.is_complete && is_heard => PeerState::Live,
        Some(copy) if copy.is_complete => PeerState::Stale,
        Some(_) | None => PeerState::Joining,
    }
}
