//! The tool registry over `/v1/tools` and `/v1/mcp/tools` (contract §4, §5).

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::support::{Channel, Node, Response, Setup, with};

const JSON: (&str, &str) = ("content-type", "application/json");

/// The smallest entry.
fn entry(tool_id: &str) -> Value {
    json!({"tool_id": tool_id, "name": "a tool"})
}

/// An entry with every field.
fn full_entry(tool_id: &str) -> Value {
    json!({
        "tool_id": tool_id,
        "name": "SQL",
        "resource_uri": "https://tools.example/sql",
        "required_capabilities": ["db.read", "db.write"],
        "max_blast_radius": "namespace:demo",
        "requires_execution": true,
        "allowed_operations": ["query"],
        "allowed_targets": ["https://tools.example/sql"],
        "protocols": ["mcp", "http"],
        "description": "one\ntwo",
        "version": "1.2.0",
    })
}

async fn register(node: &Node, entry: &Value) -> Response {
    let answer = node.post("/v1/tools", entry).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer
}

async fn put_if(node: &Node, path: &str, condition: (&str, &str), entry: &Value) -> Response {
    node.call("PUT", path, &[JSON, condition], entry.to_string()).await
}

fn etag(answer: &Response) -> String {
    answer.header("etag").expect("ETag").to_owned()
}

fn ids(answer: &Response) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let rows = answer.json();
    let rows = rows.as_array().expect("an array");
    rows.iter().map(|row| row["tool_id"].as_str().expect("tool_id").to_owned()).collect()
}

/// A caller with a bearer token of a secure node.
struct BearerCaller {
    channel: Channel,
    authorization: String,
}

impl BearerCaller {
    async fn of(node: &Node, name: &str) -> Self {
        let token = node.own_token("agents", name).await.token;
        Self { channel: node.anonymous(), authorization: format!("Bearer {token}") }
    }

    async fn call(&self, node: &Node, method: &str, path: &str, body: &Value) -> Response {
        let headers = [JSON, ("authorization", self.authorization.as_str())];
        node.call_over(&self.channel, method, path, &headers, body.to_string()).await
    }
}

#[tokio::test]
async fn a_tool_is_registered_read_replaced_and_deregistered() {
    let node = Node::start().await;
    let created = register(&node, &full_entry("sql")).await;
    assert_eq!(created.header("location"), Some("/v1/tools/sql"));
    let record = created.json();
    let times =
        json!({"registered_at": "2027-01-15T08:00:00.000Z", "updated_at": "2027-01-15T08:00:00.000Z"});
    assert_eq!(record, with(&with(&full_entry("sql"), &times), &json!({"revision": 1})));
    let first = etag(&created);
    assert!(first.starts_with('"') && first.ends_with('"'), "strong: {first}");

    for path in ["/v1/tools/sql", "/v1/mcp/tools/sql"] {
        let read = node.get(path).await;
        assert_eq!((read.status, read.json()), (200, record.clone()));
        assert_eq!((read.header("etag"), read.header("cache-control")), (Some(&*first), Some("no-cache")));
        for known in [first.clone(), format!("W/{first}"), format!("\"x\", {first}"), "*".to_owned()] {
            let known = node.call("GET", path, &[("if-none-match", &known)], "").await;
            assert_eq!((known.status, known.header("etag"), &*known.body), (304, Some(&*first), ""));
        }
        let head = node.call("HEAD", path, &[], "").await;
        assert_eq!((head.status, head.header("etag"), &*head.body), (200, Some(&*first), ""));
        assert_eq!(head.header("content-length"), Some(&*read.body.len().to_string()));
    }

    node.advance_secs(60);
    let other = with(&record, &json!({"name": "SQL 2", "version": null, "protocols": ["http"]}));
    let replaced = node.put("/v1/tools/sql", &other).await;
    assert_eq!(replaced.status, 200, "{}", replaced.body);
    assert_eq!(replaced.header("location"), None);
    let changes = json!({"updated_at": "2027-01-15T08:01:00.000Z", "revision": 2});
    assert_eq!(replaced.json(), with(&other, &changes));
    assert_ne!(etag(&replaced), first);
    assert_eq!(node.get("/v1/tools/sql").await.json(), replaced.json());
    let stale = node.call("GET", "/v1/tools/sql", &[("if-none-match", &first)], "").await;
    assert_eq!(stale.status, 200);

    let gone = node.call("DELETE", "/v1/tools/sql", &[], "").await;
    assert_eq!((gone.status, &*gone.body), (204, ""));
    node.get("/v1/tools/sql").await.is_refused(404, "not_found", "no tool with this tool_id");
    node.call("DELETE", "/v1/tools/sql", &[], "").await.is_refused(404, "not_found", "no tool");
    assert_eq!(ids(&node.get("/v1/tools").await), Vec::<String>::new());
}

