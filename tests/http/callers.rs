//! The golden file of every route against every kind of caller, and the rules of bearer tokens and client
//! certificates.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use trust_fabric::api;

use crate::support::{Channel, FABRIC, JWT, Minted, Node, Setup, TOOL, credential, with};

const GOLDEN: &str = "tests/golden/callers.txt";

#[test]
fn every_route_is_on_the_page_of_the_interface() {
    let page = std::fs::read_to_string("docs/reference/http-api.md").expect("the page");
    let absent: Vec<_> = api::rows().iter().map(|row| row.path).filter(|path| !page.contains(path)).collect();
    assert!(absent.is_empty(), "{absent:?}");
}

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

/// A token for the node itself, with these capabilities if policy grants them.
async fn bearer(node: &Node, name: &str) -> Minted {
    node.own_token("agents", name).await
}

fn authorization(token: &str) -> String {
    format!("Bearer {token}")
}

/// A channel and the credentials presented over it.
struct CallerKind {
    name: &'static str,
    channel: Channel,
    authorization: Option<String>,
}

async fn caller_kinds(node: &Node) -> Vec<CallerKind> {
    let operator = bearer(node, "operator").await.token;
    let reporter = bearer(node, "orchestrator").await.token;
    let claims = node.issuers.service_account("demo", "reporter");
    let source = credential(&node.issuers.es256.sign(&claims), JWT);
    let elsewhere = node.granted(&with(&source, &json!({"audience": TOOL}))).await.token;
    let foreign = node.issuers.reporter();
    let way = |name, channel: &Channel, token: Option<&str>| CallerKind {
        name,
        channel: channel.clone(),
        authorization: token.map(authorization),
    };
    let (plain, anonymous) = (node.plain(), node.anonymous());
    vec![
        way("plain", &plain, None),
        way("plain+bearer", &plain, Some(&operator)),
        way("nobody", &anonymous, None),
        way("stranger", &node.certified("stranger"), None),
        way("gateway", &node.certified("gateway"), None),
        way("operator", &node.certified("operator"), None),
        way("bearer", &anonymous, Some(&operator)),
        way("bearer-without", &anonymous, Some(&reporter)),
        way("bearer-elsewhere", &anonymous, Some(&elsewhere)),
        way("bearer-foreign", &anonymous, Some(&foreign)),
        way("operator+bearer-without", &node.certified("operator"), Some(&reporter)),
    ]
}

/// The status in the table: refused by the middleware, or passed to the handler.
fn outcome(status: u16, body: &str) -> String {
    match status {
        401 | 403 | 429 => status.to_string(),
        404 if body.contains("no such route") => "no route".to_owned(),
        _ => "pass".to_owned(),
    }
}

/// Rows of the golden file by route: outcomes, then the test that covers the handler.
fn golden() -> BTreeMap<String, (String, String)> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN)).expect("the file");
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|line| {
        let mut cells = line.split('|').map(str::trim);
        let mut cell = || cells.next().unwrap_or_default().to_owned();
        (cell(), (format!("{} | {}", cell(), cell()), cell()))
    })
    .collect()
}

#[tokio::test]
async fn every_route_admits_exactly_the_callers_of_the_golden_file() {
    let node = secure().await;
    let caller_kinds = caller_kinds(&node).await;
    let golden = golden();
    let mut found = Vec::new();
    let mut differing = Vec::new();
    for row in api::rows() {
        let mut outcomes = Vec::new();
        for way in &caller_kinds {
            let path = ["{kid}", "{agent_id}", "{tool_id}", "{stream_id}"]
                .into_iter()
                .fold(row.path.to_owned(), |path, name| path.replace(name, "none"));
            // The live feed has no end for a permitted caller.
            let path = if row.path == "/v1/events" { format!("{path}?types=none") } else { path };
            let headers: Vec<_> =
                way.authorization.iter().map(|value| ("authorization", value.as_str())).collect();
            let answer = node.call_over(&way.channel, row.method.as_str(), &path, &headers, "").await;
            outcomes.push(format!("{} {}", way.name, outcome(answer.status, &answer.body)));
        }
        let name = format!("{} {}", row.method, row.path);
        let seen = format!("{} | {}", row.access, outcomes.join(", "));
        let (expected, covered_by) = golden.get(&name).cloned().unwrap_or_default();
        if expected != seen {
            differing.push(format!("{name}\n  golden {expected}\n  found  {seen}"));
        }
        found.push(format!("{name} | {seen} | {covered_by}"));
    }
    let routes = found.len();
    assert!(differing.is_empty(), "{}\n\nall:\n{}", differing.join("\n"), found.join("\n"));
    assert_eq!(golden.len(), routes, "a row without its route");
}

