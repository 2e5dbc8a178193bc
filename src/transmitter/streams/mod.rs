//! Management of outgoing streams (SSF 1.0 §8.1).
//!
//! A request goes through validation, the ownership check and the log. A stream exists only for its owner and
//! for operators: every operation of another caller finds no stream. Delivery is in [`super::push`] and
//! [`super::poll`].

mod error;
mod excluded_subject;
mod request;

use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

pub(crate) use error::Error;
pub(crate) use request::{Method, StreamInput, UpdateKind};

use self::request::Terms;
use super::obstacle::Obstacles;
use crate::limits;
use crate::outbound::guard::Guard;
use crate::state::{
    self, CallContext, DeadLetter, EventId, LeaseProof, LinearizableRead, Refusal, State, Stream,
    StreamCursor, StreamStatus,
};

/// Manages streams.
pub struct Streams {
    pub issuer: String,
    /// Base URL of this fabric for receivers; `None`: no streams.
    pub base_url: Option<String>,
    /// Decides push endpoints.
    pub guard: Guard,
    /// Finds streams that currently deliver nothing.
    pub obstacles: Obstacles,
    pub state: State,
}

/// A stream with its cursor.
#[derive(Clone, Debug)]
pub struct StreamView {
    /// The stream, paused if an obstacle stops it.
    pub stream: Arc<Stream>,
    pub cursor: Arc<StreamCursor>,
}

impl Streams {
    /// The base URL. Every operation checks it first.
    pub fn base_url(&self) -> Result<&str, Error> {
        self.base_url.as_deref().ok_or(Error::NotConfigured)
    }

    /// Poll endpoint of a stream (RFC 8936 §2).
    pub fn poll_url(&self, stream_id: &str) -> String {
        format!("{}/v1/signals/poll/{stream_id}", self.base_url.as_deref().unwrap_or_default())
    }

    /// Creates a stream; its id is `id_bytes`, 16 random bytes.
    pub async fn create(
        &self,
        input: StreamInput,
        caller: &CallContext,
        id_bytes: [u8; 16],
    ) -> Result<Stream, Error> {
        self.base_url()?;
        let fresh = self.fresh().await?;
        let stream_id = format!("{:032x}", u128::from_be_bytes(id_bytes));
        let poll_url = self.poll_url(&stream_id);
        let push_url = |url: &str| self.check_push_url(url);
        let terms = Terms { issuer: &self.issuer, poll_url: &poll_url, push_url: &push_url };
        let config = request::create(input, &terms, caller.name(), stream_id)?;
        let stream = self.state.on_behalf_of(caller).create_stream(config).await?;
        Ok(Stream::clone(&self.obstacles.effective(&fresh, Arc::new(stream))))
    }

    /// A visible stream; `Refusal::UnknownStream` for one of another owner.
    pub async fn get(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        caller: &CallContext,
    ) -> Result<StreamView, Error> {
        let fresh = self.fresh().await?;
        Ok(self.view(&fresh, self.visible(current, stream_id, caller)?))
    }

    /// At most `limit` visible streams after `after`, and the cursor if there are more.
    pub async fn list(
        &self,
        _current: &LinearizableRead,
        caller: &CallContext,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<StreamView>, Option<String>), Error> {
        self.base_url()?;
        let fresh = self.fresh().await?;
        let streams = self.state.streams();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut visible_streams = streams
            .range::<str, _>((from, Bound::Unbounded))
            .filter(|(_, stream)| stream.answers(caller.id(), caller.is_operator));
        let page: Vec<_> = visible_streams
            .by_ref()
            .take(limit)
            .map(|(_, stream)| self.view(&fresh, Arc::clone(stream)))
            .collect();
        let last = page.last().map(|view| view.stream.config.stream_id.clone());
        Ok((page, visible_streams.next().and(last)))
    }

