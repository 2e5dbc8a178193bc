//! Revocations by operators, their dry runs, and their list (contract §4).

use std::collections::BTreeSet;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt as _;
use futures::future::join_all;
use serde_json::{Value, json};
use trust_fabric::limits;
use trust_fabric::token::lineage;

use crate::support::{
    BAD_SUBJECT, Channel, FABRIC, JWT, Minted, Node, OWN, REPORTER, Response, Setup, credential, with,
};

const REVOCATIONS: &str = "/v1/revocations";
const DRY_RUN: &str = "/v1/revocations?dry_run=true";
const BLOCKS: &str = "/v1/blocks";
const ALLOWANCE: &str = "/v1/sys/signals/allowance";
const AGENT: &str = "/v1/identity/agent";
const AGENTS: &str = "/v1/identity/agents";
const JSON: (&str, &str) = ("content-type", "application/json");
const GATEWAY: &str = "spiffe://trust.example/gateway";
const SECOND: &str = "spiffe://trust.example/second";

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

/// A node with a high rate limit.
async fn unlimited_node() -> Node {
    let more_config = "[limits]\nrequests_per_second_per_caller = 1000000\n".to_owned();
    Node::start_with(Setup { more_config, ..Setup::default() }).await
}

/// Sends a request as an operator.
async fn send(node: &Node, method: &str, path: &str, body: &Value) -> Response {
    node.call_over(&node.administrator(), method, path, &[JSON], body.to_string()).await
}

#[track_caller]
fn receipt_of(answer: &Response) -> Value {
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.json()
}

async fn revoke(node: &Node, request: &Value) -> Value {
    receipt_of(&send(node, "POST", REVOCATIONS, request).await)
}

fn subject(node: &Node, claims: &Value) -> Value {
    credential(&node.issuers.agents.sign(claims), JWT)
}

/// A token for the node itself: a token for a tool is no credential anyway.
async fn own_token_of(node: &Node, credential: &Value) -> Minted {
    let minted = node.granted(&with(credential, &json!({"audience": FABRIC}))).await;
    assert!(is_accepted(node, &minted.token).await);
    minted
}

