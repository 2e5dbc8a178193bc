//! The live feed over HTTP: events, their order, and resuming (contract §7).

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use trust_fabric::limits;

use crate::support::raw::{self, Wire};
use crate::support::{
    Event, FABRIC, Feed, IDP, JWT, NOW_SECS, Node, OWN, REPORTER, Response, Setup, TOOL, credential, with,
};

const EVENTS: &str = "/v1/events";
const REVOCATIONS: &str = "/v1/revocations";
const JSON: (&str, &str) = ("content-type", "application/json");
const GATEWAY: &str = "spiffe://trust.example/gateway";
const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

/// A node with a high rate limit.
async fn unlimited_node() -> Node {
    let more_config = "[limits]\nrequests_per_second_per_caller = 1000000\n".to_owned();
    Node::start_with(Setup { more_config, ..Setup::default() }).await
}

/// The feed of a node in development mode.
async fn feed(node: &Node, query: &str) -> Feed {
    assert_subscribed(node.feed(&node.plain(), query, &[]).await)
}

async fn feed_after(node: &Node, query: &str, last_id: &str) -> Feed {
    assert_subscribed(node.feed(&node.plain(), query, &[("last-event-id", last_id)]).await)
}

/// The id of the latest event.
async fn latest_event_id(node: &Node) -> String {
    let greeting = feed(node, "").await.block().await.expect("a greeting");
    greeting.rsplit_once("id: ").expect("a place").1.to_owned()
}

#[track_caller]
fn assert_subscribed(feed: Feed) -> Feed {
    assert_eq!(feed.status, 200, "{:?}", feed.headers);
    feed
}

async fn register(node: &Node, tool_id: &str) {
    let entry = json!({"tool_id": tool_id, "name": "a tool", "resource_uri": TOOL}).to_string();
    let channel = if node.is_secure() { node.certified("gateway") } else { node.plain() };
    let answer = node.call_over(&channel, "POST", "/v1/tools", &[JSON], entry).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

/// Registers many concurrently.
async fn register_all(node: &Node, names: impl Iterator<Item = String>) {
    const AT_ONCE: usize = 64;
    stream::iter(names).for_each_concurrent(AT_ONCE, async |name| register(node, &name).await).await;
}

async fn send_as_operator(node: &Node, method: &str, path: &str, body: &Value) -> Response {
    node.call_over(&node.administrator(), method, path, &[JSON], body.to_string()).await
}

async fn revoke(node: &Node, request: &Value) {
    let answer = send_as_operator(node, "POST", REVOCATIONS, request).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
}

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(|event| event.id.as_deref()).collect()
}

fn words(events: &[Event]) -> Vec<(&str, &str, &str)> {
    events.iter().map(Event::words).collect()
}

async fn metric(node: &Node, series: &str) -> f64 {
    let page = node.call_over(&node.plain(), "GET", "/metrics", &[], "").await.body;
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_default()
}

// --- events --------------------------------------------------------------------------------------

#[tokio::test]
async fn feed_begins_with_retry_and_id() {
    let node = Node::start().await;
    let mut feed = feed(&node, "").await;
    let header = |name: &str| feed.headers.get(name).map(|value| value.to_str().expect("text"));
    for (name, value) in [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(header(name), Some(value), "{name}");
    }
    assert!(header("svc-index").is_some() && header("x-request-id").is_some());
    let first = feed.block().await.expect("a block");
    let first_id = first.strip_prefix("retry: 3000\nid: ").expect("how to come back");
    // From the first entry on: the cluster already has its first key.
    feed_after(&node, "", first_id).await;
    assert!(first_id.rsplit_once('-').is_some_and(|(position, _)| position.len() > 33), "{first_id}");
    let head = node.call("HEAD", EVENTS, &[], "").await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
}

