//! Credentials: tokens, missing and unusable ones, and another identity than the one that created an object.

use serde_json::json;

use super::fabric::Fabric;
use super::plugin::Plugin;
use super::workspace::{Workspace, configure, text, tool, with};

const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

#[tokio::test]
async fn token_manages_tools_and_lacks_name_the_capability() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let bearer = |token: &str| with(&fabric.anonymous(), &json!({ "jwt_token": token }));
    let token = fabric.token("terraform").await;
    configure(&mut plugin, &bearer(&token)).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, "svc_mcp_tool");
    workspace.apply(Some(&tool("t"))).await.expect("created");
    assert_eq!(workspace.value("registered_by"), "wimse://dev.trust-fabric.local/ns/demo/sa/terraform");

    // A file is read for each request.
    let file = fabric.file("token");
    std::fs::write(&file, format!("{token}\n")).expect("written");
    let from_file = with(&fabric.anonymous(), &json!({ "jwt_token_file": file }));
    configure(workspace.plugin, &from_file).await.expect("configured");
    workspace.plan(Some(&tool("t"))).await.expect("planned");
    std::fs::write(&file, "e30.e30.e30").expect("written");
    let refused = workspace.plan(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("Status 401") && text(&refused).contains("expired"), "{refused:?}");
    std::fs::remove_file(&file).expect("removed");
    let refused = workspace.plan(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("jwt_token_file"), "{refused:?}");

    let visitor = fabric.token("visitor").await;
    configure(workspace.plugin, &bearer(&visitor)).await.expect("configured");
    let refused = workspace.plan(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("capability tools.read"), "{refused:?}");
    let mut other = Workspace::new(&mut plugin, "svc_mcp_tool");
    let refused = other.apply(Some(&tool("u"))).await.expect_err("refused");
    assert!(text(&refused).contains("capability tools.manage"), "{refused:?}");
    assert!(!format!("{refused:?}").contains(&visitor));
}

#[tokio::test]
async fn object_of_another_identity_is_no_deleted_object() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let stream = json!({ "audience": "a", "events_requested": [SESSION_REVOKED], "delivery_method": "poll" });
    let ours = "spiffe://dev.trust-fabric.local/terraform";
    let theirs = "spiffe://dev.trust-fabric.local/other";
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, "svc_mcp_tool");
    workspace.apply(Some(&tool("t"))).await.expect("created");
    let (tool_state, tool_private) = (workspace.state.clone(), workspace.private.clone());
    let mut workspace = Workspace::new(&mut plugin, "svc_ssf_stream");
    workspace.apply(Some(&stream)).await.expect("created");

    configure(workspace.plugin, &fabric.provider("other")).await.expect("configured");
    for config in [Some(&stream), None] {
        let refused = workspace.plan(config).await.expect_err("refused");
        assert!(text(&refused).contains(ours) && text(&refused).contains(theirs), "{refused:?}");
    }
    let plan = workspace.plan_without_refresh(None).await.expect("planned");
    let refused = workspace.apply_plan(&plan, None).await.expect_err("refused");
    assert!(text(&refused).contains(ours) && workspace.state.is_some(), "{refused:?}");

    let mut workspace = Workspace::new(&mut plugin, "svc_mcp_tool");
    (workspace.state, workspace.private) = (tool_state, tool_private);
    let refused =
        workspace.apply(Some(&with(&tool("t"), &json!({ "name": "n" })))).await.expect_err("refused");
    assert!(text(&refused).contains("belongs to another caller"), "{refused:?}");
    assert!(text(&refused).contains(ours) && text(&refused).contains(theirs), "{refused:?}");
    assert!(workspace.state.is_some());
}

#[tokio::test]
async fn missing_credential_is_an_error_of_the_plan() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let stream = json!({ "audience": "a", "events_requested": [SESSION_REVOKED], "delivery_method": "poll" });
    configure(&mut plugin, &fabric.anonymous()).await.expect("configured");
    let refused =
        Workspace::new(&mut plugin, "svc_mcp_tool").plan(Some(&tool("t"))).await.expect_err("refused");
    for part in ["POST /v1/mcp/tools", "client_cert", "jwt_token"] {
        assert!(text(&refused).contains(part), "{refused:?}");
    }
    let token = with(&fabric.anonymous(), &json!({ "jwt_token": "e30.e30.e30" }));
    configure(&mut plugin, &token).await.expect("configured");
    let refused =
        Workspace::new(&mut plugin, "svc_ssf_stream").plan(Some(&stream)).await.expect_err("refused");
    assert!(
        text(&refused).contains("POST /v1/signals/stream takes a client certificate and no token"),
        "{refused:?}"
    );
    configure(&mut plugin, &json!({})).await.expect("configured");
    let refused =
        Workspace::new(&mut plugin, "svc_mcp_tool").plan(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("endpoint is not set"), "{refused:?}");
}

