//! `svc_ssf_stream`: a stream of security events to a receiver (SSF 1.0).
//!
//! Only a certificate creates a stream, and only its creator and operators see it. Every other request therefore uses the
//! certificate too, if there is one.

use serde_json::{Value as Json, json};
use trust_fabric_client::{Method, Request, Response};

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::private::Private;
use crate::resource::{Found, Operation, Planned, Resource, Route, Unfinished, invalid};
use crate::rules;
use crate::schema::{Attribute, TIMEOUTS, Table, Type};
use crate::value::{self, Object, Value};

/// The resource type.
pub struct SsfStream;

static TABLE: Table = Table {
    name: "svc_ssf_stream",
    summary: "A stream of security events to a receiver, by push (RFC 8935) or poll (RFC 8936).",
    attributes: &[
        Attribute::required("audience", Type::Text, "`aud` of the events.")
            .wire("aud")
            .replaces()
            .rule(rules::audience),
        Attribute::optional_computed(
            "issuer",
            Type::Text,
            "`iss` of the events: that of the fabric. Another one is refused.",
        )
        .wire("iss")
        .replaces(),
        Attribute::required("events_requested", Type::TextSet, "URIs of the requested event types.")
            .rule(rules::event_type)
            .members(1, 64),
        Attribute::optional_computed(
            "events_delivered",
            Type::TextSet,
            "Event types to deliver, of those that are requested; by default all that the fabric supports. While it is \
             configured, a change of it or of `events_requested` replaces the stream.",
        )
        .rule(rules::event_type)
        .members(1, 64)
        .volatile(),
        Attribute::required("delivery_method", Type::Text, "`push` or `poll`.").rule(rules::delivery_method),
        Attribute::optional(
            "endpoint_url",
            Type::Text,
            "The receiver's endpoint, required with `push`: https, or http for `localhost` and `127.0.0.1`. It may \
             contain the receiver's secret.",
        )
        .sensitive()
        .rule(rules::push_url),
        Attribute::optional("description", Type::Text, "Description for people.").rule(rules::display),
        Attribute::optional_computed(
            "status",
            Type::Text,
            "`enabled`, `paused` (events are retained) or `disabled` (events are not retained). If it is not \
             configured, a change by the fabric is shown and not undone.",
        )
        .rule(rules::stream_status)
        .volatile(),
        Attribute::computed("stream_id", Type::Text, "Identifier of the stream."),
        Attribute::computed("id", Type::Text, "The `stream_id`.").wire("stream_id"),
        Attribute::computed("poll_url", Type::Text, "The endpoint to poll, with `poll`."),
        Attribute::computed("reason", Type::Text, "Reason of the status.").volatile(),
        Attribute::computed("events_supported", Type::TextSet, "Event types that the fabric supports."),
        TIMEOUTS,
    ],
    import: Some("stream_id"),
    example: include_str!("../../examples/svc_ssf_stream.tf"),
    notes: "\
- Creation takes a client certificate with the capability `streams.manage`; a token is not accepted. Every other
  request uses the certificate too, if the provider has one.
- Another identity than the creator does not see the stream. The provider then reports an error that names both
  identities; it does not take the stream for deleted.
- A fabric that cannot deliver pauses the stream and states a reason, which a refresh shows as a warning. With
  `status = \"enabled\"` the next apply enables the stream again.
- Counters of the stream are not attributes, because they change at any time: `trust-fabric stream show <stream_id>` shows
  them.",
};

/// The attributes that a request states.
const STATED: [&str; 7] = [
    "audience",
    "issuer",
    "events_requested",
    "events_delivered",
    "delivery_method",
    "endpoint_url",
    "description",
];

/// The attributes that only a record states.
const RECORDED: [&str; 5] = ["status", "stream_id", "id", "reason", "events_supported"];

/// The credential of every request but the creation.
const CREDENTIAL: Credential = Credential::CertificateFirst;

const STREAM: [&str; 3] = ["v1", "signals", "stream"];

