//! What a receiver asks of its stream, in both shapes: the flat members of the specification, and those of
//! SSF 1.0 §8.1.1. Both may be there if they say the same; nothing that is said is dropped.
//!
//! What is the transmitter's to say may be sent back, as a receiver does that changes what it has read; it must
//! be what the transmitter says.

use url::Url;

use super::Error;
use crate::state::{Stream, StreamConfig};
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::{limits, text};

/// RFC 8935: the transmitter pushes to the receiver.
pub const PUSH: &str = "urn:ietf:rfc:8935";
/// RFC 8936: the receiver polls the transmitter.
pub const POLL: &str = "urn:ietf:rfc:8936";

/// The members of a request, as they came.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// The stream; the transmitter's to say.
    pub stream_id: Option<String>,
    /// The issuer: any in a new stream of the flat shape, otherwise ours.
    pub iss: Option<String>,
    /// Whom the events are meant for; cannot be changed.
    pub aud: Option<String>,
    /// The transmitter's to say.
    pub events_supported: Option<Vec<String>>,
    /// Event types that the receiver wants.
    pub events_requested: Option<Vec<String>>,
    /// In the flat shape: which of those alone. Of a stream that is there, the transmitter's to say.
    pub events_delivered: Option<Vec<String>>,
    /// The transmitter's to say; it is changed elsewhere.
    pub status: Option<String>,
    /// The same.
    pub reason: Option<String>,
    /// Flat: `push` or `poll`.
    pub delivery_method: Option<String>,
    /// Flat: where to push to.
    pub endpoint_url: Option<String>,
    /// SSF: how events are delivered.
    pub delivery: Option<Delivery>,
    /// The transmitter's to say.
    pub min_verification_interval: Option<u64>,
    /// For people.
    pub description: Option<String>,
}

/// `delivery` of SSF 1.0 §6.1.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// `urn:ietf:rfc:8935` or `urn:ietf:rfc:8936`.
    pub method: Option<String>,
    /// Where to push to.
    pub endpoint_url: Option<String>,
    /// Not supported: it would be a secret of the receiver's in the log.
    pub authorization_header: Option<String>,
}

/// How events are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// To the receiver's endpoint.
    Push,
    /// From ours.
    Poll,
}

impl Method {
    /// How a stream is delivered.
    #[must_use]
    pub fn of(config: &StreamConfig) -> Self {
        if config.endpoint_url.is_some() { Self::Push } else { Self::Poll }
    }

    /// As the specification spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Poll => "poll",
        }
    }

    /// As SSF spells it.
    #[must_use]
    pub const fn urn(self) -> &'static str {
        match self {
            Self::Push => PUSH,
            Self::Poll => POLL,
        }
    }
}

/// What every request is checked against.
pub(super) struct Terms<'t> {
    /// Our `iss`.
    pub issuer: &'t str,
    /// Where the stream is polled.
    pub poll_url: &'t str,
    /// What may be pushed to; the text is the rule that an address breaks.
    pub push_url: &'t (dyn Fn(&str) -> Result<(), String> + Sync),
}

/// How much of a stream a change states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// PATCH: what is not stated stays.
    Part,
    /// PUT: what is not stated is gone.
    Whole,
}

