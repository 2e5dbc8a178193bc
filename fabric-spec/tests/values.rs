//! Values that the type does not have are refused, and so is a fabric without a configuration.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use trust_fabric_spec::chart::Values;
use trust_fabric_spec::config::{Release, to_toml};

fn good() -> Value {
    json!({"fabric": {
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
        "issuers": [{"issuer": "https://a.example.com", "trustDomains": ["a.example.com"]}],
        "federation": {"peers": []},
    }, "deploy": {}})
}

fn parse(values: &Value) -> Result<Values, String> {
    Values::parse(&values.to_string()).map_err(|error| error.to_string())
}

fn configuration(values: &Value) -> Result<String, String> {
    let release = Release { name: "fabric", namespace: "fabric" };
    to_toml(&parse(values)?.fabric, release).map_err(|error| error.to_string())
}

#[test]
fn unknown_value_is_refused_at_every_depth() {
    assert!(parse(&good()).is_ok());
    for place in [
        "",
        "/fabric",
        "/fabric/pki",
        "/fabric/pki/issuerRef",
        "/fabric/issuers/0",
        "/fabric/federation",
        "/deploy",
    ] {
        let mut bad = good();
        bad.pointer_mut(place).expect("a place")["unheard"] = json!(1);
        let refused = parse(&bad).expect_err("refused");
        assert!(refused.contains("unknown field `unheard`"), "{place}: {refused}");
    }
}

#[test]
fn name_in_snake_case_is_refused() {
    let mut bad = good();
    bad["fabric"]["issuers"][0]["keys_url"] = json!("https://a.example.com/keys");
    assert!(parse(&bad).expect_err("refused").contains("unknown field `keys_url`"));
}

#[test]
fn fabric_of_four_nodes_or_without_a_ca_has_no_configuration() {
    assert!(configuration(&good()).is_ok());
    for (place, value, reason) in [
        ("/fabric/replicas", json!(4), "replicas is 4, must be 1, 3 or 5"),
        ("/fabric/pki/clientCA", Value::Null, "client-ca.pem has no source"),
        ("/fabric/pki/peerCA", Value::Null, "peer-ca.pem has no source"),
    ] {
        let mut bad = good();
        *bad.pointer_mut(place).expect("a place") = value;
        let refused = configuration(&bad).expect_err("refused");
        assert!(refused.contains(reason), "{place}: {refused}");
    }
}

#[test]
fn names_that_users_choose_are_kept_as_they_are() {
    let mut values = good();
    values["fabric"]["blastRadius"] = json!({"parents": {"namespace:paymentsTeam": "cluster:euOne"}});
    let text = configuration(&values).expect("a configuration");
    assert!(text.contains("\"namespace:paymentsTeam\" = \"cluster:euOne\""), "{text}");
}
