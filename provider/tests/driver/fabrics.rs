//! `svc_fabric` against the fake API server: life, drift, conflicts, import, phases.

use hyper::Method;
use serde_json::{Value as Json, json};
use trust_fabric_spec::chart::Values;

use super::api_server::{ApiServer, Order, Reply, TOKEN};
use super::kubectl::fabric;
use super::plugin::Plugin;
use super::workspace::{Workspace, configure, text, with};

const TYPE: &str = "svc_fabric";
const KIND: &str = "fabrics.fabric.svc";
const FABRICS: &str = "/apis/fabric.svc/v1alpha1/namespaces/default/fabrics";

/// A provider without an endpoint, for the user of a token.
async fn configured(server: &ApiServer) -> Plugin {
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &provider(server)).await.expect("configured");
    plugin
}

fn provider(server: &ApiServer) -> Json {
    let ca = server.authority.pem();
    json!({ "kubernetes": { "host": server.url(), "token": TOKEN, "cluster_ca_certificate": ca } })
}

fn spec() -> Json {
    fabric("three-nodes")["spec"].clone()
}

fn config(spec: &Json) -> Json {
    json!({ "name": "main", "spec": yaml_serde::to_string(spec).expect("YAML") })
}

fn with_spec(change: &Json) -> Json {
    config(&with(&spec(), change))
}

pub fn live(server: &ApiServer) -> Option<Json> {
    server.store.with(|state| state.stored(KIND, "default", "main"))
}

/// Another manager applies these fields.
pub fn apply_as(server: &ApiServer, manager: &str, fields: &Json) {
    let mut object =
        json!({"apiVersion": "fabric.svc/v1alpha1", "kind": "Fabric", "metadata": {"name": "main"}});
    for (name, value) in fields.as_object().expect("an object") {
        object[name] = value.clone();
    }
    let query = [("fieldManager", manager), ("force", "true")];
    let order = Order {
        method: Method::PATCH,
        query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        content_type: "application/apply-patch+yaml".to_owned(),
        body: object.to_string().into_bytes(),
        ..Order::get(&format!("{FABRICS}/main"))
    };
    done(server, &order);
}

fn merge(server: &ApiServer, path: &str, patch: &Json) {
    let order = Order {
        method: Method::PATCH,
        content_type: "application/merge-patch+json".to_owned(),
        body: patch.to_string().into_bytes(),
        ..Order::get(&format!("{FABRICS}/main{path}"))
    };
    done(server, &order);
}

fn delete(server: &ApiServer) {
    done(server, &Order { method: Method::DELETE, ..Order::get(&format!("{FABRICS}/main")) });
}

fn done(server: &ApiServer, order: &Order) {
    let reply = server.store.answer(order);
    assert!(matches!(reply, Reply::Json(200 | 201, _)), "{reply:?}");
}

#[tokio::test]
async fn fabric_is_applied_changed_kept_and_deleted() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let first = with(&config(&spec()), &json!({ "labels": { "team": "trust" } }));
    let plan = workspace.plan(Some(&first)).await.expect("planned");
    let values = plan.state.as_ref().and_then(|state| state.text("values_yaml")).expect("known in the plan");
    let typed = Values::parse(values).expect("values of the chart");
    assert_eq!(serde_json::to_value(typed.fabric).expect("JSON"), spec());
    workspace.apply(Some(&first)).await.expect("created");
    let object = live(&server).expect("stored");
    assert_eq!(object["spec"], spec());
    let manager = &object["metadata"]["managedFields"][0];
    assert_eq!(
        (&manager["manager"], &manager["operation"]),
        (&json!("terraform-provider-svc"), &json!("Apply"))
    );
    assert_eq!((workspace.value("id"), workspace.value("generation")), (json!("default/main"), json!(1)));
    assert_eq!(workspace.value("uid"), object["metadata"]["uid"]);
    workspace.store().await;

    // Another text of the same document.
    let same = with(&first, &json!({ "spec": format!("# Comment.\n{}", json!(spec())) }));
    for config in [&first, &same] {
        assert_eq!(workspace.plan(Some(config)).await.expect("planned").changes, Vec::<&str>::new());
    }
    for (change, expected) in [
        (json!({ "version": "0.2.0" }), "0.2.0"),
        (json!({ "version": "0.2.0", "log": { "filter": "debug" } }), "0.2.0"),
        (json!({ "version": null }), ""),
    ] {
        let plan = workspace.apply(Some(&with_spec(&change))).await.expect("changed");
        assert!(plan.replaces.is_empty() && plan.changes.contains(&"spec"), "{plan:?}");
        let object = live(&server).expect("stored");
        assert_eq!(object["spec"]["version"].as_str().unwrap_or_default(), expected);
        assert_eq!(workspace.value("generation"), object["metadata"]["generation"]);
        let again = workspace.plan(Some(&with_spec(&change))).await.expect("planned");
        assert_eq!(again.changes, Vec::<&str>::new(), "{change}");
    }
    let object = live(&server).expect("stored");
    assert_eq!(
        (&object["spec"]["log"], &object["metadata"]["labels"]),
        (&Json::Null, &Json::Null),
        "removed"
    );

    let renamed = with(&with_spec(&json!({})), &json!({ "name": "other" }));
    let plan = workspace.apply(Some(&renamed)).await.expect("replaced");
    assert_eq!(plan.replaces, ["name"]);
    assert!(live(&server).is_none() && workspace.value("id") == "default/other");
    workspace.apply(None).await.expect("deleted");
    assert_eq!(server.store.with(|state| state.stored(KIND, "default", "other")), None);
    assert!(workspace.state.is_none());
}

