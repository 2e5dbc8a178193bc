//! Validation of stream requests in both shapes: the flat fields of the specification, and those of SSF 1.0 §8.1.1.
//! A request may mix them without contradiction; every stated field is used or refused.
//!
//! Fields that the transmitter sets may be sent back, because receivers change what they have read; they must be
//! unchanged.

use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::ToSchema;

use super::Error;
use crate::state::{Stream, StreamConfig};
use crate::text::values;
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::{limits, text};

/// Push delivery (RFC 8935).
pub const PUSH: &str = "urn:ietf:rfc:8935";
/// Poll delivery (RFC 8936).
pub const POLL: &str = "urn:ietf:rfc:8936";

/// Fields of a stream configuration, in the flat shape of the specification (`delivery_method`, `endpoint_url`), in that of SSF
/// (`delivery`), or in both if they agree. An unknown field is refused.
///
/// The flat shape requires `iss`, `aud`, `events_requested` and `delivery_method`. In that of SSF the default of `aud` is
/// the caller, and the default of `delivery` is poll.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = StreamRequest)]
pub struct StreamInput {
    /// The stream: required by PATCH and PUT.
    pub stream_id: Option<String>,
    /// In the flat shape of POST any issuer: the response and every event carry ours. Otherwise ours, or absent.
    pub iss: Option<String>,
    /// The audience of the events. It cannot be changed.
    pub aud: Option<String>,
    /// 1 to 64 URIs of event types, at least one of them supported. Types added by PATCH or PUT apply to later events.
    pub events_requested: Option<Vec<String>>,
    /// In the flat shape: a subset of `events_requested`. In PATCH and PUT: as it was read, or absent.
    pub events_delivered: Option<Vec<String>>,
    /// The delivery method in the flat shape.
    #[schema(value_type = Option<values::DeliveryMethod>)]
    pub delivery_method: Option<String>,
    /// The push endpoint: https, or http for `localhost` and `127.0.0.1`.
    pub endpoint_url: Option<String>,
    /// The delivery method in the shape of SSF.
    pub delivery: Option<Delivery>,
    /// Human-readable: 1 to 256 bytes.
    pub description: Option<String>,
    /// Set by the transmitter: in PATCH and PUT as it was read, or absent.
    pub events_supported: Option<Vec<String>>,
    /// Set by the transmitter, and changed with `POST /v1/signals/status`.
    pub status: Option<String>,
    /// Set by the transmitter.
    pub reason: Option<String>,
    /// Set by the transmitter.
    pub min_verification_interval: Option<u64>,
    /// In PATCH and PUT only, and ignored.
    pub delivered: Option<u64>,
    /// In PATCH and PUT only, and ignored.
    pub dropped: Option<u64>,
    /// In PATCH and PUT only, and ignored.
    pub dead_letters: Option<u64>,
}

/// The delivery method (SSF 1.0 §6.1).
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = DeliveryRequest)]
pub struct Delivery {
    /// Push (RFC 8935) or poll (RFC 8936).
    #[schema(required = true, value_type = values::DeliveryMethodUrn)]
    pub method: Option<String>,
    /// The push endpoint.
    pub endpoint_url: Option<String>,
    /// Not supported, so that no secret of a receiver is stored. Receivers verify the signature of the token.
    pub authorization_header: Option<String>,
}

/// Delivery method of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Method {
    /// We send to the receiver's endpoint (RFC 8935).
    Push,
    /// The receiver polls our endpoint (RFC 8936).
    Poll,
}

impl Method {
    /// The method of a configured stream.
    pub fn of(config: &StreamConfig) -> Self {
        if config.endpoint_url.is_some() { Self::Push } else { Self::Poll }
    }

    /// Its name in the SSF shape.
    pub const fn urn(self) -> &'static str {
        match self {
            Self::Push => PUSH,
            Self::Poll => POLL,
        }
    }
}

/// Conditions of the transmitter for every request.
pub(super) struct Terms<'t> {
    pub issuer: &'t str,
    /// Poll endpoint of the stream.
    pub poll_url: &'t str,
    /// Checks a push endpoint; the error is the rule that it breaks.
    pub push_url: &'t (dyn Fn(&str) -> Result<(), String> + Sync),
}

/// Extent of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// PATCH: absent fields stay.
    Patch,
    /// PUT: absent fields are removed.
    Replace,
}

