//! What is counted of streams and of the live feed.

use std::time::Duration;

use super::{Counted, Metrics};

impl Metrics {
    /// So many tokens were `returned` to a poll, `acknowledged` by one, or `refused`.
    pub fn polled_sets(&self, result: &'static str, sets: usize) {
        self.polled_sets.with_label_values(&[result]).inc_by(u64::try_from(sets).unwrap_or(u64::MAX));
    }

    /// A poll waits; it waits no more when the answer is dropped.
    #[must_use]
    pub fn poll_waits(&self) -> Counted {
        self.polls_waiting.inc();
        Counted(self.polls_waiting.clone())
    }

    /// How many streams have this status.
    pub fn set_streams(&self, status: &'static str, streams: usize) {
        self.streams.with_label_values(&[status]).set(i64::try_from(streams).unwrap_or(i64::MAX));
    }

    /// It is over with so many events on streams: for example `delivered`.
    pub fn stream_events(&self, result: &'static str, events: u64) {
        self.stream_events.with_label_values(&[result]).inc_by(events);
    }

    /// How many events wait for all streams together, and for the one for which most do.
    pub fn set_stream_backlog(&self, all: u64, largest: u64) {
        for (of, events) in [("all", all), ("largest", largest)] {
            self.stream_backlog.with_label_values(&[of]).set(i64::try_from(events).unwrap_or(i64::MAX));
        }
    }

    /// A push ended, for example `delivered`.
    pub fn push(&self, result: &'static str) {
        self.pushes.with_label_values(&[result]).inc();
    }

    /// A push was answered, or failed, after `duration`.
    pub fn push_took(&self, duration: Duration) {
        self.push_durations.with_label_values::<&str>(&[]).observe(duration.as_secs_f64());
    }

    /// Somebody reads the live feed, until the answer is dropped.
    #[must_use]
    pub fn event_reader(&self) -> Counted {
        self.event_readers.inc();
        Counted(self.event_readers.clone())
    }

    /// A reader of the live feed was cut off, for example because it was too `slow`.
    pub fn event_reader_dropped(&self, reason: &'static str) {
        self.event_readers_dropped.with_label_values(&[reason]).inc();
    }
}
