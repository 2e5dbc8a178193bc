//! Roots of peer fabrics from SPIFFE bundles, and the certificates of their nodes in both directions.

mod calls;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::ServerConfig;
use rustls::version::TLS13;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::*;
use crate::json;

const NODE: &str = "spiffe://peer.example/node/1";
const NO_PATH: &str = "certificate has no path to a client CA";
const NO_CA: &str = "certificate has no path to an accepted CA";
const UNKNOWN: &str = "certificate is of a trust domain that is not configured";

fn key_of(root: &Authority) -> Value {
    json!({"kty": "EC", "crv": "P-256", "use": "x509-svid", "x5c": [STANDARD.encode(root.der())]})
}

fn document(roots: &[&Authority], sequence: Option<u64>) -> String {
    let keys: Vec<Value> = roots.iter().map(|root| key_of(root)).collect();
    match sequence {
        Some(sequence) => json!({"keys": keys, "spiffe_sequence": sequence}).to_string(),
        None => json!({ "keys": keys }).to_string(),
    }
}

fn of_id(id: &str, issuer: &Authority) -> Client {
    client(issuer, |params| params.subject_alt_names = vec![uri(id)])
}

impl Setup {
    /// A setup with the client CA `ca` that also accepts the peers with these trust domains and roots.
    fn with_peers(ca: &Authority, peers: &[(&str, &[&Authority])]) -> (Self, Vec<Bundle>) {
        let mut setup = Self::new(&ca.pem(), None);
        let mut bundles = Vec::new();
        for (trust_domain, roots) in peers {
            let bundle = setup.bundle(trust_domain, &document(roots, None));
            let authorities = Authorities {
                trust_domain: trust_domain.parse().expect("trust domain"),
                roots: Roots::Bundle(bundle.clone()),
                crl: None,
            };
            setup.files.authorities.push(authorities);
            bundles.push(bundle);
        }
        (setup, bundles)
    }

    fn bundle(&self, name: &str, document: &str) -> Bundle {
        self.write(&format!("{name}.json"), document);
        Bundle::load(self.directory.path().join(format!("{name}.json"))).expect("a bundle")
    }

    /// The TLS of calls to peers, with a client certificate of `ca`.
    fn calling(&mut self, ca: &Authority) -> Tls {
        let key = key();
        let certificate = svid_params().signed_by(&key, ca).expect("leaf");
        self.write("certificate.pem", &certificate.pem());
        self.write("key.pem", &key.serialize_pem());
        self.files.authorities.retain(|of| matches!(of.roots, Roots::Bundle(_)));
        Tls::load(self.files.clone(), RemoteEnd::Fabrics, self.clock.clone(), self.metrics.clone())
            .expect("good files")
    }
}

async fn id_of(setup: &Setup, tls: &Tls, client: Client) -> Result<String, String> {
    let found = peer(setup, tls, Some(client), &TLS13).await?;
    Ok(found.expect("a certificate").spiffe_id.as_str().to_owned())
}

fn domain(name: &str) -> TrustDomain {
    name.parse().expect("trust domain")
}

/// Attack: the CA of one peer, or of our callers, issues names of another fabric.
#[tokio::test]
async fn a_certificate_of_another_peer_opens_nothing_of_this_one() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&two])]);
    let tls = setup.tls();
    let other = "spiffe://other.example/node/1";
    assert_eq!(id_of(&setup, &tls, of_id(NODE, &one)).await.as_deref(), Ok(NODE));
    assert_eq!(id_of(&setup, &tls, of_id(other, &two)).await.as_deref(), Ok(other));
    assert_eq!(id_of(&setup, &tls, of_id(ID, &ca)).await.as_deref(), Ok(ID));
    for (name, issuer) in [(NODE, &two), (other, &one), (NODE, &ca), (ID, &one), (ID, &two), (other, &ca)] {
        assert_eq!(id_of(&setup, &tls, of_id(name, issuer)).await, Err(NO_PATH.to_owned()), "{name}");
    }
    let stranger = of_id("spiffe://third.example/node/1", &one);
    assert_eq!(id_of(&setup, &tls, stranger).await, Err(UNKNOWN.to_owned()));
}

