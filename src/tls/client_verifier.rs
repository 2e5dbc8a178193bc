//! Verifies client certificates: none, or an X.509-SVID, not revoked, with a path to a CA of the trust domain that it
//! names. CAs of different trust domains are never pooled: one of them could name workloads of the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use super::svid;
use super::svid::SvidError;
use crate::id::TrustDomain;

/// webpki's rules with the CAs of one trust domain, then ours.
#[derive(Debug)]
pub(super) struct SvidVerifier {
    authorities: BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>,
    is_mandatory: bool,
    /// Names of CAs, from which a client may choose its certificate.
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SvidVerifier {
    pub fn new(
        authorities: BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>,
        hints: Vec<DistinguishedName>,
        is_mandatory: bool,
        provider: &CryptoProvider,
    ) -> Self {
        Self { authorities, is_mandatory, hints, algorithms: provider.signature_verification_algorithms }
    }
}

impl ClientCertVerifier for SvidVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        svid::check_size(intermediates).map_err(refused)?;
        let named = svid::peer_certificate(end_entity).map_err(refused)?.spiffe_id;
        let webpki = svid::authorities_of(&named, &self.authorities).map_err(refused)?;
        let verified = webpki.verify_client_cert(end_entity, intermediates, now)?;
        svid::check_intermediates(intermediates).map_err(refused)?;
        Ok(verified)
    }

    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
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

fn refused(refusal: SvidError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(refusal))).into()
}
