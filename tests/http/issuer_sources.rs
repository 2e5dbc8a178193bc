//! Sources of issuer keys that are slow, huge, redirecting, invalid or gone: that issuer is answered 503, all
//! others work.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use trust_fabric::limits;
use wiremock::ResponseTemplate;

use crate::support::{BAD_SUBJECT, Issuers, JWT, NOW_SECS, Node, REPORTER, SVID, Signer, credential, with};

const JWKS: &str = "/cluster/openid/v1/jwks";
const DISCOVERY: &str = "/cluster/.well-known/openid-configuration";
const UNAVAILABLE: &str = "keys of the token's issuer cannot be fetched now";

fn document(document: &Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(document)
}

fn identifier(node: &Node) -> Value {
    credential(&node.issuers.agents.sign(&node.issuers.identifier(REPORTER)), JWT)
}

/// A fresh credential of the API server.
fn reporter(node: &Node, signer: &Signer) -> Value {
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    credential(&signer.sign(&with(&node.issuers.service_account("demo", "reporter"), &times)), JWT)
}

#[tokio::test]
async fn invalid_source_refuses_only_its_own_issuer() {
    let node = Node::start().await;
    let canary = TcpListener::bind("127.0.0.1:0").expect("canary");
    canary.set_nonblocking(true).expect("nonblocking");
    let elsewhere = format!("http://{}/keys", canary.local_addr().expect("address"));
    let kubernetes = node.issuers.kubernetes();
    let good = json!({"keys": [node.issuers.es256.jwk()]});
    let discovery = |issuer: &str, uri: &str| document(&json!({"issuer": issuer, "jwks_uri": uri}));
    let redirect = |status: u16| {
        ResponseTemplate::new(status).insert_header("location", elsewhere.as_str()).set_body_json(&good)
    };
    let private = with(&node.issuers.es256.jwk(), &json!({"d": "AAAA"}));
    let off_curve = with(&node.issuers.es256.jwk(), &json!({"x": crate::support::encode([1; 32])}));
    let twice = json!({"keys": [node.issuers.es256.jwk(), Signer::es256("shared").jwk()]});
    let numbered = |at| with(&node.issuers.es256.jwk(), &json!({"kid": format!("k{at}")}));
    let many: Vec<Value> = (0..=limits::KEYS_PER_SET_MAX).map(numbered).collect();
    let huge = format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(300_000));
    let cases = [
        ("gone", JWKS, ResponseTemplate::new(404)),
        ("failing", JWKS, ResponseTemplate::new(500)),
        ("empty answer", JWKS, ResponseTemplate::new(204)),
        ("huge", JWKS, ResponseTemplate::new(200).set_body_string(huge)),
        ("redirecting 301", JWKS, redirect(301)),
        ("redirecting 302", JWKS, redirect(302)),
        ("redirecting 307", JWKS, redirect(307)),
        ("not JSON", JWKS, ResponseTemplate::new(200).set_body_string("<html>")),
        ("not a key set", JWKS, document(&json!([]))),
        ("keys of a wrong type", JWKS, document(&json!({"keys": "x"}))),
        ("a private key", JWKS, document(&json!({"keys": [node.issuers.es256.jwk(), private]}))),
        ("a symmetric key", JWKS, document(&json!({"keys": [{"kty": "oct", "k": "AAAA", "kid": "shared"}]}))),
        ("a point off its curve", JWKS, document(&json!({"keys": [off_curve]}))),
        ("one kid twice", JWKS, document(&twice)),
        ("too many keys", JWKS, document(&json!({"keys": many}))),
        (
            "keys twice",
            JWKS,
            ResponseTemplate::new(200).set_body_string(format!("{{\"keys\":[],{}", &good.to_string()[1..])),
        ),
        ("no discovery", DISCOVERY, ResponseTemplate::new(404)),
        ("discovery redirects", DISCOVERY, redirect(302)),
        (
            "discovery of another issuer",
            DISCOVERY,
            discovery("https://elsewhere.example", &format!("{kubernetes}/openid/v1/jwks")),
        ),
        (
            "discovery with a slash more",
            DISCOVERY,
            discovery(&format!("{kubernetes}/"), &format!("{kubernetes}/openid/v1/jwks")),
        ),
        ("discovery to a file", DISCOVERY, discovery(&kubernetes, "file:///etc/passwd")),
        ("discovery to plain HTTP", DISCOVERY, discovery(&kubernetes, "http://keys.example/jwks")),
        (
            "discovery to the metadata address",
            DISCOVERY,
            discovery(&kubernetes, "http://169.254.169.254/latest"),
        ),
        ("discovery without keys", DISCOVERY, document(&json!({"issuer": kubernetes}))),
    ];
    for (name, route, answer) in cases {
        node.issuers.serve().await;
        node.issuers.replace_mock(route, answer).await;
        // The cached keys are too old, and the failed source may be fetched again.
        node.advance_secs(1000);
        let request = reporter(&node, &node.issuers.es256);
        let refused = node.exchange(&request).await;
        assert_eq!(refused.status, 503, "{name}: {}", refused.body);
        refused.is_refused(503, "server_error", UNAVAILABLE);
        let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 60});
        let other = node.issuers.agents.sign(&with(&node.issuers.identifier(REPORTER), &times));
        node.granted(&credential(&other, JWT)).await;
    }
    let nobody = canary.accept().expect_err("a redirect is never followed");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    node.issuers.serve().await;
    node.exchange(&reporter(&node, &node.issuers.es256)).await.is_refused(503, "server_error", UNAVAILABLE);
    node.advance_secs(30);
    node.granted(&reporter(&node, &node.issuers.es256)).await;
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "this test is about real time")]
async fn slow_source_times_out_and_delays_no_other_issuer() {
    let node = Node::start().await;
    let keys = document(&json!({"keys": [node.issuers.es256.jwk()]})).set_delay(Duration::from_secs(60));
    node.issuers.replace_mock(JWKS, keys).await;
    let began = std::time::Instant::now();
    let (request, good) = (reporter(&node, &node.issuers.es256), identifier(&node));
    let fast = async {
        let minted = node.granted(&good).await;
        (minted, began.elapsed())
    };
    let (slow, (_, fast)) = futures::join!(node.exchange(&request), fast);
    slow.is_refused(503, "server_error", UNAVAILABLE);
    assert!(fast < Duration::from_secs(2), "{fast:?}");
    assert!(began.elapsed() < Duration::from_secs(6));
    // The source is paused, so the next request is answered at once.
    let began = std::time::Instant::now();
    node.exchange(&request).await.is_refused(503, "server_error", UNAVAILABLE);
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn an_unreachable_source_refuses_its_own_issuer_only() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    let more_config = format!(
        "\n[[issuers]]\nissuer = \"https://gone.example\"\nsubject = \"identifier\"\nkeys_url = \"http://{closed}/keys\"\n\
         trust_domains = [\"trust.example\"]\n\
         \n[[issuers]]\nissuer = \"https://nofile.example\"\nsubject = \"identifier\"\nkeys_file = \"/nonexistent/keys.json\"\n\
         trust_domains = [\"trust.example\"]\n"
    );
    let node = Node::start_with(crate::support::Setup { more_config, ..Default::default() }).await;
    for iss in ["https://gone.example", "https://nofile.example"] {
        let token = node.issuers.changed(&json!({"iss": iss}));
        node.exchange(&credential(&token, JWT)).await.is_refused(503, "server_error", UNAVAILABLE);
    }
    node.granted(&identifier(&node)).await;
}