/// Also SPIRE's helm-charts-hardened 335, a rotation that federation did not follow.
#[tokio::test]
async fn a_bundle_rotates_without_a_gap() {
    let (ca, old, new) = (root("client CA"), root("old"), root("new"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&old])]);
    let tls = setup.tls();
    let accepted = async || {
        let old = id_of(&setup, &tls, of_id(NODE, &old)).await.is_ok();
        (old, id_of(&setup, &tls, of_id(NODE, &new)).await.is_ok())
    };
    assert_eq!(accepted().await, (true, false));
    setup.write("peer.example.json", &document(&[&old, &new], Some(1)));
    assert!(bundles[0].read_again().expect("accepted") && !bundles[0].read_again().expect("the same"));
    let logged = tls.poll(LoggedState::default());
    assert_eq!(accepted().await, (true, true));
    // As from the endpoint.
    assert!(bundles[0].accept(document(&[&new], Some(2)).as_bytes()).expect("accepted"));
    tls.poll(logged);
    assert_eq!(accepted().await, (false, true));
    assert_eq!(*tls.changes().borrow(), 2);
}

/// Attack: a peer publishes another bundle every few seconds, so that all callers must connect again.
#[tokio::test]
async fn bundle_ends_the_connections_of_its_trust_domain_only() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&two])]);
    let tls = setup.tls();
    let [peer, other, callers] = ["peer.example", "other.example", "trust.example"].map(domain);
    let changed = |generation| {
        [Some(&peer), Some(&other), Some(&callers), None].map(|of| tls.has_changed(generation, of))
    };
    assert_eq!(changed(0), [false; 4]);
    bundles[0].accept(document(&[], Some(1)).as_bytes()).expect("accepted");
    let logged = tls.poll(LoggedState::default());
    assert_eq!(changed(0), [true, false, false, false]);
    assert_eq!(changed(1), [false; 4], "a connection made since");
    tokio::time::timeout(Duration::from_secs(30), tls.until_changed(0, &peer)).await.expect("at once");
    setup.write("ca.pem", &format!("{}{}", ca.pem(), one.pem()));
    tls.poll(logged);
    assert_eq!((changed(0), changed(1), changed(2)), ([true; 4], [true; 4], [false; 4]));
}