/// Validates a new stream.
pub(super) fn create(
    input: StreamInput,
    terms: &Terms<'_>,
    owner: &str,
    stream_id: String,
) -> Result<StreamConfig, Error> {
    let transmitter_fields = [
        ("stream_id", input.stream_id.is_some()),
        ("events_supported", input.events_supported.is_some()),
        ("status", input.status.is_some()),
        ("reason", input.reason.is_some()),
        ("min_verification_interval", input.min_verification_interval.is_some()),
        ("delivered", input.delivered.is_some()),
        ("dropped", input.dropped.is_some()),
        ("dead_letters", input.dead_letters.is_some()),
    ];
    if let Some((field, _)) = transmitter_fields.into_iter().find(|(_, is_present)| *is_present) {
        return Err(Error::invalid(field, "is set by the transmitter; omit it"));
    }
    if input.is_flat() {
        input.check_flat_fields()?;
    }
    let stated = StatedDelivery::parse(&input)?;
    // In the flat shape `iss` is whatever the receiver calls the transmitter; responses and tokens contain ours. In the
    // shape of SSF 1.0 §8.1.1 the transmitter sets `iss`.
    if input.delivery.is_some() {
        check_issuer(input.iss.as_deref(), terms)?;
    }
    let aud = match input.aud {
        Some(aud) => bounded("aud", aud, limits::URI_BYTES_MAX)?,
        // An SSF receiver does not state it; its certificate identifies it.
        None if !owner.is_empty() => owner.to_owned(),
        None => return Err(Error::invalid("aud", "is required from an anonymous caller")),
    };
    let events_requested = validate_requested(input.events_requested)?;
    let deliverable = deliverable(&events_requested)?;
    let events_delivered = match input.events_delivered {
        Some(wanted) => narrow(&wanted, deliverable)?,
        None => deliverable,
    };
    let endpoint_url = match (stated.method.unwrap_or(Method::Poll), stated.endpoint_url) {
        (Method::Push, Some((field, url))) => Some(check_endpoint(field, url, terms)?),
        (Method::Push, None) => return Err(missing_endpoint(stated.field)),
        (Method::Poll, Some((field, _))) => {
            return Err(Error::invalid(field, "is set by the transmitter for poll; omit it"));
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
        description: input.description.map(description).transpose()?,
    })
}

/// Validates a change of `current`.
pub(super) fn change(
    input: StreamInput,
    kind: UpdateKind,
    current: &Stream,
    terms: &Terms<'_>,
) -> Result<StreamConfig, Error> {
    let config = &current.config;
    check_issuer(input.iss.as_deref(), terms)?;
    if input.aud.as_ref().is_some_and(|aud| *aud != config.aud) {
        return Err(Error::invalid("aud", "cannot be changed: create another stream"));
    }
    if input.events_supported.as_ref().is_some_and(|stated| !same_elements(stated, &EVENTS_SUPPORTED)) {
        return Err(Error::invalid("events_supported", "is set by the transmitter; omit it"));
    }
    let interval = limits::VERIFICATION_INTERVAL_MIN.as_secs();
    if input.min_verification_interval.is_some_and(|stated| stated != interval) {
        return Err(Error::invalid("min_verification_interval", "is set by the transmitter; omit it"));
    }
    if input.status.as_deref().is_some_and(|status| status != current.status.into_str()) {
        return Err(Error::invalid("status", "is changed with POST /v1/signals/status"));
    }
    if input.reason.is_some() && input.reason != current.reason {
        return Err(Error::invalid("reason", "is changed with POST /v1/signals/status"));
    }
    let stated = StatedDelivery::parse(&input)?;
    let endpoint_url = endpoint_url(stated, kind, config, terms)?;
    let (events_requested, events_delivered) =
        events(input.events_requested, input.events_delivered, kind, config)?;
    let description = match (input.description.map(description).transpose()?, kind) {
        (None, UpdateKind::Patch) => config.description.clone(),
        (stated, _) => stated,
    };
    Ok(StreamConfig { events_requested, events_delivered, endpoint_url, description, ..config.clone() })
}

impl StreamInput {
    /// Whether the request uses the flat shape only.
    fn is_flat(&self) -> bool {
        self.delivery.is_none()
            && (self.iss.is_some()
                || self.aud.is_some()
                || self.events_delivered.is_some()
                || self.delivery_method.is_some()
                || self.endpoint_url.is_some())
    }

    /// Specification, "SSF stream request": "Required: yes".
    fn check_flat_fields(&self) -> Result<(), Error> {
        let required = [
            ("iss", self.iss.is_some()),
            ("aud", self.aud.is_some()),
            ("events_requested", self.events_requested.is_some()),
            ("delivery_method", self.delivery_method.is_some()),
        ];
        match required.into_iter().find(|(_, is_present)| !is_present) {
            Some((field, _)) => Err(Error::invalid(field, "is required where there is no delivery")),
            None => Ok(()),
        }
    }
}

