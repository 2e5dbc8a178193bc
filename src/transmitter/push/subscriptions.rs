//! The streams that events are counted for, by the types that they deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::backlog::Backlog;
use super::inbox::Inbox;
use crate::state::{OutboxEvent, Stream, StreamStatus};
use crate::transmitter::matching;

/// A stream that holds events.
pub struct Tracked {
    /// As it was when it was looked at last.
    pub stream: Arc<Stream>,
    /// How much waits for it.
    pub backlog: Backlog,
    /// What its worker is told, if it is pushed.
    pub inbox: Arc<Inbox>,
    /// Its worker, if it is pushed.
    pub worker: Option<AbortHandle>,
    /// Whether its limits are being enforced.
    pub is_enforced: bool,
    /// Whether more may have been counted than waits: it may have been disabled for a moment.
    pub is_suspect: bool,
    /// It was counted again because of that.
    pub is_recounted: bool,
}

impl Tracked {
    /// A stream that is taken up.
    pub fn new(
        stream: Arc<Stream>,
        backlog: Backlog,
        inbox: Arc<Inbox>,
        worker: Option<AbortHandle>,
    ) -> Self {
        let (is_enforced, is_suspect, is_recounted) = (false, false, false);
        Self { stream, backlog, inbox, worker, is_enforced, is_suspect, is_recounted }
    }
}

/// All of them.
#[derive(Default)]
pub struct Streams {
    streams: BTreeMap<String, Tracked>,
    by_type: BTreeMap<String, BTreeSet<String>>,
}

impl Streams {
    /// Takes up a stream instead of what was known of it.
    pub fn put(&mut self, tracked: Tracked) {
        let stream_id = tracked.stream.config.stream_id.clone();
        self.remove(&stream_id);
        for event_type in &tracked.stream.config.events_delivered {
            self.by_type.entry(event_type.clone()).or_default().insert(stream_id.clone());
        }
        self.streams.insert(stream_id, tracked);
    }

    /// Forgets a stream, and ends its worker.
    pub fn remove(&mut self, stream_id: &str) {
        let Some(tracked) = self.streams.remove(stream_id) else { return };
        if let Some(worker) = tracked.worker {
            worker.abort();
        }
        for event_type in &tracked.stream.config.events_delivered {
            if let Some(streams) = self.by_type.get_mut(event_type) {
                streams.remove(stream_id);
                if streams.is_empty() {
                    self.by_type.remove(event_type);
                }
            }
        }
    }

    /// A stream.
    pub fn get_mut(&mut self, stream_id: &str) -> Option<&mut Tracked> {
        self.streams.get_mut(stream_id)
    }

    /// Every stream, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Tracked)> {
        self.streams.iter_mut()
    }

    /// Visits those that an event is for; how many had to be looked at, which are those that deliver its type.
    pub fn visit(&mut self, event: &OutboxEvent, mut visit: impl FnMut(&str, &mut Tracked)) -> usize {
        let mut looked_at = 0;
        let addressed = event.stream_id.iter();
        let of_type = self.by_type.get(&event.event.event_type).filter(|_| event.stream_id.is_none());
        for stream_id in addressed.chain(of_type.into_iter().flatten()) {
            let Some(tracked) = self.streams.get_mut(stream_id) else { continue };
            looked_at += 1;
            if matching::is_for(&tracked.stream, event) {
                visit(stream_id, tracked);
            }
        }
        looked_at
    }
}

/// What becomes of a stream that is not as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds nothing.
    Holds,
    /// Other events than before wait for it, or in another way.
    Counts,
    /// Its worker looks at it.
    Wakes,
}

/// What a change of a stream means for what is known of it.
#[must_use]
pub fn change(before: &Stream, now: &Stream) -> Change {
    let is_same_filter = before.config.events_delivered == now.config.events_delivered
        && before.removed_subjects == now.removed_subjects;
    let is_same_way = before.config.endpoint_url.is_some() == now.config.endpoint_url.is_some();
    match now.status {
        StreamStatus::Disabled => Change::Holds,
        StreamStatus::Enabled | StreamStatus::Paused if is_same_filter && is_same_way => Change::Wakes,
        StreamStatus::Enabled | StreamStatus::Paused => Change::Counts,
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

    fn streams(streams: &[(&str, &[&str])]) -> Streams {
        let mut all = Streams::default();
        for (stream_id, types) in streams {
            let backlog = Backlog::new(StreamCursor::default());
            all.put(Tracked::new(Arc::new(stream(stream_id, types)), backlog, Arc::default(), None));
        }
        all
    }

    fn wanted_by(streams: &mut Streams, event_type: &str, stream_id: Option<&str>) -> Vec<String> {
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
        let mut wanted = Vec::new();
        streams.visit(&event, |stream_id, _| wanted.push(stream_id.to_owned()));
        wanted
    }

    #[test]
    fn an_event_is_told_to_the_streams_that_deliver_its_type() {
        let mut all = streams(&[("1", &["a", "b"]), ("2", &["b"]), ("3", &[])]);
        assert_eq!(wanted_by(&mut all, "a", None), ["1"]);
        assert_eq!(wanted_by(&mut all, "b", None), ["1", "2"]);
        assert_eq!(wanted_by(&mut all, "c", None), [""; 0]);
        assert_eq!(wanted_by(&mut all, "b", Some("3")), ["3"], "to whom it is addressed");
        assert_eq!(wanted_by(&mut all, "b", Some("4")), [""; 0], "and who is not there");
    }

    #[test]
    fn what_is_replaced_or_removed_leaves_nothing_behind() {
        let mut all = streams(&[("1", &["a", "b"]), ("1", &["c"]), ("2", &["b"])]);
        assert_eq!(wanted_by(&mut all, "a", None), [""; 0]);
        assert_eq!(wanted_by(&mut all, "c", None), ["1"]);
        all.remove("1");
        all.remove("2");
        all.remove("2");
        assert!(all.streams.is_empty() && all.by_type.is_empty());
    }

    #[test]
    fn only_what_changes_the_events_that_wait_has_them_counted_again() {
        let before = stream("1", &["a"]);
        let next = Stream { revision: 8, ..before.clone() };
        let with = |config: StreamConfig| Stream { config, ..next.clone() };
        assert_eq!(change(&before, &next), Change::Wakes);
        assert_eq!(change(&before, &Stream { status: StreamStatus::Paused, ..next.clone() }), Change::Wakes);
        let url = Some("https://other.example/".to_owned());
        assert_eq!(
            change(&before, &with(StreamConfig { endpoint_url: url, ..next.config.clone() })),
            Change::Wakes
        );
        let polled = StreamConfig { endpoint_url: None, ..next.config.clone() };
        assert_eq!(change(&before, &with(polled)), Change::Counts);
        let more =
            StreamConfig { events_delivered: vec!["a".to_owned(), "b".to_owned()], ..next.config.clone() };
        assert_eq!(change(&before, &with(more)), Change::Counts);
        let disabled = Stream { status: StreamStatus::Disabled, ..next.clone() };
        assert_eq!(change(&before, &disabled), Change::Holds);
    }
}
