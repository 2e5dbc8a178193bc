//! The definition of the custom resource: its schema, and its rules in a second reader of CEL.

use serde_json::{Value, json};
use trust_fabric::limits;
use trust_fabric_spec::{check, crd};

use crate::python;
use crate::releases::{files, patched, release, render, root, values};

fn schema() -> Value {
    let definition = crd::definition().expect("a definition");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn fabric(name: &str) -> Value {
    let spec = values(name)["fabric"].clone();
    json!({"apiVersion": "fabric.svc/v1alpha1", "kind": "Fabric", "metadata": {"name": "fabric"}, "spec": spec})
}

/// The rules of structural schemas that this one could break.
fn not_structural(schema: &Value, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !schema["type"].is_string() {
        found.push(format!("{place}: no type"));
    }
    for key in ["$ref", "anyOf", "oneOf", "allOf", "not", "const", "definitions", "$schema", "title"] {
        if schema.get(key).is_some() {
            found.push(format!("{place}: {key}"));
        }
    }
    if schema["additionalProperties"].is_boolean()
        || (schema.get("additionalProperties").is_some() && schema.get("properties").is_some())
    {
        found.push(format!("{place}: additionalProperties"));
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.extend(not_structural(inner, &format!("{place}.{key}")));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key).filter(|inner| inner.is_object()) {
            found.extend(not_structural(inner, &format!("{place}.{key}")));
        }
    }
    found
}

#[test]
fn definition_is_valid_and_structural() {
    let release = release("{}", "crds");
    let report = render(&root().join("charts/trust-fabric-crds"), &["1.30", "1.33", "1.37"], &[release])
        .swap_remove(0);
    assert_eq!((&report["violations"], &report["lint"]), (&json!([]), &json!([])));
    assert!(report["objects"][0] == crd::definition().expect("a definition"), "run `make fix`");
    assert_eq!(not_structural(&schema(), ""), Vec::<String>::new());
}

#[test]
fn limits_of_the_schema_are_those_of_a_node() {
    let schema = schema();
    let spec = &schema["properties"]["spec"]["properties"];
    let maximum = |section: &str, name: &str| spec[section]["properties"][name]["maximum"].as_u64();
    for (section, name, most) in [
        ("limits", "requestsPerSecondPerCaller", u64::from(limits::REQUESTS_PER_SECOND_MAX)),
        ("limits", "connectionsPerAddress", limits::CONNECTIONS_MAX as u64),
        ("limits", "connectionsPerIdentity", limits::CONNECTIONS_MAX as u64),
        ("cluster", "logBytesMax", limits::LOG_BYTES_MAX_HIGHEST),
    ] {
        assert_eq!(maximum(section, name), Some(most), "{section}.{name}");
    }
}

