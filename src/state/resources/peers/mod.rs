//! Peers: the copy of another fabric's ledger, and the judgement of credentials that came from it
//! (docs/design/federation.md).
//!
//! A copy is compacted like its original: one row for each fact, with the index of its entry in the peer (n) and that of
//! its import here (m). No decision uses a clock.

use crate::id::{Digest128, Incarnation};
use crate::state::command::ImportLedger;
use crate::state::{Error, OnBehalf, State};
use crate::token::lineage;

/// Key of a peer: the digest of its issuer.
#[must_use]
pub fn peer_key(issuer: &str) -> Digest128 {
    lineage::fabric(issuer)
}

/// Reason for which a peer is held: its credentials are not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// Its log ends before the position that was read.
    RolledBack,
    /// It presented an incarnation that another one had replaced.
    IncarnationReused,
    /// Its root is not that of the copy.
    RootDiffers,
    /// Its new incarnation waits for an operator.
    AwaitsApproval,
}

impl PeerFault {
    /// The text on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RolledBack => "rolled_back",
            Self::IncarnationReused => "incarnation_reused",
            Self::RootDiffers => "root_differs",
            Self::AwaitsApproval => "awaits_approval",
        }
    }
}

/// State of a peer and of the copy of its ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct PeerCopy {
    /// `iss` of the peer.
    pub issuer: String,
    /// Number of the copy, which an import names.
    pub generation: u64,
    /// Incarnation of the copy; `None` without a copy.
    pub incarnation: Option<Incarnation>,
    /// Every entry up to this log index of the peer is imported.
    pub position: u64,
    /// The newest entry that is not remembered, by its log index in the peer.
    pub floor_n: u64,
    /// The same by the log index of its import.
    pub floor_m: u64,
    /// Every through-token below it is void.
    pub void_m: u64,
    /// Epoch of the peer in its last response.
    pub epoch: u32,
    /// The first epoch of which no entry is forgotten here.
    pub complete_from: u32,
    /// Tag of the peer's key set; empty without keys.
    pub keys_etag: String,
    /// Reason for which the peer is held.
    pub fault: Option<PeerFault>,
    /// Whether its credentials are refused.
    pub is_paused: bool,
    /// Number of entries.
    pub entries: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Whether the copy was read to an end of the peer's log since it was begun.
    pub is_complete: bool,
}

/// Decision of an operator about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAct {
    /// Its credentials are refused; its ledger is imported.
    Pause,
    /// Ends a pause.
    Resume,
    /// Accepts the fault: its new incarnation is adopted, or its ledger read again from the beginning.
    Approve,
    /// Deletes its copy. Every through-token of before is void.
    Forget,
}

/// Outcome of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Whether it changed anything. A response that ends before the position does not.
    pub changed: bool,
    /// The peer after it, in the state of this node. It may be held.
    pub copy: PeerCopy,
}

impl State {
    /// A peer; `None` if nothing was imported of it.
    pub fn peer_copy(&self, issuer: &str) -> Result<Option<PeerCopy>, Error>;

    /// The root of the copy over epochs from `floor` on and the blocks in force, and the number of entries under it.
    /// `None` without a copy.
    pub fn peer_root(&self, issuer: &str, floor: u32) -> Result<Option<([u8; 32], u64)>, Error>;

    /// The peer's signing keys; `None` without a copy.
    pub fn peer_keys(&self, issuer: &str) -> Option<Arc<KeySet>>;

    /// Imports entries of a peer's ledger.
    ///
    /// # Errors
    /// [`Error::PeerGenerationChanged`], [`Error::PeerEntriesMissing`], [`Error::PeerOverQuota`],
    /// [`Error::PeerImportMalformed`], [`Error::TooManyPeers`], [`Error::FeatureLevelTooLow`]. Nothing was changed then.
    pub async fn import_ledger(&self, import: ImportLedger) -> Result<Imported, Error>;
}

impl OnBehalf<'_> {
    /// Pauses, resumes, approves or forgets a peer.
    ///
    /// # Errors
    /// [`Error::UnknownPeer`], [`Error::PeerNotApprovable`], [`Error::TooManyPeers`], [`Error::FeatureLevelTooLow`].
    pub async fn set_peer(self, issuer: &str, act: PeerAct) -> Result<PeerCopy, Error>;
}
