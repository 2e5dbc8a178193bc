//! The audit of tools: its entries, its readers and its pages.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{IDP, Node, Setup, TOOL, with};

const TOOL_ID: &str = "sql-query";

fn tool(changes: &Value) -> Value {
    with(
        &json!({"tool_id": TOOL_ID, "name": "SQL", "resource_uri": TOOL, "required_capabilities": ["db.read"],
            "protocols": ["mcp", "http"]}),
        changes,
    )
}

/// A registered tool, and a token for it.
async fn ready(node: &Node) -> String {
    assert_eq!(node.post("/v1/tools", &tool(&json!({}))).await.status, 201);
    let source = crate::support::credential(&node.issuers.reporter(), crate::support::JWT);
    node.granted(&with(&source, &json!({"audience": TOOL}))).await.token
}

async fn verify(node: &Node, token: &str) -> u16 {
    node.post("/v1/mcp/verify", &json!({"tool_id": TOOL_ID, "token": token})).await.status
}

async fn trail(node: &Node, query: &str) -> Vec<Value> {
    let answer = node.get(&format!("/v1/tools/{TOOL_ID}/audit{query}")).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{}", answer.body);
    answer.json().as_array().expect("an array").clone()
}

fn members<'v>(entries: &'v [Value], name: &str) -> Vec<&'v str> {
    entries.iter().map(|entry| entry[name].as_str().unwrap_or("-")).collect()
}

#[tokio::test]
async fn everything_done_about_a_tool_is_in_its_trail_newest_first() {
    let mut node = Node::start().await;
    let token = ready(&node).await;
    assert_eq!(verify(&node, &token).await, 200);
    node.advance_secs(1);
    let foreign = node.issuers.reporter();
    assert_eq!(verify(&node, &foreign).await, 403);
    let path = format!("/v1/tools/{TOOL_ID}");
    assert_eq!(node.put(&path, &tool(&json!({"name": "SQL 2"}))).await.status, 200);
    assert_eq!(node.call("DELETE", &path, &[], "").await.status, 204);
    let entries = trail(&node, "").await;
    assert_eq!(members(&entries, "action"), ["deregister", "replace", "verify", "verify", "register"]);
    assert_eq!(members(&entries, "decision"), ["allow", "allow", "deny", "allow", "allow"]);
    assert_eq!(members(&entries, "check"), ["-", "-", "token", "-", "-"]);
    assert_eq!(members(&entries, "node"), ["under-test"; 5]);
    let (denied, allowed) = (&entries[2], &entries[3]);
    assert_eq!(denied["subject"], "", "an unverified subject is not recorded");
    for written in [&entries[0], &entries[1], &entries[4]] {
        let caller = written["caller"].as_str().unwrap_or_default();
        assert_eq!(written["subject"], caller, "the caller is the subject of a write");
    }
    assert_eq!(allowed["subject"], crate::support::REPORTER);
    assert_eq!(allowed["protocol"], "mcp");
    for pair in entries.windows(2) {
        assert_eq!(pair[0]["prev_hash"], pair[1]["hash"]);
    }
    assert_eq!(entries[4]["prev_hash"], "");
    assert!(!json!(entries).to_string().contains(token.rsplit('.').next().expect("signature")));
    // The trail outlives the tool and the process.
    node.restart().await;
    assert_eq!(trail(&node, "").await, entries);
    assert_eq!(node.get("/v1/tools/never-was/audit").await.status, 404);
}