#[tokio::test]
async fn each_event_is_published_once() {
    let node = Node::start().await;
    // From the very first event.
    let mut all = feed(&node, "?last_event_id=00000000000000000000000000000000-0-0").await;
    let reset = all.next().await.expect("a reset");
    assert_eq!(reset.kind, "reset");
    let first = reset.data["first_available"].as_str().expect("an id").to_owned();
    let mut early = feed_after(&node, "", &first).await;
    let mut live = feed(&node, "").await;

    register(&node, "sql").await;
    let tool = json!({"name": "SQL 2", "resource_uri": TOOL});
    assert_eq!(node.put("/v1/tools/sql", &tool).await.status, 200);
    assert_eq!(node.call("DELETE", "/v1/tools/sql", &[], "").await.status, 204);
    let agent = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let agent = node.post("/v1/identity/agent", &agent).await.json()["agent_id"].as_str().map(str::to_owned);
    let agent = agent.expect("an agent");
    let path = format!("/v1/identity/agents/{}", agent.replace(':', "%3A").replace('/', "%2F"));
    assert_eq!(node.call("DELETE", &path, &[], "").await.status, 204);
    revoke(&node, &json!({"subject": "wimse://trust.example/ns/demo/sa/a", "reason": "lost"})).await;
    let signal = json!({
        "iss": IDP, "jti": "j1", "iat": NOW_SECS, "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": "wimse://trust.example/ns/demo/sa/b"},
        "events": {SESSION_REVOKED: {"reason": "left"}},
    });
    assert_eq!(node.post("/v1/signals/events", &signal).await.status, 202);
    assert_eq!(node.post("/v1/signals/events", &signal).await.status, 202, "a duplicate is no event");
    let current = node.get("/v1/sys/policy").await.json();
    let mut sources = current["sources"].as_array().expect("sources").clone();
    sources.push(json!({"path": "note.json", "text": "{\"note\": 1}"}));
    assert_eq!(node.put("/v1/sys/policy", &json!({ "sources": sources })).await.status, 200);
    node.advance_secs(600);
    assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
    node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    register(&node, "end").await;

    let events = live.until_registered("end").await;
    let of =
        |kind: &str| events.iter().filter(|event| event.kind == kind).map(Event::words).collect::<Vec<_>>();
    assert_eq!(
        of("tool"),
        [("tool", "sql", "registered"), ("tool", "sql", "replaced"), ("tool", "sql", "deregistered")]
    );
    assert_eq!(of("agent"), [("agent", &*agent, "issued"), ("agent", &*agent, "revoked")]);
    let (a, b) = ("wimse://trust.example/ns/demo/sa/a", "wimse://trust.example/ns/demo/sa/b");
    assert_eq!(of("revocation"), [("revocation", a, "lost"), ("revocation", b, "left")]);
    assert_eq!(of("signal"), [("signal", b, "1 effect")]);
    assert_eq!(of("caep").iter().filter(|(_, subject, _)| *subject == b).count(), 1, "{events:?}");
    assert_eq!(of("cluster").iter().filter(|(.., detail)| *detail == "policy applied").count(), 1);
    assert!(!of("key").is_empty());
    let mut unique = ids(&events);
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids(&events).len(), "duplicate ids");
    for event in &events {
        assert_eq!(event.data["unit_id"], "under-test");
        assert_eq!(event.data["type"], event.kind);
        assert!(event.data["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{event:?}");
        assert_eq!(event.data.get("id").and_then(Value::as_str), event.id.as_deref());
        let is_activity = event.kind == "exchange" || event.kind == "denial";
        assert_eq!((event.id.is_none(), event.data.get("duration_ms").is_some()), (is_activity, is_activity));
    }

    // A subscriber that lags by everything gets the same, after the past.
    let told_early = early.until_registered("end").await;
    let (early_ids, live_ids) = (ids(&told_early), ids(&events));
    assert_eq!(early_ids[early_ids.len() - live_ids.len()..], live_ids);
    let kinds: Vec<_> = told_early.iter().map(|event| event.kind.as_str()).collect();
    assert!(kinds.contains(&"cluster") && kinds.contains(&"key"), "{kinds:?}");
    assert_eq!(words(&all.until_registered("end").await), words(&events));
}

