//! A node that cannot prove its freshness: which requests it answers, and which it refuses.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod node_under_test;

use std::path::Path;
use std::process::Child;

use node_under_test::{PROGRAM, Site, client};
use reqwest::{Method, RequestBuilder, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use trust_fabric::clock::Clock;
use trust_fabric::cluster::FreshnessMode;
use trust_fabric::{limits, node};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn exchange(subject: &str, kind: &str) -> Value {
    json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": subject, "subject_token_type": kind,
    })
}

async fn json_of(answer: Response) -> Value {
    serde_json::from_str(&answer.text().await.expect("text")).expect("JSON")
}

/// Every request that reads the revocation index, by name.
fn lease_bound_requests(
    request: impl Fn(Method, &str) -> RequestBuilder,
    token: &str,
) -> Vec<(&'static str, RequestBuilder)> {
    let agent = json!({"agent_name": "a", "platform": "mcp", "capabilities": ["db.read"]});
    let verify = json!({"tool_id": "none", "token": token});
    let jwt = "urn:ietf:params:oauth:token-type:jwt";
    let json = |path: &str, body: &Value| {
        let [(name, value)] = JSON;
        request(Method::POST, path).header(name, value).body(body.to_string())
    };
    // An index replaces ReadIndex but not the lease.
    let get = |path: &str| request(Method::GET, path).header("svc-min-index", "0");
    let bearer = |builder: RequestBuilder| builder.bearer_auth(token);
    vec![
        ("exchange", json("/v1/exchange/token", &exchange(token, jwt))),
        ("verify", json("/v1/mcp/verify", &verify)),
        ("an agent", json("/v1/identity/agent", &agent)),
        ("renewal", bearer(request(Method::POST, "/v1/identity/agent/renew"))),
        (
            "another token",
            request(Method::POST, "/v1/identity/agents/wimse%3A%2F%2Fa.example%2Fagent%2Fmcp%2Fa/token"),
        ),
        ("agents", get("/v1/identity/agents")),
        ("one agent", get("/v1/identity/agents/wimse%3A%2F%2Fa.example%2Fagent%2Fmcp%2Fa")),
        ("keys of an agent", get("/v1/identity/agent/encryption-key?workload_id=wimse://a.example/a")),
        ("a bearer", bearer(get("/v1/tools"))),
        ("a bearer that administers", bearer(get("/v1/sys/keys"))),
        ("an operator", get("/v1/sys/keys")),
    ]
}

