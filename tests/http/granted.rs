//! Granted exchanges, and every claim of the minted tokens (contract §3).

use serde_json::{Value, json};
use trust_fabric::token::lineage;

use crate::support::{
    FABRIC, Issuers, JWT, MIGRATE, NOW_SECS, Node, OWN, REPORTER, SVID, Signer, TOOL, credential, with,
};

fn digests(claims: &Value) -> Vec<String> {
    let lineage = claims["lineage"].as_array().expect("lineage");
    lineage.iter().map(|digest| digest.as_str().expect("text").to_owned()).collect()
}

#[tokio::test]
async fn kubernetes_token_of_each_algorithm_yields_every_claim() {
    let node = Node::start().await;
    for signer in [&node.issuers.rs256, &node.issuers.es256] {
        let source = node.issuers.service_account("demo", "reporter");
        let token = signer.sign(&source);
        let minted = node.granted(&with(&credential(&token, JWT), &json!({"audience": TOOL}))).await;
        let kid = minted.header["kid"].as_str().expect("kid");
        assert_eq!(minted.header, json!({"alg": "ES256", "typ": "at+jwt", "kid": kid}));
        assert_eq!(
            with(&minted.answer, &json!({"access_token": null})),
            json!({"issued_token_type": JWT, "token_type": "Bearer", "expires_in": 300,
                "scope": "db.read db.write offline"})
        );
        let claims = &minted.claims;
        let (jti, txn) = (claims["jti"].as_str().expect("jti"), claims["txn"].as_str().expect("txn"));
        assert!(jti.len() >= 32 && txn.len() >= 32 && jti != txn);
        let health = node.get("/v1/sys/health").await;
        let index: u64 = health.header("svc-index").expect("index").parse().expect("number");
        let idx = claims["idx"].as_str().expect("idx");
        let (incarnation, applied) = idx.split_once('-').expect("<incarnation>-<index>");
        assert_eq!((incarnation.len(), applied.parse()), (32, Ok(index)), "{idx}");
        let lineage = digests(claims);
        let iss = node.issuers.kubernetes();
        let sub: trust_fabric::id::WorkloadId = REPORTER.parse().expect("identifier");
        for expected in [
            lineage::subject(&iss, "system:serviceaccount:demo:reporter"),
            lineage::workload(&sub),
            lineage::signing_key(&iss, signer.kid()),
            lineage::token(&iss, source["jti"].as_str().expect("jti")),
        ] {
            assert!(lineage.contains(&expected.to_string()));
        }
        assert_eq!(lineage.len(), 4);
        let policy = node.get("/v1/sys/policy").await.json()["digest"].clone();
        assert_eq!(
            with(claims, &json!({"jti": null, "txn": null, "idx": null, "lineage": null})),
            json!({
                "iss": FABRIC, "sub": REPORTER, "aud": TOOL, "iat": NOW_SECS, "nbf": NOW_SECS,
                "exp": NOW_SECS + 300, "client_id": REPORTER, "scope": "db.read db.write offline",
                "capabilities": ["db.read", "db.write"], "blast_radius": "namespace:demo",
                "delegation_depth": 2, "root_iat": NOW_SECS, "root_exp": NOW_SECS + 3607, "policy": policy,
            })
        );
    }
}

#[tokio::test]
async fn jwt_svid_keeps_its_spiffe_id_with_file_and_endpoint_bundles() {
    let node = Node::start().await;
    let cases: [(&Signer, &str); 2] =
        [(&node.issuers.file_svids, "files.example"), (&node.issuers.endpoint_svids, "endpoint.example")];
    for (signer, trust_domain) in cases {
        let claims = Issuers::svid(trust_domain);
        for typ in [json!("JWT"), json!("JOSE"), Value::Null] {
            let token = signer.sign_as(&with(&signer.header(), &json!({"typ": typ})), &claims);
            let minted = node.granted(&credential(&token, SVID)).await;
            assert_eq!(minted.claims["sub"], claims["sub"]);
            assert_eq!((&minted.claims["aud"], &minted.claims["iss"]), (&json!(TOOL), &json!(FABRIC)));
        }
    }
}

