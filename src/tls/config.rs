//! Builds the rustls configurations from the file contents: from all of them, or from none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme, version};
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::client_verifier::SvidVerifier;
use super::files::{self, Contents, Files, ReadCrl, ReadRoots, Roots, bundle_digest};
use super::node_verifier::{Authorities, NodeVerifier};
use super::svid::{PeerCertificate, SvidError};
use super::{Error, KeyPairFiles, RemoteEnd, bundle, svid};
use crate::clock::{Clock, Timestamp};
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::telemetry::{TlsValidity, Validity};

/// The configurations of one state of the files.
pub(super) struct Loaded {
    pub server: Arc<ServerConfig>,
    /// For connections to other nodes.
    pub client: Arc<ClientConfig>,
    /// Verifies nodes, in [`Self::client`].
    node_verifier: Arc<NodeVerifier>,
    /// The CAs of each trust domain.
    pub roots: BTreeMap<TrustDomain, Vec<CertificateDer<'static>>>,
    /// Digest of all contents.
    pub digest: [u8; 32],
    /// Digest of our certificate and its private key.
    pub own: [u8; 32],
    /// The files, and the generation in which they last changed.
    pub files: Version,
    /// The same of the bundle of each peer's trust domain.
    pub bundles: BTreeMap<TrustDomain, Version>,
    /// Trust domains of peers that are left out, because their files are unusable.
    pub unusable: Vec<(TrustDomain, Error)>,
    pub validity: TlsValidity,
}

/// A state of contents, by their digest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Version {
    pub digest: [u8; 32],
    /// The generation in which it was loaded.
    pub since: u64,
}

impl Version {
    fn of(digest: [u8; 32]) -> Self {
        Self { digest, since: 0 }
    }

    /// Keeps the generation of `before` if nothing changed.
    fn continue_from(&mut self, before: Option<&Self>, generation: u64) {
        self.since = match before {
            Some(before) if before.digest == self.digest => before.since,
            _ => generation,
        };
    }
}

impl Loaded {
    /// Records `generation` for everything that has changed since `before`.
    pub fn succeed(&mut self, before: &Self, generation: u64) {
        self.files.continue_from(Some(&before.files), generation);
        for (trust_domain, version) in &mut self.bundles {
            version.continue_from(before.bundles.get(trust_domain), generation);
        }
    }

    /// The client configuration for nodes with one of `ids`.
    pub fn client_of(&self, ids: Arc<BTreeSet<WorkloadId>>, presents_certificate: bool) -> ClientConfig {
        let mut client = ClientConfig::clone(&self.client);
        client.dangerous().set_certificate_verifier(Arc::new(self.node_verifier.only(ids)));
        if !presents_certificate {
            client.client_auth_cert_resolver = Arc::new(NoCertificate);
        }
        client
    }
}

/// Presents no certificate.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Gives rustls our clock.
#[derive(Debug)]
pub(super) struct Time(pub Clock);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let secs = u64::try_from(self.0.now().secs()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(secs)))
    }
}

