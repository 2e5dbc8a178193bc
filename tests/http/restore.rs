//! `trust-fabric restore FILE`: the new cluster refuses everything that was issued before.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, FABRIC, IDP, JWT, Minted, Node, OWN, REPORTER, Response, Setup, TOOL, credential,
    program, with,
};

const AGENT: &str = "/v1/identity/agent";
const ENCRYPTION_KEY: &str = "/v1/identity/agent/encryption-key";
const VERIFY: &str = "/v1/mcp/verify";
const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
/// Seconds after which a credential is issued after the floor by any clock: 7 s, and rounding.
const PAST_FLOOR: u64 = 8;

/// Runs the program without a node: exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn config_of(node: &Node) -> PathBuf {
    node.directory.path().join("trust-fabric.toml")
}

fn data_of(node: &Node) -> PathBuf {
    node.directory.path().join("data")
}

fn backup_of(node: &Node) -> PathBuf {
    let file = node.directory.path().join("fabric.backup");
    program::succeed(node, &["backup", "save", text(&file)]);
    file
}

/// Restores a backup into an empty data directory and starts the node on it. Returns the output of the command.
async fn restore(node: &mut Node, backup: &Path) -> String {
    node.stop().await;
    fs::remove_dir_all(data_of(node)).expect("removed");
    let (code, out, err) = run(&["restore", text(backup), "--config", text(&config_of(node))]);
    assert_eq!(code, Some(0), "{out}{err}");
    node.start_again().await;
    out
}

/// A credential of the reporter that is issued now.
fn credential_now(node: &Node) -> String {
    let now = node.now_secs();
    let times = json!({"iat": now, "nbf": now, "exp": now + 3600});
    node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times))
}

fn exchange(token: &str, kind: &str, audience: &str) -> Value {
    with(&credential(token, kind), &json!({ "audience": audience }))
}

async fn bearer(node: &Node, method: &str, path: &str, token: &str, body: &Value) -> Response {
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    node.call(method, path, &headers, body.to_string()).await
}

