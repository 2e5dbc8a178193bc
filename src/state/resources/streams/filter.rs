//! Filter of a stream: event types and excluded subjects. Additions count from their entry on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{StreamConfig, cursor, find, put, written};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{ChangeStreamSubject, Refusal, Reply, Since, StreamRow};
use crate::state::resources::events::{EventId, object};
use crate::state::tables::Tables;
use crate::token::subject_id::SubjectId;

/// Additions to the filter, each with the event from which it counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Added {
    /// Delivered event types.
    pub types: BTreeMap<String, EventId>,
    /// Subjects that were excluded before. At most [`limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX`].
    pub subjects: Vec<(SubjectId, EventId)>,
}

impl Added {
    pub(super) fn read(row: &StreamRow) -> Result<Self, Corrupt> {
        let added_subject = |added: &Since| Ok((subject(&added.what)?, since(added)));
        Ok(Self {
            types: row.added_types.iter().map(|added| (added.what.clone(), since(added))).collect(),
            subjects: row.added_subjects.iter().map(added_subject).collect::<Result<_, Corrupt>>()?,
        })
    }
}

fn since(added: &Since) -> EventId {
    added.since.unwrap_or_default()
}

/// Parses a subject in a row.
pub(super) fn subject(text: &str) -> Result<SubjectId, Corrupt> {
    let read = SubjectId::read(&Value::Object(object(text)?), "sub_id");
    read.map_err(|_| Corrupt::row("a stream has a subject that cannot be read"))
}

/// Marks a change of the filter: a scan with the previous one no longer advances the cursor.
pub(super) fn with_another(row: StreamRow) -> StreamRow {
    // The value that `put` stores in `changes`.
    StreamRow { filter: row.changes.saturating_add(1), ..row }
}

/// Events from which the types count that were not delivered from the creation on.
pub(super) fn added_types(
    added: &[Since],
    before: &StreamConfig,
    stream: &StreamConfig,
    here: EventId,
) -> Vec<Since> {
    let since = |what: &String| {
        let known = added.iter().find(|added| added.what == *what);
        if before.events_delivered.contains(what) {
            known.cloned()
        } else {
            Some(Since { what: what.clone(), since: Some(here) })
        }
    };
    stream.events_delivered.iter().filter_map(since).collect()
}

/// Excludes a subject from a stream, or adds it again; then it counts from here on.
pub fn change_subject(
    tables: &mut Tables<'_>,
    now: Timestamp,
    command: ChangeStreamSubject,
) -> Result<Reply, Corrupt> {
    object(&command.sub_id)?;
    let Some(mut row) = find(tables, &command.stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    let is_removed = row.removed_subjects.contains(&command.sub_id);
    if is_removed == command.removed {
        return Ok(written(row));
    }
    if command.removed {
        let bytes: usize = row.removed_subjects.iter().map(String::len).sum();
        if row.removed_subjects.len() >= limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX
            || bytes.saturating_add(command.sub_id.len()) > limits::EXCLUDED_SUBJECTS_BYTES_MAX
        {
            return Ok(Reply::Refused(Refusal::TooManySubjects));
        }
        row.added_subjects.retain(|added| added.what != command.sub_id);
        row.removed_subjects.push(command.sub_id);
    } else {
        let cursor = cursor::cursor_of(tables, &command.stream_id)?.next;
        row.removed_subjects.retain(|sub_id| *sub_id != command.sub_id);
        add_subject(&mut row.added_subjects, command.sub_id, tables.next_event(), cursor);
    }
    put(tables, now, with_another(row), "updated")
}

/// Records from which event on a subject counts. Records before the cursor are deleted, and beyond the limits the oldest:
/// the stream may then get an event too many, but never one too few.
fn add_subject(added: &mut Vec<Since>, what: String, here: EventId, cursor: EventId) {
    added.retain(|added| since(added) > cursor);
    added.push(Since { what, since: Some(here) });
    let is_too_much = |added: &[Since]| {
        added.len() > limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX
            || added.iter().map(|added| added.what.len()).sum::<usize>() > limits::EXCLUDED_SUBJECTS_BYTES_MAX
    };
    while is_too_much(added) {
        added.remove(0);
    }
}