#[tokio::test]
async fn own_token_is_exchanged_with_its_chain_and_txn() {
    let node = Node::start().await;
    let first = node.own_token("demo", "reporter").await;
    node.advance_secs(60);
    let second = node.granted(&credential(&first.token, OWN)).await;
    for name in ["sub", "txn", "root_iat", "root_exp", "delegation_depth", "blast_radius"] {
        assert_eq!(second.claims[name], first.claims[name], "{name}");
    }
    assert_ne!(second.claims["jti"], first.claims["jti"]);
    assert_eq!(second.claims["exp"], NOW_SECS + 360);
    let lineage = digests(&second.claims);
    assert!(digests(&first.claims).iter().all(|digest| lineage.contains(digest)));
    let jti = lineage::token(FABRIC, first.claims["jti"].as_str().expect("jti"));
    let kid = lineage::signing_key(FABRIC, first.header["kid"].as_str().expect("kid"));
    assert!(lineage.contains(&jti.to_string()) && lineage.contains(&kid.to_string()));
}

/// Policy accepts tokens of the node as `agent-a2a` only, whatever type the request states.
#[tokio::test]
async fn own_token_presented_as_jwt_is_exchanged() {
    let node = Node::start().await;
    let first = node.own_token("demo", "reporter").await;
    let second = node.granted(&credential(&first.token, JWT)).await;
    for name in ["sub", "txn", "root_iat", "root_exp"] {
        assert_eq!(second.claims[name], first.claims[name], "{name}");
    }
    // A token presented as JWT is verified like one presented as our own: not for a tool, not changed.
    let for_tool = node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    for refused in [for_tool.token, format!("{}x", first.token)] {
        let answer = node.exchange(&credential(&refused, JWT)).await;
        answer.is_refused(400, "invalid_request", "subject_token");
    }
}

#[tokio::test]
async fn nothing_is_exchanged_after_the_chain_has_ended() {
    let node = Node::start().await;
    let source = with(&node.issuers.service_account("demo", "reporter"), &json!({"exp": NOW_SECS + 100}));
    let request = with(&credential(&node.issuers.es256.sign(&source), JWT), &json!({"audience": FABRIC}));
    let first = node.granted(&request).await;
    assert_eq!(first.claims["root_exp"], NOW_SECS + 100);
    node.advance_secs(99);
    node.granted(&credential(&first.token, OWN)).await;
    node.advance_secs(1);
    node.exchange(&credential(&first.token, OWN)).await.is_refused(400, "invalid_request", "subject_token");
}

#[tokio::test]
async fn the_transaction_and_a_verified_email_of_the_subject_are_kept() {
    let node = Node::start().await;
    let token = node.issuers.changed(&json!({
        "txn": "txn-of-the-caller", "email": "a@trust.example", "email_verified": true, "client_id": "portal"
    }));
    let minted = node.granted(&credential(&token, JWT)).await;
    assert_eq!(minted.claims["txn"], "txn-of-the-caller");
    let iss = node.issuers.identifiers();
    let lineage = digests(&minted.claims);
    assert!(lineage.contains(&lineage::email(&iss, "a@trust.example").to_string()));
    assert!(lineage.contains(&lineage::client(&iss, "portal").to_string()));
}

#[tokio::test]
async fn resource_replaces_audience_and_policy_has_a_default() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    assert_eq!(node.granted(&request).await.claims["aud"], TOOL);
    for member in ["resource", "audience"] {
        let minted = node.granted(&with(&request, &json!({member: FABRIC}))).await;
        assert_eq!(minted.claims["aud"], FABRIC, "{member}");
    }
    let both = with(&request, &json!({"audience": TOOL, "resource": TOOL}));
    assert_eq!(node.granted(&both).await.claims["aud"], TOOL);
    let different = with(&request, &json!({"audience": TOOL, "resource": FABRIC}));
    node.exchange(&different).await.is_refused(400, "invalid_request", "exactly one audience");
}

