//! From the contents of the files to what rustls serves with: all of it is good, or none is taken.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::client_verifier::Verifier;
use super::files::{Contents, Files};
use super::node_verifier::{Authorities, ServerVerifier};
use super::{Error, KeyPairFiles, With, svid};
use crate::clock::{Clock, Timestamp};

/// One loaded state of the files.
pub(super) struct Loaded {
    pub server: Arc<ServerConfig>,
    /// For connections to other nodes.
    pub client: Arc<ClientConfig>,
    /// Of the files it came from.
    pub digest: [u8; 32],
    /// From when on our own certificate counts.
    pub not_before: Timestamp,
    /// Until when it does.
    pub not_after: Timestamp,
}

/// Our clock, as rustls asks for time.
#[derive(Debug)]
pub(super) struct Time(pub Clock);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let secs = u64::try_from(self.0.now().secs()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(secs)))
    }
}

/// In this order: our certificate and its key, who may be a client, then the rules of the handshake.
pub(super) fn load(files: &Files, contents: &Contents, with: With, clock: &Clock) -> Result<Loaded, Error> {
    let now = clock.now();
    let own = own_certificate(&files.own, (&contents.certificate, &contents.private_key), now)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (mut of_clients, mut of_servers) = (BTreeMap::new(), BTreeMap::new());
    for (of, (ca, crl)) in files.authorities.iter().zip(&contents.authorities) {
        let roots = Arc::new(client_cas(&of.ca, ca, now)?);
        let crls = match (&of.crl, crl) {
            (Some(path), Some(pem)) => revocation_lists(path, pem, now)?,
            _ => Vec::new(),
        };
        let malformed = || Error::CrlMalformed { path: of.crl.clone().unwrap_or_default() };
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            // Every certificate of the path is looked up, and unknown is revoked: webpki's defaults.
            .with_crls(crls.clone())
            .enforce_revocation_expiration();
        of_clients.insert(of.trust_domain.clone(), webpki.build().map_err(|_| malformed())?);
        let authorities = Authorities::new(roots, &crls).map_err(|_| malformed())?;
        of_servers.insert(of.trust_domain.clone(), authorities);
    }
    let verifier = Verifier::new(of_clients, with == With::Peers, &provider);
    let unusable = |error| files.own.unusable(&error);
    let time = Arc::new(Time(clock.clone()));
    let server_verifier = ServerVerifier::new(of_servers, &provider);
    let mut client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::<Time>::clone(&time))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(server_verifier))
        .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
        .map_err(unusable)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    // Of TLS 1.2 rustls has only the suites with AEAD.
    let (versions, protocols): (&[_], &[&[u8]]) = match with {
        With::Callers => (&[&version::TLS13, &version::TLS12], &[b"h2", b"http/1.1"]),
        With::Peers => (&[&version::TLS13], &[b"h2"]),
    };
    let mut server = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(own.chain, own.key)
        .map_err(unusable)?;
    server.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // No resumption of any kind: rustls would take the client's certificate from the first handshake
    // without verifying it again, so that one revoked since would go on. Without tickets there is
    // no early data either.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    Ok(Loaded {
        server: Arc::new(server),
        client: Arc::new(client),
        digest: contents.digest(),
        not_before: own.not_before,
        not_after: own.not_after,
    })
}

/// Our own certificate, with the path to its CA and its private key. Whether the two are one pair is not checked.
pub(super) struct OwnCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

pub(super) fn own_certificate(
    files: &KeyPairFiles,
    (certificate, private_key): (&[u8], &[u8]),
    now: Timestamp,
) -> Result<OwnCertificate, Error> {
    let path = &files.certificate;
    let chain = certificates(path, certificate)?;
    let first = chain.first().ok_or_else(|| Error::NoCertificate { path: path.clone() })?;
    let (not_before, not_after) = svid::validity(first).map_err(|_| Error::NotPem { path: path.clone() })?;
    if not_after < now {
        return Err(Error::CertificateExpired { path: path.clone(), not_after: not_after.to_rfc3339() });
    }
    let key = PrivateKeyDer::from_pem_slice(private_key)
        .map_err(|_| Error::NoPrivateKey { path: files.private_key.clone() })?;
    Ok(OwnCertificate { chain, key, not_before, not_after })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::NotPem { path: path.to_owned() })
}

/// The CAs of clients. One that has expired is left out: webpki does not look at the times of a CA
/// that it is told to trust (RFC 5280 §6.1.1 d leaves them out).
fn client_cas(path: &Path, pem: &[u8], now: Timestamp) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        let not_after = svid::client_ca_not_after(&certificate)
            .map_err(|_| Error::NotPem { path: path.to_owned() })?
            .ok_or_else(|| Error::NotACa { path: path.to_owned() })?;
        if not_after < now {
            let not_after = not_after.to_rfc3339();
            tracing::warn!(path = %path.display(), not_after, "a client CA has expired and is left out");
            continue;
        }
        roots.add(certificate).map_err(|_| Error::NotACa { path: path.to_owned() })?;
    }
    if roots.is_empty() { Err(Error::NoClientCa { path: path.to_owned() }) } else { Ok(roots) }
}

/// The revocation lists, newest first: webpki asks the first of an issuer, and an older one would
/// hide what the newer one revokes.
fn revocation_lists(
    path: &Path,
    pem: &[u8],
    now: Timestamp,
) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    let malformed = || Error::CrlMalformed { path: path.to_owned() };
    let mut lists = Vec::new();
    for list in CertificateRevocationListDer::pem_slice_iter(pem) {
        let list = list.map_err(|_| malformed())?;
        let (_, parsed) = CertificateRevocationList::from_der(&list).map_err(|_| malformed())?;
        let next_update = parsed.next_update().map_or(i64::MIN, |time| time.timestamp());
        if next_update < now.secs() {
            tracing::warn!(path = %path.display(), "a revocation list has expired: who needs it is refused");
        }
        let this_update = parsed.last_update().timestamp();
        lists.push((this_update, list));
    }
    // Without a list webpki would check nothing.
    if lists.is_empty() {
        return Err(Error::NoCrl { path: path.to_owned() });
    }
    lists.sort_by_key(|(this_update, _)| Reverse(*this_update));
    Ok(lists.into_iter().map(|(_, list)| list).collect())
}