#[tokio::test]
async fn same_entry_is_200_and_a_different_one_409() {
    let node = Node::start().await;
    let created = register(&node, &full_entry("sql")).await;
    let again = node.post("/v1/tools", &full_entry("sql")).await;
    assert_eq!((again.status, again.json(), etag(&again)), (200, created.json(), etag(&created)));
    let again = node.put("/v1/tools/sql", &created.json()).await;
    assert_eq!((again.status, again.json(), etag(&again)), (200, created.json(), etag(&created)));
    let other = with(&full_entry("sql"), &json!({"required_capabilities": []}));
    for path in ["/v1/tools", "/v1/mcp/tools"] {
        let refused = node.post(path, &other).await;
        refused.is_refused(409, "invalid_request", "tool_id: is registered with other content");
    }
    assert_eq!(node.get("/v1/tools/sql").await.json(), created.json());
    let new = node.put("/v1/tools/new", &json!({"name": "a tool"})).await;
    assert_eq!((new.status, new.header("location")), (201, Some("/v1/tools/new")));
}

#[tokio::test]
async fn omitted_fields_have_their_specified_defaults() {
    let node = Node::start().await;
    let record = register(&node, &with(&entry("t"), &json!({"protocols": [], "version": null}))).await.json();
    let names: Vec<&str> = record.as_object().expect("object").keys().map(String::as_str).collect();
    let expected = [
        "allowed_operations",
        "allowed_targets",
        "name",
        "protocols",
        "registered_at",
        "required_capabilities",
        "requires_execution",
        "revision",
        "tool_id",
        "updated_at",
    ];
    assert_eq!(names, expected);
    assert_eq!(record["protocols"], json!(["mcp"]));
    assert_eq!(record["requires_execution"], json!(false));
    assert_eq!(record["required_capabilities"], json!([]));
}

#[tokio::test]
async fn every_rule_of_an_entry_is_kept_and_named() {
    let node = Node::start().await;
    for (member, value) in [
        ("tool_id", json!(null)),
        ("tool_id", json!("")),
        ("tool_id", json!("a/b")),
        ("tool_id", json!("a?b")),
        ("tool_id", json!("a#b")),
        ("tool_id", json!("a%62")),
        ("tool_id", json!("a b")),
        ("tool_id", json!("..")),
        ("tool_id", json!("t\u{f6}\u{f6}l")),
        ("tool_id", json!("a\nb")),
        ("tool_id", json!("a".repeat(257))),
        ("tool_id", json!(7)),
        ("name", json!(null)),
        ("name", json!("")),
        ("name", json!("a\nb")),
        ("name", json!(["a"])),
        ("resource_uri", json!("/sql")),
        ("resource_uri", json!("https://tools.example/sql#a")),
        ("required_capabilities", json!(["a b"])),
        ("required_capabilities", json!("db.read")),
        ("required_capabilities", json!(["a", "a"])),
        ("max_blast_radius", json!("Namespace:demo")),
        ("max_blast_radius", json!("")),
        ("requires_execution", json!("true")),
        ("allowed_operations", json!([""])),
        ("allowed_targets", json!(["a b"])),
        ("protocols", json!(["grpc"])),
        ("protocols", json!(["mcp", "mcp"])),
        ("protocols", json!("mcp")),
        ("description", json!("\u{1b}[2J")),
        ("version", json!("1.2")),
    ] {
        let bad = with(&entry("t"), &json!({member: value}));
        for path in ["/v1/tools", "/v1/mcp/tools"] {
            let answer = node.post(path, &bad).await;
            let (status, error, description) = answer.refusal();
            assert_eq!((status, &*error), (400, "invalid_request"), "{bad}");
            assert!(description.starts_with(member), "{bad}: {description}");
        }
    }
    let unbound = with(&entry("t"), &json!({"requires_execution": true}));
    node.post("/v1/tools", &unbound).await.is_refused(
        400,
        "invalid_request",
        "requires_execution: requires allowed_operations",
    );
    // "an unknown constraint must not be dropped silently"
    let unknown = with(&entry("t"), &json!({"required_scopes": ["a"]}));
    node.post("/v1/tools", &unknown).await.is_refused(400, "invalid_request", "required_scopes");
    let twice = r#"{"tool_id":"t","name":"a","required_capabilities":["a"],"required_capabilities":[]}"#;
    let answer = node.call("POST", "/v1/tools", &[JSON], twice).await;
    answer.is_refused(400, "invalid_request", "duplicate field");
    assert_eq!(ids(&node.get("/v1/tools").await), Vec::<String>::new());
}