#[tokio::test]
async fn requested_scope_narrows_and_the_grant_is_reported() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    for (asked, granted, capabilities) in [
        (Some("db.read"), "db.read", json!(["db.read"])),
        (Some("db.read unknown"), "db.read", json!(["db.read"])),
        (Some("offline"), "offline", json!([])),
        (None, "db.read db.write offline", json!(["db.read", "db.write"])),
    ] {
        let scope = asked.map_or(json!({}), |scope| json!({ "scope": scope }));
        let minted = node.granted(&with(&request, &scope)).await;
        assert_eq!((&minted.answer["scope"], &minted.claims["scope"]), (&json!(granted), &json!(granted)));
        let stated = minted.claims.get("capabilities").cloned().unwrap_or(json!([]));
        assert_eq!(stated, capabilities, "{asked:?}");
    }
}

#[tokio::test]
async fn stated_capabilities_scope_and_radius_bound_the_grant() {
    let node = Node::start().await;
    for (changes, scope, radius) in [
        (json!({"capabilities": ["db.read", "root"]}), "db.read offline", "namespace:demo"),
        (json!({"scope": "db.write"}), "db.write", "namespace:demo"),
        (
            json!({"capabilities": ["db.read", "db.write"], "scope": "db.read offline"}),
            "db.read offline",
            "namespace:demo",
        ),
        (json!({"blast_radius": "workspace:demo/x"}), "db.read db.write offline", "workspace:demo/x"),
        (json!({"blast_radius": "namespace"}), "db.read db.write offline", "namespace:demo"),
    ] {
        let minted = node.granted(&credential(&node.issuers.changed(&changes), JWT)).await;
        assert_eq!(minted.claims["scope"], scope, "{changes}");
        assert_eq!(minted.claims["blast_radius"], radius, "{changes}");
    }
}

#[tokio::test]
async fn execution_scope_binds_to_one_call_and_shortens_lifetime() {
    let node = Node::start().await;
    let bare = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": MIGRATE}));
    let plain = json!({"htm": "POST", "htu": "https://tools.example/migrate/run"});
    let minted = node.granted(&with(&request, &json!({"execution_scope": plain}))).await;
    assert_eq!((&minted.answer["expires_in"], &minted.claims["exp"]), (&json!(30), &json!(NOW_SECS + 30)));
    for (name, value) in [
        ("htm", json!("POST")),
        ("htu", json!("https://tools.example/migrate/run")),
        ("exec_act", json!("POST")),
        ("target", json!("https://tools.example/migrate/run")),
    ] {
        assert_eq!(minted.claims[name], value);
    }
    assert!(minted.claims.get("nonce").is_none() && minted.claims.get("inp_hash").is_none());
    let full = with(
        &plain,
        &json!({"payload_hash": format!("{bare}="), "nonce": "n-1", "exec_act": "schema.migrate", "target": "db:pay"}),
    );
    let minted = node.granted(&with(&request, &json!({"execution_scope": full}))).await;
    for (name, value) in
        [("inp_hash", bare), ("nonce", "n-1"), ("exec_act", "schema.migrate"), ("target", "db:pay")]
    {
        assert_eq!(minted.claims[name], value);
    }
    // An execution-scoped token starts no further exchange.
    let for_us = with(&request, &json!({"audience": FABRIC, "execution_scope": plain}));
    let bound = node.granted(&for_us).await;
    node.exchange(&credential(&bound.token, OWN)).await.is_refused(400, "invalid_request", "subject_token");
}

#[tokio::test]
async fn the_policy_can_demand_an_execution_scope() {
    let node = Node::start().await;
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": MIGRATE}));
    node.exchange(&request).await.is_refused(403, "access_denied", "needs an execution scope");
}

#[tokio::test]
async fn token_without_a_kid_needs_exactly_one_matching_key() {
    let node = Node::start().await;
    let claims = node.issuers.service_account("demo", "reporter");
    // The API server has one key for each algorithm.
    for signer in [&node.issuers.es256, &node.issuers.rs256] {
        let token = signer.sign_as(&json!({"alg": signer.alg()}), &claims);
        node.granted(&credential(&token, JWT)).await;
    }
}
