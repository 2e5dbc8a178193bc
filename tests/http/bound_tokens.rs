//! Certificate-bound tokens (RFC 8705 §3): minted on request, usable only by their holder, and never unbound
//! by an exchange.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::tls::Certificate;
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use trust_fabric::pki::IssuedCertificate;

use crate::support::{BAD_ACTOR, BAD_SUBJECT, FABRIC, JWT, Minted, Node, OWN, Setup, credential, with};

async fn secure() -> Node {
    let callers = "";
    Node::start_with(Setup { is_secure: true, more_config: callers.to_owned(), ..Setup::default() }).await
}

/// `x5t#S256` as RFC 8705 §3.1 defines it, computed without the product.
pub fn digest_of(pair: &IssuedCertificate) -> String {
    drop(Certificate::from_pem(&std::fs::read(&pair.certificate).expect("PEM")).expect("certificate"));
    let der = CertificateDer::from_pem_file(&pair.certificate).expect("DER");
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &der))
}

fn own_digest(node: &Node) -> String {
    digest_of(&node.certificates().callers[0].1)
}

fn exchange_request(node: &Node, changes: &Value) -> Value {
    let claims = node.issuers.service_account("agents", "orchestrator");
    let request = credential(&node.issuers.es256.sign(&claims), JWT);
    with(&request, &with(&json!({"audience": FABRIC}), changes))
}

async fn bound(node: &Node) -> Minted {
    let digest = own_digest(node);
    let minted = node.granted(&exchange_request(node, &json!({"req_cnf": {"x5t#S256": digest}}))).await;
    assert_eq!(minted.claims["cnf"], json!({"x5t#S256": digest}));
    minted
}

#[tokio::test]
async fn token_is_bound_only_on_request() {
    let node = secure().await;
    assert_eq!(bound(&node).await.answer["token_type"], "Bearer");
    let minted = node.granted(&exchange_request(&node, &json!({}))).await;
    assert_eq!(minted.claims.get("cnf"), None);
}

#[tokio::test]
async fn a_form_can_ask_as_well() {
    let node = secure().await;
    let digest = own_digest(&node);
    let confirmation = json!({"x5t#S256": digest}).to_string();
    let token = node.issuers.reporter();
    let pairs = [
        ("grant_type", crate::support::GRANT),
        ("subject_token", token.as_str()),
        ("subject_token_type", JWT),
        ("req_cnf", confirmation.as_str()),
    ];
    let minted = node.exchange_form(&pairs).await.minted();
    assert_eq!(minted.claims["cnf"]["x5t#S256"], digest);
}

#[tokio::test]
async fn token_is_bound_only_to_the_presented_certificate() {
    let node = secure().await;
    let other = digest_of(&node.certificates().callers[1].1);
    for (asked, text) in [
        (json!({"x5t#S256": other}), "req_cnf"),
        (json!({"x5t#S256": ""}), "req_cnf.x5t#S256"),
        (json!({"x5t#S256": "AAAA"}), "req_cnf.x5t#S256"),
        (json!({"x5t#S256": format!("{}=", own_digest(&node))}), "req_cnf.x5t#S256"),
        (json!({"x5t#S256": 1}), "x5t#S256"),
        (json!({"jkt": own_digest(&node)}), "jkt"),
        (json!({"x5t#S256": own_digest(&node), "jkt": "x"}), "jkt"),
        (json!({}), "x5t#S256"),
        (json!("x"), "req_cnf"),
    ] {
        let answer = node.exchange(&exchange_request(&node, &json!({"req_cnf": asked}))).await;
        answer.is_refused(400, "invalid_request", text);
    }
    // Development mode has no certificate to bind to.
    let open = Node::start().await;
    let request = with(
        &credential(&open.issuers.reporter(), JWT),
        &json!({"req_cnf": {"x5t#S256": own_digest(&node)}}),
    );
    open.exchange(&request).await.is_refused(400, "invalid_request", "client certificate");
}

