//! Each rule of a configuration, broken once.

mod ceiling;
mod cluster;
mod example;
mod federation;
mod outbound;
mod shipped;
mod signals;
mod transmitter;

use std::io::Write as _;

use super::*;
use crate::token::issuer::{IssuerKind, KeySource, SubjectMapping};

/// Smallest configuration, in development mode.
const REQUIRED: &str = r#"
node.mode = "development"
node.data_dir = "/var/lib/fabric"
fabric.issuer = "https://trust.example.com"
fabric.trust_domain = "trust.example.com"
policy.directory = "policies"
"#;

const ISSUER: &str = r#"
[[issuers]]
issuer = "https://k8s.example.com"
subject = "kubernetes"
discovery = true
trust_domains = ["trust.example.com"]
"#;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::with_suffix(".toml").expect("file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn loaded(text: &str, environment: &[(&str, &str)], overrides: &Overrides) -> Result<Config, Error> {
    let mut environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    load(Some(file(text).path()), &mut environment, overrides)
}

fn good(text: &str) -> Config {
    loaded(text, &[], &Overrides::default()).expect("good")
}

fn mistakes(text: &str, environment: &[(&str, &str)]) -> Vec<Mistake> {
    match loaded(text, environment, &Overrides::default()) {
        Err(Error::Mistakes(mistakes)) => mistakes,
        other => panic!("{text}: {other:?}"),
    }
}

/// The only mistake in the required settings and `extra`.
fn mistake(extra: &str) -> (String, String) {
    let found = mistakes(&format!("{REQUIRED}{extra}"), &[]);
    let [only] = found.as_slice() else { panic!("{extra}: {found:?}") };
    assert!(only.origin.as_deref().is_some_and(|origin| origin.contains(".toml")), "{only:?}");
    (only.setting.clone(), only.rule.clone())
}

#[test]
fn unset_settings_have_documented_defaults() {
    let config = good(REQUIRED);
    assert_eq!((config.node.id, config.node.unit_id.as_str()), (1, "node-1"));
    assert_eq!(config.listen.http.to_string(), "127.0.0.1:8693");
    assert_eq!(config.cluster.heartbeat, Duration::from_millis(50));
    assert!(!config.outbound.allow_loopback_http);
    assert_eq!(
        (config.log.format, config.log.filter.as_str()),
        (LogFormat::Json, "info,openraft=error,openraft::raft=off,openraft::storage=off")
    );
    assert!(config.issuers.is_empty());
    let fits = |value: &str, limit: &str| {
        config.blast_radius.fits(&value.parse().expect("value"), &limit.parse().expect("limit"))
    };
    assert!(fits("workspace:a", "global") && !fits("global", "cluster"));
}

#[test]
fn flag_overrides_environment_overrides_file() {
    let text = format!("{REQUIRED}\n[listen]\nhttp = \"127.0.0.1:1\"\n[log]\nfilter = \"debug\"");
    let environment = [
        ("TRUST_FABRIC__LISTEN__HTTP", "127.0.0.1:2"),
        ("TRUST_FABRIC__NODE__DATA_DIR", "/from/environment"),
        ("TRUST_FABRIC__NODE__ID", "7"),
        ("TRUST_FABRIC__NODE__UNIT_ID", "007"),
        ("TRUST_FABRIC__OUTBOUND__ALLOW_LOOPBACK_HTTP", "true"),
        ("TRUST_FABRIC_PYTHON", "not a setting"),
        ("PATH", "/bin"),
    ];
    let overrides = Overrides { listen: Some("127.0.0.1:3".to_owned()), ..Overrides::default() };
    let config = loaded(&text, &environment, &overrides).expect("good");
    assert_eq!(config.listen.http.port(), 3);
    assert_eq!(config.node.data_dir, Path::new("/from/environment"));
    assert_eq!((config.node.id, config.node.unit_id.as_str()), (7, "007"));
    assert!(config.outbound.allow_loopback_http);
    assert_eq!(config.log.filter, "debug");
}