#[tokio::test]
async fn exchanges_and_denials_are_published_live() {
    let node = Node::start().await;
    register(&node, "sql").await;
    let mut live = feed(&node, "?types=exchange,denial").await;
    live.block().await.expect("a greeting");
    let token = node.granted(&credential(&node.issuers.reporter(), JWT)).await.token;
    let asked =
        with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": "https://elsewhere.example"}));
    assert_eq!(node.exchange(&asked).await.status, 403);
    assert_eq!(node.exchange(&credential(&format!("{}x", node.issuers.reporter()), JWT)).await.status, 400);
    assert_eq!(node.exchange(&json!({"grant_type": "x"})).await.status, 400);
    let other = json!({"tool_id": "other", "name": "o", "resource_uri": "https://o.example"});
    assert_eq!(node.post("/v1/tools", &other).await.status, 201);
    let verify = async |token: &str, tool_id: &str| {
        node.post("/v1/mcp/verify", &json!({"token": token, "tool_id": tool_id})).await.status
    };
    assert_eq!(verify(&token, "other").await, 403);
    assert_eq!(verify("a.b.c", "sql").await, 403);
    assert_eq!(verify(&token, "sql").await, 200, "a passing verification is no denial");
    let mut events = Vec::new();
    while events.len() < 6 {
        events.push(live.next().await.expect("it goes on"));
    }
    let expected = [
        ("exchange", "ok", REPORTER, json!(TOOL), "granted"),
        ("denial", "denied", REPORTER, json!("https://elsewhere.example"), "policy denied"),
        ("denial", "denied", "", json!(null), "subject_token is not valid"),
        ("exchange", "error", "", json!(null), "grant_type must be"),
        ("denial", "denied", REPORTER, json!("other"), "audience: "),
        ("denial", "denied", "", json!("sql"), "token: "),
    ];
    for (event, (kind, result, subject, target, detail)) in events.iter().zip(expected) {
        let data = &event.data;
        assert_eq!((event.kind.as_str(), &data["type"]), (kind, &json!(kind)), "{event:?}");
        assert_eq!((&data["result"], &data["subject"]), (&json!(result), &json!(subject)), "{event:?}");
        assert_eq!(data["target"], target, "{event:?}");
        assert!(data["detail"].as_str().is_some_and(|text| text.starts_with(detail)), "{event:?}");
        assert!(event.id.is_none() && data["duration_ms"].is_u64() && data["unit_id"] == "under-test");
    }
    // The denial of an unknown credential names the caller.
    let node = secure().await;
    let gateway = node.certified("gateway");
    let mut live = assert_subscribed(node.feed(&gateway, "?types=denial", &[]).await);
    live.block().await.expect("a greeting");
    node.exchange(&credential("a.b.c", JWT)).await;
    let denial = live.next().await.expect("a denial");
    let detail = format!("subject_token is not valid; the caller is {GATEWAY}");
    assert_eq!(denial.words(), ("denial", "", &*detail));
}

#[tokio::test]
async fn no_event_contains_a_token() {
    let node = Node::start().await;
    let source = node.issuers.reporter();
    let mut live = feed(&node, "").await;
    let own = node.own_token("demo", "reporter").await.token;
    let minted = node.granted(&credential(&source, JWT)).await.token;
    node.exchange(&with(&credential(&source, JWT), &json!({"audience": own, "scope": own}))).await;
    node.exchange(&with(
        &credential(&source, JWT),
        &json!({"resource": format!("https://x.example/?t={own}")}),
    ))
    .await;
    node.exchange(&credential(&own, JWT)).await;
    node.exchange(&credential(&format!("{own}x"), OWN)).await;
    // No part of a truncated token is published. The response may contain it: its sender has the token.
    let (header, rest) = own.split_once('.').expect("a token");
    let piece = format!("{header}.{}", &rest[..60]);
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": format!("{TOOL}?t={piece}")});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": own})).await;
    node.post("/v1/mcp/verify", &json!({"tool_id": own, "token": own})).await;
    revoke(&node, &json!({"subject": REPORTER, "reason": piece})).await;
    revoke(&node, &json!({"jti": piece, "issuer": IDP})).await;
    register(&node, "end").await;
    live.until_registered("end").await;
    // Activity is published with a delay.
    while !live.text().contains("\"denied\"") {
        live.next().await.expect("it goes on");
    }
    let text = live.text();
    assert!(text.matches("withheld").count() >= 3, "{text}");
    for token in [&source, &own, &minted] {
        for part in token.split('.') {
            assert!(!text.contains(&part[..24]), "a token is published: {text}");
        }
    }
}

// --- resuming ------------------------------------------------------------------------------------

