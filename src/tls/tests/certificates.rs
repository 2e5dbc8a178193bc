//! One row per kind of client certificate: exactly the valid ones are accepted.

use aws_lc_rs::digest;
use rcgen::{
    CidrSubnet, CustomExtension, GeneralSubtree, NameConstraints, PublicKeyData, SignatureAlgorithm,
};
use rustls::version::{TLS12, TLS13};

use super::*;

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) client: Option<Client>,
    pub(super) client_crl: Option<String>,
    /// The SPIFFE ID of the client, or the reason of the refusal.
    pub(super) expected: Result<Option<&'static str>, &'static str>,
}

const MALFORMED: &str = "certificate is malformed";
const NO_PATH: &str = "certificate has no path to a client CA";
const EXPIRED: &str = "certificate has expired";
const NOT_YET: &str = "certificate is not valid yet";
const NO_CLIENT_AUTH: &str = "certificate has no extended key usage clientAuth";
const CA: &str = "certificate is a CA certificate";
const SIGNS: &str = "certificate has key usage keyCertSign or cRLSign";
const NO_SIGNATURE: &str = "certificate has no key usage digitalSignature";
const NOT_SPIFFE: &str = "certificate URI name is not a SPIFFE ID with a path";
const NAME: &str = "certificate name violates a name constraint";
const BAD_SIGNATURE: &str = "signature does not verify";

pub(super) fn passes(name: &'static str, client: Client) -> Row {
    Row { name, client: Some(client), client_crl: None, expected: Ok(Some(ID)) }
}

pub(super) fn refused(name: &'static str, client: Client, reason: &'static str) -> Row {
    Row { name, client: Some(client), client_crl: None, expected: Err(reason) }
}

impl Row {
    pub(super) fn with_crl(self, client_crl: impl Into<String>) -> Self {
        Self { client_crl: Some(client_crl.into()), ..self }
    }
}

/// An RSA key of 1024 bits as in a certificate. Libraries generate none; it need not sign, because the certificate is
/// checked first.
struct Rsa1024(Vec<u8>);

impl Rsa1024 {
    fn new() -> Self {
        // RSAPublicKey (RFC 8017 A.1.1): modulus of 128 bytes after a zero, exponent 65537.
        let mut der = vec![0x30, 0x81, 0x89, 0x02, 0x81, 0x81, 0x00];
        der.extend([0xc1; 128]);
        der.extend([0x02, 0x03, 0x01, 0x00, 0x01]);
        Self(der)
    }
}

impl PublicKeyData for Rsa1024 {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_RSA_SHA256
    }
}

fn with_key_of(algorithm: &'static SignatureAlgorithm, issuer: &Authority) -> Client {
    let key = KeyPair::generate_for(algorithm).expect("key");
    Client::with_key(svid_params().signed_by(&key, issuer).expect("leaf").der().clone(), &key)
}

/// A client whose certificate has only these names.
fn uris(issuer: &Authority, names: &[&str]) -> Client {
    client(issuer, |svid| svid.subject_alt_names = names.iter().copied().map(uri).collect())
}

/// A path of `length` CAs under `ca`, sent from the lowest to the highest.
fn under(ca: &Authority, length: usize) -> Client {
    let mut path: Vec<Authority> = Vec::new();
    for number in 0..length {
        let parent = path.last().unwrap_or(ca);
        path.push(intermediate(&format!("intermediate {number}"), parent, |_| {}));
    }
    let svid = client(path.last().unwrap_or(ca), |_| {});
    path.iter().rev().fold(svid, Client::then)
}

