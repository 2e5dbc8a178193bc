//! The demo, step by step. Each step uses the public HTTP API, and fails on any other outcome.

use std::collections::BTreeSet;

use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::output::DemoOutput;
use crate::clock::Clock;
use crate::outbound;
use crate::outbound::client::Client;
use crate::outbound::guard::{Guard, Rules};
use crate::token::jws::Compact;
use crate::token::key_set::{KeySet, Purpose};
use crate::{json as strict_json, limits};

/// A tool of the shipped policy.
pub(super) const AUDIENCE: &str = "https://tools.dev.trust-fabric.local/sql-query";
/// Requested scope.
const SCOPE: &str = "db.read";
/// Body of the call that the execution-scoped token is bound to.
const CALL: &str = r#"{"query":"select 1"}"#;

/// Addresses of the demo.
pub(super) struct DemoEndpoints {
    pub broker: String,
    pub issuer: String,
    /// Path of this executable for a shell.
    pub program: String,
}

/// Shows an exchange, one with an execution scope, the verification of that call, and a revocation.
pub(super) async fn show(
    page: &mut DemoOutput<'_>,
    endpoints: &DemoEndpoints,
    clock: &Clock,
) -> Result<(), Error> {
    // The demo is not part of the broker, so the broker's own ports are not excluded.
    let rules = Rules { allow_loopback_http: true, own_ports: BTreeSet::new(), ..Rules::default() };
    let documents = Client::new(outbound::client::CallLimits::default(), Guard::new(rules))
        .map_err(|source| Error::Fetch { address: endpoints.issuer.clone(), source })?;
    let broker = NodeClient::new(&endpoints.broker)?;
    until_ready(&broker).await?;

    page.step(
        "A workload's credential",
        "A service-account token, as a Kubernetes cluster mounts it into a pod. Its claims:",
    )?;
    let credential = text(fetch(&documents, &format!("{}/token", endpoints.issuer)).await?)?;
    let issuer_keys = fetch(&documents, &format!("{}/openid/v1/jwks", endpoints.issuer)).await?;
    let (claims, _) = verified(&credential, &issuer_keys)?;
    page.object(&claims, &CREDENTIAL_REMARKS)?;

    page.step("The request", "The workload requests a token for one tool. You can paste this:")?;
    page.command(&exchange_command(endpoints))?;

    page.step("The response", "The broker verified the credential, and its policy allowed the request:")?;
    let request = request(&credential);
    let answer = broker.post(&EXCHANGE, &request).await?;
    page.object(&answer, &[])?;

    page.step("The minted token", "Decoded, with the meaning of its claims:")?;
    let token = access_token(&answer)?;
    let broker_keys = fetch(&documents, &format!("{}/v1/identity/jwks", endpoints.broker)).await?;
    let (claims, kid) = verified(token, &broker_keys)?;
    page.object(&claims, &TOKEN_REMARKS)?;

    page.step(
        "Its verification by the tool",
        &format!("With the keys from {}/v1/identity/jwks:", endpoints.broker),
    )?;
    page.good(&format!("signature by key {kid}"))?;
    if claims.get("iss") != Some(&json!(super::BROKER)) {
        return Err(Error::Unexpected("the token has another issuer"));
    }
    page.good(&format!("iss is {}", super::BROKER))?;
    if claims.get("aud") != Some(&json!(AUDIENCE)) {
        return Err(Error::Unexpected("the token has another audience"));
    }
    page.good(&format!("aud is {AUDIENCE}"))?;
    let left = claims.get("exp").and_then(Value::as_i64).unwrap_or(0) - clock.now().secs();
    if left <= 0 {
        return Err(Error::Unexpected("the token has expired"));
    }
    page.good(&format!("exp is in {left} s"))?;

    let for_one_call = show_execution_scope(page, &broker, &broker_keys, &request).await?;
    show_verification(page, &broker, &for_one_call).await?;
    show_revocation(page, endpoints, &broker, &documents, clock).await
}

/// A starting node compiles its policy first.
async fn until_ready(broker: &NodeClient) -> Result<(), Error> {
    let ready = async {
        loop {
            match broker.get(&["readyz"]).await {
                Err(error) if error.status() == Some(503) => {
                    tokio::time::sleep(limits::DEMO_READY_POLL_INTERVAL).await;
                }
                answer => return answer.map(drop),
            }
        }
    };
    let outcome = tokio::time::timeout(limits::DEMO_READY_TIMEOUT, ready).await;
    Ok(outcome.map_err(|_| Error::Unexpected("the broker was not ready in time"))??)
}

