//! The objects of the chart, and the values that it refuses.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::python;
use crate::releases::{
    RELEASE, assert_equals_file, chart, of_kind, patched, read, release, render, rendered, root, values,
};

/// The oldest version whose schemas are at hand above the least one that the chart takes, a middle one, the newest.
const VERSIONS: [&str; 3] = ["1.30", "1.33", "1.37"];

/// All objects of a release, as text.
fn text_of(report: &Value) -> String {
    let manifests = report["manifests"].as_object().expect("manifests");
    let mut lines = Vec::new();
    for (path, manifest) in manifests {
        let manifest = manifest.as_str().expect("text").trim();
        if !manifest.is_empty() {
            lines.push(format!("# Source: {path}"));
            // A template leaves the indentation of an empty line.
            lines.extend(manifest.lines().map(|line| line.trim_end().to_owned()));
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn objects_of_every_file_of_values_are_valid() {
    for (name, report) in rendered(&VERSIONS) {
        for list in ["violations", "lint"] {
            assert_eq!(report[list], json!([]), "{name}: {list}");
        }
    }
}

#[test]
fn objects_equal_the_recorded_ones() {
    for (name, report) in rendered(&[]) {
        assert_equals_file(&format!("tests/golden/charts/{name}.yaml"), &text_of(&report));
    }
}

#[test]
fn misspelt_field_of_an_object_is_reported() {
    let copy = copy_of_the_chart();
    let path = copy.path().join("templates/poddisruptionbudget.yaml");
    let text = fs::read_to_string(&path).expect("read").replace("maxUnavailable", "maxUnavailible");
    fs::write(&path, text).expect("write");
    let release = release(&values("one-node").to_string(), RELEASE);
    let report = render(copy.path(), &VERSIONS, &[release]).swap_remove(0);
    assert_eq!(
        report["violations"].as_array().map(Vec::len),
        Some(VERSIONS.len()),
        "{}",
        report["violations"]
    );
}

/// Blocks of a page: objects, and values of the chart. Of the custom resource it shows a part.
fn blocks(page: &str) -> (Vec<String>, Vec<String>) {
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks = blocks.filter(|block| !block.starts_with("apiVersion: fabric.svc/"));
    blocks.map(str::to_owned).partition(|block| block.starts_with("apiVersion: "))
}

#[test]
fn manifests_and_values_of_the_guide_are_valid() {
    let (manifests, values) = blocks(&read("docs/guide/kubernetes-chart.md"));
    assert_eq!((manifests.len(), values.len()), (6, 2));
    let order = json!({"manifests": manifests, "versions": VERSIONS});
    let (violations, success) = python::run("render_chart.py", &order);
    assert!(success, "{violations}");
    assert_eq!(violations, json!([]));
    // The second one shows a part.
    assert_eq!(refusal(render(&chart(), &VERSIONS, &[release(&values[0], RELEASE)])), ["accepted"]);
}

#[test]
fn alert_rules_are_those_of_the_cluster() {
    assert_equals_file("charts/trust-fabric/files/alerts.yml", &read("cluster/alerts.yml"));
    let (_, report) = rendered(&[]).into_iter().find(|(name, _)| name == "monitoring").expect("monitoring");
    let rule = of_kind(&report, "PrometheusRule").next().expect("a PrometheusRule");
    let groups = rule["spec"]["groups"].as_array().expect("groups");
    let of_cluster = groups.iter().filter(|group| group["name"] != "trust-fabric-pods");
    let alerts = of_cluster.flat_map(|group| group["rules"].as_array().expect("rules"));
    assert_eq!(alerts.count(), read("cluster/alerts.yml").matches("- alert: ").count());
    // The rules are about jobs with this name.
    let job = job_of(&report);
    assert!(job.starts_with("trust-fabric"), "{job}");
}

fn job_of(report: &Value) -> &str {
    let monitor = of_kind(report, "ServiceMonitor").next().expect("a ServiceMonitor");
    let job = &monitor["spec"]["endpoints"][0]["relabelings"][0];
    assert_eq!(job["targetLabel"], "job");
    job["replacement"].as_str().expect("a name")
}

/// A node without a pod is no target: only the number of nodes shows that it is missing. Without a `ServiceMonitor` the
/// name of the job is not the chart's, and the rule would fire for ever.
#[test]
fn rule_about_missing_nodes_needs_the_job_of_the_chart() {
    let values = values("monitoring");
    let unscraped = json!({"deploy": {"serviceMonitor": {"enabled": false}}});
    let releases = [&values, &patched(&values, &unscraped)].map(|one| release(&one.to_string(), RELEASE));
    let rules = |report: &Value| {
        let rule = of_kind(report, "PrometheusRule").next().expect("a PrometheusRule");
        let groups = rule["spec"]["groups"].as_array().expect("groups").iter();
        groups
            .filter(|group| group["name"] == "trust-fabric-pods")
            .map(|group| group["rules"].clone())
            .collect()
    };
    let reports = render(&chart(), &[], &releases);
    let found: Vec<Vec<Value>> = reports.iter().map(rules).collect();
    let [[of_pods], none] = [&found[0][..], &found[1][..]] else { panic!("{found:?}") };
    assert!(none.is_empty(), "{none:?}");
    let expected = format!("(sum(up{{job=\"{}\"}}) or vector(0)) < 3", job_of(&reports[0]));
    assert_eq!(of_pods[0]["expr"], expected);
}

#[test]
fn versions_of_the_charts_are_that_of_the_program() {
    for chart in ["trust-fabric", "trust-fabric-crds"] {
        let text = read(&format!("charts/{chart}/Chart.yaml"));
        for key in ["version", "appVersion"] {
            let line = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
            assert!(text.contains(&line), "{chart}: {key}");
        }
        assert!(text.contains("\nkubeVersion: \">=1.29.0-0\"\n"), "{chart}");
    }
}

fn refusal(reports: Vec<Value>) -> Vec<String> {
    let refused = |report: Value| report["refused"].as_str().unwrap_or("accepted").to_owned();
    reports.into_iter().map(refused).collect()
}

/// Values, the change that makes them bad, and a part of the message.
type BadValues = Vec<(&'static str, Value, &'static str)>;

fn pki(changes: &Value) -> Value {
    json!({"fabric": {"pki": changes}})
}

fn issuer(changes: &Value) -> Value {
    let issuer = json!({"issuer": "https://kubernetes.example.com", "subject": "kubernetes", "discovery": true,
        "trustDomains": ["trust.example.com"]});
    json!({"fabric": {"issuers": [patched(&issuer, changes)]}})
}

fn without_egress() -> Value {
    json!({"deploy": {"networkPolicy": {"egress": null}}})
}

fn refused_by_the_schema() -> BadValues {
    vec![
        (
            "one-node",
            json!({"fabric": {"replicas": 2}}),
            "at '/fabric/replicas': value must be one of 1, 3, 5",
        ),
        ("one-node", json!({"fabric": {"replicas": "3"}}), "at '/fabric/replicas'"),
        ("one-node", json!({"fabric": {"issuer": null}}), "at '/fabric': missing property 'issuer'"),
        ("one-node", json!({"fabric": {"issuer": "http://trust.example.com"}}), "at '/fabric/issuer'"),
        ("one-node", json!({"fabric": {"issuers": []}}), "at '/fabric/issuers'"),
        ("one-node", json!({"fabric": {"storage": {"size": "large"}}}), "at '/fabric/storage/size'"),
        (
            "one-node",
            json!({"fabric": {"replica": 3}}),
            "at '/fabric': additional properties 'replica' not allowed",
        ),
        (
            "one-node",
            json!({"deploy": {"image": {"tag": "1"}}}),
            "at '/deploy/image': additional properties 'tag'",
        ),
        ("one-node", issuer(&json!({"audience": "x"})), "additional properties 'audience' not allowed"),
        (
            "three-nodes",
            json!({"fabric": {"callers": [{"id": "gateway", "capabilities": ["exchange"]}]}}),
            "at '/fabric/callers/0/id'",
        ),
        (
            "three-nodes",
            json!({"fabric": {"callers": [{"id": "spiffe://a/b", "capabilities": ["admin"]}]}}),
            "at '/fabric/callers/0/capabilities/0'",
        ),
        ("one-node", pki(&json!({"mode": "vault"})), "at '/fabric/pki/mode'"),
    ]
}

fn refused_by_a_template() -> BadValues {
    vec![
        (
            "development",
            json!({"deploy": {"development": false}}),
            "it is permitted with deploy.development: true only.",
        ),
        (
            "one-node",
            pki(&json!({"issuerRef": null})),
            "fabric.pki.mode is certManagerCsi, which needs fabric.pki.issuerRef.",
        ),
        ("one-node", pki(&json!({"clientCA": null})), "which needs fabric.pki.clientCA, the CAs of callers."),
        (
            "one-node",
            pki(&json!({"secretName": "x"})),
            "fabric.pki.secretName is for mode secrets, and fabric.pki.mode is certManagerCsi.",
        ),
        ("three-nodes", pki(&json!({"peerCA": null})), "which needs fabric.pki.peerCA for several nodes."),
        (
            "spire",
            pki(&json!({"className": null})),
            "fabric.pki.mode is spire, which needs fabric.pki.className.",
        ),
        (
            "spire",
            pki(&json!({"peerIssuerRef": {"name": "x"}})),
            "fabric.pki.peerIssuerRef is for mode certManagerCsi, and fabric.pki.mode is spire.",
        ),
        ("spire", json!({"deploy": {"spiffeHelper": null}}), "which needs deploy.spiffeHelper.image"),
        (
            "one-node",
            issuer(&json!({"keysFile": "/x"})),
            "fabric.issuers[0] has 2 sources of keys and needs exactly one",
        ),
        (
            "one-node",
            issuer(&json!({"discovery": false})),
            "fabric.issuers[0] has 0 sources of keys and needs exactly one",
        ),
        ("one-node", issuer(&json!({"kind": "spiffe"})), "fabric.issuers[0].discovery does not fit its kind"),
        ("one-node", issuer(&json!({"subject": null})), "fabric.issuers[0].subject must be set for kind jwt"),
        (
            "every-setting",
            json!({"fabric": {"transmitter": {"privateKey": null}}}),
            "fabric.transmitter needs both certificate and privateKey, or neither.",
        ),
        (
            "one-node",
            json!({"deploy": {"files": [{"name": "a"}]}}),
            "deploy.files[0] needs exactly one of configMapName and secretName.",
        ),
        (
            "in-cluster",
            json!({"deploy": {"networkPolicy": {"apiServer": null}}}),
            "deploy.networkPolicy.apiServer must name its networks and ports.",
        ),
        (
            "one-node",
            without_egress(),
            "The nodes call other hosts for fabric.issuers[0]: deploy.networkPolicy.egress must name their networks",
        ),
        (
            "every-setting",
            without_egress(),
            "for fabric.federation.peers[0], fabric.issuers[0], fabric.issuers[2], fabric.issuers[4], \
             fabric.signals[0], fabric.signals[1], fabric.transmitter: deploy.networkPolicy.egress must name",
        ),
        ("in-cluster", json!({"fabric": {"callers": null}}), "deploy.test.exchange needs a caller"),
        (
            "one-node",
            json!({"deploy": {"service": {"externalTrafficPolicy": "Local"}}}),
            "deploy.service.externalTrafficPolicy needs deploy.service.type NodePort or LoadBalancer.",
        ),
        (
            "one-node",
            json!({"deploy": {"service": {"type": "NodePort", "loadBalancerClass": "x"}}}),
            "deploy.service.loadBalancerClass needs deploy.service.type LoadBalancer.",
        ),
        (
            "monitoring",
            json!({"fabric": {"metrics": null}}),
            "deploy.serviceMonitor.enabled needs fabric.metrics.access: authenticated",
        ),
        ("monitoring", json!({"deploy": {"serviceMonitor": {"ca": null}}}), "deploy.serviceMonitor needs ca"),
        (
            "monitoring",
            json!({"deploy": {"serviceMonitor": {"certificateSecret": null}}}),
            "deploy.serviceMonitor needs certificateSecret",
        ),
    ]
}

#[test]
fn bad_values_are_refused_with_their_reason() {
    let (by_schema, by_template) = (refused_by_the_schema(), refused_by_a_template());
    let bad: Vec<_> = by_schema.iter().chain(&by_template).collect();
    assert!(bad.len() >= 25, "{}", bad.len());
    let change = |(base, patch, _): &&(&str, Value, &str)| {
        release(&patched(&values(base), patch).to_string(), RELEASE)
    };
    let releases: Vec<Value> = bad.iter().map(change).collect();
    let reports = refusal(render(&chart(), &[], &releases));
    for (index, ((base, patch, message), found)) in bad.iter().zip(reports).enumerate() {
        assert!(found.contains(message), "{base} with {patch}: {found}");
        // For this reason alone; the schema lists several.
        let of_schema = usize::from(index < by_schema.len());
        assert_eq!(found.matches("\n- at ").count(), of_schema, "{base} with {patch}: {found}");
    }
}

/// Another policy may permit the calls, a transmitter may only be polled, and keys may come from files.
#[test]
fn egress_may_be_stated_as_none_or_left_out_without_calls() {
    let without = |change: Value| patched(&patched(&values("one-node"), &without_egress()), &change);
    let accepted = [
        without(json!({"deploy": {"networkPolicy": {"egress": []}}})),
        without(json!({"deploy": {"networkPolicy": {"enabled": false}}})),
        without(issuer(&json!({"discovery": null, "keysFile": "/x"}))),
    ];
    let releases = accepted.map(|values| release(&values.to_string(), RELEASE));
    assert_eq!(refusal(render(&chart(), &[], &releases)), ["accepted"; 3]);
}

#[test]
fn release_whose_name_is_no_service_is_refused() {
    let values = values("one-node").to_string();
    let long = "a".repeat(47);
    let names = ["1st", "a.b", &long];
    let releases: Vec<Value> = names.iter().map(|name| release(&values, name)).collect();
    for (name, found) in names.iter().zip(refusal(render(&chart(), &[], &releases))) {
        assert!(found.contains("cannot name a service"), "{name}: {found}");
    }
    let longest = release(&values, &"a".repeat(46));
    assert_eq!(refusal(render(&chart(), &VERSIONS, &[longest])), ["accepted"]);
}

fn copy_of_the_chart() -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("create a folder");
        for entry in fs::read_dir(from).expect("read a folder") {
            let path = entry.expect("an entry").path();
            let target = to.join(path.file_name().expect("a name"));
            if path.is_dir() {
                copy(&path, &target);
            } else {
                fs::copy(&path, &target).expect("copy a file");
            }
        }
    }
    let directory = tempfile::tempdir().expect("directory");
    copy(&chart(), directory.path());
    directory
}

/// Offline, `lookup` finds nothing; a template beside the others states the objects that it would find.
#[test]
fn changed_name_or_size_of_an_installed_fabric_is_refused() {
    let copy = copy_of_the_chart();
    let found = r#"{{ include "trust-fabric.unchanged" (dict "root" . "existing" (dict "data" (dict "trust-fabric.toml" (.Files.Get "old.toml"))) "set" (.Files.Get "old.json" | fromJson)) }}"#;
    fs::write(copy.path().join("templates/installed.yaml"), found).expect("write");
    let refused = |base: &str, patch: Value| {
        let old = values(base);
        let report = render(&chart(), &[], &[release(&old.to_string(), RELEASE)]).swap_remove(0);
        let map = of_kind(&report, "ConfigMap").next().expect("a ConfigMap");
        let text = map["data"]["trust-fabric.toml"].as_str().expect("the configuration");
        fs::write(copy.path().join("old.toml"), text).expect("write");
        let set = of_kind(&report, "StatefulSet").next().expect("a StatefulSet");
        fs::write(copy.path().join("old.json"), set.to_string()).expect("write");
        let new = release(&patched(&old, &patch).to_string(), RELEASE);
        refusal(render(copy.path(), &[], &[new])).swap_remove(0)
    };
    for base in ["one-node", "three-nodes"] {
        assert_eq!(refused(base, json!({"fabric": {"version": "9.9.9"}})), "accepted", "{base}");
    }
    // The API server writes a quantity in the largest unit.
    for equal in ["20480Mi", "21474836480", "20.0Gi"] {
        assert_eq!(
            refused("three-nodes", json!({"fabric": {"storage": {"size": equal}}})),
            "accepted",
            "{equal}"
        );
    }
    let peer_ca = json!({"name": "nodes-ca", "key": "ca.crt"});
    for (base, patch, message) in [
        (
            "one-node",
            json!({"fabric": {"issuer": "https://other.example.com"}}),
            "it is iss of every token and cannot change.",
        ),
        (
            "one-node",
            json!({"fabric": {"trustDomain": "other.example.com"}}),
            "it is part of every name and cannot change.",
        ),
        (
            "three-nodes",
            json!({"fabric": {"replicas": 5}}),
            "fabric.replicas is 5 and the installed fabric has 3:",
        ),
        (
            "one-node",
            json!({"fabric": {"replicas": 3, "pki": {"peerCA": peer_ca}}}),
            "fabric.replicas is 3 and the installed fabric has 1:",
        ),
        (
            "three-nodes",
            json!({
                "fabric": {"pki": {
                    "mode": "spire", "className": "c", "issuerRef": null, "peerIssuerRef": null, "clientCA": null,
                    "peerCA": null,
                }},
                "deploy": {"spiffeHelper": values("spire")["deploy"]["spiffeHelper"]},
            }),
            "the names of the nodes in their certificates change",
        ),
        (
            "three-nodes",
            json!({"fabric": {"storage": {"size": "50Gi"}}}),
            "fabric.storage.size is 50Gi and the StatefulSet has 20Gi: Kubernetes does not change it.",
        ),
        (
            "three-nodes",
            json!({"fabric": {"storage": {"size": "20G"}}}),
            "fabric.storage.size is 20G and the StatefulSet has 20Gi:",
        ),
        (
            "three-nodes",
            json!({"fabric": {"storage": {"storageClassName": null}}}),
            "fabric.storage.storageClassName is \"\" and the StatefulSet has \"local-nvme\":",
        ),
    ] {
        let found = refused(base, patch.clone());
        assert!(found.contains(message), "{patch}: {found}");
    }
}

#[test]
fn peers_port_is_open_to_the_nodes_only() {
    for (name, report) in rendered(&[]) {
        for policy in of_kind(&report, "NetworkPolicy") {
            let rows = policy["spec"]["ingress"].as_array().expect("rules");
            let opens = |row: &&Value| {
                row["ports"].as_array().is_some_and(|ports| ports.iter().any(|port| port["port"] == 8695))
            };
            let open: Vec<&Value> = rows.iter().filter(opens).collect();
            let [only] = open[..] else { panic!("{name}: {open:?}") };
            let selector = &policy["spec"]["podSelector"];
            assert_eq!(only["from"], json!([{"podSelector": selector}]), "{name}");
            // A rule without `from` is open to all.
            assert!(
                rows.iter().all(|row| row["from"].as_array().is_some_and(|from| !from.is_empty())),
                "{name}"
            );
        }
    }
    assert!(root().join("charts/trust-fabric/.helmignore").exists());
}
