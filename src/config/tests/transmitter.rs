//! `[transmitter]`.

use super::*;

fn base_url(config: &Config) -> Option<&str> {
    config.transmitter.as_ref().map(|transmitter| transmitter.base_url.as_str())
}

#[test]
fn production_transmits_only_with_a_base_url() {
    assert_eq!(base_url(&good(&format!("{PRODUCTION}{ISSUER}"))), None);
    let section = "[transmitter]\nbase_url = \"https://trust.example.com:8694\"\n";
    let config = good(&format!("{PRODUCTION}{ISSUER}{section}"));
    assert_eq!(base_url(&config), Some("https://trust.example.com:8694"));
}

#[test]
fn development_base_url_is_the_listener() {
    assert_eq!(base_url(&good(REQUIRED)), Some("http://127.0.0.1:8693"));
    let elsewhere = format!("{REQUIRED}[listen]\nhttp = \"127.0.0.1:1\"\n");
    assert_eq!(base_url(&good(&elsewhere)), Some("http://127.0.0.1:1"));
    let stated = format!("{REQUIRED}[transmitter]\nbase_url = \"https://trust.example.com/fabric\"\n");
    assert_eq!(base_url(&good(&stated)), Some("https://trust.example.com/fabric"));
}

#[test]
fn push_certificate_needs_its_private_key() {
    let section = |rest: &str| {
        format!("{PRODUCTION}{ISSUER}[transmitter]\nbase_url = \"https://trust.example.com\"\n{rest}")
    };
    let both = good(&section("certificate = \"push.pem\"\nprivate_key = \"push-key.pem\"\n"));
    let files = both.transmitter.and_then(|transmitter| transmitter.certificate).expect("a certificate");
    assert_eq!(files.private_key.to_string_lossy(), "push-key.pem");
    for (alone, key) in [("certificate", "private_key"), ("private_key", "certificate")] {
        let found = mistakes(&section(&format!("{alone} = \"push.pem\"\n")), &[]);
        assert_eq!((found.len(), found[0].setting.clone()), (1, format!("transmitter.{key}")));
    }
}

#[test]
fn base_url_that_breaks_a_rule_is_refused() {
    for (base_url, rule) in [
        ("", "must be an absolute URL"),
        ("trust.example.com", "must be an absolute URL"),
        ("ftp://trust.example.com", "must be an https or http URL"),
        ("http://trust.example.com", "must be https"),
        ("http://localhost.example.com", "must be https"),
        ("https://trust.example.com/", "no trailing slash"),
        ("https://trust.example.com?x", "must have no query"),
        ("https://trust.example.com#x", "fragment"),
        ("https://a:b@trust.example.com", "must have no user name"),
        ("https://Trust.example.com", "must be spelled as https://trust.example.com"),
        ("https://trust.example.com:443", "must be spelled as https://trust.example.com"),
    ] {
        let (key, found) = mistake(&format!("[transmitter]\nbase_url = \"{base_url}\"\n"));
        assert_eq!(key, "transmitter.base_url", "{base_url}");
        assert!(found.contains(rule), "{base_url}: {found}");
    }
    let found = mistakes(&format!("{REQUIRED}[transmitter]\n"), &[]);
    assert_eq!((found.len(), found[0].to_string()), (1, "transmitter.base_url: must be set".to_owned()));
    assert_eq!(mistake("[transmitter]\nurl = \"https://trust.example.com\"\n").0, "transmitter.url");
}
