//! The access of `svc_fabric` to the API server: files of `kubectl`, certificates, tokens and programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::api_server::{ApiServer, Authority, TOKEN};
use super::kubectl::fabric;
use super::plugin::{Client, Plugin};
use super::workspace::{Outcome, Workspace, configure, text, with};

fn config() -> Json {
    json!({ "name": "main", "spec": fabric("one-node")["spec"].to_string() })
}

/// Applies a fabric with this configuration of the provider, and deletes it.
async fn used(plugin: &mut Plugin, provider: &Json) -> Outcome<()> {
    configure(plugin, provider).await?;
    let mut workspace = Workspace::new(plugin, "svc_fabric");
    workspace.apply(Some(&config())).await?;
    workspace.apply(None).await.map(drop)
}

fn written(directory: &TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

/// A program that writes a line to `runs`, and gives the token in the file `given`.
fn program(directory: &Path) -> String {
    let (path, place) = (directory.join("login"), directory.display());
    let script = format!(
        "#!/bin/sh\nset -eu\necho \"$1 $SECRET $KUBERNETES_EXEC_INFO\" >>{place}/runs\nread -r token <{place}/given\n\
         printf '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \
         \"status\": {{\"token\": \"%s\"}}}}' \"$token\"\n"
    );
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("mode");
    path.to_str().expect("UTF-8").to_owned()
}

#[tokio::test]
async fn every_kind_of_user_is_accepted() {
    let server = ApiServer::with_definition().await;
    let mut plugin = Plugin::start().await;
    let directory = tempfile::tempdir().expect("directory");
    let (certificate, key) = server.authority.issue(&["terraform"]);
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let ca = server.authority.pem();
    let host = json!({ "host": server.url(), "cluster_ca_certificate": ca });
    let file = |name: &str, user: Json| written(&directory, name, &server.kubeconfig(&user));
    written(&directory, "token", &format!("{TOKEN}\n"));
    written(&directory, "cert.pem", &certificate);
    written(&directory, "key.pem", &key);
    let paths = file("b", json!({ "token": TOKEN }));
    let other = written(&directory, "a", &json!({ "current-context": "fake" }).to_string());
    for (name, kubernetes) in [
        ("token", with(&host, &json!({ "token": TOKEN }))),
        ("certificate", with(&host, &json!({ "client_certificate": certificate, "client_key": key }))),
        ("file with a token", json!({ "config_path": file("c", json!({ "token": TOKEN })) })),
        (
            "file with the file of a token",
            json!({ "config_path": file("d", json!({ "tokenFile": "token" })) }),
        ),
        (
            "file with the files of a certificate",
            json!({ "config_path": file("e", json!({ "client-certificate": "cert.pem", "client-key": "key.pem" })) }),
        ),
        ("several files", json!({ "config_paths": [other, paths], "config_context": "fake" })),
    ] {
        let outcome = used(&mut plugin, &json!({ "kubernetes": kubernetes })).await;
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }
}

#[tokio::test]
async fn files_of_the_environment_are_used() {
    let server = ApiServer::with_definition().await;
    let directory = tempfile::tempdir().expect("directory");
    let path = written(&directory, "kubeconfig", &server.kubeconfig(&json!({ "token": TOKEN })));
    for variable in ["KUBE_CONFIG_PATH", "KUBECONFIG"] {
        let client = Client::new();
        let mut command = client.command();
        command.env(variable, &path);
        let mut plugin = Plugin::start_with(&client, command).await;
        used(&mut plugin, &json!({})).await.expect(variable);
    }
    let mut plugin = Plugin::start().await;
    let none = used(&mut plugin, &json!({})).await.expect_err("no API server");
    assert!(text(&none).contains("state kubernetes.config_path"), "{none:?}");
}

#[tokio::test]
async fn program_gives_a_token_again_when_it_is_refused() {
    let server = ApiServer::with_definition().await;
    let mut plugin = Plugin::start().await;
    let directory = tempfile::tempdir().expect("directory");
    let command = program(directory.path());
    let exec = json!({
        "api_version": "client.authentication.k8s.io/v1", "command": command, "args": ["first"],
        "env": { "SECRET": "of the program" },
    });
    let kubernetes =
        json!({ "host": server.url(), "cluster_ca_certificate": server.authority.pem(), "exec": exec });
    let provider = json!({ "kubernetes": kubernetes });
    let runs = || fs::read_to_string(directory.path().join("runs")).unwrap_or_default();
    written(&directory, "given", &format!("{TOKEN}\n"));
    used(&mut plugin, &provider).await.expect("accepted");
    assert_eq!(runs().lines().count(), 1, "once for all requests: {}", runs());
    assert!(runs().starts_with("first of the program {") && runs().contains("ExecCredential"), "{}", runs());

    written(&directory, "given", "an-old-token\n");
    let refused = used(&mut plugin, &provider).await.expect_err("refused");
    assert!(text(&refused).contains("Status 401"), "{refused:?}");
    assert_eq!(runs().lines().count(), 3, "asked for another one: {}", runs());
    fs::remove_file(directory.path().join("given")).expect("removed");
    let failed = used(&mut plugin, &provider).await.expect_err("failed");
    assert!(text(&failed).contains("login failed: exit status"), "{failed:?}");
    assert!(!text(&failed).contains("of the program"), "{failed:?}");
}

#[tokio::test]
async fn each_bad_access_has_its_own_text() {
    let server = ApiServer::with_definition().await;
    let mut plugin = Plugin::start().await;
    let directory = tempfile::tempdir().expect("directory");
    let stranger = Authority::new();
    let host =
        json!({ "host": server.url(), "cluster_ca_certificate": server.authority.pem(), "token": TOKEN });
    let file = |name: &str, user: Json| json!({ "config_path": written(&directory, name, &server.kubeconfig(&user)) });
    for (kubernetes, said) in [
        (with(&host, &json!({ "token": "of-somebody-else" })), "does not accept the credential"),
        (
            with(&host, &json!({ "cluster_ca_certificate": stranger.pem() })),
            "certificate of the API server is not trusted",
        ),
        (with(&host, &json!({ "cluster_ca_certificate": "none" })), "holds no certificate in PEM"),
        (with(&host, &json!({ "host": "127.0.0.1" })), "an API server is https://host:port"),
        (with(&host, &json!({ "config_path": "a" })), "only one of them"),
        (json!({ "config_path": "/nowhere/kubeconfig" }), "No such file"),
        (json!({ "config_path": written(&directory, "a", "a: [") }), "is no YAML"),
        (with(&file("b", json!({})), &json!({ "config_context": "absent" })), "has no context \"absent\""),
        (file("c", json!({ "username": "u", "password": "p" })), "username is not supported"),
        (file("d", json!({ "client-key": "key.pem" })), "No such file"),
        (file("e", json!({ "exec": { "apiVersion": "v1", "command": "x" } })), "exec: the version must be"),
    ] {
        let refused = used(&mut plugin, &json!({ "kubernetes": kubernetes })).await.expect_err(said);
        let shown = text(&refused);
        assert!(shown.contains(said), "{said}: {shown}");
        assert!(!shown.contains("of-somebody-else") && !shown.contains(TOKEN), "{shown}");
    }
    let insecure = server.kubeconfig(&json!({ "token": TOKEN }));
    let insecure = insecure.replace("\"server\"", "\"insecure-skip-tls-verify\":true,\"server\"");
    let path = written(&directory, "f", &insecure);
    let refused =
        used(&mut plugin, &json!({ "kubernetes": { "config_path": path } })).await.expect_err("refused");
    assert!(text(&refused).contains("insecure-skip-tls-verify is not supported"), "{refused:?}");
}

#[tokio::test]
async fn namespace_comes_from_the_resource_or_the_provider() {
    let server = ApiServer::with_definition().await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "trust" } });
    server.create("/api/v1/namespaces", &namespace);
    let mut plugin = Plugin::start().await;
    let host =
        json!({ "host": server.url(), "cluster_ca_certificate": server.authority.pem(), "token": TOKEN });
    let provider = json!({ "namespace": "trust", "kubernetes": host });
    configure(&mut plugin, &provider).await.expect("configured");
    for (stated, expected) in [(Json::Null, "trust"), (json!("default"), "default")] {
        let mut workspace = Workspace::new(&mut plugin, "svc_fabric");
        let config = with(&config(), &json!({ "namespace": stated }));
        workspace.apply(Some(&config)).await.expect("created");
        assert_eq!(workspace.value("namespace"), expected);
        assert_eq!(workspace.plan(Some(&config)).await.expect("planned").changes, Vec::<&str>::new());
    }
    let unknown = with(&provider, &json!({ "namespace": "UNKNOWN" }));
    configure(&mut plugin, &unknown).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, "svc_fabric");
    let plan = workspace.plan(Some(&config())).await.expect("planned without a request");
    let refused = workspace.apply_plan(&plan, Some(&config())).await.expect_err("not known");
    assert!(text(&refused).contains("namespace is not known yet"), "{refused:?}");
}
