//! A revocation covers every token that derives from the revoked fact, on every route, and no other.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, FABRIC, IDP, JWT, Minted, NOW_SECS, Node, ORCHESTRATOR, OWN, REPORTER, Response,
    TOOL, credential, with,
};

const EVENTS: &str = "/v1/signals/events";
const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const EMAIL: &str = "reporter@example.com";

/// Everything that derives from the reporter's credential, by name.
const OF_THE_CREDENTIAL: [&str; 7] = ["credential", "first", "second", "third", "leaf", "acted", "by child"];

/// A credential or a minted token.
struct Token {
    text: String,
    kind: &'static str,
    claims: Value,
    kid: Value,
}

impl Token {
    fn of(minted: &Minted) -> Self {
        Self {
            text: minted.token.clone(),
            kind: OWN,
            claims: minted.claims.clone(),
            kid: minted.header["kid"].clone(),
        }
    }

    /// The request that exchanges it for a token for `audience`.
    fn request(&self, audience: &str) -> Value {
        with(&credential(&self.text, self.kind), &json!({ "audience": audience }))
    }
}

async fn exchanged(node: &Node, token: &Token, audience: &str) -> Token {
    Token::of(&node.granted(&token.request(audience)).await)
}

async fn acted(node: &Node, token: &Token, actor: &Token) -> Token {
    let actor = json!({"actor_token": actor.text, "actor_token_type": OWN});
    Token::of(&node.granted(&with(&token.request(TOOL), &actor)).await)
}

async fn agent(node: &Node, on_behalf_of: Option<&Token>) -> Token {
    let depth = if on_behalf_of.is_some() { 1 } else { 2 };
    let request = json!({
        "agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"], "delegation_depth": depth,
    });
    let parent = on_behalf_of.map(|parent| json!({"on_behalf_of": parent.claims["sub"]}));
    let answer = node.post("/v1/identity/agent", &with(&request, &parent.unwrap_or(json!({})))).await;
    let body = with(&answer.json(), &json!({"access_token": answer.json()["token"]})).to_string();
    Token::of(&Response { status: answer.status, headers: answer.headers, body }.minted())
}

/// Tokens by name.
struct TokenSet(BTreeMap<&'static str, Token>);

impl TokenSet {
    /// A credential, its three exchanges and the token for the tool at their end, twice with an actor; an
    /// agent, its child and the child's token; and an unrelated token. Another key signed the first exchange.
    async fn make(node: &Node) -> Self {
        let with_tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
        assert_eq!(node.post("/v1/tools", &with_tool).await.status, 201);
        let claims =
            json!({"email": EMAIL, "email_verified": true, "exp": NOW_SECS + 80_000, "jti": "source"});
        let claims = with(&node.issuers.identifier(REPORTER), &claims);
        let text = node.issuers.agents.sign(&claims);
        let source = Token { text, kind: JWT, claims, kid: node.issuers.agents.kid().into() };
        // The successor of the first key may sign by then.
        node.advance_secs(600);
        let first = exchanged(node, &source, FABRIC).await;
        assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
        let second = exchanged(node, &first, FABRIC).await;
        assert_ne!(first.kid, second.kid);
        let third = exchanged(node, &second, FABRIC).await;
        let leaf = exchanged(node, &third, TOOL).await;
        let orchestrator = Token::of(&node.own_token("agents", "orchestrator").await);
        let acted_for = acted(node, &third, &orchestrator).await;
        let root = agent(node, None).await;
        let child = agent(node, Some(&root)).await;
        let child_leaf = exchanged(node, &child, TOOL).await;
        let by_child = acted(node, &second, &child).await;
        let bystander = Token::of(&node.own_token("demo", "bystander").await);
        Self(BTreeMap::from([
            ("credential", source),
            ("first", first),
            ("second", second),
            ("third", third),
            ("leaf", leaf),
            ("orchestrator", orchestrator),
            ("acted", acted_for),
            ("root", root),
            ("child", child),
            ("child's leaf", child_leaf),
            ("by child", by_child),
            ("bystander", bystander),
        ]))
    }

    fn token(&self, name: &str) -> &Token {
        &self.0[name]
    }

    fn claim(&self, name: &str, claim: &str) -> Value {
        self.token(name).claims[claim].clone()
    }

    /// The names of the tokens that are refused as revoked. Any other refusal fails the test.
    async fn revoked_names(&self, node: &Node) -> Vec<&'static str> {
        let mut revoked_names = Vec::new();
        for (name, token) in &self.0 {
            let is_for_a_tool = token.claims["aud"] == TOOL;
            let is_dead = if is_for_a_tool {
                fails_verification(node, token).await
            } else {
                is_refused(node, token).await
            };
            revoked_names.extend(is_dead.then_some(*name));
        }
        revoked_names
    }

    async fn check(&self, node: &Node, expected: &[&str]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.revoked_names(node).await, expected);
    }
}

