//! Files on disk after `make`, checked with an independent parser.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::*;
use crate::limits;

const NOW_SECS: i64 = 1_800_000_000;
const DAY_SECS: i64 = 24 * 3600;

fn now() -> Timestamp {
    Timestamp::from_secs(NOW_SECS)
}

fn request(directory: &Path, callers: &[&str]) -> CertificatePlan {
    let trust_domain: TrustDomain = "dev.example".parse().expect("trust domain");
    let callers =
        callers.iter().map(|text| CertificateSubject::within(text, &trust_domain).expect("caller")).collect();
    CertificatePlan {
        directory: directory.to_owned(),
        trust_domain,
        hosts: Vec::new(),
        peers: Vec::new(),
        callers,
        lifetime_days: 30,
    }
}

/// A parent directory, and a path in it that does not exist yet.
fn fresh() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("directory");
    let directory = parent.path().join("pki");
    (parent, directory)
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let items = fs::read_dir(directory).expect("directory").map(|item| item.expect("item").path());
    items
        .map(|path| {
            (path.file_name().expect("name").to_string_lossy().into_owned(), fs::read(&path).expect("read"))
        })
        .collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("metadata").permissions().mode() & 0o777
}

fn unfit(outcome: Result<IssuedCertificates, Error>) -> Unfit {
    match outcome {
        Err(Error::Unfit { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Content that X.509-SVID and TLS have rules for.
#[derive(Debug, PartialEq, Eq)]
struct CertificateContent {
    uris: Vec<String>,
    dns: Vec<String>,
    addresses: Vec<Vec<u8>>,
    is_ca: bool,
    usage: String,
    server: bool,
    client: bool,
    key: String,
    lifetime_days: i64,
}

fn content(pem: &[u8]) -> CertificateContent {
    let (_, pem) = parse_x509_pem(pem).expect("PEM");
    let certificate: X509Certificate<'_> = pem.parse_x509().expect("certificate");
    let (mut uris, mut dns, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for name in &certificate.subject_alternative_name().expect("once").expect("names").value.general_names {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            GeneralName::DNSName(name) => dns.push((*name).to_owned()),
            GeneralName::IPAddress(octets) => addresses.push(octets.to_vec()),
            other => panic!("{other:?}"),
        }
    }
    let purposes = certificate.extended_key_usage().expect("once").map(|extension| extension.value.clone());
    let purposes = purposes.as_ref();
    assert!(purposes.is_none_or(|purposes| !purposes.any && purposes.other.is_empty()));
    let validity = certificate.validity();
    assert_eq!(validity.not_before.timestamp(), NOW_SECS - 300);
    CertificateContent {
        uris,
        dns,
        addresses,
        is_ca: certificate.is_ca(),
        usage: certificate.key_usage().expect("once").expect("key usage").value.to_string(),
        server: purposes.is_some_and(|purposes| purposes.server_auth),
        client: purposes.is_some_and(|purposes| purposes.client_auth),
        key: certificate
            .public_key()
            .algorithm
            .parameters
            .as_ref()
            .expect("curve")
            .as_oid()
            .expect("OID")
            .to_string(),
        lifetime_days: (validity.not_after.timestamp() - NOW_SECS) / DAY_SECS,
    }
}

#[test]
fn caller_has_one_uri_one_usage_and_a_p256_key() {
    let (_parent, directory) = fresh();
    let issued = make(&request(&directory, &["operator", "ns/demo/sa/reporter"]), now()).expect("made");
    for ((_, pair), uri) in issued
        .callers
        .iter()
        .zip(["spiffe://dev.example/operator", "spiffe://dev.example/ns/demo/sa/reporter"])
    {
        let expected = CertificateContent {
            uris: vec![uri.to_owned()],
            dns: Vec::new(),
            addresses: Vec::new(),
            is_ca: false,
            usage: "Digital Signature".to_owned(),
            server: false,
            client: true,
            key: "1.2.840.10045.3.1.7".to_owned(),
            lifetime_days: 30,
        };
        assert_eq!(content(&fs::read(&pair.certificate).expect("read")), expected);
        assert_eq!((pair.is_new, pair.not_after.secs()), (true, NOW_SECS + 30 * DAY_SECS));
    }
}

#[test]
fn node_has_its_names_and_ca_has_no_path() {
    let (_parent, directory) = fresh();
    let hosts = ["fabric.example.org", "10.0.0.1", "localhost"].map(|host| host.parse().expect("host"));
    let issued =
        make(&CertificatePlan { hosts: hosts.to_vec(), ..request(&directory, &[]) }, now()).expect("made");
    let node = content(&fs::read(&issued.node.certificate).expect("read"));
    assert_eq!(node.uris, ["spiffe://dev.example/node"]);
    assert_eq!(node.dns, ["localhost", "fabric.example.org"]);
    let mut loopback_v6 = vec![0; 16];
    loopback_v6[15] = 1;
    assert_eq!(node.addresses, [vec![127, 0, 0, 1], loopback_v6, vec![10, 0, 0, 1]]);
    assert_eq!((node.is_ca, node.server, node.client), (false, true, false));
    let ca = content(&fs::read(&issued.ca.certificate).expect("read"));
    assert_eq!((ca.is_ca, ca.uris), (true, vec!["spiffe://dev.example".to_owned()]));
    assert_eq!(ca.usage, "Key Cert Sign, CRL Sign");
}

#[test]
fn peer_has_one_uri_and_both_usages() {
    let (_parent, directory) = fresh();
    let peers = [1, u64::MAX].map(|id| NonZeroU64::new(id).expect("an id")).to_vec();
    let hosts = vec!["fabric.example.org".parse().expect("host")];
    let issued =
        make(&CertificatePlan { hosts, peers, ..request(&directory, &["operator"]) }, now()).expect("made");
    for ((_, pair), id) in issued.peers.iter().zip(["1", "18446744073709551615"]) {
        let expected = CertificateContent {
            uris: vec![format!("spiffe://dev.example/node/{id}")],
            // Nodes verify the SPIFFE ID of a peer; a host name could be used to impersonate the HTTPS listener.
            dns: Vec::new(),
            addresses: Vec::new(),
            is_ca: false,
            usage: "Digital Signature".to_owned(),
            server: true,
            client: true,
            key: "1.2.840.10045.3.1.7".to_owned(),
            lifetime_days: 30,
        };
        assert_eq!(content(&fs::read(&pair.certificate).expect("read")), expected);
        assert_eq!(pair.certificate, directory.join(format!("peer-{id}.pem")));
        assert_eq!((mode(&pair.private_key), mode(&pair.certificate)), (0o600, 0o644));
    }
    let (_, operator) = &issued.callers[0];
    assert!(!content(&fs::read(&operator.certificate).expect("read")).server);
}

#[test]
fn existing_peer_is_unchanged_and_bound_to_its_id() {
    let (_parent, directory) = fresh();
    let peers = |ids: &[u64]| ids.iter().map(|id| NonZeroU64::new(*id).expect("an id")).collect();
    make(&CertificatePlan { peers: peers(&[1, 2]), ..request(&directory, &[]) }, now()).expect("made");
    let before = contents(&directory);
    let issued =
        make(&CertificatePlan { peers: peers(&[1, 2, 3]), ..request(&directory, &[]) }, now()).expect("made");
    assert_eq!(issued.peers.iter().map(|(_, pair)| pair.is_new).collect::<Vec<_>>(), [false, false, true]);
    let after = contents(&directory);
    assert!(after.len() == before.len() + 2 && before.iter().all(|(name, bytes)| after[name] == *bytes));
    for ending in [".pem", "-key.pem"] {
        let [from, to] = ["peer-2", "peer-1"].map(|stem| directory.join(format!("{stem}{ending}")));
        fs::copy(from, to).expect("copied");
    }
    let outcome = make(&CertificatePlan { peers: peers(&[1]), ..request(&directory, &[]) }, now());
    assert_eq!(unfit(outcome), Unfit::OtherName("spiffe://dev.example/node/1".to_owned()));
}

#[test]
fn private_keys_and_directory_are_private() {
    let (_parent, directory) = fresh();
    let issued = make(&request(&directory, &["operator"]), now()).expect("made");
    assert_eq!(mode(&directory), 0o700);
    for pair in [&issued.ca, &issued.node, &issued.callers[0].1] {
        assert_eq!((mode(&pair.private_key), mode(&pair.certificate)), (0o600, 0o644));
        let key = fs::read_to_string(&pair.private_key).expect("read");
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }
}

#[test]
fn second_run_only_adds() {
    let (_parent, directory) = fresh();
    make(&request(&directory, &["operator", "workload"]), now()).expect("made");
    let before = contents(&directory);
    assert_eq!(before.len(), 8);
    let later = now().plus(std::time::Duration::from_secs(3600));
    let issued = make(&request(&directory, &["ci", "operator"]), later).expect("made");
    let news: Vec<bool> = issued.callers.iter().map(|(_, pair)| pair.is_new).collect();
    assert_eq!((issued.ca.is_new, issued.node.is_new, news), (false, false, vec![true, false]));
    let mut after = contents(&directory);
    let added: Vec<_> = ["ci-key.pem", "ci.pem"].map(|name| after.remove(name)).into_iter().collect();
    assert!(added.iter().all(Option::is_some));
    assert_eq!(after, before);
}

#[test]
fn certificate_does_not_outlive_its_ca() {
    let (_parent, directory) = fresh();
    let issued = make(&request(&directory, &[]), now()).expect("made");
    let later = issued.ca.not_after.minus(std::time::Duration::from_secs(60));
    let added = make(&request(&directory, &["ci"]), later).expect("made");
    assert_eq!(added.callers[0].1.not_after, issued.ca.not_after);
}

#[test]
fn expired_certificate_is_refused_and_not_replaced() {
    let (_parent, directory) = fresh();
    let issued = make(&request(&directory, &[]), now()).expect("made");
    assert!(make(&request(&directory, &[]), issued.ca.not_after).is_ok());
    let before = contents(&directory);
    let second = std::time::Duration::from_secs(1);
    assert_eq!(unfit(make(&request(&directory, &["ci"]), issued.ca.not_after.plus(second))), Unfit::Expired);
    let begin = now().minus(limits::PKI_BACKDATED);
    assert_eq!(unfit(make(&request(&directory, &["ci"]), begin.minus(second))), Unfit::Expired);
    assert_eq!(contents(&directory), before);
}

#[test]
fn existing_certificate_must_match_the_request() {
    let (_parent, directory) = fresh();
    make(&request(&directory, &["a/b", "c"]), now()).expect("made");
    let before = contents(&directory);
    let other_caller = make(&request(&directory, &["a-b"]), now());
    assert_eq!(unfit(other_caller), Unfit::OtherName("spiffe://dev.example/a-b".to_owned()));
    let host = "10.0.0.1".parse().expect("host");
    let other_host = make(&CertificatePlan { hosts: vec![host], ..request(&directory, &[]) }, now());
    assert_eq!(unfit(other_host), Unfit::OtherName("10.0.0.1".to_owned()));
    let trust_domain = "other.example".parse().expect("trust domain");
    let other_domain = make(&CertificatePlan { trust_domain, ..request(&directory, &[]) }, now());
    assert_eq!(unfit(other_domain), Unfit::OtherName("spiffe://other.example".to_owned()));
    assert_eq!(contents(&directory), before);
}

#[test]
fn mismatched_files_are_refused_with_their_reason() {
    let broken = |break_it: &dyn Fn(&Path)| {
        let (_parent, directory) = fresh();
        make(&request(&directory, &["c", "d"]), now()).expect("made");
        break_it(&directory);
        let before = contents(&directory);
        let outcome = unfit(make(&request(&directory, &["c"]), now()));
        assert_eq!(contents(&directory), before);
        outcome
    };
    let copy = |directory: &Path, from: &str, to: &str| {
        fs::copy(directory.join(from), directory.join(to)).expect("copied");
    };
    assert_eq!(broken(&|d| copy(d, "d-key.pem", "c-key.pem")), Unfit::OtherKey);
    assert_eq!(broken(&|d| copy(d, "d.pem", "c.pem")), Unfit::OtherKey);
    assert_eq!(broken(&|d| fs::write(d.join("c.pem"), "").expect("written")), Unfit::NotACertificate);
    assert_eq!(broken(&|d| copy(d, "c-key.pem", "c.pem")), Unfit::NotACertificate);
    assert_eq!(broken(&|d| fs::write(d.join("c-key.pem"), [0xff]).expect("written")), Unfit::NotAKey);
    let end_entity_as_ca = |d: &Path| {
        copy(d, "d.pem", "ca.pem");
        copy(d, "d-key.pem", "ca-key.pem");
    };
    assert_eq!(broken(&end_entity_as_ca), Unfit::NotACa);
    let another_ca = |d: &Path| {
        let (_parent, other) = fresh();
        make(&request(&other, &[]), now()).expect("made");
        for name in ["ca.pem", "ca-key.pem"] {
            fs::copy(other.join(name), d.join(name)).expect("copied");
        }
    };
    assert_eq!(broken(&another_ca), Unfit::OtherCa);
}

#[test]
fn missing_half_of_a_pair_is_named() {
    for (gone, left) in [("ca-key.pem", "ca.pem"), ("ca.pem", "ca-key.pem"), ("c.pem", "c-key.pem")] {
        let (_parent, directory) = fresh();
        make(&request(&directory, &["c"]), now()).expect("made");
        fs::remove_file(directory.join(gone)).expect("removed");
        let outcome = make(&request(&directory, &["c"]), now());
        let Err(Error::HalfMissing { present, missing }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((present, missing), (directory.join(left), directory.join(gone)));
        assert!(!directory.join(gone).exists());
    }
}

#[test]
fn directory_or_key_open_to_others_is_refused() {
    let (_parent, directory) = fresh();
    make(&request(&directory, &[]), now()).expect("made");
    let chmod =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    for (path, too_open, right) in
        [(directory.clone(), 0o750, 0o700), (directory.join("ca-key.pem"), 0o604, 0o600)]
    {
        chmod(&path, too_open);
        let outcome = make(&request(&directory, &["ci"]), now());
        assert!(matches!(&outcome, Err(Error::TooOpen { mode, .. }) if *mode == too_open), "{outcome:?}");
        assert!(!directory.join("ci.pem").exists());
        chmod(&path, right);
    }
    assert!(make(&request(&directory, &["ci"]), now()).is_ok());
}

#[test]
fn link_is_not_followed() {
    let (parent, directory) = fresh();
    make(&request(&directory, &[]), now()).expect("made");
    let elsewhere = parent.path().join("elsewhere");
    symlink(&elsewhere, directory.join("c-key.pem")).expect("link");
    let outcome = make(&request(&directory, &["c"]), now());
    assert!(matches!(outcome, Err(Error::HalfMissing { .. })), "{outcome:?}");
    symlink(&elsewhere, directory.join("c.pem")).expect("link");
    let outcome = make(&request(&directory, &["c"]), now());
    assert!(matches!(outcome, Err(Error::File { .. })), "{outcome:?}");
    assert!(!elsewhere.exists());
}

#[test]
fn concurrently_created_file_is_not_overwritten() {
    let parent = tempfile::tempdir().expect("directory");
    let elsewhere = parent.path().join("elsewhere");
    let paths = paths(parent.path(), "c");
    fs::write(&paths.certificate, "before").expect("written");
    symlink(&elsewhere, &paths.private_key).expect("link");
    for _ in 0..2 {
        let outcome = paths.write("certificate", "key");
        let Err(Error::File { source, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(source.kind(), io::ErrorKind::AlreadyExists);
        assert!(!elsewhere.exists() && fs::read(&paths.certificate).expect("read") == b"before");
        // First the link blocks the new file, then the file of the first attempt.
        drop(fs::remove_file(&paths.private_key));
    }
}

#[test]
fn callers_with_the_same_file_name_are_refused() {
    let (_parent, directory) = fresh();
    let outcome = make(&request(&directory, &["a/b", "a-b"]), now());
    assert!(
        matches!(outcome, Err(Error::CallerTwice(ref id)) if id == "spiffe://dev.example/a-b"),
        "{outcome:?}"
    );
    assert!(!directory.exists());
}

#[test]
fn clock_out_of_range_is_an_error() {
    let (_parent, directory) = fresh();
    for secs in [0, i64::MAX / 1000, 253_402_300_799] {
        let outcome = make(&request(&directory, &[]), Timestamp::from_secs(secs));
        assert!(matches!(outcome, Err(Error::Clock)), "{secs}: {outcome:?}");
    }
}
