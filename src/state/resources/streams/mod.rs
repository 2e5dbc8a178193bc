//! Streams: owner, configuration, status.
//!
//! A stream is a filter over the outbox and a [`cursor`] in it. All streams are in memory: there are few, and each event is
//! matched against all of them. Authorization is decided by the use-cases; the owner of a stream never changes.

mod cursor;
mod filter;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use serde_json::{Map, Value};

pub use self::cursor::{DeadLetter, NewDeadLetter, StreamCursor, advance};
pub use self::filter::{Added, change_subject};
pub use self::status::set_status;
pub use crate::state::command::{Stream as StreamConfig, StreamStatus};

use self::status::status_of;
use super::events::{SecurityEvent, VERIFICATION};
use super::feed::{self, FeedKind, NewFeedEvent};
use super::outbox;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{
    ChangeStreamSubject, Command, CreateStream, DeleteStream, Refusal, Reply, StreamRow, StreamWritten,
    UpdateStream, VerifyStream, stated,
};
use crate::state::tables::quotas::Quota;
use crate::state::tables::{EntryTime, STREAM, STREAMS, Tables, decode};
use crate::state::{Error, OnBehalf, State};
use crate::token::subject_id::{self, SubjectId};

/// A stored stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    pub config: StreamConfig,
    pub status: StreamStatus,
    /// Reason for its status.
    pub reason: Option<String>,
    /// The transmitter has paused it, and sends a `stream-updated` event when it is enabled again.
    pub owes_update: bool,
    /// Log time of its creation.
    pub created_at: Timestamp,
    /// Log time of the last change.
    pub updated_at: Timestamp,
    /// Excluded subjects, as the receiver states them.
    pub removed_subjects: Vec<SubjectId>,
    /// Types and subjects added after its creation.
    pub added: Added,
    /// Counter of changes of its configuration, from 1.
    pub revision: u64,
    /// Counter of all changes, including status and subjects.
    pub changes: u64,
    /// Value of `changes` at the last change of its filter. A cursor is not advanced by a scan with another filter.
    pub filter: u64,
}

impl TryFrom<StreamRow> for Stream {
    type Error = Corrupt;

    fn try_from(row: StreamRow) -> Result<Self, Corrupt> {
        let status = status_of(row.status)?;
        let added = Added::read(&row)?;
        Ok(Self {
            config: row.stream.ok_or_else(|| Corrupt::row("a row of a stream has no stream"))?,
            status,
            reason: stated(row.reason),
            owes_update: row.owes_update,
            created_at: Timestamp::from_millis(row.created_at_millis),
            updated_at: Timestamp::from_millis(row.updated_at_millis),
            removed_subjects: row
                .removed_subjects
                .iter()
                .map(|text| filter::subject(text))
                .collect::<Result<_, _>>()?,
            added,
            revision: row.revision,
            changes: row.changes,
            filter: row.filter,
        })
    }
}

impl Stream {
    /// "A stream answers only its creator and operators" (contract §2). `caller` is `None` if anonymous, which only
    /// development mode admits.
    #[must_use]
    pub fn answers(&self, caller: Option<&str>, is_operator: bool) -> bool {
        is_operator || caller.unwrap_or_default() == self.config.owner
    }

    /// Decodes its row.
    pub fn from_row(row: &[u8]) -> Result<Self, Corrupt> {
        decode::<StreamRow>(STREAM, row)?.try_into()
    }
}

/// Prefix of a stream's rows. No id contains a zero byte.
fn key_of(stream_id: &str) -> Vec<u8> {
    [stream_id.as_bytes(), &[0]].concat()
}

fn find(tables: &Tables<'_>, stream_id: &str) -> Result<Option<StreamRow>, Corrupt> {
    let row = tables.row(STREAM, stream_id.as_bytes())?;
    row.map(|row| decode::<StreamRow>(STREAM, &row)).transpose()
}

