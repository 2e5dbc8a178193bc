//! The exchange as a form, with the error codes of RFC 8693.

use serde_json::json;

use crate::support::{FABRIC, GRANT, JWT, MIGRATE, Node, OWN, TOOL};

const PATH: &str = "/v1/exchange/token";
const FORM: [(&str, &str); 1] = [("content-type", "application/x-www-form-urlencoded")];

#[tokio::test]
async fn a_form_is_exchanged_like_json() {
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let base = [("grant_type", GRANT), ("subject_token", token.as_str()), ("subject_token_type", JWT)];
    let minted = node.exchange_form(&base).await.minted();
    node.verify(&minted).await;
    assert_eq!(minted.claims["aud"], TOOL);
    let scope =
        json!({"htm": "POST", "htu": "https://tools.example/migrate/run", "nonce": "form"}).to_string();
    let more =
        [("audience", MIGRATE), ("scope", "db.write"), ("execution_scope", &scope), ("client_id", "ignored")];
    let minted = node.exchange_form(&[&base[..], &more].concat()).await.minted();
    assert_eq!((&minted.claims["nonce"], &minted.claims["aud"]), (&json!("form"), &json!(MIGRATE)));
    // RFC 6749 §3.2: "Parameters sent without a value MUST be treated as if they were omitted".
    let empty = [("audience", ""), ("scope", ""), ("actor_token", ""), ("actor_token_type", "")];
    node.exchange_form(&[&base[..], &empty].concat()).await.minted();
    // RFC 8693 §2.1: audience may be repeated; one token has one.
    let same = [("audience", TOOL), ("audience", TOOL), ("resource", TOOL)];
    node.exchange_form(&[&base[..], &same].concat()).await.minted();
}

#[tokio::test]
async fn refusals_of_a_form_carry_the_codes_of_the_standard() {
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let actor = node.own_token("agents", "orchestrator").await.token;
    let (grant, subject, kind) =
        (("grant_type", GRANT), ("subject_token", token.as_str()), ("subject_token_type", JWT));
    let base = [grant, subject, kind];
    let with = |more: &[(&'static str, &'static str)]| [&base[..], more].concat();
    for (form, error, text) in [
        (vec![("grant_type", "authorization_code"), subject, kind], "unsupported_grant_type", "grant_type"),
        (vec![subject, kind], "invalid_request", "grant_type"),
        (vec![grant, kind], "invalid_request", "subject_token"),
        (vec![grant, ("subject_token", "x.y.z"), kind], "invalid_request", "subject_token is not valid"),
        (with(&[("audience", "https://unknown.example")]), "invalid_target", "audience"),
        (with(&[("resource", "https://unknown.example")]), "invalid_target", "audience"),
        (with(&[("audience", TOOL), ("audience", FABRIC)]), "invalid_target", "exactly one"),
        (with(&[("audience", TOOL), ("resource", FABRIC)]), "invalid_target", "exactly one"),
        (with(&[("scope", "root")]), "invalid_scope", "scope"),
        // Regression: no word was taken for an absent scope, which requests all that is granted.
        (with(&[("scope", " ")]), "invalid_request", "scope: must have a word"),
        (with(&[("audience", MIGRATE)]), "access_denied", "execution scope"),
        (with(&[("scope", "a"), ("scope", "b")]), "invalid_request", "scope: must not be given twice"),
        (with(&[("subject_token", "x")]), "invalid_request", "subject_token: must not be given twice"),
        (with(&[("actor_token", "x.y.z")]), "invalid_request", "actor_token_type"),
        (with(&[("actor_token_type", OWN)]), "invalid_request", "actor_token_type"),
        (with(&[("execution_scope", "{\"htm\":1}")]), "invalid_request", "htm"),
        (with(&[("execution_scope", "{} x")]), "invalid_request", "JSON"),
    ] {
        let answer = node.exchange_form(&form).await;
        answer.is_refused(400, error, text);
    }
    let acted = [("actor_token", actor.as_str()), ("actor_token_type", OWN)];
    node.exchange_form(&[&base[..], &acted, &[("audience", FABRIC)]].concat()).await.minted();
    let looped = [grant, ("subject_token", actor.as_str()), ("subject_token_type", OWN)];
    let answer = node.exchange_form(&[&looped[..], &acted].concat()).await;
    answer.is_refused(400, "invalid_request", "chain");
}

#[tokio::test]
async fn a_form_that_is_not_utf8_is_refused() {
    let node = Node::start().await;
    for body in [&b"grant_type=%ff"[..], b"grant_type=\xff", b"audience=%c3%28"] {
        node.call("POST", PATH, &FORM, body).await.is_refused(400, "invalid_request", "UTF-8");
    }
    node.call("POST", PATH, &FORM, "").await.is_refused(400, "invalid_request", "grant_type");
}