fn of_times_and_signatures(ca: &Authority) -> Vec<Row> {
    let other_ca = root("other CA");
    let same_name = root("client CA");
    let self_signed = {
        let key = key();
        Client::with_key(svid_params().self_signed(&key).expect("leaf").der().clone(), &key)
    };
    let of_other_key = Client { key: client(ca, |_| {}).key, ..client(ca, |_| {}) };
    let garbage = Client { chain: vec![vec![0x30, 0x03, 0x02, 0x01, 0x05].into()], ..client(ca, |_| {}) };
    let with_trailing_byte = {
        let good = client(ca, |_| {});
        let mut der = good.chain[0].to_vec();
        der.push(0);
        Client { chain: vec![der.into()], ..good }
    };
    let damaged = {
        let good = client(ca, |_| {});
        let mut der = good.chain[0].to_vec();
        // Within the URI, so that it still parses.
        let at = der.windows(3).position(|bytes| bytes == b"web").expect("a name");
        der[at] = b'W';
        Client { chain: vec![der.into()], ..good }
    };
    vec![
        Row { name: "none", client: None, client_crl: None, expected: Ok(None) },
        passes("good", client(ca, |_| {})),
        refused("self-signed", self_signed, NO_PATH),
        refused("of another CA", client(&other_ca, |_| {}), NO_PATH),
        refused("of another CA that is sent along", client(&other_ca, |_| {}).then(&other_ca), NO_PATH),
        refused("of another CA of the same name", client(&same_name, |_| {}), BAD_SIGNATURE),
        refused("with one letter changed", damaged, BAD_SIGNATURE),
        refused("garbage", garbage, MALFORMED),
        refused("with a byte after its end", with_trailing_byte, MALFORMED),
        refused("signed with another key than its own", of_other_key, BAD_SIGNATURE),
        refused("expired an hour ago", client(ca, |svid| svid.not_after = at!(NOW - HOUR / 2)), EXPIRED),
        refused("expired a second ago", client(ca, |svid| svid.not_after = at!(NOW - 1)), EXPIRED),
        passes("in its last second", client(ca, |svid| svid.not_after = at!(NOW))),
        passes("in its first second", client(ca, |svid| svid.not_before = at!(NOW))),
        refused("valid in a second", client(ca, |svid| svid.not_before = at!(NOW + 1)), NOT_YET),
        refused("SHA-1", sha1(), "signature algorithm is not accepted"),
    ]
}

/// A certificate whose RSA signature claims SHA-1. Its issuer must be [`rsa_ca`].
fn sha1() -> Client {
    let good = client(rsa_ca(), |_| {});
    let mut der = good.chain[0].to_vec();
    // sha256WithRSAEncryption and sha1WithRSAEncryption differ in the last byte (RFC 8017 A.2.4).
    let oid = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    let positions: Vec<usize> = (0..der.len() - 9).filter(|at| der[*at..*at + 9] == oid).collect();
    assert_eq!(positions.len(), 2, "inside and outside of what is signed");
    for at in positions {
        der[at + 8] = 0x05;
    }
    Client { chain: vec![der.into()], ..good }
}

fn rsa_ca() -> &'static Authority {
    static CA: std::sync::OnceLock<Authority> = std::sync::OnceLock::new();
    CA.get_or_init(|| {
        let key = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("key");
        CertifiedIssuer::self_signed(ca_params("RSA CA"), key).expect("root")
    })
}