/// The stream that is asked for.
pub(super) fn create(
    members: Members,
    terms: &Terms<'_>,
    owner: &str,
    stream_id: String,
) -> Result<StreamConfig, Error> {
    let given = [
        ("stream_id", members.stream_id.is_some()),
        ("events_supported", members.events_supported.is_some()),
        ("status", members.status.is_some()),
        ("reason", members.reason.is_some()),
        ("min_verification_interval", members.min_verification_interval.is_some()),
    ];
    if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Error::invalid(field, "is the transmitter's to say: leave it out"));
    }
    if members.is_flat() {
        members.has_every_flat_member()?;
    }
    let stated = Stated::read(&members)?;
    // The `iss` of the flat shape is whatever its sender calls the transmitter: what the stream answers and carries is
    // ours in any case. In the shape of SSF 1.0 §8.1.1 `iss` is the transmitter's to say.
    if members.delivery.is_some() {
        is_ours(members.iss.as_deref(), terms)?;
    }
    let aud = match members.aud {
        Some(aud) => bounded("aud", aud, limits::URI_BYTES_MAX)?,
        // An SSF receiver does not say it. Who it is, its certificate has said.
        None if !owner.is_empty() => owner.to_owned(),
        None => return Err(Error::invalid("aud", "is required: nobody has said who calls")),
    };
    let events_requested = requested(members.events_requested)?;
    let deliverable = deliverable(&events_requested)?;
    let events_delivered = match members.events_delivered {
        Some(wanted) => narrowed(&wanted, deliverable)?,
        None => deliverable,
    };
    let endpoint_url = match (stated.method.unwrap_or(Method::Poll), stated.endpoint_url) {
        (Method::Push, Some((field, url))) => Some(pushable(field, url, terms)?),
        (Method::Push, None) => return Err(stated_nowhere(stated.field)),
        (Method::Poll, Some((field, _))) => {
            return Err(Error::invalid(field, "is the transmitter's to say for poll: leave it out"));
        }
        (Method::Poll, None) => None,
    };
    Ok(StreamConfig {
        stream_id,
        owner: owner.to_owned(),
        aud,
        events_requested,
        events_delivered,
        endpoint_url,
        description: members.description.map(description).transpose()?,
    })
}

/// What `current` becomes.
pub(super) fn change(
    members: Members,
    extent: Extent,
    current: &Stream,
    terms: &Terms<'_>,
) -> Result<StreamConfig, Error> {
    let config = &current.config;
    is_ours(members.iss.as_deref(), terms)?;
    if members.aud.as_ref().is_some_and(|aud| *aud != config.aud) {
        return Err(Error::invalid("aud", "cannot be changed: make another stream"));
    }
    if members.events_supported.as_ref().is_some_and(|said| !are_same(said, &EVENTS_SUPPORTED)) {
        return Err(Error::invalid("events_supported", "is the transmitter's to say: leave it out"));
    }
    let interval = limits::VERIFICATION_INTERVAL_MIN.as_secs();
    if members.min_verification_interval.is_some_and(|said| said != interval) {
        return Err(Error::invalid("min_verification_interval", "is the transmitter's to say: leave it out"));
    }
    if members.status.as_deref().is_some_and(|status| status != current.status.as_str()) {
        return Err(Error::invalid("status", "is changed with POST /v1/signals/status"));
    }
    if members.reason.is_some() && members.reason != current.reason {
        return Err(Error::invalid("reason", "is changed with POST /v1/signals/status"));
    }
    let stated = Stated::read(&members)?;
    let endpoint_url = endpoint_url(stated, extent, config, terms)?;
    let (events_requested, events_delivered) =
        events(members.events_requested, members.events_delivered, extent, config)?;
    let description = match (members.description.map(description).transpose()?, extent) {
        (None, Extent::Part) => config.description.clone(),
        (said, _) => said,
    };
    Ok(StreamConfig { events_requested, events_delivered, endpoint_url, description, ..config.clone() })
}

impl Members {
    /// The shape of the specification, and of nothing else.
    fn is_flat(&self) -> bool {
        self.delivery.is_none()
            && (self.iss.is_some()
                || self.aud.is_some()
                || self.events_delivered.is_some()
                || self.delivery_method.is_some()
                || self.endpoint_url.is_some())
    }

    /// Specification, "SSF stream request": "Required: yes".
    fn has_every_flat_member(&self) -> Result<(), Error> {
        let needed = [
            ("iss", self.iss.is_some()),
            ("aud", self.aud.is_some()),
            ("events_requested", self.events_requested.is_some()),
            ("delivery_method", self.delivery_method.is_some()),
        ];
        match needed.into_iter().find(|(_, is_given)| !is_given) {
            Some((field, _)) => Err(Error::invalid(field, "is required where there is no delivery")),
            None => Ok(()),
        }
    }
}