#[tokio::test]
async fn only_a_changed_field_of_ours_is_drift() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let config = with(&config(&spec()), &json!({ "labels": { "team": "trust" } }));
    workspace.apply(Some(&config)).await.expect("created");
    let more = json!({
        "spec": { "log": { "filter": "debug" } },
        "metadata": { "name": "main", "labels": { "other": "1" }, "annotations": { "other": "1" } },
    });
    apply_as(&server, "console", &more);
    assert_eq!(workspace.plan(Some(&config)).await.expect("planned").changes, Vec::<&str>::new());

    apply_as(&server, "ops", &json!({ "spec": { "version": "9.0.0" } }));
    merge(&server, "", &json!({ "metadata": { "labels": { "team": "ops" } } }));
    let plan = workspace.plan(Some(&config)).await.expect("planned");
    assert!(plan.changes.contains(&"spec") && plan.changes.contains(&"labels"), "{plan:?}");
    assert!(workspace.value("spec").as_str().is_some_and(|spec| spec.contains("9.0.0")));

    let refused = workspace.apply_plan(&plan, Some(&config)).await.expect_err("a conflict");
    let said = text(&refused);
    for part in [
        "spec.version: owned by \"ops\"",
        "terraform-provider-svc",
        "metadata.labels.team",
        "force_conflicts",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(refused[0].attribute.as_deref(), Some("spec"));
    assert_eq!(live(&server).expect("stored")["spec"]["version"], "9.0.0");

    let forced = with(&config, &json!({ "force_conflicts": true }));
    workspace.apply(Some(&forced)).await.expect("taken over");
    let object = live(&server).expect("stored");
    assert_eq!(
        (&object["spec"]["version"], &object["metadata"]["labels"]["team"]),
        (&json!("0.1.0"), &json!("trust"))
    );
    assert_eq!(object["metadata"]["annotations"]["other"], "1");
    let plan = workspace.plan(Some(&forced)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
}

#[tokio::test]
async fn fabric_deleted_outside_is_created_again() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config(&spec()))).await.expect("created");
    delete(&server);
    let plan = workspace.plan(Some(&config(&spec()))).await.expect("planned");
    assert!(workspace.state.is_none() && plan.changes.contains(&"uid"), "{plan:?}");
    workspace.apply(Some(&config(&spec()))).await.expect("created again");

    // Another object of this name, between plan and apply, is neither changed nor deleted.
    let changed = with_spec(&json!({ "version": "0.2.0" }));
    let plan = workspace.plan(Some(&changed)).await.expect("planned");
    delete(&server);
    let gone = workspace.apply_plan(&plan, Some(&changed)).await.expect_err("gone");
    assert!(text(&gone).contains("run plan again") && live(&server).is_none(), "{gone:?}");
    apply_as(&server, "ops", &json!({ "spec": spec() }));
    let other = workspace.apply_plan(&plan, Some(&changed)).await.expect_err("another");
    assert!(text(&other).contains("uid mismatch"), "{other:?}");
    let deletion = workspace.plan_without_refresh(None).await.expect("planned");
    let other = workspace.apply_plan(&deletion, None).await.expect_err("another");
    assert!(text(&other).contains("Precondition failed") && live(&server).is_some(), "{other:?}");
}