/// Whether verification for the tool fails with `revoked`.
async fn fails_verification(node: &Node, token: &Token) -> bool {
    let answer = node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": token.text})).await;
    if answer.status == 200 {
        return false;
    }
    answer.is_refused(403, "access_denied", "revo");
    assert_eq!(answer.json()["check"], "revocation", "{}", answer.body);
    true
}

/// Whether its exchange is refused.
async fn is_refused(node: &Node, token: &Token) -> bool {
    let answer = node.exchange(&token.request(FABRIC)).await;
    if answer.status == 200 {
        return false;
    }
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    true
}

async fn revoke(node: &Node, sub_id: &Value) {
    let signal = json!({
        "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": sub_id, "events": {(SESSION_REVOKED): {}},
    });
    let answer = node.post(EVENTS, &signal).await;
    assert_eq!((answer.status, answer.json()), (202, json!({"status": "accepted"})), "{sub_id}");
}

/// One revocation in a new world: exactly these tokens are covered, also after a restart.
async fn assert_covers(sub_id: impl FnOnce(&Node, &TokenSet) -> Value, expected: &[&str]) {
    let mut node = Node::start().await;
    let world = TokenSet::make(&node).await;
    world.check(&node, &[]).await;
    revoke(&node, &sub_id(&node, &world)).await;
    world.check(&node, expected).await;
    node.restart().await;
    world.check(&node, expected).await;
}

#[tokio::test]
async fn revoked_workload_covers_every_token_exchanged_for_it() {
    assert_covers(|_, _| json!({"format": "uri", "uri": REPORTER}), &OF_THE_CREDENTIAL).await;
}

#[tokio::test]
async fn a_subject_is_revoked_by_the_name_that_its_issuer_has_for_it() {
    let named = |node: &Node, _: &TokenSet| json!({"format": "iss_sub", "iss": node.issuers.identifiers(), "sub": REPORTER});
    assert_covers(named, &OF_THE_CREDENTIAL).await;
}

#[tokio::test]
async fn a_subject_is_revoked_by_its_verified_address() {
    assert_covers(|_, _| json!({"format": "email", "email": EMAIL}), &OF_THE_CREDENTIAL).await;
}

#[tokio::test]
async fn a_user_is_revoked_also_as_part_of_a_complex_subject() {
    let complex = |_: &Node, _: &TokenSet| {
        json!({
            "format": "complex",
            "user": {"format": "email", "email": EMAIL},
            "device": {"format": "opaque", "id": "device-1"},
        })
    };
    assert_covers(complex, &OF_THE_CREDENTIAL).await;
}

#[tokio::test]
async fn credential_revocation_covers_its_exchanged_tokens() {
    let token = |node: &Node, _: &TokenSet| json!({"format": "jwt_id", "iss": node.issuers.identifiers(), "jti": "source"});
    assert_covers(token, &OF_THE_CREDENTIAL).await;
}

#[tokio::test]
async fn mid_chain_revocation_covers_descendants_not_ancestors() {
    let third = |_: &Node, world: &TokenSet| json!({"format": "jwt_id", "iss": FABRIC, "jti": world.claim("third", "jti")});
    assert_covers(third, &["third", "leaf", "acted"]).await;
}

#[tokio::test]
async fn actor_revocation_covers_its_delegated_tokens() {
    assert_covers(|_, _| json!({"format": "uri", "uri": ORCHESTRATOR}), &["orchestrator", "acted"]).await;
}

#[tokio::test]
async fn agent_revocation_covers_children_and_their_tokens() {
    let root = |_: &Node, world: &TokenSet| json!({"format": "uri", "uri": world.claim("root", "sub")});
    assert_covers(root, &["root", "child", "child's leaf", "by child"]).await;
}

#[tokio::test]
async fn a_child_that_is_revoked_leaves_its_parent() {
    let child = |_: &Node, world: &TokenSet| json!({"format": "iss_sub", "iss": FABRIC, "sub": world.claim("child", "sub")});
    assert_covers(child, &["child", "child's leaf", "by child"]).await;
}

#[tokio::test]
async fn several_aliases_are_revoked_with_one_signal() {
    let aliases = |_: &Node, world: &TokenSet| {
        json!({"format": "aliases", "identifiers": [
            {"format": "jwt_id", "iss": FABRIC, "jti": world.claim("third", "jti")},
            {"format": "uri", "uri": world.claim("child", "sub")},
        ]})
    };
    assert_covers(aliases, &["third", "leaf", "acted", "child", "child's leaf", "by child"]).await;
}

#[tokio::test]
async fn tainted_key_covers_every_chain_with_a_link_it_signed() {
    let mut node = Node::start().await;
    let world = TokenSet::make(&node).await;
    let path = format!("/v1/sys/keys/{}/taint", world.token("first").kid.as_str().expect("kid"));
    assert_eq!(node.call("POST", &path, &[], "").await.status, 200);
    let expected = ["first", "second", "third", "leaf", "acted", "by child"];
    world.check(&node, &expected).await;
    node.restart().await;
    world.check(&node, &expected).await;
    exchanged(&node, world.token("credential"), TOOL).await;
}

