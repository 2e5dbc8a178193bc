//! The table of URLs, and properties of every URL.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::json;

/// One URL, its purpose, the settings and the expected result.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    url: String,
    push: String,
    push_without_exemption: String,
    keys: String,
    keys_with_loopback_http: String,
}

fn rows() -> Vec<Row> {
    let table = include_bytes!("../../../tests/vectors/outbound/urls.json");
    json::from_value(json::parse(table).expect("JSON")).expect("table")
}

/// The node of the table listens on a port of its own.
fn rules() -> Rules {
    let mut rules = Rules::default();
    rules.own_ports.insert(7001);
    rules
}

fn verdict<T>(outcome: Result<T, UrlError>) -> &'static str {
    let Some(error) = outcome.err() else { return "ok" };
    match error {
        UrlError::TooLong => "long",
        UrlError::Malformed(_) => "malformed",
        UrlError::NotOnlyAddress => "more",
        UrlError::Path => "path",
        UrlError::NotCanonical(_) => "spelling",
        UrlError::Scheme(_) => "scheme",
        UrlError::Host => "host",
        UrlError::Address(_) => "address",
        UrlError::OwnPort => "own port",
    }
}

fn allowing(networks: &[&str]) -> Guard {
    let allowed_networks = networks.iter().map(|text| text.parse().expect("network")).collect();
    Guard::new(Rules { allowed_networks, ..rules() })
}

