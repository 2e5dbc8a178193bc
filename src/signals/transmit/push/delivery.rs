//! One push of one event: read, signed, sent, judged.

use std::sync::Arc;

use super::Shared;
use super::verdict::Verdict;
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
    /// The event was sent, or could not be.
    Answered(Box<OutboxEvent>, Verdict),
    /// The event is not in the outbox any more.
    Gone,
    /// The event could not be read.
    Unread,
}

impl Delivery {
    /// Pushes the event.
    pub async fn push(self) -> Pushed {
        let Self { shared, stream, id, epoch } = self;
        let outcome = match shared.event(id) {
            Ok(None) => Outcome::Gone,
            Ok(Some(event)) => {
                let verdict = shared.deliver(&stream, &event).await;
                shared.metrics.push(verdict.result());
                Outcome::Answered(Box::new(event), verdict)
            }
            Err(error) => {
                tracing::error!(%error, %id, "read the outbox");
                Outcome::Unread
            }
        };
        Pushed { id, epoch, outcome }
    }
}