#[tokio::test]
async fn unusable_configuration_is_refused_with_its_reason() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let good = fabric.provider("terraform");
    let other = fabric.provider("other");
    for (changes, attribute, said) in [
        (json!({ "endpoint": "https://h/path" }), Some("endpoint"), "must be http"),
        (json!({ "endpoints": ["https://h"] }), Some("endpoints"), "endpoint and endpoints are stated"),
        (json!({ "ca_cert": "x" }), Some("ca_cert_file"), "ca_cert and ca_cert_file are stated"),
        (json!({ "client_key_file": null }), None, "client_cert is stated without client_key"),
        (json!({ "client_cert_file": null }), None, "client_key is stated without client_cert"),
        (json!({ "client_key_file": other["client_key_file"] }), None, "certificates cannot be used"),
        (json!({ "client_cert_file": "/absent.pem" }), None, "/absent.pem: No such file"),
        (json!({ "ca_cert_file": null, "ca_cert": "x" }), None, "ca_cert: holds no certificate in PEM"),
        (json!({ "request_timeout": "fast" }), Some("request_timeout"), "must be a duration"),
        (json!({ "jwt_token": "a", "jwt_token_file": "b" }), Some("jwt_token_file"), "only one of them"),
    ] {
        let refused = configure(&mut plugin, &with(&good, &changes)).await.expect_err(said);
        assert!(text(&refused).contains(said), "{said}: {refused:?}");
        assert_eq!(refused[0].attribute.as_deref(), attribute, "{said}");
    }
    // The text of certificate and key instead of files.
    let read = |name: &str| std::fs::read_to_string(good[name].as_str().expect("path")).expect("read");
    let inline = json!({
        "endpoint": good["endpoint"], "ca_cert": read("ca_cert_file"),
        "client_cert": read("client_cert_file"), "client_key": read("client_key_file"),
    });
    configure(&mut plugin, &inline).await.expect("configured");
    Workspace::new(&mut plugin, "svc_mcp_tool").apply(Some(&tool("t"))).await.expect("created");
}

#[tokio::test]
async fn untrusted_node_and_expired_certificate_have_own_texts() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let key = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("names");
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let uri = "spiffe://dev.trust-fabric.local/terraform".try_into().expect("ASCII");
    params.subject_alt_names.push(rcgen::SanType::URI(uri));
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let read = |name: &str| std::fs::read_to_string(fabric.file(name)).expect("read");
    let ca_key = rcgen::KeyPair::from_pem(&read("pki/ca-key.pem")).expect("key");
    let ca = rcgen::Issuer::from_ca_cert_pem(&read("pki/ca.pem"), ca_key).expect("CA");
    let expired = params.signed_by(&key, &ca).expect("signed").pem();
    let own_ca = params.self_signed(&key).expect("signed").pem();
    for (config, said) in [
        (
            with(&fabric.provider("terraform"), &json!({ "ca_cert_file": null, "ca_cert": own_ca })),
            "The node's certificate is not trusted",
        ),
        (
            with(&fabric.anonymous(), &json!({ "client_cert": expired, "client_key": key.serialize_pem() })),
            "The node does not accept the client certificate",
        ),
    ] {
        configure(&mut plugin, &config).await.expect("configured");
        let mut workspace = Workspace::new(&mut plugin, "svc_mcp_tool");
        let refused = workspace.apply(Some(&tool("t"))).await.expect_err(said);
        assert!(text(&refused).contains(said), "{refused:?}");
        assert!(!text(&refused).contains("PRIVATE KEY"), "{refused:?}");
    }
}

#[tokio::test]
async fn unknown_configuration_plans_without_a_read() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, "svc_mcp_tool");
    workspace.apply(Some(&tool("t"))).await.expect("created");
    let unknown = with(&fabric.anonymous(), &json!({ "jwt_token": "UNKNOWN" }));
    configure(workspace.plugin, &unknown).await.expect("configured");
    fabric.client("terraform").delete(&["v1", "tools", "t"]).await.expect("deleted");
    let changed = with(&tool("t"), &json!({ "name": "n" }));
    let plan = workspace.plan(Some(&changed)).await.expect("planned");
    assert!(workspace.state.is_some() && plan.changes.contains(&"name"), "{plan:?}");
    let refused = workspace.apply_plan(&plan, Some(&changed)).await.expect_err("refused");
    assert!(text(&refused).contains("jwt_token is not known yet"), "{refused:?}");
}