#[tokio::test]
async fn without_a_lease_only_what_needs_none_is_answered() {
    let site = Site::new();
    let clock = Clock::manual(Clock::system().now());
    let config = site.config(&site.data());
    let shutdown = CancellationToken::new();
    let running =
        node::start(config, clock.clone(), Path::new(PROGRAM), shutdown.clone()).await.expect("starts");
    let http = client();
    let request =
        |method: Method, path: &str| http.request(method, format!("http://{}{path}", running.address));
    let get = async |path: &str| request(Method::GET, path).send().await.expect("answer");
    while get("/readyz").await.status() != 200 {}
    let token = site.credential();

    // A stopped Raft instance renews nothing; rows in memory remain.
    running.state.cluster().shutdown().await.expect("stops");
    clock.advance(limits::FRESHNESS_LEASE);
    let waited = lease_bound_requests(request, &token).into_iter().map(async |(name, asked)| {
        let answer = asked.send().await.expect("answer");
        assert_eq!(answer.status(), 503, "{name}");
        assert!(answer.headers().contains_key("retry-after"), "{name}");
        let text = answer.text().await.expect("text");
        assert!(text.contains("no freshness lease"), "{name}: {text}");
    });
    let waited: Vec<_> = waited.collect();
    let many = waited.len();
    futures::future::join_all(waited).await;
    for path in ["/livez", "/v1/identity/jwks", "/.well-known/oauth-authorization-server", "/openapi.json"] {
        assert_eq!(get(path).await.status(), 200, "{path}");
    }
    let metrics = get("/metrics").await.text().await.expect("text");
    for line in [
        "svc_freshness_lease_held 0".to_owned(),
        format!("svc_freshness_waits_total {many}"),
        format!("svc_freshness_refused_total {many}"),
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line}");
    }
    let ready = get("/readyz").await;
    assert_eq!(ready.status(), 503);
    let health = get("/v1/sys/health").await;
    for answer in [json_of(ready).await, json_of(health).await] {
        let missing = answer["missing"].as_array().expect("missing");
        assert!(missing.contains(&json!("freshness lease")), "{answer}");
        assert_ne!(answer["status"], "pass");
    }
    // The node still believes that it leads, but no quorum confirms it.
    let health = json_of(get("/v1/sys/health").await).await;
    assert_eq!((&health["status"], &health["leader"]), (&json!("warn"), &json!(1)), "{health}");
    clock.advance(limits::LEADER_UNCONFIRMED_MAX);
    let health = get("/v1/sys/health").await;
    assert_eq!(health.status(), 503);
    let health = json_of(health).await;
    assert_eq!(health["missing"], json!(["leader", "freshness lease"]), "{health}");
    let metrics = get("/metrics").await.text().await.expect("text");
    assert!(metrics.lines().any(|line| line == "svc_raft_is_leader 0"), "{metrics}");
    shutdown.cancel();
    // The shutdown reports the stopped Raft instance.
    drop(running.until_stopped().await);
}

/// On a machine whose clocks stand still, a lease lasts until they move.
#[tokio::test]
async fn without_leases_a_clock_that_stands_still_lets_nothing_pass() {
    let clock = Clock::manual(Clock::system().now());
    for (mode, status) in [(FreshnessMode::Lease, 200), (FreshnessMode::ReadIndex, 503)] {
        let site = Site::new();
        let mut config = site.config(&site.data());
        config.cluster.freshness = mode;
        let shutdown = CancellationToken::new();
        let running =
            node::start(config, clock.clone(), Path::new(PROGRAM), shutdown.clone()).await.expect("starts");
        let http = client();
        let agents = http.get(format!("http://{}/v1/identity/agents", running.address));
        let agents = agents.header("svc-min-index", "0");
        let asked = async || agents.try_clone().expect("request").send().await.expect("answer").status();
        assert_eq!(asked().await, 200, "{mode:?}");
        running.state.cluster().shutdown().await.expect("stops");
        assert_eq!(asked().await, status, "{mode:?}");
        shutdown.cancel();
        // The shutdown reports the stopped Raft instance.
        drop(running.until_stopped().await);
    }
}

/// Regression: a partitioned node served a tainted key without end.
#[tokio::test]
async fn without_a_lease_for_long_no_keys_are_served() {
    let site = Site::new();
    let clock = Clock::manual(Clock::system().now());
    let config = site.config(&site.data());
    let shutdown = CancellationToken::new();
    let running =
        node::start(config, clock.clone(), Path::new(PROGRAM), shutdown.clone()).await.expect("starts");
    let http = client();
    let url = format!("http://{}/v1/identity/jwks", running.address);
    let keys = async || http.get(&url).send().await.expect("answer");
    let tag = keys().await.headers()["etag"].clone();
    running.state.cluster().shutdown().await.expect("stops");
    clock.advance(limits::JWKS_WITHOUT_LEASE_MAX);
    // The last lease expired less than that long ago.
    assert_eq!(keys().await.status(), 200);
    clock.advance(limits::FRESHNESS_LEASE);
    let known = async || http.get(&url).header("if-none-match", &tag).send().await.expect("answer");
    for answer in <[Response; 2]>::from(futures::join!(keys(), known())) {
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key("retry-after"));
        let text = answer.text().await.expect("text");
        assert!(text.contains("no freshness lease for 60 s"), "{text}");
    }
    shutdown.cancel();
    // The shutdown reports the stopped Raft instance.
    drop(running.until_stopped().await);
}

