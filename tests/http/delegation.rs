//! Delegation: permitted actors, the narrowed result, and its limits (contract §3, Delegation).

use serde_json::{Value, json};

use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, FABRIC, Issuers, JWT, NOW_SECS, Node, ORCHESTRATOR, OWN, REPORTER, SVID, TOOL,
    credential, with,
};

fn acted(request: &Value, actor: &str) -> Value {
    with(request, &json!({"actor_token": actor, "actor_token_type": OWN}))
}

#[tokio::test]
async fn an_actor_spends_a_hop_and_stands_in_act_and_lineage() {
    let node = Node::start().await;
    let actor = node.own_token("agents", "orchestrator").await;
    assert_eq!((&actor.claims["delegation_depth"], &actor.claims["sub"]), (&json!(2), &json!(ORCHESTRATOR)));
    let request = credential(&node.issuers.reporter(), JWT);
    for kind in [json!(OWN), json!(JWT), Value::Null] {
        let request = with(&request, &json!({"actor_token": actor.token, "actor_token_type": kind}));
        let minted = node.granted(&request).await;
        assert_eq!(minted.claims["sub"], REPORTER);
        assert_eq!(minted.claims["act"], json!({"iss": FABRIC, "sub": ORCHESTRATOR}), "{kind}");
        assert_eq!(minted.claims["delegation_depth"], 1);
        // The actor has only db.read.
        assert_eq!(minted.claims["scope"], "db.read");
        let lineage = minted.claims["lineage"].as_array().expect("lineage");
        let of_actor = actor.claims["lineage"].as_array().expect("lineage");
        assert!(of_actor.iter().all(|digest| lineage.contains(digest)));
    }
}

#[tokio::test]
async fn the_chain_ends_with_the_first_of_its_credentials() {
    let node = Node::start().await;
    let actor = node.own_token("agents", "orchestrator").await;
    let short = node.issuers.changed(&json!({"exp": NOW_SECS + 50}));
    assert_eq!(
        node.granted(&acted(&credential(&short, JWT), &actor.token)).await.claims["root_exp"],
        NOW_SECS + 50
    );
    let long = node.issuers.changed(&json!({"exp": NOW_SECS + 80_000}));
    let minted = node.granted(&acted(&credential(&long, JWT), &actor.token)).await;
    assert_eq!(minted.claims["root_exp"], actor.claims["root_exp"]);
    // Capped by the maximum age of the issuer.
    let longer = node.issuers.changed(&json!({"exp": NOW_SECS + 200_000}));
    assert_eq!(node.granted(&credential(&longer, JWT)).await.claims["root_exp"], NOW_SECS + 86_400);
}

#[tokio::test]
async fn second_actor_nests_the_first_and_smaller_depth_applies() {
    let node = Node::start().await;
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": FABRIC}));
    let first = node.granted(&acted(&request, &node.own_token("agents", "a0").await.token)).await;
    let request = with(&credential(&first.token, OWN), &json!({"audience": TOOL}));
    let second = node.granted(&acted(&request, &node.own_token("agents", "a1").await.token)).await;
    let name = |n: &str| format!("wimse://trust.example/ns/agents/sa/{n}");
    assert_eq!(
        second.claims["act"],
        json!({"iss": FABRIC, "sub": name("a1"), "act": {"iss": FABRIC, "sub": name("a0")}})
    );
    assert_eq!(second.claims["delegation_depth"], 1);
    let stated = node.issuers.changed(&json!({"delegation_depth": 0}));
    let minted =
        node.granted(&acted(&credential(&stated, JWT), &node.own_token("agents", "a2").await.token)).await;
    assert_eq!(minted.claims["delegation_depth"], 0);
}

#[tokio::test]
async fn actor_without_depth_is_refused_with_a_reason() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    let none = node.own_token("agents", "spent").await;
    assert_eq!(none.claims["delegation_depth"], 0);
    let text = "delegation depth exhausted: the agent was issued with depth 0";
    node.exchange(&acted(&request, &none.token)).await.is_refused(403, "access_denied", text);
    // Two hops: 2, 1, 0, then refused.
    let mut agent = node.own_token("agents", "a0").await;
    for next in ["a1", "a2"] {
        let claims = node.issuers.es256.sign(&node.issuers.service_account("agents", next));
        let request = with(&credential(&claims, JWT), &json!({"audience": FABRIC}));
        agent = node.granted(&acted(&request, &agent.token)).await;
    }
    assert_eq!(agent.claims["delegation_depth"], 0);
    node.exchange(&acted(&request, &agent.token)).await.is_refused(403, "access_denied", text);
    // A foreign credential states no depth.
    let foreign = node.issuers.orchestrator();
    let request = with(&request, &json!({"actor_token": foreign, "actor_token_type": JWT}));
    node.exchange(&request).await.is_refused(403, "access_denied", text);
}