fn encryption_key(workload_id: &str) -> Value {
    let key = json!({"kty": "OKP", "crv": "X25519", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"});
    json!({"workload_id": workload_id, "key": key})
}

/// The credentials and tokens of workloads at one time.
struct Held {
    credential: String,
    own: Minted,
    for_tool: Minted,
    agent: Value,
}

async fn held(node: &Node) -> Held {
    let credential = credential_now(node);
    let own = node.granted(&exchange(&credential, JWT, FABRIC)).await;
    let for_tool = node.granted(&exchange(&own.token, OWN, TOOL)).await;
    let request = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let agent = node.post(AGENT, &request).await;
    assert_eq!(agent.status, 200, "{}", agent.body);
    Held { credential, own, for_tool, agent: agent.json() }
}

/// Every use of what was issued before is refused.
async fn assert_refused(node: &Node, held: &Held) {
    let fresh = node.own_token("agents", "orchestrator").await.token;
    for (token, kind) in [(&held.credential, JWT), (&held.own.token, OWN)] {
        let answer = node.exchange(&exchange(token, kind, FABRIC)).await;
        answer.is_refused(400, "invalid_request", BAD_SUBJECT);
        let subject = exchange(&credential_now(node), JWT, TOOL);
        let actor = json!({"actor_token": token, "actor_token_type": kind});
        node.exchange(&with(&subject, &actor)).await.is_refused(400, "invalid_request", BAD_ACTOR);
    }
    let verified = node.post(VERIFY, &json!({"tool_id": "sql", "token": held.for_tool.token})).await;
    assert_eq!(verified.status, 403, "{}", verified.body);
    let agent = held.agent["token"].as_str().expect("token");
    for token in [agent, &held.own.token] {
        let renewed = bearer(node, "POST", "/v1/identity/agent/renew", token, &json!({})).await;
        assert_eq!(renewed.status, 401, "{}", renewed.body);
        let registered = bearer(node, "POST", ENCRYPTION_KEY, token, &encryption_key(REPORTER)).await;
        assert_eq!(registered.status, 401, "{}", registered.body);
        let listed = bearer(node, "GET", "/v1/tools", token, &json!({})).await;
        assert_eq!(listed.status, 401, "{}", listed.body);
    }
    assert!(!fresh.is_empty());
}

#[tokio::test]
async fn everything_issued_before_a_restore_is_refused() {
    let mut node = Node::start().await;
    let with_tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &with_tool).await.status, 201);
    let before = held(&node).await;
    let registered =
        bearer(&node, "POST", ENCRYPTION_KEY, &before.own.token, &encryption_key(REPORTER)).await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    let kids = node.get("/v1/identity/jwks").await.json();
    let position = before.own.claims["idx"].as_str().expect("idx").to_owned();
    let backup = backup_of(&node);

    // After the backup: forgotten by the restored state.
    node.advance_secs(60);
    let after = held(&node).await;
    let revoked = node.post("/v1/revocations", &json!({"jti": before.own.claims["jti"]})).await;
    assert_eq!(revoked.status, 202, "{}", revoked.body);
    let out = restore(&mut node, &backup).await;

    let incarnation = out.lines().find_map(|line| line.strip_prefix("incarnation  ")).expect("incarnation");
    assert!(!position.starts_with(&incarnation[..32]), "{out}");
    for part in ["cluster      ", "refused      ", "repeat the revocations and blocks", "log index"] {
        assert!(out.contains(part), "{out}");
    }
    // The clock of the restore was that of the backup, at which `after` was not issued yet.
    node.advance_secs(PAST_FLOOR);
    assert_refused(&node, &before).await;
    let answer = node.exchange(&exchange(&after.own.token, OWN, FABRIC)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    let verified = node.post(VERIFY, &json!({"tool_id": "sql", "token": after.for_tool.token})).await;
    assert_eq!(verified.status, 403, "{}", verified.body);

    let now = node.get("/v1/identity/jwks").await.json();
    let kids_of = |keys: &Value| -> Vec<Value> {
        keys["keys"].as_array().expect("keys").iter().map(|key| key["kid"].clone()).collect()
    };
    assert!(kids_of(&kids).iter().all(|kid| !kids_of(&now).contains(kid)), "{kids} {now}");
    let keys = node.get(&format!("{ENCRYPTION_KEY}?workload_id={REPORTER}")).await;
    assert_eq!(keys.status, 404, "{}", keys.body);

    // A credential issued after it works everywhere at once.
    let fresh = held(&node).await;
    assert!(fresh.own.claims["idx"].as_str().is_some_and(|idx| idx.starts_with(&incarnation[..32])));
    let verified = node.post(VERIFY, &json!({"tool_id": "sql", "token": fresh.for_tool.token})).await;
    assert_eq!(verified.status, 200, "{}", verified.body);
    let token = fresh.agent["token"].as_str().expect("token");
    let renewed = bearer(&node, "POST", "/v1/identity/agent/renew", token, &json!({})).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    node.restart().await;
    assert_refused(&node, &before).await;
}

#[tokio::test]
async fn margin_of_the_floor_is_that_of_a_watermark() {
    let mut node = Node::start().await;
    let backup = backup_of(&node);
    let begun = node.now_secs();
    restore(&mut node, &backup).await;
    node.advance_secs(60);
    for (after, status) in [(0, 400), (7, 400), (8, 200)] {
        let iat = json!({"iat": begun + after, "nbf": begun + after});
        let token = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &iat));
        let answer = node.exchange(&exchange(&token, JWT, FABRIC)).await;
        assert_eq!(answer.status, status, "{after}: {}", answer.body);
    }
}

