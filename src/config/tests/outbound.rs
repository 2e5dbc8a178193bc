//! `[outbound]`.

use super::*;
use crate::outbound::guard::{Guard, UrlError};

#[test]
fn only_public_addresses_may_be_called_by_default() {
    let rules = good(&format!("{PRODUCTION}{ISSUER}")).outbound;
    assert!(!rules.allow_loopback_push && !rules.allow_loopback_http && rules.allowed_networks.is_empty());
    // Development mode also allows pushes to loopback.
    assert_eq!(good(REQUIRED).outbound, Rules::default());
    assert!(Rules::default().allow_loopback_push);
}

#[test]
fn loopback_push_can_be_set_in_either_mode() {
    let section = "[transmitter]\nbase_url = \"https://trust.example.com:8694\"\nallow_loopback_push = ";
    let guard = |text: &str| Guard::new(good(text).outbound);
    let off = guard(&format!("{REQUIRED}{section}false"));
    let url = off.push_url("http://localhost/").expect("a stream may name it");
    assert!(matches!(off.may_push(&url), Err(UrlError::Scheme(_))));
    assert!(guard(REQUIRED).may_push(&url).is_ok());
    assert!(guard(&format!("{PRODUCTION}{ISSUER}{section}true")).may_push(&url).is_ok());
    let environment = [("TRUST_FABRIC__TRANSMITTER__ALLOW_LOOPBACK_PUSH", "false")];
    let config =
        loaded(&format!("{REQUIRED}{section}true"), &environment, &Overrides::default()).expect("good");
    assert!(!config.outbound.allow_loopback_push);
    let (key, rule) = mistake(&format!("{section}\"no\""));
    assert_eq!((key.as_str(), rule.as_str()), ("transmitter.allow_loopback_push", "must be true or false"));
}

#[test]
fn own_ports_include_every_listener() {
    let text = format!("{PRODUCTION}{ISSUER}[listen]\nhttp = \"127.0.0.1:7001\"\nhttps = \"0.0.0.0:7002\"");
    assert_eq!(good(&text).outbound.own_ports, [7001, 7002, 8693, 8694, 8695].into());
    let text = format!("{REQUIRED}[listen]\nhttp = \"127.0.0.1:7001\"");
    assert_eq!(good(&text).outbound.own_ports, [7001, 8693, 8694, 8695].into());
}

#[test]
fn network_that_breaks_a_rule_is_refused() {
    let of = |networks: &str| format!("[outbound]\nallowed_networks = {networks}");
    let rules = good(&format!("{REQUIRED}{}", of("[\"10.1.0.0/16\", \"fd00::/8\"]"))).outbound;
    assert_eq!(
        rules.allowed_networks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.0.0/16", "fd00::/8"]
    );
    for (networks, said) in [
        ("[\"10.1.0.0\"]", "\"10.1.0.0\": must be a network such as 10.1.0.0/16 or fd12:3456:789a::/48"),
        ("[\"10.1.0.1/16\"]", "\"10.1.0.1/16\": must be spelled as 10.1.0.0/16"),
        (
            "[\"10.0.0.0/8\", \"0.0.0.0/0\"]",
            "\"0.0.0.0/0\": must lie within one range that is refused without it, such as 10.0.0.0/8",
        ),
        (
            "[\"169.254.0.0/16\"]",
            "\"169.254.0.0/16\": link-local and metadata addresses must be allowed one by one, with /32 or /128",
        ),
        ("[\"224.0.0.1/32\"]", "\"224.0.0.1/32\": is a multicast address, which is never called"),
    ] {
        assert_eq!(mistake(&of(networks)), ("outbound.allowed_networks".to_owned(), said.to_owned()));
    }
    let many = |count: usize| of(&format!("[{}]", "\"10.0.0.0/8\",".repeat(count)));
    assert!(
        loaded(&format!("{REQUIRED}{}", many(limits::OUTBOUND_NETWORKS_MAX)), &[], &Overrides::default())
            .is_ok()
    );
    assert_eq!(mistake(&many(limits::OUTBOUND_NETWORKS_MAX + 1)).1, "must name at most 64");
}

#[test]
fn key_urls_follow_the_rules_of_the_client() {
    let of = |address: &str| {
        let source = format!("discovery = false\nkeys_url = \"{address}\"");
        format!("{REQUIRED}{}", ISSUER.replace("discovery = true", &source))
    };
    for address in
        ["https://10.96.0.1:443/openid/v1/jwks", "https://k8s.internal/keys", "https://[fd00::1]/keys"]
    {
        assert_eq!(good(&of(address)).issuers.len(), 1, "{address}");
    }
    for (address, said) in [
        ("http://k8s.internal/keys", "must be https"),
        ("http://127.0.0.1/keys", "must be https, or outbound.allow_loopback_http = true"),
        ("https://169.254.169.254/keys", "must not name a cloud metadata address as its host"),
        ("https://127.0.0.1/keys", "must not name a loopback address as its host"),
        ("https://K8S.internal/keys", "must be spelled as https://k8s.internal/keys"),
        ("https://a@k8s.internal/keys", "must have no user name, password or fragment"),
    ] {
        let found = mistakes(&of(address), &[]);
        let [only] = found.as_slice() else { panic!("{address}: {found:?}") };
        assert_eq!((only.setting.as_str(), only.rule.as_str()), ("issuers[0].keys_url", said), "{address}");
    }
}
