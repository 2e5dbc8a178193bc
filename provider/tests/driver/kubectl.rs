//! `kubectl` against the fake API server, and a transcript of it that is replayed where there is no `kubectl`.
//!
//! The program is 1.32 or later, on PATH. `TRUST_FABRIC_REWRITE=1` records the transcript anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use hyper::Method;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::process::Command;
use trust_fabric_spec::crd;

use super::api_server::{ApiServer, Order, Reply, TOKEN};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Prints once per test that it needs a program which is not there.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: there is no {program} on PATH, so that nothing was tested with it");
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("checkout")
}

/// The fabric of a file of the chart's values.
pub fn fabric(values: &str) -> Json {
    let path = root().join(format!("charts/trust-fabric/ci/{values}-values.yaml"));
    let values: Json = yaml_serde::from_str(&fs::read_to_string(path).expect("read")).expect("values");
    json!({
        "apiVersion": "fabric.svc/v1alpha1", "kind": "Fabric", "metadata": {"name": "main"}, "spec": values["fabric"],
    })
}

/// `kubectl` with its own home and the server's kubeconfig.
struct Kubectl {
    program: PathBuf,
    home: TempDir,
    server: ApiServer,
}

impl Kubectl {
    async fn start() -> Option<Self> {
        let program = on_path("kubectl")?;
        let (home, server) = (tempfile::tempdir().expect("directory"), ApiServer::start().await);
        let config = server.kubeconfig(&json!({"token": TOKEN}));
        fs::write(home.path().join("kubeconfig"), config).expect("written");
        Some(Self { program, home, server })
    }

    /// Output and errors, and whether it succeeded.
    async fn run(&self, arguments: &[&str]) -> (bool, String) {
        let home = self.home.path();
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", home).env("KUBECONFIG", home.join("kubeconfig")).args(arguments);
        let ended = command.current_dir(home).output().await.expect("run");
        let text = [ended.stdout, ended.stderr].concat();
        (ended.status.success(), String::from_utf8(text).expect("UTF-8"))
    }

    async fn does(&self, arguments: &[&str], said: &str) {
        let (is_done, text) = self.run(arguments).await;
        assert!(is_done && text.contains(said), "kubectl {}: {text}", arguments.join(" "));
    }

    async fn is_refused(&self, arguments: &[&str], said: &str) {
        let (is_done, text) = self.run(arguments).await;
        assert!(!is_done && text.contains(said), "kubectl {}: {text}", arguments.join(" "));
    }

    fn write(&self, name: &str, object: &Json) {
        fs::write(self.home.path().join(name), object.to_string()).expect("written");
    }

    /// The object with one value of `spec` changed.
    fn write_with(&self, name: &str, change: &str, value: Json) {
        let mut object = fabric("three-nodes");
        object["spec"][change] = value;
        self.write(name, &object);
    }
}

