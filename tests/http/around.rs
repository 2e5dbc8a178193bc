//! Middleware of every request, and the public documents.

use serde_json::{Value, json};

use crate::support::{FABRIC, GRANT, JWT, Node, credential};

#[tokio::test]
async fn rfc_8414_metadata_lists_existing_endpoints() {
    let node = Node::start().await;
    let metadata = node.get("/.well-known/oauth-authorization-server").await.json();
    assert_eq!(metadata["issuer"], FABRIC);
    assert_eq!(metadata["grant_types_supported"], json!([GRANT]));
    // Clients such as Authlib and the JavaScript MCP SDK require both.
    assert_eq!(metadata["response_types_supported"], json!(["none"]));
    assert_eq!(metadata["authorization_endpoint"], metadata["token_endpoint"]);
    for (name, path) in [("token_endpoint", "/v1/exchange/token"), ("jwks_uri", "/v1/identity/jwks")] {
        assert_eq!(metadata[name], format!("{FABRIC}{path}"));
    }
    for name in metadata
        .as_object()
        .expect("object")
        .keys()
        .filter(|name| name.ends_with("_endpoint") || name.ends_with("_uri"))
    {
        let path = metadata[name].as_str().and_then(|url| url.strip_prefix(FABRIC)).expect("our own");
        assert_ne!(node.call("GET", path, &[], "").await.status, 404, "{name}");
    }
}

#[tokio::test]
async fn health_reports_a_working_node() {
    let node = Node::start().await;
    let health = node.get("/v1/sys/health").await;
    assert_eq!((health.status, health.header("cache-control")), (200, Some("no-store")));
    let health = health.json();
    for (name, value) in [
        ("initialized", json!(true)),
        ("locked", json!(false)),
        ("unit_id", json!("under-test")),
        ("status", json!("pass")),
        ("role", json!("leader")),
        ("leader", json!(1)),
        ("missing", json!([])),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(health[name], value, "{name}");
    }
    assert_eq!(node.get("/readyz").await.status, 200);
    assert_eq!(node.get("/livez").await.json(), json!({"status": "pass"}));
}