#[tokio::test]
async fn shipped_policy_refuses_foreign_actor_with_a_depth() {
    let node = Node::start().await;
    let claims = with(&node.issuers.identifier(ORCHESTRATOR), &json!({"delegation_depth": 5}));
    let actor = node.issuers.agents.sign(&claims);
    let request = with(
        &credential(&node.issuers.reporter(), JWT),
        &json!({"actor_token": actor, "actor_token_type": JWT}),
    );
    node.exchange(&request).await.is_refused(403, "access_denied", "not a token of a fabric");
}

#[tokio::test]
async fn actor_cannot_repeat_in_a_chain() {
    let node = Node::start().await;
    let actor = node.own_token("agents", "orchestrator").await.token;
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": FABRIC}));
    let first = node.granted(&acted(&request, &actor)).await.token;
    let text = "already part of the delegation chain";
    // Again on its own result; for itself; and where a foreign credential names it in `act`.
    node.exchange(&acted(&credential(&first, OWN), &actor)).await.is_refused(403, "access_denied", text);
    node.exchange(&acted(&credential(&actor, OWN), &actor)).await.is_refused(403, "access_denied", text);
    let itself = credential(&node.issuers.orchestrator(), JWT);
    node.exchange(&acted(&itself, &actor)).await.is_refused(403, "access_denied", text);
    let named = node.issuers.changed(&json!({"act": {"sub": "x", "act": {"sub": ORCHESTRATOR}}}));
    node.exchange(&acted(&credential(&named, JWT), &actor)).await.is_refused(403, "access_denied", text);
    // The same workload with the other scheme.
    let spiffe = ORCHESTRATOR.replace("wimse://", "spiffe://");
    let named = node.issuers.changed(&json!({"act": {"sub": spiffe}}));
    node.exchange(&acted(&credential(&named, JWT), &actor)).await.is_refused(403, "access_denied", text);
    let subject = node.issuers.changed(&json!({"act": {"sub": REPORTER}}));
    node.exchange(&acted(&credential(&subject, JWT), &actor)).await.is_refused(403, "access_denied", text);
    // a0 acts for the orchestrator, whose token then cannot act for a subject that a0 already acts for.
    let a0 = node.own_token("agents", "a0").await.token;
    let mine = with(&credential(&node.issuers.orchestrator(), JWT), &json!({"audience": FABRIC}));
    let for_me = node.granted(&acted(&mine, &a0)).await.token;
    let by_a0 = node.granted(&acted(&request, &a0)).await.token;
    node.exchange(&acted(&credential(&by_a0, OWN), &for_me)).await.is_refused(403, "access_denied", text);
    node.granted(&acted(&with(&request, &json!({"audience": TOOL})), &for_me)).await;
}