#[test]
fn configuration_needs_no_file() {
    let environment = [
        ("TRUST_FABRIC__NODE__DATA_DIR", "/d"),
        ("TRUST_FABRIC__FABRIC__ISSUER", "https://trust.example.com"),
        ("TRUST_FABRIC__FABRIC__TRUST_DOMAIN", "trust.example.com"),
        ("TRUST_FABRIC__POLICY__DIRECTORY", "policies"),
        ("TRUST_FABRIC__NODE__MODE", "development"),
    ];
    let mut environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    assert!(load(None, &mut environment, &Overrides::default()).is_ok());
}

#[test]
fn every_missing_required_setting_is_named() {
    let found = mistakes("", &[]);
    let keys: Vec<_> = found.iter().map(|mistake| mistake.setting.as_str()).collect();
    let required =
        ["node.data_dir", "fabric.issuer", "fabric.trust_domain", "tls", "policy.directory", "issuers"];
    assert_eq!(keys, required);
    assert!(found.iter().all(|mistake| mistake.rule.starts_with("must ")), "{found:?}");
}

#[test]
fn unknown_setting_is_refused_with_its_source() {
    assert_eq!(mistake("[listen]\nhtpp = \"x\"").0, "listen.htpp");
    assert_eq!(mistake("[lissten]\nhttp = \"x\"").0, "lissten");
    assert_eq!(mistake(&format!("{ISSUER}audience = \"x\"")).0, "issuers[0].audience");
    let found = mistakes(REQUIRED, &[("TRUST_FABRIC__LISTEN__HTPP", "x")]);
    assert_eq!(found[0].setting, "listen.htpp");
    assert_eq!(found[0].origin.as_deref(), Some("environment variable TRUST_FABRIC__LISTEN__HTPP"));
    assert!(found[0].rule.contains("unknown field"), "{found:?}");
}

#[test]
fn variable_that_names_no_setting_is_refused() {
    for name in
        ["TRUST_FABRIC__", "TRUST_FABRIC__LISTEN__", "TRUST_FABRIC__A[", "TRUST_FABRIC__LISTEN__HTTP__X"]
    {
        let outcome = loaded(REQUIRED, &[(name, "x")], &Overrides::default());
        assert!(matches!(outcome, Err(Error::Mistakes(_))), "{name}: {outcome:?}");
    }
}

#[test]
fn value_of_wrong_type_is_refused() {
    for (extra, key) in [
        ("[node]\nid = 1.5", "node.id"),
        ("[node]\nid = \"one\"", "node.id"),
        ("[node]\nid = -1", "node.id"),
        ("[outbound]\nallow_loopback_http = \"yes\"", "outbound.allow_loopback_http"),
        ("[outbound]\nallow_loopback_http = 1", "outbound.allow_loopback_http"),
        ("[log]\nformat = \"xml\"", "log.format"),
        ("[blast_radius]\norder = \"global\"", "blast_radius.order"),
    ] {
        assert_eq!(mistake_in(extra), key, "{extra}");
    }
}

/// Like [`mistake`], but `extra` may open `[node]`, which the dotted names would have opened before.
fn mistake_in(extra: &str) -> String {
    let text = if extra.starts_with("[node]") {
        let others = REQUIRED.lines().filter(|line| !line.starts_with("node."));
        let others = others.collect::<Vec<_>>().join("\n");
        format!("{others}\n{extra}\ndata_dir = \"/d\"\nmode = \"development\"")
    } else {
        format!("{REQUIRED}{extra}")
    };
    let found = mistakes(&text, &[]);
    assert_eq!(found.len(), 1, "{extra}: {found:?}");
    found[0].setting.clone()
}