#[tokio::test]
async fn retried_write_is_audited_and_counted_as_a_retry() {
    let node = Node::start().await;
    let json = ("content-type", "application/json");
    let body = tool(&json!({})).to_string();
    for _ in 0..2 {
        let key = [json, ("idempotency-key", "k1")];
        assert_eq!(node.call("POST", "/v1/tools", &key, body.clone()).await.status, 201);
    }
    let path = format!("/v1/tools/{TOOL_ID}");
    for _ in 0..2 {
        assert_eq!(node.call("DELETE", &path, &[("idempotency-key", "k2")], "").await.status, 204);
    }
    let entries = trail(&node, "").await;
    let again = "duplicate of an earlier request; nothing changed";
    let (deregistered, registered) =
        (format!("{again} (the tool was deregistered)"), format!("{again} (the tool was registered)"));
    let told = [&deregistered, "the tool was deregistered", &registered, "the tool was registered"];
    assert_eq!(members(&entries, "notes"), told);
    let metrics = node.get("/metrics").await.body;
    for action in ["register", "deregister"] {
        for result in ["done", "repeated"] {
            let line = format!("svc_tool_writes_total{{action=\"{action}\",result=\"{result}\"}} 1\n");
            assert!(metrics.contains(&line), "{line}: {metrics}");
        }
    }
}

#[tokio::test]
async fn trail_is_filtered_and_paginated() {
    let node = Node::start().await;
    let token = ready(&node).await;
    for at in 0..9 {
        // Equal denials of a minute are one entry.
        node.advance_secs(21);
        let status = verify(&node, if at % 3 == 0 { "x.y.z" } else { &token }).await;
        assert_eq!(status, if at % 3 == 0 { 403 } else { 200 });
    }
    let all = trail(&node, "").await;
    assert_eq!(all.len(), 10);
    let denied = trail(&node, "?decision=deny").await;
    assert_eq!(members(&denied, "decision"), ["deny"; 3]);
    let since = all[3]["timestamp"].as_str().expect("time");
    assert_eq!(trail(&node, &format!("?since={since}")).await, all[..4]);
    let (mut path, mut paged) = (format!("/v1/tools/{TOOL_ID}/audit?limit=4"), Vec::new());
    loop {
        let answer = node.get(&path).await;
        paged.extend(answer.json().as_array().expect("an array").clone());
        let Some(link) = answer.header("link") else { break };
        let next = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
        path = next.expect("a link").to_owned();
    }
    assert_eq!(paged, all);
}

/// A caller that is refused all the time is in the audit with a number, not with an entry per call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_denials_are_counted_and_the_export_verifies() {
    let node = Node::start().await;
    let token = ready(&node).await;
    for _ in 0..5 {
        assert_eq!(verify(&node, "x.y.z").await, 403);
        assert_eq!(verify(&node, &token).await, 200);
    }
    let decisions = async |query: &str| members(&trail(&node, query).await, "decision").join(" ");
    assert_eq!(decisions("").await, "allow allow allow allow allow deny allow");
    node.advance_secs(60);
    assert_eq!(decisions("").await, "deny allow allow allow allow allow deny allow");
    let entries = trail(&node, "?decision=deny").await;
    assert_eq!((&entries[0]["count"], &entries[1]["count"]), (&json!(4), &Value::Null));
    assert_eq!(entries[0]["check"], "token");
    assert_eq!(verify(&node, "x.y.z").await, 403);
    assert_eq!(trail(&node, "?decision=deny").await.len(), 3, "the first of another minute");
    let file = node.directory.path().join("export");
    let path = file.to_str().expect("text");
    crate::support::program::succeed(&node, &["audit", "export", "--out", path]);
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    let output = { program }.args(["audit", "verify", path]).output().expect("runs");
    let verified = String::from_utf8_lossy(&output.stdout);
    assert!(verified.contains("9 entries about 1 tool: every hash and every link is valid"), "{verified}");
    let tail = crate::support::program::succeed(&node, &["audit", "tail", TOOL_ID]);
    assert!(tail.contains("4 equal ones within a minute"), "{tail}");
}

