//! One push of one event: given a place, read, signed, sent, judged.

use std::sync::Arc;

use super::Shared;
use super::verdict::{Unsent, Verdict};
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
        let url = stream.config.endpoint_url.as_deref().map(|url| shared.client.guard().push_url(url));
        // Before the event is read: those that wait are many, and may be large.
        let place = match url {
            Some(Ok(url)) => {
                let place = shared.client.push_place(url, &stream.config.owner).await;
                Some(place.map_err(|_| Unsent::NoPlace)?)
            }
            _ => None,
        };
        let event = shared.event(*id).map_err(|error| {
            tracing::error!(%error, %id, "read the outbox");
            Unsent::Unread
        })?;
        let Some(event) = event else { return Ok(Outcome::Gone) };
        let verdict = match place {
            Some(place) => shared.deliver(place, stream, &event).await?,
            None => Verdict::address_refused(),
        };
        Ok(Outcome::Answered(Box::new(event), verdict))
    }
}