async fn show_execution_scope(
    page: &mut DemoOutput<'_>,
    broker: &NodeClient,
    broker_keys: &[u8],
    request: &Value,
) -> Result<String, Error> {
    page.step(
        "A token for one call",
        "With an execution scope a token is bound to one HTTP call and its body, and lives 30 seconds:",
    )?;
    let scope = json!({
        "htm": "POST",
        "htu": AUDIENCE,
        "payload_hash": URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, CALL.as_bytes())),
        "nonce": nonce()?,
    });
    page.object(&scope, &SCOPE_REMARKS)?;
    let mut request = request.clone();
    if let Some(members) = request.as_object_mut() {
        members.insert("execution_scope".to_owned(), scope);
    }
    let answer = broker.post(&EXCHANGE, &request).await?;
    let token = access_token(&answer)?.to_owned();
    let (claims, _) = verified(&token, broker_keys)?;
    if claims.get("htm") != Some(&json!("POST")) || claims.get("inp_hash").is_none() {
        return Err(Error::Unexpected("the token is not bound to the call"));
    }
    page.good(&format!("minted, bound to POST {AUDIENCE}"))?;
    match broker.post(&EXCHANGE, &request).await {
        Err(client::Error::Refused(refusal)) => {
            let client::Refusal { status, description, .. } = *refusal;
            page.good(&format!("a second request with this nonce is refused: {status} {description}"))?;
            Ok(token)
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(Error::Unexpected("a nonce was accepted twice")),
    }
}

/// Verification of a tool call by the broker.
async fn show_verification(page: &mut DemoOutput<'_>, broker: &NodeClient, token: &str) -> Result<(), Error> {
    page.step(
        "Verification of a tool call",
        "A tool is registered once, with its requirements. For each call the tool server asks the broker for a verdict:",
    )?;
    let tool = json!({
        "name": "SQL query",
        "resource_uri": AUDIENCE,
        "required_capabilities": [SCOPE],
        "max_blast_radius": "namespace:demo",
        "requires_execution": true,
        "allowed_operations": ["POST"],
        "allowed_targets": [AUDIENCE],
    });
    page.object(&tool, &[])?;
    broker.put(&["v1", "tools", TOOL_ID], &tool).await?;
    let call = json!({
        "tool_id": TOOL_ID,
        "token": token,
        "request_body_hash": URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, CALL.as_bytes())),
    });
    let verdict = broker.post(&VERIFY, &call).await?;
    let checks = verdict.get("checks").and_then(Value::as_array).ok_or(Error::Unexpected("no checks"))?;
    let word = |check: &Value, name| check.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let checks: Vec<_> =
        checks.iter().map(|check| format!("{} {}", word(check, "check"), word(check, "result"))).collect();
    page.good(&format!("allowed: {}", checks.join(", ")))?;
    match broker.post(&VERIFY, &call).await {
        Err(client::Error::Refused(refusal)) => {
            let client::Refusal { status, description, .. } = *refusal;
            page.good(&format!("a second call with this token is refused: {status} {description}"))?;
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(Error::Unexpected("a token for one call was accepted twice")),
    }
}

/// Revocation of a credential and of the token derived from it. Each run uses a new workload, because a revocation is
/// permanent.
async fn show_revocation(
    page: &mut DemoOutput<'_>,
    endpoints: &DemoEndpoints,
    broker: &NodeClient,
    documents: &Client,
    clock: &Clock,
) -> Result<(), Error> {
    page.step(
        "A signal that revokes",
        "Another workload has a token. Then its cluster signals that the workload's sessions are revoked:",
    )?;
    let visitor = format!("visitor-{:08x}", random::<4>()?.into_iter().fold(0, |n, b| n << 8 | u32::from(b)));
    let address = format!("{}/token?service_account={visitor}", endpoints.issuer);
    let request = request(&text(fetch(documents, &address).await?)?);
    let token = access_token(&broker.post(&EXCHANGE, &request).await?)?.to_owned();
    let signal = json!({
        "iss": super::ISSUER,
        "jti": nonce()?,
        "iat": clock.now().secs(),
        "aud": super::BROKER,
        "sub_id": {
            "format": "iss_sub",
            "iss": super::ISSUER,
            "sub": format!("system:serviceaccount:demo:{visitor}"),
        },
        "events": {(SESSION_REVOKED): {"reason": "end of the demo"}},
    });
    page.object(&signal, &SIGNAL_REMARKS)?;
    let answer = match broker.post(&EVENTS, &signal).await {
        // The user may have edited the policy, or it may be older than this executable.
        Err(error) if error.status() == Some(501) => return Ok(page.line(&error.to_string())?),
        answer => answer?,
    };
    if answer.get("status") != Some(&json!("accepted")) {
        return Err(Error::Unexpected("the signal had no effect"));
    }
    page.good("the signal is accepted; from now on")?;
    let call = json!({"tool_id": TOOL_ID, "token": token});
    for (what, route, body) in
        [("the token", &VERIFY, &call), ("another exchange of the credential", &EXCHANGE, &request)]
    {
        match broker.post(route, body).await {
            Err(client::Error::Refused(refusal)) => {
                page.good(&format!("{what} is refused: {} {}", refusal.status, refusal.description))?;
            }
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Error::Unexpected("a revoked token or credential is still accepted")),
        }
    }
    Ok(())
}

