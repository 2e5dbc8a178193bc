//! `[federation]`: each rule broken once.

use super::*;
use crate::federation::peers::Disclosure;

const PEER: [(&str, &str); 8] = [
    ("name", r#""eu""#),
    ("issuer", r#""https://eu.example.com""#),
    ("trust_domains", r#"["eu.example.com"]"#),
    ("endpoints", r#"["https://eu-1.example.com:8694"]"#),
    ("ids", r#"["spiffe://eu.example.com/node/1"]"#),
    ("bundle_file", r#""eu-bundle.json""#),
    ("accept", "true"),
    ("serve", "true"),
];

/// The section of a valid peer with these values; an empty one removes the setting.
pub(super) fn peer(changes: &[(&str, &str)]) -> String {
    let changed = |name: &str| changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value);
    let usual = PEER.iter().map(|(name, value)| (*name, changed(name).unwrap_or(value)));
    let more = changes.iter().copied().filter(|(name, _)| PEER.iter().all(|(usual, _)| usual != name));
    let lines = usual.chain(more).filter(|(_, value)| !value.is_empty());
    let lines = lines.fold(String::new(), |text, (name, value)| text + name + " = " + value + "\n");
    format!("[[federation.peers]]\n{lines}")
}

fn second() -> Vec<(&'static str, &'static str)> {
    vec![
        ("name", r#""ap""#),
        ("issuer", r#""https://ap.example.com""#),
        ("trust_domains", r#"["ap.example.com"]"#),
        ("ids", r#"["spiffe://ap.example.com/node/1"]"#),
    ]
}

pub(super) fn with(sections: &str) -> String {
    format!("{PRODUCTION}{ISSUER}{sections}")
}

/// The only mistake.
pub(super) fn refused(sections: &str) -> (String, String) {
    let found = mistakes(&with(sections), &[]);
    let [only] = found.as_slice() else { panic!("{sections}: {found:?}") };
    (only.setting.clone(), only.rule.clone())
}

#[test]
fn peer_has_documented_defaults() {
    assert!(good(&with("")).federation.is_none());
    let empty = good(&with("[federation]\n")).federation.expect("federation");
    assert!(empty.peers.is_configured() && empty.peers.iter().next().is_none());
    let config = good(&with(&peer(&[])));
    let federation = config.federation.expect("federation");
    assert_eq!(federation.certificate, config.tls.expect("TLS").files.own);
    let id = "spiffe://eu.example.com/node/1".parse().expect("id");
    let found = federation.peers.by_id(&id).expect("a node");
    assert_eq!((found.name.as_str(), found.stale_after), ("eu", limits::PEER_FABRIC_STALE_AFTER));
    assert_eq!(found.max_entries, limits::FEDERATED_ENTRIES_MAX);
    assert_eq!((found.approve_incarnation, &found.disclose), (false, &Disclosure::Own));
    assert_eq!(found.endpoints[0].as_str(), "https://eu-1.example.com:8694/");
    for (known, trust_domain) in [(true, "eu.example.com"), (false, "trust.example.com")] {
        assert_eq!(federation.peers.have(&trust_domain.parse().expect("name")), known);
    }
    let other = "spiffe://eu.example.com/node/2".parse().expect("id");
    assert!(federation.peers.by_id(&other).is_none(), "compared as a whole");
}

#[test]
fn values_of_a_peer_are_read() {
    let more = [
        ("stale_after", r#""5m""#),
        ("honour_lease", "true"),
        ("await", "true"),
        ("max_entries", "7"),
        ("approve_incarnation", "true"),
        ("disclose", r#"["https://k8s.example.com"]"#),
        ("bundle_endpoint", r#""https://eu-1.example.com:8694/v1/federation/bundle""#),
        ("crl", r#""eu-crl.pem""#),
    ];
    let own = "[federation]\ncertificate = \"own.pem\"\nprivate_key = \"own-key.pem\"\n";
    let config = good(&with(&format!("{own}{}{}", peer(&more), peer(&second()))));
    let federation = config.federation.expect("federation");
    assert_eq!(federation.certificate.certificate, Path::new("own.pem"));
    let eu = federation.peers.by_name("eu").expect("eu");
    assert_eq!((eu.stale_after.as_secs(), eu.max_entries, eu.approve_incarnation), (300, 7, true));
    assert!(eu.honours_lease && eu.is_awaited);
    let issuers = ["https://k8s.example.com".to_owned()].into();
    assert_eq!(eu.disclose, Disclosure::Issuers(issuers));
    assert_eq!(eu.roots.crl.as_deref(), Some(Path::new("eu-crl.pem")));
    assert!(eu.roots.endpoint.is_some());
    let ap = federation.peers.by_issuer("https://ap.example.com").expect("ap");
    assert!(!ap.honours_lease && !ap.is_awaited);
    assert_eq!(ap.max_entries, limits::FEDERATED_ENTRIES_MAX / 2, "an equal share");
}

#[test]
fn peer_that_breaks_a_rule_is_refused() {
    for (name, value, rule) in [
        ("name", "", "must be set"),
        ("name", r#""EU""#, "a-z, 0-9"),
        ("name", r#""""#, "1 to 32"),
        ("name", r#""aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#, "1 to 32"),
        ("issuer", "", "must be set"),
        ("issuer", r#""http://eu.example.com""#, "must be https"),
        ("issuer", r#""https://eu.example.com/""#, "no trailing slash"),
        ("issuer", r#""https://eu.example.com/a""#, "must have no path"),
        ("trust_domains", "[]", "must name 1 to 64"),
        ("trust_domains", r#"["eu.example.com", "eu.example.com"]"#, "each once"),
        ("endpoints", "[]", "must name 1 to 64"),
        ("endpoints", r#"["http://eu-1.example.com:8694"]"#, "must be https"),
        ("endpoints", r#"["https://eu-1.example.com/v1"]"#, "no path"),
        ("endpoints", r#"["https://eu-1.example.com/?a"]"#, "no path and no query"),
        ("endpoints", r#"["https://a:b@eu-1.example.com"]"#, "no user name"),
        (
            "endpoints",
            r#"["https://127.0.0.1:9694"]"#,
            "a loopback address as its host, or be in outbound.allowed_networks",
        ),
        ("endpoints", r#"["https://169.254.169.254"]"#, "metadata"),
        ("endpoints", r#"["https://[fe80::1]"]"#, "link-local"),
        ("ids", "[]", "must name 1 to 64"),
        ("ids", r#"["wimse://eu.example.com/node/1"]"#, "must begin with spiffe://"),
        ("ids", r#"["spiffe://eu.example.com"]"#, "must be a SPIFFE ID"),
        ("ids", r#"["spiffe://ap.example.com/node/1"]"#, "one of trust_domains"),
        ("bundle_file", "", "must be set"),
        ("bundle_endpoint", r#""http://eu.example.com/bundle""#, "must be https"),
        ("stale_after", r#""1s""#, "must be 2s to 5m"),
        ("stale_after", r#""301s""#, "must be 2s to 5m"),
        ("max_entries", "0", "must be 1 to 6000000"),
        ("max_entries", "6000001", "must be 1 to 6000000"),
        ("disclose", r#""all""#, "\"digests\""),
        ("disclose", r#"["https://idp.example.org"]"#, "[[issuers]]"),
    ] {
        let (setting, found) = refused(&peer(&[(name, value)]));
        assert_eq!(setting, format!("federation.peers[0].{name}"), "{value}: {found}");
        assert!(found.contains(rule), "{name} = {value}: {found}");
    }
    let two = r#"["eu.example.com", "b.example"]"#;
    let ids = r#"["spiffe://eu.example.com/node/1", "spiffe://b.example/node/1"]"#;
    let (setting, found) = refused(&peer(&[("trust_domains", two), ("ids", ids)]));
    assert_eq!(setting, "federation.peers[0].ids");
    assert!(found.contains("whose roots the bundle has"), "{found}");
    let unread = peer(&[("accept", "false"), ("serve", "true"), ("honour_lease", "true")]);
    assert_eq!(
        refused(&unread),
        ("federation.peers[0].honour_lease".to_owned(), "needs accept = true".to_owned())
    );
    let unserved = peer(&[("serve", "false"), ("await", "true")]);
    let rule = "needs serve = true: only a peer that reads our ledger acknowledges it";
    assert_eq!(refused(&unserved), ("federation.peers[0].await".to_owned(), rule.to_owned()));
    let neither = peer(&[("accept", "false"), ("serve", "false")]);
    assert_eq!(refused(&neither).0, "federation.peers[0]");
    good(&with(&peer(&[("accept", "false"), ("endpoints", "")])));
}

#[test]
fn awaited_peers_beyond_the_limit_are_refused() {
    let awaited = peer(&[("await", "true")]);
    let many = |count: usize| -> String {
        (0..count).map(|number| awaited.replace("eu", &format!("r{number}"))).collect()
    };
    good(&with(&many(limits::AWAITED_PEERS_MAX)));
    let (setting, rule) = refused(&many(limits::AWAITED_PEERS_MAX + 1));
    assert_eq!((setting.as_str(), rule.as_str()), ("federation.peers", "at most 16 may have await = true"));
}

#[test]
fn a_duplicate_peer_is_refused_at_start() {
    for (name, rule) in
        [("name", "duplicate"), ("issuer", "issuer of another peer"), ("trust_domains", "of another peer")]
    {
        let mut other = second();
        other.retain(|(changed, _)| *changed != name);
        if name == "trust_domains" {
            other.retain(|(changed, _)| *changed != "ids");
        }
        let (setting, found) = refused(&format!("{}{}", peer(&[]), peer(&other)));
        assert_eq!(setting, format!("federation.peers[1].{name}"));
        assert!(found.contains(rule), "{found}");
    }
}

/// Regression: the trust domain of each caller was reported too.
#[test]
fn unreadable_ids_are_one_mistake() {
    let callers = ("callers", r#"["spiffe://eu.example.com/ci"]"#);
    let (setting, _) = refused(&peer(&[("ids", "[]"), callers, ("accept", "true")]));
    assert_eq!(setting, "federation.peers[0].ids");
}

/// Attack: a peer that speaks for us, or for callers and issuers that are trusted for something else.
#[test]
fn peer_that_claims_the_name_of_another_is_refused() {
    let ids = |trust_domain: &str| format!("[\"spiffe://{trust_domain}/node/1\"]");
    let (setting, found) = refused(&peer(&[("issuer", r#""https://trust.example.com""#)]));
    assert_eq!(
        (setting.as_str(), found.as_str()),
        ("federation.peers[0].issuer", "is this fabric's own issuer")
    );
    let (setting, found) = refused(&peer(&[("issuer", r#""https://k8s.example.com""#)]));
    assert_eq!(setting, "federation.peers[0].issuer");
    assert!(found.contains("[[issuers]]"), "{found}");
    let tls = "[[tls.trust_domains]]\nname = \"eu.example.com\"\nca = \"eu-ca.pem\"\n";
    let ours = r#"["trust.example.com"]"#;
    for (sections, rule) in [
        (
            peer(&[("trust_domains", ours), ("ids", ids("trust.example.com").as_str())]),
            "is this fabric's own trust domain",
        ),
        (format!("{tls}{}", peer(&[])), "has CAs in [tls] too"),
    ] {
        let (setting, found) = refused(&sections);
        assert_eq!(setting, "federation.peers[0].trust_domains");
        assert!(found.contains(rule), "{found}");
    }
    let caller = "[[callers]]\nid = \"spiffe://eu.example.com/ci\"\ncapabilities = [\"exchange\"]\n";
    let (setting, found) = refused(&format!("{caller}{}", peer(&[])));
    assert_eq!(setting, "callers[0].id");
    assert!(found.contains("whose workloads call the exchange only"), "{found}");
}

#[test]
fn trust_domain_of_an_issuer_may_be_a_peers() {
    let issuer = ISSUER.replace("trust.example.com", "eu.example.com");
    good(&format!("{PRODUCTION}{issuer}{}", peer(&[])));
}

#[test]
fn development_mode_has_no_peers() {
    let found = mistake(&peer(&[]));
    assert_eq!(found.0, "federation");
    assert!(found.1.contains("no TLS"), "{}", found.1);
}

#[test]
fn shares_beyond_the_limit_of_all_peers_are_refused() {
    let most = limits::FEDERATED_ENTRIES_MAX.to_string();
    let mut other = second();
    other.push(("max_entries", "1"));
    let both = format!("{}{}", peer(&[("max_entries", most.as_str())]), peer(&other));
    let (setting, found) = refused(&both);
    assert_eq!(setting, "federation.peers");
    assert!(found.contains("add up to 6000001"), "{found}");
}

#[test]
fn peers_beyond_their_limit_are_refused() {
    let sections = |count: usize| {
        let peers = (0..count).map(|at| {
            peer(&[
                ("name", format!("\"p{at}\"").as_str()),
                ("issuer", format!("\"https://p{at}.example.com\"").as_str()),
                ("trust_domains", format!("[\"p{at}.example.com\"]").as_str()),
                ("ids", format!("[\"spiffe://p{at}.example.com/node/1\"]").as_str()),
            ])
        });
        with(&peers.collect::<String>())
    };
    good(&sections(limits::PEER_FABRICS_MAX));
    let found = mistakes(&sections(limits::PEER_FABRICS_MAX + 1), &[]);
    assert_eq!(found[0].to_string().split(':').next(), Some("federation.peers"), "{found:?}");
}

#[test]
fn federation_certificate_needs_its_private_key() {
    for (alone, key) in [("certificate", "private_key"), ("private_key", "certificate")] {
        let found = mistakes(&with(&format!("[federation]\n{alone} = \"own.pem\"\n")), &[]);
        assert_eq!((found.len(), found[0].setting.clone()), (1, format!("federation.{key}")));
    }
}
