//! Token families: an issued identity token and all its renewals.

use serde_json::json;

use crate::support::{FABRIC, IDP, Minted, Node, OWN, Response, TOOL, credential, with};

const RENEW: &str = "/v1/identity/agent/renew";

fn identity(answer: &Response) -> Minted {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = with(&answer.json(), &json!({"access_token": answer.json()["token"]})).to_string();
    Response { status: answer.status, headers: answer.headers.clone(), body }.minted()
}

async fn issue(node: &Node) -> Minted {
    let request = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    identity(&node.post("/v1/identity/agent", &request).await)
}

async fn renew(node: &Node, token: &Minted) -> Response {
    let bearer = format!("Bearer {}", token.token);
    node.call("POST", RENEW, &[("authorization", &bearer)], "").await
}

/// An agent's first token, its renewal, and the renewal of that.
async fn token_chain(node: &Node) -> [Minted; 3] {
    let first = issue(node).await;
    let second = identity(&renew(node, &first).await);
    let third = identity(&renew(node, &second).await);
    [first, second, third]
}

async fn for_tool(node: &Node, token: &Minted) -> Minted {
    node.granted(&with(&credential(&token.token, OWN), &json!({"audience": TOOL}))).await
}

async fn is_verified(node: &Node, token: &Minted) -> bool {
    let answer = node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": token.token})).await;
    if answer.status == 200 {
        return true;
    }
    answer.is_refused(403, "access_denied", "revo");
    false
}

async fn is_revoked(node: &Node, token: &Minted) -> bool {
    let exchanged = node.exchange(&credential(&token.token, OWN)).await.status;
    let renewed = renew(node, token).await.status;
    assert!(matches!((exchanged, renewed), (200, 200) | (400, 401)), "{exchanged} {renewed}");
    renewed == 401
}

async fn node_with_tool() -> Node {
    let node = Node::start().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    node
}

#[tokio::test]
async fn renewals_keep_the_family_and_issues_draw_another() {
    let node = Node::start().await;
    let tokens = token_chain(&node).await;
    let other = issue(&node).await;
    let jti = |token: &Minted| token.claims["jti"].as_str().expect("jti").to_owned();
    let parts = |token: &Minted| {
        let jti = jti(token);
        let (family, number) = jti.split_once('.').expect("<family>.<n>");
        (family.to_owned(), number.parse::<u64>().expect("a number"))
    };
    let (family, number) = parts(&tokens[0]);
    assert_eq!(uuid::Uuid::parse_str(&family).expect("a uuid").get_version_num(), 4);
    for renewed in &tokens[1..] {
        assert_eq!(parts(renewed).0, family);
        assert_ne!(parts(renewed).1, number);
    }
    assert_ne!(parts(&other).0, family);
    // An exchanged token is no identity token and has no family.
    assert!(!jti(&for_tool(&node, &tokens[0]).await).contains('.'));
}

/// Attack: an identity token leaks and is renewed before its `jti` is revoked. The renewed token stayed valid
/// for the life of the agent.
#[tokio::test]
async fn revoked_jti_ends_its_whole_family() {
    let mut node = node_with_tool().await;
    for revoked in 0..3 {
        let (tokens, other) = (token_chain(&node).await, issue(&node).await);
        let derived = [for_tool(&node, &tokens[0]).await, for_tool(&node, &tokens[2]).await];
        let answer = node.post("/v1/revocations", &json!({"jti": tokens[revoked].claims["jti"]})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        assert_eq!(answer.json()["value"], tokens[revoked].claims["jti"]);
        for _ in 0..2 {
            for token in &tokens {
                assert!(is_revoked(&node, token).await, "{revoked}");
            }
            for token in &derived {
                assert!(!is_verified(&node, token).await, "{revoked}");
            }
            assert!(!is_revoked(&node, &other).await);
            node.restart().await;
        }
    }
}

#[tokio::test]
async fn signal_about_a_jwt_id_ends_its_whole_family() {
    let node = Node::start().await;
    let tokens = token_chain(&node).await;
    let event = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
    let signal = json!({
        "iss": IDP, "jti": "s-1", "iat": node.now_secs(), "aud": FABRIC, "events": {(event): {}},
        "sub_id": {"format": "jwt_id", "iss": FABRIC, "jti": tokens[0].claims["jti"]},
    });
    assert_eq!(node.post("/v1/signals/events", &signal).await.status, 202);
    for token in &tokens {
        assert!(is_revoked(&node, token).await);
    }
}