#[tokio::test]
async fn subscriber_resumes_elsewhere_without_gap_or_duplicate() {
    let node = unlimited_node().await;
    let mut whole = feed(&node, "").await;
    let mut events = Vec::new();
    let mut last_id = String::new();
    for round in 0..6 {
        let mut reader =
            if round == 0 { feed(&node, "").await } else { feed_after(&node, "", &last_id).await };
        // Read to the end, disconnected in the middle, or only with its id.
        register_all(&node, (0..40).map(|at| format!("t-{round}-{at}"))).await;
        let most = [40, 17, 1, 100, 0, 3][round];
        for _ in 0..most {
            if events.len() >= (round + 1) * 40 {
                break;
            }
            events.push(reader.next().await.expect("it goes on"));
        }
        if round == 0 || most > 0 {
            reader.last_id().clone_into(&mut last_id);
        }
    }
    let mut last = feed_after(&node, "", &last_id).await;
    register(&node, "end").await;
    events.extend(last.until_registered("end").await);
    let expected = whole.until_registered("end").await;
    assert_eq!(ids(&events), ids(&expected));
    assert_eq!(events.len(), 240);
}

#[tokio::test]
async fn a_reader_comes_back_after_a_restart_and_misses_nothing() {
    let mut node = Node::start().await;
    let mut before = feed(&node, "").await;
    register_all(&node, (0..20).map(|at| format!("a{at}"))).await;
    for _ in 0..5 {
        before.next().await.expect("it goes on");
    }
    let last_id = before.last_id().to_owned();
    let mut all = Vec::new();
    node.begin_shutdown();
    while let Some(event) = before.next().await {
        all.push(event);
    }
    node.restart().await;
    register(&node, "b").await;
    let mut after = feed_after(&node, "", &last_id).await;
    register(&node, "end").await;
    let events = after.until_registered("end").await;
    let tools: Vec<_> = events.iter().filter(|event| event.kind == "tool").collect();
    assert_eq!(tools.len(), 16, "15 that were not read, and one of after");
    assert!(ids(&events).starts_with(&ids(&all)), "the same ids as before");
    // Also by query parameter, which the header overrides.
    let mut again =
        assert_subscribed(node.feed(&node.plain(), &format!("?last_event_id={last_id}"), &[]).await);
    assert_eq!(ids(&again.until_registered("end").await), ids(&events));
    let headers = [("last-event-id", after.last_id())];
    let mut newer =
        assert_subscribed(node.feed(&node.plain(), &format!("?last_event_id={last_id}"), &headers).await);
    register(&node, "newest").await;
    assert_eq!(newer.until_registered("newest").await, []);
}

#[tokio::test]
async fn type_filter_applies_to_replayed_and_live_events() {
    let node = Node::start().await;
    let start = latest_event_id(&node).await;
    for query in ["?types=revocation,tool", "?types=revocation&types=tool", "?types=tool%2Crevocation,tool"] {
        revoke(&node, &json!({"subject": "wimse://trust.example/ns/demo/sa/x"})).await;
        let mut reader = feed_after(&node, query, &start).await;
        revoke(&node, &json!({"subject": "wimse://trust.example/ns/demo/sa/y"})).await;
        node.granted(&credential(&node.issuers.orchestrator(), JWT)).await;
        let end = uuid::Uuid::new_v4().to_string();
        register(&node, &end).await;
        let events = reader.until_registered(&end).await;
        let last = events.iter().rev().take(2).map(Event::words).collect::<Vec<_>>();
        assert_eq!(last[0], ("revocation", "wimse://trust.example/ns/demo/sa/y", ""), "{query}");
        assert_eq!(last[1], ("revocation", "wimse://trust.example/ns/demo/sa/x", ""), "{query}");
        let others = events.iter().filter(|event| !["revocation", "tool"].contains(&event.kind.as_str()));
        assert_eq!(others.count(), 0, "{query}");
    }
}

#[tokio::test]
async fn foreign_last_event_id_resets_and_then_follows() {
    let node = Node::start().await;
    register(&node, "first").await;
    let newest = latest_event_id(&node).await;
    let (life, _) = newest.split_once('-').expect("an id");
    let other_life = format!("{}-7-0", "0".repeat(32));
    let applied: u64 =
        node.get("/readyz").await.header("svc-index").expect("an index").parse().expect("a number");
    // The log index exists, but no event at that position.
    let of_no_event = format!("{life}-{applied}-4294967295");
    for id in [of_no_event, other_life] {
        let newest = latest_event_id(&node).await;
        let mut reader = feed_after(&node, "", &id).await;
        let reset = reader.next().await.expect("a reset");
        assert_eq!((reset.kind.as_str(), &reset.id), ("reset", &None), "{id}");
        let first = reset.data["first_available"].as_str().expect("an id").to_owned();
        assert!(first.starts_with(life), "{first}");
        assert_eq!(reader.last_id(), newest, "from where it goes on");
        let end = uuid::Uuid::new_v4().to_string();
        register(&node, &end).await;
        assert_eq!(reader.until_registered(&end).await, []);
        // Its past is available.
        let mut old = feed_after(&node, "?types=tool", &first).await;
        assert_eq!(old.next().await.expect("an event").data["subject"], "first");
    }
}

