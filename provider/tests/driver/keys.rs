//! `svc_encryption_key` against a node: a write-only token, equal keys, private keys, and the end of its agent.

use serde_json::{Value as Json, json};
use trust_fabric_client::NodeClient;
use trust_fabric_provider::value::Value;

use super::agents::{agent, token_of};
use super::fabric::Fabric;
use super::plugin::Plugin;
use super::workspace::{Workspace, configure, text, with};

const TYPE: &str = "svc_encryption_key";
const KEYS: [&str; 4] = ["v1", "identity", "agent", "encryption-key"];
/// The public key of RFC 8037 §A.6, and its thumbprint.
const X: &str = "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08";
const KID: &str = "giQqigT_IKcuzHl0FVJ3k5ts3_TWNAxvsC08UZsfcM8";

/// A valid key for each letter of `number`.
pub fn key(number: u8) -> String {
    let x = format!("{}{}", char::from(b'a' + number), &X[1..]);
    json!({ "kty": "OKP", "crv": "X25519", "x": x }).to_string()
}

/// An agent and its token.
async fn issued(client: &NodeClient) -> (String, String) {
    let issued = client.post(&["v1", "identity", "agent"], &agent()).await.expect("issued");
    let agent_id = issued["agent_id"].as_str().expect("text").to_owned();
    let token = token_of(client, &agent_id).await;
    (agent_id, token)
}

async fn start() -> (Fabric, Plugin, NodeClient) {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let client = fabric.client("terraform");
    (fabric, plugin, client)
}

async fn kids(client: &NodeClient, agent_id: &str) -> Vec<Json> {
    let set = client.get_with(&KEYS, &[("workload_id", agent_id)]).await.expect("a set");
    set["keys"].as_array().expect("keys").iter().map(|key| key["kid"].clone()).collect()
}