/// Attack: a blocked workload continues with its certificate on routes that need no token.
#[tokio::test]
async fn a_blocked_workload_is_let_in_nowhere_by_its_certificate() {
    let node = secure().await;
    let (operator, admin) = (node.certified("operator"), node.certified("chief"));
    node.disable_account("spiffe://trust.example/operator").await;
    let golden = golden();
    let mut refused = 0;
    for row in api::rows() {
        let (method, path) = (row.method.as_str(), row.path.replace(['{', '}'], ""));
        let name = format!("{method} {}", row.path);
        let is_open = golden[&name].0.contains("nobody pass");
        let answer = node.call_over(&operator, method, &path, &[], "").await;
        match (answer.status, is_open) {
            (401 | 403, true) => panic!("{name} is open: {}", answer.body),
            (_, true) => {}
            // This route accepts bearer tokens only.
            (401, false) if golden[&name].0.starts_with("bearer |") => {}
            (_, false) => {
                answer.is_refused(403, "access_denied", "the caller is blocked");
                refused += 1;
            }
        }
    }
    assert!(refused > 30, "{refused}");
    let blocks = node.call_over(&admin, "GET", "/v1/blocks", &[], "").await.json();
    let path = format!("/v1/blocks/{}", blocks[0]["id"].as_str().expect("id"));
    assert_eq!(node.call_over(&admin, "DELETE", &path, &[], "").await.status, 204);
    assert_eq!(node.call_over(&operator, "GET", "/v1/blocks", &[], "").await.status, 200);
}

#[test]
fn every_row_of_the_golden_file_names_a_test_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (route, (_, covered_by)) in golden() {
        let (file, name) = covered_by.split_once("::").unwrap_or_else(|| panic!("{route}: {covered_by:?}"));
        let text = std::fs::read_to_string(root.join("tests/http").join(format!("{file}.rs")));
        let text = text.unwrap_or_else(|_| panic!("{route}: there is no {file}"));
        assert!(text.contains(&format!("fn {name}(")), "{route}: {file} has no {name}");
    }
}

#[tokio::test]
async fn the_description_lists_no_operation_beside_the_route_table() {
    let node = secure().await;
    let description = node.call_over(&node.plain(), "GET", "/openapi.json", &[], "").await.json();
    let described: usize = description["paths"]
        .as_object()
        .expect("paths")
        .values()
        .map(|operations| {
            let methods = operations.as_object().expect("operations").keys();
            methods
                .filter(|method| matches!(method.as_str(), "get" | "put" | "post" | "patch" | "delete"))
                .count()
        })
        .sum();
    assert_eq!(described, api::rows().len());
}