fn of_usage(ca: &Authority) -> Vec<Row> {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyCertSign, KeyEncipherment};
    let purposes =
        |all: &[ExtendedKeyUsagePurpose]| client(ca, |svid| svid.extended_key_usages = all.to_vec());
    let usages = |all: &[KeyUsagePurpose]| client(ca, |svid| svid.key_usages = all.to_vec());
    let key = key();
    let rsa_1024 = svid_params().signed_by(&Rsa1024::new(), ca).expect("leaf");
    let unknown_critical = |svid: &mut CertificateParams| {
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 55_555, 1], vec![5, 0]);
        extension.set_criticality(true);
        svid.custom_extensions = vec![extension];
    };
    let twice = |svid: &mut CertificateParams| {
        // A second extendedKeyUsage, with clientAuth.
        let client_auth = vec![0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
        svid.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 37], client_auth)];
    };
    vec![
        refused("serverAuth only", purposes(&[ServerAuth]), NO_CLIENT_AUTH),
        refused("no extended key usage", purposes(&[]), NO_CLIENT_AUTH),
        refused("anyExtendedKeyUsage only", purposes(&[Any]), NO_CLIENT_AUTH),
        passes("anyExtendedKeyUsage and clientAuth", purposes(&[Any, ClientAuth])),
        passes("serverAuth and clientAuth", purposes(&[ServerAuth, ClientAuth])),
        refused("extended key usage twice", client(ca, twice), MALFORMED),
        refused("CA", client(ca, |svid| svid.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), CA),
        passes("no basic constraints", client(ca, |svid| svid.is_ca = IsCa::NoCa)),
        refused("keyCertSign", usages(&[DigitalSignature, KeyCertSign]), SIGNS),
        refused("cRLSign", usages(&[DigitalSignature, CrlSign]), SIGNS),
        refused("no key usage", usages(&[]), NO_SIGNATURE),
        refused("keyEncipherment only", usages(&[KeyEncipherment]), NO_SIGNATURE),
        passes("digitalSignature and keyEncipherment", usages(&[DigitalSignature, KeyEncipherment])),
        refused(
            "unknown critical extension",
            client(ca, unknown_critical),
            "certificate has an unknown critical extension",
        ),
        refused(
            "RSA of 1024 bits",
            Client::with_key(rsa_1024.der().clone(), &key),
            "certificate has an RSA key of less than 2048 bits",
        ),
        passes("RSA of 2048 bits", with_key_of(&rcgen::PKCS_RSA_SHA256, ca)),
        passes("P-384", with_key_of(&rcgen::PKCS_ECDSA_P384_SHA384, ca)),
        passes("Ed25519", with_key_of(&rcgen::PKCS_ED25519, ca)),
    ]
}

fn of_names(ca: &Authority) -> Vec<Row> {
    let dns = |name: &str| SanType::DnsName(name.try_into().expect("ASCII"));
    let email = || SanType::Rfc822Name("web@trust.example".try_into().expect("ASCII"));
    let mut rows = vec![
        passes("and a DNS name", client(ca, |svid| svid.subject_alt_names.insert(0, dns("web.example")))),
        passes("and an email address", client(ca, |svid| svid.subject_alt_names.push(email()))),
        refused(
            "two SPIFFE ids",
            uris(ca, &[ID, "spiffe://trust.example/b"]),
            "certificate has 2 URI names, not one",
        ),
        refused("one SPIFFE id twice", uris(ca, &[ID, ID]), "certificate has 2 URI names, not one"),
        refused("a URL too", uris(ca, &[ID, "https://web.example/"]), "certificate has 2 URI names, not one"),
        refused(
            "a URL first",
            uris(ca, &["https://web.example/", ID]),
            "certificate has 2 URI names, not one",
        ),
        refused(
            "two with a DNS name between",
            client(ca, |svid| svid.subject_alt_names = vec![uri(ID), dns("web.example"), uri(ID)]),
            "certificate has 2 URI names, not one",
        ),
        refused(
            "CN only",
            client(ca, |svid| {
                svid.subject_alt_names = Vec::new();
                svid.distinguished_name = named(ID);
            }),
            "certificate has 0 URI names, not one",
        ),
        refused(
            "SPIFFE id as a DNS name",
            client(ca, |svid| svid.subject_alt_names = vec![dns("trust.example")]),
            "certificate has 0 URI names, not one",
        ),
    ];
    let not_ids = [
        "https://trust.example/ns/prod/sa/web",
        "wimse://trust.example/ns/prod/sa/web",
        "SPIFFE://trust.example/ns/prod/sa/web",
        "spiffe:/trust.example/ns/prod/sa/web",
        "spiffe:///ns/prod/sa/web",
        "spiffe://trust.example",
        "spiffe://trust.example/",
        "spiffe://trust.example/ns/prod/sa/web/",
        "spiffe://trust.example/ns//web",
        "spiffe://trust.example/ns/../web",
        "spiffe://trust.example/ns%2fweb",
        "spiffe://trust%2eexample/web",
        "spiffe://Trust.example/web",
        "spiffe://user@trust.example/web",
        "spiffe://trust.example:443/web",
        "spiffe://*.example/web",
        "spiffe://trust.example/*",
        "spiffe://trust.example/web?x",
        "spiffe://trust.example/web#x",
        "spiffe://trust.example/web\0",
        " spiffe://trust.example/web",
        "",
    ];
    rows.extend(not_ids.map(|name| refused(name, uris(ca, &[name]), NOT_SPIFFE)));
    let long = format!("spiffe://trust.example/{}", "a".repeat(limits::WORKLOAD_ID_BYTES_MAX));
    rows.push(refused("too long", uris(ca, &[&long]), NOT_SPIFFE));
    let elsewhere = [
        "spiffe://other.example/web",
        "spiffe://evil-trust.example/web",
        "spiffe://trust.example.evil/web",
        "spiffe://sub.trust.example/web",
        "spiffe://trust.exampl/e",
        "spiffe://evil/trust.example",
    ];
    let reason = "certificate is of a trust domain that is not configured";
    rows.extend(elsewhere.map(|name| refused(name, uris(ca, &[name]), reason)));
    rows.push(Row {
        name: "of the second trust domain",
        client: Some(uris(ca, &["spiffe://second.example/web"])),
        client_crl: None,
        expected: Ok(Some("spiffe://second.example/web")),
    });
    rows
}

