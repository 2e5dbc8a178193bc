//! A node that is killed while it verifies. Each allowed verification is in the audit trail exactly once, equal
//! denials are there with their number, and two independent verifiers accept the trail.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod node_under_test;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::StreamExt as _;
use node_under_test::{PROGRAM, Site, client, exchange};
use serde_json::{Value, json};

const TOOL_ID: &str = "sql-query";
const CALLERS: usize = 32;

async fn post(http: &reqwest::Client, base: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let request = http.post(format!("{base}{path}")).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await.ok()?;
    let status = answer.status().as_u16();
    let text = answer.text().await.ok()?;
    Some((status, serde_json::from_str(&text).ok()?))
}

/// A token for the tool. Registers the tool if needed.
async fn token(site: &Site, http: &reqwest::Client, base: &str) -> String {
    let mut request = exchange(&site.credential(), "");
    request.as_object_mut().expect("object").remove("execution_scope");
    let (status, answer) = post(http, base, "/v1/exchange/token", &request).await.expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let tool =
        json!({"tool_id": TOOL_ID, "name": "SQL", "protocols": ["mcp"], "resource_uri": request["audience"]});
    let (status, answer) = post(http, base, "/v1/tools", &tool).await.expect("an answer");
    assert!(matches!(status, 200 | 201), "{status} {answer}");
    answer_text(&post(http, base, "/v1/exchange/token", &request).await.expect("an answer").1)
}

fn answer_text(answer: &Value) -> String {
    answer["access_token"].as_str().expect("a token").to_owned()
}

/// `request_id` and status of each answered verification.
type AnsweredRequests = BTreeMap<String, u16>;

/// Sends `all` verifications and kills the node after `kill_after` answers.
async fn verifications(site: &Site, all: u32, kill_after: Option<u32>, answered: &RefCell<AnsweredRequests>) {
    let node = site.spawn().expect("starts");
    let (http, base) = (client(), format!("http://{}", node.address));
    let good = token(site, &http, &base).await;
    let (victim, count) = (Cell::new(Some(node)), Cell::new(0));
    futures::stream::iter(0..all)
        .map(|at| {
            let (http, base, good, victim, count) = (&http, &base, &good, &victim, &count);
            async move {
                let presented = if at % 5 == 0 { "not.a.token" } else { good };
                let request = json!({"tool_id": TOOL_ID, "token": presented});
                let request = http
                    .post(format!("{base}/v1/mcp/verify"))
                    .header("content-type", "application/json")
                    .body(request.to_string());
                let Ok(answer) = request.send().await else { return };
                let (status, id) = (answer.status().as_u16(), answer.headers().get("x-request-id").cloned());
                if !matches!(status, 200 | 403) || answer.text().await.is_err() {
                    return;
                }
                let id = id.expect("an id").to_str().expect("text").to_owned();
                assert!(answered.borrow_mut().insert(id, status).is_none(), "ids are not used twice");
                count.set(count.get() + 1);
                if Some(count.get()) == kill_after
                    && let Some(node) = victim.take()
                {
                    node.kill();
                }
            }
        })
        .buffer_unordered(CALLERS)
        .collect::<Vec<_>>()
        .await;
    if let Some(node) = victim.take() {
        node.kill();
    }
}

/// Standard output of a command of the product.
fn run(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().expect("runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {printed}");
    String::from_utf8(output.stdout).expect("text")
}

/// Verifies an export with the Python verifier: its verdict and output.
fn python_verdict(export: &Path) -> (bool, Value) {
    #[expect(clippy::disallowed_methods, reason = "the one variable of the tests; the Makefile sets it")]
    let python = std::env::var_os("TRUST_FABRIC_PYTHON").expect("run the tests with `make test`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/verify_audit.py");
    let output = Command::new(python).arg(script).arg(export).output().expect("Python");
    let printed = serde_json::from_slice(&output.stdout);
    (
        output.status.success(),
        printed.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))),
    )
}

fn lines(export: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(export).expect("export");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Exports the trail of the tool and all blocks, and verifies both twice. Returns the trail.
fn export_and_verify(site: &Site, server: &str) -> Vec<Value> {
    let directory = |name: &str| -> PathBuf { site.beside(name) };
    let (trail, blocks) = (directory("trail.jsonl"), directory("blocks.jsonl"));
    for (path, tool) in [(&trail, &["--tool", TOOL_ID][..]), (&blocks, &[])] {
        drop(std::fs::remove_file(path));
        let path_text = path.to_str().expect("text");
        run(&[&["audit", "export", "--server", server, "--out", path_text], tool].concat());
        assert!(run(&["audit", "verify", path_text]).contains("every hash and every link is valid"));
        let (holds, printed) = python_verdict(path);
        assert!(holds, "{printed}");
    }
    let in_blocks: usize =
        lines(&blocks).iter().map(|block| block["entries"].as_array().map_or(0, Vec::len)).sum();
    let trail = lines(&trail);
    assert_eq!(in_blocks, trail.len(), "everything here is about one tool");
    trail
}

async fn every_answer_is_in_the_trail_once(rounds: u32, per_round: u32) {
    let site = Site::new();
    let answered = RefCell::new(AnsweredRequests::new());
    for _ in 0..rounds {
        verifications(&site, per_round, Some(per_round * 3 / 4), &answered).await;
    }
    let node = site.spawn().expect("comes back");
    let trail = export_and_verify(&site, &format!("http://{}", node.address));
    let mut found = BTreeMap::<String, Vec<&str>>::new();
    for entry in trail.iter().filter(|entry| entry["action"] == "verify") {
        let id = entry["request_id"].as_str().expect("text").to_owned();
        found.entry(id).or_default().push(entry["decision"].as_str().expect("text"));
    }
    let answered = answered.into_inner();
    for (id, status) in &answered {
        // The first denial of a minute is there; a kill loses the number of the others.
        let is_joined = *status == 403 && !found.contains_key(id);
        let expected = if *status == 200 { "allow" } else { "deny" };
        assert!(is_joined || found[id] == [expected], "{id}: {:?}", found.get(id));
    }
    let denied = found.values().filter(|entries| entries[..] == ["deny"]).count();
    assert!(denied >= usize::try_from(rounds).expect("small"), "{denied} denials in {rounds} rounds");
    assert!(found.values().all(|entries| entries.len() == 1), "an entry is there twice");
    let times: Vec<&str> = trail.iter().map(|entry| entry["timestamp"].as_str().expect("text")).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "newest first");
    println!("{} answered, {} entries, {} kills", answered.len(), trail.len(), rounds);
    assert!(answered.len() >= usize::try_from(rounds * (per_round * 3 / 4)).expect("small"));
    node.kill();
}