fn put(tables: &mut Tables<'_>, now: Timestamp, row: StreamRow, detail: &str) -> Result<Reply, Corrupt> {
    let changes = row.changes.saturating_add(1);
    let row = StreamRow { updated_at_millis: now.millis(), changes, ..row };
    let stream_id = row.stream.as_ref().map(|stream| stream.stream_id.clone()).unwrap_or_default();
    tables.put(STREAM, stream_id.as_bytes(), row.encode_to_vec());
    feed::append(
        tables,
        now,
        NewFeedEvent { kind: FeedKind::Stream, subject: &stream_id, target: "", detail },
    )?;
    Ok(written(row))
}

fn written(row: StreamRow) -> Reply {
    Reply::Stream(StreamWritten { row: Some(row) })
}

/// Creates a stream. It is enabled, and gets events from here on.
pub fn create(tables: &mut Tables<'_>, now: Timestamp, command: CreateStream) -> Result<Reply, Corrupt> {
    let stream = command.stream.ok_or_else(|| Corrupt::row("a create command has no stream"))?;
    if find(tables, &stream.stream_id)?.is_some() {
        return Ok(Reply::Refused(Refusal::StreamChanged));
    }
    let of_owner = Quota::Streams.of(tables, &stream.owner)?;
    if tables.number(STREAMS)? >= limits::STREAMS_MAX || of_owner >= limits::STREAMS_PER_CALLER_MAX {
        return Ok(Reply::Refused(Refusal::TooManyStreams));
    }
    tables.add(STREAMS, 1)?;
    Quota::Streams.add(tables, &stream.owner)?;
    StreamCursor::new(tables.next_event()).put(tables, &stream.stream_id);
    let row = StreamRow {
        stream: Some(stream),
        created_at_millis: now.millis(),
        revision: 1,
        ..StreamRow::default()
    };
    put(tables, now, filter::with_another(row), "created")
}

