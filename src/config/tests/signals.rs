//! `[[signals]]`: each rule, broken once.

use super::*;

/// An issuer of the production configuration, where it must be able to send.
const SIGNALS: &str = r#"
[[signals]]
issuer = "https://idp.example.com"
keys_url = "https://idp.example.com/keys"
trust_domains = ["trust.example.com"]
"#;

#[test]
fn signal_issuer_has_stated_values_and_defaults() {
    let config = good(&format!("{PRODUCTION}{ISSUER}{SIGNALS}"));
    let issuer = config.signals.get("https://idp.example.com").expect("configured");
    assert_eq!(issuer.keys, Some(KeySource::Url("https://idp.example.com/keys".to_owned())));
    assert_eq!(issuer.algorithms, crate::token::issuer::ALGORITHMS_DEFAULT);
    assert_eq!(issuer.audiences, ["https://trust.example.com"]);
    assert!(issuer.callers.is_empty());
    assert_eq!(issuer.authority.subject_issuers, ["https://idp.example.com"]);
    assert_eq!(issuer.revocations_per_minute, limits::REVOCATIONS_PER_MINUTE);
    assert!(config.signals.get("https://idp.example.com/").is_none());
    assert!(good(&format!("{PRODUCTION}{ISSUER}")).signals.is_empty());
    let stated = format!(
        "{PRODUCTION}{ISSUER}[[signals]]\nissuer = \"https://idp.example.com\"\ndiscovery = true\n\
         callers = [\"spiffe://trust.example.com/idp\"]\ntrust_domains = [\"trust.example.com\"]\n\
         subject_issuers = [\"https://k8s.example.com\", \"https://trust.example.com\"]\n\
         revocations_per_minute = 1000000\n"
    );
    let config = good(&stated);
    let issuer = config.signals.get("https://idp.example.com").expect("configured");
    assert_eq!(issuer.keys, Some(KeySource::TransmitterMetadata));
    assert_eq!(
        issuer.callers.iter().next().map(ToString::to_string).as_deref(),
        Some("spiffe://trust.example.com/idp")
    );
    assert_eq!(issuer.authority.trust_domains[0].as_str(), "trust.example.com");
    assert_eq!(issuer.authority.subject_issuers, ["https://k8s.example.com", "https://trust.example.com"]);
    assert_eq!(issuer.revocations_per_minute, limits::REVOCATIONS_PER_MINUTE_MAX);
}

#[test]
fn signal_issuer_that_breaks_a_rule_is_refused() {
    let keys = "keys_url = \"https://idp.example.com/keys\"";
    let too_many =
        format!("subject_issuers = {:?}", vec!["https://k8s.example.com"; limits::SUBJECT_ISSUERS_MAX + 1]);
    for (change, to, key) in [
        ("issuer = \"https://idp.example.com\"\n", "", "signals[0].issuer"),
        ("\"https://idp.example.com\"", "\"\"", "signals[0].issuer"),
        ("\"https://idp.example.com\"", "\"https://trust.example.com\"", "signals[0].issuer"),
        // It could not send.
        (keys, "", "signals[0]"),
        (keys, "keys_file = \"k\"\ndiscovery = true", "signals[0]"),
        (keys, "keys_url = \"http://idp.example.com/keys\"", "signals[0].keys_url"),
        (keys, "keys_url = \"keys\"", "signals[0].keys_url"),
        (keys, "keys_file = \"k\"\nalgorithms = []", "signals[0].algorithms"),
        (keys, "keys_file = \"k\"\nalgorithms = [\"HS256\"]", "signals[0].algorithms"),
        (keys, "keys_file = \"k\"\naudiences = []", "signals[0].audiences"),
        (keys, "keys_file = \"k\"\naudiences = [\"\"]", "signals[0].audiences"),
        (keys, "callers = [\"idp\"]", "signals[0].callers"),
        (keys, "callers = [\"wimse://trust.example.com/idp\"]", "signals[0].callers"),
        ("[\"trust.example.com\"]", "[\"Trust\"]", "signals[0].trust_domains"),
        // It could revoke nothing.
        ("[\"trust.example.com\"]", "[]", "signals[0].subject_issuers"),
        // Subjects of an unconfigured issuer would never be revoked.
        (
            keys,
            "keys_file = \"k\"\nsubject_issuers = [\"https://k8s.example.com/\"]",
            "signals[0].subject_issuers",
        ),
        (keys, &format!("keys_file = \"k\"\n{too_many}"), "signals[0].subject_issuers"),
        (keys, "keys_file = \"k\"\nrevocations_per_minute = 0", "signals[0].revocations_per_minute"),
        (keys, "keys_file = \"k\"\nrevocations_per_minute = 1000001", "signals[0].revocations_per_minute"),
        (keys, "keys_file = \"k\"\nbundle_file = \"b\"", "signals[0].bundle_file"),
    ] {
        let signals = SIGNALS.replace(change, to);
        assert_ne!(signals, SIGNALS, "{change}");
        let found = mistakes(&format!("{PRODUCTION}{ISSUER}{signals}"), &[]);
        assert_eq!((found.len(), found[0].setting.as_str()), (1, key), "{to}: {found:?}");
    }
    let found = mistakes(&format!("{PRODUCTION}{ISSUER}{SIGNALS}{SIGNALS}"), &[]);
    assert_eq!(found[0].setting, "signals");
    assert!(found[0].rule.contains("twice"), "{found:?}");
    // In development mode every caller can send.
    let bare = SIGNALS.replace(keys, "");
    assert_eq!(good(&format!("{REQUIRED}{bare}")).signals.len(), 1);
    let plain = SIGNALS.replace("https://idp.example.com/keys", "http://127.0.0.1/keys");
    assert_eq!(mistake(&plain).0, "signals[0].keys_url");
    assert_eq!(good(&format!("{REQUIRED}[outbound]\nallow_loopback_http = true\n{plain}")).signals.len(), 1);
}