/// Suggested commands.
pub(super) fn show_next_steps(page: &mut DemoOutput<'_>, endpoints: &DemoEndpoints) -> Result<(), Error> {
    let DemoEndpoints { broker, program, .. } = endpoints;
    page.heading("The broker keeps running. Try:")?;
    page.command(&exchange_command(endpoints))?;
    for path in ["/v1/identity/jwks", "/v1/sys/health", "/openapi.json", "/metrics"] {
        page.command(&format!("curl -s {broker}{path}"))?;
    }
    page.command(&format!("{program} keys list --server {broker}"))?;
    page.command(&format!("{program} audit tail {TOOL_ID} --server {broker}"))?;
    page.command(&format!(
        "echo '{}' |\n  {program} policy explain --input - --server {broker}",
        policy_input()
    ))?;
    page.line("\nCtrl-C stops it and keeps its data.")?;
    Ok(())
}

const EXCHANGE: [&str; 3] = ["v1", "exchange", "token"];
const VERIFY: [&str; 3] = ["v1", "mcp", "verify"];
const EVENTS: [&str; 3] = ["v1", "signals", "events"];
const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const TOOL_ID: &str = "sql-query";
const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:jwt";

const CREDENTIAL_REMARKS: [(&str, &str); 4] = [
    ("iss", "the cluster that issued it"),
    ("sub", "the workload's service account"),
    ("aud", "the broker, and no other"),
    ("exp", "in ten minutes"),
];

const TOKEN_REMARKS: [(&str, &str); 15] = [
    ("iss", "this broker"),
    ("sub", "the workload's identifier in the fabric"),
    ("aud", "one tool; any other refuses it"),
    ("scope", "requested and granted"),
    ("capabilities", "rights of the token"),
    ("blast_radius", "reach of the token"),
    ("delegation_depth", "remaining delegations"),
    ("exp", "five minutes after iat"),
    ("iat", ""),
    ("root_iat", "issue of the chain's oldest credential"),
    ("root_exp", "end of the exchange chain"),
    ("lineage", "digests of all facts it derives from"),
    ("policy", "digest of the deciding policy"),
    ("idx", "the broker's log position when it was minted"),
    ("txn", "transaction id of the whole chain"),
];

const SCOPE_REMARKS: [(&str, &str); 4] =
    [("htm", "this method"), ("htu", "at this URI"), ("payload_hash", "with this body"), ("nonce", "once")];

const SIGNAL_REMARKS: [(&str, &str); 5] = [
    ("iss", "the issuer, with authority over its own subjects"),
    ("jti", "accepted once"),
    ("aud", "the broker"),
    ("sub_id", "subject of the event"),
    ("events", "the event"),
];

fn request(credential: &str) -> Value {
    json!({
        "grant_type": GRANT_TYPE,
        "subject_token": credential,
        "subject_token_type": TOKEN_TYPE,
        "audience": AUDIENCE,
        "scope": SCOPE,
    })
}

/// Policy input of the first exchange.
fn policy_input() -> Value {
    json!({
        "subject": {
            "id": format!("wimse://{}/ns/demo/sa/reporter", super::TRUST_DOMAIN),
            "trust_domain": super::TRUST_DOMAIN,
            "issuer": super::ISSUER,
            "kind": "jwt",
            "original_sub": "system:serviceaccount:demo:reporter",
            "act": [],
        },
        "request": {"audience": AUDIENCE, "scope": [SCOPE], "execution": false},
    })
}

/// A form, as OAuth clients send it: the credential needs no quoting.
fn exchange_command(endpoints: &DemoEndpoints) -> String {
    let DemoEndpoints { broker, issuer, .. } = endpoints;
    format!(
        "curl -s {broker}/v1/exchange/token \\\n  \
           -d grant_type={GRANT_TYPE} \\\n  \
           -d subject_token=$(curl -s {issuer}/token) \\\n  \
           -d subject_token_type={TOKEN_TYPE} \\\n  \
           -d audience={AUDIENCE} \\\n  \
           -d scope={SCOPE}"
    )
}

async fn fetch(client: &Client, address: &str) -> Result<Vec<u8>, Error> {
    client.fetch(address).await.map_err(|source| Error::Fetch { address: address.to_owned(), source })
}

fn text(document: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(document).map_err(|_| Error::Unexpected("the demo issuer's token is not UTF-8"))
}

fn access_token(answer: &Value) -> Result<&str, Error> {
    answer
        .get("access_token")
        .and_then(Value::as_str)
        .ok_or(Error::Unexpected("the response has no access_token"))
}

/// Claims of a token signed by one of `keys`, and the key's thumbprint.
fn verified(token: &str, keys: &[u8]) -> Result<(Value, String), Error> {
    let token = Compact::parse(token)?;
    let keys = KeySet::parse(keys, Purpose::Issuer)?;
    let key = keys.select(token.header().kid.as_deref(), token.header().algorithm)?;
    let signed = token.verify(&key)?;
    let claims =
        strict_json::parse(signed.payload()).map_err(|_| Error::Unexpected("the claims are not JSON"))?;
    Ok((claims, key.thumbprint().to_owned()))
}

fn nonce() -> Result<String, Error> {
    Ok(URL_SAFE_NO_PAD.encode(random::<16>()?))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| Error::Unexpected("the operating system provides no random bytes"))?;
    Ok(bytes)
}