#[tokio::test]
async fn empty_bundle_revokes_every_root() {
    let (ca, one) = (root("client CA"), root("one"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    let tls = setup.tls();
    bundles[0].accept(document(&[], None).as_bytes()).expect("accepted");
    tls.poll(LoggedState::default());
    assert_eq!(id_of(&setup, &tls, of_id(NODE, &one)).await, Err(UNKNOWN.to_owned()));
    assert!(id_of(&setup, &tls, of_id(ID, &ca)).await.is_ok());
}

/// Also SPIRE 5097, a bundle that outlives its upstream CA.
#[tokio::test]
async fn expired_root_is_no_root() {
    let one = root("one");
    let mut lasting = ca_params("client CA");
    lasting.not_after = at!(NOW + 100 * HOUR);
    let ca = Authority::self_signed(lasting, key()).expect("root");
    let (setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    let (certificate, private_key) = own(&setup.own_ca, NOW + 100 * HOUR);
    setup.write("certificate.pem", &certificate);
    setup.write("key.pem", &private_key);
    let tls = setup.tls();
    let late = client(&one, |params| {
        params.subject_alt_names = vec![uri(NODE)];
        params.not_after = at!(NOW + 48 * HOUR);
    });
    assert!(id_of(&setup, &tls, late.clone()).await.is_ok());
    setup.clock.advance(Duration::from_secs(24 * HOUR + 1));
    tls.poll(LoggedState::default());
    assert_eq!(id_of(&setup, &tls, late).await, Err(UNKNOWN.to_owned()));
}

#[tokio::test]
async fn malformed_or_older_bundle_changes_nothing() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    let bundle = &bundles[0];
    assert!(bundle.accept(document(&[&one], Some(5)).as_bytes()).expect("accepted"));
    let tls = setup.tls();
    let leaf = of_id(NODE, &one);
    let x5c = |x5c: Value| with_x5c(&two, x5c);
    let certificate = STANDARD.encode(two.der());
    let too_many = vec![key_of(&two); limits::KEYS_PER_SET_MAX + 1];
    let twice = document(&[&two], Some(6)).replacen('{', "{\"keys\":[],", 1);
    for (wrong, reason) in [
        (document(&[&two], Some(4)), "spiffe_sequence went backwards"),
        ("<html>".to_owned(), "not a JWK Set"),
        (json!([]).to_string(), "not a JWK Set"),
        (json!({"spiffe_sequence": 6}).to_string(), "not a JWK Set"),
        (json!({"keys": {}}).to_string(), "not a JWK Set"),
        (json!({"keys": ["a"]}).to_string(), "not a JWK Set"),
        (json!({"keys": [key_of(&two)], "spiffe_sequence": -1}).to_string(), "not a JWK Set"),
        (json!({"keys": [key_of(&two)], "spiffe_sequence": "6"}).to_string(), "not a JWK Set"),
        (json!({"keys": [key_of(&two)], "spiffe_refresh_hint": 1.5}).to_string(), "not a JWK Set"),
        (twice, "not a JWK Set"),
        (json!({"keys": too_many, "spiffe_sequence": 6}).to_string(), "too many keys"),
        (x5c(Value::Null), "not one certificate"),
        (x5c(json!([])), "not one certificate"),
        (x5c(json!(certificate)), "not one certificate"),
        (x5c(json!([certificate, certificate])), "not one certificate"),
        (x5c(json!([1])), "not one certificate"),
        (x5c(json!(["AAAA"])), "not one certificate"),
        (x5c(json!([format!("{certificate}AAAA")])), "not one certificate"),
        (x5c(json!([STANDARD.encode(&leaf.chain[0])])), "not a CA certificate"),
    ] {
        let refused = bundle.accept(wrong.as_bytes()).expect_err(&wrong);
        assert!(refused.to_string().contains(reason), "{wrong}: {refused}");
        if !reason.contains("backwards") {
            setup.write("peer.example.json", &wrong);
            assert!(bundle.read_again().is_err(), "{wrong}");
            assert!(matches!(bundle.read_again(), Ok(false)), "reported once");
        }
        tls.poll(LoggedState::default());
    }
    assert_eq!(*tls.changes().borrow(), 0);
    assert!(id_of(&setup, &tls, leaf).await.is_ok());
    // Keys for other purposes are not for certificates, whatever they hold.
    let jwt = json!({"kty": "EC", "use": "jwt-svid", "kid": "a", "x5c": ["AAAA"]});
    let mixed = json!({"keys": [jwt, {"kty": "EC"}, key_of(&one)], "spiffe_sequence": 6}).to_string();
    assert!(bundle.accept(mixed.as_bytes()).expect("accepted"));
}

fn with_x5c(root: &Authority, x5c: Value) -> String {
    let mut key = key_of(root);
    key["x5c"] = x5c;
    json!({"keys": [key], "spiffe_sequence": 6}).to_string()
}

/// Regression: after a restart the old root of the file was trusted again, and the peer's new one was not.
#[tokio::test]
async fn bundle_of_the_endpoint_is_in_use_after_a_restart() {
    let (ca, old, new) = (root("client CA"), root("old"), root("new"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&old])]);
    let newer = document(&[&new], Some(2));
    assert!(bundles[0].accept(newer.as_bytes()).expect("accepted"));
    let kept = setup.directory.path().join("kept");
    fs::write(&kept, bundles[0].to_keep(newer.as_bytes())).expect("written");
    let restarted = || Bundle::load(bundles[0].file().to_owned()).expect("a bundle");
    let bundle = restarted();
    assert!(bundle.is_of_file() && bundle.resume(&kept).expect("kept") && !bundle.is_of_file());
    let older = bundle.accept(document(&[&old], Some(1)).as_bytes());
    assert!(matches!(older, Err(BundleError::SequenceWentBack)));
    let mut files = setup.files.clone();
    files.authorities.last_mut().expect("the peer").roots = Roots::Bundle(bundle.clone());
    let tls = Tls::load(files, RemoteEnd::Callers, setup.clock.clone(), setup.metrics.clone()).expect("good");
    assert!(id_of(&setup, &tls, of_id(NODE, &new)).await.is_ok());
    assert_eq!(id_of(&setup, &tls, of_id(NODE, &old)).await, Err(NO_PATH.to_owned()));
    // The same content of the file is no change.
    assert!(!bundle.read_again().expect("the same"));
    // A file that an operator changed wins.
    setup.write("peer.example.json", &document(&[&old, &ca], None));
    let bundle = restarted();
    assert!(!bundle.resume(&kept).expect("readable") && bundle.is_of_file());
    for malformed in [&b""[..], b"{}", b"\n"] {
        fs::write(&kept, malformed).expect("written");
        let outcome = bundle.resume(&kept);
        assert!(!outcome.unwrap_or(false) && bundle.is_of_file());
    }
    assert!(!bundle.resume(&setup.directory.path().join("none")).expect("none is kept"));
}

