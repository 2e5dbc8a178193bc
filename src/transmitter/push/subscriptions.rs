//! Streams with a backlog, indexed by delivered event type.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::backlog::Backlog;
use super::inbox::Inbox;
use crate::state::{OutboxEvent, Stream, StreamStatus};
use crate::transmitter::matching;

/// A stream with a backlog.
pub struct Subscription {
    /// As last seen.
    pub stream: Arc<Stream>,
    pub backlog: Backlog,
    /// Queue of its worker, if it is pushed.
    pub inbox: Arc<Inbox>,
    /// Its worker, if it is pushed.
    pub worker: Option<AbortHandle>,
    /// Whether the backlog may be counted too high: the stream may have been disabled in between.
    pub is_suspect: bool,
    /// Whether it was recounted because of that.
    pub is_recounted: bool,
}

impl Subscription {
    pub fn new(
        stream: Arc<Stream>,
        backlog: Backlog,
        inbox: Arc<Inbox>,
        worker: Option<AbortHandle>,
    ) -> Self {
        Self { stream, backlog, inbox, worker, is_suspect: false, is_recounted: false }
    }

    /// Whether the count of the backlog must be repeated before it causes a drop; not twice in a row. `is_truncated` states that
    /// it has events that the outbox has no longer.
    pub fn is_doubtful(&mut self, is_truncated: bool) -> bool {
        let is_doubtful = std::mem::take(&mut self.is_suspect) || is_truncated;
        self.is_recounted = is_doubtful && !self.is_recounted;
        self.is_recounted
    }
}

#[derive(Default)]
pub struct Subscriptions {
    streams: BTreeMap<String, Subscription>,
    by_type: BTreeMap<String, BTreeSet<String>>,
}

impl Subscriptions {
    /// Adds or replaces a stream.
    pub fn put(&mut self, subscription: Subscription) {
        let stream_id = subscription.stream.config.stream_id.clone();
        self.remove(&stream_id);
        for event_type in &subscription.stream.config.events_delivered {
            self.by_type.entry(event_type.clone()).or_default().insert(stream_id.clone());
        }
        self.streams.insert(stream_id, subscription);
    }

    /// Removes a stream and ends its worker.
    pub fn remove(&mut self, stream_id: &str) {
        let Some(subscription) = self.streams.remove(stream_id) else { return };
        if let Some(worker) = subscription.worker {
            worker.abort();
        }
        for event_type in &subscription.stream.config.events_delivered {
            if let Some(streams) = self.by_type.get_mut(event_type) {
                streams.remove(stream_id);
                if streams.is_empty() {
                    self.by_type.remove(event_type);
                }
            }
        }
    }

    pub fn get_mut(&mut self, stream_id: &str) -> Option<&mut Subscription> {
        self.streams.get_mut(stream_id)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Subscription)> {
        self.streams.iter_mut()
    }

    /// Visits the matching streams; returns how many were tested, that is, deliver the type.
    pub fn visit(&mut self, event: &OutboxEvent, mut visit: impl FnMut(&str, &mut Subscription)) -> usize {
        let mut tested = 0;
        let addressed = event.stream_id.iter();
        let of_type = self.by_type.get(&event.event.event_type).filter(|_| event.stream_id.is_none());
        for stream_id in addressed.chain(of_type.into_iter().flatten()) {
            let Some(subscription) = self.streams.get_mut(stream_id) else { continue };
            tested += 1;
            if matching::matches(&subscription.stream, event) {
                visit(stream_id, subscription);
            }
        }
        tested
    }
}

/// Consequence of a changed stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Disabled: it has no backlog.
    Removed,
    /// Other events match, or delivery moved between push and poll: count anew.
    Recounted,
    /// Its worker re-reads it.
    Woken,
}

