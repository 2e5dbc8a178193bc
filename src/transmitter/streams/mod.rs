//! Streams of signals that go out: who has which, and what each is asked for (SSF 1.0 §8.1).
//!
//! request → stream of this caller → the log. A stream answers only whoever made it, and operators: to everybody
//! else it is not there, in every operation. How events are delivered is not decided here.

mod error;
mod excluded_subject;
mod request;

use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

pub use error::Error;
pub use request::{Delivery, Extent, Members, Method};

use self::request::Terms;
use super::obstacle::Obstacles;
use crate::limits;
use crate::outbound::guard::Guard;
use crate::state::{
    self, CallerFacts, DeadLetter, EventId, Idempotency, LeaseProof, LinearizableRead, State, Stream,
    StreamCursor, StreamStatus,
};

/// Everything that the management of streams needs.
pub struct Streams {
    /// Our `iss`.
    pub issuer: String,
    /// Where receivers reach this fabric; `None`: there are no streams.
    pub base_url: Option<String>,
    /// What may be pushed to.
    pub guard: Guard,
    /// Finds streams that deliver nothing now.
    pub obstacles: Obstacles,
    /// The replicated state.
    pub state: State,
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// As authenticated; `None` for nobody, which only development mode knows.
    pub id: Option<String>,
    /// Whether it may see and change the streams of others.
    pub is_operator: bool,
    /// The facts by which the caller is judged when its commands are applied.
    pub facts: Arc<CallerFacts>,
    /// Its `Idempotency-Key`, with the request.
    pub idempotency: Option<Idempotency>,
}

impl Caller {
    /// As the log has it: empty for nobody.
    fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    fn may_see(&self, stream: &Stream) -> bool {
        stream.answers(self.id.as_deref(), self.is_operator)
    }
}

/// A stream as it is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What it is asked for.
    pub stream: Arc<Stream>,
    /// How far it is.
    pub cursor: Arc<StreamCursor>,
}

impl Streams {
    /// Where receivers reach this fabric. Asked first: without it nothing here answers.
    ///
    /// # Errors
    /// [`Error::NotConfigured`].
    pub fn configured(&self) -> Result<&str, Error> {
        self.base_url.as_deref().ok_or(Error::NotConfigured)
    }

    /// Where a stream is polled (RFC 8936 §2): its own address.
    #[must_use]
    pub fn poll_url(&self, stream_id: &str) -> String {
        format!("{}/v1/signals/poll/{stream_id}", self.base_url.as_deref().unwrap_or_default())
    }

    /// Makes a stream, under an id of the bytes that were `drawn`.
    ///
    /// # Errors
    /// As [`Error`] says. A refused request changes nothing.
    pub async fn create(&self, members: Members, caller: &Caller, drawn: [u8; 16]) -> Result<Stream, Error> {
        self.configured()?;
        let fresh = self.fresh().await?;
        let stream_id = format!("{:032x}", u128::from_be_bytes(drawn));
        let poll_url = self.poll_url(&stream_id);
        let push_url = |url: &str| self.may_push_to(url);
        let terms = Terms { issuer: &self.issuer, poll_url: &poll_url, push_url: &push_url };
        let config = request::create(members, &terms, caller.name(), stream_id)?;
        let stream = self.state.on_behalf_of(&caller.facts).create_stream(config, caller.idempotency).await?;
        Ok(Stream::clone(&self.obstacles.shown(&fresh, Arc::new(stream))))
    }

    /// A stream of this caller.
    ///
    /// # Errors
    /// [`state::Error::UnknownStream`] also for a stream of somebody else; [`Error::NotConfigured`].
    pub async fn show(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        caller: &Caller,
    ) -> Result<Shown, Error> {
        let fresh = self.fresh().await?;
        Ok(self.shown(&fresh, self.of(current, stream_id, caller)?))
    }

    /// At most `limit` of the streams behind `after` that this caller made, an operator of all; and behind which
    /// there are more.
    ///
    /// # Errors
    /// [`Error::NotConfigured`].
    pub async fn list(
        &self,
        _current: &LinearizableRead,
        caller: &Caller,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Shown>, Option<String>), Error> {
        self.configured()?;
        let fresh = self.fresh().await?;
        let streams = self.state.streams();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut visible =
            streams.range::<str, _>((from, Bound::Unbounded)).filter(|(_, stream)| caller.may_see(stream));
        let page: Vec<_> =
            visible.by_ref().take(limit).map(|(_, stream)| self.shown(&fresh, Arc::clone(stream))).collect();
        let last = page.last().map(|shown| shown.stream.config.stream_id.clone());
        Ok((page, visible.next().and(last)))
    }

