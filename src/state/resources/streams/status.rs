//! Status of a stream, and its author: receiver or transmitter.

use serde_json::Map;

use super::cursor::cursor_of;
use super::{Stream, find, put, written};
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{self, Command, Refusal, Reply, SetStreamStatus, StreamRow, StreamStatus};
use crate::state::resources::events::{STREAM_UPDATED, SecurityEvent, truncate};
use crate::state::resources::outbox;
use crate::state::tables::{EntryTime, Tables};
use crate::state::{Error, OnBehalf, State};

/// The status in a row or a command.
pub(super) fn status_of(status: i32) -> Result<StreamStatus, Corrupt> {
    StreamStatus::try_from(status).map_err(|_| Corrupt::newer("a stream has an unknown status"))
}

/// Sets the status of a stream. After `disabled`, it begins here: earlier events were not retained. A stream that the
/// transmitter has paused sends `stream-updated` when it is enabled again, even if its receiver disabled it in between; so
/// does one that the receiver had paused already when the transmitter had a reason of its own.
pub fn set_status(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: SetStreamStatus,
) -> Result<Reply, Corrupt> {
    let Some(row) = find(tables, &command.stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    let (before, status) = (status_of(row.status)?, status_of(command.status)?);
    if command.by_transmitter {
        if command.changes.is_some_and(|changes| changes != row.changes) {
            return Ok(Reply::Refused(Refusal::StreamChanged));
        }
        let is_known_paused = before == StreamStatus::Paused && command.changes.is_some();
        if before != StreamStatus::Enabled && !is_known_paused {
            return Ok(Reply::Refused(Refusal::StreamNotEnabled));
        }
    }
    let is_owed = command.by_transmitter && status != StreamStatus::Enabled;
    if status == before && row.reason == command.reason && !is_owed {
        return Ok(written(row));
    }
    if before == StreamStatus::Disabled && status != before {
        cursor_of(tables, &command.stream_id)?.anew(tables.next_event()).put(tables, &command.stream_id);
    }
    let mut row = StreamRow { status: command.status, reason: command.reason, ..row };
    if is_owed {
        row.owes_update = true;
        row.owed_reason.clone_from(&row.reason);
    }
    if status == StreamStatus::Enabled && row.owes_update {
        let reason = std::mem::take(&mut row.owed_reason);
        row.owes_update = false;
        outbox::append_for(tables, time, updated(&command.stream_id, reason), &command.stream_id)?;
    }
    put(tables, time.now, row, status.into_str())
}

/// The `stream-updated` event of SSF 1.0: the present status, and the transmitter's reason for the change.
fn updated(stream_id: &str, reason: String) -> command::SecurityEvent {
    let mut claims = Map::new();
    claims.insert("status".to_owned(), StreamStatus::Enabled.into_str().into());
    if !reason.is_empty() {
        claims.insert("reason".to_owned(), reason.into());
    }
    SecurityEvent::of_stream(STREAM_UPDATED, stream_id, claims).into()
}

impl State {
    /// Pauses a stream as its transmitter, or records its reason if the stream is paused already. A reason over the limit is
    /// truncated. `stream` is the version on which the decision is based: a change by its owner since may be the remedy.
    ///
    /// # Errors
    /// `Refusal::StreamChanged` if it has changed; `Refusal::UnknownStream`; `Refusal::StreamNotEnabled` if it is
    /// disabled.
    pub async fn pause_stream(&self, stream: &Stream, reason: &str) -> Result<(), Error> {
        let command = SetStreamStatus {
            stream_id: stream.config.stream_id.clone(),
            status: StreamStatus::Paused.into(),
            reason: truncate(reason, limits::STREAM_REASON_BYTES_MAX).to_owned(),
            by_transmitter: true,
            changes: Some(stream.changes),
        };
        self.as_node().write_stream(Command::SetStreamStatus(command)).await.map(drop)
    }
}

impl OnBehalf<'_> {
    /// Sets the status of a stream, as its receiver. `Refusal::UnknownStream` if there is none.
    pub async fn set_stream_status(
        self,
        stream_id: &str,
        status: StreamStatus,
        reason: String,
    ) -> Result<Stream, Error> {
        let command = SetStreamStatus {
            stream_id: stream_id.to_owned(),
            status: status.into(),
            reason,
            by_transmitter: false,
            changes: None,
        };
        self.once(None).write_stream(Command::SetStreamStatus(command)).await
    }
}