/// Attack: a peer publishes our root, or that of another peer, so that no node of ours starts again.
#[test]
fn root_of_another_in_a_kept_bundle_does_not_stop_the_start() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&two])]);
    bundles[0].accept(document(&[&one, &two, &ca], Some(1)).as_bytes()).expect("accepted");
    assert!(setup.load().is_ok());
}

#[test]
fn order_of_bundles_counts_only_if_both_have_a_number() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    let bundle = &bundles[0];
    let accept = |sequence| bundle.accept(document(&[&one, &two], sequence).as_bytes()).is_ok();
    assert_eq!([Some(5), Some(4), None, Some(4), Some(3)].map(accept), [true, false, true, true, false]);
    // An operator goes back to an older bundle.
    setup.write("peer.example.json", &document(&[&one], Some(1)));
    assert!(bundle.read_again().expect("accepted") && bundle.is_of_file());
    assert!(accept(Some(1)), "from then on");
}

/// Regression: a file that was malformed for a short time replaced the newer bundle of the endpoint.
#[test]
fn file_that_returns_to_its_content_changes_nothing() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (setup, bundles) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    bundles[0].accept(document(&[&two], None).as_bytes()).expect("accepted");
    setup.write("peer.example.json", "{");
    assert!(bundles[0].read_again().is_err());
    setup.write("peer.example.json", &document(&[&one], None));
    assert!(!bundles[0].read_again().expect("the same") && !bundles[0].is_of_file());
}

/// Attack: two peers share a CA, and one gets a certificate with the name of the other.
#[test]
fn one_root_for_two_trust_domains_is_refused() {
    let (ca, one) = (root("client CA"), root("one"));
    let (setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&one])]);
    let refused = setup.load().err().expect("refused").to_string();
    assert!(
        refused.contains("other.example.json: contains a root of trust domain peer.example"),
        "{refused}"
    );
    let (setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&ca])]);
    let refused = setup.load().err().expect("refused").to_string();
    assert!(refused.contains("contains a root of trust domain"), "{refused}");
}

#[test]
fn unreadable_bundle_is_named_at_start() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let load = |name: &str| Bundle::load(setup.directory.path().join(name)).expect_err("refused").to_string();
    assert!(load("none.json").contains("none.json"));
    setup.write("bad.json", "{}");
    assert!(load("bad.json").contains("bad.json: key document is not a JWK Set"), "{}", load("bad.json"));
    setup.write("open.json", "{\"keys\":[]}");
    let path = setup.directory.path().join("open.json");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("mode");
    assert!(load("open.json").contains("lets other users write it"));
}