#[tokio::test]
async fn an_entry_larger_than_its_limits_is_refused() {
    let node = Node::start().await;
    let described = |bytes: usize| with(&entry("t"), &json!({"description": "d".repeat(bytes)}));
    node.post("/v1/tools", &described(4097)).await.is_refused(
        400,
        "invalid_request",
        "description: must be at",
    );
    let answer = node.post("/v1/tools", &described(1_000_000)).await;
    answer.is_refused(413, "invalid_request", "larger than 64 KiB");
    // A body at the size limit is read and validated.
    let padded = |bytes: usize| {
        let text = entry("t").to_string();
        format!("{text}{}", " ".repeat(bytes - text.len()))
    };
    let largest = node.call("POST", "/v1/tools", &[JSON], padded(64 * 1024)).await;
    assert_eq!(largest.status, 201);
    let larger = node.call("POST", "/v1/tools", &[JSON], padded(64 * 1024 + 1)).await;
    larger.is_refused(413, "invalid_request", "larger than 64 KiB");
    register(&node, &with(&described(4096), &json!({"tool_id": "u"}))).await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = node.call("POST", "/v1/tools", &form, "tool_id=t").await;
    answer.is_refused(415, "invalid_request", "application/json");
}

#[tokio::test]
async fn a_put_is_about_the_tool_in_its_path() {
    let node = Node::start().await;
    let answer = node.put("/v1/tools/one", &entry("two")).await;
    answer.is_refused(400, "invalid_request", "tool_id: must be the one in the path");
    for path in ["/v1/tools/a%2Fb", "/v1/tools/%FF", "/v1/tools/a%20b", "/v1/tools/t%C3%B6"] {
        let answer = node.put(path, &json!({"name": "n"})).await;
        answer.is_refused(400, "invalid_request", "tool_id: must be");
        node.get(path).await.is_refused(404, "not_found", "no tool");
        node.call("DELETE", path, &[], "").await.is_refused(404, "not_found", "no tool");
    }
    assert_eq!(ids(&node.get("/v1/tools").await), Vec::<String>::new());
}

#[tokio::test]
async fn mcp_routes_list_and_accept_only_mcp_tools() {
    let node = Node::start().await;
    let takes = |id: &str, protocols: Value| with(&entry(id), &json!({"protocols": protocols}));
    let refused = node.post("/v1/mcp/tools", &takes("h", json!(["http"]))).await;
    refused.is_refused(400, "invalid_request", "protocols: must include mcp");
    register(&node, &takes("h", json!(["http"]))).await;
    register(&node, &takes("a", json!(["a2a/2025-draft-01", "http"]))).await;
    let created = node.post("/v1/mcp/tools", &takes("m", json!(["http", "mcp"]))).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/v1/mcp/tools/m")));
    assert_eq!(node.post("/v1/mcp/tools", &entry("d")).await.status, 201);

    assert_eq!(ids(&node.get("/v1/mcp/tools").await), ["d", "m"]);
    assert_eq!(ids(&node.get("/v1/tools").await), ["a", "d", "h", "m"]);
    assert_eq!(ids(&node.get("/v1/tools?protocol=http").await), ["a", "h", "m"]);
    assert_eq!(ids(&node.get("/v1/tools?protocol=a2a%2F2025-draft-01").await), ["a"]);
    node.get("/v1/tools?protocol=a2a").await.is_refused(400, "invalid_request", "protocol: must be");
    node.get("/v1/mcp/tools?protocol=http").await.is_refused(
        400,
        "invalid_request",
        "the query parameters are",
    );

    node.get("/v1/mcp/tools/h").await.is_refused(404, "not_found", "no tool");
    node.call("DELETE", "/v1/mcp/tools/h", &[], "").await.is_refused(404, "not_found", "no tool");
    node.call("DELETE", "/v1/mcp/tools?tool_id=h", &[], "").await.is_refused(404, "not_found", "no tool");
    assert_eq!(node.get("/v1/tools/h").await.status, 200);
    for query in ["", "?tool_id=", "?tool_id=m&tool_id=d", "?id=m"] {
        let answer = node.call("DELETE", &format!("/v1/mcp/tools{query}"), &[], "").await;
        answer.is_refused(400, "invalid_request", "");
    }
    assert_eq!(node.call("DELETE", "/v1/mcp/tools?tool_id=m", &[], "").await.status, 204);
    assert_eq!(node.call("DELETE", "/v1/mcp/tools/d", &[], "").await.status, 204);
    // A tool that no longer supports MCP leaves that list.
    assert_eq!(node.put("/v1/tools/h", &takes("h", json!(["mcp"]))).await.status, 200);
    assert_eq!(ids(&node.get("/v1/mcp/tools").await), ["h"]);
    assert_eq!(node.put("/v1/tools/h", &takes("h", json!(["http"]))).await.status, 200);
    assert_eq!(ids(&node.get("/v1/mcp/tools").await), Vec::<String>::new());
}

