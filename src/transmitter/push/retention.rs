//! Keeps one stream within what it may hold: pauses it, so that its receiver can see why, and drops the oldest
//! of its events.

use std::sync::Arc;

use super::Shared;
use super::backlog::{Dropping, Excess};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{self, EventId, Stream, StreamCursor, StreamStatus};
use crate::transmitter::matching;

/// What is to be done.
pub struct Holding {
    /// What all streams share.
    pub shared: Arc<Shared>,
    /// For which stream.
    pub stream: Arc<Stream>,
    /// What is too much.
    pub excess: Excess,
}

/// What was done.
pub struct Held {
    /// For which stream.
    pub stream_id: String,
    /// The oldest event that still waits, and when it came, if it was seen.
    pub oldest: Option<(EventId, Timestamp)>,
}

/// Why it was not.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    State(#[from] state::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl Holding {
    /// Does it. What could not be done is done at the next look.
    pub async fn enforce(self) -> Held {
        let stream_id = self.stream.config.stream_id.clone();
        let oldest = self.drop_oldest().await.unwrap_or_else(|error| {
            // Its worker, its receiver or a poll was at it.
            if !matches!(error, Error::State(state::Error::StreamChanged | state::Error::UnknownStream)) {
                tracing::warn!(%error, stream_id, "drop what a stream may not hold");
            }
            None
        });
        Held { stream_id, oldest }
    }

    async fn drop_oldest(&self) -> Result<Option<(EventId, Timestamp)>, Error> {
        let state = &self.shared.state;
        let stream_id = &self.stream.config.stream_id;
        let Some(cursor) = state.stream_cursor(stream_id) else { return Ok(None) };
        let (dropping, first) = self.look_at_oldest(cursor.as_ref().clone()).await?;
        let (cursor, dropped, oldest) = dropping.end();
        let Some(since) = first.filter(|_| dropped > 0) else { return Ok(oldest) };
        // Its receiver can see why, also if it had paused the stream itself.
        if let Some(stream) = state.stream(stream_id)
            && (stream.status == StreamStatus::Enabled
                || (stream.status == StreamStatus::Paused && !stream.owes_update))
        {
            self.pause(&stream, since).await?;
        }
        // By the filter that was looked by: what was added since is not passed.
        state.as_node().advance_stream(&self.stream, cursor, Vec::new()).await?;
        tracing::warn!(stream_id, dropped, "events of a stream dropped");
        self.shared.metrics.stream_events("dropped", dropped);
        Ok(oldest)
    }

    /// Looks at the oldest events until one may stay; and when the first of them came, in log time.
    async fn look_at_oldest(&self, cursor: StreamCursor) -> Result<(Dropping, Option<Timestamp>), Corrupt> {
        let mut from = cursor.next;
        let mut dropping = Dropping::new(cursor, self.excess);
        let (mut first, mut is_over) = (None, false);
        while !is_over {
            let mut rows = 0;
            self.shared.state.outbox(from, &mut |event| {
                let is_for_it = matching::is_for(&self.stream, &event);
                if is_for_it {
                    first.get_or_insert(event.at);
                }
                is_over = !dropping.look(event.id, event.elapsed, is_for_it);
                from = event.id.next();
                rows += 1;
                !is_over && rows < limits::OUTBOX_ROWS_PER_TURN
            })?;
            is_over |= rows < limits::OUTBOX_ROWS_PER_TURN;
            tokio::task::yield_now().await;
        }
        Ok((dropping, first))
    }

    async fn pause(&self, stream: &Stream, since: Timestamp) -> Result<(), Error> {
        let holds = &self.shared.limits.holds;
        let what = match self.excess {
            Excess::Events(_) => format!("more than {} events wait", holds.events_max),
            Excess::Age(_) => {
                format!("events wait for more than {}", humantime::format_duration(holds.age_max))
            }
        };
        let reason = format!("{what}, the oldest since {}; the oldest are dropped", since.to_rfc3339());
        tracing::warn!(stream_id = self.stream.config.stream_id, reason, "stream paused");
        match self.shared.state.pause_stream(stream, &reason).await {
            // It is disabled: then somebody else was first.
            Ok(()) | Err(state::Error::StreamNotEnabled) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