/// Replaces the configuration of a stream. Its backlog remains; events of newly delivered types count from here on.
pub fn update(tables: &mut Tables<'_>, now: Timestamp, command: UpdateStream) -> Result<Reply, Corrupt> {
    let stream = command.stream.ok_or_else(|| Corrupt::row("an update command has no stream"))?;
    let Some(row) = find(tables, &stream.stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    if row.revision != command.revision {
        return Ok(Reply::Refused(Refusal::StreamChanged));
    }
    let known = row.stream.clone().unwrap_or_default();
    let stream = StreamConfig { owner: known.owner.clone(), ..stream };
    if known == stream {
        return Ok(written(row));
    }
    let (revision, is_other_filter) =
        (row.revision.saturating_add(1), known.events_delivered != stream.events_delivered);
    let added_types = filter::added_types(&row.added_types, &known, &stream, tables.next_event());
    let row = StreamRow { stream: Some(stream), revision, added_types, ..row };
    put(tables, now, if is_other_filter { filter::with_another(row) } else { row }, "updated")
}

/// Appends a verification event, unless the last one was too recent.
pub fn verify(tables: &mut Tables<'_>, time: EntryTime, command: VerifyStream) -> Result<Reply, Corrupt> {
    let Some(row) = find(tables, &command.stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    if status_of(row.status)? != StreamStatus::Enabled {
        return Ok(Reply::Refused(Refusal::StreamNotEnabled));
    }
    let verified_at = Timestamp::from_millis(row.verified_at_millis);
    if row.verified_at_millis != 0 && time.elapsed < verified_at.plus(limits::VERIFICATION_INTERVAL_MIN) {
        return Ok(Reply::Refused(Refusal::VerifiedTooOften));
    }
    let row = StreamRow { verified_at_millis: time.elapsed.millis(), ..row };
    tables.put(STREAM, command.stream_id.as_bytes(), row.encode_to_vec());
    let mut claims = Map::new();
    if !command.state.is_empty() {
        claims.insert("state".to_owned(), command.state.into());
    }
    let event = SecurityEvent::of_stream(VERIFICATION, &command.stream_id, claims);
    outbox::append_for(tables, time, event.into(), &command.stream_id)?;
    Ok(written(row))
}

/// Deletes a stream, with its cursor and its dead letters. Its events stay in the outbox until they are dropped.
pub fn delete(tables: &mut Tables<'_>, now: Timestamp, command: &DeleteStream) -> Result<Reply, Corrupt> {
    let stream_id = command.stream_id.as_str();
    let Some(row) = find(tables, stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    let owner = row.stream.map(|stream| stream.owner).unwrap_or_default();
    tables.delete(STREAM, stream_id.as_bytes());
    cursor::delete(tables, stream_id);
    tables.subtract(STREAMS, 1)?;
    Quota::Streams.remove(tables, &owner)?;
    let feed_event =
        NewFeedEvent { kind: FeedKind::Stream, subject: stream_id, target: "", detail: "deleted" };
    feed::append(tables, now, feed_event)?;
    Ok(Reply::Done { changed: true })
}

impl State {
    /// All streams by id.
    #[must_use]
    pub fn streams(&self) -> Arc<BTreeMap<String, Arc<Stream>>> {
        Arc::clone(&self.index().streams)
    }

    #[must_use]
    pub fn stream(&self, stream_id: &str) -> Option<Arc<Stream>> {
        self.index().streams.get(stream_id).map(Arc::clone)
    }

    #[must_use]
    pub fn stream_cursor(&self, stream_id: &str) -> Option<Arc<StreamCursor>> {
        self.index().stream_cursors.get(stream_id).map(Arc::clone)
    }
}

impl OnBehalf<'_> {
    /// Creates a stream, or returns the one that the same request created before.
    ///
    /// # Errors
    /// `Refusal::TooManyStreams`; `Refusal::StreamChanged` if its id exists; `Refusal::IdempotencyKeyReused`.
    pub async fn create_stream(self, config: StreamConfig) -> Result<Stream, Error> {
        let command = CreateStream { stream: Some(config) };
        self.write_stream(Command::CreateStream(command)).await
    }

    /// Replaces the configuration of a stream at this revision.
    ///
    /// # Errors
    /// `Refusal::UnknownStream`, `Refusal::StreamChanged`.
    pub async fn update_stream(self, config: StreamConfig, revision: u64) -> Result<Stream, Error> {
        let command = UpdateStream { stream: Some(config), revision };
        self.once(None).write_stream(Command::UpdateStream(command)).await
    }

    /// Excludes a subject from a stream, or adds it again. `sub_id` is one that [`SubjectId::read`] accepts.
    ///
    /// # Errors
    /// `Refusal::UnknownStream`, `Refusal::TooManySubjects`, [`Error::Damaged`] if `sub_id` is invalid.
    pub async fn change_stream_subject(
        self,
        stream_id: &str,
        sub_id: &Value,
        removed: bool,
    ) -> Result<(), Error> {
        if SubjectId::read(sub_id, "sub_id").is_err() {
            return Err(Corrupt::row("a subject of a stream cannot be read").into());
        }
        let sub_id = subject_id::relayed(sub_id, None).to_string();
        let command = ChangeStreamSubject { stream_id: stream_id.to_owned(), sub_id, removed };
        self.once(None).write_stream(Command::ChangeStreamSubject(command)).await.map(drop)
    }

    /// Appends a verification event for a stream.
    ///
    /// # Errors
    /// `Refusal::UnknownStream`, `Refusal::StreamNotEnabled`, `Refusal::VerifiedTooOften`.
    pub async fn verify_stream(self, stream_id: &str, state: Option<String>) -> Result<(), Error> {
        let state = state.unwrap_or_default();
        let command = VerifyStream { stream_id: stream_id.to_owned(), state };
        self.once(None).write_stream(Command::VerifyStream(command)).await.map(drop)
    }

    /// Deletes a stream. `Refusal::UnknownStream` if there is none.
    pub async fn delete_stream(self, stream_id: &str) -> Result<(), Error> {
        let command = DeleteStream { stream_id: stream_id.to_owned() };
        self.propose(Command::DeleteStream(command)).await.map(drop)
    }

    pub(crate) async fn write_stream(self, command: Command) -> Result<Stream, Error> {
        match self.propose_once(command).await?.outcome {
            Reply::Stream(StreamWritten { row: Some(row) }) => Ok(row.try_into()?),
            _ => Err(Error::Undecodable),
        }
    }
}

#[cfg(test)]
mod tests;
