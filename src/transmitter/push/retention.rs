//! Retention of the streams: one pass over the outbox finds the excess of all of them. Each of them is paused, so that
//! its receiver sees the reason, and its oldest events are dropped.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;

use super::Shared;
use super::backlog::{Dropping, Excess};
use super::turn::Turn;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{self, EventId, Refusal, State, Stream, StreamCursor, StreamStatus};
use crate::transmitter::matching;

/// A stream beyond its retention.
pub struct StreamInExcess {
    pub stream: Arc<Stream>,
    /// The cursor at which it was. If it has moved since, nothing is dropped.
    pub cursor: Arc<StreamCursor>,
    pub excess: Excess,
}

/// A stream whose retention was enforced.
pub struct Enforced {
    pub stream_id: String,
    /// The oldest undelivered event with its elapsed time, if it was visited.
    pub oldest: Option<(EventId, Timestamp)>,
}

/// Enforces the retention of these streams. After a failure the next sweep retries.
pub async fn enforce(shared: Arc<Shared>, in_excess: Vec<StreamInExcess>) -> Vec<Enforced> {
    let begin = |StreamInExcess { stream, cursor, excess }| {
        (stream, Dropping::new(Arc::unwrap_or_clone(cursor), excess))
    };
    let mut streams: Vec<_> = in_excess.into_iter().map(begin).collect();
    if let Err(error) = find_oldest(&shared.state, &mut streams).await {
        tracing::error!(%error, "failed to read the outbox");
        return Vec::new();
    }
    let enforced = streams.into_iter().map(async |(stream, dropping)| {
        let (oldest, stream_id) = (dropping.oldest(), stream.config.stream_id.clone());
        match shared.drop_events(&stream, dropping).await {
            Ok(()) => Some(Enforced { stream_id, oldest }),
            // A worker, the receiver or a poll moved the cursor concurrently.
            Err(state::Error::Refused(Refusal::StreamChanged | Refusal::UnknownStream)) => None,
            Err(error) => {
                tracing::warn!(%error, stream_id, "failed to drop events beyond the retention of a stream");
                None
            }
        }
    });
    let enforced = stream::iter(enforced).buffer_unordered(limits::STREAMS_ENFORCED_AT_ONCE);
    enforced.filter_map(std::future::ready).collect().await
}

/// Visits events of the outbox from the earliest cursor on, until each stream has found its oldest event that stays.
async fn find_oldest(state: &State, streams: &mut [(Arc<Stream>, Dropping)]) -> Result<(), Corrupt> {
    loop {
        let next = streams.iter().filter_map(|(_, dropping)| dropping.next()).min();
        let Some(from) = next else { return Ok(()) };
        let mut turn = Turn::default();
        state.outbox(from, &mut |event| {
            let mut tested = 0;
            for (stream, dropping) in &mut *streams {
                dropping.visit(&event, |event| {
                    tested += 1;
                    matching::matches(stream, event)
                });
            }
            turn.has_capacity(tested)
        })?;
        if !turn.is_exhausted() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

impl Shared {
    /// Pauses a stream and moves its cursor past its dropped events, if there are any.
    async fn drop_events(&self, stream: &Arc<Stream>, dropping: Dropping) -> Result<(), state::Error> {
        let Some(reason) = dropping.reason(&self.limits.retention) else { return Ok(()) };
        let stream_id = &stream.config.stream_id;
        if self.state.stream_cursor(stream_id).is_none_or(|now| now.version != dropping.version()) {
            return Err(state::Error::Refused(Refusal::StreamChanged));
        }
        // The receiver sees the reason, even if it had paused the stream itself.
        if let Some(now) = self.state.stream(stream_id)
            && (now.status == StreamStatus::Enabled
                || (now.status == StreamStatus::Paused && !now.owes_update))
        {
            tracing::warn!(stream_id, reason, "stream paused");
            match self.state.pause_stream(&now, &reason).await {
                // Disabled concurrently.
                Ok(()) | Err(state::Error::Refused(Refusal::StreamNotEnabled)) => {}
                Err(error) => return Err(error),
            }
        }
        // With the filter of the scan: events of a filter that was added since are not dropped.
        let dropped = dropping.dropped();
        self.state.as_node().advance_stream(stream, dropping.into_cursor(), Vec::new()).await?;
        tracing::warn!(stream_id, dropped, "dropped events beyond the retention of a stream");
        self.metrics.stream_events.add(["dropped"], dropped);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::transmitter::push::tests::Harness;

    /// Regression: a turn of the dispatcher read a step of the outbox for each stream, half a second with a thousand.
    #[tokio::test]
    async fn pass_over_the_outbox_yields_after_a_few_matches() {
        let mut harness = Harness::still().await;
        let streams = usize::try_from(limits::STREAMS_PER_CALLER_MAX).expect("small");
        let mut in_excess = Vec::new();
        for _ in 0..streams {
            let stream_id = harness.stream(None).await;
            let stream = harness.node.state.stream(&stream_id).expect("the stream");
            let cursor = harness.node.state.stream_cursor(&stream_id).expect("its cursor");
            in_excess.push((stream, Dropping::new(cursor.as_ref().clone(), Excess::Events(59))));
        }
        harness.append(&["a"; 60]).await;
        let mut turns = 1;
        let mut pass = Box::pin(find_oldest(&harness.node.state, &mut in_excess));
        while pass.as_mut().now_or_never().is_none() {
            turns += 1;
        }
        drop(pass);
        assert_eq!(turns, 60_usize.div_ceil(limits::OUTBOX_MATCHES_PER_STEP.div_ceil(streams)));
        for (_, dropping) in in_excess {
            assert_eq!((dropping.dropped(), dropping.next()), (59, None), "the last one stays");
        }
        harness.end().await;
    }
}