#[tokio::test]
async fn tool_of_another_caller_cannot_be_weakened() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let owner = BearerCaller::of(&node, "toolsmith").await;
    let created = owner.call(&node, "POST", "/v1/tools", &full_entry("sql")).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let record = created.json();
    assert_eq!(record["registered_by"], "wimse://trust.example/ns/agents/sa/toolsmith");

    let weaker = with(&full_entry("sql"), &json!({"required_capabilities": [], "requires_execution": false}));
    // The gateway may manage tools as well, but does not own this one.
    node.put("/v1/tools/sql", &weaker).await.is_refused(403, "access_denied", "belongs to another caller");
    for path in ["/v1/tools", "/v1/mcp/tools"] {
        node.post(path, &weaker).await.is_refused(409, "invalid_request", "other content");
    }
    for path in ["/v1/tools/sql", "/v1/mcp/tools/sql", "/v1/mcp/tools?tool_id=sql"] {
        let answer = node.call("DELETE", path, &[], "").await;
        answer.is_refused(403, "access_denied", "belongs to another caller");
    }
    // Nor does it learn the state of the tool.
    let answer = put_if(&node, "/v1/tools/sql", ("if-match", "\"9.9\""), &weaker).await;
    answer.is_refused(403, "access_denied", "belongs to another caller");
    // A stated owner does not help either.
    let lie = with(&weaker, &json!({"registered_by": "spiffe://trust.example/gateway"}));
    node.put("/v1/tools/sql", &lie).await.is_refused(403, "access_denied", "belongs to another caller");
    let other = BearerCaller::of(&node, "toolsmith2").await;
    let answer = other.call(&node, "PUT", "/v1/tools/sql", &weaker).await;
    answer.is_refused(403, "access_denied", "belongs to another caller");
    assert_eq!(owner.call(&node, "GET", "/v1/tools/sql", &json!({})).await.json(), record);
    // A write that changes nothing is accepted from any manager.
    assert_eq!(node.post("/v1/tools", &full_entry("sql")).await.status, 200);

    // Operators also have `issuers.admin`. The owner of the tool does not change.
    let curator = BearerCaller::of(&node, "curator").await;
    let replaced = curator.call(&node, "PUT", "/v1/tools/sql", &weaker).await;
    assert_eq!(replaced.status, 200, "{}", replaced.body);
    assert_eq!(replaced.json()["registered_by"], record["registered_by"]);
    let back = owner.call(&node, "PUT", "/v1/tools/sql", &full_entry("sql")).await;
    assert_eq!((back.status, &back.json()["revision"]), (200, &json!(3)));
    assert_eq!(curator.call(&node, "DELETE", "/v1/tools/sql", &json!({})).await.status, 204);
}

