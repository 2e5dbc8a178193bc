//! The HTTP edge: unusual spellings of paths, foreign names, malformed HTTP, rate limits, and the
//! certificates that open a connection.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use trust_fabric::api::caller::Access;
use trust_fabric::{api, limits};

use crate::support::raw::{self, Wire};
use crate::support::{Channel, FABRIC, JWT, Node, Setup, certificates, credential, python};

async fn secure() -> Node {
    secure_with("").await
}

async fn secure_with(more_config: &str) -> Node {
    let more_config = more_config.to_owned();
    Node::start_with(Setup { is_secure: true, more_config, ..Setup::default() }).await
}

fn wires(node: &Node) -> [Wire<'_>; 2] {
    let ca = node.certificates().ca.certificate.as_path();
    [Wire { address: node.address(), tls: None }, Wire { address: node.tls_address(), tls: Some((ca, None)) }]
}

fn request(method: &str, target: &str, more: &str) -> Vec<u8> {
    format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n").into_bytes()
}

/// Spellings of a path that some server treats as the path itself.
fn spellings(path: &str) -> Vec<String> {
    let (first, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
    let slash = |rest: &str| if rest.is_empty() { String::new() } else { format!("/{rest}") };
    vec![
        format!("/{path}"),
        format!("/.{path}"),
        format!("/x/..{path}"),
        format!("{path}/"),
        format!("{path}/."),
        format!("{path}/.."),
        format!("{path}//"),
        format!("{path}."),
        format!("{path};x"),
        format!("{path}%00"),
        format!("{path}%20"),
        format!("{path}%2f"),
        format!("{path}%3f"),
        format!("{path}%23"),
        format!("{path}.json"),
        format!("/{first}/.{}", slash(rest)),
        format!("/{first}/{}", slash(rest)),
        format!("/{first}%2f{rest}"),
        format!("/{first}%2F{rest}"),
        format!("/{first}\\{rest}"),
        format!("/{first};a=b{}", slash(rest)),
        format!("/%{:02x}{}", path.as_bytes()[1], &path[2..]),
        path.to_uppercase(),
        format!("http://localhost{path}"),
        format!("https://localhost{path}"),
        format!("localhost{path}"),
        format!("*{path}"),
        format!("{path}#x"),
    ]
}

/// The path with a value for each parameter.
fn filled(path: &str) -> String {
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "none" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn no_spelling_of_a_path_weakens_its_route() {
    let node = secure_with("[limits]\nrequests_per_second_per_caller = 1000000\n").await;
    let mut tried = 0;
    for wire in &wires(&node) {
        for row in api::rows().iter().filter(|row| !matches!(row.access, Access::Health | Access::Public)) {
            let path = filled(row.path);
            let straight = raw::status(&wire.exchange(&request(row.method.as_str(), &path, "")).await);
            for trick in spellings(&path).iter().filter(|trick| **trick != path) {
                let answer = wire.exchange(&request(row.method.as_str(), trick, "")).await;
                let status = raw::status(&answer);
                // A spelling may be the path of another route, which has other methods.
                assert!(
                    [straight, 400, 404, 405].contains(&status) && status >= 400 || is_metrics(&path, status),
                    "{trick}: {answer}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 400, "{tried}");
}

/// Metrics are public on loopback, so a spelling that equals the path may answer.
fn is_metrics(path: &str, status: u16) -> bool {
    path == "/metrics" && [200, 400, 404].contains(&status)
}

#[tokio::test]
async fn a_method_that_a_route_does_not_have_opens_nothing() {
    let node = secure().await;
    for wire in &wires(&node) {
        for row in api::rows().iter().filter(|row| !matches!(row.access, Access::Health | Access::Public)) {
            let path = filled(row.path);
            // The rate limit must not refuse any of them.
            node.advance_secs(1);
            for method in
                ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "XYZ"]
            {
                let answer = wire.exchange(&request(method, &path, "")).await;
                let status = raw::status(&answer);
                let is_open = path == "/metrics" && status == 200 && matches!(method, "GET" | "HEAD");
                assert!(matches!(status, 400 | 401 | 403 | 405) || is_open, "{method} {path}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn headers_that_override_the_method_or_the_path_do_not() {
    let node = secure().await;
    for more in [
        "x-http-method-override: GET\r\n",
        "x-method-override: GET\r\n",
        "x-original-url: /livez\r\n",
        "x-rewrite-url: /livez\r\n",
        "x-forwarded-prefix: /livez\r\n",
    ] {
        for wire in &wires(&node) {
            let answer = wire.exchange(&request("GET", "/v1/sys/keys", more)).await;
            assert!(matches!(raw::status(&answer), 401 | 403), "{more}: {answer}");
        }
    }
}

/// Host header attacks on documents that clients trust: no document contains a name from the request.
#[tokio::test]
async fn documents_never_contain_the_host_header() {
    let node = secure().await;
    let documents = ["/.well-known/oauth-authorization-server", "/v1/identity/jwks", "/openapi.json"];
    for wire in &wires(&node) {
        for path in documents {
            for host in [
                "evil.example",
                "evil.example:8694",
                "fabric.example.evil.example",
                "fabric.example@evil.example",
                "fabric.example:443@evil.example",
                "fabric.example,evil.example",
                "fabric.example evil.example",
                "127.0.0.1.evil.example",
                "localhost.evil.example",
                "[::1]evil.example",
                "[::1.evil.example]",
                "2130706433",
                "0x7f000001",
                "10.0.0.1",
                "",
            ] {
                let bytes = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
                let answer = wire.exchange(bytes.as_bytes()).await;
                assert!(matches!(raw::status(&answer), 400 | 403), "{host}: {answer}");
                assert!(!answer.contains("evil"), "{answer}");
            }
            for more in [
                "x-forwarded-host: evil.example\r\n",
                "forwarded: host=evil.example\r\n",
                "x-host: evil.example\r\n",
                "x-forwarded-server: evil.example\r\n",
            ] {
                let answer = wire.exchange(&request("GET", path, more)).await;
                assert_eq!(raw::status(&answer), 200, "{answer}");
                assert!(!answer.contains("evil"), "{answer}");
            }
            let twice = "host: evil.example\r\n";
            let answer = wire.exchange(&request("GET", path, twice)).await;
            assert_eq!(raw::status(&answer), 400, "{answer}");
        }
    }
}

#[tokio::test]
async fn malformed_http_gets_the_error_object() {
    let node = Node::start().await;
    let wire = Wire { address: node.address(), tls: None };
    let many = "x: y\r\n".repeat(70);
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(9_000));
    for (bytes, status, text) in [
        ("GET /livez HTTP/1.1\r\nhost: localhost\n\r\n\r\n".to_owned(), 400, "CR LF"),
        ("GET /livez HTTP/1.0\r\nhost: localhost\r\n\r\n".to_owned(), 400, "HTTP/1.1"),
        ("GET /livez HTTP/1.1\r\n\r\n".to_owned(), 400, "Host"),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".to_owned(), 400, "Host"),
        ("GET http://localhost/livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 400, "path"),
        (
            "POST /v1/exchange/token HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\
             transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
            400,
            "exclude each other",
        ),
        (format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), 431, "too many headers"),
        (long, 414, "too long"),
    ] {
        let answer = wire.exchange(bytes.as_bytes()).await;
        assert_eq!(raw::status(&answer), status, "{bytes:.80}: {answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
        let body: Value = serde_json::from_str(raw::body(&answer)).expect("the error object");
        assert_eq!(body["error"], "invalid_request");
        assert!(
            body["error_description"].as_str().is_some_and(|description| description.contains(text)),
            "{body}"
        );
        assert!(body["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{body}");
    }
}

#[tokio::test]
async fn a_body_that_is_encoded_is_not_unpacked() {
    let node = Node::start().await;
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, identity", "x-gzip"] {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        // The first bytes of a gzip stream; its content does not matter.
        let answer = node.call("POST", "/v1/exchange/token", &headers, vec![0x1f, 0x8b, 8, 0]).await;
        answer.is_refused(415, "invalid_request", "Content-Encoding");
    }
}

#[tokio::test]
async fn a_caller_beyond_its_rate_waits_and_others_do_not() {
    let node = secure_with("[limits]\nrequests_per_second_per_caller = 4\n").await;
    let (gateway, operator) = (node.certified("gateway"), node.certified("operator"));
    let list = async |channel: &Channel| node.call_over(channel, "GET", "/v1/sys/keys", &[], "").await;
    for left in [3, 2, 1, 0] {
        let answer = list(&operator).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""caller";q=4;w=1"#));
        assert_eq!(answer.header("ratelimit"), Some(format!(r#""caller";r={left};t=1"#).as_str()));
    }
    let answer = list(&operator).await;
    answer.is_refused(429, "access_denied", "too many requests");
    assert_eq!(answer.header("retry-after"), Some("1"));
    // Health has its own rate, also for this caller, and other callers are not affected.
    for _ in 0..20 {
        assert_eq!(node.call_over(&operator, "GET", "/livez", &[], "").await.status, 200);
    }
    node.exchange(&credential("x.y.z", JWT)).await.is_refused(400, "invalid_request", "");
    assert_eq!(list(&gateway).await.status, 403);
    // Failed attempts of an unauthenticated client count by address, whatever token it sends.
    let anonymous = node.anonymous();
    let guess = async |number: u32| {
        let value = format!("Bearer {number}");
        node.call_over(&anonymous, "GET", "/v1/sys/keys", &[("authorization", value.as_str())], "")
            .await
            .status
    };
    let mut statuses = Vec::new();
    for number in 0..8 {
        statuses.push(guess(number).await);
    }
    assert!(statuses.contains(&401) && statuses.ends_with(&[429]), "{statuses:?}");
    node.advance_secs(1);
    assert_eq!(list(&operator).await.status, 200);
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains("svc_requests_refused_total{reason=\"rate\"} "), "{metrics}");
}

/// Regression: one of two listeners is idle and ends at once; the Raft instance must not end with it.
#[tokio::test]
async fn tls_request_in_flight_is_answered_at_shutdown() {
    let node = secure().await;
    let made = node.certificates();
    let (ca, pair) = (made.ca.certificate.clone(), made.callers[0].1.clone());
    let wire = Wire { address: node.tls_address(), tls: Some((&ca, Some(&pair))) };
    let mut stream = wire.connect().await.expect("connected");
    let body = credential(&node.issuers.reporter(), JWT).to_string();
    let head = format!(
        "POST /v1/exchange/token HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len(),
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.flush().await.expect("sent");
    // "100 Continue": the handler reads the body, so the request is in flight.
    let mut invitation = [0; 25];
    stream.read_exact(&mut invitation).await.expect("100");
    assert_eq!(&invitation, b"HTTP/1.1 100 Continue\r\n\r\n");
    node.begin_shutdown();
    let answer = raw::finish(stream, body.as_bytes()).await;
    assert_eq!(raw::status(&answer), 200, "{answer}");
    node.wait_for_shutdown().await;
}

/// A client that would be refused now is refused on its open connection too.
#[tokio::test]
async fn new_client_ca_closes_and_refuses_connections_of_the_old_one() {
    let node = secure().await;
    let made = node.certificates();
    let (ca, pair) = (made.ca.certificate.clone(), made.callers[1].1.clone());
    let wire = Wire { address: node.tls_address(), tls: Some((&ca, Some(&pair))) };
    let mut stream = wire.connect().await.expect("connected");
    let kept_open = "GET /v1/sys/keys HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(kept_open.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");

    // The client still trusts the node's certificate; the node no longer trusts the client's.
    let old = ca.with_extension("old");
    std::fs::copy(&ca, &old).expect("kept");
    let (_directory, other) = certificates::development_pki(&[]);
    let pem = std::fs::read(&other.ca.certificate).expect("another CA");
    std::fs::write(&ca, pem).expect("replaced");
    // The node closes the connection by itself within seconds.
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest).await);
    let again = Wire { tls: Some((&old, Some(&pair))), ..wire };
    let answer = again.exchange(&request("GET", "/v1/sys/keys", "")).await;
    assert_eq!(raw::status(&answer), 0, "{answer}");
    let stranger = Wire { tls: Some((&old, None)), ..again };
    assert_eq!(raw::status(&stranger.exchange(&request("GET", "/livez", "")).await), 200);
}

/// RFC 9110 §10.1.1: a client that expects 100 Continue gets the refusal before it sends its body.
#[tokio::test]
async fn refused_request_gets_no_100_continue() {
    let node = secure().await;
    for wire in &wires(&node) {
        let more = "expect: 100-continue\r\ncontent-length: 100000\r\n";
        let answer = wire.exchange(&request("POST", "/v1/exchange/token", more)).await;
        assert!(matches!(raw::status(&answer), 401 | 403), "{answer}");
    }
}

#[tokio::test]
async fn health_has_a_rate_of_its_own() {
    let node = secure_with("[limits]\nrequests_per_second_per_caller = 2\n").await;
    let plain = node.plain();
    let live = async || node.call_over(&plain, "GET", "/livez", &[], "").await;
    let mut statuses = Vec::new();
    for _ in 0..=limits::HEALTH_REQUESTS_PER_SECOND {
        statuses.push(live().await.status);
    }
    assert!(statuses.contains(&200) && statuses.ends_with(&[429]), "{statuses:?}");
    // A caller beyond the rate of health requests may still send all others.
    assert_eq!(node.call_over(&plain, "GET", "/v1/identity/jwks", &[], "").await.status, 200);
    assert_eq!(node.call_over(&plain, "GET", "/v1/identity/jwks", &[], "").await.status, 429);
    node.advance_secs(1);
    assert_eq!(live().await.status, 200);
}

/// Attack: an unauthenticated client holds every permit of the node for two seconds with one header.
#[tokio::test]
async fn waiting_for_an_index_uses_no_permit() {
    let node = secure_with("[limits]\nrequests_per_second_per_caller = 100000\n").await;
    let anonymous = node.plain();
    let far = u64::MAX.to_string();
    let headers = [("svc-min-index", far.as_str())];
    // An unauthenticated client does not wait at all.
    let answer = node.call_over(&anonymous, "GET", "/v1/identity/jwks", &headers, "").await;
    answer.is_refused(503, "server_error", "Svc-Min-Index");
    node.call_over(&node.anonymous(), "GET", "/v1/tools", &headers, "").await.is_refused(
        401,
        "access_denied",
        "",
    );
    let gateway = node.certified("gateway");
    let waiting = (0..2 * limits::MIN_INDEX_WAITS_MAX)
        .map(|_| node.call_over(&gateway, "GET", "/v1/identity/jwks", &headers, ""));
    let mut waiting = std::pin::pin!(futures::future::join_all(waiting));
    // Health does not wait, and requests without an index are answered meanwhile.
    let others = async {
        let operator = node.certified("operator");
        assert_eq!(node.call_over(&anonymous, "GET", "/livez", &headers, "").await.status, 200);
        for _ in 0..20 {
            assert_eq!(node.call_over(&operator, "GET", "/v1/sys/keys", &[], "").await.status, 200);
        }
    };
    tokio::select! {
        biased;
        answers = waiting.as_mut() => panic!("all were answered first: {}", answers.len()),
        () = others => {}
    }
    for answer in waiting.await {
        answer.is_refused(503, "server_error", "Svc-Min-Index");
    }
}

/// "curl and Python `requests` with the certificates of `trust-fabric pki` reach every mTLS route; without
/// them, none."
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_and_requests_reach_every_route_only_with_certificates() {
    let node = secure().await;
    let made = node.certificates();
    for (caller, access) in [("gateway", "exchange"), ("operator", "cluster.admin")] {
        let pair = &made.callers[usize::from(caller == "operator")].1;
        let rows: Vec<_> =
            api::rows().into_iter().filter(|row| row.access.to_string().ends_with(access)).collect();
        assert!(!rows.is_empty());
        let routes: Vec<_> = rows
            .iter()
            .map(|row| {
                let path = filled(row.path);
                match row.method.as_str() {
                    "GET" => json!({"method": "GET", "path": path}),
                    method => json!({"method": method, "path": path, "body": {}}),
                }
            })
            .collect();
        let ca = made.ca.certificate.as_path();
        let with = certificates::Curl { ca, caller: Some((&pair.certificate, &pair.private_key)) };
        let without = certificates::Curl { caller: None, ..with };
        for route in &routes {
            let text = |name: &str| route[name].as_str().expect("text");
            let url = format!("{}{}", node.tls_base(), text("path"));
            let status = |curl: certificates::Curl<'_>| curl.status(text("method"), &url, route.get("body"));
            assert!(status(with).is_some_and(|status| !matches!(status, 401 | 403 | 429)), "{route}");
            assert_eq!(status(without), Some(401), "{route}");
        }
        let order = json!({
            "base": node.tls_base(), "ca": made.ca.certificate,
            "cert": pair.certificate, "key": pair.private_key, "routes": routes,
        });
        let (answers, _) = python::run("call_routes.py", &order);
        for answer in answers.as_array().expect("a list") {
            assert!(!matches!(answer["with"].as_u64(), None | Some(401 | 403 | 429)), "{answer}");
            assert_eq!(answer["without"], 401, "{answer}");
        }
    }
}

#[tokio::test]
async fn metadata_lists_client_authentication_methods() {
    let node = secure().await;
    let path = "/.well-known/oauth-authorization-server";
    let metadata = node.call_over(&node.plain(), "GET", path, &[], "").await.json();
    assert_eq!(metadata["issuer"], FABRIC);
    assert_eq!(metadata["token_endpoint_auth_methods_supported"], json!(["tls_client_auth"]));
    assert_eq!(metadata["tls_client_certificate_bound_access_tokens"], true);
    let open = Node::start().await;
    let metadata = open.get(path).await.json();
    assert_eq!(metadata["token_endpoint_auth_methods_supported"], json!(["none"]));
    assert_eq!(metadata["tls_client_certificate_bound_access_tokens"], false);
}

/// Regression: serde fills a struct from an array too, in the order of its fields. No such document is
/// specified.
#[tokio::test]
async fn array_is_refused_as_a_request() {
    let node = Node::start().await;
    let texts = json!(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]);
    for path in [
        "/v1/exchange/token",
        "/v1/identity/agent",
        "/v1/mcp/tools",
        "/v1/mcp/verify",
        "/v1/revocations",
        "/v1/signals/stream",
        "/v1/signals/status",
        "/v1/signals/verification",
        "/v1/sys/signals/allowance",
        "/v1/tools",
    ] {
        for body in [&json!([]), &texts] {
            let answer = node.post(path, body).await;
            answer.is_refused(400, "invalid_request", "body: must be an object");
        }
    }
}