#[tokio::test]
async fn rotated_key_is_fetched_and_unknown_kids_are_rate_limited() {
    let node = Node::start().await;
    node.granted(&reporter(&node, &node.issuers.es256)).await;
    let asked = async || {
        let requests = node.issuers.server.received_requests().await.expect("recorded");
        requests.iter().filter(|request| request.url.path() == JWKS).count()
    };
    assert_eq!(asked().await, 1);
    let next = Signer::es256("next");
    let keys = json!({"keys": [node.issuers.es256.jwk(), next.jwk()]});
    node.issuers.replace_mock(JWKS, document(&keys)).await;
    for at in 0..5 {
        let kid = format!("made-up-{at}");
        let claims = node.issuers.service_account("demo", "reporter");
        let token = node.issuers.es256.sign_as(&json!({"alg": "ES256", "kid": kid}), &claims);
        node.exchange(&credential(&token, JWT)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    assert_eq!(asked().await, 1, "asked again within 30 seconds");
    node.advance_secs(31);
    node.granted(&reporter(&node, &next)).await;
    assert_eq!(asked().await, 2);
}

#[tokio::test]
async fn cached_keys_serve_an_unreachable_source_for_a_limited_time() {
    let node = Node::start().await;
    node.granted(&reporter(&node, &node.issuers.es256)).await;
    node.issuers.replace_mock(JWKS, ResponseTemplate::new(500)).await;
    node.advance_secs(899);
    node.granted(&reporter(&node, &node.issuers.es256)).await;
    node.advance_secs(1);
    node.exchange(&reporter(&node, &node.issuers.es256)).await.is_refused(503, "server_error", UNAVAILABLE);
}

#[tokio::test]
async fn withdrawn_key_is_refused_after_the_next_fetch() {
    let node = Node::start().await;
    let token = node.issuers.reporter();
    node.granted(&credential(&token, JWT)).await;
    let without = json!({"keys": [node.issuers.rs256.jwk()]});
    node.issuers.replace_mock(JWKS, document(&without)).await;
    node.advance_secs(301);
    node.exchange(&credential(&token, JWT)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn a_spiffe_bundle_gives_only_its_jwt_keys() {
    let node = Node::start().await;
    let signer = Signer::es256("x509");
    let x509 = with(&signer.jwk(), &json!({"use": "x509-svid", "alg": null}));
    let signing = with(&node.issuers.endpoint_svids.jwk(), &json!({"use": "jwt-svid", "alg": null}));
    node.issuers.replace_mock("/bundle", document(&json!({"keys": [x509, signing]}))).await;
    let svid = Issuers::svid("endpoint.example");
    node.exchange(&credential(&signer.sign(&svid), SVID)).await.is_refused(
        400,
        "invalid_request",
        BAD_SUBJECT,
    );
    node.granted(&credential(&node.issuers.endpoint_svids.sign(&svid), SVID)).await;
    assert_eq!(svid["iat"], NOW_SECS);
}