/// Regression: a node that had not applied the latest entry sent `reset` to subscribers of a node ahead.
#[tokio::test]
async fn id_from_a_node_ahead_waits_instead_of_reset() {
    let node = Node::start().await;
    let newest = latest_event_id(&node).await;
    let (life, _) = newest.split_once('-').expect("an id");
    let applied = || async {
        let answer = node.get("/readyz").await;
        answer.header("svc-index").expect("an index").parse::<u64>().expect("a number")
    };
    let ahead = format!("{life}-{}-0", applied().await + 1);
    let (mut reader, ()) = futures::join!(feed_after(&node, "", &ahead), register(&node, "one"));
    let greeting = reader.block().await.expect("a greeting");
    assert!(greeting.ends_with(&format!("id: {ahead}")), "{greeting}");
    register(&node, "two").await;
    assert!(reader.until_registered("two").await.iter().all(|event| event.kind != "reset"));
    for index in [applied().await + 1_000, u64::MAX] {
        let far = format!("{life}-{index}-0");
        let refused = node.call("GET", EVENTS, &[("last-event-id", &far)], "").await;
        refused.is_refused(503, "server_error", "this node has not applied Last-Event-ID yet");
    }
}

#[tokio::test]
async fn invalid_feed_parameters_are_refused_by_name() {
    let node = Node::start().await;
    let get = async |query: &str, headers: &[(&str, &str)]| {
        node.call("GET", &format!("{EVENTS}{query}"), headers, "").await
    };
    let life = "0".repeat(32);
    for id in
        ["x", "1", &life, &format!("{life}-1"), &format!("{life}-1-"), &format!("{life}-01-0"), "\u{e9}"]
    {
        let answer = get("", &[("last-event-id", id)]).await;
        answer.is_refused(400, "invalid_request", "Last-Event-ID: must be");
    }
    let twice = [("last-event-id", "x"), ("last-event-id", "x")];
    assert_eq!(get("", &twice).await.status, 400);
    get("?last_event_id=x", &[]).await.is_refused(400, "invalid_request", "last_event_id: must be");
    get("?last_event_id=", &[]).await.is_refused(400, "invalid_request", "last_event_id: must be");
    let given = format!("{life}-1-0");
    get(&format!("?last_event_id={given}&last_event_id={given}"), &[]).await.is_refused(
        400,
        "invalid_request",
        "twice",
    );
    for types in ["none", "", "tool,", ",tool", "Tool", "tool,%20key", "reset", "tool&types=x"] {
        let answer = get(&format!("?types={types}"), &[]).await;
        answer.is_refused(400, "invalid_request", "types: each must be one of exchange, denial, caep,");
    }
    get("?type=tool", &[]).await.is_refused(
        400,
        "invalid_request",
        "the query parameters are types and last_event_id",
    );
}

// --- subscribers ---------------------------------------------------------------------------------

/// Flow-control window of an HTTP/2 client that does not read.
const WINDOW_BYTES: u32 = 16 * 1024;

type Client = http2::SendRequest<Empty<Bytes>>;
type Connection = http2::Connection<TokioIo<raw::Stream>, Empty<Bytes>, TokioExecutor>;

/// An HTTP/2 client with the gateway's certificate, and its connection, which must be driven.
async fn over_http2(node: &Node) -> (Client, Connection) {
    let wire = Wire {
        address: node.tls_address(),
        tls: Some((node.certificates().ca.certificate.as_path(), Some(node.pair("gateway")))),
    };
    let stream = wire.connect_for(&[b"h2"]).await.expect("connected");
    http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2")
}

async fn get(node: &Node, client: &mut Client, path: &str) -> hyper::Response<Incoming> {
    let uri = format!("https://{}{path}", node.tls_address());
    let request = hyper::Request::get(uri).body(Empty::new()).expect("a request");
    client.send_request(request).await.expect("an answer")
}