#[tokio::test]
async fn parameters_of_the_audit_are_checked_and_named() {
    let node = Node::start().await;
    ready(&node).await;
    for (query, text) in [
        ("?limit=0", "limit: must be a whole number from 1 to 1000"),
        ("?limit=1001", "limit: must be a whole number from 1 to 1000"),
        ("?decision=maybe", "decision: must be allow, deny or error"),
        ("?decision=", "decision: must be allow, deny or error"),
        ("?since=yesterday", "since: must be an RFC 3339 time, for example 2026-11-20T08:00:00Z"),
        ("?cursor=eA", "cursor: must be from a Link header"),
        ("?limit=1&limit=2", "limit: must not be given twice"),
        ("?order=oldest", "the query parameters are limit, decision, since, cursor"),
    ] {
        let answer = node.get(&format!("/v1/tools/{TOOL_ID}/audit{query}")).await;
        assert_eq!((answer.status, &answer.json()["error_description"]), (400, &json!(text)), "{query}");
    }
    for (query, text) in [
        ("?after=x", "after: must be a whole number"),
        ("?cursor=eA", "cursor: must be from a Link header"),
        ("?decision=deny", "the query parameters are after, limit, cursor"),
    ] {
        let answer = node.get(&format!("/v1/audit/blocks{query}")).await;
        assert_eq!((answer.status, &answer.json()["error_description"]), (400, &json!(text)), "{query}");
    }
}

#[tokio::test]
async fn blocks_of_the_audit_are_read_oldest_first_from_anywhere() {
    let node = Node::start().await;
    let token = ready(&node).await;
    for _ in 0..3 {
        assert_eq!(verify(&node, &token).await, 200);
        trail(&node, "").await;
    }
    let answer = node.get("/v1/audit/blocks").await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
    let blocks = answer.json().as_array().expect("an array").clone();
    let numbers: Vec<_> = blocks.iter().map(|block| block["number"].as_u64().expect("number")).collect();
    assert_eq!(numbers, (1..=blocks.len() as u64).collect::<Vec<_>>());
    let entries: usize = blocks.iter().map(|block| block["entries"].as_array().expect("entries").len()).sum();
    assert_eq!(entries, 4);
    for pair in blocks.windows(2) {
        assert_eq!((&pair[1]["prev_hash"], &pair[1]["node_id"]), (&pair[0]["hash"], &json!(1)));
    }
    let behind_first = node.get("/v1/audit/blocks?after=1&limit=1").await;
    assert_eq!(behind_first.json(), json!([blocks[1]]));
    assert!(behind_first.header("link").is_some_and(|link| link.ends_with("rel=\"next\"")));
    assert_eq!(node.get(&format!("/v1/audit/blocks?after={}", blocks.len())).await.json(), json!([]));
}

/// Notes of an entry whose caller disconnected.
const ABANDONED: &str = "the caller disconnected before the outcome was known";

/// Sends a request and disconnects: early, before the request is read, or `later`, while it is handled.
async fn send_and_hang_up(node: &Node, (method, path): (&str, &str), body: &Value, later: u32) {
    let body = body.to_string();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(node.address()).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("writes");
    for _ in 0..later {
        node.get("/v1/identity/jwks").await;
    }
}

fn is_abandoned(entry: &Value, action: &str) -> bool {
    entry["notes"] == ABANDONED && entry["decision"] == "error" && entry["action"] == action
}

#[tokio::test]
async fn writes_of_a_disconnected_caller_are_in_the_trail() {
    let node = Node::start().await;
    ready(&node).await;
    let path = format!("/v1/tools/{TOOL_ID}");
    let mut abandoned = 0;
    for at in 1..=256_u32 {
        let entry = tool(&json!({"name": format!("SQL {at}")}));
        send_and_hang_up(&node, ("PUT", &path), &entry, at % 8).await;
        if at % 16 == 0 {
            let entries = trail(&node, "?limit=1000").await;
            abandoned = entries.iter().filter(|entry| is_abandoned(entry, "replace")).count();
        }
        if abandoned >= 3 {
            break;
        }
    }
    // The number of requests caught in flight depends on the machine, but each has its entry, and so has each
    // state of the tool. The last entry may still be queued.
    let etag = node.get(&path).await.header("etag").expect("ETag").to_owned();
    let (_, revision) = etag.trim_matches('"').rsplit_once('.').expect("registration and revision");
    let revision: usize = revision.parse().expect("a number");
    assert!(revision > 1, "no write was done");
    for _ in 0..50 {
        if trail(&node, "?limit=1000").await.len() >= revision {
            return;
        }
    }
    panic!("the tool was changed {revision} times, and not every change is in its trail");
}