#[tokio::test]
async fn kubectl_manages_a_fabric() {
    let Some(kubectl) = Kubectl::start().await else { return };
    kubectl.write("fabric.json", &fabric("three-nodes"));
    // Without a definition kubectl would validate by OpenAPI v2, which the fake does not serve.
    let unvalidated = ["apply", "--validate=false", "-f", "fabric.json"];
    kubectl.is_refused(&unvalidated, "no matches for kind \"Fabric\"").await;
    let definition = root().join("charts/trust-fabric-crds/templates/fabrics.yaml");
    let definition = definition.to_str().expect("UTF-8");
    kubectl
        .does(&["apply", "--server-side", "-f", definition], "fabrics.fabric.svc serverside-applied")
        .await;

    kubectl.does(&["explain", "fabric.spec.pki.mode"], "certManagerCsi").await;
    kubectl.does(&["explain", "fab.spec.replicas"], "Nodes of the cluster: 1, 3 or 5").await;
    kubectl.is_refused(&["explain", "fabric.spec.unheard"], "unheard").await;

    kubectl.does(&["apply", "-f", "fabric.json"], "fabric.fabric.svc/main created").await;
    kubectl.does(&["apply", "-f", "fabric.json"], "fabric.fabric.svc/main unchanged").await;
    kubectl.does(&["get", "fab"], "NAME   PHASE   LEADER   MEMBERS   VERSION   AGE").await;
    kubectl.does(&["get", "fabric", "main", "-o", "jsonpath={.spec.storage.size}"], "20Gi").await;

    kubectl.write_with("unheard.json", "unheard", json!(1));
    kubectl.is_refused(&["apply", "-f", "unheard.json"], "unknown field \"spec.unheard\"").await;
    kubectl.write_with("even.json", "replicas", json!(2));
    kubectl.is_refused(&["apply", "-f", "even.json"], "spec.replicas").await;
    kubectl.write_with("moved.json", "issuer", json!("https://other.example.com"));
    kubectl.is_refused(&["apply", "-f", "moved.json"], "issuer is immutable").await;

    kubectl.write_with("newer.json", "version", json!("0.2.0"));
    let apply = ["apply", "--server-side", "--field-manager=ops", "-f", "newer.json"];
    kubectl.is_refused(&apply, "conflict with \"kubectl-client-side-apply\"").await;
    kubectl
        .does(&[&apply[..], &["--dry-run=server", "--force-conflicts"]].concat(), "(server dry run)")
        .await;
    kubectl.is_refused(&apply, ".spec.version").await;
    kubectl.does(&[&apply[..], &["--force-conflicts"]].concat(), "serverside-applied").await;
    kubectl.does(&["get", "fabric", "main"], "0.2.0").await;

    let status = r#"{"status": {"phase": "Converged", "leader": "main-2"}}"#;
    let patch = ["patch", "fabric", "main", "--subresource=status", "--type=merge", "-p", status];
    kubectl.does(&patch, "patched").await;
    kubectl.does(&["wait", "--for=jsonpath={.status.phase}=Converged", "fabric/main"], "condition met").await;
    kubectl.does(&["get", "fabric", "main"], "main   Converged   main-2   3         0.2.0     0s").await;
    kubectl.does(&["delete", "fabric", "main"], "fabric.fabric.svc \"main\" deleted").await;
    kubectl.is_refused(&["get", "fabric", "main"], "NotFound").await;
    let transcript = transcript(&kubectl.server.seen());
    if env::var_os("TRUST_FABRIC_REWRITE").is_some() {
        fs::write(golden(), transcript).expect("written");
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/kubectl.json")
}

/// Whether the response depends on the definition, which is not in the transcript.
fn is_of_definition(path: &str) -> bool {
    path.starts_with("/openapi/") || path.starts_with(DEFINITION)
}

/// Requests with their responses, one a line. A watch is not recorded, and of the same read only the first in a row of reads.
fn transcript(seen: &[(Order, Reply)]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut reads = 0;
    for (order, reply) in seen {
        let (code, answer) = match reply {
            Reply::Json(code, json) => (code, json.clone()),
            Reply::Text(code, text) => (code, json!(text)),
            Reply::Watch(_) => continue,
        };
        let (mut body, mut answer) = (String::from_utf8_lossy(&order.body).into_owned(), answer);
        if is_of_definition(&order.path) {
            (body, answer) = (String::new(), Json::Null);
        }
        let line = json!({
            "method": order.method.as_str(), "path": order.path, "query": order.query, "accept": order.accept,
            "type": order.content_type, "body": body, "code": code, "answer": answer,
        });
        let line = line.to_string();
        if order.method == Method::GET {
            if lines[reads..].contains(&line) {
                continue;
            }
            lines.push(line);
        } else {
            lines.push(line);
            reads = lines.len();
        }
    }
    format!("[\n{}\n]\n", lines.join(",\n"))
}

#[tokio::test]
async fn recorded_kubectl_gets_the_recorded_responses() {
    let server = ApiServer::start().await;
    let recorded: Vec<Json> =
        serde_json::from_slice(&fs::read(golden()).expect("a transcript")).expect("JSON");
    let definition = crd::yaml().expect("a definition");
    for line in &recorded {
        let text = |name: &str| line[name].as_str().expect("text").to_owned();
        let query: BTreeMap<String, String> = serde_json::from_value(line["query"].clone()).expect("a query");
        let is_definition = is_of_definition(&text("path"));
        let body = if is_definition && text("method") != "GET" { definition.clone() } else { text("body") };
        let order = Order {
            method: text("method").parse().expect("a method"),
            path: text("path"),
            query,
            accept: text("accept"),
            content_type: text("type"),
            body: body.into_bytes(),
        };
        let (code, answer) = match server.store.answer(&order) {
            Reply::Json(code, json) => (code, json),
            Reply::Text(code, text) => (code, json!(text)),
            Reply::Watch(_) => panic!("a watch"),
        };
        assert_eq!(json!(code), line["code"], "{} {}", order.method, order.path);
        assert!(is_definition || answer == line["answer"], "{} {}: {answer:#}", order.method, order.path);
    }
    let codes: Vec<&Json> = recorded.iter().map(|line| &line["code"]).collect();
    for code in [200, 201, 400, 404, 409, 422] {
        assert!(codes.contains(&&json!(code)), "{code}");
    }
}

#[tokio::test]
async fn watch_sends_changes_and_refuses_old_versions() {
    let server = ApiServer::with_definition().await;
    let ca = reqwest::Certificate::from_pem(server.authority.pem().as_bytes()).expect("CA");
    let client = reqwest::Client::builder().tls_certs_only([ca]).build().expect("client");
    let list = "/apis/fabric.svc/v1alpha1/namespaces/default/fabrics";
    let path = format!("{}{list}?watch=1&allowWatchBookmarks=true&resourceVersion=", server.url());
    let watch = async |version: &str| {
        let request = client.get(format!("{path}{version}")).bearer_auth(TOKEN);
        request.send().await.expect("a response")
    };
    let mut events = watch("1").await;
    let mut next = async || {
        let line = events.chunk().await.expect("a line").expect("an event");
        let event: Json = serde_json::from_slice(&line).expect("JSON");
        (event["type"].as_str().expect("a type").to_owned(), event["object"].clone())
    };
    assert_eq!(next().await.0, "BOOKMARK");
    server.create(list, &fabric("one-node"));
    let (change, object) = next().await;
    assert_eq!((&*change, &object["metadata"]["name"]), ("ADDED", &json!("main")));
    let order = Order { method: Method::DELETE, ..Order::get(&format!("{list}/main")) };
    assert!(matches!(server.store.answer(&order), Reply::Json(200, _)));
    assert_eq!(next().await.0, "DELETED");
    server.store.with(super::api_server::State::compact);
    let mut expired = watch("1").await;
    let line = expired.chunk().await.expect("a line").expect("an event");
    let event: Json = serde_json::from_slice(&line).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(expired.chunk().await.expect("the end"), None);
}
