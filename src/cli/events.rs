//! `trust-fabric events`: the live feed on a terminal.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use trust_fabric_client::sse::Event;
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::endpoint::ServerArguments;
use super::output::{json_line, printable};
use crate::{json, limits};

#[derive(Debug, Args)]
#[command(
    after_help = "It runs until it is interrupted. After a lost connection it reconnects and resumes; only exchanges and\ndenials are not repeated.\n\nExample:\n  trust-fabric events --types signal,revocation,denial"
)]
pub(super) struct Arguments {
    /// Only these event types, separated by commas, for example signal,revocation.
    #[arg(long, value_name = "TYPES")]
    types: Option<String>,
    /// Resume after the event with this ID [default: from now on]
    #[arg(long, value_name = "ID")]
    since: Option<String>,
    /// Print the data of each event as a line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(arguments: Arguments, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let Arguments { types, since, json, server } = arguments;
    let client = server.client()?;
    let messages = &mut io::stderr();
    let mut watch = Watch { server, client, types, last_id: since, json, out, messages };
    let interrupted = CancellationToken::new();
    super::wait_for(super::until_signalled(interrupted.clone(), async {
        tokio::select! {
            ended = watch.go_on() => ended,
            () = interrupted.cancelled() => Ok(()),
        }
    }))
}

/// The feed on the terminal.
struct Watch<'w> {
    server: ServerArguments,
    client: NodeClient,
    types: Option<String>,
    last_id: Option<String>,
    json: bool,
    out: &'w mut (dyn Write + Send),
    /// Receives messages other than events.
    messages: &'w mut (dyn Write + Send),
}

impl Watch<'_> {
    /// Shows events and reconnects; only the first connection must succeed.
    async fn go_on(&mut self) -> Result<(), Error> {
        let mut pauses = Pauses::default();
        let mut ended = self.show().await?;
        loop {
            let pause = pauses.next(ended.was_open);
            let reason = printable(&ended.reason);
            writeln!(self.messages, "{reason}; reconnecting in {:.1} s", pause.as_secs_f64())?;
            tokio::time::sleep(pause).await;
            if let Some(renewed) = self.server.renewed_client() {
                self.client = renewed.starting_with(self.client.server());
            }
            ended = match self.show().await {
                Ok(ended) => ended,
                Err(Error::Answer(error)) if is_retryable(&error) => {
                    Ended { reason: error.to_string(), was_open: false }
                }
                Err(error) => return Err(error),
            };
        }
    }

    /// Shows events until the connection ends.
    async fn show(&mut self) -> Result<Ended, Error> {
        let query: Vec<_> = self.types.iter().map(|types| ("types", types.as_str())).collect();
        let mut events = self.client.events(&query, self.last_id.as_deref()).await?;
        let mut was_open = false;
        loop {
            let event = events.next().await;
            if let Some(last_id) = events.last_id() {
                self.last_id = Some(last_id.to_owned());
                was_open = true;
            }
            match event {
                Ok(Some(event)) => self.write(&event)?,
                Ok(None) => {
                    return Ok(Ended { reason: "the node closed the connection".to_owned(), was_open });
                }
                Err(error) => return Ok(Ended { reason: error.to_string(), was_open }),
            }
        }
    }

    fn write(&mut self, event: &Event) -> Result<(), Error> {
        let data = json::parse(event.data.as_bytes());
        let data = data.map_err(|_| client::Error::Foreign(self.client.server().clone()))?;
        if event.kind == "reset" {
            let first = data["first_available"].as_str().map_or_else(|| "none".to_owned(), printable);
            writeln!(
                self.messages,
                "events were missed: the oldest retained one is {first}; continuing from now"
            )?;
            return Ok(());
        }
        if self.json {
            // Serialized again, so that it is one line.
            json_line(self.out, &data)?;
        } else {
            writeln!(self.out, "{}", line(&data))?;
        }
        Ok(self.out.flush()?)
    }
}

/// End of a connection, and whether it delivered anything.
struct Ended {
    reason: String,
    was_open: bool,
}

/// Time, type, result, subject, target and detail.
fn line(data: &Value) -> String {
    let text = |member: &str| match data[member].as_str() {
        Some(text) if !text.is_empty() => printable(text),
        _ => "-".to_owned(),
    };
    let [timestamp, kind, result] = ["timestamp", "type", "result"].map(text);
    let [subject, target, detail] = ["subject", "target", "detail"].map(text);
    format!("{timestamp} {kind:<10} {result:<6} {subject} {target} {detail}")
}

/// Whether a retry may succeed. The error is that of the nodes tried which says most about the outcome.
pub(super) fn is_retryable(error: &client::Error) -> bool {
    match error {
        client::Error::Unreachable { .. }
        | client::Error::Handshake { .. }
        | client::Error::Foreign(_)
        | client::Error::Interrupted(_)
        | client::Error::TimedOut(_)
        | client::Error::Silent(_) => true,
        client::Error::Refused(refusal) => matches!(refusal.status, 429 | 500..),
        _ => false,
    }
}

/// Backoff of reconnects.
#[derive(Default)]
struct Pauses(Duration);

