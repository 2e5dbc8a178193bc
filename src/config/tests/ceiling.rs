//! The settings of `[[federation.peers]]` that limit a peer's tokens: each rule broken once.

use std::time::Duration;

use super::federation::{peer, refused, with};
use super::*;
use crate::token::fabric_peers::Role;

#[test]
fn tokens_of_a_peer_are_not_accepted_by_default() {
    let config = good(&with(&peer(&[])));
    let federation = config.federation.expect("federation");
    let ceiling = &federation.peers.by_name("eu").expect("eu").ceiling;
    assert!(ceiling.roles.is_empty() && ceiling.capabilities.is_empty() && ceiling.blast_radius.is_empty());
    assert_eq!((ceiling.max_delegation_depth, ceiling.max_chain), (0, limits::PEER_FABRIC_CHAIN));
    assert_eq!(ceiling.max_blast_radius, None);
}

#[test]
fn ceiling_of_a_peer_is_read() {
    let config = good(&with(&peer(&[
        ("as", r#"["subject", "actor"]"#),
        ("capabilities", r#"["db.read"]"#),
        ("max_blast_radius", r#""namespace:shared""#),
        ("max_delegation_depth", "2"),
        ("max_chain", r#""1h""#),
        ("callers", r#"["spiffe://eu.example.com/gateway"]"#),
        ("blast_radius", r#"{ "region:eu" = "namespace:eu" }"#),
    ])));
    let federation = config.federation.expect("federation");
    let [gateway, other] =
        ["gateway", "gateway2"].map(|name| format!("spiffe://eu.example.com/{name}").parse().expect("an id"));
    assert!(federation.peers.may_exchange(&gateway) && !federation.peers.may_exchange(&other));
    let ceiling = &federation.peers.by_name("eu").expect("eu").ceiling;
    assert_eq!(ceiling.roles, [Role::Subject, Role::Actor].into());
    assert_eq!(ceiling.capabilities, ["db.read".to_owned()].into());
    let radius = |text: &str| text.parse().expect("a blast radius");
    assert_eq!(ceiling.max_blast_radius, Some(radius("namespace:shared")));
    assert_eq!(ceiling.blast_radius, [(radius("region:eu"), radius("namespace:eu"))].into());
    assert_eq!((ceiling.max_delegation_depth, ceiling.max_chain), (2, Duration::from_secs(3600)));
}

#[test]
fn ceiling_that_breaks_a_rule_is_refused() {
    for (name, value, rule) in [
        ("as", r#"["owner"]"#, "must be \"subject\" or \"actor\""),
        ("as", r#"["actor", "actor"]"#, "each role once"),
        ("capabilities", r#"["two words"]"#, "must be a scope word"),
        ("capabilities", r#"["cluster.admin"]"#, "own routes"),
        ("capabilities", r#"["db.read", "tools.manage"]"#, "own routes"),
        ("max_blast_radius", r#""x y""#, "must be <kind>"),
        ("max_blast_radius", r#""region:eu""#, "blast_radius.order"),
        ("blast_radius", r#"{ "x y" = "namespace:eu" }"#, "must be <kind>"),
        ("blast_radius", r#"{ "namespace:eu" = "region:eu" }"#, "blast_radius.order"),
        ("max_delegation_depth", "11", "must be 0 to 10"),
        ("max_chain", r#""59s""#, "must be 1m to 1day"),
        ("max_chain", r#""25h""#, "must be 1m to 1day"),
        ("callers", r#"["gateway"]"#, "SPIFFE ID"),
        ("callers", r#"["spiffe://trust.example.com/gateway"]"#, "must be of the trust domain of ids"),
    ] {
        let (setting, found) = refused(&peer(&[(name, value)]));
        assert_eq!(setting, format!("federation.peers[0].{name}"));
        assert!(found.contains(rule), "{name} = {value}: {found}");
    }
    for (name, value) in [("as", r#"["subject"]"#), ("callers", r#"["spiffe://eu.example.com/gateway"]"#)] {
        let (setting, found) = refused(&peer(&[("accept", "false"), (name, value)]));
        assert_eq!(setting, format!("federation.peers[0].{name}"));
        assert!(found.contains("needs accept = true"), "{found}");
    }
}
