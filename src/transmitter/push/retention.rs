//! Retention of one stream: pauses it, so that its receiver sees the reason, and drops its oldest events.

use std::sync::Arc;

use super::Shared;
use super::backlog::{Dropping, Excess};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{self, EventId, Stream, StreamCursor, StreamStatus};
use crate::transmitter::matching;

/// An enforcement.
pub struct Enforcement {
    pub shared: Arc<Shared>,
    pub stream: Arc<Stream>,
    pub excess: Excess,
}

/// Result of an enforcement.
pub struct Enforced {
    pub stream_id: String,
    /// The oldest undelivered event with its time, if it was visited.
    pub oldest: Option<(EventId, Timestamp)>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    State(#[from] state::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

impl Enforcement {
    /// Enforces the retention. After a failure the next sweep retries.
    pub async fn enforce(self) -> Enforced {
        let stream_id = self.stream.config.stream_id.clone();
        let oldest = self.drop_oldest().await.unwrap_or_else(|error| {
            // A worker, the receiver or a poll moved the cursor concurrently.
            if !matches!(error, Error::State(state::Error::StreamChanged | state::Error::UnknownStream)) {
                tracing::warn!(%error, stream_id, "failed to drop events beyond the retention of a stream");
            }
            None
        });
        Enforced { stream_id, oldest }
    }

    async fn drop_oldest(&self) -> Result<Option<(EventId, Timestamp)>, Error> {
        let state = &self.shared.state;
        let stream_id = &self.stream.config.stream_id;
        let Some(cursor) = state.stream_cursor(stream_id) else { return Ok(None) };
        let (dropping, first) = self.scan_oldest(cursor.as_ref().clone()).await?;
        let (cursor, dropped, oldest) = dropping.finish();
        let Some(since) = first.filter(|_| dropped > 0) else { return Ok(oldest) };
        // The receiver sees the reason, even if it had paused the stream itself.
        if let Some(stream) = state.stream(stream_id)
            && (stream.status == StreamStatus::Enabled
                || (stream.status == StreamStatus::Paused && !stream.owes_update))
        {
            self.pause(&stream, since).await?;
        }
        // With the filter of the scan: events of a filter that was added since are not dropped.
        state.as_node().advance_stream(&self.stream, cursor, Vec::new()).await?;
        tracing::warn!(stream_id, dropped, "dropped events beyond the retention of a stream");
        self.shared.metrics.stream_events("dropped", dropped);
        Ok(oldest)
    }

    /// Visits the oldest events until one stays; returns the log time of the first too.
    async fn scan_oldest(&self, cursor: StreamCursor) -> Result<(Dropping, Option<Timestamp>), Corrupt> {
        let mut from = cursor.next;
        let mut dropping = Dropping::new(cursor, self.excess);
        let (mut first, mut is_done) = (None, false);
        while !is_done {
            let mut rows = 0;
            self.shared.state.outbox(from, &mut |event| {
                let matches = matching::matches(&self.stream, &event);
                if matches {
                    first.get_or_insert(event.at);
                }
                is_done = !dropping.visit(event.id, event.elapsed, matches);
                from = event.id.next();
                rows += 1;
                !is_done && rows < limits::OUTBOX_ROWS_PER_STEP
            })?;
            is_done |= rows < limits::OUTBOX_ROWS_PER_STEP;
            tokio::task::yield_now().await;
        }
        Ok((dropping, first))
    }

    async fn pause(&self, stream: &Stream, since: Timestamp) -> Result<(), Error> {
        let retention = &self.shared.limits.retention;
        let excess = match self.excess {
            Excess::Events(_) => format!("more than {} events wait", retention.events_max),
            Excess::Age(_) => {
                format!("events wait for more than {}", humantime::format_duration(retention.age_max))
            }
        };
        let reason = format!("{excess}, the oldest since {}; the oldest are dropped", since.to_rfc3339());
        tracing::warn!(stream_id = self.stream.config.stream_id, reason, "stream paused");
        match self.shared.state.pause_stream(stream, &reason).await {
            // Disabled concurrently.
            Ok(()) | Err(state::Error::StreamNotEnabled) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