#[tokio::test]
async fn an_act_that_loops_makes_the_credential_unacceptable() {
    let node = Node::start().await;
    let looped = json!({"act": {"sub": "a", "act": {"sub": "b", "act": {"sub": "a"}}}});
    let answer = node.exchange(&credential(&node.issuers.changed(&looped), JWT)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn a_chain_has_at_most_ten_actors() {
    let node = Node::start().await;
    let nested = |actors: usize| {
        (0..actors).fold(Value::Null, |inner, at| {
            let mut act = json!({"sub": format!("wimse://trust.example/ns/agents/sa/b{at}")});
            if !inner.is_null() {
                act["act"] = inner;
            }
            act
        })
    };
    let actor = node.own_token("agents", "a0").await.token;
    let subject = |actors| credential(&node.issuers.changed(&json!({"act": nested(actors)})), JWT);
    node.granted(&acted(&subject(9), &actor)).await;
    node.exchange(&acted(&subject(10), &actor)).await.is_refused(403, "access_denied", "too many actors");
    node.exchange(&subject(11)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn a_token_derives_from_at_most_32_facts() {
    let node = Node::start().await;
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": FABRIC}));
    let mut subject = node.granted(&request).await;
    for at in 0..10 {
        let actor = node.own_token("agents", &format!("a{at}")).await.token;
        let request = with(&credential(&subject.token, OWN), &json!({"audience": FABRIC}));
        let answer = node.exchange(&acted(&request, &actor)).await;
        if answer.status == 403 {
            answer.is_refused(403, "access_denied", "derive from too many facts");
            assert!(subject.claims["lineage"].as_array().expect("lineage").len() > 20);
            return;
        }
        subject = answer.minted();
        assert!(subject.claims["lineage"].as_array().expect("lineage").len() <= 32);
    }
    panic!("the lineage never ended");
}

#[tokio::test]
async fn may_act_names_the_only_actor() {
    let node = Node::start().await;
    let actor = node.own_token("agents", "orchestrator").await.token;
    for (may_act, allowed) in [
        (json!({"sub": ORCHESTRATOR}), true),
        (json!({"sub": ORCHESTRATOR, "iss": FABRIC}), true),
        (json!({"sub": ORCHESTRATOR, "iss": node.issuers.kubernetes()}), false),
        (json!({"sub": "wimse://trust.example/ns/agents/sa/orchestra"}), false),
        (json!({"sub": format!("{ORCHESTRATOR}/x")}), false),
        (json!({"sub": "wimse://trust.example/ns/agents/sa/a0"}), false),
    ] {
        let token = node.issuers.changed(&json!({"may_act": may_act}));
        let answer = node.exchange(&acted(&credential(&token, JWT), &actor)).await;
        if allowed {
            answer.minted();
        } else {
            answer.is_refused(403, "access_denied", "may_act");
        }
        node.granted(&credential(&token, JWT)).await;
    }
}

#[tokio::test]
async fn may_act_is_kept_by_every_exchange() {
    let node = Node::start().await;
    let may_act = json!({"sub": ORCHESTRATOR, "iss": FABRIC});
    let named = node.own_token("agents", "orchestrator").await.token;
    let other = node.own_token("agents", "a0").await.token;
    let to_us = |token: &str, kind: &str| with(&credential(token, kind), &json!({"audience": FABRIC}));

    let first = to_us(&node.issuers.changed(&json!({"may_act": may_act})), JWT);
    let first = node.granted(&first).await;
    assert_eq!(first.claims["may_act"], may_act);
    let second = to_us(&first.token, OWN);
    node.exchange(&acted(&second, &other)).await.is_refused(403, "access_denied", "may_act");
    let second = node.granted(&acted(&second, &named)).await;
    assert_eq!(second.claims["may_act"], may_act);
    let third = acted(&to_us(&second.token, OWN), &other);
    node.exchange(&third).await.is_refused(403, "access_denied", "may_act");

    let without = node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    assert_eq!(without.claims.get("may_act"), None);
}

#[tokio::test]
async fn nothing_is_granted_that_subject_or_actor_lacks() {
    let node = Node::start().await;
    let actor = node.own_token("agents", "orchestrator").await.token;
    let request = credential(&node.issuers.reporter(), JWT);
    let lacking = with(&acted(&request, &actor), &json!({"scope": "db.write"}));
    node.exchange(&lacking).await.is_refused(403, "access_denied", "nothing of the requested scope");
    let narrow = with(&request, &json!({"audience": FABRIC, "scope": "db.read"}));
    let subject = node.granted(&narrow).await.token;
    let wider = with(&credential(&subject, OWN), &json!({"scope": "db.write"}));
    node.exchange(&wider).await.is_refused(403, "access_denied", "nothing of the requested scope");
    let both = with(&credential(&subject, OWN), &json!({"scope": "db.read db.write offline"}));
    assert_eq!(node.granted(&both).await.claims["scope"], "db.read");
    let none = node.issuers.changed(&json!({"capabilities": [], "scope": "offline"}));
    assert_eq!(node.granted(&credential(&none, JWT)).await.claims["scope"], "offline");
    let nothing = node.issuers.changed(&json!({"scope": ""}));
    node.exchange(&credential(&nothing, JWT)).await.is_refused(403, "access_denied", "nothing");
}

#[tokio::test]
async fn blast_radii_that_do_not_compare_are_refused() {
    let node = Node::start().await;
    for radius in ["namespace:other", "namespace:demo2", "workspace:other/x", "galaxy", "galaxy:m31"] {
        let token = node.issuers.changed(&json!({"blast_radius": radius}));
        node.exchange(&credential(&token, JWT)).await.is_refused(403, "access_denied", "blast radius");
    }
}

#[tokio::test]
async fn invalid_actor_tokens_are_refused_with_one_text() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    let own = node.own_token("agents", "orchestrator").await;
    let tool = node.granted(&request).await;
    let svid = node.issuers.file_svids.sign(&Issuers::svid("files.example"));
    let parts: Vec<&str> = own.token.split('.').collect();
    let zero = format!("{}.{}.{}", parts[0], parts[1], crate::support::encode([0; 64]));
    for (actor, kind) in [
        ("x.y.z", OWN),
        ("x", JWT),
        (zero.as_str(), OWN),
        (tool.token.as_str(), OWN),
        (svid.as_str(), OWN),
        (own.token.as_str(), SVID),
        (node.issuers.orchestrator().as_str(), OWN),
    ] {
        let request = with(&request, &json!({"actor_token": actor, "actor_token_type": kind}));
        let answer = node.exchange(&request).await;
        let expected = json!({"error": "invalid_request", "error_description": BAD_ACTOR});
        assert_eq!((answer.status, with(&answer.json(), &json!({"request_id": null}))), (400, expected));
    }
    node.advance_secs(305);
    node.exchange(&acted(&request, &own.token)).await.is_refused(400, "invalid_request", BAD_ACTOR);
}