    /// Changes the fields in `input`, or replaces all. `Refusal::StreamChanged` if concurrent changes persist.
    pub async fn change(
        &self,
        current: &LinearizableRead,
        input: StreamInput,
        kind: UpdateKind,
        caller: &CallContext,
    ) -> Result<StreamView, Error> {
        self.base_url()?;
        let stream_id = input.stream_id.clone();
        let stream_id = stream_id.ok_or_else(|| Error::invalid("stream_id", "is required"))?;
        let poll_url = self.poll_url(&stream_id);
        let push_url = |url: &str| self.check_push_url(url);
        let terms = Terms { issuer: &self.issuer, poll_url: &poll_url, push_url: &push_url };
        let fresh = self.fresh().await?;
        let mut attempts = 1;
        loop {
            // As shown to receivers, which send back what they read.
            let stream = self.obstacles.effective(&fresh, self.visible(current, &stream_id, caller)?);
            let config = request::change(input.clone(), kind, &stream, &terms)?;
            match self.state.on_behalf_of(caller).update_stream(config, stream.revision).await {
                // Overtaken by a concurrent change: the request is applied to the new stream.
                Err(state::Error::Refused(Refusal::StreamChanged))
                    if attempts < limits::STREAM_UPDATE_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                }
                written => return Ok(self.view(&fresh, Arc::new(written?))),
            }
        }
    }

    /// Deletes a stream with its cursor and dead letters.
    pub async fn delete(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        caller: &CallContext,
    ) -> Result<(), Error> {
        self.visible(current, stream_id, caller)?;
        Ok(self.state.on_behalf_of(caller).delete_stream(stream_id).await?)
    }

    /// Changes the status of a stream, from any to any (SSF 1.0 §8.1.2.2).
    pub async fn set_status(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (status, reason): (&str, Option<String>),
        caller: &CallContext,
    ) -> Result<Stream, Error> {
        self.visible(current, stream_id, caller)?;
        let fresh = self.fresh().await?;
        let unknown = |_| Error::invalid("status", "must be enabled, paused or disabled");
        let status: StreamStatus = status.parse().map_err(unknown)?;
        let reason = reason.map(|text| request::bounded("reason", text, limits::STREAM_REASON_BYTES_MAX));
        let reason = reason.transpose()?.unwrap_or_default();
        let stream = self.state.on_behalf_of(caller).set_stream_status(stream_id, status, reason).await?;
        Ok(Stream::clone(&self.obstacles.effective(&fresh, Arc::new(stream))))
    }

    /// Queues a verification event (SSF 1.0 §8.1.4.2).
    pub async fn verify(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        state: Option<String>,
        caller: &CallContext,
    ) -> Result<(), Error> {
        self.visible(current, stream_id, caller)?;
        let max = limits::VERIFICATION_STATE_BYTES_MAX;
        if state.as_ref().is_some_and(|state| state.len() > max) {
            return Err(Error::invalid("state", format!("must be at most {max} bytes")));
        }
        Ok(self.state.on_behalf_of(caller).verify_stream(stream_id, state).await?)
    }

    /// Adds or removes a subject (SSF 1.0 §8.1.3; a new stream includes every subject). Events count from the change
    /// on. [`Error::Invalid`] also if the added subject stays excluded by another removed subject.
    pub async fn change_subject(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (subject, is_removed): (&Value, bool),
        caller: &CallContext,
    ) -> Result<(), Error> {
        let stream = self.visible(current, stream_id, caller)?;
        let subject = excluded_subject::parse(subject)?;
        if !is_removed {
            excluded_subject::check_not_excluded(&subject, &stream.removed_subjects)?;
        }
        let state = self.state.on_behalf_of(caller);
        Ok(state.change_stream_subject(stream_id, &subject, is_removed).await?)
    }

    /// At most `limit` dead letters of a stream after `after`, and the cursor if there are more.
    pub fn dead_letters(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (after, limit): (Option<EventId>, usize),
        caller: &CallContext,
    ) -> Result<(Vec<DeadLetter>, Option<EventId>), Error> {
        self.visible(current, stream_id, caller)?;
        Ok(self.state.dead_letters(stream_id, after, limit)?)
    }

    /// The only check of visibility.
    fn visible(
        &self,
        _current: &LinearizableRead,
        stream_id: &str,
        caller: &CallContext,
    ) -> Result<Arc<Stream>, Error> {
        self.base_url()?;
        let stream =
            self.state.stream(stream_id).filter(|stream| stream.answers(caller.id(), caller.is_operator));
        Ok(stream.ok_or(state::Error::Refused(Refusal::UnknownStream))?)
    }

    async fn fresh(&self) -> Result<LeaseProof, Error> {
        Ok(self.state.fresh().await?)
    }

    fn view(&self, fresh: &LeaseProof, stream: Arc<Stream>) -> StreamView {
        let cursor = self.state.stream_cursor(&stream.config.stream_id).unwrap_or_default();
        StreamView { stream: self.obstacles.effective(fresh, stream), cursor }
    }

    /// Checks the form of a URL; its address is checked at each connection.
    fn check_push_url(&self, url: &str) -> Result<(), String> {
        self.guard.push_url(url).map(drop).map_err(|error| error.to_string())
    }
}