/// Routes that need no leader: public documents, health, metrics, the status of the cluster, the live feed and the denials of
/// this node. Every other read is linearizable.
const LOCAL_READS: [&str; 12] = [
    "/v1/federation/bundle",
    "/.well-known/oauth-authorization-server",
    "/.well-known/ssf-configuration",
    "/livez",
    "/metrics",
    "/openapi.json",
    "/readyz",
    "/v1/events",
    "/v1/identity/jwks",
    "/v1/sys/cluster",
    "/v1/sys/denials/{request_id}",
    "/v1/sys/health",
];

#[tokio::test]
async fn without_a_leader_only_public_routes_answer() {
    let site = Site::new();
    let config = site.config(&site.data());
    let shutdown = CancellationToken::new();
    let clock = Clock::system();
    let running = node::start(config, clock, Path::new(PROGRAM), shutdown.clone()).await.expect("starts");
    let http = client();
    let read = |path: &str| http.get(format!("http://{}{path}", running.address));
    let paths: Vec<String> = trust_fabric::api::rows()
        .iter()
        .filter(|row| row.method == Method::GET && !LOCAL_READS.contains(&row.path))
        .map(|row| row.path.replace("{tool_id}", "a").replace("{agent_id}", "a"))
        .collect();
    assert!(paths.len() > 12, "{paths:?}");
    let all = |index: Option<&'static str>| {
        let asked = paths.iter().map(move |path| {
            let asked = read(path);
            let asked = match index {
                Some(index) => asked.header("svc-min-index", index),
                None => asked,
            };
            async move { (path, asked.send().await.expect("answer")) }
        });
        futures::future::join_all(asked)
    };
    for (path, answer) in all(None).await {
        assert_ne!(answer.status(), 503, "{path}");
    }
    running.state.cluster().shutdown().await.expect("stops");
    for (path, answer) in all(None).await {
        assert_eq!(answer.status(), 503, "{path}");
        assert!(answer.headers().contains_key("retry-after"), "{path}");
        let text = answer.text().await.expect("text");
        assert!(text.contains("the cluster has no leader"), "{path}: {text}");
    }
    // The lease has expired meanwhile. An index admits no caller without one, operators included.
    for (path, answer) in all(Some("0")).await {
        assert_eq!(answer.status(), 503, "{path}");
        let text = answer.text().await.expect("text");
        assert!(text.contains("no freshness lease"), "{path}: {text}");
    }
    shutdown.cancel();
    // The shutdown reports the stopped Raft instance.
    drop(running.until_stopped().await);
}