#[tokio::test]
async fn token_used_by_a_disconnected_caller_is_in_the_trail() {
    let node = Node::start().await;
    ready(&node).await;
    // The number of requests caught in flight depends on the machine.
    let mut abandoned = 0;
    for at in 1..=128_u32 {
        let scope = json!({"htm": "POST", "htu": TOOL, "nonce": format!("n{at}")});
        let source = crate::support::credential(&node.issuers.reporter(), crate::support::JWT);
        let minted = node.granted(&with(&source, &json!({"audience": TOOL, "execution_scope": scope}))).await;
        let request = json!({"tool_id": TOOL_ID, "token": minted.token});
        send_and_hang_up(&node, ("POST", "/v1/mcp/verify"), &request, at % 4).await;
        let answer = node.post("/v1/mcp/verify", &request).await;
        if answer.status == 200 {
            continue;
        }
        // The refusal of the next token is an entry of its own.
        node.advance_secs(60);
        assert!(answer.body.contains("token already used"), "{}", answer.body);
        let mut of_token = Vec::new();
        for _ in 0..50 {
            of_token = trail(&node, "?limit=10").await;
            of_token.retain(|entry| entry["jti"] == minted.claims["jti"]);
            if of_token.len() > 1 {
                break;
            }
        }
        assert_eq!(of_token.len(), 2, "the first use and the refused one: {of_token:?}");
        abandoned += of_token.iter().filter(|entry| is_abandoned(entry, "verify")).count();
        if abandoned >= 2 {
            return;
        }
    }
}