#[test]
fn value_beyond_its_rule_is_refused() {
    for (extra, key) in [
        ("[node]\nid = 0", "node.id"),
        ("[node]\nunit_id = \"\"", "node.unit_id"),
        ("[node]\nunit_id = \"a b\"", "node.unit_id"),
        ("[listen]\nhttp = \"8693\"", "listen.http"),
        ("[listen]\nhttp = \"localhost:8693\"", "listen.http"),
        ("[listen]\nshutdown_delay = \"11s\"", "listen.shutdown_delay"),
        ("[cluster]\nheartbeat = \"19ms\"", "cluster.heartbeat"),
        ("[cluster]\nlog_bytes_max = 65535", "cluster.log_bytes_max"),
        ("[cluster]\nlog_bytes_max = 68719476737", "cluster.log_bytes_max"),
        ("[cluster]\nheartbeat = \"5001ms\"", "cluster.heartbeat"),
        ("[cluster]\nheartbeat = \"100\"", "cluster.heartbeat"),
        ("[blast_radius]\norder = []", "blast_radius"),
        ("[blast_radius]\norder = [\"a\", \"a\"]", "blast_radius"),
        ("[blast_radius.parents]\n\"cluster:a\" = \"namespace:b\"", "blast_radius"),
        ("[blast_radius.parents]\n\"namespace\" = \"cluster:b\"", "blast_radius"),
        ("[log]\nfilter = \"trust_fabric=loudly\"", "log.filter"),
    ] {
        assert_eq!(mistake_in(extra), key, "{extra}");
    }
}

#[test]
fn unit_id_is_bounded() {
    let longest = "u".repeat(limits::UNIT_ID_BYTES_MAX);
    assert_eq!(good(&format!("node.unit_id = \"{longest}\"{REQUIRED}")).node.unit_id, longest);
    assert_eq!(mistake_in(&format!("[node]\nunit_id = \"{longest}u\"")), "node.unit_id");
}

#[test]
fn development_mode_listens_on_loopback_only() {
    for http in ["0.0.0.0:8693", "[::]:8693", "192.168.0.1:8693"] {
        let (key, rule) = mistake(&format!("[listen]\nhttp = \"{http}\""));
        assert_eq!(key, "listen.http");
        assert!(rule.contains("every caller has all capabilities"), "{rule}");
    }
    assert!(good(&format!("{REQUIRED}[listen]\nhttp = \"[::1]:0\"")).listen.http.is_ipv6());
}

#[test]
fn own_issuer_with_two_spellings_or_no_tls_is_refused() {
    for issuer in [
        "",
        "trust.example.com",
        "ftp://trust.example.com",
        "http://trust.example.com",
        "http://localhost.example.com",
        "https://trust.example.com/",
        "https://trust.example.com/a/",
        "https://trust.example.com?",
        "https://trust.example.com?a=b",
        "https://trust.example.com#",
        "https://user@trust.example.com",
        "https://TRUST.example.com",
        "https://trust.example.com:443",
        "https://trust.example.com/a/../b",
        "https://trust.example.com/fabric",
        " https://trust.example.com",
    ] {
        let text = REQUIRED.replace("https://trust.example.com", issuer);
        assert_eq!(mistakes(&text, &[])[0].setting, "fabric.issuer", "{issuer}");
    }
    for issuer in ["https://trust.example.com:8443", "http://127.0.0.1:8693", "http://localhost:1"] {
        assert_eq!(good(&REQUIRED.replace("https://trust.example.com", issuer)).fabric.issuer, issuer);
    }
}

#[test]
fn issuer_has_stated_values_and_defaults() {
    let config = good(&format!("{REQUIRED}{ISSUER}"));
    let [issuer] = config.issuers.as_slice() else { panic!("{:?}", config.issuers) };
    assert_eq!(issuer.iss, "https://k8s.example.com");
    assert_eq!(issuer.kind, IssuerKind::Jwt { subject: SubjectMapping::Kubernetes });
    assert_eq!(issuer.keys, KeySource::Discovery);
    assert_eq!(issuer.algorithms, crate::token::issuer::ALGORITHMS_DEFAULT);
    assert_eq!(issuer.audiences, ["https://trust.example.com"]);
    assert_eq!(issuer.max_credential_age, limits::CREDENTIAL_AGE_MAX);
    assert!(!issuer.verified_email);
}

