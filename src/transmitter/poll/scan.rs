//! Scan of the outbox for a stream's events: in order, in steps, with a limit of rows per poll.

use std::ops::ControlFlow;

use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{EventId, OutboxEvent, State, Stream, StreamCursor};
use crate::transmitter::matching;

/// Source of events.
pub trait Outbox {
    /// Visits the events from `from` on, in order, until `visit` returns false.
    fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt>;
}

impl Outbox for State {
    fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
        self.outbox(from, visit)
    }
}

/// State of a scan from a cursor on; a later scan resumes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The stream's events, in order.
    pub matching: Vec<EventId>,
    /// After the last scanned row.
    pub up_to: EventId,
    /// Number of scanned rows.
    pub rows: usize,
    /// Whether the outbox ended there.
    pub is_at_end: bool,
}

impl Scan {
    /// Nothing scanned.
    pub fn from(cursor: &StreamCursor) -> Self {
        Self { matching: Vec::new(), up_to: cursor.next, rows: 0, is_at_end: false }
    }
}

/// Scans until `take` breaks, the outbox ends or [`limits::POLL_SCAN_ROWS_MAX`] more rows are scanned. `take` gets each
/// of the stream's events with the number of rows before it. Yields between steps.
pub async fn scan(
    outbox: &(impl Outbox + Sync),
    stream: &Stream,
    state: &mut Scan,
    take: &mut (dyn FnMut(usize, OutboxEvent) -> ControlFlow<()> + Send),
) -> Result<(), Corrupt> {
    let rows_max = state.rows.saturating_add(limits::POLL_SCAN_ROWS_MAX);
    state.is_at_end = false;
    while state.rows < rows_max {
        let step = limits::POLL_SCAN_ROWS_PER_STEP.min(rows_max - state.rows);
        let mut seen = 0;
        let mut flow = ControlFlow::Continue(());
        let Scan { matching, up_to, rows, .. } = state;
        outbox.visit(*up_to, &mut |event| {
            *up_to = event.id.next();
            if matching::matches(stream, &event) {
                matching.push(event.id);
                flow = take(*rows + seen, event);
            }
            seen += 1;
            flow.is_continue() && seen < step
        })?;
        state.rows += seen;
        if flow.is_break() {
            return Ok(());
        }
        if seen < step {
            state.is_at_end = true;
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::{Map, json};

    use super::*;
    use crate::clock::Timestamp;
    use crate::state::{Added, SecurityEvent, StreamConfig, StreamStatus};

    /// Whether each event is for the stream.
    struct Rows(Vec<bool>);

    impl Outbox for Rows {
        fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
            for (at, matches) in self.0.iter().enumerate() {
                if id(at) >= from && !visit(event(id(at), *matches)) {
                    break;
                }
            }
            Ok(())
        }
    }

    fn id(at: usize) -> EventId {
        EventId { index: at as u64, number: 0 }
    }

    fn event(id: EventId, matches: bool) -> OutboxEvent {
        let event_type = if matches { "urn:wanted" } else { "urn:other" };
        OutboxEvent {
            id,
            event: SecurityEvent {
                event_type: event_type.to_owned(),
                sub_id: json!({"format": "opaque", "id": "a"}),
                claims: Map::new(),
                txn: None,
                via: Vec::new(),
            },
            at: Timestamp::default(),
            elapsed: Timestamp::default(),
            stream_id: None,
        }
    }

    fn stream() -> Stream {
        Stream {
            config: StreamConfig {
                stream_id: "a".repeat(32),
                owner: String::new(),
                aud: String::new(),
                events_requested: Vec::new(),
                events_delivered: vec!["urn:wanted".to_owned()],
                endpoint_url: None,
                description: None,
            },
            status: StreamStatus::Enabled,
            reason: None,
            owes_update: false,
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            removed_subjects: Vec::new(),
            added: Added::default(),
            revision: 1,
            changes: 1,
            filter: 1,
        }
    }

    /// Takes at most `most` events.
    async fn take(rows: &Rows, state: &mut Scan, most: usize) -> Vec<EventId> {
        let mut events = Vec::new();
        let mut take = |rows: usize, event: OutboxEvent| {
            assert_eq!(event.id, id(rows), "the rows before it");
            events.push(event.id);
            if events.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        scan(rows, &stream(), state, &mut take).await.expect("rows");
        events
    }

    fn start() -> Scan {
        Scan::from(&StreamCursor::default())
    }

    #[tokio::test]
    async fn scan_returns_events_in_order_to_the_end() {
        let rows = Rows(vec![true, false, false, true, true, false]);
        let mut state = start();
        assert_eq!(take(&rows, &mut state, 9).await, [id(0), id(3), id(4)]);
        let all = Scan { matching: vec![id(0), id(3), id(4)], up_to: id(5).next(), rows: 6, is_at_end: true };
        assert_eq!(state, all);
        // No row is scanned twice.
        assert!(take(&rows, &mut state, 9).await.is_empty());
        assert_eq!(state, all);
        let rows = Rows([rows.0, vec![true]].concat());
        assert_eq!(take(&rows, &mut state, 9).await, [id(6)]);
        assert_eq!((state.rows, state.matching.len()), (7, 4));
    }

    #[tokio::test]
    async fn scan_stops_at_enough_events() {
        let rows = Rows(vec![false, true, true, true]);
        let mut state = start();
        assert_eq!(take(&rows, &mut state, 2).await, [id(1), id(2)]);
        assert_eq!((state.up_to, state.rows, state.is_at_end), (id(2).next(), 3, false));
    }

    #[tokio::test]
    async fn rows_per_scan_are_limited() {
        let most = limits::POLL_SCAN_ROWS_MAX;
        let mut rows = Rows(vec![false; most]);
        rows.0.push(true);
        let mut state = start();
        assert!(take(&rows, &mut state, 1).await.is_empty());
        assert_eq!((state.rows, state.is_at_end), (most, false));
        assert_eq!(take(&rows, &mut state, 1).await, [id(most)]);
    }

    #[tokio::test]
    async fn scan_yields_between_steps() {
        let turns = |rows: usize| {
            let (rows, mut state) = (Rows(vec![false; rows]), start());
            let mut scanning = Box::pin(async move { take(&rows, &mut state, 1).await });
            let mut turns = 0;
            while scanning.as_mut().now_or_never().is_none() {
                turns += 1;
            }
            turns
        };
        assert_eq!(turns(limits::POLL_SCAN_ROWS_PER_STEP - 1), 0);
        assert_eq!(turns(3 * limits::POLL_SCAN_ROWS_PER_STEP), 3);
    }
}
