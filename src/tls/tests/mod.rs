//! A server with our TLS and clients with every kind of certificate, over an in-memory pipe.

mod bundle;
mod certificates;
mod handshake;
mod load;
mod reload;
mod revocation;
mod svid;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::DuplexStream;
use tokio_rustls::{TlsConnector, client, server};

use super::config::Time;
use super::*;
use crate::clock::Timestamp;

/// The time of all tests, in seconds since the Unix epoch.
const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;
const ID: &str = "spiffe://trust.example/ns/prod/sa/web";

/// An instant in the type that rcgen takes.
macro_rules! at {
    ($secs:expr) => {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs($secs)
    };
}
use at;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("ASCII"))
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.not_before = at!(NOW - 24 * HOUR);
    params.not_after = at!(NOW + 24 * HOUR);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("key")
}

fn root(name: &str) -> Authority {
    CertifiedIssuer::self_signed(ca_params(name), key()).expect("root")
}

/// A CA under another, with one change.
fn intermediate(name: &str, parent: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let mut params = ca_params(name);
    params.serial_number = Some(SerialNumber::from_slice(&[0x17]));
    change(&mut params);
    CertifiedIssuer::signed_by(params, key(), parent).expect("intermediate")
}

/// Parameters of a valid workload certificate.
fn svid_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("web");
    params.serial_number = Some(SerialNumber::from_slice(&[0x42]));
    params.not_before = at!(NOW - HOUR);
    params.not_after = at!(NOW + HOUR);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![uri(ID)];
    params
}

/// The certificate path that a client sends, and its key.
#[derive(Debug)]
struct Client {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Client {
    fn with_key(certificate: CertificateDer<'static>, key: &KeyPair) -> Self {
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Self { chain: vec![certificate], key }
    }

    /// Appends the certificate of `issuer`.
    fn then(mut self, issuer: &Authority) -> Self {
        self.chain.push(issuer.der().clone());
        self
    }
}

/// A client of `issuer`, with one change.
fn client(issuer: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Client {
    let key = key();
    let mut params = svid_params();
    change(&mut params);
    let certificate = params.signed_by(&key, issuer).expect("leaf");
    Client::with_key(certificate.der().clone(), &key)
}

/// A revocation list of `serials` with these times.
fn crl(issuer: &Authority, serials: &[u8], this_update: u64, next_update: u64) -> String {
    let revoked = |serial: &u8| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&[*serial]),
        revocation_time: at!(NOW - HOUR),
        reason_code: None,
        invalidity_date: None,
    };
    CertificateRevocationListParams {
        this_update: at!(this_update),
        next_update: at!(next_update),
        crl_number: SerialNumber::from_slice(&[1]),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    }
    .signed_by(issuer)
    .and_then(|list| list.pem())
    .expect("revocation list")
}

fn fresh_crl(issuer: &Authority, serials: &[u8]) -> String {
    crl(issuer, serials, NOW - HOUR, NOW + HOUR)
}

/// Our own certificate and key, both PEM.
fn own(issuer: &Authority, not_after: u64) -> (String, String) {
    let key = key();
    let mut params = CertificateParams::new(["localhost".to_owned()]).expect("name");
    params.not_before = at!(NOW - HOUR);
    params.not_after = at!(not_after);
    (params.signed_by(&key, issuer).expect("own").pem(), key.serialize_pem())
}

/// TLS files in a temporary directory, and the CA of our certificate.
struct Setup {
    directory: tempfile::TempDir,
    files: Files,
    clock: Clock,
    metrics: Metrics,
    own_ca: Authority,
}

impl Setup {
    fn new(client_ca: &str, client_crl: Option<&str>) -> Self {
        let own_ca = root("own CA");
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let files = Files {
            own: KeyPairFiles { certificate: at("certificate.pem"), private_key: at("key.pem") },
            authorities: ["trust.example", "second.example"]
                .map(|name| Authorities {
                    trust_domain: name.parse().expect("trust domain"),
                    roots: Roots::Pem(at("ca.pem")),
                    crl: client_crl.map(|_| at("crl.pem")),
                })
                .to_vec(),
        };
        let clock = Clock::manual(Timestamp::from_secs(NOW.cast_signed()));
        let metrics = Metrics::new().expect("metrics");
        let setup = Self { directory, files, clock, metrics, own_ca };
        let (certificate, private_key) = own(&setup.own_ca, NOW + 10 * HOUR);
        setup.write("certificate.pem", &certificate);
        setup.write("key.pem", &private_key);
        setup.write("ca.pem", client_ca);
        if let Some(crl) = client_crl {
            setup.write("crl.pem", crl);
        }
        setup
    }

    /// Writes as Kubernetes and certificate agents do: another file, then a rename.
    fn write(&self, name: &str, text: &str) {
        let path = self.directory.path().join(name);
        let new = path.with_extension("new");
        fs::write(&new, text).expect("written");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("mode");
        fs::rename(new, path).expect("renamed");
    }

    fn load(&self) -> Result<Tls, Error> {
        Tls::load(self.files.clone(), RemoteEnd::Callers, self.clock.clone(), self.metrics.clone())
    }

    fn tls(&self) -> Tls {
        self.load().expect("good files")
    }

    /// Configuration of a client.
    fn client_config(
        &self,
        client: Option<Client>,
        version: &'static SupportedProtocolVersion,
    ) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.own_ca.der().clone()).expect("root");
        let builder =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(Time(self.clock.clone())))
                .with_protocol_versions(&[version])
                .expect("versions")
                .with_root_certificates(roots);
        match client {
            None => builder.with_no_client_auth(),
            // Sends any certificate: the client library would refuse half of them.
            Some(Client { chain, key }) => {
                let key = provider.key_provider.load_private_key(key).expect("key");
                let resolver = SingleCertAndKey::from(CertifiedKey::new(chain, key));
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
        }
    }
}

type Ends = (server::TlsStream<DuplexStream>, client::TlsStream<DuplexStream>);

/// One handshake; an error is the server's reason.
async fn connect(tls: &Tls, config: &Arc<ClientConfig>) -> Result<Ends, String> {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let name = ServerName::try_from("localhost").expect("name");
    let accepted = tls.acceptor().accept(near).into_fallible();
    let connected = TlsConnector::from(Arc::clone(config)).connect(name, far);
    let (accepted, connected) = tokio::join!(accepted, connected);
    match accepted {
        Ok(server) => Ok((server, connected.expect("the client accepts what the server accepts"))),
        Err((error, _)) => Err(handshake_failure(&error).into_owned()),
    }
}

/// The peer as the server identifies it.
async fn peer(
    setup: &Setup,
    tls: &Tls,
    client: Option<Client>,
    version: &'static SupportedProtocolVersion,
) -> Result<Option<PeerCertificate>, String> {
    let (server, _) = connect(tls, &Arc::new(setup.client_config(client, version))).await?;
    Ok(peer_certificate(server.get_ref().1).expect("what the handshake has checked"))
}