#[tokio::test]
async fn fabric_of_others_is_imported_and_not_taken_over() {
    let server = ApiServer::with_definition().await;
    apply_as(&server, "ops", &json!({ "spec": spec() }));
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let exists = workspace.apply(Some(&config(&spec()))).await.expect_err("exists");
    assert!(text(&exists).contains("default/main exists already"), "{exists:?}");
    assert_eq!(exists[0].attribute.as_deref(), Some("name"));
    assert!(workspace.state.is_none());

    let mut without_default = spec();
    without_default.as_object_mut().expect("an object").remove("replicas");
    workspace.import("default/main").await.expect("imported");
    for spec in [spec(), without_default] {
        let plan = workspace.plan(Some(&config(&spec))).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new());
    }
    workspace.apply(Some(&with_spec(&json!({ "log": { "filter": "warn" } })))).await.expect("changed");
    assert_eq!(live(&server).expect("stored")["spec"]["log"]["filter"], "warn");

    let mut other = Workspace::new(workspace.plugin, TYPE);
    other.import("default/absent").await.expect("no error of the read");
    assert!(other.state.is_none(), "Terraform states that it does not exist");
    for id in ["main", "default/", "a/b/c", "Default/main"] {
        let malformed = other.import(id).await.expect_err(id);
        assert!(text(&malformed).contains("must be <namespace>/<name>"), "{id}: {malformed:?}");
    }
}

#[tokio::test]
async fn missing_definition_and_namespace_have_their_own_texts() {
    let server = ApiServer::start().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let missing = workspace.apply(Some(&config(&spec()))).await.expect_err("no kind");
    assert!(text(&missing).contains("install the chart trust-fabric-crds first"), "{missing:?}");
    let server = ApiServer::with_definition().await;
    configure(workspace.plugin, &provider(&server)).await.expect("configured");
    let elsewhere = with(&config(&spec()), &json!({ "namespace": "absent" }));
    let missing = workspace.apply(Some(&elsewhere)).await.expect_err("no namespace");
    assert!(text(&missing).contains("namespaces \"absent\" not found"), "{missing:?}");

    // Without the definition the object is not "gone": an error, and the state stays.
    workspace.apply(Some(&config(&spec()))).await.expect("created");
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{KIND}");
    done(&server, &Order { method: Method::DELETE, ..Order::get(&path) });
    let missing = workspace.refresh().await.expect_err("no kind");
    assert!(text(&missing).contains("trust-fabric-crds") && workspace.state.is_some(), "{missing:?}");
}

#[tokio::test]
async fn plan_refuses_values_that_the_api_server_refuses() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    for (values, said) in [
        (with_spec(&json!({ "replicas": 4 })), "spec.replicas"),
        (with_spec(&json!({ "unheard": 1 })), "unheard"),
        (with_spec(&json!({ "issuer": "http://a" })), "spec.issuer"),
        (with_spec(&json!({ "storage": {} })), "spec.storage"),
        (with_spec(&json!({ "pki": { "mode": "spire" } })), "className must be set"),
        (with(&config(&spec()), &json!({ "spec": "a: [" })), "must be YAML or JSON"),
        (with(&config(&spec()), &json!({ "spec": "text" })), "must be a map"),
    ] {
        let refused = workspace.validate(&values).await.expect_err(said);
        assert!(text(&refused).contains(said), "{said}: {refused:?}");
        assert_eq!(refused[0].attribute.as_deref(), Some("spec"), "{said}");
    }
    for (name, value) in
        [("name", "Main"), ("name", "-a"), ("namespace", "a.b"), ("wait_for_phase", "Degraded")]
    {
        let refused = workspace.validate(&with(&config(&spec()), &json!({ name: value }))).await;
        assert_eq!(refused.expect_err(value)[0].attribute.as_deref(), Some(name), "{value}");
    }
    // One way only: the plan accepts whatever the API server does.
    for name in
        ["development", "every-setting", "five-nodes", "in-cluster", "one-node", "spire", "three-nodes"]
    {
        let spec = fabric(name)["spec"].clone();
        let named = with(&config(&spec), &json!({ "name": format!("f-{name}") }));
        let mut workspace = Workspace::new(workspace.plugin, TYPE);
        workspace.apply(Some(&named)).await.expect(name);
        assert_eq!(workspace.plan(Some(&named)).await.expect(name).changes, Vec::<&str>::new(), "{name}");
    }
    workspace.apply(Some(&config(&spec()))).await.expect("created");
    let seen = server.seen().len();
    let moved = with_spec(&json!({ "issuer": "https://other.example.com" }));
    let refused = workspace.plan_without_refresh(Some(&moved)).await.expect_err("immutable");
    assert!(text(&refused).contains("issuer is immutable"), "{refused:?}");
    assert_eq!((server.seen().len(), seen > 0), (0, true), "without a request");
}

