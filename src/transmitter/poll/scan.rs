//! Looking through the outbox for what a stream is for: in order, so many rows at once, and never more than a
//! number of them for one poll.

use std::ops::ControlFlow;

use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{EventId, OutboxEvent, State, Stream, StreamCursor};
use crate::transmitter::matching;

/// Where events are read from.
pub trait Outbox {
    /// Visits the events from `from` on, in order, until `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt>;
}

impl Outbox for State {
    fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
        self.outbox(from, visit)
    }
}

/// What was found from a cursor on; a later look goes on where this one ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the stream is for, in order.
    pub matching: Vec<EventId>,
    /// Behind the last row that was looked at.
    pub up_to: EventId,
    /// How many rows were looked at.
    pub rows: usize,
    /// Whether that was the end of the outbox.
    pub is_at_end: bool,
}

impl Found {
    /// Nothing yet.
    #[must_use]
    pub fn from(cursor: &StreamCursor) -> Self {
        Self { matching: Vec::new(), up_to: cursor.next, rows: 0, is_at_end: false }
    }
}

/// Looks on, until `take` breaks off, the outbox ends or [`limits::POLL_ROWS_SEEN_MAX`] more rows were looked at.
/// `take` is given what the stream is for, with how many rows were looked at before it. Others have their turn in
/// between.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub async fn look(
    outbox: &(impl Outbox + Sync),
    stream: &Stream,
    found: &mut Found,
    take: &mut (dyn FnMut(usize, OutboxEvent) -> ControlFlow<()> + Send),
) -> Result<(), Corrupt> {
    let most = found.rows.saturating_add(limits::POLL_ROWS_SEEN_MAX);
    found.is_at_end = false;
    while found.rows < most {
        let at_once = limits::POLL_ROWS_AT_ONCE.min(most - found.rows);
        let mut seen = 0;
        let mut goes_on = ControlFlow::Continue(());
        let Found { matching, up_to, rows, .. } = found;
        outbox.visit(*up_to, &mut |event| {
            *up_to = event.id.next();
            if matching::is_for(stream, &event) {
                matching.push(event.id);
                goes_on = take(*rows + seen, event);
            }
            seen += 1;
            goes_on.is_continue() && seen < at_once
        })?;
        found.rows += seen;
        if goes_on.is_break() {
            return Ok(());
        }
        if seen < at_once {
            found.is_at_end = true;
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

    /// Events that are for the stream, or are not.
    struct Rows(Vec<bool>);

    impl Outbox for Rows {
        fn visit(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
            for (at, is_wanted) in self.0.iter().enumerate() {
                if id(at) >= from && !visit(event(id(at), *is_wanted)) {
                    break;
                }
            }
            Ok(())
        }
    }

    fn id(at: usize) -> EventId {
        EventId { index: at as u64, number: 0 }
    }

    fn event(id: EventId, is_wanted: bool) -> OutboxEvent {
        let event_type = if is_wanted { "urn:wanted" } else { "urn:other" };
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

    /// A look that takes `most`, and what it took.
    async fn take(rows: &Rows, found: &mut Found, most: usize) -> Vec<EventId> {
        let mut taken = Vec::new();
        let mut take = |rows: usize, event: OutboxEvent| {
            assert_eq!(event.id, id(rows), "so many came before it");
            taken.push(event.id);
            if taken.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        look(rows, &stream(), found, &mut take).await.expect("rows");
        taken
    }

    fn none() -> Found {
        Found::from(&StreamCursor::default())
    }

    #[tokio::test]
    async fn what_a_stream_is_for_is_found_in_order_to_the_end() {
        let rows = Rows(vec![true, false, false, true, true, false]);
        let mut found = none();
        assert_eq!(take(&rows, &mut found, 9).await, [id(0), id(3), id(4)]);
        let all =
            Found { matching: vec![id(0), id(3), id(4)], up_to: id(5).next(), rows: 6, is_at_end: true };
        assert_eq!(found, all);
        // Nothing is looked at twice.
        assert!(take(&rows, &mut found, 9).await.is_empty());
        assert_eq!(found, all);
        let rows = Rows([rows.0, vec![true]].concat());
        assert_eq!(take(&rows, &mut found, 9).await, [id(6)]);
        assert_eq!((found.rows, found.matching.len()), (7, 4));
    }

    #[tokio::test]
    async fn a_look_that_has_enough_goes_no_further() {
        let rows = Rows(vec![false, true, true, true]);
        let mut found = none();
        assert_eq!(take(&rows, &mut found, 2).await, [id(1), id(2)]);
        assert_eq!((found.up_to, found.rows, found.is_at_end), (id(2).next(), 3, false));
    }

    #[tokio::test]
    async fn only_so_many_rows_are_looked_at_for_one_poll() {
        let most = limits::POLL_ROWS_SEEN_MAX;
        let mut rows = Rows(vec![false; most]);
        rows.0.push(true);
        let mut found = none();
        assert!(take(&rows, &mut found, 1).await.is_empty());
        assert_eq!((found.rows, found.is_at_end), (most, false));
        assert_eq!(take(&rows, &mut found, 1).await, [id(most)]);
    }

    #[tokio::test]
    async fn others_have_their_turn_while_many_rows_are_looked_at() {
        let turns = |rows: usize| {
            let (rows, mut found) = (Rows(vec![false; rows]), none());
            let mut looking = Box::pin(async move { take(&rows, &mut found, 1).await });
            let mut turns = 0;
            while looking.as_mut().now_or_never().is_none() {
                turns += 1;
            }
            turns
        };
        assert_eq!(turns(limits::POLL_ROWS_AT_ONCE - 1), 0);
        assert_eq!(turns(3 * limits::POLL_ROWS_AT_ONCE), 3);
    }
}