/// Reads more of a response, if it continues.
async fn more(answer: &mut hyper::Response<Incoming>, text: &mut String) -> bool {
    let Some(frame) = answer.body_mut().frame().await else { return false };
    let frame = frame.expect("it ends as an answer does");
    text.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
    true
}

/// The ids of complete events in a text.
fn ids_in(text: &str) -> Vec<&str> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data: "));
    blocks.filter_map(|block| block.lines().find_map(|line| line.strip_prefix("id: "))).collect()
}

#[tokio::test]
async fn slow_subscriber_is_disconnected_and_others_get_every_event() {
    let more_config = "[limits]\nrequests_per_second_per_caller = 1000000\n".to_owned();
    let node = Node::start_with(Setup { is_secure: true, more_config, ..Setup::default() }).await;
    let mut live = assert_subscribed(node.feed(&node.certified("gateway"), "", &[]).await);
    live.block().await.expect("a greeting");
    let (mut client, connection) = over_http2(&node).await;
    let test = async {
        let mut stalled = get(&node, &mut client, EVENTS).await;
        // The window of the client, our buffer, the queue behind it, and more.
        let count = limits::FEED_QUEUED_EVENTS_MAX + 600;
        let register = register_all(&node, (0..count).map(|at| format!("t{at}")));
        let read = async {
            let mut events = Vec::new();
            while events.len() < count {
                events.push(live.next().await.expect("it goes on"));
            }
            events
        };
        let ((), events) = futures::join!(register, read);
        let mut text = String::new();
        let rest = async { while more(&mut stalled, &mut text).await {} };
        tokio::time::timeout(limits::WRITE_STALL_TIMEOUT, rest).await.expect("it is let go");
        assert!(text.ends_with("\n\n"), "it ends behind a whole event");
        let received = ids_in(&text);
        assert!(!received.is_empty() && received.len() < events.len());
        assert_eq!(received, ids(&events)[..received.len()], "received events are in order");
        assert!((metric(&node, "svc_event_readers_dropped_total{reason=\"slow\"}").await - 1.0).abs() < 0.1);
        let headers = [("last-event-id", *received.last().expect("an id"))];
        let mut back = assert_subscribed(node.feed(&node.certified("gateway"), "", &headers).await);
        register_all(&node, ["end".to_owned()].into_iter()).await;
        let rest = back.until_registered("end").await;
        assert_eq!([received, ids(&rest)].concat(), ids(&events));
    };
    tokio::select! {
        () = test => {}
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}

#[tokio::test]
async fn subscribers_are_limited_per_identity() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let mut readers = Vec::new();
    for _ in 0..limits::FEED_SUBSCRIBERS_PER_CALLER_MAX {
        readers.push(assert_subscribed(node.feed(&gateway, "", &[]).await));
    }
    let refused = node.call_over(&gateway, "GET", EVENTS, &[], "").await;
    refused.is_refused(429, "access_denied", "limit of feed subscribers of this caller reached");
    let watcher = format!("Bearer {}", node.own_token("agents", "watcher").await.token);
    let bearer = [("authorization", watcher.as_str())];
    let other = assert_subscribed(node.feed(&node.anonymous(), "", &bearer).await);
    assert!((metric(&node, "svc_event_readers").await - 6.0).abs() < 0.1);
    // Feeds hold no request permits.
    register(&node, "sql").await;
    drop((readers, other));
    // The node notices the disconnects.
    while metric(&node, "svc_event_readers").await > 0.1 {
        tokio::task::yield_now().await;
    }
    assert_subscribed(node.feed(&gateway, "", &[]).await);
}