#[tokio::test]
async fn key_is_registered_with_a_token_and_deleted_without() {
    let (_fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    let public_key = format!(r#"{{"kty":"OKP","crv":"X25519","x":"{X}"}}"#);
    let config = json!({ "workload_id": agent_id, "public_key": public_key, "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("registered");
    assert_eq!((workspace.value("kid"), workspace.value("status")), (json!(KID), json!("active")));
    assert_eq!(workspace.value("id"), format!("{agent_id}#{KID}"));
    assert_eq!(workspace.value("agent_token"), Json::Null);
    assert!(workspace.value("registered_at").is_string());
    workspace.store().await;

    // Neither another order of the members, nor another token, nor its absence is a difference.
    let other_order = format!(r#"{{ "x": "{X}", "use": "enc", "kty": "OKP", "crv": "X25519" }}"#);
    for changes in [
        json!({}),
        json!({ "public_key": other_order }),
        json!({ "agent_token": token_of(&client, &agent_id).await }),
        json!({ "agent_token": Json::Null }),
        json!({ "workload_id": Json::Null }),
    ] {
        let plan = workspace.plan(Some(&with(&config, &changes))).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new(), "{changes}");
    }
    let timeouts = with(&config, &json!({ "timeouts": { "read": "10s" } }));
    let plan = workspace.apply(Some(&timeouts)).await.expect("changed");
    assert_eq!((plan.replaces, plan.changes), (vec![], vec!["timeouts"]));

    let id = format!("{agent_id}#{KID}");
    let mut imported = Workspace::new(workspace.plugin, TYPE);
    imported.import(&id).await.expect("imported");
    let plan = imported.plan(Some(&config)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
    for (id, said) in [("x", "must be <workload_id>#<kid>"), ("wimse://d/p#", "must be <workload_id>#<kid>")]
    {
        let refused = imported.import(id).await.expect_err("refused");
        assert!(text(&refused).contains(said), "{refused:?}");
    }
    imported.import(&format!("{agent_id}#none")).await.expect("read");
    assert!(imported.state.is_none());

    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("taken over");
    assert!(text(&workspace.messages).contains("It was registered before"), "{:?}", workspace.messages);
    let plan =
        workspace.apply(Some(&with(&config, &json!({ "public_key": key(1) })))).await.expect("replaced");
    assert_eq!(plan.replaces, ["public_key"]);
    assert_eq!(kids(&client, &agent_id).await, [workspace.value("kid")]);
    workspace.apply(None).await.expect("deleted");
    assert_eq!(kids(&client, &agent_id).await, Vec::<Json>::new());
}

#[tokio::test]
async fn key_of_another_algorithm_or_deleted_key_is_drift() {
    let (fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    let config = json!({ "public_key": key(1), "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("registered");
    assert_eq!(workspace.value("workload_id"), agent_id, "that of the token");

    let mut jwk: Json = serde_json::from_str(&key(1)).expect("JSON");
    jwk["alg"] = json!("ECDH-ES");
    let body = json!({ "workload_id": agent_id, "key": jwk });
    fabric.bearer(&token).post(&KEYS, &body).await.expect("registered with another alg");
    let plan = workspace.apply(Some(&config)).await.expect("replaced");
    assert_eq!(plan.replaces, ["public_key"]);
    let set = client.get_with(&KEYS, &[("workload_id", &agent_id)]).await.expect("a set");
    assert_eq!(set["keys"][0]["alg"], Json::Null);

    let kid = workspace.value("kid");
    let query = [("workload_id", &*agent_id), ("kid", kid.as_str().expect("text"))];
    client.delete_with(&KEYS, &query).await.expect("deleted");
    let plan = workspace.apply(Some(&config)).await.expect("registered again");
    assert!(plan.changes.contains(&"kid"), "{plan:?}");

    // With its agent, a key is gone.
    client.delete(&["v1", "identity", "agents", &agent_id]).await.expect("revoked");
    workspace.refresh().await.expect("read");
    assert!(workspace.state.is_none());
    let refused = workspace.apply(Some(&config)).await.expect_err("refused");
    assert!(text(&refused).contains("the agent be revoked"), "{refused:?}");
}

/// With `create_before_destroy`, a key with another `alg` is registered before the one with the same `kid` is destroyed.
#[tokio::test]
async fn deletion_leaves_a_key_that_replaced_it() {
    let (fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    let config = json!({ "public_key": key(1), "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("registered");
    let deletion = workspace.plan(None).await.expect("planned");
    let mut jwk: Json = serde_json::from_str(&key(1)).expect("JSON");
    jwk["alg"] = json!("ECDH-ES");
    let body = json!({ "workload_id": agent_id, "key": jwk });
    fabric.bearer(&token).post(&KEYS, &body).await.expect("registered with another alg");
    workspace.apply_plan(&deletion, None).await.expect("nothing to delete");
    assert!(workspace.state.is_none());
    assert_eq!(kids(&client, &agent_id).await.len(), 1);
}

#[tokio::test]
async fn key_of_an_agent_revoked_after_the_plan_is_deleted() {
    let (_fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    let config = json!({ "public_key": key(1), "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("registered");
    let plan = workspace.plan(None).await.expect("planned");
    client.delete(&["v1", "identity", "agents", &agent_id]).await.expect("revoked");
    workspace.apply_plan(&plan, None).await.expect("deleted");
    assert!(workspace.state.is_none());
}

#[tokio::test]
async fn agent_manages_its_own_key_without_a_certificate() {
    let (fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    configure(&mut plugin, &with(&fabric.anonymous(), &json!({ "jwt_token": token })))
        .await
        .expect("configured");
    let config = json!({ "public_key": key(1) });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("registered");
    assert_eq!(workspace.value("workload_id"), agent_id);
    let plan = workspace.plan(Some(&config)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
    workspace.apply(None).await.expect("deleted");
    assert_eq!(kids(&client, &agent_id).await, Vec::<Json>::new());
}

#[tokio::test]
async fn private_key_is_refused_without_being_printed() {
    let (_fabric, mut plugin, client) = start().await;
    let (agent_id, token) = issued(&client).await;
    let secret = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
    let private = format!(r#"{{"kty":"OKP","crv":"X25519","d":"{secret}","x":"{X}"}}"#);
    let config = json!({ "workload_id": agent_id, "public_key": private, "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let refused = workspace.plan(Some(&config)).await.expect_err("refused");
    assert!(text(&refused).contains("the member d, which makes the key private"), "{refused:?}");
    // Terraform shows the line of an attribute.
    assert_eq!(refused[0].attribute, None);
    assert!(!format!("{refused:?}").contains(secret));

    // Known only after the plan: it is not sent.
    let good = with(&config, &json!({ "public_key": key(1) }));
    let mut plan = workspace.plan(Some(&good)).await.expect("planned");
    plan.state = plan.state.map(|state| state.with("public_key", Value::text(private)));
    let refused = workspace.apply_plan(&plan, Some(&config)).await.expect_err("refused");
    assert!(text(&refused).contains("member d") && !format!("{refused:?}").contains(secret), "{refused:?}");
    assert!(workspace.state.is_none());

    for (key, said) in [
        (r#"{"kty":"OKP","crv":"X25519","x":"AA"}"#, "key.x"),
        (r#"{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"}"#, "key.crv: must be"),
    ] {
        let config = with(&config, &json!({ "public_key": key }));
        let refused = workspace.apply(Some(&config)).await.expect_err("refused");
        assert_eq!(refused[0].attribute.as_deref(), Some("public_key"), "{refused:?}");
        assert!(text(&refused).contains(said), "{refused:?}");
    }
}

#[tokio::test]
async fn token_of_a_key_is_needed_and_its_own() {
    let (fabric, mut plugin, client) = start().await;
    let ((agent_id, token), (_, others)) = (issued(&client).await, issued(&client).await);
    let config = json!({ "workload_id": agent_id, "public_key": key(1), "agent_token": token });
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let without = with(&config, &json!({ "agent_token": Json::Null }));
    let refused = workspace.plan(Some(&without)).await.expect_err("refused");
    let said = "POST /v1/identity/agent/encryption-key takes a token and no client certificate";
    assert!(text(&refused).contains(said), "{refused:?}");
    for (token, said) in
        [(others.as_str(), "workload_id: must be the subject"), ("e30.e30.e30", "Status 401")]
    {
        let refused = workspace.apply(Some(&with(&config, &json!({ "agent_token": token })))).await;
        let refused = refused.expect_err("refused");
        assert!(text(&refused).contains(said) && !text(&refused).contains(token), "{refused:?}");
        assert!(workspace.state.is_none());
    }
    // An older Terraform would store it.
    workspace.is_current = false;
    let refused = workspace.plan(Some(&config)).await.expect_err("refused");
    assert_eq!(refused[0].attribute.as_deref(), Some("agent_token"));
    assert!(text(&refused).contains("needs Terraform 1.11"), "{refused:?}");
    workspace.is_current = true;

    workspace.apply(Some(&config)).await.expect("registered");
    configure(workspace.plugin, &fabric.provider("other")).await.expect("configured");
    let refused = workspace.apply(None).await.expect_err("refused");
    assert!(
        text(&refused).contains("an agent issued to the caller") && workspace.state.is_some(),
        "{refused:?}"
    );
    assert_eq!(kids(&client, &agent_id).await.len(), 1);
}
