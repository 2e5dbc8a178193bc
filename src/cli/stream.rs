//! `trust-fabric stream …`

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::Error;
use super::confirmation::Confirmation;
use super::endpoint::{Call, ServerArguments};
use super::output::{self, Format, printable, printable_text};
use super::pagination;
use crate::limits;
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::transmitter::streams::Method;

const STREAM: [&str; 3] = ["v1", "signals", "stream"];
const STATUS: [&str; 3] = ["v1", "signals", "status"];
const VERIFICATION: [&str; 3] = ["v1", "signals", "verification"];
const DEAD_LETTERS: [&str; 3] = ["v1", "signals", "dead-letters"];

const CREATE_EXAMPLES: &str = "\
Examples:
  trust-fabric stream create --push https://receiver.example.org/events
  trust-fabric stream create --poll --event session-revoked --event credential-change

If the node requires a certificate, set --cert and --key; the stream belongs to that caller.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a stream, which delivers security events from now on.
    Create(Create),
    /// List your streams; operators see all.
    List(List),
    /// Show one stream and its progress.
    Show(Show),
    /// Pause a stream: events are retained for it.
    #[command(
        after_help = "Example:\n  trust-fabric stream pause f67e39a0a4d34d56b3aa1bc4cff0069f --reason maintenance"
    )]
    Pause(Change),
    /// Enable a paused or disabled stream.
    #[command(after_help = "Example:\n  trust-fabric stream resume f67e39a0a4d34d56b3aa1bc4cff0069f")]
    Resume(Change),
    /// Disable a stream: events are not retained for it.
    #[command(
        after_help = "Example:\n  trust-fabric stream disable f67e39a0a4d34d56b3aa1bc4cff0069f --reason decommissioned"
    )]
    Disable(Change),
    /// Send a verification event over a stream.
    Verify(Verify),
    /// List the events that a stream's receiver rejected permanently.
    DeadLetters(DeadLetters),
    /// Delete a stream with its retained events.
    Delete(Delete),
}

