//! Requests that are invalid with any credential.

use serde_json::{Value, json};

use crate::support::{FABRIC, GRANT, JWT, MIGRATE, Node, credential, with};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const PATH: &str = "/v1/exchange/token";

#[tokio::test]
async fn ambiguous_body_is_refused() {
    let node = Node::start().await;
    let good = credential(&node.issuers.reporter(), JWT).to_string();
    let member = |text: &str| format!("{},{text}}}", &good[..good.len() - 1]);
    let deep = |depth: usize| member(&format!("\"x\":{}1{}", "[".repeat(depth), "]".repeat(depth)));
    let mut broken = good.clone().into_bytes();
    broken[good.len() / 2] = 0xc3;
    let cases: [(&str, Vec<u8>); 16] = [
        ("trailing data", format!("{good} x").into()),
        ("two documents", format!("{good}{good}").into()),
        ("duplicate member", member("\"grant_type\":\"x\"").into()),
        ("duplicate of an escaped name", member("\"\\u0067rant_type\":\"x\"").into()),
        ("duplicate deep inside", member("\"x\":{\"a\":1,\"a\":2}").into()),
        ("depth 1000", deep(1000).into()),
        ("depth 100 000", deep(100_000).into()),
        ("depth 33", deep(33).into()),
        ("not UTF-8", broken),
        ("UTF-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("a byte order mark", format!("\u{feff}{good}").into()),
        ("cut off", good.as_bytes()[..good.len() - 1].into()),
        ("empty", Vec::new()),
        ("an array", format!("[{good}]").into()),
        ("null", "null".into()),
        ("a comment", format!("/* */{good}").into()),
    ];
    for (name, body) in cases {
        let answer = node.call("POST", PATH, &JSON, body).await;
        let (status, error, _) = answer.refusal();
        assert_eq!((status, error.as_str()), (400, "invalid_request"), "{name}: {}", answer.body);
    }
    node.call("POST", PATH, &JSON, deep(31)).await.minted();
}

#[tokio::test]
async fn unknown_media_type_is_refused() {
    let node = Node::start().await;
    let good = credential(&node.issuers.reporter(), JWT).to_string();
    for headers in [
        &[("content-type", "text/plain")][..],
        &[("content-type", "application/xml")],
        &[("content-type", "application/jsonx")],
        &[("content-type", "application/json; charset=iso-8859-1")],
        &[("content-type", "application/json, text/plain")],
        &[("content-type", "application/json"), ("content-type", "application/x-www-form-urlencoded")],
        &[("content-type", "multipart/form-data; boundary=x")],
        &[("content-type", "")],
        &[("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        let answer = node.call("POST", PATH, headers, good.clone()).await;
        let (status, error, _) = answer.refusal();
        assert_eq!((status, error.as_str()), (415, "invalid_request"), "{headers:?}");
    }
    for headers in [
        &[][..],
        &[("content-type", "application/json; charset=utf-8")],
        &[("content-type", "Application/JSON;charset=UTF-8")],
    ] {
        node.call("POST", PATH, headers, good.clone()).await.minted();
    }
}

#[tokio::test]
async fn a_body_of_300_kilobytes_is_refused() {
    let node = Node::start().await;
    let large = with(&credential(&node.issuers.reporter(), JWT), &json!({"x": "x".repeat(300_000)}));
    node.exchange(&large).await.is_refused(413, "invalid_request", "larger than 256 KiB");
    node.get("/livez").await;
}

#[tokio::test]
async fn members_are_checked_and_named() {
    let node = Node::start().await;
    let good = credential(&node.issuers.reporter(), JWT);
    let many = (0..129).map(|at| format!("s{at}")).collect::<Vec<_>>().join(" ");
    for (changes, error, text) in [
        (json!({"grant_type": null}), "invalid_request", "grant_type"),
        (json!({"grant_type": "client_credentials"}), "unsupported_grant_type", "grant_type"),
        (json!({"grant_type": GRANT.to_uppercase()}), "unsupported_grant_type", "grant_type"),
        (json!({"grant_type": 1}), "invalid_request", "grant_type"),
        (json!({"subject_token": null}), "invalid_request", "subject_token"),
        (json!({"subject_token": ""}), "invalid_request", "subject_token"),
        (json!({"subject_token": {}}), "invalid_request", "subject_token"),
        (json!({"subject_token_type": null}), "invalid_request", "subject_token_type"),
        (
            json!({"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"}),
            "invalid_request",
            "subject_token_type",
        ),
        (
            json!({"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}),
            "invalid_request",
            "requested_token_type",
        ),
        (json!({"actor_token": "x.y.z", "actor_token_type": "x"}), "invalid_request", "actor_token_type"),
        (json!({"actor_token_type": JWT}), "invalid_request", "actor_token_type"),
        (json!({"actor_token": ""}), "invalid_request", "actor_token"),
        (json!({"actor_token": "x".repeat(16_385)}), "invalid_request", "16 KiB"),
        (json!({"audience": [FABRIC]}), "invalid_request", "audience"),
        (json!({"audience": "a b"}), "invalid_request", "audience"),
        (json!({"audience": ""}), "invalid_request", "audience"),
        (json!({"audience": "x".repeat(2049)}), "invalid_request", "audience"),
        (json!({"resource": "no-scheme"}), "invalid_request", "resource"),
        (json!({"resource": "https://tools.example/sql#part"}), "invalid_request", "resource"),
        (json!({"scope": many}), "invalid_request", "scope"),
        (json!({"scope": "x".repeat(129)}), "invalid_request", "scope"),
        (json!({"scope": "a\"b"}), "invalid_request", "scope"),
        (json!({"scope": "\u{e4}"}), "invalid_request", "scope"),
        (json!({"scope": ["db.read"]}), "invalid_request", "scope"),
    ] {
        let answer = node.exchange(&with(&good, &changes)).await;
        let (status, found, description) = answer.refusal();
        assert_eq!((status, found.as_str()), (400, error), "{changes}: {description}");
        assert!(description.contains(text), "{changes}: {description}");
    }
    for ignored in [json!({"colour": "blue"}), json!({"deep": {"a": [1, 2]}})] {
        node.granted(&with(&good, &ignored)).await;
    }
}

#[tokio::test]
async fn an_execution_scope_is_understood_to_its_last_member() {
    let node = Node::start().await;
    let good = json!({"htm": "POST", "htu": "https://tools.example/migrate/run"});
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": MIGRATE}));
    let (short, long) = ("A".repeat(42), "A".repeat(44));
    for (changes, text) in [
        (json!({"method": "GET"}), "method"),
        (json!({"Nonce": "x"}), "Nonce"),
        (json!({"htm": null}), "htm"),
        (json!({"htm": "post"}), "htm"),
        (json!({"htm": "PO ST"}), "htm"),
        (json!({"htm": ""}), "htm"),
        (json!({"htm": 1}), "htm"),
        (json!({"htu": null}), "htu"),
        (json!({"htu": "/relative"}), "htu"),
        (json!({"htu": "https://tools.example/a?b=c"}), "htu"),
        (json!({"htu": "https://tools.example/a#b"}), "htu"),
        (json!({"payload_hash": encoded(31)}), "payload_hash"),
        (json!({"payload_hash": encoded(33)}), "payload_hash"),
        (json!({"payload_hash": short}), "payload_hash"),
        (json!({"payload_hash": long}), "payload_hash"),
        (json!({"payload_hash": ""}), "payload_hash"),
        (json!({"payload_hash": "+/".repeat(21)}), "payload_hash"),
        (json!({"nonce": ""}), "nonce"),
        (json!({"nonce": "x".repeat(257)}), "nonce"),
        (json!({"nonce": "a b"}), "nonce"),
        (json!({"nonce": 1}), "nonce"),
        (json!({"exec_act": ""}), "exec_act"),
        (json!({"target": "a\nb"}), "target"),
    ] {
        let answer = node.exchange(&with(&request, &json!({"execution_scope": with(&good, &changes)}))).await;
        answer.is_refused(400, "invalid_request", text);
        answer.is_refused(400, "invalid_request", "execution_scope");
    }
    for scope in [json!([]), json!("x"), json!({}), json!(true)] {
        node.exchange(&with(&request, &json!({"execution_scope": scope}))).await.is_refused(
            400,
            "invalid_request",
            "execution_scope",
        );
    }
    node.granted(&with(
        &request,
        &json!({"execution_scope": with(&good, &json!({"payload_hash": encoded(32)}))}),
    ))
    .await;
}

fn encoded(bytes: usize) -> String {
    crate::support::encode(vec![7; bytes])
}

#[tokio::test]
async fn an_error_never_repeats_a_token_wherever_it_was_put() {
    // The invariants of every response search for the signature. Each case tries another way in.
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let good = credential(&token, JWT);
    let mut misplaced: Vec<Value> = [
        "execution_scope",
        "grant_type",
        "subject_token_type",
        "audience",
        "resource",
        "scope",
        "actor_token_type",
        "requested_token_type",
    ]
    .iter()
    .map(|name| with(&good, &json!({*name: token})))
    .collect();
    misplaced.push(with(&good, &json!({"execution_scope": {"htm": token, "htu": token}})));
    misplaced.push(with(&good, &json!({"execution_scope": {(token.clone()): 1}})));
    misplaced.push(json!([token]));
    misplaced.push(json!(token));
    for request in misplaced {
        let answer = node.exchange(&request).await;
        let (status, ..) = answer.refusal();
        assert!(status == 400 || status == 403, "{}", answer.body);
    }
    let raw = format!("{{\"{token}\":1,\"{token}\":2}}");
    assert_eq!(node.call("POST", PATH, &JSON, raw).await.status, 400);
    let raw = format!("{{\"subject_token\":{token}}}");
    assert_eq!(node.call("POST", PATH, &JSON, raw).await.status, 400);
}

#[tokio::test]
async fn an_idempotency_key_is_well_formed_and_given_once() {
    let node = Node::start().await;
    let good = credential(&node.issuers.reporter(), JWT);
    let long = "k".repeat(257);
    for headers in [
        &[("idempotency-key", "")][..],
        &[("idempotency-key", "a b")],
        &[("idempotency-key", long.as_str())],
        &[("idempotency-key", "a"), ("idempotency-key", "b")],
    ] {
        node.exchange_with(&good, headers).await.is_refused(400, "invalid_request", "Idempotency-Key");
    }
}

#[tokio::test]
async fn wrong_types_are_refused_in_words_of_json() {
    let node = Node::start().await;
    let cases: [(&str, &[&str]); 6] = [
        (PATH, &["grant_type", "subject_token", "execution_scope", "req_cnf", "resource"]),
        ("/v1/mcp/verify", &["tool_id", "token", "cnf"]),
        ("/v1/mcp/tools", &["tool_id", "protocols", "requires_execution"]),
        ("/v1/identity/agent", &["agent_name", "capabilities", "metadata", "delegation_depth"]),
        ("/v1/signals/stream", &["delivery", "events_requested"]),
        ("/v1/revocations", &["reason", "block"]),
    ];
    let words = [
        "struct ", "u8", "u32", "u64", "usize", "i64", "sequence", "variant", "enum ", "Option", "tuple",
        "unit",
    ];
    for (path, fields) in cases {
        for field in fields {
            for value in ["1", "-1", "1.5", "true", "\"x\"", "[]", "[[]]", "{}", "{\"x\":[1]}", "1e99"] {
                let body = format!("{{\"{field}\":{value}}}");
                let answer = node.call("POST", path, &JSON, body.clone()).await;
                let (status, _, description) = answer.refusal();
                assert_eq!(status, 400, "{path} {body}: {description}");
                for word in words {
                    assert!(!description.contains(word), "{path} {body}: {description}");
                }
            }
        }
    }
}