/// What both shapes say together about the delivery.
struct Stated {
    method: Option<Method>,
    /// With the name of the member that says it.
    endpoint_url: Option<(&'static str, String)>,
    /// Where an address would stand in the shape that was used.
    field: &'static str,
}

const FLAT_URL: &str = "endpoint_url";
const SSF_URL: &str = "delivery.endpoint_url";

impl Stated {
    fn read(members: &Members) -> Result<Self, Error> {
        let flat = members.delivery_method.as_deref().map(|name| match name {
            "push" => Ok(Method::Push),
            "poll" => Ok(Method::Poll),
            _ => Err(Error::invalid("delivery_method", "must be push or poll")),
        });
        let flat = flat.transpose()?;
        let flat_url = members.endpoint_url.clone().map(|url| (FLAT_URL, url));
        let Some(delivery) = &members.delivery else {
            return Ok(Self { method: flat, endpoint_url: flat_url, field: FLAT_URL });
        };
        if delivery.authorization_header.is_some() {
            let rule = "is not supported: this fabric keeps no secret of a receiver; it signs what it pushes";
            return Err(Error::invalid("delivery.authorization_header", rule));
        }
        let method = match delivery.method.as_deref() {
            Some(PUSH) => Method::Push,
            Some(POLL) => Method::Poll,
            Some(_) => {
                return Err(Error::invalid(
                    "delivery.method",
                    format!("must be {PUSH} (push) or {POLL} (poll)"),
                ));
            }
            None => return Err(Error::invalid("delivery.method", "is required in delivery")),
        };
        if flat.is_some_and(|flat| flat != method) {
            return Err(Error::invalid("delivery_method", "contradicts delivery.method"));
        }
        let url = delivery.endpoint_url.clone().map(|url| (SSF_URL, url));
        if let (Some((_, flat)), Some((_, url))) = (&flat_url, &url)
            && flat != url
        {
            return Err(Error::invalid(FLAT_URL, "contradicts delivery.endpoint_url"));
        }
        Ok(Self { method: Some(method), endpoint_url: url.or(flat_url), field: SSF_URL })
    }
}

/// Where a stream that is there is pushed to from now on; `None` for poll.
fn endpoint_url(
    stated: Stated,
    extent: Extent,
    config: &StreamConfig,
    terms: &Terms<'_>,
) -> Result<Option<String>, Error> {
    let method = match (stated.method, extent) {
        (Some(method), _) => method,
        (None, Extent::Part) => Method::of(config),
        // SSF 1.0 §8.1.1.1: without `delivery` it is poll, and an address alone is no method.
        (None, Extent::Whole)
            if stated.endpoint_url.as_ref().is_some_and(|(_, url)| url != terms.poll_url) =>
        {
            return Err(Error::invalid("delivery_method", "is required with endpoint_url"));
        }
        (None, Extent::Whole) => Method::Poll,
    };
    match (method, stated.endpoint_url, extent) {
        (Method::Push, Some((field, url)), _) => Ok(Some(pushable(field, url, terms)?)),
        (Method::Push, None, Extent::Part) if config.endpoint_url.is_some() => {
            Ok(config.endpoint_url.clone())
        }
        (Method::Push, None, _) => Err(stated_nowhere(stated.field)),
        (Method::Poll, Some((field, url)), _) if url != terms.poll_url => {
            Err(Error::invalid(field, "is the transmitter's to say for poll: leave it out"))
        }
        (Method::Poll, ..) => Ok(None),
    }
}

/// What a stream that is there is asked for and delivers from now on. A receiver may send back what was
/// delivered before, or what will be.
fn events(
    asked: Option<Vec<String>>,
    delivered: Option<Vec<String>>,
    extent: Extent,
    config: &StreamConfig,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let is_stated = asked.is_some() || extent == Extent::Whole;
    let (asked, expected) = if is_stated {
        let asked = requested(asked)?;
        let expected = deliverable(&asked)?;
        (asked, expected)
    } else {
        (config.events_requested.clone(), config.events_delivered.clone())
    };
    let Some(said) = delivered else { return Ok((asked, expected)) };
    if are_same(&said, &config.events_delivered) {
        let is_unchanged = are_same(&asked, &config.events_requested);
        return Ok((asked, if is_unchanged { config.events_delivered.clone() } else { expected }));
    }
    if are_same(&said, &expected) {
        return Ok((asked, expected));
    }
    Err(Error::invalid("events_delivered", "is the transmitter's to say: leave it out"))
}

fn is_ours(iss: Option<&str>, terms: &Terms<'_>) -> Result<(), Error> {
    match iss {
        Some(iss) if iss != terms.issuer => {
            Err(Error::invalid("iss", format!("must be this fabric's own: {}", terms.issuer)))
        }
        _ => Ok(()),
    }
}

fn requested(events: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    const FIELD: &str = "events_requested";
    let events = events.ok_or_else(|| Error::invalid(FIELD, "is required"))?;
    if !(1..=limits::STREAM_EVENTS_REQUESTED_MAX).contains(&events.len()) {
        let most = limits::STREAM_EVENTS_REQUESTED_MAX;
        return Err(Error::invalid(FIELD, format!("must be 1 to {most} event types")));
    }
    match events.iter().position(|event| !is_event_type(event)) {
        Some(at) => {
            let rule = format!("must be an absolute URI of at most {} bytes", limits::EVENT_TYPE_BYTES_MAX);
            Err(Error::invalid(format!("{FIELD}[{at}]"), rule))
        }
        None => Ok(events),
    }
}

fn is_event_type(text: &str) -> bool {
    text.len() <= limits::EVENT_TYPE_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && Url::parse(text).is_ok()
}

/// "`events_delivered` ⊆ supported ∩ requested" (SSF 1.0 §8.1.1): each once, in the order of the request.
fn deliverable(requested: &[String]) -> Result<Vec<String>, Error> {
    let mut delivered: Vec<String> = Vec::new();
    for event in requested {
        if EVENTS_SUPPORTED.contains(&event.as_str()) && !delivered.contains(event) {
            delivered.push(event.clone());
        }
    }
    if delivered.is_empty() {
        let rule = "none of these event types is supported: supported are those of CAEP 1.0 and RISC 1.0";
        return Err(Error::invalid("events_requested", rule));
    }
    Ok(delivered)
}

/// Only what the receiver wants of what can be delivered.
fn narrowed(wanted: &[String], deliverable: Vec<String>) -> Result<Vec<String>, Error> {
    const FIELD: &str = "events_delivered";
    if let Some(at) = wanted.iter().position(|event| !deliverable.contains(event)) {
        let rule = "must be one of events_requested that is supported";
        return Err(Error::invalid(format!("{FIELD}[{at}]"), rule));
    }
    if wanted.is_empty() {
        return Err(Error::invalid(FIELD, "must not be empty"));
    }
    Ok(deliverable.into_iter().filter(|event| wanted.contains(event)).collect())
}

/// Whether two lists name the same, in whatever order.
fn are_same<S: AsRef<str>, T: AsRef<str>>(one: &[S], other: &[T]) -> bool {
    let names = |name: &str, list: &[T]| list.iter().any(|one| one.as_ref() == name);
    one.iter().all(|name| names(name.as_ref(), other))
        && other.iter().all(|name| one.iter().any(|one| one.as_ref() == name.as_ref()))
}

fn pushable(field: &str, url: String, terms: &Terms<'_>) -> Result<String, Error> {
    (terms.push_url)(&url).map_err(|rule| Error::invalid(field, rule))?;
    Ok(url)
}

fn stated_nowhere(field: &str) -> Error {
    Error::invalid(field, "is required for push")
}

fn description(text: String) -> Result<String, Error> {
    bounded("description", text, limits::STREAM_DESCRIPTION_BYTES_MAX)
}

/// The text, if it is not empty, has at most `most` bytes and no control character.
pub(super) fn bounded(field: &str, text: String, most: usize) -> Result<String, Error> {
    if text::is_display(&text, most) {
        Ok(text)
    } else {
        Err(Error::invalid(field, format!("must be 1 to {most} bytes without control characters")))
    }
}

#[cfg(test)]
mod tests;