#[tokio::test]
async fn failed_precondition_changes_nothing() {
    let node = Node::start().await;
    let path = "/v1/tools/t";
    let failed = "condition of If-Match";
    for condition in ["*", "\"AAAAAAAA.1.1\"", "\"0.0\""] {
        let answer = put_if(&node, path, ("if-match", condition), &entry("t")).await;
        answer.is_refused(412, "invalid_request", failed);
    }
    let created = put_if(&node, path, ("if-none-match", "*"), &entry("t")).await;
    assert_eq!(created.status, 201);
    let one = etag(&created);
    put_if(&node, path, ("if-none-match", "*"), &entry("t")).await.is_refused(412, "invalid_request", failed);

    let named = |name: &str| with(&entry("t"), &json!({"name": name}));
    let weak = format!("W/{one}");
    let padded = one.replace(".1.", ".01.");
    for condition in ["\"x\"", "\"\"", &weak, &padded, "\"9.9\", \"8.8\""] {
        let answer = put_if(&node, path, ("if-match", condition), &named("two")).await;
        answer.is_refused(412, "invalid_request", failed);
        let answer = node.call("DELETE", path, &[("if-match", condition)], "").await;
        answer.is_refused(412, "invalid_request", failed);
    }
    for condition in ["", "x", "\"1.1", "* , \"1.1\""] {
        let answer = put_if(&node, path, ("if-match", condition), &named("two")).await;
        answer.is_refused(400, "invalid_request", "If-Match: must be * or a list");
    }
    let answer = put_if(&node, path, ("if-none-match", &one), &named("two")).await;
    answer.is_refused(400, "invalid_request", "If-None-Match: only *");
    for (name, shown) in [("if-match", "If-Match"), ("if-none-match", "If-None-Match")] {
        let answer = node.call("POST", "/v1/tools", &[JSON, (name, "*")], entry("u").to_string()).await;
        answer.is_refused(400, "invalid_request", &format!("{shown}: is not supported here"));
    }
    let two = put_if(&node, path, ("if-match", &format!("\"9.9\", {one}")), &named("two")).await;
    assert_eq!(two.status, 200, "{}", two.body);
    put_if(&node, path, ("if-match", &one), &named("three")).await.is_refused(412, "invalid_request", failed);
    assert_eq!(put_if(&node, path, ("if-match", "*"), &named("three")).await.status, 200);

    // After a new registration it is another tool: ETags of the first do not match.
    let three = etag(&node.get(path).await);
    assert_eq!(node.call("DELETE", path, &[("if-match", &three)], "").await.status, 204);
    register(&node, &entry("t")).await;
    for known in [&one, &three] {
        put_if(&node, path, ("if-match", known), &named("four")).await.is_refused(
            412,
            "invalid_request",
            failed,
        );
    }
}

#[tokio::test]
async fn conditional_reads_of_a_tool() {
    let node = Node::start().await;
    let one = etag(&register(&node, &entry("t")).await);
    for path in ["/v1/tools/t", "/v1/mcp/tools/t"] {
        for condition in ["*", &one, &format!("\"9.9\", {one}")] {
            assert_eq!(node.call("GET", path, &[("if-match", condition)], "").await.status, 200);
        }
        // RFC 9110 §13.2.2: `If-Match` is evaluated first.
        for condition in ["\"9.9\"", &format!("W/{one}")] {
            let conditions = [("if-match", condition), ("if-none-match", one.as_str())];
            let answer = node.call("GET", path, &conditions, "").await;
            answer.is_refused(412, "invalid_request", "condition of If-Match");
        }
        let both = [("if-match", one.as_str()), ("if-none-match", one.as_str())];
        assert_eq!(node.call("GET", path, &both, "").await.status, 304);
    }
    let answer = node.call("GET", "/v1/tools/none", &[("if-match", "*")], "").await;
    answer.is_refused(404, "not_found", "no tool");
}

#[tokio::test]
async fn one_of_many_concurrent_replacements_wins() {
    let node = Node::start().await;
    let one = etag(&register(&node, &entry("t")).await);
    let writes = (0..16).map(|at| {
        let entry = with(&entry("t"), &json!({"name": format!("name {at}")}));
        let (node, one) = (&node, &one);
        async move { put_if(node, "/v1/tools/t", ("if-match", one), &entry).await }
    });
    let answers = futures::future::join_all(writes).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((won.len(), lost.len()), (1, 15));
    assert!(lost.iter().all(|answer| answer.status == 412));
    assert_eq!(node.get("/v1/tools/t").await.json(), won[0].json());
}