impl Pauses {
    fn next(&mut self, has_succeeded: bool) -> Duration {
        let longer = if has_succeeded { Duration::ZERO } else { self.0 * 2 };
        self.0 = longer.clamp(limits::EVENTS_BACKOFF_MIN, limits::EVENTS_BACKOFF_MAX);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use wiremock::matchers::{header, header_exists, path, query_param};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::cli::endpoint::Connection;

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let mut pauses = Pauses::default();
        let millis: Vec<_> = (0..9).map(|_| pauses.next(false).as_millis()).collect();
        assert_eq!(millis, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(pauses.next(true), limits::EVENTS_BACKOFF_MIN);
        assert_eq!(pauses.next(false), limits::EVENTS_BACKOFF_MIN * 2);
    }

    #[test]
    fn event_is_one_line_without_control_characters() {
        let data = json!({
            "timestamp": "2027-01-15T08:00:00.000Z", "type": "denial", "result": "denied",
            "subject": "a\u{1b}[2Jb\nc", "target": null, "detail": "x\u{9b}y\r",
        });
        assert_eq!(
            line(&data),
            "2027-01-15T08:00:00.000Z denial     denied a\u{fffd}[2Jb\u{fffd}c - x\u{fffd}y\u{fffd}"
        );
        assert_eq!(line(&json!({})), "- -          -      - - -");
    }

    fn feed(text: &str) -> ResponseTemplate {
        ResponseTemplate::new(200).set_body_raw(text, "text/event-stream; charset=utf-8")
    }

    fn arguments(server: &MockServer, token_file: Option<&Path>) -> ServerArguments {
        let connection = Connection { urls: vec![server.uri()], ca: None, cert: None, key: None };
        ServerArguments { connection, token_file: token_file.map(Path::to_owned) }
    }

    /// Shows the feed of a node until it fails for good: output, messages and the failure.
    async fn watch(server: &MockServer, since: Option<&str>, json: bool) -> (String, String, String) {
        watch_with(arguments(server, None), since, json).await
    }

    async fn watch_with(
        server: ServerArguments,
        since: Option<&str>,
        json: bool,
    ) -> (String, String, String) {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        let mut watch = Watch {
            client: server.client().expect("client"),
            server,
            types: Some("tool".to_owned()),
            last_id: since.map(str::to_owned),
            json,
            out: &mut out,
            messages: &mut messages,
        };
        let ended = watch.go_on().await.expect_err("an end");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(out), text(messages), ended.to_string())
    }

    #[tokio::test]
    async fn it_resumes_with_the_last_id_until_it_is_refused() {
        let server = MockServer::start().await;
        let get = || Mock::given(path("/v1/events")).and(query_param("types", "tool"));
        let refused = json!({"error": "access_denied", "error_description": "the caller is blocked"});
        get()
            .and(header("last-event-id", "a-3-0"))
            .respond_with(ResponseTemplate::new(403).set_body_json(refused))
            .mount(&server)
            .await;
        let second = "id: a-2-0\n\nevent: reset\ndata: {\"first_available\":\"a-1-0\"}\n\n\
                      id: a-3-0\nevent: tool\ndata: {\"type\":\"tool\",\"subject\":\"second\u{9b}\"}\n\n";
        get().and(header("last-event-id", "a-1-0")).respond_with(feed(second)).mount(&server).await;
        let first = "retry: 3000\nid: a-0-0\n\nid: a-1-0\nevent: tool\ndata: {\"type\":\"tool\",\"subject\":\"first\"}\n\n";
        get().respond_with(feed(first)).with_priority(9).mount(&server).await;
        let (out, messages, ended) = watch(&server, None, false).await;
        assert_eq!(out, "- tool       -      first - -\n- tool       -      second\u{fffd} - -\n");
        assert_eq!(
            messages,
            "the node closed the connection; reconnecting in 0.5 s\n\
             events were missed: the oldest retained one is a-1-0; continuing from now\n\
             the node closed the connection; reconnecting in 0.5 s\n"
        );
        assert_eq!(ended, "the caller is blocked");
        let (out, ..) = watch(&server, Some("a-1-0"), true).await;
        assert_eq!(out, "{\"subject\":\"second\\u009b\",\"type\":\"tool\"}\n");
    }

    #[tokio::test]
    async fn renewed_token_is_read_for_the_next_connection() {
        let server = MockServer::start().await;
        let directory = tempfile::tempdir().expect("directory");
        let token = directory.path().join("token");
        std::fs::write(&token, "first").expect("written");
        let renewed = token.clone();
        let renews = move |_: &wiremock::Request| {
            std::fs::write(&renewed, "second").expect("written");
            feed("id: a-1-0\n\n")
        };
        let gone = ResponseTemplate::new(404).set_body_json(json!({"error_description": "gone"}));
        let with = |token: &str| Mock::given(header("authorization", format!("Bearer {token}").as_str()));
        with("first").respond_with(renews).mount(&server).await;
        with("second").respond_with(gone).mount(&server).await;
        let (_, _, ended) = watch_with(arguments(&server, Some(&token)), None, false).await;
        assert_eq!(ended, "gone");
    }

    #[tokio::test]
    async fn temporary_failure_is_retried_after_a_first_connection() {
        let server = MockServer::start().await;
        let busy = json!({"error": "server_error", "error_description": "not\u{202e} now\u{9b}"});
        let busy = ResponseTemplate::new(503).set_body_json(busy);
        Mock::given(path("/v1/events")).respond_with(busy.clone()).mount(&server).await;
        let (_, messages, ended) = watch(&server, None, false).await;
        assert_eq!((messages.as_str(), ended.as_str()), ("", "not\u{202e} now\u{9b}"));
        server.reset().await;
        Mock::given(header_exists("last-event-id")).respond_with(busy).up_to_n_times(1).mount(&server).await;
        let gone = json!({"error": "not_found", "error_description": "gone"});
        Mock::given(header_exists("last-event-id"))
            .respond_with(ResponseTemplate::new(404).set_body_json(gone))
            .mount(&server)
            .await;
        Mock::given(path("/v1/events")).respond_with(feed("id: a-1-0\n\n")).mount(&server).await;
        let (_, messages, ended) = watch(&server, None, false).await;
        assert_eq!(ended, "gone");
        assert!(messages.ends_with("not\u{fffd} now\u{fffd}; reconnecting in 1.0 s\n"), "{messages}");
    }
}
