//! One push of one event: given a place, read, signed, sent, judged.

use std::sync::Arc;

use super::Shared;
use super::response::{Unsent, Verdict};
use crate::outbound::client::PushPermit;
use crate::state::{EventId, OutboxEvent, Stream};

/// What is to be pushed where.
pub struct Delivery {
    /// What all pushes share.
    pub shared: Arc<Shared>,
    /// To whom.
    pub stream: Arc<Stream>,
    /// Which event.
    pub id: EventId,
    /// Whose answer it will be.
    pub epoch: u64,
}

/// What came of it.
pub struct Pushed {
    /// Which event.
    pub id: EventId,
    /// As it was when the push began.
    pub epoch: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a push ended.
pub enum Outcome {
    /// The event was sent, or its receiver is none that is sent to.
    Answered(Box<OutboxEvent>, Verdict),
    /// The event was not sent, which says nothing of its receiver.
    Unsent(Unsent),
    /// The event is not in the outbox any more.
    Gone,
}

impl Delivery {
    /// Pushes the event.
    pub async fn push(self) -> Pushed {
        let outcome = self.outcome().await.unwrap_or_else(Outcome::Unsent);
        match &outcome {
            Outcome::Answered(_, verdict) => self.shared.metrics.push(verdict.result()),
            Outcome::Unsent(unsent) => self.shared.metrics.push(unsent.result()),
            Outcome::Gone => {}
        }
        Pushed { id: self.id, epoch: self.epoch, outcome }
    }

    async fn outcome(&self) -> Result<Outcome, Unsent> {
        let Self { shared, stream, id, .. } = self;
        // A stream that delivers nothing takes no place of others. It is judged again when the push begins.
        let fresh = shared.state.fresh().await.map_err(|_| Unsent::Stale)?;
        if let Some(obstacle) = shared.obstacles.of(&fresh, stream) {
            return Err(Unsent::Withheld(obstacle));
        }
        // Before the event is read: those that wait are many, and may be large.
        let place = place_for(shared, stream).await?;
        let event = shared.event(*id).map_err(|error| {
            tracing::error!(%error, %id, "read the outbox");
            Unsent::Unread
        })?;
        let Some(event) = event else { return Ok(Outcome::Gone) };
        let verdict = match place {
            Some(place) => {
                shared.deliver(place, stream, |passed| shared.sets.make(stream, &event, passed)).await?
            }
            None => Verdict::address_refused(),
        };
        Ok(Outcome::Answered(Box::new(event), verdict))
    }
}

/// Pushes a verification event: whether the receiver takes anything from this fabric.
pub async fn verify(shared: Arc<Shared>, stream: Arc<Stream>, drawn: u128) -> Result<Verdict, Unsent> {
    let at = shared.state.cluster_time();
    let verdict = match place_for(&shared, &stream).await? {
        // One `iat` under one `jti`, also by another key.
        Some(place) => {
            let make = |passed| shared.sets.verification(&stream, drawn, at, passed);
            shared.deliver(place, &stream, make).await?
        }
        None => Verdict::address_refused(),
    };
    shared.metrics.push(verdict.result());
    Ok(verdict)
}

/// A place for a push to the receiver of a stream; `None` if its address is none that is pushed to.
async fn place_for(shared: &Shared, stream: &Stream) -> Result<Option<PushPermit>, Unsent> {
    let url = stream.config.endpoint_url.as_deref().map(|url| shared.client.guard().push_url(url));
    let Some(Ok(url)) = url else { return Ok(None) };
    let place = shared.client.push_permit(url, &stream.config.owner).await;
    place.map(Some).map_err(|_| Unsent::NoPlace)
}