#[tokio::test]
async fn killed_node_keeps_each_answered_verification_once() {
    every_answer_is_in_the_trail_once(3, 1_000).await;
}

#[tokio::test]
#[ignore = "a hundred thousand verifications take minutes: `make proof`"]
async fn a_hundred_thousand_verifications_and_kills_keep_the_trail() {
    // Each round ends when three quarters are answered.
    every_answer_is_in_the_trail_once(4, 33_400).await;
}

/// Execution-scoped tokens.
async fn execution_tokens(site: &Site, http: &reqwest::Client, base: &str, tokens: u32) -> Vec<String> {
    let credential = &site.credential();
    let mint = |at: u32| async move {
        let request = exchange(credential, &format!("one-call-{at}"));
        let (status, answer) = post(http, base, "/v1/exchange/token", &request).await.expect("an answer");
        assert_eq!(status, 200, "{answer}");
        answer_text(&answer)
    };
    futures::stream::iter(0..tokens).map(mint).buffer_unordered(CALLERS).collect().await
}

#[tokio::test]
async fn killed_node_accepts_no_single_use_token_twice() {
    const TOKENS: u32 = 400;
    let site = Site::new();
    let node = site.spawn().expect("starts");
    let (http, base) = (client(), format!("http://{}", node.address));
    // Registers the tool.
    token(&site, &http, &base).await;
    let tokens = execution_tokens(&site, &http, &base, TOKENS).await;
    let (passed, heard) = (RefCell::new(BTreeMap::<usize, u32>::new()), Cell::new(0));
    let victim = Cell::new(Some(node));
    let verify = async |base: &str, at: usize, token: &str| {
        let request = json!({"tool_id": TOOL_ID, "token": token});
        let (status, answer) = post(&http, base, "/v1/mcp/verify", &request).await?;
        assert!(status == 200 || answer["check"] == "revocation", "{status} {answer}");
        if status == 200 {
            *passed.borrow_mut().entry(at).or_default() += 1;
        }
        Some(status)
    };
    let ask = async |(at, token): (usize, &String)| {
        if verify(&base, at, token).await.is_some() {
            heard.set(heard.get() + 1);
        }
        if heard.get() == TOKENS / 2
            && let Some(node) = victim.take()
        {
            node.kill();
        }
    };
    futures::stream::iter(tokens.iter().enumerate())
        .map(ask)
        .buffer_unordered(CALLERS)
        .collect::<Vec<_>>()
        .await;
    assert!(victim.take().is_none(), "it was killed");
    let node = site.spawn().expect("comes back");
    let base = format!("http://{}", node.address);
    for (at, token) in tokens.iter().enumerate() {
        verify(&base, at, token).await.expect("an answer");
    }
    let passed = passed.into_inner();
    assert!(passed.values().all(|times| *times == 1), "a token passed twice");
    let trail = export_and_verify(&site, &base);
    let mut allowed = BTreeMap::<&str, u32>::new();
    for entry in trail.iter().filter(|entry| entry["action"] == "verify" && entry["decision"] == "allow") {
        *allowed.entry(entry["jti"].as_str().expect("jti")).or_default() += 1;
    }
    assert!(allowed.values().all(|times| *times == 1), "a token was allowed twice");
    assert!(allowed.len() >= passed.len(), "a token passed that is not in the trail");
    // A token can be used in the log without a response to its caller.
    println!("{} of {TOKENS} passed, {} allowed in the trail", passed.len(), allowed.len());
    node.kill();
}

#[tokio::test]
async fn export_with_a_changed_byte_fails_both_verifiers() {
    let site = Site::new();
    let answered = RefCell::new(AnsweredRequests::new());
    verifications(&site, 20, None, &answered).await;
    let node = site.spawn().expect("comes back");
    export_and_verify(&site, &format!("http://{}", node.address));
    node.kill();
    for name in ["trail.jsonl", "blocks.jsonl"] {
        let (path, changed) = (site.beside(name), site.beside("changed.jsonl"));
        let whole = std::fs::read(&path).expect("export");
        // A unit test changes every byte; here are samples through the whole programs.
        for at in (0..whole.len()).step_by(whole.len() / 7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&changed, bytes).expect("write");
            let output =
                Command::new(PROGRAM).args(["audit", "verify"]).arg(&changed).output().expect("runs");
            assert_eq!(output.status.code(), Some(1), "{name}: byte {at}");
            assert!(!python_verdict(&changed).0, "{name}: byte {at}");
        }
    }
}