#[tokio::test]
async fn token_issued_after_a_revocation_is_accepted_with_its_chain() {
    let node = Node::start().await;
    let world = TokenSet::make(&node).await;
    revoke(&node, &json!({"format": "uri", "uri": REPORTER})).await;
    let issued_now = || {
        let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 80_000});
        let claims = with(&node.issuers.identifier(REPORTER), &times);
        Token { text: node.issuers.agents.sign(&claims), kind: JWT, claims, kid: Value::Null }
    };
    // Clocks of other issuers have a leeway of seven seconds.
    for _ in 0..=7 {
        assert!(is_refused(&node, &issued_now()).await, "{}", node.now_secs());
        node.advance_secs(1);
    }
    let fresh = issued_now();
    let mut token = exchanged(&node, &fresh, FABRIC).await;
    for _ in 0..2 {
        token = exchanged(&node, &token, FABRIC).await;
    }
    assert!(!fails_verification(&node, &exchanged(&node, &token, TOOL).await).await);
    world.check(&node, &OF_THE_CREDENTIAL).await;
    // A new actor token acts for a new subject token, and for no old one.
    revoke(&node, &json!({"format": "uri", "uri": ORCHESTRATOR})).await;
    node.advance_secs(8);
    let orchestrator = Token::of(&node.own_token("agents", "orchestrator").await);
    assert!(!fails_verification(&node, &acted(&node, &token, &orchestrator).await).await);
    let old = json!({"actor_token": world.token("orchestrator").text, "actor_token_type": OWN});
    let answer = node.exchange(&with(&token.request(TOOL), &old)).await;
    answer.is_refused(400, "invalid_request", BAD_ACTOR);
}

#[tokio::test]
async fn credential_from_before_a_revocation_is_refused_to_its_end() {
    let node = Node::start().await;
    let long = |name: &str| {
        let claims =
            json!({"sub": format!("wimse://trust.example/ns/demo/sa/{name}"), "exp": NOW_SECS + 300_000});
        credential(&node.issuers.changed(&claims), JWT)
    };
    let (old, bystander) = (long("reporter"), long("bystander"));
    node.granted(&old).await;
    revoke(&node, &json!({"format": "uri", "uri": REPORTER})).await;
    node.advance_secs(8);
    let now = node.now_secs();
    let fresh =
        credential(&node.issuers.changed(&json!({"iat": now, "nbf": now, "exp": now + 300_000})), JWT);
    for _ in 0..23 {
        node.exchange(&old).await.is_refused(400, "invalid_request", BAD_SUBJECT);
        for alive in [&bystander, &fresh] {
            node.granted(alive).await;
        }
        node.advance_secs(3600);
    }
    // To the last second of its maximum age.
    node.advance_secs(3600 - 9);
    assert_eq!(node.now_secs(), NOW_SECS + 86_399);
    node.exchange(&old).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    node.granted(&bystander).await;
    node.advance_secs(1);
    for revoked_names in [&old, &bystander] {
        node.exchange(revoked_names).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    node.granted(&fresh).await;
}

#[tokio::test]
async fn revoked_agent_cannot_call_renew_or_register_keys() {
    let node = Node::start().await;
    let as_bearer = async |token: &Token, method: &str, path: &str, body: &Value| {
        let authorization = format!("Bearer {}", token.text);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        node.call(method, path, &headers, body.to_string()).await
    };
    let operator = Token::of(&node.own_token("agents", "operator").await);
    let root = agent(&node, None).await;
    let key = json!({"workload_id": root.claims["sub"], "key": {
        "kty": "OKP", "crv": "X25519", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08",
    }});
    let (keys, renew, register) =
        ("/v1/sys/keys", "/v1/identity/agent/renew", "/v1/identity/agent/encryption-key");
    assert_eq!(as_bearer(&operator, "GET", keys, &json!({})).await.status, 200);
    let renewed = as_bearer(&root, "POST", renew, &json!({})).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    for sub in [&operator.claims["sub"], &root.claims["sub"]] {
        revoke(&node, &json!({"format": "uri", "uri": sub})).await;
    }
    let renewed = Token {
        text: renewed.json()["token"].as_str().expect("token").to_owned(),
        ..agent(&node, None).await
    };
    let text = "the bearer token is not valid";
    as_bearer(&operator, "GET", keys, &json!({})).await.is_refused(401, "access_denied", text);
    for token in [&root, &renewed] {
        as_bearer(token, "POST", renew, &json!({})).await.is_refused(401, "access_denied", text);
        as_bearer(token, "POST", register, &key).await.is_refused(401, "access_denied", text);
    }
    // It can have no children any more, and is listed as revoked.
    let request = json!({
        "agent_name": "child", "platform": "mcp", "capabilities": ["db.read"], "on_behalf_of": root.claims["sub"],
    });
    node.post("/v1/identity/agent", &request).await.is_refused(403, "access_denied", "the parent is revoked");
    let id = root.claims["sub"].as_str().expect("sub").replace(':', "%3A").replace('/', "%2F");
    assert_eq!(node.get(&format!("/v1/identity/agents/{id}")).await.json()["status"], "revoked");
}
