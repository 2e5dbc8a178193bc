//! One attempt to push one event: permit, read, sign, send, classify.

use std::sync::Arc;

use super::Shared;
use super::response::{PushResponse, Unsent};
use crate::outbound::client::PushPermit;
use crate::state::{EventId, OutboxEvent, Stream};

pub struct Attempt {
    pub shared: Arc<Shared>,
    pub stream: Arc<Stream>,
    pub id: EventId,
    /// The worker's epoch: an outcome of an earlier epoch is ignored.
    pub epoch: u64,
}

/// A completed attempt.
pub struct AttemptResult {
    pub id: EventId,
    /// The epoch at its start.
    pub epoch: u64,
    pub outcome: AttemptOutcome,
}

pub enum AttemptOutcome {
    /// The event was sent, or its endpoint is not allowed.
    Answered(Box<OutboxEvent>, PushResponse),
    /// The event was not sent; no statement about the receiver.
    Unsent(Unsent),
    /// The event is no longer in the outbox.
    Missing,
}

impl Attempt {
    pub async fn push(self) -> AttemptResult {
        let outcome = self.outcome().await.unwrap_or_else(AttemptOutcome::Unsent);
        match &outcome {
            AttemptOutcome::Answered(_, response) => self.shared.metrics.pushes.inc([response.result()]),
            AttemptOutcome::Unsent(unsent) => self.shared.metrics.pushes.inc([unsent.result()]),
            AttemptOutcome::Missing => {}
        }
        AttemptResult { id: self.id, epoch: self.epoch, outcome }
    }

    async fn outcome(&self) -> Result<AttemptOutcome, Unsent> {
        let Self { shared, stream, id, .. } = self;
        // A stream that delivers nothing must not occupy permits. Checked again right before the push.
        let fresh = shared.state.fresh().await.map_err(|_| Unsent::Stale)?;
        if let Some(obstacle) = shared.obstacles.find(&fresh, stream) {
            return Err(Unsent::Withheld(obstacle));
        }
        // Before the event is read: many attempts queue here, and events may be large.
        let permit = permit_for(shared, stream).await?;
        let event = shared.event(*id).map_err(|error| {
            tracing::error!(%error, %id, "failed to read the outbox");
            Unsent::Unread
        })?;
        let Some(event) = event else { return Ok(AttemptOutcome::Missing) };
        let response = match permit {
            Some(permit) => {
                shared.deliver(permit, stream, |elapsed| shared.sets.build(stream, &event, elapsed)).await?
            }
            None => PushResponse::address_refused(),
        };
        Ok(AttemptOutcome::Answered(Box::new(event), response))
    }
}

/// Pushes a verification event, to find out whether the receiver accepts any event of this fabric.
pub async fn verify(shared: Arc<Shared>, stream: Arc<Stream>, nonce: u128) -> Result<PushResponse, Unsent> {
    let at = shared.state.cluster_time();
    let response = match permit_for(&shared, &stream).await? {
        // One `iat` per `jti`, whichever key signs.
        Some(permit) => {
            let build = |elapsed| shared.sets.verification(&stream, nonce, at, elapsed);
            shared.deliver(permit, &stream, build).await?
        }
        None => PushResponse::address_refused(),
    };
    shared.metrics.pushes.inc([response.result()]);
    Ok(response)
}

/// Permit for a push to the receiver of a stream; `None` if its endpoint is not allowed.
async fn permit_for(shared: &Shared, stream: &Stream) -> Result<Option<PushPermit>, Unsent> {
    let url = stream.config.endpoint_url.as_deref().map(|url| shared.client.guard().push_url(url));
    let Some(Ok(url)) = url else { return Ok(None) };
    let permit = shared.client.push_permit(url, &stream.config.owner).await;
    permit.map(Some).map_err(|_| Unsent::NoPermit)
}
