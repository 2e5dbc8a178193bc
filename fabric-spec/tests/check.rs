//! The judgement of a plan: every value that a fabric must not have, at its path, and no other.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use trust_fabric_spec::check::{remove_nulls, violations};

fn good() -> Value {
    json!({
        "replicas": 3,
        "issuer": "https://trust.example.com",
        "trustDomain": "trust.example.com",
        "pki": {
            "mode": "certManagerCsi",
            "issuerRef": {"name": "a"},
            "clientCA": {"name": "a", "key": "b"},
            "peerCA": {"name": "a", "key": "b"},
        },
        "storage": {"size": "1Gi"},
        "issuers": [
            {"issuer": "https://a.example.com", "subject": "kubernetes", "discovery": true, "trustDomains": ["a"]},
        ],
    })
}

fn found(spec: &Value, old: Option<&Value>) -> Vec<String> {
    let found = violations(spec, old).expect("judged");
    found.into_iter().map(|violation| violation.to_string()).collect()
}

#[test]
fn value_that_the_api_server_refuses_is_found_at_its_path() {
    assert_eq!(found(&good(), None), Vec::<String>::new());
    for (place, value, said) in [
        ("/issuer", json!("http://trust.example.com"), "spec.issuer: "),
        ("/replicas", json!(2), "spec.replicas: "),
        ("/replicas", json!("three"), "spec.replicas: "),
        ("/storage/size", json!("1 GB"), "spec.storage.size: "),
        ("/pki/issuerRef/name", json!(""), "spec.pki.issuerRef.name: "),
        ("/issuers", json!([]), "spec.issuers: "),
        ("/issuers/0/subject", json!("nobody"), "spec.issuers[0].subject: "),
        ("/issuers/0/discovery", json!(false), "spec.issuers[0]: an issuer has exactly one of"),
        ("/pki/mode", json!("spire"), "spec.pki: issuerRef must be set"),
    ] {
        let mut bad = good();
        *bad.pointer_mut(place).expect("a place") = value;
        let found = found(&bad, None);
        assert!(found.iter().any(|text| text.starts_with(said)), "{place}: {found:?}");
    }
    for place in ["", "/pki", "/issuers/0"] {
        let mut bad = good();
        bad.pointer_mut(place).expect("a place")["unheard"] = json!(1);
        assert!(found(&bad, None)[0].contains("unheard"), "{place}");
    }
    let mut bad = good();
    bad.as_object_mut().expect("an object").remove("storage");
    assert!(found(&bad, None)[0].contains("storage"));
}

#[test]
fn change_of_an_immutable_value_is_found() {
    for (name, value) in
        [("issuer", json!("https://b.example.com")), ("trustDomain", json!("b")), ("replicas", json!(5))]
    {
        let mut other = good();
        other[name] = value;
        assert_eq!(found(&other, None), Vec::<String>::new(), "{name}");
        let found = found(&other, Some(&good()));
        assert!(found.len() == 1 && found[0].contains(&format!("{name} is immutable")), "{found:?}");
    }
}

#[test]
fn default_is_set_before_a_rule_is_judged() {
    let mut without = good();
    without.as_object_mut().expect("an object").remove("replicas");
    assert_eq!(found(&without, Some(&good())), Vec::<String>::new());
    without["pki"].as_object_mut().expect("an object").remove("peerCA");
    let found = found(&without, None);
    assert!(found.len() == 1 && found[0].contains("peerCA must be set for several nodes"), "{found:?}");
}

#[test]
fn null_is_as_good_as_absent() {
    let mut stated = good();
    stated["version"] = Value::Null;
    stated["issuers"][0]["audience"] = Value::Null;
    remove_nulls(&mut stated);
    assert_eq!(stated, good());
}