#[tonic::async_trait]
impl Resource for SsfStream {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn noun(&self) -> &'static str {
        "stream"
    }

    fn route(&self, operation: Operation) -> Route {
        let (credential, name) = match operation {
            Operation::Create => (Credential::Certificate, "POST /v1/signals/stream"),
            Operation::Read => (CREDENTIAL, "GET /v1/signals/stream"),
            Operation::Update => (CREDENTIAL, "PUT /v1/signals/stream"),
            Operation::Delete => (CREDENTIAL, "DELETE /v1/signals/stream"),
        };
        Route { credential, name }
    }

    fn is_hidden_from_others(&self) -> bool {
        true
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        match (config.text("delivery_method"), config.value("endpoint_url")) {
            (Some("push"), Value::Null) => {
                vec![invalid("endpoint_url", "endpoint_url: is required for push")]
            }
            (Some("poll"), url) if url.is_stated() => {
                vec![invalid(
                    "endpoint_url",
                    "endpoint_url: must not be stated for poll; poll_url is the endpoint",
                )]
            }
            _ => Vec::new(),
        }
    }

    fn plan(&self, prior: Option<&Object>, config: &Object, planned: &mut Planned) {
        let is_same = |name: &str| prior.is_some_and(|prior| prior.value(name) == planned.state.value(name));
        let same_method = is_same("delivery_method");
        let changed: Vec<_> =
            ["events_requested", "events_delivered"].into_iter().filter(|name| !is_same(name)).collect();
        let poll_url = match (planned.state.text("delivery_method"), prior) {
            (_, Some(prior)) if same_method => prior.value("poll_url").clone(),
            (Some("push"), _) => Value::Null,
            _ => Value::Unknown,
        };
        planned.state.set("poll_url", poll_url);
        let Some(prior) = prior else { return };
        if config.value("events_delivered").is_null() {
            // The fabric computes them anew only if others are requested.
            if !changed.contains(&"events_requested") {
                planned.state.set("events_delivered", prior.value("events_delivered").clone());
            }
        } else {
            // The fabric narrows them at the creation only. Terraform ignores an attribute that does not change itself.
            planned.replaces.extend(changed);
        }
    }

    fn advice(&self, operation: Operation, status: u16) -> Option<&'static str> {
        match (operation, status) {
            (Operation::Create, 404) => {
                Some("The transmitter of security events is not configured at the node.")
            }
            (Operation::Create, 409) => {
                Some("The quota of streams is used up, of the fabric or of this identity.")
            }
            (_, 409) => Some("The stream was changed outside of Terraform at the same time; run plan again."),
            _ => None,
        }
    }

    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished> {
        let issuer = issuer(call, planned).await?;
        let planned = planned.clone().with("issuer", Value::text(issuer));
        let body = value::json::body(&planned, TABLE.attributes, &STATED);
        let response = call.send(Credential::Certificate, Request::post(&STREAM, &body)).await?;
        let mut found = state(&response)?;
        found.private.owner = call.identity(Credential::Certificate);
        set_status(call, &planned, found).await
    }

    async fn read(&self, call: &Call<'_>, state_before: &Object) -> Result<Option<Found>, Failure> {
        let query = [("stream_id", state_before.text("stream_id").unwrap_or_default())];
        let response = match call.send(CREDENTIAL, Request { query: &query, ..Request::get(&STREAM) }).await {
            Ok(response) => response,
            Err(failure) if failure.status() == Some(404) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let mut found = state(&response)?;
        found.warnings.extend(interruption(&found.observed));
        Ok(Some(found))
    }

    async fn update(
        &self,
        call: &Call<'_>,
        prior: &Object,
        planned: &Object,
        _private: &Private,
    ) -> Result<Found, Unfinished> {
        let mut body = value::json::body(planned, TABLE.attributes, &STATED);
        body["stream_id"] = prior.text("stream_id").unwrap_or_default().into();
        let request = Request { method: Method::PUT, ..Request::post(&STREAM, &body) };
        let found = state(&call.send(CREDENTIAL, request).await?)?;
        set_status(call, planned, found).await
    }

    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure> {
        let query = [("stream_id", state.text("stream_id").unwrap_or_default())];
        let request = Request { method: Method::DELETE, query: &query, ..Request::get(&STREAM) };
        match call.send(CREDENTIAL, request).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.status() == Some(404) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// The issuer of the fabric; a configured one must be the same.
async fn issuer(call: &Call<'_>, planned: &Object) -> Result<String, Failure> {
    let path = [".well-known", "ssf-configuration"];
    let response = call.send(CREDENTIAL, Request::get(&path)).await?;
    let issuer = response.body.get("issuer").and_then(Json::as_str).unwrap_or_default();
    match planned.text("issuer") {
        Some(stated) if stated != issuer => {
            let rule = format!("issuer: must be that of the fabric, {issuer}, or absent");
            Err(Failure::Invalid { attribute: "issuer", rule })
        }
        _ => Ok(issuer.to_owned()),
    }
}

/// Sets the planned status, if the stream has another.
async fn set_status(call: &Call<'_>, planned: &Object, mut found: Found) -> Result<Found, Unfinished> {
    let status = planned.text("status");
    if let (Some(status), Some(stream_id)) = (status, found.observed.text("stream_id"))
        && found.observed.text("status") != Some(status)
    {
        let body = json!({ "stream_id": stream_id, "status": status });
        let response = call.send(CREDENTIAL, Request::post(&["v1", "signals", "status"], &body)).await;
        let observed = response.and_then(|response| observe(&response.body, &["status", "reason"]));
        match observed {
            Ok(observed) => {
                found.observed.set("status", observed.value("status").clone());
                found.observed.set("reason", observed.value("reason").clone());
            }
            Err(failure) => return Err(Unfinished { failure, found: Some(Box::new(found)) }),
        }
    }
    found.warnings.extend(interruption(&found.observed));
    Ok(found)
}

/// A warning that the stream does not deliver. This provider never states a reason, so another party has done it.
fn interruption(observed: &Object) -> Option<Diagnostic> {
    let (status, reason) = (observed.text("status")?, observed.text("reason")?);
    let detail = format!("The stream is {status}: {reason}");
    (status != "enabled").then(|| Diagnostic::warning("The stream does not deliver", detail).at("status"))
}

/// Step 5: the record as attributes. A poll stream has its endpoint under another name.
fn state(response: &Response) -> Result<Found, Failure> {
    let names = [&STATED[..], &RECORDED[..]].concat();
    let mut observed = observe(&response.body, &names)?;
    let endpoint = observed.value("endpoint_url").clone();
    let is_poll = observed.text("delivery_method") == Some("poll");
    let (endpoint_url, poll_url) = if is_poll { (Value::Null, endpoint) } else { (endpoint, Value::Null) };
    observed.set("endpoint_url", endpoint_url);
    observed.set("poll_url", poll_url);
    Ok(Found { observed, ..Found::default() })
}

fn observe(record: &Json, names: &[&str]) -> Result<Object, Failure> {
    Ok(value::json::observe(record, TABLE.attributes, names)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource;

    fn config(method: &str) -> Object {
        Object::default()
            .with("audience", Value::text("a"))
            .with("events_requested", Value::texts(["https://e.example/1"]))
            .with("delivery_method", Value::text(method))
    }

    fn prior() -> Object {
        config("poll")
            .with("events_delivered", Value::texts(["https://e.example/1"]))
            .with("poll_url", Value::text("https://h/poll"))
            .with("status", Value::text("enabled"))
    }

    fn planned(prior: &Object, config: &Object) -> Planned {
        let proposed = TABLE.attributes.iter().fold(Object::default(), |proposed, attribute| {
            let source = if config.value(attribute.name).is_null() && attribute.is_computed() {
                prior
            } else {
                config
            };
            proposed.with(attribute.name, source.value(attribute.name).clone())
        });
        resource::plan(&SsfStream, Some(prior), &proposed, config)
    }

    #[test]
    fn delivered_events_are_kept_unless_others_are_requested() {
        let described = planned(&prior(), &config("poll").with("description", Value::text("d")));
        assert_eq!(described.state.value("events_delivered"), prior().value("events_delivered"));
        assert_eq!(described.state.value("reason"), &Value::Unknown);
        let other = config("poll").with("events_requested", Value::texts(["https://e.example/2"]));
        let other = planned(&prior(), &other);
        assert_eq!((other.state.value("events_delivered"), other.replaces.len()), (&Value::Unknown, 0));
    }

    #[test]
    fn change_of_configured_delivered_events_replaces() {
        let stated = config("poll").with("events_delivered", Value::texts(["https://e.example/1"]));
        assert_eq!(planned(&prior(), &stated).replaces, Vec::<&str>::new());
        let both = ["https://e.example/1", "https://e.example/2"];
        let wider = stated.with("events_requested", Value::texts(both));
        assert_eq!(planned(&prior(), &wider).replaces, ["events_requested"]);
    }

    #[test]
    fn poll_url_follows_the_delivery_method() {
        let push = config("push").with("endpoint_url", Value::text("https://r.example/"));
        assert_eq!(planned(&prior(), &push).state.value("poll_url"), &Value::Null);
        let back = planned(&push.with("poll_url", Value::Null), &config("poll"));
        assert_eq!(back.state.value("poll_url"), &Value::Unknown);
    }

    #[test]
    fn status_of_the_fabric_is_shown_and_not_undone() {
        let paused = prior().with("status", Value::text("paused"));
        assert_eq!(
            planned(&paused, &config("poll")).state,
            paused
                .clone()
                .with("issuer", Value::Null)
                .with("endpoint_url", Value::Null)
                .with("description", Value::Null)
                .with("stream_id", Value::Null)
                .with("id", Value::Null)
                .with("reason", Value::Null)
                .with("events_supported", Value::Null)
                .with("timeouts", Value::Null)
        );
        let enabled = config("poll").with("status", Value::text("enabled"));
        assert_eq!(planned(&paused, &enabled).state.text("status"), Some("enabled"));
        // A saved plan of another change is applied later: it must not undo a pause made in between.
        let described = planned(&prior(), &config("poll").with("description", Value::text("d")));
        assert_eq!(described.state.value("status"), &Value::Unknown);
    }
}
