//! Acknowledgements to a peer that may wait for them: no node of this fabric serves a request from a state without an entry
//! up to a position of the peer's log.
//!
//! They are calls of their own, because the call that reads the ledger is held. Their response is not used,
//! so it gives no lease. Each call that reads the ledger repeats the last one: the leader of the peer forgets
//! it at the end of its term.

use std::future::Future;

use tokio::sync::watch;

use super::{Origin, PATH, Puller};
use crate::federation::engine::Call;
use crate::federation::wire::{SyncRequest, VERSION};
use crate::id::LogPosition;
use crate::limits;

/// Everything up to a position of the peer's log that is imported, and applied on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Imported {
    /// Number of the copy. Another one may have forgotten what was enforced by the one before.
    pub(super) generation: u64,
    pub(super) to: LogPosition,
    /// Number of the endpoint that answered last.
    pub(super) endpoint: usize,
}

/// Sends an acknowledgement of each position once, after the barrier: until then a node of this fabric may
/// serve a request from a state without its entries. From then on it is in `enforced`, for the calls that
/// repeat it. One that failed is sent again after the next response of the peer, to the endpoint that gave
/// it. Ends when nothing is imported any more.
pub(super) async fn acknowledge<B, S>(
    mut imported: watch::Receiver<Option<Imported>>,
    enforced: &watch::Sender<Option<Imported>>,
    barrier: impl Fn() -> B,
    send: impl Fn(Imported) -> S,
) where
    B: Future<Output = bool>,
    S: Future<Output = bool>,
{
    let mut acknowledged = None;
    while imported.changed().await.is_ok() {
        let Some(now) = *imported.borrow_and_update() else { continue };
        let read_to = Some((now.generation, now.to));
        // The position is read first: the barrier is then that of a state which has it.
        if read_to != acknowledged && barrier().await {
            enforced.send_replace(Some(now));
            if send(now).await {
                acknowledged = read_to;
            }
        }
    }
}

/// The acknowledgement that a call repeats: of the copy that it continues, and of nothing after its position.
pub(super) fn repeated(enforced: Option<Imported>, call: &Call) -> Option<u64> {
    let enforced = enforced.filter(|enforced| enforced.generation == call.known.generation)?;
    let since = call.expected.since.filter(|since| since.incarnation == enforced.to.incarnation)?;
    Some(enforced.to.index).filter(|index| *index <= since.index)
}

impl Puller {
    /// Whether the peer has received the acknowledgement.
    pub(super) async fn send_enforced(&self, origin: &Origin, imported: Imported) -> bool {
        let Origin { peer, client } = origin;
        let request = enforced(imported.to);
        let (Some(endpoint), Ok(body)) =
            (peer.endpoints.get(imported.endpoint), serde_json::to_vec(&request))
        else {
            return false;
        };
        let (response_timeout, most) = (limits::SYNC_RESPONSE_WAIT, limits::SYNC_RESPONSE_BYTES_MAX);
        match client.post(endpoint, PATH, body.into(), response_timeout, most).await {
            Ok(response) if response.status == 200 => true,
            Ok(response) => {
                tracing::debug!(peer = peer.name, status = response.status, "acknowledgement refused");
                false
            }
            Err(error) => {
                tracing::debug!(peer = peer.name, %error, "acknowledgement not received");
                false
            }
        }
    }
}

fn enforced(to: LogPosition) -> SyncRequest {
    SyncRequest {
        version: VERSION,
        since: Some(to.to_string()),
        floor_epoch: None,
        hold_ms: 0,
        // Nothing of the response is used.
        limit: Some(1),
        keys: None,
        cursor: None,
        honours_lease: true,
        enforced: Some(to.index),
    }
}

#[cfg(test)]
mod tests;