/// Our certificate and key, then the client CAs, then the handshake rules. `in_use` is the configuration to be replaced:
/// if its certificate has expired and is not replaced, it must not hold back a revocation list.
pub(super) fn load(
    files: &Files,
    contents: Contents,
    with: RemoteEnd,
    clock: &Clock,
    in_use: Option<&Loaded>,
) -> Result<Loaded, Error> {
    let now = clock.now();
    let (digest, file_digest, own_digest) =
        (contents.digest(), contents.file_digest(), contents.own_digest());
    let own = own_certificate(&files.own, (&contents.certificate, &contents.private_key))?;
    if in_use.is_none_or(|in_use| in_use.own != own_digest) {
        own.check_unexpired(&files.own, now)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let found = authorities(files, contents, now, &provider)?;
    if in_use.is_none()
        && let Some(path) = found.first_expired.filter(|_| found.roots.is_empty())
    {
        return Err(Error::NoClientCa { path });
    }
    let verifier = SvidVerifier::new(found.of_clients, found.hints, with == RemoteEnd::Peers, &provider);
    let unusable = |error| files.own.unusable(&error);
    let time = Arc::new(Time(clock.clone()));
    let node_verifier = Arc::new(NodeVerifier::new(found.of_servers, &provider));
    let mut client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::<Time>::clone(&time))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::<NodeVerifier>::clone(&node_verifier))
        .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
        .map_err(unusable)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    // rustls supports only the AEAD suites of TLS 1.2.
    let (versions, protocols): (&[_], &[&[u8]]) = match with {
        RemoteEnd::Callers => (&[&version::TLS13, &version::TLS12], &[b"h2", b"http/1.1"]),
        RemoteEnd::Peers | RemoteEnd::Fabrics => (&[&version::TLS13], &[b"h2"]),
    };
    let mut server = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(own.chain, own.key)
        .map_err(unusable)?;
    server.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // No resumption of any kind: rustls would copy the client certificate of the first handshake without verifying it
    // again, so that a revoked one would remain in use. Without tickets there is no early data either.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    Ok(Loaded {
        server: Arc::new(server),
        client: Arc::new(client),
        node_verifier,
        roots: found.roots,
        digest,
        own: own_digest,
        files: Version::of(file_digest),
        bundles: found.bundles,
        unusable: found.unusable,
        validity: TlsValidity { certificate: own.validity, ca: found.ca, crl: found.crl },
    })
}

/// The authorities of all trust domains.
#[derive(Default)]
struct Found {
    of_clients: BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>,
    of_servers: BTreeMap<TrustDomain, Authorities>,
    roots: BTreeMap<TrustDomain, Vec<CertificateDer<'static>>>,
    bundles: BTreeMap<TrustDomain, Version>,
    unusable: Vec<(TrustDomain, Error)>,
    /// Names of the CAs, but not of peers': their fabrics choose the number and length of these names.
    hints: Vec<DistinguishedName>,
    /// The first PEM file whose CAs have all expired: its trust domain counts as not configured.
    first_expired: Option<PathBuf>,
    /// As in [`TlsValidity`].
    ca: Option<Validity>,
    crl: Option<Validity>,
}

fn authorities(
    files: &Files,
    contents: Contents,
    now: Timestamp,
    provider: &Arc<CryptoProvider>,
) -> Result<Found, Error> {
    let mut found = Found::default();
    for (of, (read, crl)) in files.authorities.iter().zip(contents.authorities) {
        match read {
            ReadRoots::Pem { pem, .. } => {
                let path = of.roots.path();
                let cas = client_cas(path, &pem)?;
                let last = cas.iter().map(|(_, validity)| *validity).max_by_key(|ca| ca.end);
                found.ca = found.ca.into_iter().chain(last).min_by_key(|ca| ca.end);
                let certificates = unexpired(path, cas, now);
                if certificates.is_empty() {
                    found.first_expired.get_or_insert_with(|| path.to_owned());
                    continue;
                }
                found.hints.extend(root_store(path, &certificates)?.subjects());
                found.add(of, certificates, crl, now, provider)?;
            }
            ReadRoots::Bundle(roots) => {
                let version = Version::of(bundle_digest(&roots));
                found.bundles.insert(of.trust_domain.clone(), version);
                // All roots are revoked: the trust domain counts as not configured.
                if !roots.is_empty()
                    && let Err(error) = found.add(of, roots, crl, now, provider)
                {
                    found.unusable.push((of.trust_domain.clone(), error));
                }
            }
        }
    }
    Ok(found)
}

impl Found {
    fn add(
        &mut self,
        of: &super::Authorities,
        certificates: Vec<CertificateDer<'static>>,
        crl: Option<ReadCrl>,
        now: Timestamp,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), Error> {
        let roots = Arc::new(root_store(of.roots.path(), &certificates)?);
        let crls = match (&of.crl, crl) {
            (Some(path), Some(read)) => {
                let (crls, first) = revocation_lists(path, &read?, now)?;
                self.crl = self.crl.into_iter().chain([first]).min_by_key(|crl| crl.end);
                crls
            }
            _ => Vec::new(),
        };
        let malformed = || Error::CrlMalformed { path: of.crl.clone().unwrap_or_default() };
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
            // webpki defaults: every certificate of the path is checked, and an unknown status is refused.
            .with_crls(crls.clone())
            .enforce_revocation_expiration();
        let of_client = webpki.build().map_err(|_| malformed())?;
        let of_server = Authorities::new(roots, &crls).map_err(|_| malformed())?;
        let trust_domain = || of.trust_domain.clone();
        self.of_clients.insert(trust_domain(), of_client);
        self.of_servers.insert(trust_domain(), of_server);
        self.roots.insert(trust_domain(), certificates);
        Ok(())
    }
}

