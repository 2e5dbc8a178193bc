//! Verifies the certificate of a node that we connect to, of this cluster or of a peer fabric: a path to a CA of the
//! trust domain that it names, not revoked, an X.509-SVID. Host names are ignored: an address may have many names, and
//! the SPIFFE ID names the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationOptionsBuilder,
};

use super::svid;
use super::svid::SvidError;
use crate::id::{TrustDomain, WorkloadId};

/// webpki's rules for servers without names, then ours.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    authorities: Arc<BTreeMap<TrustDomain, Authorities>>,
    /// The accepted SPIFFE IDs; `None` if the caller compares them.
    ids: Option<Arc<BTreeSet<WorkloadId>>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The CAs of one trust domain, with their revocation lists.
#[derive(Debug)]
pub(super) struct Authorities {
    roots: Arc<RootCertStore>,
    crls: Vec<CertRevocationList<'static>>,
}

impl Authorities {
    pub fn new(
        roots: Arc<RootCertStore>,
        crls: &[CertificateRevocationListDer<'static>],
    ) -> Result<Self, webpki::Error> {
        let crls = crls.iter().map(|list| Ok(OwnedCertRevocationList::from_der(list)?.into()));
        Ok(Self { roots, crls: crls.collect::<Result<_, webpki::Error>>()? })
    }
}

impl NodeVerifier {
    pub fn new(authorities: BTreeMap<TrustDomain, Authorities>, provider: &CryptoProvider) -> Self {
        let algorithms = provider.signature_verification_algorithms;
        Self { authorities: Arc::new(authorities), ids: None, algorithms }
    }

    /// The same for the nodes of one peer.
    pub fn only(&self, ids: Arc<BTreeSet<WorkloadId>>) -> Self {
        Self { authorities: Arc::clone(&self.authorities), ids: Some(ids), algorithms: self.algorithms }
    }

    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        svid::check_size(intermediates).map_err(refused)?;
        let named = svid::server_certificate(end_entity).map_err(refused)?.spiffe_id;
        let authorities = svid::authorities_of(&named, &self.authorities).map_err(refused)?;
        if self.ids.as_ref().is_some_and(|ids| !ids.contains(&named)) {
            return Err(refused(SvidError::OtherId));
        }
        let lists: Vec<&CertRevocationList<'_>> = authorities.crls.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok();
        // webpki defaults: every certificate of the path is checked, and an unknown status is refused.
        let revocation =
            revocation.map(|options| options.with_expiration_policy(ExpirationPolicy::Enforce).build());
        let malformed = |_| CertificateError::BadEncoding;
        EndEntityCert::try_from(end_entity)
            .map_err(malformed)?
            .verify_for_usage(
                self.algorithms.all,
                &authorities.roots.roots,
                intermediates,
                now,
                KeyUsage::server_auth(),
                revocation,
                None,
            )
            .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))))?;
        svid::check_intermediates(intermediates).map_err(refused)
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn refused(refusal: SvidError) -> CertificateError {
    CertificateError::Other(OtherError(Arc::new(refusal)))
}