#[tokio::test]
async fn retried_write_has_the_same_outcome() {
    let mut node = Node::start().await;
    let send = async |node: &Node, method: &str, path: &str, key: &str, body: &Value| {
        node.call(method, path, &[JSON, ("idempotency-key", key)], body.to_string()).await
    };
    let created = send(&node, "POST", "/v1/tools", "k1", &entry("t")).await;
    assert_eq!(created.status, 201);
    let other = with(&entry("t"), &json!({"name": "other"}));
    let replaced = send(&node, "PUT", "/v1/tools/t", "k2", &other).await;
    assert_eq!(replaced.status, 200);
    for _ in 0..2 {
        let again = send(&node, "POST", "/v1/tools", "k1", &entry("t")).await;
        assert_eq!((again.status, again.json(), etag(&again)), (201, created.json(), etag(&created)));
        let again = send(&node, "PUT", "/v1/tools/t", "k2", &other).await;
        assert_eq!((again.status, again.json(), etag(&again)), (200, replaced.json(), etag(&replaced)));
        // Another body, another method, another target.
        for (method, path, body) in [
            ("POST", "/v1/tools", entry("u")),
            ("PUT", "/v1/tools/t", entry("t")),
            ("POST", "/v1/mcp/tools", entry("t")),
            ("DELETE", "/v1/tools/t", json!({})),
        ] {
            let answer = send(&node, method, path, "k1", &body).await;
            answer.is_refused(422, "invalid_request", "Idempotency-Key");
        }
        assert_eq!(node.get("/v1/tools/t").await.json(), replaced.json(), "a retry changes nothing");
        node.restart().await;
    }
    let gone = send(&node, "DELETE", "/v1/tools/t", "k3", &json!({})).await;
    assert_eq!(gone.status, 204);
    assert_eq!(send(&node, "DELETE", "/v1/tools/t", "k3", &json!({})).await.status, 204);
    send(&node, "DELETE", "/v1/tools/t", "k4", &json!({})).await.is_refused(404, "not_found", "no tool");
    // A refused request may be repeated.
    assert_eq!(node.put("/v1/tools/t", &entry("t")).await.status, 201);
    assert_eq!(send(&node, "DELETE", "/v1/tools/t", "k4", &json!({})).await.status, 204);
}

#[tokio::test]
async fn tools_survive_a_restart() {
    let mut node = Node::start().await;
    let created = register(&node, &full_entry("sql")).await;
    register(&node, &entry("t")).await;
    node.restart().await;
    let read = node.get("/v1/tools/sql").await;
    assert_eq!((read.json(), etag(&read)), (created.json(), etag(&created)));
    assert_eq!(ids(&node.get("/v1/mcp/tools").await), ["sql", "t"]);
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "svc_tools 2"), "{metrics}");
}

/// Hostile and unusual names.
const NAMES: [&str; 12] = [
    "\u{202e}gnp.exe",
    "\u{5d0}\u{5d1}\u{5d2}",
    "\u{1f9e8}\u{200d}\u{1f525}",
    "'; DROP TABLE tools; --",
    "\"quoted\" \\back\\",
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "%00%0d%0aSet-Cookie:",
    "\u{feff}a\u{301}\u{200b}",
    "../../etc/passwd",
    ">; rel=\"next\", <",
];

/// Every character that is allowed in an id and not in a URL.
const ODD: &str = "<>\"`{}|^~!*'()\\[]@:;,&=+$-._A0z";

#[tokio::test]
async fn ten_thousand_tools_with_hostile_names_are_listed_once_each() {
    let unlimited_node = "[limits]\nrequests_per_second_per_caller = 1000000".to_owned();
    let mut node = Node::start_with(Setup { more_config: unlimited_node, ..Setup::default() }).await;
    let odd: Vec<char> = ODD.chars().collect();
    let entries: Vec<Value> = (0..10_000_usize)
        .map(|at| {
            let first = odd[at % odd.len()];
            let last = odd[at / odd.len() % odd.len()];
            let protocols = if at % 10 == 0 { json!(["http"]) } else { json!(["http", "mcp"]) };
            let name = NAMES[at % NAMES.len()];
            json!({"tool_id": format!("{first}{at}{last}"), "name": name, "protocols": protocols})
        })
        .collect();
    let statuses: Vec<u16> = futures::stream::iter(&entries)
        .map(|entry| async { node.post("/v1/tools", entry).await.status })
        .buffer_unordered(64)
        .collect()
        .await;
    assert!(statuses.iter().all(|status| *status == 201));
    for control in ["a\nb", "a\r\nLink: <x>", "a\0", "\u{85}"] {
        let named = with(&entry("control"), &json!({"name": control}));
        node.post("/v1/tools", &named).await.is_refused(400, "invalid_request", "name: must be");
    }

    let mut expected: Vec<(String, String)> = entries
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().expect("text").to_owned();
            (text("tool_id"), text("name"))
        })
        .collect();
    expected.sort();
    for _ in 0..2 {
        assert!(pages(&node, "/v1/tools?limit=997").await == expected, "each once, in the order of ids");
        node.restart().await;
    }
    let listed = pages(&node, "/v1/mcp/tools?limit=1000").await;
    assert_eq!(listed.len(), 9_000);
    assert!(listed.is_sorted());
    assert_eq!(ids(&node.get("/v1/tools").await).len(), 100, "by default");

    // Each has a URL, and is found at its `Location`.
    for (at, entry) in entries.iter().enumerate().take(odd.len()) {
        let changed = with(entry, &json!({"tool_id": format!("{}{at}", odd[at])}));
        let created = register(&node, &changed).await;
        let location = created.header("location").expect("Location").to_owned();
        let read = node.get(&location).await;
        assert_eq!((read.status, read.json()), (200, created.json()), "{location}");
        assert_eq!(node.call("DELETE", &location, &[], "").await.status, 204, "{location}");
    }
}