#[tokio::test]
async fn a_bearers_feed_ends_with_its_token_and_when_that_is_revoked() {
    let node = secure().await;
    let open = async || {
        let claims = node.issuers.service_account("agents", "watcher");
        let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
        let source = credential(&node.issuers.es256.sign(&with(&claims, &times)), JWT);
        let minted = node.granted(&with(&source, &json!({"audience": FABRIC}))).await;
        let bearer = format!("Bearer {}", minted.token);
        (assert_subscribed(node.feed(&node.anonymous(), "", &[("authorization", &bearer)]).await), minted)
    };
    let (mut reader, _) = open().await;
    reader.block().await.expect("a greeting");
    node.advance_secs(299);
    register(&node, "a").await;
    assert_eq!(reader.until_registered("a").await, []);
    node.advance_secs(1);
    register(&node, "b").await;
    assert_eq!(reader.next().await, None, "it lives to its last second");

    // The feed ends before the revocation is published to it.
    for what in ["jti", "subject"] {
        let (mut reader, minted) = open().await;
        let mut other = assert_subscribed(node.feed(&node.certified("gateway"), "", &[]).await);
        let stranger = json!({"subject": "wimse://trust.example/ns/demo/sa/nobody"});
        revoke(&node, &stranger).await;
        assert_eq!(reader.next().await.expect("another's").kind, "revocation");
        let request = match what {
            "jti" => json!({"jti": minted.claims["jti"]}),
            _ => json!({"subject": minted.claims["sub"]}),
        };
        revoke(&node, &request).await;
        while let Some(event) = reader.next().await {
            assert_ne!(event.data["subject"], minted.claims[if what == "jti" { "jti" } else { "sub" }]);
        }
        let end = uuid::Uuid::new_v4().to_string();
        register(&node, &end).await;
        other.until_registered(&end).await;
        node.advance_secs(60);
    }
    assert!((metric(&node, "svc_event_readers_dropped_total{reason=\"authority\"}").await - 3.0).abs() < 0.1);
}

#[tokio::test]
async fn a_feed_ends_when_the_holder_of_its_certificate_is_blocked() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let mut reader = assert_subscribed(node.feed(&gateway, "", &[]).await);
    reader.block().await.expect("a greeting");
    node.disable_account(GATEWAY).await;
    while reader.next().await.is_some() {}
    let refused = node.call_over(&gateway, "GET", EVENTS, &[], "").await;
    refused.is_refused(403, "access_denied", "blocked");
}

#[tokio::test]
async fn shutdown_disconnects_subscribers_at_once() {
    let mut node = Node::start().await;
    let (mut reading, mut idle) = (feed(&node, "").await, feed(&node, "?types=stream").await);
    for reader in [&mut reading, &mut idle] {
        reader.block().await.expect("a greeting");
    }
    #[expect(clippy::disallowed_methods, reason = "how long it took")]
    let begun = Instant::now();
    node.begin_shutdown();
    for reader in [&mut reading, &mut idle] {
        assert_eq!(reader.next().await, None, "it ends as an answer does");
    }
    node.stop().await;
    assert!(begun.elapsed() < limits::DRAIN_TIMEOUT / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn http2_feed_continues_beside_requests_until_shutdown() {
    let node = secure().await;
    let (mut client, connection) = over_http2(&node).await;
    let test = async {
        let mut feed = get(&node, &mut client, "/v1/events?types=tool").await;
        assert_eq!((feed.status().as_u16(), feed.version()), (200, hyper::Version::HTTP_2));
        for tool_id in ["one", "two"] {
            register(&node, tool_id).await;
            let tools = get(&node, &mut client, "/v1/tools").await;
            assert_eq!(tools.status().as_u16(), 200);
            let mut text = String::new();
            while !text.contains(&format!("\"subject\":\"{tool_id}\"")) {
                assert!(more(&mut feed, &mut text).await, "it goes on");
            }
        }
        node.begin_shutdown();
        // The feed ends as a complete response.
        while more(&mut feed, &mut String::new()).await {}
        drop(client);
    };
    // Drive the connection to its end.
    drop(futures::join!(test, connection));
    node.wait_for_shutdown().await;
}

// --- command -------------------------------------------------------------------------------------

#[tokio::test]
async fn the_command_shows_events_until_it_is_interrupted() {
    let node = Node::start().await;
    let start = latest_event_id(&node).await;
    register(&node, "sql").await;
    for json in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
        command.args(["events", "--types", "tool", "--since", &start, "--server", node.base()]);
        command.args(json.then_some("--json")).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        let mut lines = BufReader::new(child.stdout.take().expect("output")).lines();
        let line = lines.next().expect("a line").expect("text");
        if json {
            let data = trust_fabric::json::parse(line.as_bytes()).expect("JSON");
            assert_eq!((&data["type"], &data["subject"]), (&json!("tool"), &json!("sql")));
        } else {
            assert_eq!(line, format!("2027-01-15T08:00:00.000Z tool       ok     sql {TOOL} registered"));
        }
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("interrupted");
        assert!(child.wait().expect("it ends").success());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    let ended =
        command.args(["events", "--types", "x", "--server", node.base()]).output().expect("the program runs");
    let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && printed.contains("types: each must be one of"), "{printed}");
}