fn of_paths(ca: &Authority) -> Vec<Row> {
    let good = intermediate("good", ca, |_| {});
    let changed = |change: fn(&mut CertificateParams)| {
        let issuer = intermediate("changed", ca, change);
        client(&issuer, |_| {}).then(&issuer)
    };
    let constrained = |constraints: NameConstraints| {
        let issuer = intermediate("constrained", ca, |ca| ca.name_constraints = Some(constraints));
        let names = ["web.example".try_into().expect("ASCII"), "web.evil".try_into().expect("ASCII")];
        client(&issuer, |svid| svid.subject_alt_names.extend(names.map(SanType::DnsName))).then(&issuer)
    };
    let subtrees = |permitted: &[&str], excluded: &[&str]| NameConstraints {
        permitted_subtrees: permitted
            .iter()
            .map(|name| GeneralSubtree::DnsName((*name).to_owned()))
            .collect(),
        excluded_subtrees: excluded.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned())).collect(),
    };
    // permittedSubtrees with one URI (RFC 5280 §4.2.1.10), which rcgen cannot create.
    let uri_constrained = changed(|ca| {
        let host = b"trust.example";
        let length = u8::try_from(host.len()).expect("short");
        let mut content = vec![0x30, length + 6, 0xa0, length + 4, 0x30, length + 2, 0x86, length];
        content.extend(host);
        let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 30], content);
        extension.set_criticality(true);
        ca.custom_extensions = vec![extension];
    });
    let issued_by_leaf = {
        let (key, other_key) = (key(), key());
        let svid = CertifiedIssuer::signed_by(svid_params(), key, ca).expect("leaf");
        let below = svid_params().signed_by(&other_key, &svid).expect("leaf of a leaf");
        Client::with_key(below.der().clone(), &other_key).then(&svid)
    };
    let two_deep = |change: fn(&mut CertificateParams)| {
        let upper = intermediate("upper", ca, change);
        let lower = intermediate("lower", &upper, |_| {});
        client(&lower, |_| {}).then(&lower).then(&upper)
    };
    let only_ip = NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([10, 0, 0, 0], 8))],
        excluded_subtrees: Vec::new(),
    };
    vec![
        passes("with its intermediate", client(&good, |_| {}).then(&good)),
        passes("with its intermediate and the CA", client(&good, |_| {}).then(&good).then(ca)),
        passes(
            "with another CA before its intermediate",
            client(&good, |_| {}).then(&root("odd")).then(&good),
        ),
        refused("without its intermediate", client(&good, |_| {}), NO_PATH),
        refused("intermediate expired", changed(|ca| ca.not_after = at!(NOW - 1)), EXPIRED),
        refused("intermediate not valid yet", changed(|ca| ca.not_before = at!(NOW + 1)), NOT_YET),
        refused(
            "intermediate is no CA",
            changed(|ca| ca.is_ca = IsCa::ExplicitNoCa),
            "certificate was issued by a certificate that is not a CA",
        ),
        refused(
            "intermediate is a workload's",
            issued_by_leaf,
            "certificate was issued by a certificate that is not a CA",
        ),
        refused(
            "intermediate without keyCertSign",
            changed(|ca| ca.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
            "intermediate certificate has no key usage keyCertSign",
        ),
        refused(
            "intermediate for servers only",
            changed(|ca| ca.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            NO_CLIENT_AUTH,
        ),
        passes(
            "path as long as its constraint allows",
            two_deep(|ca| ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(1))),
        ),
        refused(
            "path longer than its constraint allows",
            two_deep(|ca| ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))),
            "path to the CA is too long",
        ),
        passes("names within constraints", constrained(subtrees(&["example", "evil"], &[]))),
        passes("constraints on other kinds of names", constrained(only_ip)),
        refused("name outside of the permitted ones", constrained(subtrees(&["example"], &[])), NAME),
        refused("name that is excluded", constrained(subtrees(&[], &["evil"])), NAME),
        refused("URI constraints, which cannot be checked", uri_constrained, NAME),
        passes("six intermediates", under(ca, 6)),
        refused("seven intermediates", under(ca, 7), "more than 6 intermediate certificates"),
        refused("thirty intermediates", under(ca, 30), "more than 6 intermediate certificates"),
        refused("the CA itself", Client::with_key(ca.der().clone(), ca.key()), CA),
    ]
}

