//! The example file is a valid configuration with every setting.

use super::*;

const EXAMPLE: &str = include_str!("../../../trust-fabric.example.toml");

#[test]
fn example_is_valid() {
    let config = good(EXAMPLE);
    assert_eq!((config.issuers.len(), config.signals.len()), (5, 1));
    assert_eq!(config.federation.map(|federation| federation.peers.iter().count()), Some(1));
    let base_url = "https://trust.example.com:8694".to_owned();
    assert_eq!(config.transmitter, Some(TransmitterConfig { base_url, certificate: None }));
}

/// The example with every commented-out setting enabled.
fn example_with_defaults_set() -> String {
    let is_key = |line: &str| {
        let name = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ")
            && name.trim_matches('"').bytes().all(|b| b.is_ascii_lowercase() || matches!(b, b'_' | b':'))
    };
    let uncommented = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) => rest.to_owned(),
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(uncommented).collect::<Vec<_>>().join("\n")
}

#[test]
fn defaults_in_the_example_are_the_defaults() {
    let text = example_with_defaults_set();
    let effective = |text: &str| {
        show(Some(file(text).path()), &mut std::iter::empty(), &Overrides::default()).expect("good")
    };
    let (mut set, mut unset) = (effective(&text), effective(EXAMPLE));
    // Derived from other settings, or examples of settings without a default.
    assert_eq!(set["node"]["unit_id"].take(), "node-1");
    assert_eq!(set["blast_radius"]["parents"].take()["namespace:payments"], "cluster:eu-1");
    unset["blast_radius"]["parents"].take();
    assert_eq!(set["tls"]["client_crl"].take(), "/etc/trust-fabric/client-crl.pem");
    assert_eq!(set["tls"]["client_trust_domain"].take(), unset["fabric"]["trust_domain"]);
    assert_eq!(set["tls"]["trust_domains"].take()[0]["name"], "eu.example.com");
    unset["tls"]["trust_domains"].take();
    for file in ["certificate", "private_key"] {
        let found = set["transmitter"][file].take();
        assert!(found.as_str().is_some_and(|path| path.starts_with("/etc/trust-fabric/push")), "{found}");
    }
    assert_eq!(set["issuers"][0]["audiences"].take()[0], unset["fabric"]["issuer"]);
    for file in ["ca_file", "bearer_token_file"] {
        let found = set["issuers"][0][file].take();
        assert!(found.as_str().is_some_and(|path| path.starts_with("/var/run/secrets/")), "{found}");
    }
    assert_eq!(set["transmitter"]["allow_loopback_push"].take(), false);
    assert_eq!(set["cluster"]["listen"].take(), "0.0.0.0:8695");
    assert_eq!(set["cluster"]["members"][0].take()["id"], 1);
    for of_several in ["certificate", "private_key", "ca", "crl", "members"] {
        set["cluster"][of_several] = unset["cluster"][of_several].clone();
    }
    for file in ["certificate", "private_key"] {
        let found = set["federation"][file].take();
        assert!(
            found.as_str().is_some_and(|path| path.starts_with("/etc/trust-fabric/federation")),
            "{found}"
        );
    }
    let peer = &mut set["federation"]["peers"][0];
    assert_eq!(peer["max_entries"].take(), limits::FEDERATED_ENTRIES_MAX);
    let of_peer = [peer["bundle_endpoint"].take(), peer["crl"].take()];
    assert!(of_peer.iter().all(serde_json::Value::is_string), "{of_peer:?}");
    assert_eq!(peer["max_blast_radius"].take(), "namespace:shared");
    assert_eq!(peer["blast_radius"].take()["namespace:prod"], "namespace:shared");
    unset["federation"]["peers"][0]["blast_radius"].take();
    assert_eq!(set["signals"][0]["audiences"].take()[0], unset["fabric"]["issuer"]);
    assert_eq!(set["signals"][0]["subject_issuers"].take()[0], unset["signals"][0]["issuer"]);
    assert_eq!(set, unset);
}

#[test]
fn example_has_every_setting() {
    let all = Settings {
        issuers: vec![schema::Issuer::default()],
        signals: vec![schema::SignalIssuer::default()],
        callers: vec![schema::Caller::default()],
        tls: Some(schema::Tls::default()),
        transmitter: Some(schema::TransmitterSection::default()),
        federation: Some(schema::FederationSection {
            peers: vec![schema::PeerFabric::default()],
            ..schema::FederationSection::default()
        }),
        ..Settings::default()
    };
    let all = serde_json::to_value(all).expect("keys");
    let mut sections: Vec<(String, &serde_json::Value)> =
        all.as_object().expect("sections").iter().map(|(name, section)| (name.clone(), section)).collect();
    assert_eq!(sections.len(), 16);
    sections.push(("federation.peers".to_owned(), &all["federation"]["peers"]));
    for (_, section) in sections.iter_mut().filter(|(_, section)| section.is_array()) {
        *section = &section[0];
    }
    for (name, section) in sections {
        assert!(EXAMPLE.contains(&format!("[{name}]")), "[{name}]");
        for key in section.as_object().expect("keys").keys() {
            let shown =
                EXAMPLE.contains(&format!("{key} = ")) || EXAMPLE.contains(&format!("[{name}.{key}]"));
            assert!(shown, "{name}.{key}");
        }
    }
}
