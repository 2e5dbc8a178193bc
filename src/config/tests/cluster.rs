//! `[cluster]`.

use super::*;
use crate::cluster::FreshnessMode;

const PEERS: &str = "[cluster]\nlisten = \"0.0.0.0:8695\"\ncertificate = \"peer.crt\"\nprivate_key = \"peer.key\"\n\
                     ca = \"ca.crt\"\n";

fn member(id: u64, address: &str) -> String {
    format!("[[cluster.members]]\nid = {id}\naddress = \"{address}\"\n")
}

fn identity(id: u64, identity: &str) -> String {
    format!("{}identity = \"{identity}\"\n", member(id, &format!("n{id}:1")))
}

fn three() -> String {
    [1, 2, 3].map(|id| member(id, &format!("node-{id}.example.com:8695"))).concat()
}

#[test]
fn node_without_peers_is_a_cluster_of_one() {
    assert!(good(&format!("{PRODUCTION}{ISSUER}")).cluster.peers.is_none());
    assert!(good(&format!("{PRODUCTION}{ISSUER}[cluster]\nheartbeat = \"50ms\"\n")).cluster.peers.is_none());
}

#[test]
fn freshness_mode_is_a_setting_of_each_node() {
    let text = |value: &str| format!("{PRODUCTION}{ISSUER}[cluster]\nfreshness = \"{value}\"\n");
    assert_eq!(good(&format!("{PRODUCTION}{ISSUER}")).cluster.freshness, FreshnessMode::Lease);
    for (value, mode) in [("lease", FreshnessMode::Lease), ("read-index", FreshnessMode::ReadIndex)] {
        assert_eq!(good(&text(value)).cluster.freshness, mode, "{value}");
    }
    for value in ["", "Lease", "readindex", "read_index", "leader"] {
        let found = mistakes(&text(value), &[]);
        assert!(
            matches!(found.as_slice(), [only] if only.setting == "cluster.freshness"),
            "{value}: {found:?}"
        );
    }
    let by_environment = [("TRUST_FABRIC__CLUSTER__FRESHNESS", "read-index")];
    let config = loaded(&text("lease"), &by_environment, &Overrides::default()).expect("good");
    assert_eq!(config.cluster.freshness, FreshnessMode::ReadIndex);
}

#[test]
fn peers_have_listener_and_members() {
    let config = good(&format!("{PRODUCTION}{ISSUER}{PEERS}{}", three()));
    let peers = config.cluster.peers.expect("peers");
    assert_eq!(peers.listen.to_string(), "0.0.0.0:8695");
    assert_eq!(peers.members.len(), 3);
    assert_eq!(peers.members[&2], "node-2.example.com:8695");
    assert!(config.outbound.own_ports.contains(&8695), "own port");
}

#[test]
fn member_has_the_configured_identity() {
    let pod = "spiffe://trust.example.com/ns/fabric/pod/trust-fabric-1";
    let config = good(&format!("{PRODUCTION}{ISSUER}{PEERS}{}{}", member(1, "a:1"), identity(2, pod)));
    let identities = config.cluster.peers.expect("peers").identities;
    assert_eq!(identities.of(1), "spiffe://trust.example.com/node/1");
    assert_eq!(identities.of(2), pod);
}

#[test]
fn members_that_break_a_rule_are_refused() {
    let many: String =
        (1..=limits::MEMBERS_MAX as u64 + 1).map(|id| member(id, &format!("n{id}:1"))).collect();
    for (members, key, rule) in [
        (member(2, "b:1"), "cluster.members", "must include this node, whose node.id is 1"),
        (member(0, "a:1"), "cluster.members[0].id", "must be 1 to 65535"),
        (member(65_536, "a:1"), "cluster.members[0].id", "must be 1 to 65535"),
        (format!("{}{}", member(1, "a:1"), member(1, "b:1")), "cluster.members[1].id", "duplicate"),
        (format!("{}{}", member(1, "a:1"), member(2, "a:1")), "cluster.members[1].address", "duplicate"),
        (member(1, "a"), "cluster.members[0].address", "must be a host and a port"),
        (member(1, ":8695"), "cluster.members[0].address", "must be a host and a port"),
        (member(1, "a:0"), "cluster.members[0].address", "must be a host and a port"),
        (member(1, "a:65536"), "cluster.members[0].address", "must be a host and a port"),
        (member(1, "https://a:1"), "cluster.members[0].address", "must be a host and a port"),
        (member(1, "a b:1"), "cluster.members[0].address", "must be a host and a port"),
        (
            identity(1, "spiffe://other.example/a"),
            "cluster.members[0].identity",
            "of the trust domain of the fabric",
        ),
        (identity(1, "spiffe://trust.example.com/node/2"), "cluster.members[0].identity", "of another node"),
        (identity(1, "node-1"), "cluster.members[0].identity", "must be a SPIFFE ID"),
        (
            format!(
                "{}{}",
                identity(1, "spiffe://trust.example.com/a"),
                identity(2, "spiffe://trust.example.com/a")
            ),
            "cluster.members[1].identity",
            "duplicate",
        ),
        ("[[cluster.members]]\nid = 1\n".to_owned(), "cluster.members[0].address", "must be set"),
        (many, "cluster.members", "must be at most 9"),
    ] {
        let found = mistakes(&format!("{PRODUCTION}{ISSUER}{PEERS}{members}"), &[]);
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|m| m.setting == key && m.rule.contains(rule)), "{members}: {texts:?}");
    }
    for address in ["127.0.0.1:8695", "[::1]:8695", "node_1:8695", "node-1.example.com:8695"] {
        good(&format!("{PRODUCTION}{ISSUER}{PEERS}{}", member(1, address)));
    }
}

#[test]
fn peers_without_certificates_or_in_development_are_refused() {
    let found =
        mistakes(&format!("{PRODUCTION}{ISSUER}[cluster]\nlisten = \"0.0.0.0:8695\"\n{}", three()), &[]);
    let keys: Vec<_> = found.iter().map(|mistake| mistake.setting.as_str()).collect();
    assert_eq!(keys, ["cluster.certificate", "cluster.private_key", "cluster.ca"]);
    let found = mistakes(&format!("{PRODUCTION}{ISSUER}[cluster]\n{}", three()), &[]);
    assert!(found.iter().any(|mistake| mistake.setting == "cluster.listen" && mistake.rule == "must be set"));
    let (key, rule) = mistake(&format!("{PEERS}{}", three()));
    assert_eq!(key, "cluster.listen");
    assert!(rule.contains("development mode"), "{rule}");
}