#[tokio::test]
async fn a_bound_bearer_is_good_over_its_own_connection_only() {
    let node = secure().await;
    let claims = node.issuers.service_account("agents", "operator");
    let request = credential(&node.issuers.es256.sign(&claims), JWT);
    let confirmation = json!({"audience": FABRIC, "req_cnf": {"x5t#S256": own_digest(&node)}});
    let token = node.granted(&with(&request, &confirmation)).await.token;
    let value = format!("Bearer {token}");
    let headers = [("authorization", value.as_str())];
    let holder = node.certified("gateway");
    assert_eq!(node.call_over(&holder, "GET", "/v1/sys/keys", &headers, "").await.status, 200);
    for thief in [node.anonymous(), node.certified("operator"), node.certified("stranger")] {
        let answer = node.call_over(&thief, "GET", "/v1/sys/keys", &headers, "").await;
        answer.is_refused(401, "access_denied", "not valid");
    }
}

#[tokio::test]
async fn bound_credential_is_exchanged_by_its_holder_and_stays_bound() {
    let node = secure().await;
    let token = bound(&node).await.token;
    let again = with(&credential(&token, OWN), &json!({"audience": FABRIC}));
    let minted = node.granted(&again).await;
    assert_eq!(minted.claims["cnf"], json!({"x5t#S256": own_digest(&node)}), "not washed off");
    let body = again.to_string();
    let media = [("content-type", "application/json")];
    // The stranger may not exchange at all. A second certificate of the same caller gives the theft its best
    // chance.
    let second = second_certificate_of_the_gateway(&node);
    let answer =
        node.call_over(&node.secure(Some(&second)), "POST", "/v1/exchange/token", &media, body).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn bound_actor_token_needs_its_holder_and_binds_the_result() {
    let node = secure().await;
    let actor = bound(&node).await.token;
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"actor_token": actor}));
    let minted = node.granted(&request).await;
    assert_eq!(minted.claims["cnf"], json!({"x5t#S256": own_digest(&node)}));
    let second = second_certificate_of_the_gateway(&node);
    let media = [("content-type", "application/json")];
    let channel = node.secure(Some(&second));
    let answer = node.call_over(&channel, "POST", "/v1/exchange/token", &media, request.to_string()).await;
    answer.is_refused(400, "invalid_request", BAD_ACTOR);
}

#[tokio::test]
async fn a_foreign_credential_bound_to_something_else_is_refused() {
    let node = secure().await;
    for cnf in [
        json!({"x5t#S256": digest_of(&node.certificates().callers[1].1)}),
        json!({"jkt": own_digest(&node)}),
        json!({"x5t#S256": own_digest(&node), "jkt": "x"}),
        json!({"jwk": node.issuers.es256.jwk()}),
        json!({}),
        json!("x"),
        json!(null),
    ] {
        let mut claims = node.issuers.service_account("demo", "reporter");
        claims["cnf"] = cnf.clone();
        let answer = node.exchange(&credential(&node.issuers.es256.sign(&claims), JWT)).await;
        answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    let mut claims = node.issuers.service_account("demo", "reporter");
    claims["cnf"] = json!({"x5t#S256": own_digest(&node)});
    let minted = node.granted(&credential(&node.issuers.es256.sign(&claims), JWT)).await;
    assert_eq!(minted.claims["cnf"]["x5t#S256"], own_digest(&node));
}

/// Another certificate of the same name, from the same CA.
fn second_certificate_of_the_gateway(node: &Node) -> IssuedCertificate {
    let made = node.certificates();
    let old = &made.callers[0].1;
    let directory = old.certificate.parent().expect("directory");
    let kept = [&old.certificate, &old.private_key].map(|path| {
        let kept = path.with_extension("first");
        std::fs::rename(path, &kept).expect("moved");
        kept
    });
    let trust_domain = crate::support::TRUST_DOMAIN.parse().expect("trust domain");
    let gateway = trust_fabric::pki::CertificateSubject::within("gateway", &trust_domain).expect("caller");
    let request = trust_fabric::pki::CertificatePlan {
        directory: directory.to_owned(),
        trust_domain,
        hosts: Vec::new(),
        peers: Vec::new(),
        callers: vec![gateway],
        lifetime_days: 365,
    };
    let again = trust_fabric::pki::make(&request, trust_fabric::clock::Clock::system().now()).expect("made");
    let fresh = &again.callers[0].1;
    let second = [&fresh.certificate, &fresh.private_key].map(|path| {
        let second = path.with_extension("second");
        std::fs::rename(path, &second).expect("moved");
        second
    });
    for (kept, path) in kept.iter().zip([&old.certificate, &old.private_key]) {
        std::fs::rename(kept, path).expect("back");
    }
    let [certificate, private_key] = second;
    IssuedCertificate { certificate, private_key, ..fresh.clone() }
}