/// Policy, keys, revocations, blocks and allowances: each act is in the audit with its actor, also when it
/// was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrative_acts_are_listed_with_their_actor() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    node.advance_secs(600);
    let (operator, chief) = (node.certified("operator"), node.certified("chief"));
    let json = [("content-type", "application/json")];
    let ask = async |by, method: &str, path: &str, body: Value| {
        // Acts of different callers are in the order of their times.
        node.advance_secs(1);
        node.call_over(by, method, path, &json, body.to_string()).await
    };
    let policy = ask(&operator, "GET", "/v1/sys/policy", Value::Null).await.json();
    let sources = json!({"sources": policy["sources"]});
    assert_eq!(ask(&operator, "PUT", "/v1/sys/policy", sources).await.status, 200);
    let rollback = ask(&operator, "POST", "/v1/sys/policy/rollback", json!({"number": 1})).await;
    assert_eq!(rollback.status, 200, "{}", rollback.body);
    let rotated = ask(&chief, "POST", "/v1/sys/keys/rotate", Value::Null).await.json();
    let kid = rotated["retired"].as_str().expect("a kid").to_owned();
    let taint = format!("/v1/sys/keys/{kid}/taint");
    assert_eq!(ask(&chief, "POST", &taint, Value::Null).await.status, 200);
    let email = json!({"email": "alice@a.example", "issuer": IDP, "block": true});
    let made = ask(&operator, "POST", "/v1/revocations", email).await.json();
    let dry = json!({"email": "bob@a.example", "issuer": IDP});
    assert_eq!(ask(&operator, "POST", "/v1/revocations?dry_run=true", dry).await.status, 200);
    let blocks = ask(&chief, "GET", "/v1/blocks", Value::Null).await.json();
    let block = format!("/v1/blocks/{}", blocks[0]["id"].as_str().expect("id"));
    assert_eq!(ask(&chief, "DELETE", &block, Value::Null).await.status, 204);
    assert_eq!(ask(&chief, "DELETE", &block, Value::Null).await.status, 404);
    let allowance = json!({"issuer": IDP, "more": 3});
    assert_eq!(ask(&operator, "POST", "/v1/sys/signals/allowance", allowance).await.status, 200);

    let gateway = node.certified("gateway");
    let acts = async |query: &str| {
        let answer = node.call_over(&gateway, "GET", &format!("/v1/audit{query}"), &[], "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json().as_array().expect("an array").clone()
    };
    let all = acts("").await;
    let id = made["id"].as_str().expect("id");
    let expected = [
        format!("allow 3 more revocations to {IDP}"),
        format!("lift block {}: there is no block with this id", &block["/v1/blocks/".len()..]),
        format!("lift block {}", &block["/v1/blocks/".len()..]),
        format!("revoke and block email {id}: log index {}", made["index"]),
        format!("taint signing key {kid}"),
        format!("rotate the ES256 signing key: {kid} is retired"),
    ];
    assert_eq!(members(&all, "notes")[..6], expected.each_ref().map(String::as_str));
    assert!(
        all[6]["notes"].as_str().is_some_and(|notes| notes.starts_with("roll the policy back to change 1: "))
    );
    assert!(all[7]["notes"].as_str().is_some_and(|notes| notes.starts_with("apply a policy: ")));
    assert_eq!(all.len(), 8, "a dry run is no act");
    let (o, c) = ("spiffe://trust.example/operator", "spiffe://trust.example/chief");
    assert_eq!(members(&all, "actor"), [o, c, c, o, c, c, o, o]);
    assert_eq!(
        members(&all, "decision"),
        ["allow", "deny", "allow", "allow", "allow", "allow", "allow", "allow"]
    );
    assert_eq!((members(&all, "action"), members(&all, "tool_id")), (vec!["admin"; 8], vec![""; 8]));
    assert!(
        !json!(all).to_string().contains("alice@"),
        "an email address stands in the list of revocations only"
    );
    assert_eq!(acts(&format!("?action=admin&actor={o}")).await.len(), 4);
    assert_eq!(acts("?actor=spiffe://trust.example/operato").await.len(), 0);
    assert_eq!(acts("?since=2100-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(acts("?limit=3").await, all[..3]);
    let refused = node.call_over(&gateway, "GET", "/v1/audit?action=verify", &[], "").await;
    refused.is_refused(400, "invalid_request", "action: must be admin");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrative_acts_are_shown_by_command() {
    let node = Node::start().await;
    for more in [3, 4] {
        let allowed = node.post("/v1/sys/signals/allowance", &json!({"issuer": IDP, "more": more})).await;
        assert_eq!(allowed.status, 200, "{}", allowed.body);
    }
    let tail = crate::support::program::succeed(&node, &["audit", "tail", "--admin", "-n", "1"]);
    assert!(tail.lines().count() == 1 && tail.contains("admin") && tail.contains("allow 4 more"), "{tail}");
    crate::support::program::fail(&node, &["audit", "tail", "--admin", "a-tool"], &["cannot be used with"]);
}

/// An operator that changes the stream of another caller acts as an administrator; the owner does not.
#[tokio::test]
async fn changes_of_streams_of_others_are_administrative_acts() {
    let more_config = "[transmitter]\nbase_url = \"https://fabric.example:8694\"\n".to_owned();
    let node = Node::start_with(Setup { more_config, is_secure: true, ..Setup::default() }).await;
    let (gateway, chief) = (node.certified("gateway"), node.certified("chief"));
    let json = [("content-type", "application/json")];
    let ask = async |by, method: &str, path: &str, body: Value| {
        node.call_over(by, method, path, &json, body.to_string()).await
    };
    let stream = json!({
        "iss": crate::support::FABRIC, "aud": "https://receiver.example", "delivery_method": "poll",
        "events_requested": ["https://schemas.openid.net/secevent/caep/event-type/session-revoked"],
    });
    let made = ask(&gateway, "POST", "/v1/signals/stream", stream).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let id = made.json()["stream_id"].as_str().expect("id").to_owned();
    let subject = json!({"stream_id": id, "subject": {"format": "opaque", "id": "7"}});
    for by in [&gateway, &chief] {
        let paused = json!({"stream_id": id, "status": "paused"});
        assert_eq!(ask(by, "POST", "/v1/signals/status", paused).await.status, 200);
        assert_eq!(ask(by, "POST", "/v1/signals/subjects:remove", subject.clone()).await.status, 204);
        let described = json!({"stream_id": id, "description": "mine"});
        assert_eq!(ask(by, "PATCH", "/v1/signals/stream", described).await.status, 200);
    }
    let path = format!("/v1/signals/stream?stream_id={id}");
    assert_eq!(node.call_over(&chief, "DELETE", &path, &[], "").await.status, 204);
    let acts = node.call_over(&gateway, "GET", "/v1/audit", &[], "").await.json();
    let of = format!("stream {id} of spiffe://trust.example/gateway");
    let expected =
        ["delete", "change", "remove a subject of", "set the status of"].map(|what| format!("{what} {of}"));
    let acts = acts.as_array().expect("an array");
    assert_eq!(members(acts, "notes"), expected.each_ref().map(String::as_str));
    assert_eq!(members(acts, "actor"), ["spiffe://trust.example/chief"; 4]);
}

/// An operator that revokes the agent of another caller acts as an administrator; the caller that had it issued does
/// not, even if it is an operator.
#[tokio::test]
async fn revoking_agents_of_others_is_an_administrative_act() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let (gateway, chief) = (node.certified("gateway"), node.certified("chief"));
    let revoke = async |issuer, revoker| {
        let agent =
            json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]}).to_string();
        let json = [("content-type", "application/json")];
        let issued = node.call_over(issuer, "POST", "/v1/identity/agent", &json, agent).await;
        assert!(issued.status == 200 || issued.status == 201, "{}", issued.body);
        let id = issued.json()["agent_id"].as_str().expect("id").to_owned();
        let path = format!("/v1/identity/agents/{}", id.replace(':', "%3A").replace('/', "%2F"));
        assert_eq!(node.call_over(revoker, "DELETE", &path, &[], "").await.status, 204);
        id
    };
    revoke(&gateway, &gateway).await;
    let id = revoke(&gateway, &chief).await;
    let acts = node.call_over(&gateway, "GET", "/v1/audit", &[], "").await.json();
    let acts = acts.as_array().expect("an array");
    assert_eq!(members(acts, "notes"), [format!("revoke agent {id}")]);
    assert_eq!(members(acts, "actor"), ["spiffe://trust.example/chief"]);
}