/// The lease comes before the lookups: a node that looked up first would pass a token that was revoked while it waited.
#[tokio::test]
async fn key_tainted_during_the_wait_for_a_lease_counts() {
    let site = Site::new();
    let clock = Clock::manual(Clock::system().now());
    let shutdown = CancellationToken::new();
    let config = site.config(&site.data());
    let running =
        node::start(config, clock.clone(), Path::new(PROGRAM), shutdown.clone()).await.expect("starts");
    let http = client();
    let url = |path: &str| format!("http://{}{path}", running.address);
    let post = |path: &str, body: Value| {
        let [(name, value)] = JSON;
        http.post(url(path)).header(name, value).body(body.to_string())
    };
    let answer = async |asked: RequestBuilder| asked.send().await.expect("answer");
    let waits = async || {
        let metrics = answer(http.get(url("/metrics"))).await.text().await.expect("text");
        let line = metrics.lines().find_map(|line| line.strip_prefix("svc_freshness_waits_total "));
        line.expect("counter").parse::<u64>().expect("number")
    };
    let tool = json!({"tool_id": "bare", "name": "takes anything"});
    assert_eq!(answer(post("/v1/tools", tool)).await.status(), 201);
    let minted = answer(post("/v1/exchange/token", node_under_test::exchange(&site.credential(), "a"))).await;
    let minted = json_of(minted).await;
    let verify = json!({"tool_id": "bare", "token": minted["access_token"]});

    // A jump of the wall clock voids this lease, and every one that is requested before the boot clock moves.
    let jump = 2 * limits::FRESHNESS_CLOCK_STEP_MAX;
    clock.shift(i64::try_from(jump.as_millis()).expect("small"));
    let before = waits().await;
    let tainted = async {
        while waits().await == before {}
        let kids: Vec<_> = running.state.index().signing_keys.keys().cloned().collect();
        assert!(!kids.is_empty(), "the token has one of them");
        for kid in kids {
            let key = trust_fabric::id::Digest128::from_bytes([0; 16]);
            running.state.as_node().taint_signing_key(kid, key).await.expect("tainted");
        }
        clock.advance(limits::FRESHNESS_MARGIN);
    };
    let (verified, ()) = futures::join!(answer(post("/v1/mcp/verify", verify)), tainted);
    assert_eq!(verified.status(), 403);
    let verified = json_of(verified).await;
    assert!(verified.to_string().contains("signing key unknown"), "{verified}");
    shutdown.cancel();
    running.until_stopped().await.expect("stops");
}

#[tokio::test]
async fn node_resumed_after_its_lease_answers_queued_requests() {
    let own = "urn:svc:token-type:agent-a2a";
    let site = Site::new();
    let process = site.spawn().expect("starts");
    let http = client();
    let url = |path: &str| format!("http://{}{path}", process.address);
    let issued = async || {
        let agent = json!({"agent_name": "a", "platform": "mcp", "capabilities": ["db.read"]});
        let answer =
            http.post(url("/v1/identity/agent")).body(agent.to_string()).send().await.expect("answer");
        assert_eq!(answer.status(), 200);
        json_of(answer).await
    };
    let (kept, revoked) = (issued().await, issued().await);
    let text = |agent: &Value, name: &str| agent[name].as_str().expect(name).to_owned();
    let id = text(&revoked, "agent_id").replace(':', "%3A").replace('/', "%2F");
    let gone = http.delete(url(&format!("/v1/identity/agents/{id}"))).send().await.expect("answer");
    assert_eq!(gone.status(), 204);

    let renew = |agent: &Value| http.post(url("/v1/identity/agent/renew")).bearer_auth(text(agent, "token"));
    let renewals = futures::future::join_all([&kept, &revoked].map(|agent| renew(agent).send()));
    let exchanged = |agent: &Value| exchange(&text(agent, "token"), own).to_string();
    let of_revoked = http.post(url("/v1/exchange/token")).body(exchanged(&revoked)).send();
    let of_site = exchange(&site.credential(), "urn:ietf:params:oauth:token-type:jwt").to_string();
    let of_site = http.post(url("/v1/exchange/token")).body(of_site).send();
    let send = |child: &Child, signal| kill_process(Pid::from_child(child), signal).expect("signal");
    send(&process.child, Signal::STOP);
    let paused = async {
        // The stopped process reports nothing, so there is no event to wait for.
        tokio::time::sleep(limits::FRESHNESS_LEASE + limits::FRESHNESS_RENEWAL).await;
        send(&process.child, Signal::CONT);
    };
    let began = Clock::system().boot();
    let (renewals, of_revoked, of_site, ()) = futures::join!(renewals, of_revoked, of_site, paused);
    assert!(Clock::system().boot().saturating_sub(began) >= limits::FRESHNESS_LEASE, "it was not stopped");
    let statuses: Vec<_> =
        renewals.into_iter().map(|answer| answer.expect("answer").status().as_u16()).collect();
    assert_eq!(statuses, [200, 401]);
    assert_eq!(of_revoked.expect("answer").status(), 400);
    assert_eq!(of_site.expect("answer").status(), 200);
    process.kill();
}