#[test]
fn issuer_that_breaks_a_rule_is_refused() {
    for (change, to, key) in [
        ("https://k8s.example.com", "https://trust.example.com", "issuers[0].issuer"),
        ("subject = \"kubernetes\"\n", "", "issuers[0].subject"),
        ("\"kubernetes\"", "\"email\"", "issuers[0].subject"),
        ("discovery = true\n", "", "issuers[0]"),
        ("discovery = true", "discovery = true\nkeys_file = \"k\"", "issuers[0]"),
        ("discovery = true", "bundle_file = \"b\"", "issuers[0]"),
        ("discovery = true", "keys_url = \"http://k8s.example.com/keys\"", "issuers[0].keys_url"),
        ("discovery = true", "keys_url = \"http://127.0.0.1/keys\"", "issuers[0].keys_url"),
        ("discovery = true", "keys_url = \"keys\"", "issuers[0].keys_url"),
        ("https://k8s.example.com", "http://localhost:8698", "issuers[0].discovery"),
        ("discovery = true", "keys_file = \"k\"\nca_file = \"c\"", "issuers[0].ca_file"),
        ("discovery = true", "keys_file = \"k\"\nbearer_token_file = \"t\"", "issuers[0].bearer_token_file"),
        ("discovery = true", "discovery = true\nalgorithms = []", "issuers[0].algorithms"),
        ("discovery = true", "discovery = true\nalgorithms = [\"HS256\"]", "issuers[0].algorithms"),
        ("discovery = true", "discovery = true\nalgorithms = [\"none\"]", "issuers[0].algorithms"),
        ("discovery = true", "discovery = true\naudiences = []", "issuers[0].audiences"),
        ("discovery = true", "discovery = true\naudiences = [\"\"]", "issuers[0].audiences"),
        ("[\"trust.example.com\"]", "[]", "issuers[0].trust_domains"),
        ("[\"trust.example.com\"]", "[\"Trust\"]", "issuers[0].trust_domains"),
        (
            "discovery = true",
            "discovery = true\nmax_credential_age = \"25h\"",
            "issuers[0].max_credential_age",
        ),
        (
            "discovery = true",
            "discovery = true\nmax_credential_age = \"0s\"",
            "issuers[0].max_credential_age",
        ),
        ("discovery = true", "discovery = true\nkind = \"saml\"", "issuers[0].kind"),
    ] {
        let issuer = ISSUER.replace(change, to);
        assert_ne!(issuer, ISSUER, "{change}");
        assert_eq!(mistake(&issuer).0, key, "{to}");
    }
}

#[test]
fn issuer_without_a_name_is_refused() {
    let found =
        mistakes(&format!("{REQUIRED}{}", ISSUER.replace("issuer = \"https://k8s.example.com\"\n", "")), &[]);
    let keys: Vec<_> = found.iter().map(|mistake| mistake.setting.as_str()).collect();
    assert_eq!(keys, ["issuers[0].issuer"]);
}

#[test]
fn spiffe_issuer_with_jwt_settings_is_refused() {
    let spiffe = "[[issuers]]\nissuer = \"https://spire\"\nkind = \"spiffe\"\nbundle_file = \"b\"\ntrust_domains = [\"a\"]\n";
    assert_eq!(good(&format!("{REQUIRED}{spiffe}")).issuers[0].kind, IssuerKind::Spiffe);
    for (extra, key) in [
        ("subject = \"identifier\"", "issuers[0].subject"),
        ("discovery = true", "issuers[0]"),
        ("algorithms = [\"EdDSA\"]", "issuers"),
    ] {
        assert_eq!(mistake(&format!("{spiffe}{extra}")).0, key, "{extra}");
    }
    assert_eq!(mistake(&spiffe.replace("[\"a\"]", "[\"a\", \"b\"]")).0, "issuers[0].trust_domains");
}

#[test]
fn duplicate_issuers_are_refused() {
    let (key, rule) = mistake(&format!("{ISSUER}{ISSUER}"));
    assert_eq!(key, "issuers");
    assert!(rule.contains("twice"), "{rule}");
}

#[test]
fn plain_http_on_loopback_needs_a_setting() {
    let text = ISSUER.replace("https://k8s.example.com", "http://127.0.0.1:8698");
    let config = good(&format!("{REQUIRED}[outbound]\nallow_loopback_http = true\n{text}"));
    assert!(config.outbound.allow_loopback_http);
}

#[test]
fn all_mistakes_are_named_at_once() {
    let text = format!(
        "{}[cluster]\nheartbeat = \"1h\"",
        REQUIRED.replace("policies", "").replace("https://", "ftp://")
    );
    let keys: Vec<_> = mistakes(&text, &[]).into_iter().map(|mistake| mistake.setting).collect();
    assert_eq!(keys, ["fabric.issuer", "cluster.heartbeat"]);
}