/// The delivery that both shapes state together.
struct StatedDelivery {
    method: Option<Method>,
    /// With the name of its field.
    endpoint_url: Option<(&'static str, String)>,
    /// The endpoint field of the shape that was used.
    field: &'static str,
}

const FLAT_URL: &str = "endpoint_url";
const SSF_URL: &str = "delivery.endpoint_url";

impl StatedDelivery {
    fn parse(input: &StreamInput) -> Result<Self, Error> {
        let flat = input.delivery_method.as_deref().map(|name| match name {
            "push" => Ok(Method::Push),
            "poll" => Ok(Method::Poll),
            _ => Err(Error::invalid("delivery_method", "must be push or poll")),
        });
        let flat = flat.transpose()?;
        let flat_url = input.endpoint_url.clone().map(|url| (FLAT_URL, url));
        let Some(delivery) = &input.delivery else {
            return Ok(Self { method: flat, endpoint_url: flat_url, field: FLAT_URL });
        };
        if delivery.authorization_header.is_some() {
            let rule = "is not supported: this fabric stores no secret of a receiver; it signs pushed events";
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

/// New push endpoint of an existing stream; `None` for poll.
fn endpoint_url(
    stated: StatedDelivery,
    kind: UpdateKind,
    config: &StreamConfig,
    terms: &Terms<'_>,
) -> Result<Option<String>, Error> {
    let method = match (stated.method, kind) {
        (Some(method), _) => method,
        (None, UpdateKind::Patch) => Method::of(config),
        // SSF 1.0 §8.1.1.1: absent `delivery` means poll; an endpoint alone is no method.
        (None, UpdateKind::Replace)
            if stated.endpoint_url.as_ref().is_some_and(|(_, url)| url != terms.poll_url) =>
        {
            return Err(Error::invalid("delivery_method", "is required with endpoint_url"));
        }
        (None, UpdateKind::Replace) => Method::Poll,
    };
    match (method, stated.endpoint_url, kind) {
        (Method::Push, Some((field, url)), _) => Ok(Some(check_endpoint(field, url, terms)?)),
        (Method::Push, None, UpdateKind::Patch) if config.endpoint_url.is_some() => {
            Ok(config.endpoint_url.clone())
        }
        (Method::Push, None, _) => Err(missing_endpoint(stated.field)),
        (Method::Poll, Some((field, url)), _) if url != terms.poll_url => {
            Err(Error::invalid(field, "is set by the transmitter for poll; omit it"))
        }
        (Method::Poll, ..) => Ok(None),
    }
}

/// New requested and delivered event types of an existing stream. A receiver may send back the delivered types of
/// before the change or of after it.
fn events(
    requested: Option<Vec<String>>,
    delivered: Option<Vec<String>>,
    kind: UpdateKind,
    config: &StreamConfig,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let is_stated = requested.is_some() || kind == UpdateKind::Replace;
    let (requested, expected) = if is_stated {
        let requested = validate_requested(requested)?;
        let expected = deliverable(&requested)?;
        (requested, expected)
    } else {
        (config.events_requested.clone(), config.events_delivered.clone())
    };
    let Some(stated) = delivered else { return Ok((requested, expected)) };
    if same_elements(&stated, &config.events_delivered) {
        let is_unchanged = same_elements(&requested, &config.events_requested);
        return Ok((requested, if is_unchanged { config.events_delivered.clone() } else { expected }));
    }
    if same_elements(&stated, &expected) {
        return Ok((requested, expected));
    }
    Err(Error::invalid("events_delivered", "is set by the transmitter; omit it"))
}

fn check_issuer(iss: Option<&str>, terms: &Terms<'_>) -> Result<(), Error> {
    match iss {
        Some(iss) if iss != terms.issuer => {
            Err(Error::invalid("iss", format!("must be this fabric's own: {}", terms.issuer)))
        }
        _ => Ok(()),
    }
}

fn validate_requested(events: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    const FIELD: &str = "events_requested";
    let events = events.ok_or_else(|| Error::invalid(FIELD, "is required"))?;
    if !(1..=limits::STREAM_EVENT_TYPES_MAX).contains(&events.len()) {
        let max = limits::STREAM_EVENT_TYPES_MAX;
        return Err(Error::invalid(FIELD, format!("must be 1 to {max} event types")));
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

/// "`events_delivered` ⊆ supported ∩ requested" (SSF 1.0 §8.1.1), without duplicates, in order of the request.
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

/// The subset of the deliverable types that the receiver wants.
fn narrow(wanted: &[String], deliverable: Vec<String>) -> Result<Vec<String>, Error> {
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

/// Whether two lists have the same elements, in any order.
fn same_elements<S: AsRef<str>, T: AsRef<str>>(one: &[S], other: &[T]) -> bool {
    let names = |name: &str, list: &[T]| list.iter().any(|one| one.as_ref() == name);
    one.iter().all(|name| names(name.as_ref(), other))
        && other.iter().all(|name| one.iter().any(|one| one.as_ref() == name.as_ref()))
}

fn check_endpoint(field: &str, url: String, terms: &Terms<'_>) -> Result<String, Error> {
    (terms.push_url)(&url).map_err(|rule| Error::invalid(field, rule))?;
    Ok(url)
}

fn missing_endpoint(field: &str) -> Error {
    Error::invalid(field, "is required for push")
}

fn description(text: String) -> Result<String, Error> {
    bounded("description", text, limits::STREAM_DESCRIPTION_BYTES_MAX)
}

/// The text, if it has 1 to `max` bytes and no control character.
pub(super) fn bounded(field: &str, text: String, max: usize) -> Result<String, Error> {
    if text::is_display(&text, max) {
        Ok(text)
    } else {
        Err(Error::invalid(field, format!("must be 1 to {max} bytes without control characters")))
    }
}

#[cfg(test)]
mod tests;