/// Our own certificate with its path and private key, not checked to be a pair.
pub(super) struct OwnCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub validity: Validity,
}

impl OwnCertificate {
    pub(super) fn check_unexpired(&self, files: &KeyPairFiles, now: Timestamp) -> Result<(), Error> {
        let not_after = self.validity.end;
        if not_after >= now {
            return Ok(());
        }
        Err(Error::CertificateExpired { path: files.certificate.clone(), not_after: not_after.to_rfc3339() })
    }
}

pub(super) fn own_certificate(
    files: &KeyPairFiles,
    (certificate, private_key): (&[u8], &[u8]),
) -> Result<OwnCertificate, Error> {
    let path = &files.certificate;
    let chain = certificates(path, certificate)?;
    let first = chain.first().ok_or_else(|| Error::NoCertificate { path: path.clone() })?;
    let (not_before, not_after) = svid::validity(first).map_err(|_| Error::NotPem { path: path.clone() })?;
    let key = PrivateKeyDer::from_pem_slice(private_key)
        .map_err(|_| Error::NoPrivateKey { path: files.private_key.clone() })?;
    let validity = Validity { begin: not_before, end: not_after };
    Ok(OwnCertificate { chain, key, validity })
}

impl KeyPairFiles {
    /// The SPIFFE ID of the certificate, with which this node calls.
    ///
    /// # Errors
    /// [`Error::File`] and the like; [`Error::NotAnSvid`].
    pub fn spiffe_id(&self) -> Result<WorkloadId, Error> {
        self.svid(svid::peer_certificate)
    }

    /// The SPIFFE ID of the certificate, with which this node is called.
    ///
    /// # Errors
    /// The same.
    pub fn server_spiffe_id(&self) -> Result<WorkloadId, Error> {
        self.svid(svid::server_certificate)
    }

    fn svid(&self, read: fn(&[u8]) -> Result<PeerCertificate, SvidError>) -> Result<WorkloadId, Error> {
        let path = &self.certificate;
        let pem = files::read(path, limits::TLS_FILE_BYTES_MAX, files::check_mode)?;
        let chain = certificates(path, &pem)?;
        let first = chain.first().ok_or_else(|| Error::NoCertificate { path: path.clone() })?;
        let refused = |source| Error::NotAnSvid { path: path.clone(), source };
        Ok(read(first).map_err(refused)?.spiffe_id)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::NotPem { path: path.to_owned() })
}

/// The SPIFFE bundle of the CAs in a PEM file.
///
/// # Errors
/// [`Error::File`] and the like, [`Error::NotACa`], [`Error::NoClientCa`], [`Error::Bundle`].
pub fn bundle_of_file(path: &Path, now: Timestamp) -> Result<String, Error> {
    let pem = files::read(path, limits::TLS_FILE_BYTES_MAX, files::check_mode)?;
    let roots = unexpired(path, client_cas(path, &pem)?, now);
    if roots.is_empty() {
        return Err(Error::NoClientCa { path: path.to_owned() });
    }
    let document = bundle::document(&roots);
    document.map_err(|source| Error::Bundle { path: path.to_owned(), source })
}