#[tokio::test]
async fn phase_of_the_applied_generation_is_waited_for() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let waiting =
        with(&config(&spec()), &json!({ "wait_for_phase": "Converged", "timeouts": { "create": "2s" } }));
    // An error would taint the object.
    workspace.apply(Some(&waiting)).await.expect("created");
    assert!(text(&workspace.messages).contains("is there a controller"), "{:?}", workspace.messages);
    assert_eq!(workspace.value("id"), "default/main");

    let condition = json!({
        "type": "Ready", "status": "False", "reason": "NoQuorum", "message": "two of three nodes are missing",
        "lastTransitionTime": "2026-11-01T12:00:00Z",
    });
    let status =
        json!({ "observedGeneration": 1, "phase": "Degraded", "conditions": [condition], "specHash": "h" });
    merge(&server, "/status", &json!({ "status": status }));
    let changed = with(&waiting, &json!({ "spec": with_spec(&json!({ "version": "0.2.0" }))["spec"] }));
    let timeouts = |secs: &str| json!({ "timeouts": { "update": secs } });
    let late = workspace.apply(Some(&with(&changed, &timeouts("1s")))).await.expect_err("degraded");
    for part in ["Converged is waited for", "Degraded", "observed 1", "two of three nodes are missing"] {
        assert!(text(&late).contains(part), "{part}: {late:?}");
    }
    let again = with(&with_spec(&json!({ "version": "0.3.0" })), &json!({ "wait_for_phase": "Converged" }));
    server.seen();
    let controller = async {
        server.until(&Method::PATCH, 1).await;
        merge(&server, "/status", &json!({ "status": { "observedGeneration": 2, "phase": "Converged" } }));
        // One read of the refresh; the next two find the status of the generation before.
        server.until(&Method::GET, 3).await;
        merge(&server, "/status", &json!({ "status": { "observedGeneration": 3 } }));
    };
    let (applied, ()) = tokio::join!(workspace.apply(Some(&again)), controller);
    applied.expect("converged");
    assert_eq!(
        (workspace.value("phase"), workspace.value("observed_generation")),
        (json!("Converged"), json!(3))
    );
    assert_eq!(workspace.value("conditions")[0]["message"], "two of three nodes are missing");
    assert_eq!(workspace.value("spec_hash"), "h");
    workspace.store().await;
    assert_eq!(workspace.plan(Some(&again)).await.expect("planned").changes, Vec::<&str>::new());
}

#[tokio::test]
async fn deletion_waits_for_a_finalizer() {
    let server = ApiServer::with_definition().await;
    let mut plugin = configured(&server).await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let config = with(&config(&spec()), &json!({ "timeouts": { "delete": "1s" } }));
    workspace.apply(Some(&config)).await.expect("created");
    merge(&server, "", &json!({ "metadata": { "finalizers": ["example.com/backup"] } }));
    let held = workspace.apply(None).await.expect_err("a finalizer");
    assert!(text(&held).contains("a finalizer keeps it") && workspace.state.is_some(), "{held:?}");
    server.seen();
    let freed = async {
        server.until(&Method::DELETE, 1).await;
        server.until(&Method::GET, 2).await;
        merge(&server, "", &json!({ "metadata": { "finalizers": null } }));
    };
    let (deleted, ()) = tokio::join!(workspace.apply(None), freed);
    deleted.expect("deleted");
    assert!(live(&server).is_none() && workspace.state.is_none());
}