#[tokio::test]
async fn metrics_are_well_formed_and_contain_no_identifier() {
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let minted = node.granted(&credential(&token, JWT)).await;
    node.exchange(&credential("x.y.z", JWT)).await;
    node.call("GET", "/no/such/route", &[], "").await;
    let metrics = node.get("/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut described = std::collections::BTreeSet::new();
    let mut seen = std::collections::BTreeSet::new();
    for line in metrics.body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name, text) = (words.next(), words.next().expect("name"), words.next().expect("text"));
            assert!(!text.is_empty() && matches!(kind, Some("HELP" | "TYPE")), "{line}");
            assert!(kind != Some("TYPE") || described.insert(name.to_owned()), "TYPE twice: {line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        value.parse::<f64>().unwrap_or_else(|_| panic!("a number: {line}"));
        assert!(seen.insert(series.to_owned()), "twice: {line}");
        let name = series.split('{').next().expect("name");
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(described.contains(name) || described.contains(family), "no TYPE: {line}");
        assert!(name.starts_with("svc_"), "{line}");
        let rest =
            name.trim_start_matches(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        assert!(rest.is_empty(), "{line}");
    }
    for expected in [
        "svc_exchange_total{result=\"granted\",subject_token_type=\"jwt\"} 1",
        "svc_exchange_total{result=\"subject_token\",subject_token_type=\"jwt\"} 1",
        "svc_policy_decisions_total{decision=\"allow\",point=\"exchange\"} 1",
        "svc_raft_is_leader 1",
        "svc_signing_keys{algorithm=\"ES256\",state=\"active\"} 1",
    ] {
        assert!(
            metrics.body.lines().any(|line| line == expected),
            "{expected} is missing in {}",
            metrics.body
        );
    }
    for secret in ["reporter", minted.claims["jti"].as_str().expect("jti"), "no/such", "trust.example"] {
        assert!(!metrics.body.contains(secret), "a label names {secret}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_return_the_error_object() {
    let node = Node::start().await;
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/v1"),
        ("POST", "/v1/exchange"),
        ("GET", "/v1/exchange/token/"),
        ("GET", "/v1/identity/jwks/x"),
        ("DELETE", "/x"),
        ("GET", "/v1/../etc/passwd"),
        ("GET", "/%2e%2e/x"),
    ] {
        node.call(method, path, &[], "").await.is_refused(404, "not_found", "no such route");
    }
    for (method, path) in [
        ("GET", "/v1/exchange/token"),
        ("DELETE", "/v1/exchange/token"),
        ("POST", "/v1/identity/jwks"),
        ("PATCH", "/v1/sys/policy"),
        ("POST", "/livez"),
        ("TRACE", "/livez"),
        ("BREW", "/metrics"),
    ] {
        node.call(method, path, &[], "").await.is_refused(405, "method_not_allowed", "");
    }
    assert_eq!(node.call("HEAD", "/v1/identity/jwks", &[], "").await.status, 200);
}

#[tokio::test]
async fn min_index_is_waited_for() {
    let node = Node::start().await;
    let index: u64 = node.get("/livez").await.header("svc-index").expect("index").parse().expect("number");
    let at = |index: String| {
        let node = &node;
        async move { node.call("GET", "/v1/identity/jwks", &[("svc-min-index", &index)], "").await }
    };
    assert_eq!(at(index.to_string()).await.status, 200);
    assert_eq!(at("0".to_owned()).await.status, 200);
    for malformed in ["x", "-1", "1.5", "18446744073709551616", " ", ""] {
        at(malformed.to_owned()).await.is_refused(400, "invalid_request", "Svc-Min-Index");
    }
    at((index + 1_000).to_string()).await.is_refused(503, "server_error", "Svc-Min-Index");
    at(u64::MAX.to_string()).await.is_refused(503, "server_error", "Svc-Min-Index");
}

#[tokio::test]
async fn index_grows_with_writes() {
    let node = Node::start().await;
    let index = |answer: &crate::support::Response| -> u64 {
        answer.header("svc-index").expect("index").parse().expect("number")
    };
    let before = index(&node.get("/livez").await);
    let scope = json!({"htm": "GET", "htu": "https://tools.example/sql", "nonce": "n"});
    let request =
        crate::support::with(&credential(&node.issuers.reporter(), JWT), &json!({"execution_scope": scope}));
    let written = node.exchange(&request).await;
    assert_eq!(written.status, 200);
    assert!(index(&written) > before);
}

#[tokio::test]
async fn every_request_gets_a_new_request_id() {
    let node = Node::start().await;
    let mut ids = std::collections::BTreeSet::new();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for headers in [
        &[][..],
        &[("traceparent", trace)],
        &[("traceparent", "garbage")],
        &[("x-request-id", "mine\\\"")],
        &[("x-request-id", "mine\\\"")],
    ] {
        let answer = node.call("GET", "/livez", headers, "").await;
        assert!(ids.insert(answer.header("x-request-id").expect("id").to_owned()));
    }
}

#[tokio::test]
async fn openapi_lists_every_route_and_every_answer_has_a_schema() {
    let node = Node::start().await;
    let document = node.get("/openapi.json").await.json();
    assert!(document["openapi"].as_str().expect("version").starts_with("3.1"));
    let paths = document["paths"].as_object().expect("paths");
    let routes: Vec<&str> = trust_fabric::api::rows().iter().map(|row| row.path).collect();
    assert!(routes.len() >= 15);
    for route in &routes {
        assert!(paths.contains_key(*route), "{route} is not described");
    }
    assert_eq!(paths.len(), routes.iter().collect::<std::collections::BTreeSet<_>>().len());
    let mut operations = std::collections::BTreeSet::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            let id = operation["operationId"].as_str().expect("operationId");
            assert!(operations.insert(id.to_owned()), "{id} twice");
            for (status, response) in operation["responses"].as_object().expect("responses") {
                let is_error = status.starts_with('4') || status.starts_with('5');
                let has_content = response.get("content").is_some_and(Value::is_object);
                assert!(!is_error || has_content, "{method} {path} {status} has no shape");
            }
        }
    }
}

/// Attack: a page of any site can make a browser on this machine send requests to loopback. Without checks of
/// `Host`, `Origin` and `Sec-Fetch-Site` it could rotate keys or restore an older policy.
#[tokio::test]
async fn a_page_of_another_site_cannot_administer_the_node() {
    let node = Node::start().await;
    let before = node.get("/v1/sys/keys").await.json();
    node.advance_secs(600);
    for (name, value) in [
        ("host", "rebound.evil.example:8693"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
    ] {
        for path in ["/v1/sys/keys/rotate", "/v1/sys/policy/rollback", "/v1/exchange/token"] {
            let headers = [("content-type", "application/json"), (name, value)];
            let answer = node.call("POST", path, &headers, json!({"number": 1}).to_string()).await;
            let (status, code, ..) = answer.refusal();
            assert_eq!((status, code.as_str()), (403, "access_denied"), "{name}: {value}: {path}");
        }
    }
    assert_eq!(
        node.get("/v1/sys/keys").await.json().as_array().map(Vec::len),
        before.as_array().map(Vec::len)
    );
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains("svc_requests_refused_total{reason=\"origin\"} 12\n"), "{metrics}");
}