/// A CA of clients, and its validity.
type ClientCa = (CertificateDer<'static>, Validity);

/// The CAs of clients, at least one, expired ones too.
fn client_cas(path: &Path, pem: &[u8]) -> Result<Vec<ClientCa>, Error> {
    let mut cas = Vec::new();
    for certificate in certificates(path, pem)? {
        let not_pem = |_| Error::NotPem { path: path.to_owned() };
        let end = svid::client_ca_not_after(&certificate).map_err(not_pem)?;
        let end = end.ok_or_else(|| Error::NotACa { path: path.to_owned() })?;
        let (begin, _) = svid::validity(&certificate).map_err(not_pem)?;
        cas.push((certificate, Validity { begin, end }));
    }
    if cas.is_empty() { Err(Error::NoClientCa { path: path.to_owned() }) } else { Ok(cas) }
}

/// The CAs that may be trust anchors: webpki does not check their validity period (RFC 5280 §6.1.1 d excludes it).
fn unexpired(path: &Path, cas: Vec<ClientCa>, now: Timestamp) -> Vec<CertificateDer<'static>> {
    let is_unexpired = |(_, validity): &ClientCa| {
        let is_unexpired = validity.end >= now;
        if !is_unexpired {
            let not_after = validity.end.to_rfc3339();
            tracing::warn!(path = %path.display(), not_after, "client CA expired, skipped");
        }
        is_unexpired
    };
    cas.into_iter().filter(is_unexpired).map(|(certificate, _)| certificate).collect()
}

fn root_store(path: &Path, certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let not_a_ca = |_| Error::NotACa { path: path.to_owned() };
        roots.add(certificate.clone()).map_err(not_a_ca)?;
    }
    Ok(roots)
}

/// Refuses a CA of two trust domains if one of them is a peer's: it could name the workloads of both. Only at start and of
/// files that an operator wrote: a peer that publishes the root of another gives that root its own names only, and must
/// not be able to prevent our start.
pub(super) fn check_distinct_roots(files: &Files, loaded: &Loaded) -> Result<(), Error> {
    let mut seen: Vec<(Vec<u8>, &super::Authorities)> = Vec::new();
    for of in &files.authorities {
        for certificate in loaded.roots.get(&of.trust_domain).into_iter().flatten() {
            let key = svid::public_key(certificate)?;
            let other = seen.iter().find(|(known, other)| {
                let is_of_peer = [of, *other].iter().any(|of| matches!(of.roots, Roots::Bundle(_)));
                *known == key && other.trust_domain != of.trust_domain && is_of_peer
            });
            if let Some((_, other)) = other {
                let error = Error::SharedRoot {
                    path: of.roots.path().to_owned(),
                    trust_domain: of.trust_domain.to_string(),
                    other: other.trust_domain.to_string(),
                };
                if of.roots.are_of_file() && other.roots.are_of_file() {
                    return Err(error);
                }
                tracing::warn!(%error, "a newer bundle of a peer has the root of another trust domain");
            }
            seen.push((key, of));
        }
    }
    Ok(())
}

/// The revocation lists, newest first: webpki uses the first list of an issuer, and an older one would hide newer
/// revocations. With them the validity of the first of those in use that expires.
fn revocation_lists(
    path: &Path,
    pem: &[u8],
    now: Timestamp,
) -> Result<(Vec<CertificateRevocationListDer<'static>>, Validity), Error> {
    let malformed = || Error::CrlMalformed { path: path.to_owned() };
    let mut lists = Vec::new();
    let mut newest = BTreeMap::<Vec<u8>, (i64, i64)>::new();
    for list in CertificateRevocationListDer::pem_slice_iter(pem) {
        let list = list.map_err(|_| malformed())?;
        let (_, parsed) = CertificateRevocationList::from_der(&list).map_err(|_| malformed())?;
        let next_update = parsed.next_update().map_or(0, |time| time.timestamp());
        if next_update < now.secs() {
            tracing::warn!(path = %path.display(), "revocation list expired, its certificates are refused");
        }
        let this_update = parsed.last_update().timestamp();
        let of_issuer = newest.entry(parsed.issuer().as_raw().to_vec()).or_insert((this_update, next_update));
        *of_issuer = (*of_issuer).max((this_update, next_update));
        lists.push((this_update, list));
    }
    // Without a list webpki would check nothing.
    let first = newest.into_values().min_by_key(|(_, next_update)| *next_update);
    let (begin, end) = first.ok_or_else(|| Error::NoCrl { path: path.to_owned() })?;
    lists.sort_by_key(|(this_update, _)| Reverse(*this_update));
    let validity = Validity { begin: Timestamp::from_secs(begin), end: Timestamp::from_secs(end) };
    Ok((lists.into_iter().map(|(_, list)| list).collect(), validity))
}