/// On a disk without a free byte, the log has space that was allocated ahead, and the journal has none.
#[tokio::test]
async fn unaudited_revocation_holds_and_is_audited_when_repeated() {
    let node = Node::start().await;
    let revocation = json!({"subject": "spiffe://trust.example/reporter"}).to_string();
    let json_body = ("content-type", "application/json");
    let keyed = [json_body, ("idempotency-key", "first-attempt")];
    let revoke =
        async |headers: &[_]| node.call("POST", "/v1/revocations", headers, revocation.as_str()).await;
    let revoked = async || node.get("/v1/revocations").await.json().as_array().expect("a list").len();
    let audited = async || node.get("/v1/audit").await.body.matches(": log index ").count();
    let (journal, aside) = (node.directory.path().join("data/audit"), node.directory.path().join("aside"));
    std::fs::rename(&journal, &aside).expect("moved");
    let answer = revoke(&keyed).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.body);
    for text in ["done, but not audited", "send the same request again, to another node or to this one once"]
    {
        assert!(answer.body.contains(text), "{}", answer.body);
    }
    assert_eq!((revoked().await, audited().await), (1, 0));
    std::fs::rename(&aside, &journal).expect("moved back");
    for (headers, times) in [(&keyed[..], 1), (&[json_body], 2)] {
        let answer = revoke(headers).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        assert_eq!((revoked().await, audited().await), (1, times), "one revocation, each success audited");
    }
}