#[tokio::test]
async fn bearer_token_is_verified_by_every_rule() {
    let node = secure().await;
    let token = bearer(&node, "operator").await.token;
    let call = async |authorization: &str| {
        let headers = [("authorization", authorization)];
        node.call_over(&node.anonymous(), "GET", "/v1/sys/keys", &headers, "").await
    };
    assert_eq!(call(&authorization(&token)).await.status, 200);
    // A malleated ES256 signature is valid too: tokens are identified by `jti`, not by their text.
    assert_eq!(call(&authorization(&crate::support::malleate(&token))).await.status, 200);
    // RFC 9110 §11.1: the scheme is case-insensitive.
    assert_eq!(call(&format!("bearer {token}")).await.status, 200);
    for bad in [
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer  {token}"),
        format!("Basic {token}"),
        format!("DPoP {token}"),
        token.clone(),
        format!("Bearer {token} {token}"),
        format!("Bearer {}", &token[..token.len() - 4]),
        "Bearer a.b.c".to_owned(),
        format!("Bearer {}", "a".repeat(8_000)),
    ] {
        let answer = call(&bad).await;
        answer.is_refused(401, "access_denied", "");
        let challenge = answer.header("www-authenticate").expect("a challenge");
        assert_eq!(challenge, r#"Bearer realm="trust-fabric", error="invalid_token""#);
        assert!(!answer.body.contains(&token), "{}", answer.body);
    }
    let twice = authorization(&token);
    let headers = [("authorization", twice.as_str()), ("authorization", twice.as_str())];
    let answer = node.call_over(&node.anonymous(), "GET", "/v1/sys/keys", &headers, "").await;
    answer.is_refused(401, "access_denied", "one Bearer token");
    node.advance_secs(299);
    assert_eq!(call(&authorization(&token)).await.status, 200);
    node.advance_secs(6);
    call(&authorization(&token)).await.is_refused(401, "access_denied", "not valid");
}

#[tokio::test]
async fn a_bearer_signed_by_a_tainted_key_is_refused_at_once() {
    let node = secure().await;
    let minted = bearer(&node, "operator").await;
    let value = authorization(&minted.token);
    let headers = [("authorization", value.as_str())];
    let kid = minted.header["kid"].as_str().expect("kid");
    let path = format!("/v1/sys/keys/{kid}/taint");
    let tainted = node.call_over(&node.certified("operator"), "POST", &path, &[], "").await;
    assert_eq!(tainted.status, 200);
    let answer = node.call_over(&node.anonymous(), "GET", "/v1/sys/keys", &headers, "").await;
    answer.is_refused(401, "access_denied", "not valid");
}

#[tokio::test]
async fn an_execution_scoped_token_is_no_bearer() {
    let node = secure().await;
    let claims = node.issuers.service_account("agents", "operator");
    let scope = json!({"htm": "GET", "htu": format!("{FABRIC}/v1/sys/keys")});
    let request = credential(&node.issuers.es256.sign(&claims), JWT);
    let request = with(&request, &json!({"audience": FABRIC, "execution_scope": scope}));
    let value = authorization(&node.granted(&request).await.token);
    let headers = [("authorization", value.as_str())];
    let answer = node.call_over(&node.anonymous(), "GET", "/v1/sys/keys", &headers, "").await;
    answer.is_refused(401, "access_denied", "not valid");
}

#[tokio::test]
async fn a_missing_capability_is_named() {
    let node = secure().await;
    let answer = node.call_over(&node.certified("gateway"), "GET", "/v1/sys/keys", &[], "").await;
    answer.is_refused(403, "access_denied", "cluster.admin");
    let challenge = answer.header("www-authenticate").expect("a challenge");
    assert!(challenge.contains(r#"error="insufficient_scope", scope="cluster.admin""#), "{challenge}");
    let answer = node.call_over(&node.anonymous(), "GET", "/v1/sys/keys", &[], "").await;
    assert_eq!(answer.header("www-authenticate"), Some(r#"Bearer realm="trust-fabric""#));
}

#[tokio::test]
async fn certificate_route_refuses_an_additional_bearer_token() {
    let node = secure().await;
    let value = authorization(&bearer(&node, "operator").await.token);
    let headers = [("authorization", value.as_str())];
    let gateway = node.certified("gateway");
    let answer = node.call_over(&gateway, "POST", "/v1/exchange/token", &headers, "").await;
    answer.is_refused(401, "access_denied", "no Authorization header");
}

/// CVE-2026-40575, CVE-2025-64484 and similar: headers that a proxy would set name no caller.
#[tokio::test]
async fn headers_of_a_proxy_name_no_caller() {
    let node = secure().await;
    let certificate = std::fs::read_to_string(&node.certificates().callers[1].1.certificate).expect("PEM");
    let certificate = certificate.replace('\n', "%0A");
    let names = [
        "x-forwarded-client-cert",
        "x_forwarded_client_cert",
        "client-cert",
        "client_cert",
        "x-client-cert",
        "x-ssl-client-cert",
        "ssl-client-cert",
        "ssl-client-verify",
        "ssl-client-s-dn",
        "x-ssl-client-verify",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-real-ip",
        "forwarded",
        "x-spiffe-id",
        "x-original-url",
        "x-rewrite-url",
    ];
    let values = [
        certificate.as_str(),
        "SUCCESS",
        "127.0.0.1",
        "https",
        "By=spiffe://trust.example/node;URI=spiffe://trust.example/operator",
        "spiffe://trust.example/operator",
        "for=127.0.0.1;proto=https",
        "/livez",
    ];
    for name in names {
        for value in values {
            for channel in [node.anonymous(), node.plain()] {
                let answer = node.call_over(&channel, "GET", "/v1/sys/keys", &[(name, value)], "").await;
                assert!(matches!(answer.status, 401 | 403), "{name}: {value}: {}", answer.status);
            }
        }
    }
}

#[tokio::test]
async fn expired_certificate_is_refused_on_an_open_connection() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let operator = node.certified("operator");
    assert_eq!(node.call_over(&operator, "GET", "/v1/sys/keys", &[], "").await.status, 200);
    assert_eq!(node.call_over(&gateway, "GET", "/livez", &[], "").await.status, 200);
    // The certificates are valid for a year from today.
    node.advance_secs(366 * 24 * 3600);
    let answer = node.call_over(&operator, "GET", "/v1/sys/keys", &[], "").await;
    answer.is_refused(401, "access_denied", "expired");
    // Public routes stay public for expired certificates.
    assert_eq!(node.call_over(&gateway, "GET", "/livez", &[], "").await.status, 200);
    let health = node.call_over(&gateway, "GET", "/v1/sys/health", &[], "").await.json();
    assert!(health.get("leader").is_none(), "no details for an expired certificate: {health}");
}

#[tokio::test]
async fn health_hides_details_from_anonymous_callers() {
    let node = secure().await;
    let health =
        async |channel: &Channel| node.call_over(channel, "GET", "/v1/sys/health", &[], "").await.json();
    for channel in [node.plain(), node.anonymous()] {
        let health = health(&channel).await;
        assert_eq!(health["status"], "pass");
        assert!(health.get("role").is_none() && health.get("leader").is_none(), "{health}");
    }
    let health = health(&node.certified("stranger")).await;
    assert_eq!((&health["role"], &health["leader"]), (&json!("leader"), &json!(1)));
}

#[tokio::test]
async fn policy_change_records_its_caller() {
    let node = secure().await;
    let operator = node.certified("operator");
    let current = node.call_over(&operator, "GET", "/v1/sys/policy", &[], "").await.json();
    let mut sources = current["sources"].as_array().expect("sources").clone();
    sources.push(json!({"path": "note.json", "text": "{\"note\": \"changed\"}"}));
    let body = json!({"sources": sources}).to_string();
    let applied = node.call_over(&operator, "PUT", "/v1/sys/policy", &[], body).await;
    assert_eq!(applied.status, 200, "{}", applied.body);
    let history = node.call_over(&operator, "GET", "/v1/sys/policy/history", &[], "").await.json();
    let by = history.as_array().and_then(|changes| changes.last()).map(|change| change["applied_by"].clone());
    assert_eq!(by, Some(json!("spiffe://trust.example/operator")));
}

#[tokio::test]
async fn the_caller_of_an_exchange_is_its_client_id() {
    let node = secure().await;
    let minted = node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    assert_eq!(minted.claims["client_id"], "spiffe://trust.example/gateway");
}

#[tokio::test]
async fn http_basic_at_the_token_endpoint_is_invalid_client() {
    let node = secure().await;
    for authorization in ["Basic YTpi", "basic", "BASIC x y"] {
        let headers = [("authorization", authorization)];
        let answer = node.call_over(&node.anonymous(), "POST", "/v1/exchange/token", &headers, "{}").await;
        answer.is_refused(401, "invalid_client", "tls_client_auth");
        assert_eq!(answer.header("www-authenticate"), Some(r#"Basic realm="trust-fabric""#));
    }
}