#[test]
fn schema_that_is_not_structural_is_reported() {
    for (bad, reason) in [
        (json!({}), ": no type"),
        (json!({"type": "object", "additionalProperties": false}), ": additionalProperties"),
        (json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": []}}}), ".a: anyOf"),
        (json!({"type": "array", "items": {"type": "string", "title": "A"}}), ".items: title"),
    ] {
        assert_eq!(not_structural(&bad, ""), [reason]);
    }
}

#[test]
fn fabric_of_every_file_of_values_fits_the_schema() {
    let validator = jsonschema::validator_for(&schema()).expect("a schema");
    for (name, _) in files() {
        let errors: Vec<String> =
            validator.iter_errors(&fabric(&name)).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{name}");
    }
    let bad = patched(&fabric("one-node"), &json!({"spec": {"replicas": 2}}));
    assert!(!validator.is_valid(&bad));
}

/// A rule with the value and the earlier value that it judges.
struct Judgement {
    message: String,
    order: Value,
}

/// Every rule below `schema`, at every place of `value` that it is about.
fn judgements(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<Judgement> {
    let mut found = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().expect("a rule");
        let mut order = json!({"rule": text, "self": value});
        if text.contains("oldSelf") {
            // A rule about a change is not evaluated for a new object.
            let Some(old) = old else { continue };
            order["oldSelf"] = old.clone();
        }
        found.push(Judgement { message: rule["message"].as_str().expect("a message").to_owned(), order });
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(key) {
            found.extend(judgements(inner, value, old.and_then(|old| old.get(key))));
        }
    }
    for item in value.as_array().into_iter().flatten() {
        found.extend(judgements(&schema["items"], item, None));
    }
    found
}

/// Messages of the rules that each pair of objects breaks.
fn broken(pairs: &[(Value, Option<Value>)]) -> Vec<Vec<String>> {
    let schema = schema();
    let all: Vec<Vec<Judgement>> =
        pairs.iter().map(|(object, old)| judgements(&schema, object, old.as_ref())).collect();
    let orders: Vec<&Value> = all.iter().flatten().map(|judgement| &judgement.order).collect();
    let (report, success) = python::run("evaluate_cel.py", &json!(orders));
    assert!(success, "{report}");
    let mut results = report.as_array().expect("results").iter();
    let mut broken = Vec::new();
    for judgements in all {
        let mut messages = Vec::new();
        for judgement in judgements {
            if results.next() != Some(&json!(true)) {
                messages.push(judgement.message);
            }
        }
        broken.push(messages);
    }
    assert_eq!(broken, by_check(&schema, pairs), "two readers of CEL");
    broken
}

/// The same by the reader of a plan.
fn by_check(schema: &Value, pairs: &[(Value, Option<Value>)]) -> Vec<Vec<String>> {
    let broken =
        |(object, old): &(Value, Option<Value>)| check::broken_rules(schema, object, old.as_ref(), "");
    let messages = |pair| broken(pair).into_iter().map(|violation| violation.message).collect();
    pairs.iter().map(messages).collect()
}

#[test]
fn fabric_of_every_file_of_values_breaks_no_rule() {
    let fabrics: Vec<(Value, Option<Value>)> =
        files().iter().map(|(name, _)| (fabric(name), Some(fabric(name)))).collect();
    assert!(broken(&fabrics).iter().all(Vec::is_empty));
}

#[test]
fn each_rule_refuses_the_fabric_that_breaks_it() {
    let issuer =
        |patch: Value| json!({"issuers": [patched(&fabric("one-node")["spec"]["issuers"][0], &patch)]});
    let cases = [
        (
            "one-node",
            json!({"replicas": 2, "pki": {"peerCA": {"name": "a", "key": "b"}}}),
            "replicas must be 1, 3 or 5",
        ),
        (
            "one-node",
            json!({"replicas": 3, "pki": {"peerCA": {"name": "a", "key": "b"}}}),
            "replicas is immutable",
        ),
        ("one-node", json!({"issuer": "https://other.example.com"}), "issuer is immutable"),
        ("one-node", json!({"trustDomain": "other.example.com"}), "trustDomain is immutable"),
        ("three-nodes", json!({"pki": {"peerCA": null}}), "pki.peerCA must be set for several nodes"),
        ("one-node", json!({"pki": {"clientCA": null}}), "clientCA must be set"),
        ("one-node", json!({"pki": {"issuerRef": null}}), "issuerRef must be set"),
        ("spire", json!({"pki": {"issuerRef": {"name": "a"}}}), "issuerRef must be set"),
        ("spire", json!({"pki": {"peerIssuerRef": {"name": "a"}}}), "peerIssuerRef is for"),
        ("spire", json!({"pki": {"className": null}}), "className must be set"),
        ("development", json!({"pki": {"secretName": null}}), "secretName must be set"),
        ("one-node", issuer(json!({"discovery": false})), "an issuer has exactly one of"),
        ("one-node", issuer(json!({"keysUrl": "https://a.example.com"})), "an issuer has exactly one of"),
        (
            "one-node",
            issuer(json!({"kind": "spiffe", "subject": null})),
            "bundleFile and bundleEndpoint are for",
        ),
        ("one-node", issuer(json!({"subject": null})), "subject must be set for kind jwt"),
        ("one-node", json!({"signals": [{"issuer": "https://a.example.com"}]}), "an issuer of signals has"),
        (
            "one-node",
            json!({"transmitter": {"baseUrl": "https://a.example.com", "certificate": "a"}}),
            "certificate and privateKey",
        ),
        ("every-setting", json!({"federation": {"privateKey": null}}), "certificate and privateKey"),
        (
            "one-node",
            json!({"federation": {"peers": [{"name": "a", "issuer": "https://a.example.com", "trustDomains": ["a"], "ids": ["a"], "bundleFile": "a"}]}}),
            "a peer needs accept or serve",
        ),
    ];
    let pair = |(name, patch, _): &(&str, Value, &str)| {
        let old = fabric(name);
        let is_change = patch.get("replicas") != Some(&json!(2));
        (patched(&old, &json!({"spec": patch})), is_change.then_some(old))
    };
    let pairs: Vec<_> = cases.iter().map(pair).collect();
    for ((name, patch, message), found) in cases.iter().zip(broken(&pairs)) {
        let [only] = &found[..] else { panic!("{name} with {patch}: {found:?}") };
        assert!(only.starts_with(message), "{name} with {patch}: {only}");
    }
}
