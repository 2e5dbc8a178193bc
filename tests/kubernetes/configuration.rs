//! The configuration that the chart writes: that of the type, valid for the program, with every setting.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Command;

use serde_json::{Value, json};
use trust_fabric_spec::config::{Release, to_toml};

use crate::releases::{NAMESPACE, RELEASE, files, of_kind, parsed, read, rendered, root};

/// Settings of the example that a fabric on Kubernetes does not have, with the reason.
const ABSENT: [(&str, &str); 4] = [
    ("node.id", "the number of the pod, from the environment"),
    ("node.mode", "production, the default: development mode is one node on loopback"),
    ("node.unit_id", "node-<id>, the default"),
    ("listen.http", "the loopback address, the default: probes and callers use 8694"),
];

fn configuration(report: &Value) -> &str {
    let map = of_kind(report, "ConfigMap").next().expect("a ConfigMap");
    map["data"]["trust-fabric.toml"].as_str().expect("the configuration")
}

fn written(text: &str) -> String {
    let release = Release { name: RELEASE, namespace: NAMESPACE };
    to_toml(&parsed(text).fabric, release).expect("a configuration")
}

#[test]
fn chart_and_type_write_the_same_configuration() {
    for ((name, text), (_, report)) in files().into_iter().zip(rendered(&[])) {
        let of_chart: toml::Table = toml::from_str(configuration(&report)).expect("TOML");
        let of_type: toml::Table = toml::from_str(&written(&text)).expect("TOML");
        assert_eq!(of_chart, of_type, "{name}");
    }
}

/// The environment of node `id`, as kubelet makes it.
fn environment(report: &Value, id: u64) -> Vec<(String, String)> {
    let set = of_kind(report, "StatefulSet").next().expect("a StatefulSet");
    let rows = set["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("variables");
    let mut variables: Vec<(String, String)> = Vec::new();
    for row in rows {
        let value = if let Some(text) = row["value"].as_str() {
            variables
                .iter()
                .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
        } else {
            let field = &row["valueFrom"]["fieldRef"]["fieldPath"];
            assert_eq!(field, "metadata.labels['apps.kubernetes.io/pod-index']");
            id.to_string()
        };
        variables.push((row["name"].as_str().expect("a name").to_owned(), value));
    }
    variables
}

#[test]
fn configuration_of_every_node_is_valid() {
    for (name, report) in rendered(&[]) {
        let mut file = tempfile::NamedTempFile::with_suffix(".toml").expect("file");
        file.write_all(configuration(&report).as_bytes()).expect("written");
        let set = of_kind(&report, "StatefulSet").next().expect("a StatefulSet");
        for id in 1..=set["spec"]["replicas"].as_u64().expect("a number") {
            let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
                .args(["config", "check", "--config"])
                .arg(file.path())
                .envs(environment(&report, id))
                .env("TRUST_FABRIC__POLICY__DIRECTORY", root().join("policies"))
                .output()
                .expect("run the program");
            let reason = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}, node {id}: {reason}");
        }
    }
}

#[test]
fn pod_outside_the_fabric_is_not_a_node_of_it() {
    let (_, report) = rendered(&[]).into_iter().find(|(name, _)| name == "three-nodes").expect("three nodes");
    let mut file = tempfile::NamedTempFile::with_suffix(".toml").expect("file");
    file.write_all(configuration(&report).as_bytes()).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
        .args(["config", "check", "--config"])
        .arg(file.path())
        .envs(environment(&report, 4))
        .output()
        .expect("run the program");
    let reason = String::from_utf8_lossy(&output.stderr);
    assert!(reason.contains("cluster.members: must include this node"), "{reason}");
}

/// Names of all settings in a table, without the names that users choose.
fn settings(table: &toml::Table, prefix: &str, names: &mut BTreeSet<String>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let is_of_users = name == "blast_radius.parents" || name == "federation.peers.blast_radius";
        match value {
            toml::Value::Table(inner) if !is_of_users => settings(inner, &name, names),
            toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
                items.iter().filter_map(toml::Value::as_table).for_each(|item| settings(item, &name, names));
            }
            _ => drop(names.insert(name)),
        }
    }
}

/// The example with every commented-out setting.
fn example() -> toml::Table {
    let is_key = |line: &str| {
        let name = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ")
            && name.trim_matches('"').bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'_' | b':'))
    };
    let uncommented = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<String> = read("trust-fabric.example.toml").lines().map(uncommented).collect();
    toml::from_str(&text.join("\n")).expect("TOML")
}

#[test]
fn every_setting_of_the_example_is_in_a_fabric_or_absent() {
    let mut known = BTreeSet::new();
    settings(&example(), "", &mut known);
    assert!(known.len() > 80, "{known:?}");
    let mut found = BTreeSet::new();
    for (_, text) in files() {
        settings(&toml::from_str(&written(&text)).expect("TOML"), "", &mut found);
    }
    let absent: BTreeSet<String> = ABSENT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<&String> = known.difference(&found).collect();
    assert_eq!(missing, absent.iter().collect::<Vec<_>>(), "settings without a counterpart");
}

/// Names of all values in a schema.
fn of_schema(schema: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{prefix}.{key}");
        of_schema(value, &name, names);
        of_schema(&value["items"], &name, names);
        names.insert(name);
    }
}

/// Places of a schema at which a value that it does not name is accepted.
fn open_objects(schema: &Value, place: &str) -> Vec<String> {
    let mut open = Vec::new();
    let is_closed = schema["additionalProperties"] == false;
    let is_map = schema["additionalProperties"].is_object() && schema.get("properties").is_none();
    if schema["type"] == "object" && !is_closed && !is_map {
        open.push(place.to_owned());
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        open.extend(open_objects(inner, &format!("{place}.{key}")));
    }
    if schema["items"].is_object() {
        open.extend(open_objects(&schema["items"], &format!("{place}[]")));
    }
    open
}

#[test]
fn schema_of_values_names_every_value() {
    let schema: Value = serde_json::from_str(&read("charts/trust-fabric/values.schema.json")).expect("JSON");
    assert_eq!(open_objects(&schema, ""), Vec::<String>::new());
    let open =
        json!({"type": "object", "additionalProperties": false, "properties": {"a": {"type": "object"}}});
    assert_eq!(open_objects(&open, ""), [".a"]);
}

fn of_values(value: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let name = format!("{prefix}.{key}");
                of_values(value, &name, names);
                names.insert(name);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| of_values(item, prefix, names)),
        _ => {}
    }
}

/// So that the tests with the files of values are about every value.
#[test]
fn files_of_values_have_every_value() {
    let schema: Value = serde_json::from_str(&read("charts/trust-fabric/values.schema.json")).expect("JSON");
    let (mut known, mut found) = (BTreeSet::new(), BTreeSet::new());
    of_schema(&schema, "", &mut known);
    for (_, text) in files() {
        of_values(&serde_json::to_value(parsed(&text)).expect("JSON"), "", &mut found);
    }
    assert!(known.len() > 150, "{known:?}");
    assert_eq!(known.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new());
}