/// Whether a token of the node is still accepted as a credential.
async fn is_accepted(node: &Node, token: &str) -> bool {
    let exchanged = node.exchange(&credential(token, OWN)).await;
    if exchanged.status != 200 {
        exchanged.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    exchanged.status == 200
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn next_cursor(answer: &Response) -> Option<String> {
    let link = answer.header("link")?;
    let next = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    Some(next.expect("a link").to_owned())
}

// --- kinds of targets ----------------------------------------------------------------------------

#[tokio::test]
async fn workload_revocation_covers_exactly_its_derived_tokens() {
    let node = Node::start().await;
    let [one, other] = [
        own_token_of(&node, &credential(&node.issuers.reporter(), JWT)).await,
        node.own_token("agents", "orchestrator").await,
    ];
    let again = own_token_of(&node, &credential(&one.token, OWN)).await;
    // A prefix is another subject, and so is a longer name.
    for near in [&REPORTER[..REPORTER.len() - 1], &format!("{REPORTER}2"), "wimse://trust.example/ns/demo"] {
        assert_eq!(revoke(&node, &json!({"subject": near})).await["agents"], 0);
    }
    assert!(is_accepted(&node, &one.token).await);
    let answer = revoke(&node, &json!({"subject": REPORTER, "reason": "laptop lost"})).await;
    let id = lineage::workload(&REPORTER.parse().expect("an id")).to_string();
    assert_eq!(
        with(&answer, &json!({"index": null})),
        json!({
            "id": id, "kind": "subject", "value": REPORTER, "reason": "laptop lost",
            "revoked_at": "2027-01-15T08:00:00.000Z", "agents": 0, "blocked": false,
            "not_covered": ["credentials issued later", "client certificates"],
        })
    );
    assert!(answer["index"].as_u64().is_some_and(|index| index > 0));
    for token in [&one.token, &again.token] {
        assert!(!is_accepted(&node, token).await);
    }
    assert!(is_accepted(&node, &other.token).await);
    // Its credential is refused too, until a new one is issued.
    let answer = node.exchange(&credential(&node.issuers.reporter(), JWT)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    node.advance_secs(60);
    let claims = node.issuers.service_account("demo", "reporter");
    let claims = with(&claims, &json!({"iat": node.now_secs(), "nbf": node.now_secs()}));
    let fresh = own_token_of(&node, &credential(&node.issuers.es256.sign(&claims), JWT)).await;
    assert!(is_accepted(&node, &fresh.token).await);
}

#[tokio::test]
async fn subjects_and_emails_and_tokens_of_an_issuer_are_its_own() {
    let node = Node::start().await;
    let (kubernetes, identifiers) = (node.issuers.kubernetes(), node.issuers.identifiers());
    let alice = json!({"email": "alice@a.example", "email_verified": true});
    let person = with(&node.issuers.identifier(REPORTER), &alice);
    let derived = [
        own_token_of(&node, &credential(&node.issuers.reporter(), JWT)).await,
        own_token_of(&node, &subject(&node, &person)).await,
    ];
    let both = async |node: &Node| {
        [is_accepted(node, &derived[0].token).await, is_accepted(node, &derived[1].token).await]
    };
    // The same words of another issuer name another subject.
    for request in [
        json!({"subject": "system:serviceaccount:demo:reporter", "issuer": identifiers}),
        json!({"email": "alice@a.example", "issuer": kubernetes}),
        json!({"email": "Alice@a.example", "issuer": identifiers}),
        json!({"email": "alice@a.exampl", "issuer": identifiers}),
        json!({"jti": person["jti"], "issuer": kubernetes}),
        json!({"jti": person["jti"]}),
        json!({"subject": REPORTER, "issuer": kubernetes}),
    ] {
        // The agents of a token of ours are not counted.
        let agents = if request.get("issuer").is_some() { json!(0) } else { json!(null) };
        assert_eq!(revoke(&node, &request).await["agents"], agents);
    }
    assert_eq!(both(&node).await, [true, true]);
    // A domain is case-insensitive.
    let answer = revoke(&node, &json!({"email": "alice@A.Example", "issuer": identifiers})).await;
    assert_eq!((&answer["kind"], &answer["issuer"]), (&json!("email"), &json!(identifiers)));
    assert_eq!(both(&node).await, [true, false]);
    let account = json!({"subject": "system:serviceaccount:demo:reporter", "issuer": kubernetes});
    assert_eq!(revoke(&node, &account).await["kind"], "subject");
    assert_eq!(both(&node).await, [false, false]);

    let one = node.issuers.identifier("wimse://trust.example/ns/demo/sa/other");
    let [one, other] = [one.clone(), with(&one, &json!({"jti": "another"}))];
    let derived = [
        own_token_of(&node, &subject(&node, &one)).await,
        own_token_of(&node, &subject(&node, &other)).await,
    ];
    let answer = revoke(&node, &json!({"jti": one["jti"], "issuer": identifiers})).await;
    assert_eq!((&answer["kind"], &answer["value"]), (&json!("token"), &one["jti"]));
    assert!(!is_accepted(&node, &derived[0].token).await && is_accepted(&node, &derived[1].token).await);
}

#[tokio::test]
async fn jti_revocation_covers_descendants_and_no_siblings() {
    let node = Node::start().await;
    let first = own_token_of(&node, &credential(&node.issuers.reporter(), JWT)).await;
    let sibling = own_token_of(&node, &credential(&node.issuers.reporter(), JWT)).await;
    let below = own_token_of(&node, &credential(&first.token, OWN)).await;
    let deeper = own_token_of(&node, &credential(&below.token, OWN)).await;
    revoke(&node, &json!({"jti": below.claims["jti"], "issuer": FABRIC})).await;
    let accepted = async |minted: &Minted| is_accepted(&node, &minted.token).await;
    assert!(accepted(&first).await && !accepted(&below).await && !accepted(&deeper).await);
    revoke(&node, &json!({"jti": first.claims["jti"]})).await;
    assert!(!accepted(&first).await && accepted(&sibling).await);
}

#[tokio::test]
async fn client_revocation_covers_its_exchanged_tokens() {
    let node = secure().await;
    let claims = node.issuers.service_account("demo", "reporter");
    let request = credential(&node.issuers.es256.sign(&claims), JWT);
    let request = with(&request, &json!({"audience": FABRIC}));
    let by = async |name: &str| {
        let channel = node.certified(name);
        let answer = node.call_over(&channel, "POST", "/v1/exchange/token", &[JSON], request.to_string());
        answer.await.minted()
    };
    let (mine, theirs) = (by("gateway").await, by("second").await);
    assert_eq!(mine.claims["client_id"], GATEWAY);
    assert!(is_accepted(&node, &mine.token).await && is_accepted(&node, &theirs.token).await);
    assert_eq!(revoke(&node, &json!({"client": GATEWAY})).await["issuer"], FABRIC);
    assert!(!is_accepted(&node, &mine.token).await && is_accepted(&node, &theirs.token).await);
    // A revoked workload is covered whatever names it.
    revoke(&node, &json!({"subject": SECOND})).await;
    assert!(!is_accepted(&node, &theirs.token).await);
}

#[tokio::test]
async fn key_revocation_taints_ours_and_covers_foreign_signatures() {
    let node = Node::start().await;
    node.advance_secs(600);
    let claims =
        with(&node.issuers.service_account("demo", "reporter"), &json!({"exp": node.now_secs() + 3600}));
    let (one, other) = (node.issuers.es256.sign(&claims), node.issuers.rs256.sign(&claims));
    let derived = [
        own_token_of(&node, &credential(&one, JWT)).await,
        own_token_of(&node, &credential(&other, JWT)).await,
    ];
    let kubernetes = node.issuers.kubernetes();
    let dry = send(&node, "POST", DRY_RUN, &json!({"key": "shared", "issuer": kubernetes})).await.json();
    assert_eq!(
        (&dry["kind"], &dry["counts"]["agents"], &dry["is_revoked"]),
        (&json!("key"), &json!(null), &json!(false)),
        "the agents of a key are not counted"
    );
    assert!(dry["agents"].is_null() && dry["counts"]["tools"] == 0, "{dry}");
    // The same `kid` of another issuer is another key.
    revoke(&node, &json!({"key": "shared", "issuer": node.issuers.identifiers()})).await;
    assert!(is_accepted(&node, &derived[0].token).await);
    revoke(&node, &json!({"key": "shared", "issuer": kubernetes})).await;
    assert!(!is_accepted(&node, &derived[0].token).await && is_accepted(&node, &derived[1].token).await);

    let kid = derived[1].header["kid"].clone();
    let request = json!({"key": kid, "reason": "stolen"});
    let answer = revoke(&node, &request).await;
    assert_eq!(
        (&answer["kind"], &answer["issuer"], &answer["value"], &answer["reason"]),
        (&json!("key"), &json!(FABRIC), &kid, &json!("stolen"))
    );
    assert!(!is_accepted(&node, &derived[1].token).await);
    let keys = node.get("/v1/sys/keys").await.json();
    let key = keys.as_array().expect("keys").iter().find(|key| key["kid"] == kid).expect("listed").clone();
    assert_eq!(key["state"], "tainted");
    // A taint, which has neither value nor reason, keeps the recorded ones.
    let listed = rows(&node, 1000).await;
    let row = listed.iter().find(|row| row["value"] == kid).expect("listed");
    assert_eq!((&row["reason"], &row["kind"]), (&json!("stolen"), &json!("key")));
    assert_eq!(send(&node, "POST", DRY_RUN, &request).await.json()["is_revoked"], true);
    let again = revoke(&node, &request).await;
    assert_eq!(again["id"], answer["id"]);
    for issuer in [None, Some(FABRIC)] {
        let unknown =
            with(&json!({"key": "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"}), &json!({"issuer": issuer}));
        let answer = send(&node, "POST", REVOCATIONS, &unknown).await;
        answer.is_refused(404, "not_found", "there is no signing key with this kid");
    }
}

/// Attack: the key of an issuer is stolen. Tokens that the thief signs after the revocation state a later
/// `iat`.
#[tokio::test]
async fn stolen_issuer_key_is_blocked_until_lifted() {
    let mut node = Node::start().await;
    let request = json!({"key": "shared", "issuer": node.issuers.kubernetes(), "reason": "stolen"});
    let answer = revoke(&node, &request).await;
    assert_eq!((&answer["kind"], &answer["agents"]), (&json!("key"), &json!(null)));
    let forged = |node: &Node| {
        let now = node.now_secs();
        let times = json!({"iat": now, "nbf": now, "exp": now + 3600});
        let claims = with(&node.issuers.service_account("demo", "reporter"), &times);
        credential(&node.issuers.es256.sign(&claims), JWT)
    };
    for secs in [60, 24 * 3600 + 301] {
        node.advance_secs(secs);
        let answer = node.exchange(&forged(&node)).await;
        answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    node.restart().await;
    node.exchange(&forged(&node)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    assert_eq!(send(&node, "POST", DRY_RUN, &request).await.json()["is_revoked"], true);
    let list = send(&node, "GET", BLOCKS, &json!({})).await.json();
    let path = format!("{BLOCKS}/{}", text(&list[0]["id"]));
    assert_eq!(send(&node, "DELETE", &path, &json!({})).await.status, 204);
    own_token_of(&node, &forged(&node)).await;
}

#[tokio::test]
async fn blocks_are_listed_in_pages_and_lifted_by_an_operator() {
    let node = secure().await;
    let issuer = node.issuers.kubernetes();
    for key in ["a", "b", "c"] {
        revoke(&node, &json!({"key": key, "issuer": issuer, "reason": "stolen"})).await;
    }
    // No other kind is blocked.
    revoke(&node, &json!({"subject": "x", "issuer": issuer})).await;
    revoke(&node, &json!({"jti": "x", "issuer": issuer})).await;
    let list = async |limit: usize| {
        let (mut path, mut rows) = (format!("{BLOCKS}?limit={limit}"), Vec::new());
        loop {
            let answer = node.call_over(&node.administrator(), "GET", &path, &[], "").await;
            assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
            rows.extend(answer.json().as_array().expect("a list").iter().cloned());
            match next_cursor(&answer) {
                Some(next) => path = next,
                None => return rows,
            }
        }
    };
    let all = list(1000).await;
    assert_eq!(all.len(), 3);
    assert!(all.is_sorted_by_key(|row| URL_SAFE_NO_PAD.decode(text(&row["id"])).expect("base64url")));
    assert_eq!((list(1).await, list(2).await), (all.clone(), all.clone()));
    let a = all.iter().find(|row| row["value"] == "a").expect("listed");
    let operator = "spiffe://trust.example/operator";
    assert_eq!(
        with(a, &json!({"id": null})),
        json!({
            "kind": "key", "issuer": issuer, "value": "a", "by": operator, "family": "operator",
            "blocked_at": "2027-01-15T08:00:00.000Z", "reason": "stolen",
        })
    );
    let path = format!("{BLOCKS}/{}", text(&a["id"]));
    for (method, path) in [("GET", BLOCKS), ("DELETE", path.as_str())] {
        let answer = node.call_over(&node.certified("gateway"), method, path, &[], "").await;
        answer.is_refused(403, "access_denied", "cluster.admin");
    }
    assert_eq!(list(1000).await.len(), 3);
    let key = [("idempotency-key", "k")];
    for _ in 0..2 {
        let answer = node.call_over(&node.administrator(), "DELETE", &path, &key, "").await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    }
    assert_eq!(list(1000).await.len(), 2);
    for path in [path, format!("{BLOCKS}/a"), format!("{BLOCKS}/%FF"), format!("{BLOCKS}/{}", "A".repeat(43))]
    {
        let answer = send(&node, "DELETE", &path, &json!({})).await;
        answer.is_refused(404, "not_found", "there is no block with this id");
    }
    for query in ["limit=0", "cursor=YQ", "dry_run=true"] {
        send(&node, "GET", &format!("{BLOCKS}?{query}"), &json!({})).await.is_refused(
            400,
            "invalid_request",
            "",
        );
    }
}

// --- agents --------------------------------------------------------------------------------------

/// Issues an agent with the certificate of a caller, or anonymously in development mode.
async fn issue(node: &Node, by: Option<&str>, parent: Option<&str>) -> (String, Minted) {
    let channel = by.map_or_else(|| node.plain(), |name| node.certified(name));
    issue_with(node, &channel, &[], &agent_request(parent)).await
}

/// The largest depth that its parent permits.
fn agent_request(parent: Option<&str>) -> Value {
    let request = json!({"agent_name": "n", "platform": "mcp", "capabilities": ["db.read"]});
    match parent {
        None => with(&request, &json!({"delegation_depth": 3})),
        Some(parent) => with(&request, &json!({"on_behalf_of": parent, "delegation_depth": 0})),
    }
}

async fn issue_with(
    node: &Node,
    channel: &Channel,
    headers: &[(&str, &str)],
    request: &Value,
) -> (String, Minted) {
    let headers = [headers, &[JSON]].concat();
    let answer = node.call_over(channel, "POST", AGENT, &headers, request.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    let exchanged = with(&body, &json!({"access_token": body["token"]})).to_string();
    let answer = Response { status: 200, headers: answer.headers, body: exchanged };
    (text(&body["agent_id"]).to_owned(), answer.minted())
}

/// Result of a dry run: agents and tools of all its pages. The first page has the counts.
async fn dry_run_targets(node: &Node, request: &Value, limit: usize) -> (BTreeSet<String>, Vec<String>) {
    let (mut agents, mut tools) = (Vec::new(), Vec::new());
    let mut path = format!("{DRY_RUN}&limit={limit}");
    let mut counts = None;
    loop {
        let answer = send(node, "POST", &path, request).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let page = answer.json();
        assert_eq!(page["dry_run"], true);
        assert_eq!(page.get("counts").is_some(), counts.is_none(), "of the first page");
        counts = counts.or_else(|| page.get("counts").cloned());
        let ids = |name: &str| {
            page[name].as_array().expect("a list").iter().map(|id| text(id).to_owned()).collect::<Vec<_>>()
        };
        let (of_agents, of_tools) = (ids("agents"), ids("tools"));
        assert!(of_agents.len() + of_tools.len() <= limit);
        agents.extend(of_agents.clone());
        tools.extend(of_tools.clone());
        let Some(next) = next_cursor(&answer) else { break };
        assert_eq!(of_agents.len() + of_tools.len(), limit, "only the last page is not full");
        path = next;
    }
    assert!(agents.is_sorted() && tools.is_sorted());
    let counts = counts.expect("counts");
    assert_eq!(counts, json!({"agents": agents.len(), "tools": tools.len(), "streams": 0}));
    let set: BTreeSet<_> = agents.iter().cloned().collect();
    assert_eq!(set.len(), agents.len(), "each once");
    (set, tools)
}

/// Agents by status, as the list shows them.
async fn agents_with_status(node: &Node, channel: &Channel, status: &str) -> BTreeSet<String> {
    let mut path = format!("{AGENTS}?limit=1000");
    let mut found = BTreeSet::new();
    loop {
        let answer = node.call_over(channel, "GET", &path, &[], "").await;
        let page = answer.json();
        let page = page.as_array().expect("a list").iter();
        found.extend(
            page.filter(|agent| agent["status"] == status).map(|agent| text(&agent["agent_id"]).to_owned()),
        );
        match next_cursor(&answer) {
            Some(next) => path = next,
            None => return found,
        }
    }
}

/// Agent trees of two callers, with branches by a third.
struct AgentTrees {
    node: Node,
    agents: Vec<(String, Minted)>,
}

impl AgentTrees {
    async fn issue() -> Self {
        let node = secure().await;
        let mut agents = vec![issue(&node, Some("gateway"), None).await];
        let root = agents[0].0.clone();
        let child = with(&agent_request(Some(&root)), &json!({"delegation_depth": 2}));
        agents.push(issue_with(&node, &node.certified("gateway"), &[], &child).await);
        let grandchild = with(&agent_request(Some(&agents[1].0)), &json!({"delegation_depth": 1}));
        agents.push(issue_with(&node, &node.certified("gateway"), &[], &grandchild).await);
        // 3: a sibling of 1. 4: another tree of the same caller. 5, 6: of others.
        agents.push(issue(&node, Some("gateway"), Some(&root)).await);
        agents.push(issue(&node, Some("gateway"), None).await);
        agents.push(issue(&node, Some("second"), None).await);
        let of_second = agents[5].0.clone();
        // Two by `chief`, below agents of `gateway` and `second`.
        agents.push(issue(&node, Some("chief"), Some(&of_second)).await);
        let branch = agents[1].0.clone();
        agents.push(issue(&node, Some("chief"), Some(&branch)).await);
        Self { node, agents }
    }

    fn ids(&self, at: &[usize]) -> BTreeSet<String> {
        at.iter().map(|at| self.agents[*at].0.clone()).collect()
    }

    /// The dry run lists exactly these agents on any page size; the revocation covers exactly these and
    /// refuses their tokens.
    async fn assert_covered(&self, request: &Value, expected: &[usize]) {
        let Self { node, agents } = self;
        let chief = node.certified("chief");
        assert_eq!(agents_with_status(node, &chief, "revoked").await, BTreeSet::new());
        for limit in [1, 2, 3, 1000] {
            assert_eq!(
                dry_run_targets(node, request, limit).await.0,
                self.ids(expected),
                "{request} {limit}"
            );
        }
        assert_eq!(
            agents_with_status(node, &chief, "revoked").await,
            BTreeSet::new(),
            "a dry run changes nothing"
        );
        let answer = revoke(node, request).await;
        assert_eq!(answer["agents"], expected.len(), "{request}");
        assert_eq!(agents_with_status(node, &chief, "revoked").await, self.ids(expected), "{request}");
        for (at, (id, minted)) in agents.iter().enumerate() {
            assert_eq!(is_accepted(node, &minted.token).await, !expected.contains(&at), "{at} {id}");
        }
        // A second revocation covers none.
        let dry = send(node, "POST", DRY_RUN, request).await.json();
        assert_eq!((&dry["is_revoked"], &dry["counts"]["agents"]), (&json!(true), &json!(0)));
        assert_eq!(revoke(node, request).await["agents"], 0);
    }
}

#[tokio::test]
async fn agent_revocation_covers_descendants_and_no_sibling() {
    let forest = AgentTrees::issue().await;
    let id = forest.agents[1].0.clone();
    forest.assert_covered(&json!({"agent": id}), &[1, 2, 7]).await;
    let answer = revoke(&forest.node, &json!({"agent": id})).await;
    assert_eq!((&answer["kind"], &answer["value"]), (&json!("agent"), &json!(id)));
}

#[tokio::test]
async fn an_agent_named_as_a_subject_is_the_same_agent() {
    let forest = AgentTrees::issue().await;
    let id = forest.agents[5].0.clone();
    forest.assert_covered(&json!({"subject": id, "issuer": FABRIC}), &[5, 6]).await;
}

#[tokio::test]
async fn workload_revocation_covers_its_agents_and_descendants() {
    let forest = AgentTrees::issue().await;
    forest.assert_covered(&json!({"subject": GATEWAY}), &[0, 1, 2, 3, 4, 7]).await;
    // Agents that it issues afterwards are unaffected; a revoked branch grows no more.
    let node = &forest.node;
    let (fresh, minted) = issue(node, Some("gateway"), None).await;
    assert!(is_accepted(node, &minted.token).await);
    assert!(agents_with_status(node, &node.certified("gateway"), "active").await.contains(&fresh));
    let late = agent_request(Some(&forest.agents[1].0)).to_string();
    for name in ["gateway", "chief"] {
        let answer = node.call_over(&node.certified(name), "POST", AGENT, &[JSON], late.clone()).await;
        answer.is_refused(403, "access_denied", "on_behalf_of: the parent is revoked");
    }
}

#[tokio::test]
async fn dry_run_and_count_omit_agents_gone_before_or_issued_after() {
    let forest = AgentTrees::issue().await;
    let AgentTrees { node, agents } = &forest;
    // 3 is revoked before, and so is the branch of 1 with 2 and 7.
    for at in [3, 1] {
        revoke(node, &json!({"agent": agents[at].0})).await;
    }
    let request = json!({"subject": GATEWAY});
    assert_eq!(dry_run_targets(node, &request, 1).await.0, forest.ids(&[0, 4]));
    let key = [("idempotency-key", "k"), JSON];
    let body = request.to_string();
    let first =
        receipt_of(&node.call_over(&node.administrator(), "POST", REVOCATIONS, &key, body.clone()).await);
    assert_eq!(first["agents"], 2);
    let (fresh, _) = issue(node, Some("gateway"), None).await;
    let again = receipt_of(&node.call_over(&node.administrator(), "POST", REVOCATIONS, &key, body).await);
    assert_eq!(again, first, "a later agent is not covered");
    assert_eq!(dry_run_targets(node, &request, 2).await.0, BTreeSet::from([fresh]));
    assert_eq!(revoke(node, &request).await["agents"], 1);
    assert_eq!(revoke(node, &request).await["agents"], 0);
}

#[tokio::test]
async fn ended_agent_is_neither_listed_nor_counted() {
    let node = Node::start().await;
    let (id, _) = issue(&node, None, None).await;
    let request = json!({"agent": id});
    node.advance_secs(limits::AGENT_LIFETIME_MAX.as_secs());
    assert_eq!(dry_run_targets(&node, &request, 10).await.0, BTreeSet::new());
    assert_eq!(revoke(&node, &request).await["agents"], 0);
}

#[tokio::test]
async fn workload_name_prefix_covers_nothing_of_another() {
    let forest = AgentTrees::issue().await;
    forest.assert_covered(&json!({"subject": "spiffe://trust.example/gate"}), &[]).await;
    forest.assert_covered(&json!({"subject": "spiffe://trust.example/gateway/x"}), &[]).await;
}

/// Attack: a compromised workload is revoked. Its agents renew themselves, and the attacker repeats the
/// requests that issued them under the same `Idempotency-Key`.
#[tokio::test]
async fn renewal_or_retry_does_not_launder_an_agent_of_a_revoked_one() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let key = [("idempotency-key", "k")];
    let (id, first) = issue_with(&node, &gateway, &key, &agent_request(None)).await;
    let bearer = async |method: &str, path: &str, token: &str| {
        let value = format!("Bearer {token}");
        node.call_over(&node.anonymous(), method, path, &[("authorization", &value)], "").await
    };
    node.advance_secs(60);
    let renewed = bearer("POST", "/v1/identity/agent/renew", &first.token).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let renewed = text(&renewed.json()["token"]).to_owned();
    let digest = lineage::workload(&GATEWAY.parse().expect("an id")).to_string();
    let family = lineage::family(FABRIC, text(&first.claims["jti"])).to_string();
    assert_eq!(first.claims["lineage"], json!([family, digest]));
    revoke(&node, &json!({"subject": GATEWAY})).await;
    for token in [&first.token, &renewed] {
        let answer = bearer("POST", "/v1/identity/agent/renew", token).await;
        answer.is_refused(401, "access_denied", "the bearer token is not valid");
        assert!(!is_accepted(&node, token).await);
    }
    let retried =
        node.call_over(&gateway, "POST", AGENT, &[key[0], JSON], agent_request(None).to_string()).await;
    retried.is_refused(403, "access_denied", "the agent is revoked");
    // The agent stays revoked after the revocation expired.
    node.advance_secs(25 * 3600);
    issue(&node, Some("second"), None).await;
    issue(&node, Some("second"), None).await;
    assert_eq!(rows(&node, 1000).await, Vec::<Value>::new());
    let path = format!("{AGENTS}/{}", id.replace(':', "%3A").replace('/', "%2F"));
    let shown = node.call_over(&gateway, "GET", &path, &[], "").await.json();
    assert_eq!((&shown["status"], shown.get("revoked_at")), (&json!("revoked"), None));
}

#[tokio::test]
async fn a_revocation_of_a_workload_stands_after_a_restart() {
    let mut node = secure().await;
    let (id, minted) = issue(&node, Some("gateway"), None).await;
    revoke(&node, &json!({"subject": GATEWAY})).await;
    let before = rows(&node, 1000).await;
    node.restart().await;
    assert_eq!(rows(&node, 1000).await, before);
    assert!(!is_accepted(&node, &minted.token).await);
    assert_eq!(agents_with_status(&node, &node.certified("chief"), "revoked").await, BTreeSet::from([id]));
}

#[tokio::test]
async fn dry_run_lists_affected_agents_in_pages() {
    let node = unlimited_node().await;
    // More than one step of a scan reads.
    let (root, _) = issue(&node, None, None).await;
    let mut children = BTreeSet::from([root.clone()]);
    for at in 0..300 {
        let parent = (at % 3 != 0).then_some(root.as_str());
        let (id, _) = issue(&node, None, parent).await;
        children.extend(parent.map(|_| id));
    }
    let request = json!({"agent": root});
    for limit in [1000, 201, 100, 67] {
        assert_eq!(dry_run_targets(&node, &request, limit).await.0, children, "{limit}");
    }
    assert_eq!(revoke(&node, &request).await["agents"], children.len());
    assert_eq!(agents_with_status(&node, &node.plain(), "revoked").await, children);
}

#[tokio::test]
async fn dry_run_lists_tools_after_agents_and_they_stay_registered() {
    let node = secure().await;
    let (agent, _) = issue(&node, Some("gateway"), None).await;
    let gateway = node.certified("gateway");
    let mut tools = Vec::new();
    for at in 0..5 {
        let entry = json!({"tool_id": format!("t{at}"), "name": "a tool"});
        let answer = node.call_over(&gateway, "POST", "/v1/tools", &[JSON], entry.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        tools.push(format!("t{at}"));
    }
    let request = json!({"subject": GATEWAY});
    for limit in [1, 2, 3, 5, 6, 1000] {
        assert_eq!(
            dry_run_targets(&node, &request, limit).await,
            (BTreeSet::from([agent.clone()]), tools.clone()),
            "{limit}"
        );
    }
    assert_eq!(
        dry_run_targets(&node, &json!({"subject": SECOND}), 1000).await,
        (BTreeSet::new(), Vec::new())
    );
    revoke(&node, &request).await;
    let list = node.call_over(&gateway, "GET", "/v1/tools", &[], "").await.json();
    assert_eq!(list.as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn streams_of_a_workload_are_named_on_the_first_page_and_stay() {
    let more_config = "[transmitter]\nbase_url = \"https://fabric.example:8694\"\n".to_owned();
    let node = Node::start_with(Setup { is_secure: true, more_config, ..Setup::default() }).await;
    let gateway = node.certified("gateway");
    let (agent, _) = issue(&node, Some("gateway"), None).await;
    let (second, _) = issue(&node, Some("gateway"), None).await;
    let mut streams = BTreeSet::new();
    for _ in 0..3 {
        let request = json!({
            "iss": FABRIC, "aud": "https://receiver.example/", "delivery_method": "poll",
            "events_requested": ["https://schemas.openid.net/secevent/caep/event-type/session-revoked"],
        });
        let created =
            node.call_over(&gateway, "POST", "/v1/signals/stream", &[JSON], request.to_string()).await;
        assert_eq!(created.status, 201, "{}", created.body);
        streams.insert(text(&created.json()["stream_id"]).to_owned());
    }
    let request = json!({"subject": GATEWAY});
    let first = send(&node, "POST", &format!("{DRY_RUN}&limit=1"), &request).await;
    let page = first.json();
    assert_eq!(page["counts"], json!({"agents": 2, "tools": 0, "streams": 3}));
    assert_eq!(page["streams"], json!(streams));
    let next = next_cursor(&first).expect("a second page");
    let page = send(&node, "POST", &next, &request).await.json();
    assert!(page.get("streams").is_none() && page.get("counts").is_none(), "{page}");
    assert!([&agent, &second].into_iter().any(|id| page["agents"][0] == **id), "{page}");
    let dry = send(&node, "POST", DRY_RUN, &json!({"subject": SECOND})).await.json();
    assert!(dry["counts"]["streams"] == 0 && dry.get("streams").is_none(), "{dry}");
    revoke(&node, &request).await;
    let list = node.call_over(&gateway, "GET", "/v1/signals/stream", &[], "").await.json();
    assert_eq!(list.as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn second_agent_scan_is_refused_and_revocation_never_waits() {
    let node = unlimited_node().await;
    let (root, _) = issue(&node, None, None).await;
    for _ in 0..600 {
        issue(&node, None, Some(&root)).await;
    }
    let request = json!({"agent": root});
    let (mut answered, mut refused) = (0, 0);
    // The scheduler decides which scans overlap.
    while answered == 0 || refused == 0 {
        for answer in join_all((0..8).map(|_| send(&node, "POST", DRY_RUN, &request))).await {
            if answer.status == 200 {
                assert_eq!(answer.json()["counts"]["agents"], 601);
                answered += 1;
            } else {
                answer.is_refused(503, "server_error", "limit of concurrent agent scans");
                refused += 1;
            }
        }
    }
    let mut uncounted = 0;
    while uncounted == 0 {
        for answer in join_all((0..8).map(|_| send(&node, "POST", REVOCATIONS, &request))).await {
            match receipt_of(&answer)["agents"].as_u64() {
                Some(0) => {}
                Some(agents) => assert_eq!(agents, 601),
                None => uncounted += 1,
            }
        }
    }
}

// --- callers and requests -----------------------------------------------------------------------

#[tokio::test]
async fn only_operators_revoke_and_list_revocations() {
    let node = secure().await;
    let request = json!({"subject": GATEWAY}).to_string();
    for name in ["gateway", "second"] {
        let channel = node.certified(name);
        for (method, path) in
            [("POST", REVOCATIONS), ("POST", DRY_RUN), ("POST", ALLOWANCE), ("GET", REVOCATIONS)]
        {
            let answer = node.call_over(&channel, method, path, &[JSON], request.clone()).await;
            answer.is_refused(403, "access_denied", "cluster.admin");
        }
    }
    let answer = node.call_over(&node.anonymous(), "POST", REVOCATIONS, &[JSON], request.clone()).await;
    answer.is_refused(401, "access_denied", "");
    assert_eq!(rows(&node, 1000).await, Vec::<Value>::new());
    // An operator may use its bearer token too.
    let bearer = format!("Bearer {}", node.own_token("agents", "operator").await.token);
    let headers = [("authorization", bearer.as_str()), JSON];
    let answer = node.call_over(&node.anonymous(), "POST", REVOCATIONS, &headers, request).await;
    receipt_of(&answer);
    let listed = rows(&node, 1000).await;
    assert_eq!(listed[0]["by"], "wimse://trust.example/ns/agents/sa/operator");
}

#[tokio::test]
async fn every_wrong_member_is_named_and_nothing_is_revoked() {
    let node = Node::start().await;
    let issuer = node.issuers.kubernetes();
    let agent = "wimse://trust.example/agent/mcp/x";
    for (request, text) in [
        (json!({}), "exactly one of subject, email, agent, client, jti, key"),
        (json!({"reason": "r"}), "exactly one of"),
        (json!({"issuer": issuer}), "exactly one of"),
        (json!({"subject": REPORTER, "jti": "j"}), "exactly one of"),
        (json!({"agent": agent, "subject": agent}), "exactly one of"),
        (json!({"sub": REPORTER}), "unknown field"),
        (json!({"subject": REPORTER, "dry_run": true}), "unknown field"),
        (json!({"subject": 1}), "subject: must be a string"),
        (json!({"subject": [REPORTER]}), "subject: must be a string"),
        (json!({"email": {}}), "email: must be a string"),
        (json!({"agent": true}), "agent: must be a string"),
        (json!({"client": 1}), "client: must be a string"),
        (json!({"jti": 1}), "jti: must be a string"),
        (json!({"key": 1}), "key: must be a string"),
        (json!({"jti": "j", "issuer": 1}), "issuer: must be a string"),
        (json!({"jti": "j", "reason": 1}), "reason: must be a string"),
        (json!({"subject": "reporter"}), "subject: must be a workload identifier"),
        (json!({"subject": ""}), "subject: must be a workload identifier"),
        (json!({"subject": format!("{REPORTER}/")}), "subject: must be a workload identifier"),
        (json!({"subject": "", "issuer": issuer}), "subject: must be 1 to 2048 bytes"),
        (json!({"email": "a@b.example"}), "issuer: is required with email"),
        (json!({"email": "a", "issuer": issuer}), "email: must be an email address"),
        (
            json!({"email": format!("{}@b.example", "a".repeat(311)), "issuer": issuer}),
            "email: must be 1 to 320",
        ),
        (json!({"agent": agent, "issuer": FABRIC}), "issuer: must not be given with agent"),
        (json!({"client": agent}), "client: names an agent"),
        (json!({"jti": ""}), "jti: must be 1 to 256 bytes"),
        (json!({"jti": "j".repeat(257)}), "jti: must be 1 to 256 bytes"),
        (json!({"jti": "a\u{0}"}), "jti: must be 1 to 256 bytes without control characters"),
        (json!({"jti": "j", "issuer": ""}), "issuer: must be 1 to 2048 bytes"),
        (json!({"key": "k".repeat(257), "issuer": issuer}), "key: must be 1 to 256 bytes"),
        (json!({"jti": "j", "reason": "r".repeat(257)}), "reason: must be at most 256 printable ASCII"),
        (json!({"jti": "j", "reason": "caf\u{e9}"}), "reason: must be at most 256 printable ASCII"),
    ] {
        for path in [REVOCATIONS, DRY_RUN] {
            send(&node, "POST", path, &request).await.is_refused(400, "invalid_request", text);
        }
    }
    for request in [
        json!({"agent": agent}),
        json!({"agent": "planner"}),
        json!({"agent": ""}),
        json!({"agent": REPORTER}),
        json!({"agent": "wimse://other.example/agent/mcp/x"}),
    ] {
        for path in [REVOCATIONS, DRY_RUN] {
            let answer = send(&node, "POST", path, &request).await;
            answer.is_refused(404, "not_found", "there is no agent with this agent_id");
        }
    }
    for (body, text) in [
        ("", "body is not acceptable JSON"),
        ("1", "body: must be an object"),
        ("[]", "body: must be an object"),
        // serde could fill a struct from it.
        (r#"["wimse://trust.example/ns/demo/sa/reporter"]"#, "body: must be an object"),
        (r#"{"jti": "a", "jti": "b"}"#, "duplicate"),
        (r#"{"jti": "a"} {}"#, "trailing"),
    ] {
        node.call("POST", REVOCATIONS, &[], body).await.is_refused(400, "invalid_request", text);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", REVOCATIONS, &form, "jti=a").await.is_refused(415, "invalid_request", "");
    for (query, text) in [
        ("dry_run=yes", "dry_run: must be true or false"),
        ("dry_run=", "dry_run: must be true or false"),
        ("dry_run=true&dry_run=false", "dry_run: must not be given twice"),
        ("dryrun=true", "the query parameters are dry_run, limit, cursor"),
        // A request for a page is meant as a dry run.
        ("limit=5", "limit: is for a dry run only"),
        ("dry_run=false&cursor=YQ", "cursor: is for a dry run only"),
        ("dry_run=true&limit=0", "limit: must be a whole number from 1 to 1000"),
        ("dry_run=true&limit=1001", "limit: must be a whole number from 1 to 1000"),
        ("dry_run=true&cursor=!", "cursor: must be from a Link header"),
        ("dry_run=true&cursor=YQ", "cursor: must be from a Link header"),
    ] {
        let path = format!("{REVOCATIONS}?{query}");
        let answer = send(&node, "POST", &path, &json!({"subject": REPORTER})).await;
        answer.is_refused(400, "invalid_request", text);
    }
    for query in ["limit=0", "cursor=YQ", "dry_run=true"] {
        let answer = node.get(&format!("{REVOCATIONS}?{query}")).await;
        answer.is_refused(400, "invalid_request", "");
    }
    assert_eq!(rows(&node, 1000).await, Vec::<Value>::new());
}

#[tokio::test]
async fn retry_with_the_same_key_is_the_same_revocation() {
    let mut node = Node::start().await;
    let (id, _) = issue(&node, None, None).await;
    let key = [("idempotency-key", "k"), JSON];
    let body = json!({"agent": id, "reason": "r"}).to_string();
    let first = receipt_of(&node.call("POST", REVOCATIONS, &key, body.clone()).await);
    node.restart().await;
    node.advance_secs(10);
    assert_eq!(receipt_of(&node.call("POST", REVOCATIONS, &key, body.clone()).await), first);
    let other = json!({"agent": id}).to_string();
    let answer = node.call("POST", REVOCATIONS, &key, other.clone()).await;
    answer.is_refused(422, "invalid_request", "Idempotency-Key");
    let answer = node.call("POST", REVOCATIONS, &[("idempotency-key", "a b"), JSON], other.clone()).await;
    answer.is_refused(400, "invalid_request", "Idempotency-Key");
    // Without a key it is a new revocation of the same subject, from its own entry on.
    let again = receipt_of(&node.call("POST", REVOCATIONS, &[JSON], other).await);
    assert_eq!((&again["id"], again.get("reason")), (&first["id"], None));
    assert!(again["index"].as_u64() > first["index"].as_u64());
    assert_eq!(rows(&node, 1000).await.len(), 1);
}

/// The idempotency key is retained for longer than the revocation and the revoked agent.
#[tokio::test]
async fn late_retry_is_answered_after_revocation_and_agent_expired() {
    let node = Node::start().await;
    let (id, _) = issue(&node, None, None).await;
    let key = [("idempotency-key", "k"), JSON];
    let body = json!({"agent": id, "reason": "r"}).to_string();
    let first = receipt_of(&node.call("POST", REVOCATIONS, &key, body.clone()).await);
    node.advance_secs(25 * 3600 + 60);
    issue(&node, None, None).await;
    assert_eq!(rows(&node, 1000).await, Vec::<Value>::new());
    let unkept = send(&node, "POST", DRY_RUN, &json!({"agent": id})).await;
    unkept.is_refused(404, "not_found", "there is no agent");
    let again = receipt_of(&node.call("POST", REVOCATIONS, &key, body).await);
    let name = json!({"agents": null});
    assert_eq!(with(&again, &name), with(&first, &name));
}

/// Every row of the list, in pages of `limit`.
async fn rows(node: &Node, limit: usize) -> Vec<Value> {
    let mut path = format!("{REVOCATIONS}?limit={limit}");
    let mut rows = Vec::new();
    loop {
        let answer = node.call_over(&node.administrator(), "GET", &path, &[], "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        rows.extend(answer.json().as_array().expect("a list").iter().cloned());
        match next_cursor(&answer) {
            Some(next) => path = next,
            None => return rows,
        }
    }
}

#[tokio::test]
async fn list_has_each_revocation_once_in_order_with_actor_and_reason() {
    let node = secure().await;
    let (agent, _) = issue(&node, Some("gateway"), None).await;
    let issuer = node.issuers.kubernetes();
    let mut expected = BTreeSet::new();
    for (request, kind, value) in [
        (json!({"agent": agent, "reason": "r"}), "agent", agent.as_str()),
        (json!({"subject": REPORTER}), "subject", REPORTER),
        (json!({"subject": "x", "issuer": issuer}), "subject", "x"),
        (json!({"email": "a@b.example", "issuer": issuer}), "email", "a@b.example"),
        (json!({"client": "c"}), "client", "c"),
        (json!({"jti": "j"}), "token", "j"),
        (json!({"key": "k", "issuer": issuer}), "key", "k"),
    ] {
        let answer = revoke(&node, &request).await;
        assert_eq!((text(&answer["kind"]), text(&answer["value"])), (kind, value));
        let row = with(
            &answer,
            &json!({
                "by": "spiffe://trust.example/operator", "expires_at": "2027-01-16T08:05:00.000Z", "agents": null,
                "blocked": null, "not_covered": null,
            }),
        );
        expected.insert(row.to_string());
    }
    let all = rows(&node, 1000).await;
    assert_eq!(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), expected);
    for limit in [1, 2, 3, 6, 7] {
        assert_eq!(rows(&node, limit).await, all, "{limit}");
    }
    // A tainted key is known only by its digest.
    let kid = text(&node.own_token("agents", "orchestrator").await.header["kid"]).to_owned();
    assert_eq!(send(&node, "POST", &format!("/v1/sys/keys/{kid}/taint"), &json!({})).await.status, 200);
    let id = lineage::signing_key(FABRIC, &kid).to_string();
    let tainted = rows(&node, 1000).await.into_iter().find(|row| row["id"] == *id).expect("listed");
    assert_eq!(tainted.get("kind"), None);
    // Revocations expire when nothing that they cover can be alive.
    node.advance_secs(24 * 3600 + 301);
    revoke(&node, &json!({"jti": "another"})).await;
    assert_eq!(rows(&node, 1000).await.len(), 1);
}

#[tokio::test]
async fn an_issuer_of_signals_is_allowed_more_by_an_operator() {
    let node = secure().await;
    let allowed = json!({"issuer": "https://idp.example", "more": 50_000});
    let answer = send(&node, "POST", ALLOWANCE, &allowed).await;
    assert_eq!((answer.status, answer.json()), (200, allowed));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    for (request, text) in [
        (json!({}), "issuer"),
        (json!({"issuer": "https://idp.example"}), "more"),
        (json!({"more": 1}), "issuer"),
        (json!({"issuer": 1, "more": 1}), "issuer: must be a string"),
        (json!({"issuer": "", "more": 0}), "issuer: must be 1 to 2048 bytes"),
        (json!({"issuer": "x".repeat(2049), "more": 0}), "issuer: must be 1 to 2048 bytes"),
        (json!({"issuer": "a\n", "more": 0}), "issuer: must be 1 to 2048 bytes"),
        // The allowance of a misspelled issuer had no effect, and a row for ever.
        (
            json!({"issuer": "https://idp.exmaple", "more": 1}),
            "issuer: must be that of a [[signals]] section",
        ),
        (json!({"issuer": "x", "more": -1}), "more: must be a whole number from 0 to 4294967295"),
        (
            json!({"issuer": "x", "more": 4_294_967_296_u64}),
            "more: must be a whole number from 0 to 4294967295",
        ),
        (json!({"issuer": "x", "more": "1"}), "more: must be a whole number from 0 to 4294967295"),
        (json!({"issuer": "x", "more": 1.5}), "more: must be a whole number from 0 to 4294967295"),
        (json!({"issuer": "x", "more": 1, "less": 1}), "unknown field"),
        (json!(["https://idp.example", 1]), "body: must be an object"),
    ] {
        send(&node, "POST", ALLOWANCE, &request).await.is_refused(400, "invalid_request", text);
    }
}

// --- scale ---------------------------------------------------------------------------------------

/// One log entry covers all descendants of an agent: the dry run and the revocation agree.
#[tokio::test]
#[ignore = "a hundred thousand agents take minutes: `make proof`"]
async fn a_hundred_thousand_agents_are_revoked_by_one_entry() {
    const AGENTS_UNDER_IT: usize = 100_000;
    let node = unlimited_node().await;
    let (root, _) = issue(&node, None, None).await;
    let (apart, minted) = issue(&node, None, None).await;
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    let (url, body) = (format!("{}{AGENT}", node.base()), agent_request(Some(&root)).to_string());
    let began = seconds();
    let issuing = futures::stream::iter(0..AGENTS_UNDER_IT).map(|_| {
        let request = http.post(&url).header(JSON.0, JSON.1).body(body.clone());
        async { request.send().await.expect("an answer").status().as_u16() }
    });
    let refused =
        issuing.buffer_unordered(64).filter(|status| std::future::ready(*status != 200)).count().await;
    assert_eq!(refused, 0);
    println!("{AGENTS_UNDER_IT} agents issued in {:.1} s", began());

    let request = json!({"agent": root});
    let began = seconds();
    let first = send(&node, "POST", DRY_RUN, &request).await.json();
    println!("dry run, first page with all counts: {:.3} s", began());
    assert_eq!(first["counts"]["agents"], AGENTS_UNDER_IT + 1);
    let began = seconds();
    let (dry_run_targets, _) = dry_run_targets(&node, &request, 1000).await;
    println!("dry run, all pages of 1000: {:.3} s", began());

    let before = index(&node).await;
    let began = seconds();
    let answer = revoke(&node, &request).await;
    println!("revoked and counted: {:.3} s", began());
    assert_eq!(answer["agents"], AGENTS_UNDER_IT + 1);
    assert_eq!(index(&node).await - before, 1, "one entry");
    assert_eq!(agents_with_status(&node, &node.plain(), "revoked").await, dry_run_targets);
    assert_eq!(agents_with_status(&node, &node.plain(), "active").await, BTreeSet::from([apart]));
    assert!(is_accepted(&node, &minted.token).await);
}

/// The applied log index.
async fn index(node: &Node) -> u64 {
    node.get("/v1/identity/jwks").await.header("svc-index").expect("Svc-Index").parse().expect("an index")
}

/// Seconds since the call.
#[expect(clippy::disallowed_methods, reason = "measures the duration for the report")]
fn seconds() -> impl Fn() -> f64 {
    let began = Instant::now();
    move || began.elapsed().as_secs_f64()
}