#[derive(Debug, Args)]
#[command(after_help = CREATE_EXAMPLES)]
pub(super) struct Create {
    /// Push to this URL (RFC 8935).
    #[arg(long, value_name = "URL", required_unless_present = "poll", conflicts_with = "poll")]
    push: Option<String>,
    /// The receiver polls (RFC 8936); the response names the endpoint.
    #[arg(long)]
    poll: bool,
    /// Event type, as a URI or its last segment, such as session-revoked; can be repeated. Default: all supported types.
    #[arg(long = "event", value_name = "TYPE")]
    events: Vec<String>,
    /// Audience of the events. Default: the caller.
    #[arg(long, value_name = "AUD")]
    aud: Option<String>,
    /// Description for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Maximum streams to list.
    #[arg(long, value_name = "N", default_value_t = limits::PAGE_ROWS_DEFAULT)]
    limit: usize,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The stream, by its ID in `stream list`.
    stream_id: String,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Change {
    /// The stream, by its ID in `stream list`.
    stream_id: String,
    /// Reason, shown with the stream.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The stream, by its ID in `stream list`.
    stream_id: String,
    /// State, repeated in the event.
    #[arg(long, value_name = "TEXT")]
    state: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub(super) struct DeadLetters {
    /// The stream, by its ID in `stream list`.
    stream_id: String,
    /// Maximum events to list, oldest first.
    #[arg(long, value_name = "N", default_value_t = limits::PAGE_ROWS_DEFAULT)]
    limit: usize,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    /// The stream, by its ID in `stream list`.
    stream_id: String,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Create(arguments) => create(&arguments, out),
        Command::List(arguments) => list(&arguments, out),
        Command::Show(arguments) => show(&arguments, out),
        Command::Pause(arguments) => set_status(&arguments, "paused", out),
        Command::Resume(arguments) => set_status(&arguments, "enabled", out),
        Command::Disable(arguments) => set_status(&arguments, "disabled", out),
        Command::Verify(arguments) => verify(&arguments, out),
        Command::DeadLetters(arguments) => dead_letters(&arguments, out),
        Command::Delete(arguments) => delete(&arguments, out),
    }
}

/// URI of an event type given by URI or by its last segment.
fn event_type(name: &str) -> &str {
    let named = |uri: &&&str| uri.rsplit('/').next() == Some(name);
    EVENTS_SUPPORTED.iter().find(named).copied().unwrap_or(name)
}

fn create(arguments: &Create, out: &mut dyn Write) -> Result<(), Error> {
    let events: Vec<&str> = match arguments.events.as_slice() {
        [] => EVENTS_SUPPORTED.to_vec(),
        events => events.iter().map(|name| event_type(name)).collect(),
    };
    let delivery = match &arguments.push {
        Some(url) => json!({"method": Method::Push.urn(), "endpoint_url": url}),
        None => json!({"method": Method::Poll.urn()}),
    };
    let mut request = Map::new();
    request.insert("delivery".to_owned(), delivery);
    request.insert("events_requested".to_owned(), events.into());
    for (name, value) in [("aud", &arguments.aud), ("description", &arguments.description)] {
        request.extend(value.iter().map(|value| (name.to_owned(), value.as_str().into())));
    }
    let (client, key) = (arguments.call.server.client()?, super::new_idempotency_key());
    let stream = super::wait_for(client.post_once(&key, &STREAM, &Value::Object(request)))?;
    if arguments.call.output.format == Format::Json {
        return Ok(output::json(out, &stream)?);
    }
    writeln!(out, "stream {} is created", printable_text(&stream, "stream_id"))?;
    Ok(lines(
        out,
        &stream,
        &["status", "reason", "aud", "events_delivered", "delivery_method", "endpoint_url"],
    )?)
}

fn list(arguments: &List, out: &mut dyn Write) -> Result<(), Error> {
    let columns = [
        ("stream", "stream_id"),
        ("status", "status"),
        ("delivery", "delivery_method"),
        ("endpoint", "endpoint_url"),
        ("aud", "aud"),
        ("delivered", "delivered"),
        ("dropped", "dropped"),
        ("dead letters", "dead_letters"),
        ("reason", "reason"),
    ];
    pagination::list(&arguments.call, &STREAM, arguments.limit, &columns, out)
}

fn show(arguments: &Show, out: &mut dyn Write) -> Result<(), Error> {
    let query = [("stream_id", arguments.stream_id.as_str())];
    let stream = super::wait_for(arguments.call.server.client()?.get_with(&STREAM, &query))?;
    if arguments.call.output.format == Format::Json {
        return Ok(output::json(out, &stream)?);
    }
    let names = [
        "stream_id",
        "description",
        "status",
        "reason",
        "iss",
        "aud",
        "delivery_method",
        "endpoint_url",
        "events_requested",
        "events_delivered",
        "delivered",
        "dropped",
        "dead_letters",
    ];
    Ok(lines(out, &stream, &names)?)
}

fn set_status(arguments: &Change, status: &str, out: &mut dyn Write) -> Result<(), Error> {
    let mut request = json!({"stream_id": arguments.stream_id, "status": status});
    if let Some(reason) = &arguments.reason {
        request["reason"] = reason.as_str().into();
    }
    let answer = super::wait_for(arguments.call.server.client()?.post(&STATUS, &request))?;
    if arguments.call.output.format == Format::Json {
        return Ok(output::json(out, &answer)?);
    }
    let [stream_id, status, reason] =
        ["stream_id", "status", "reason"].map(|name| printable_text(&answer, name));
    let why = if reason.is_empty() { reason } else { format!(": {reason}") };
    Ok(writeln!(out, "stream {stream_id} is {status}{why}")?)
}

fn verify(arguments: &Verify, out: &mut dyn Write) -> Result<(), Error> {
    let mut request = json!({"stream_id": arguments.stream_id});
    if let Some(state) = &arguments.state {
        request["state"] = state.as_str().into();
    }
    super::wait_for(arguments.server.client()?.post(&VERIFICATION, &request))?;
    Ok(writeln!(out, "a verification event is sent over stream {}", printable(&arguments.stream_id))?)
}

fn dead_letters(arguments: &DeadLetters, out: &mut dyn Write) -> Result<(), Error> {
    let columns = [
        ("id", "id"),
        ("refused", "at"),
        ("err", "err"),
        ("description", "description"),
        ("event type", "event_type"),
        ("about", "sub_id"),
    ];
    let query = [("stream_id", arguments.stream_id.as_str())];
    pagination::list_with(&arguments.call, (&DEAD_LETTERS, &query), arguments.limit, &columns, out)
}

fn delete(arguments: &Delete, out: &mut dyn Write) -> Result<(), Error> {
    let (stream_id, query) = (printable(&arguments.stream_id), [("stream_id", arguments.stream_id.as_str())]);
    arguments.confirmation.ask(&format!("delete stream {stream_id} with its retained events"))?;
    super::wait_for(arguments.server.client()?.delete_with(&STREAM, &query))?;
    Ok(writeln!(out, "stream {stream_id} is deleted")?)
}

/// Fields that are present, one line each; items of a list below each other.
fn lines(out: &mut dyn Write, value: &Value, names: &[&str]) -> io::Result<()> {
    for name in names {
        let values = match value.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(values)) => values.iter().map(shown).collect(),
            Some(value) => vec![shown(value)],
        };
        for (at, value) in values.iter().enumerate() {
            writeln!(out, "{:<17} {value}", if at == 0 { *name } else { "" })?;
        }
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| printable(&value.to_string()), printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_type_is_a_uri_or_its_last_segment() {
        let revoked = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
        assert_eq!(event_type("session-revoked"), revoked);
        assert_eq!(event_type(revoked), revoked);
        assert_eq!(event_type("https://a.example/session-revoked"), "https://a.example/session-revoked");
        assert_eq!(event_type("revoked"), "revoked");
    }

    #[test]
    fn each_value_has_a_line_and_absent_fields_have_none() {
        let mut text = Vec::new();
        let value = json!({"status": "paused", "list": ["a", "b\u{1b}"], "dropped": 0, "reason": null});
        lines(&mut text, &value, &["status", "list", "dropped", "reason", "description"]).expect("written");
        let text = String::from_utf8(text).expect("text");
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            ["status            paused", "list              a", "b\u{fffd}", "dropped           0"]
        );
    }
}