#[test]
fn each_url_of_the_table_has_its_result() {
    let rows = rows();
    assert!(rows.len() >= 120, "{}", rows.len());
    let usual = Guard::new(rules());
    let strict = Guard::new(Rules { allow_loopback_push: false, ..rules() });
    let lenient = Guard::new(Rules { allow_loopback_http: true, ..rules() });
    let mut wrong = Vec::new();
    for row in rows {
        for (what, expected, found) in [
            ("push", row.push, verdict(usual.push_url(&row.url))),
            (
                "push_without_exemption",
                row.push_without_exemption,
                verdict(strict.push_url(&row.url).and_then(|url| strict.may_push(&url))),
            ),
            ("keys", row.keys, verdict(usual.check_keys_url(&row.url))),
            (
                "keys_with_loopback_http",
                row.keys_with_loopback_http,
                verdict(lenient.check_keys_url(&row.url)),
            ),
        ] {
            if expected != found {
                wrong.push(format!("{:?}: {what}: {found}, not {expected}", row.url));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn url_is_accepted_at_its_limit_and_refused_beyond() {
    let guard = Guard::new(rules());
    let of_length = |length: usize| format!("{:a<length$}", "https://receiver.example/");
    assert_eq!(verdict(guard.push_url(&of_length(limits::URI_BYTES_MAX))), "ok");
    assert_eq!(guard.push_url(&of_length(limits::URI_BYTES_MAX + 1)), Err(UrlError::TooLong));
}

#[test]
fn refusal_states_rule_and_canonical_spelling() {
    let guard = Guard::new(rules());
    let of = |outcome: Result<PushUrl, UrlError>| outcome.expect_err("refused").to_string();
    for (outcome, said) in [
        (guard.push_url("http://127.1/x"), "must be spelled as http://127.0.0.1/x"),
        (guard.push_url("https://b\u{fc}cher.example/"), "must be spelled as https://xn--bcher-kva.example/"),
        (
            guard.push_url("http://a.example/"),
            "must be https; plain http is for localhost and 127.0.0.1 only",
        ),
        (guard.push_url("https://10.0.0.1/"), "must not name a private address as its host"),
        (guard.push_url("https://a:b@a.example/"), "must have no user name, password or fragment"),
        (guard.push_url("http://localhost:8693/"), "must not name a port of this node"),
        (guard.push_url("events"), "must be an absolute URL: relative URL without a base"),
    ] {
        assert_eq!(of(outcome), said);
    }
    let keys = guard.check_keys_url("http://localhost/").expect_err("refused").to_string();
    assert_eq!(keys, "must be https, or outbound.allow_loopback_http = true");
}

#[test]
fn a_url_is_kept_as_it_was_given() {
    let url = Guard::new(rules()).push_url("https://receiver.example").expect("url");
    assert_eq!((url.as_str(), url.url().as_str()), ("https://receiver.example", "https://receiver.example/"));
}

#[test]
fn allowed_network_excludes_ports_of_this_node() {
    let guard = allowing(&["10.1.0.0/16", "127.0.0.0/8", "::1/128", "169.254.169.254/32"]);
    for (url, expected) in [
        ("https://10.1.2.3/", "ok"),
        ("https://10.2.0.0/", "address"),
        ("https://127.0.0.1/", "ok"),
        ("https://localhost/", "ok"),
        ("https://[::1]:9/", "ok"),
        ("https://169.254.169.254/", "ok"),
        ("https://169.254.169.253/", "address"),
        // The scheme is another rule.
        ("http://10.1.2.3/", "scheme"),
        ("https://127.0.0.1:8694/", "own port"),
        ("https://127.8.8.8:7001/", "own port"),
        ("https://[::1]:8695/", "own port"),
        ("https://localhost:8694/", "own port"),
        // Its addresses may be loopback, and the resolver does not know the port.
        ("https://receiver.example:8694/", "own port"),
        ("https://receiver.example:8696/", "ok"),
        ("https://10.1.2.3:8694/", "ok"),
    ] {
        assert_eq!(verdict(guard.push_url(url)), expected, "{url}");
    }
    assert_eq!(verdict(allowing(&["10.1.0.0/16"]).push_url("https://receiver.example:8694/")), "ok");
}

#[test]
fn refused_addresses_of_a_name_are_filtered() {
    let guard = Guard::new(rules());
    let addresses =
        |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().expect("address")).collect() };
    let filtered = |texts: &[&str], purpose| guard.filter("a.example", addresses(texts), purpose);
    let mixed = ["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1", "169.254.169.254"];
    assert_eq!(filtered(&mixed, Purpose::Push), Ok(addresses(&["1.1.1.1", "2606:4700::1"])));
    assert_eq!(filtered(&mixed, Purpose::Keys), Ok(addresses(&["10.0.0.1", "1.1.1.1", "2606:4700::1"])));
    assert_eq!(filtered(&["10.0.0.1", "::1"], Purpose::Push), Err(BlockedAddress(Kind::Private)));
    assert_eq!(filtered(&["169.254.169.254"], Purpose::Keys), Err(BlockedAddress(Kind::Metadata)));
    assert_eq!(filtered(&[], Purpose::Push), Ok(Vec::new()));
}

#[test]
fn localhost_is_loopback_only_where_allowed() {
    let here = Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let strict = Guard::new(Rules { allow_loopback_push: false, ..rules() });
    assert_eq!(Guard::new(rules()).localhost(Purpose::Push), here);
    assert_eq!(strict.localhost(Purpose::Push), Err(BlockedAddress(Kind::Loopback)));
    assert_eq!(Guard::new(rules()).localhost(Purpose::Keys), Err(BlockedAddress(Kind::Loopback)));
    assert_eq!(allowing(&["127.0.0.1/32"]).localhost(Purpose::Keys), here);
}

/// Parts of URLs that parsers read differently.
fn url_like() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "http:",
            "https:",
            "HTTP:",
            "//",
            "/",
            "\\",
            "\\\\",
            "@",
            ":",
            "#",
            "?",
            "localhost",
            "127.0.0.1",
            "127.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "evil.example",
            "10.0.0.1",
            "169.254.169.254",
            ".",
            "%2e",
            "%00",
            "\t",
            "\u{ad}",
            "\u{24db}",
            "\u{ff0e}",
            "8693",
            "80",
            "443",
            "a",
            " ",
            "%40",
            "0x7f",
            "2130706433",
            "[",
            "]",
        ])
        .prop_map(str::to_owned),
        "[ -~]{1,3}",
        any::<char>().prop_map(String::from),
    ];
    let begin = prop::sample::select(vec![
        "http://localhost",
        "http://127.0.0.1",
        "https://receiver.example",
        "https://",
        "http://",
        "",
    ]);
    (begin, prop::collection::vec(piece, 0..6))
        .prop_map(|(begin, pieces)| format!("{begin}{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// An accepted URL has one spelling, and every URL parser finds the same host in it.
    #[test]
    fn accepted_url_is_unambiguous(text in url_like()) {
        let Ok(accepted) = Guard::new(rules()).push_url(&text) else { return Ok(()) };
        let url = accepted.url();
        let is_only_spelling = url.as_str() == text || url.as_str() == format!("{text}/");
        prop_assert!(is_only_spelling);
        let rest = text.strip_prefix("https://").or(text.strip_prefix("http://")).expect("scheme");
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        prop_assert!(!authority.contains(['@', '%']) && authority.is_ascii());
        let host = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(authority, |(host, _)| host);
        prop_assert_eq!(Some(host), url.host_str());
        if text.starts_with("http://") {
            prop_assert!(host == "localhost" || host == "127.0.0.1");
            prop_assert!(!rules().own_ports.contains(&url.port().unwrap_or(80)));
        }
    }
}