#[test]
fn refresh_interval_is_the_hint_within_bounds() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let interval = |hint: Value| {
        let document = json!({"keys": [], "spiffe_refresh_hint": hint}).to_string();
        setup.bundle("hint", &document).refresh_interval().as_secs()
    };
    assert_eq!([1, 10, 77, 100_000].map(|hint| interval(json!(hint))), [10, 10, 77, 300]);
    assert_eq!(setup.bundle("hint", "{\"keys\":[]}").refresh_interval().as_secs(), 300);
}

#[test]
fn published_bundle_has_the_roots_and_their_keys() {
    let ca = root("client CA");
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("key");
    let p384 = Authority::self_signed(ca_params("P-384"), p384).expect("root");
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("key");
    let rsa = Authority::self_signed(ca_params("RSA"), rsa).expect("root");
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("key");
    let ed25519 = Authority::self_signed(ca_params("Ed25519"), ed25519).expect("root");
    let setup = Setup::new(&[ca.pem(), p384.pem(), rsa.pem(), ed25519.pem()].concat(), None);
    let tls = setup.tls();
    assert!(matches!(tls.bundle_of(&domain("peer.example")), Ok(None)));
    let text = tls.bundle_of(&domain("trust.example")).expect("published").expect("a bundle");
    // Our own parser accepts it.
    setup.bundle("own", &text);
    let found = json::parse(text.as_bytes()).expect("JSON");
    assert_eq!(found["spiffe_refresh_hint"], limits::BUNDLE_REFRESH_HINT.as_secs());
    let keys = found["keys"].as_array().expect("keys");
    for (key, (root, curve)) in keys.iter().zip([(&ca, "P-256"), (&p384, "P-384")]) {
        assert_eq!(
            (&key["use"], &key["kty"], &key["crv"]),
            (&json!("x509-svid"), &json!("EC"), &json!(curve))
        );
        assert_eq!(key["x5c"], json!([STANDARD.encode(root.der())]));
        let (_, certificate) = X509Certificate::from_der(root.der()).expect("certificate");
        let point = certificate.public_key().subject_public_key.data.clone();
        let text = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().expect("text")).expect("base64url");
        assert_eq!([vec![4], text("x"), text("y")].concat(), point.as_ref());
    }
    let (_, certificate) = X509Certificate::from_der(ed25519.der()).expect("certificate");
    let point = URL_SAFE_NO_PAD.encode(&certificate.public_key().subject_public_key.data);
    let of_ed25519 = json!({
        "kty": "OKP", "crv": "Ed25519", "x": point, "use": "x509-svid", "x5c": [STANDARD.encode(ed25519.der())],
    });
    assert_eq!(keys[3], of_ed25519);
    assert_eq!((keys.len(), &keys[2]["kty"]), (4, &json!("RSA")));
    let (_, certificate) = X509Certificate::from_der(rsa.der()).expect("certificate");
    let key = certificate.public_key().subject_public_key.data.clone();
    let modulus = URL_SAFE_NO_PAD.decode(keys[2]["n"].as_str().expect("text")).expect("base64url");
    assert_eq!((modulus.len(), keys[2]["e"].as_str()), (256, Some("AQAB")));
    assert!(key.windows(256).any(|part| part == modulus));
}

/// A client takes a root that is missing for one that is revoked.
#[test]
fn root_without_jwk_form_is_an_error() {
    let unknown = CertificateDer::from(vec![0x30, 0]);
    for roots in [vec![unknown.clone()], vec![root("client CA").der().clone(), unknown]] {
        let refused = crate::tls::bundle::document(&roots);
        assert!(matches!(refused, Err(BundleError::NoJwk)));
    }
}

// --- calls to nodes of a peer ------------------------------------------------------------------------