    /// Changes a stream: what `members` state of it, or all of it.
    ///
    /// # Errors
    /// As [`Error`] says; [`state::Error::StreamChanged`] if others keep changing it.
    pub async fn change(
        &self,
        current: &LinearizableRead,
        members: Members,
        extent: Extent,
        caller: &Caller,
    ) -> Result<Shown, Error> {
        self.configured()?;
        let stream_id = members.stream_id.clone();
        let stream_id = stream_id.ok_or_else(|| Error::invalid("stream_id", "is required"))?;
        let poll_url = self.poll_url(&stream_id);
        let push_url = |url: &str| self.may_push_to(url);
        let terms = Terms { issuer: &self.issuer, poll_url: &poll_url, push_url: &push_url };
        let fresh = self.fresh().await?;
        let mut attempts = 1;
        loop {
            // As it is shown: a receiver may send back what it read.
            let stream = self.obstacles.shown(&fresh, self.of(current, &stream_id, caller)?);
            let config = request::change(members.clone(), extent, &stream, &terms)?;
            match self.state.on_behalf_of(&caller.facts).update_stream(config, stream.revision).await {
                // Somebody else was faster: what was stated holds for what the stream is now.
                Err(state::Error::StreamChanged) if attempts < limits::STREAM_UPDATE_ATTEMPTS_MAX => {
                    attempts += 1;
                }
                written => return Ok(self.shown(&fresh, Arc::new(written?))),
            }
        }
    }

    /// Deletes a stream, with all that it holds.
    ///
    /// # Errors
    /// [`state::Error::UnknownStream`] also for a stream of somebody else.
    pub async fn delete(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        caller: &Caller,
    ) -> Result<(), Error> {
        self.of(current, stream_id, caller)?;
        Ok(self.state.on_behalf_of(&caller.facts).delete_stream(stream_id).await?)
    }

    /// Changes the status of a stream, from any to any (SSF 1.0 §8.1.2.2).
    ///
    /// # Errors
    /// [`Error::Invalid`], [`state::Error::UnknownStream`].
    pub async fn set_status(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (status, reason): (&str, Option<String>),
        caller: &Caller,
    ) -> Result<Stream, Error> {
        self.of(current, stream_id, caller)?;
        let fresh = self.fresh().await?;
        let unknown = |_| Error::invalid("status", "must be enabled, paused or disabled");
        let status: StreamStatus = status.parse().map_err(unknown)?;
        let reason = reason.map(|text| request::bounded("reason", text, limits::STREAM_REASON_BYTES_MAX));
        let reason = reason.transpose()?.unwrap_or_default();
        let stream =
            self.state.on_behalf_of(&caller.facts).set_stream_status(stream_id, status, reason).await?;
        Ok(Stream::clone(&self.obstacles.shown(&fresh, Arc::new(stream))))
    }

    /// Has a verification event sent (SSF 1.0 §8.1.4.2).
    ///
    /// # Errors
    /// [`state::Error::StreamNotEnabled`], [`state::Error::VerifiedTooOften`], [`Error::Invalid`], [`state::Error::UnknownStream`].
    pub async fn verify(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        state: Option<String>,
        caller: &Caller,
    ) -> Result<(), Error> {
        self.of(current, stream_id, caller)?;
        let most = limits::VERIFICATION_STATE_BYTES_MAX;
        if state.as_ref().is_some_and(|state| state.len() > most) {
            return Err(Error::invalid("state", format!("must be at most {most} bytes")));
        }
        Ok(self.state.on_behalf_of(&caller.facts).verify_stream(stream_id, state).await?)
    }

    /// Has a stream told about a subject, or no longer: SSF 1.0 §8.1.3, where every subject is there at first. One
    /// that is added is told about from there on.
    ///
    /// # Errors
    /// [`Error::Invalid`], also if it stays removed because it matches another that is; [`state::Error::UnknownStream`], [`state::Error::TooManySubjects`].
    pub async fn change_subject(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (subject, is_removed): (&Value, bool),
        caller: &Caller,
    ) -> Result<(), Error> {
        let stream = self.of(current, stream_id, caller)?;
        let subject = excluded_subject::read(subject)?;
        if !is_removed {
            excluded_subject::is_not_left_out(&subject, &stream.removed_subjects)?;
        }
        let state = self.state.on_behalf_of(&caller.facts);
        Ok(state.change_stream_subject(stream_id, &subject, is_removed).await?)
    }

    /// At most `limit` of the events of a stream behind `after` that its receiver refused for good, and behind
    /// which there are more.
    ///
    /// # Errors
    /// [`state::Error::UnknownStream`], [`state::Error::Damaged`].
    pub fn dead_letters(
        &self,
        current: &LinearizableRead,
        stream_id: &str,
        (after, limit): (Option<EventId>, usize),
        caller: &Caller,
    ) -> Result<(Vec<DeadLetter>, Option<EventId>), Error> {
        self.of(current, stream_id, caller)?;
        Ok(self.state.dead_letters(stream_id, after, limit)?)
    }

    /// The one place that says who sees a stream.
    fn of(
        &self,
        _current: &LinearizableRead,
        stream_id: &str,
        caller: &Caller,
    ) -> Result<Arc<Stream>, Error> {
        self.configured()?;
        let stream = self.state.stream(stream_id).filter(|stream| caller.may_see(stream));
        Ok(stream.ok_or(state::Error::UnknownStream)?)
    }

    async fn fresh(&self) -> Result<LeaseProof, Error> {
        Ok(self.state.fresh().await?)
    }

    fn shown(&self, fresh: &LeaseProof, stream: Arc<Stream>) -> Shown {
        let cursor = self.state.stream_cursor(&stream.config.stream_id).unwrap_or_default();
        Shown { stream: self.obstacles.shown(fresh, stream), cursor }
    }

    /// What an address looks like is judged here; where it leads, whenever it is connected to.
    fn may_push_to(&self, url: &str) -> Result<(), String> {
        self.guard.push_url(url).map(drop).map_err(|error| error.to_string())
    }
}