pub(super) async fn check_rows(rows: Vec<Row>, ca: &Authority) {
    let mut complaints = Vec::new();
    for row in rows {
        let setup = Setup::new(&(ca.pem() + &rsa_ca().pem()), row.client_crl.as_deref());
        let tls = setup.tls();
        for (name, version) in [("1.3", &TLS13), ("1.2", &TLS12)] {
            let found = peer(&setup, &tls, row.client.clone(), version).await;
            let found = found.map(|peer| peer.map(|peer| peer.spiffe_id.to_string()));
            let expected = row.expected.map(|id| id.map(str::to_owned)).map_err(str::to_owned);
            if found != expected {
                complaints.push(format!("TLS {name}, {:?}: {found:?}, not {expected:?}", row.name));
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[tokio::test]
async fn only_unexpired_certificates_of_client_cas_are_accepted() {
    let ca = root("client CA");
    check_rows(of_times_and_signatures(&ca), &ca).await;
}

#[tokio::test]
async fn only_client_certificates_that_are_no_ca_are_accepted() {
    let ca = root("client CA");
    check_rows(of_usage(&ca), &ca).await;
}

#[tokio::test]
async fn only_one_spiffe_id_of_an_allowed_domain_is_accepted() {
    let ca = root("client CA");
    check_rows(of_names(&ca), &ca).await;
}

#[tokio::test]
async fn only_certificates_with_a_valid_path_are_accepted() {
    let ca = root("client CA");
    check_rows(of_paths(&ca), &ca).await;
}

#[tokio::test]
async fn peer_has_thumbprint_and_expiry_of_its_certificate() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let client = client(&ca, |_| {});
    let der = client.chain[0].to_vec();
    let found = peer(&setup, &setup.tls(), Some(client), &TLS13).await.expect("good").expect("a certificate");
    assert_eq!(found.thumbprint, digest::digest(&digest::SHA256, &der).as_ref());
    assert_eq!(found.not_after, Timestamp::from_secs((NOW + HOUR).cast_signed()));
}

/// A shared pool of CAs would let the CA of each trust domain name the workloads of all.
#[tokio::test]
async fn ca_of_one_trust_domain_cannot_name_another() {
    let (own, second) = (root("own clients"), root("second clients"));
    let mut setup = Setup::new(&own.pem(), None);
    setup.write("second.pem", &second.pem());
    setup.files.authorities[1].roots = Roots::Pem(setup.directory.path().join("second.pem"));
    let tls = setup.tls();
    let no_path = Err("certificate has no path to a client CA".to_owned());
    for (ca, name, expected) in [
        (&own, "spiffe://trust.example/web", Ok(())),
        (&second, "spiffe://second.example/web", Ok(())),
        (&own, "spiffe://second.example/web", no_path.clone()),
        (&second, "spiffe://trust.example/web", no_path),
    ] {
        let config = Arc::new(setup.client_config(Some(uris(ca, &[name])), &TLS13));
        assert_eq!(connect(&tls, &config).await.map(drop), expected, "{name}");
    }
}