/// Every page from `path` on, by its links alone.
async fn pages(node: &Node, path: &str) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let mut next = Some(path.to_owned());
    while let Some(path) = next.take() {
        let page = node.get(&path).await;
        assert_eq!(page.status, 200, "{path}");
        let page_rows = page.json();
        for row in page_rows.as_array().expect("an array") {
            let text = |name: &str| row[name].as_str().expect("text").to_owned();
            rows.push((text("tool_id"), text("name")));
        }
        next = page.header("link").map(|link| {
            let target = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
            target.expect("one link to the next page").to_owned()
        });
    }
    rows
}

#[tokio::test]
async fn page_parameters_are_validated() {
    let node = Node::start().await;
    for id in ["a", "b", "c"] {
        register(&node, &entry(id)).await;
    }
    for query in
        ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1&limit=1", "cursor=%3D", "order=name"]
    {
        for list in ["/v1/tools", "/v1/mcp/tools"] {
            let answer = node.get(&format!("{list}?{query}")).await;
            answer.is_refused(400, "invalid_request", "");
        }
    }
    let page = node.get("/v1/mcp/tools?limit=2").await;
    assert_eq!(ids(&page), ["a", "b"]);
    let link = page.header("link").expect("more").to_owned();
    // A tool that is deregistered meanwhile does not hide those after it.
    assert_eq!(node.call("DELETE", "/v1/tools/b", &[], "").await.status, 204);
    let next = link.trim_start_matches('<').split('>').next().expect("a target");
    let last = node.get(next).await;
    assert_eq!((ids(&last), last.header("link")), (vec!["c".to_owned()], None));
    assert_eq!(node.get("/v1/tools?limit=2").await.header("link"), None, "all are on this page");
    let head = node.call("HEAD", "/v1/tools?limit=1", &[], "").await;
    assert_eq!((head.status, &*head.body), (200, ""));
    assert!(head.header("link").is_some());
}

/// Regression: a replaced or removed tool still allowed calls on other nodes for up to a second after the
/// answer.
#[tokio::test]
async fn removals_and_replacements_wait_for_every_member() {
    let node = Node::start().await;
    let confirmed = || node.state().cluster().acknowledgements().confirmed;
    let other = with(&entry("t"), &json!({"name": "another"}));
    let before = confirmed();
    register(&node, &entry("t")).await;
    assert_eq!(node.put("/v1/tools/u", &entry("u")).await.status, 201);
    assert_eq!(node.post("/v1/tools", &entry("t")).await.status, 200);
    assert_eq!(confirmed(), before, "a creation waits for no member");
    for (number, (method, path, body, status)) in [
        ("PUT", "/v1/tools/t", other.to_string(), 200),
        // Repeated, because the first may have been answered 503.
        ("PUT", "/v1/tools/t", other.to_string(), 200),
        ("PUT", "/v1/tools/u", with(&entry("u"), &json!({"name": "another"})).to_string(), 200),
        ("DELETE", "/v1/tools/t", String::new(), 204),
        ("DELETE", "/v1/tools/t", String::new(), 404),
        ("DELETE", "/v1/mcp/tools?tool_id=u", String::new(), 204),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = node.call(method, path, &[JSON], body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert_eq!(confirmed(), before + 1 + number as u64, "{method} {path}");
    }
}