#[test]
fn file_missing_too_large_or_not_toml_is_refused() {
    let missing = load(Some(Path::new("/nonexistent.toml")), &mut std::iter::empty(), &Overrides::default());
    assert!(matches!(missing, Err(Error::Unreadable { .. })), "{missing:?}");
    let broken = loaded("node = {", &[], &Overrides::default());
    let Err(Error::Syntax { rule, .. }) = &broken else { panic!("{broken:?}") };
    assert!(rule.contains("line 1") && !rule.contains('\n'), "{rule}");
    let large = loaded(&"#".repeat(limits::CONFIG_BYTES_MAX + 1), &[], &Overrides::default());
    assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
}

const PRODUCTION: &str = r#"
node.data_dir = "/var/lib/fabric"
fabric.issuer = "https://trust.example.com"
fabric.trust_domain = "trust.example.com"
policy.directory = "policies"
tls.certificate = "node.pem"
tls.private_key = "node-key.pem"
tls.client_ca = "ca.pem"
"#;

#[test]
fn production_has_tls_and_documented_defaults() {
    let config = good(&format!("{PRODUCTION}{ISSUER}"));
    let tls = config.tls.expect("TLS");
    assert_eq!(tls.address.to_string(), "0.0.0.0:8694");
    let [own] = tls.files.authorities.as_slice() else { panic!("{:?}", tls.files) };
    assert_eq!((own.roots.path(), &own.crl), (Path::new("ca.pem"), &None));
    assert_eq!(own.trust_domain, config.fabric.trust_domain);
    assert_eq!(config.listen.hosts, ["trust.example.com"]);
    assert_eq!(config.limits.requests_per_second_per_caller, 1_000);
    assert_eq!((config.limits.connections.per_address, config.limits.connections.per_identity), (256, 1_024));
}

#[test]
fn production_needs_tls_a_client_ca_and_an_issuer() {
    for (left_out, key) in [
        ("tls.certificate = \"node.pem\"", "tls.certificate"),
        ("tls.private_key = \"node-key.pem\"", "tls.private_key"),
        ("tls.client_ca = \"ca.pem\"", "tls.client_ca"),
    ] {
        let found = mistakes(&format!("{PRODUCTION}{ISSUER}").replace(left_out, ""), &[]);
        assert_eq!((found.len(), found[0].setting.as_str()), (1, key), "{found:?}");
    }
    let found = mistakes(PRODUCTION, &[]);
    assert_eq!((found.len(), found[0].setting.as_str()), (1, "issuers"), "{found:?}");
    let without = PRODUCTION.lines().filter(|line| !line.starts_with("tls.")).collect::<Vec<_>>().join("\n");
    let found = mistakes(&format!("{without}\n{ISSUER}"), &[]);
    assert_eq!((found.len(), found[0].setting.as_str()), (1, "tls"), "{found:?}");
    // TLS is a setting of production only.
    let found = mistakes(&format!("node.mode = \"development\"{PRODUCTION}{ISSUER}"), &[]);
    assert_eq!((found.len(), found[0].setting.as_str()), (1, "tls"), "{found:?}");
}