/// An issuer repeats what it sent after the backup, as it was sent then.
#[tokio::test]
async fn issuers_repeat_their_signals_after_a_restore() {
    let mut node = Node::start().await;
    let blocked = node.post("/v1/revocations", &json!({"subject": REPORTER, "block": true})).await;
    assert_eq!(blocked.status, 202, "{}", blocked.body);
    let backup = backup_of(&node);
    let signal = json!({
        "iss": IDP, "jti": "sent after the backup", "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": "wimse://trust.example/ns/agents/sa/orchestrator"},
        "events": {(SESSION_REVOKED): {}},
    });
    assert_eq!(node.post("/v1/signals/events", &signal).await.status, 202);
    restore(&mut node, &backup).await;
    // The leader of a cluster that had other members acknowledges nothing before their leases have expired.
    node.advance_secs(PAST_FLOOR);
    assert!(!node.get("/v1/revocations").await.body.contains("orchestrator"), "it is of after the backup");
    assert_eq!(node.post("/v1/signals/events", &signal).await.status, 202);
    assert!(node.get("/v1/revocations").await.body.contains("orchestrator"));
    // A block of before the backup is still there.
    let answer = node.exchange(&exchange(&credential_now(&node), JWT, FABRIC)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
}

/// A reader of the ledger must not continue after a restore: what it read after the backup is not in the log.
#[tokio::test]
async fn ledger_is_kept_under_another_hash_and_read_anew() {
    const HASH: &str = "/v1/federation/revocation-hash";
    const EXPORT: &str = "/v1/federation/revocation-export";
    let mut node = Node::start().await;
    assert_eq!(node.post("/v1/revocations", &json!({"subject": REPORTER, "block": true})).await.status, 202);
    let backup = backup_of(&node);
    let (before, entries) = (node.get(HASH).await.json(), node.get(EXPORT).await.json());
    restore(&mut node, &backup).await;
    let after = node.get(HASH).await.json();
    assert_eq!(node.get(EXPORT).await.json(), entries);
    assert_eq!((&after["count"], &after["floor"]), (&before["count"], &before["floor"]));
    assert_ne!(after["hash"], before["hash"]);
    let position = before["position"].as_str().expect("a position");
    let answer = node.get(&format!("{EXPORT}?since={position}")).await;
    answer.is_refused(409, "invalid_request", "since: is of another incarnation of this fabric");
    let index = position.split_once('-').expect("a position").1;
    assert!(after["position"].as_str().is_some_and(|after| after.ends_with(&format!("-{index}"))), "{after}");
}

#[tokio::test]
async fn feed_of_another_incarnation_begins_anew() {
    let mut node = Node::start().await;
    let backup = backup_of(&node);
    let with_tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &with_tool).await.status, 201);
    let own = node.own_token("agents", "orchestrator").await;
    let position = own.claims["idx"].as_str().expect("idx").to_owned();
    restore(&mut node, &backup).await;
    let last = format!("{position}-0");
    let feed = node.feed(&node.plain(), "", &[("last-event-id", last.as_str())]).await;
    assert_eq!(feed.status, 200, "an id of the other log is not waited for");
}

/// The revisions of tools are counted again from those of the backup.
#[tokio::test]
async fn entity_tag_of_a_tool_is_of_one_incarnation() {
    let mut node = Node::start().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    let tag = node.post("/v1/tools", &tool).await.header("etag").expect("an entity tag").to_owned();
    let backup = backup_of(&node);
    restore(&mut node, &backup).await;
    let conditional =
        async |name: &str| node.call("GET", "/v1/tools/sql", &[(name, tag.as_str())], "").await.status;
    assert_eq!((conditional("if-none-match").await, conditional("if-match").await), (200, 412));
}

