//! A token of one region in the other: from the agent's identity to a tool, until the agent is revoked at home.

use super::*;

const OWN: &str = "urn:svc:token-type:agent-a2a";
pub(super) const TOOL: &str = "https://tools.example/sql";

/// Every exchange and every agent is allowed.
const EXCHANGE: &str = "package svc.exchange\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\
    \"audience\": input.request.audience, \"capabilities\": [\"db.read\", \"tools.read\"]}}";
const IDENTITY: &str = "package svc.identity\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\"capabilities\": [\"db.read\"]}}";

/// Writes the policies of a fabric.
pub(super) fn set_policies(fabric: &mut Fabric) {
    let (shipped, own) = (fabric.policies.clone(), fabric.directory.path().join("policies"));
    fs::create_dir(&own).expect("directory");
    fs::write(own.join("exchange.rego"), EXCHANGE).expect("policy");
    fs::write(own.join("identity.rego"), IDENTITY).expect("policy");
    for name in ["signals.rego", "data.json"] {
        fs::copy(shipped.join(name), own.join(name)).expect("policy");
    }
    fabric.policies = own;
}

/// Issues an agent; its id and its identity token.
pub(super) async fn agent(at: &Fabric) -> (String, String) {
    let request = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let (status, answer) = at.call(Method::POST, "/v1/identity/agent", Some(&request)).await;
    assert_eq!(status, 200, "{answer}");
    let text = |name: &str| answer[name].as_str().expect("a text").to_owned();
    (text("agent_id"), text("token"))
}

pub(super) async fn exchange(at: &Fabric, token: &str, audience: &str) -> (u16, Value) {
    let request = json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token, "subject_token_type": OWN, "audience": audience,
    });
    at.call(Method::POST, "/v1/exchange/token", Some(&request)).await
}

pub(super) async fn granted(at: &Fabric, token: &str, audience: &str) -> String {
    let (status, answer) = exchange(at, token, audience).await;
    assert_eq!(status, 200, "{answer}");
    answer["access_token"].as_str().expect("a token").to_owned()
}

pub(super) async fn verify(at: &Fabric, token: &str) -> (u16, Value) {
    at.call(Method::POST, "/v1/mcp/verify", Some(&json!({"tool_id": "sql", "token": token}))).await
}

/// Waits until an exchange is answered with this status.
pub(super) async fn until_exchange(at: &Fabric, token: &str, expected: u16) -> Value {
    until(&format!("an exchange answered {expected}"), || async {
        let (status, answer) = exchange(at, token, TOOL).await;
        (status == expected).then_some(answer)
    })
    .await
}

#[tokio::test]
async fn agent_works_in_another_region_until_it_is_revoked_at_home() {
    let [one, other] = ports::free::<2>();
    let (mut eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    set_policies(&mut eu);
    set_policies(&mut us);
    eu.add_peer(&PeerSection { name: "us", of: &us, more: "serve = true" });
    let more = "accept = true\nas = [\"subject\"]\ncapabilities = [\"db.read\"]";
    us.add_peer(&PeerSection { name: "eu", of: &eu, more });
    eu.start().await;
    us.start().await;
    us.until_peer("eu", "live", 0).await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "required_capabilities": ["db.read"]});
    let (status, answer) = us.call(Method::POST, "/v1/tools", Some(&tool)).await;
    assert_eq!(status, 201, "{answer}");

    let (id, identity) = agent(&eu).await;
    let abroad = granted(&eu, &identity, &us.issuer()).await;
    let at_tool =
        until_exchange(&us, &abroad, 200).await["access_token"].as_str().expect("a token").to_owned();
    // Nothing but what the agent's own fabric let out is accepted.
    assert_eq!(exchange(&us, &identity, TOOL).await.0, 400);
    let chain = granted(&us, &abroad, &us.issuer()).await;
    let (status, answer) = verify(&us, &at_tool).await;
    assert_eq!(status, 200, "{answer}");
    let bearer = us.operator.get(us.url("/v1/tools")).bearer_auth(&chain).send().await.expect("an answer");
    assert_eq!(bearer.status(), 401);
    let anonymous = Client::builder().http1_only().no_proxy();
    let ca = reqwest::Certificate::from_pem(&fs::read(&us.made.ca.certificate).expect("CA")).expect("CA");
    let anonymous = anonymous.tls_certs_only([ca]).build().expect("client");
    let bearer = anonymous.get(us.url("/v1/tools")).bearer_auth(&chain).send().await.expect("an answer");
    assert_eq!(bearer.status(), 401);
    // It is not a token of eu's any more.
    assert_eq!(exchange(&eu, &chain, TOOL).await.0, 400);

    let (status, answer) = eu.call(Method::POST, "/v1/revocations", Some(&json!({"agent": id}))).await;
    assert_eq!(status, 202, "{answer}");
    until_exchange(&us, &abroad, 400).await;
    assert_eq!(exchange(&us, &chain, TOOL).await.0, 400);
    let (status, answer) = verify(&us, &at_tool).await;
    assert_eq!((status, &answer["check"]), (403, &json!("revocation")), "{answer}");

    // Another agent is not affected, until the peer is paused.
    let abroad = granted(&eu, &agent(&eu).await.1, &us.issuer()).await;
    let at_tool = granted(&us, &abroad, TOOL).await;
    assert_eq!(verify(&us, &at_tool).await.0, 200);
    assert_eq!(us.set_peer("eu", "pause").await.0, 200);
    assert_eq!((exchange(&us, &abroad, TOOL).await.0, verify(&us, &at_tool).await.0), (403, 403));
    assert_eq!(us.set_peer("eu", "resume").await.0, 200);
    assert_eq!(verify(&us, &at_tool).await.0, 200);

    // The home of the agent does not answer.
    eu.stop().await;
    let answer = until_exchange(&us, &abroad, 503).await;
    let text = answer["error_description"].as_str().expect("a text");
    assert!(text.starts_with("peer fabric eu: last heard"), "{text}");
    assert_eq!(verify(&us, &at_tool).await.0, 503);

    us.stop().await;
    us.peers.clear();
    us.start().await;
    assert_eq!((exchange(&us, &abroad, TOOL).await.0, verify(&us, &at_tool).await.0), (400, 403));
}