#[test]
fn production_refuses_invalid_listeners_and_callers() {
    for (extra, key) in [
        ("[[callers]]\ncapabilities = [\"exchange\"]", "callers[0].id"),
        ("[[callers]]\nid = \"spiffe://a.example/b\"", "callers[0].capabilities"),
        ("[[callers]]\nid = \"wimse://a.example/b\"\ncapabilities = [\"exchange\"]", "callers[0].id"),
        ("[[callers]]\nid = \"spiffe://a.example\"\ncapabilities = [\"exchange\"]", "callers[0].id"),
        ("[[callers]]\nid = \"spiffe://A.example/b\"\ncapabilities = [\"exchange\"]", "callers[0].id"),
        ("[[callers]]\nid = \"spiffe://a.example/*\"\ncapabilities = [\"exchange\"]", "callers[0].id"),
        ("[[callers]]\nid = \"spiffe://a.example/b\"\ncapabilities = [\"*\"]", "callers[0].capabilities"),
        (
            "[[callers]]\nid = \"spiffe://a.example/b\"\ncapabilities = [\"Exchange\"]",
            "callers[0].capabilities",
        ),
        (
            "[[callers]]\nid = \"spiffe://a.example/b\"\ncapabilities = [\"exchange\"]\n\
             [[callers]]\nid = \"spiffe://a.example/b\"\ncapabilities = [\"cluster.admin\"]",
            "callers[1].id",
        ),
        ("[listen]\nhttps = \"8694\"", "listen.https"),
        ("[listen]\nhosts = [\"*.example.com\"]", "listen.hosts"),
        ("[listen]\nhosts = [\"https://a.example\"]", "listen.hosts"),
        ("[listen]\nhosts = [\"a.example:8694\"]", "listen.hosts"),
        ("[listen]\nhosts = [\"\"]", "listen.hosts"),
        ("[limits]\nrequests_per_second_per_caller = 0", "limits.requests_per_second_per_caller"),
        ("[limits]\nrequests_per_second_per_caller = 1000001", "limits.requests_per_second_per_caller"),
        ("[limits]\nconnections_per_address = 10241", "limits.connections_per_address"),
        ("[limits]\nconnections_per_identity = -1", "limits.connections_per_identity"),
        ("[metrics]\naccess = \"anyone\"", "metrics.access"),
    ] {
        let found = mistakes(&format!("{PRODUCTION}{ISSUER}{extra}"), &[]);
        assert_eq!((found.len(), found[0].setting.as_str()), (1, key), "{extra}: {found:?}");
    }
    let trust_domain = format!("tls.client_trust_domain = \"A.example\"{PRODUCTION}{ISSUER}");
    assert_eq!(mistakes(&trust_domain, &[])[0].setting, "tls.client_trust_domain");
}

#[test]
fn each_client_trust_domain_has_its_own_ca() {
    let with = |rows: &str| format!("{PRODUCTION}{ISSUER}{rows}");
    let row = |name: &str, ca: &str| format!("[[tls.trust_domains]]\nname = \"{name}\"\nca = \"{ca}\"\n");
    let tls = good(&with(&row("eu.example.com", "eu.pem"))).tls.expect("TLS");
    let found: Vec<_> = tls
        .files
        .authorities
        .iter()
        .map(|of| (of.trust_domain.as_str(), of.roots.path().to_string_lossy()))
        .collect();
    assert_eq!(found, [("trust.example.com", "ca.pem".into()), ("eu.example.com", "eu.pem".into())]);
    for (rows, key) in [
        ("[[tls.trust_domains]]\nca = \"eu.pem\"\n".to_owned(), "tls.trust_domains[0].name"),
        ("[[tls.trust_domains]]\nname = \"eu.example.com\"\n".to_owned(), "tls.trust_domains[0].ca"),
        (row("EU.example.com", "eu.pem"), "tls.trust_domains[0].name"),
        (row("trust.example.com", "eu.pem"), "tls.trust_domains[0].name"),
        (row("eu.example.com", "a.pem") + &row("eu.example.com", "b.pem"), "tls.trust_domains[1].name"),
    ] {
        let found = mistakes(&with(&rows), &[]);
        assert_eq!((found.len(), found[0].setting.as_str()), (1, key), "{rows}: {found:?}");
    }
    let rows =
        |count: usize| (0..count).map(|at| row(&format!("t{at}.example.com"), "a.pem")).collect::<String>();
    let most = limits::CLIENT_TRUST_DOMAINS_MAX - 1;
    assert_eq!(good(&with(&rows(most))).tls.expect("TLS").files.authorities.len(), most + 1);
    assert_eq!(mistakes(&with(&rows(most + 1)), &[])[0].setting, "tls.trust_domains");
}

#[test]
fn host_is_a_dns_name_or_an_address() {
    let names = "[\"fabric.internal\", \"10.0.0.7\", \"fd00::7\", \"[fd00::8]\"]";
    let config = good(&format!("{PRODUCTION}{ISSUER}[listen]\nhosts = {names}"));
    let expected = ["trust.example.com", "fabric.internal", "10.0.0.7", "fd00::7", "fd00::8"];
    assert_eq!(config.listen.hosts, expected);
}