/// Asserts that the command fails with this text and leaves no data.
#[track_caller]
fn assert_refused_backup(config: &Path, data: &Path, backup: &Path, reason: &str) {
    let (code, out, err) = run(&["restore", text(backup), "--config", text(config)]);
    assert!(code == Some(1) && out.is_empty() && err.contains(reason), "{code:?} {out}{err}");
    let left: Vec<_> = fs::read_dir(data)
        .map(|entries| entries.map(|entry| entry.expect("entry").file_name()).collect())
        .unwrap_or_default();
    assert!(left.iter().all(|name| name == "mode"), "{left:?}");
}

#[tokio::test]
async fn bad_backup_is_refused_and_leaves_an_empty_directory() {
    let mut node = Node::start().await;
    let backup = backup_of(&node);
    node.stop().await;
    let (config, data) = (config_of(&node), data_of(&node));
    fs::remove_dir_all(&data).expect("removed");
    let whole = fs::read(&backup).expect("file");
    let bad = node.directory.path().join("bad.backup");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for (bytes, reason) in [
        (changed, "backup"),
        (whole[..whole.len() - 1].to_vec(), "truncated"),
        (whole[..whole.len() / 2].to_vec(), "truncated"),
        (b"no backup".to_vec(), "backup"),
    ] {
        fs::write(&bad, bytes).expect("written");
        assert_refused_backup(&config, &data, &bad, reason);
    }
    let configuration = fs::read_to_string(&config).expect("configuration");
    let other = node.directory.path().join("other.toml");
    fs::write(&other, configuration.replace(FABRIC, "https://another.example")).expect("written");
    let reason = "the backup is of another fabric, https://fabric.example, and fabric.issuer is https://another.example";
    assert_refused_backup(&other, &data, &backup, reason);
    // Nothing of the refused attempts is in the way.
    let (code, _, err) = run(&["restore", text(&backup), "--config", text(&config)]);
    assert_eq!(code, Some(0), "{err}");
}

#[tokio::test]
async fn backup_of_the_other_mode_is_refused() {
    let node = Node::start().await;
    let backup = backup_of(&node);
    let mut secure = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    secure.stop().await;
    let data = data_of(&secure);
    fs::remove_dir_all(&data).expect("removed");
    let reason = "the backup has development data, and node.mode is production";
    assert_refused_backup(&config_of(&secure), &data, &backup, reason);
}

#[tokio::test]
async fn used_directory_is_refused_and_unchanged() {
    let mut node = Node::start().await;
    let backup = backup_of(&node);
    let config = config_of(&node);
    let restore = || run(&["restore", text(&backup), "--config", text(&config)]);
    let (code, _, err) = restore();
    assert!(code == Some(1) && err.contains("not empty, it contains"), "running: {err}");
    node.stop().await;
    let (code, _, err) = restore();
    assert!(code == Some(1) && err.contains("not empty, it contains"), "stopped: {err}");
    node.start_again().await;
}

/// The command was killed after it had unpacked a part of the backup.
#[tokio::test]
async fn interrupted_restore_is_refused_by_serve_and_repeated() {
    let mut node = Node::start().await;
    let backup = backup_of(&node);
    node.stop().await;
    let (config, data) = (config_of(&node), data_of(&node));
    fs::remove_dir_all(&data).expect("removed");
    fs::create_dir_all(data.join("state/1")).expect("a part");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("mode");
    fs::write(data.join("state/1/CURRENT"), "cut").expect("a part");
    fs::write(data.join("restoring"), "trust-fabric restore FILE\n").expect("mark");
    fs::write(data.join("mode"), "development\n").expect("mode");
    let (code, _, err) = run(&["serve", "--config", text(&config)]);
    assert!(code == Some(1) && err.contains("`trust-fabric restore FILE` was interrupted; repeat"), "{err}");
    let (code, _, err) = run(&["restore", "--force-new-cluster", "--yes", "--config", text(&config)]);
    assert_eq!(code, Some(1), "{err}");
    let (code, out, err) = run(&["restore", text(&backup), "--config", text(&config)]);
    assert_eq!(code, Some(0), "{out}{err}");
    node.start_again().await;
}