/// The consequence of a change.
pub fn change(before: &Stream, now: &Stream) -> Change {
    let is_same_filter = before.config.events_delivered == now.config.events_delivered
        && before.removed_subjects == now.removed_subjects;
    let is_same_method = before.config.endpoint_url.is_some() == now.config.endpoint_url.is_some();
    match now.status {
        StreamStatus::Disabled => Change::Removed,
        StreamStatus::Enabled | StreamStatus::Paused if is_same_filter && is_same_method => Change::Woken,
        StreamStatus::Enabled | StreamStatus::Paused => Change::Recounted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::state::{Added, EventId, SecurityEvent, StreamConfig, StreamCursor};

    fn stream(stream_id: &str, types: &[&str]) -> Stream {
        Stream {
            config: StreamConfig {
                stream_id: stream_id.to_owned(),
                owner: String::new(),
                aud: String::new(),
                events_requested: Vec::new(),
                events_delivered: types.iter().map(|name| (*name).to_owned()).collect(),
                endpoint_url: Some("https://receiver.example/".to_owned()),
                description: None,
            },
            status: StreamStatus::Enabled,
            reason: None,
            owes_update: false,
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            removed_subjects: Vec::new(),
            added: Added::default(),
            revision: 7,
            changes: 1,
            filter: 1,
        }
    }

    fn streams(streams: &[(&str, &[&str])]) -> Subscriptions {
        let mut all = Subscriptions::default();
        for (stream_id, types) in streams {
            let backlog = Backlog::new(StreamCursor::default());
            all.put(Subscription::new(Arc::new(stream(stream_id, types)), backlog, Arc::default(), None));
        }
        all
    }

    fn matching(streams: &mut Subscriptions, event_type: &str, stream_id: Option<&str>) -> Vec<String> {
        let event = OutboxEvent {
            id: EventId::default(),
            event: SecurityEvent {
                event_type: event_type.to_owned(),
                sub_id: json!({}),
                claims: Map::new(),
                txn: None,
                via: Vec::new(),
            },
            at: Timestamp::default(),
            elapsed: Timestamp::default(),
            stream_id: stream_id.map(str::to_owned),
        };
        let mut matching = Vec::new();
        streams.visit(&event, |stream_id, _| matching.push(stream_id.to_owned()));
        matching
    }

    #[test]
    fn event_visits_streams_that_deliver_its_type() {
        let mut all = streams(&[("1", &["a", "b"]), ("2", &["b"]), ("3", &[])]);
        assert_eq!(matching(&mut all, "a", None), ["1"]);
        assert_eq!(matching(&mut all, "b", None), ["1", "2"]);
        assert_eq!(matching(&mut all, "c", None), [""; 0]);
        assert_eq!(matching(&mut all, "b", Some("3")), ["3"], "the addressed stream");
        assert_eq!(matching(&mut all, "b", Some("4")), [""; 0], "unknown stream");
    }

    #[test]
    fn replaced_or_removed_stream_leaves_no_index_entry() {
        let mut all = streams(&[("1", &["a", "b"]), ("1", &["c"]), ("2", &["b"])]);
        assert_eq!(matching(&mut all, "a", None), [""; 0]);
        assert_eq!(matching(&mut all, "c", None), ["1"]);
        all.remove("1");
        all.remove("2");
        all.remove("2");
        assert!(all.streams.is_empty() && all.by_type.is_empty());
    }

    #[test]
    fn only_a_change_of_the_matching_events_recounts() {
        let before = stream("1", &["a"]);
        let next = Stream { revision: 8, ..before.clone() };
        let with = |config: StreamConfig| Stream { config, ..next.clone() };
        assert_eq!(change(&before, &next), Change::Woken);
        assert_eq!(change(&before, &Stream { status: StreamStatus::Paused, ..next.clone() }), Change::Woken);
        let url = Some("https://other.example/".to_owned());
        assert_eq!(
            change(&before, &with(StreamConfig { endpoint_url: url, ..next.config.clone() })),
            Change::Woken
        );
        let polled = StreamConfig { endpoint_url: None, ..next.config.clone() };
        assert_eq!(change(&before, &with(polled)), Change::Recounted);
        let more =
            StreamConfig { events_delivered: vec!["a".to_owned(), "b".to_owned()], ..next.config.clone() };
        assert_eq!(change(&before, &with(more)), Change::Recounted);
        let disabled = Stream { status: StreamStatus::Disabled, ..next.clone() };
        assert_eq!(change(&before, &disabled), Change::Removed);
    }
}
