//! Who may finish a handshake: a client without a certificate, or one whose certificate leads to a
//! client CA, is not revoked, and is an X.509-SVID of an allowed trust domain.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use super::leaf::{self, Refusal};
use crate::id::TrustDomain;

/// webpki's rules, and ours after them.
#[derive(Debug)]
pub(super) struct Verifier {
    pub webpki: Arc<dyn ClientCertVerifier>,
    pub trust_domains: Vec<TrustDomain>,
}

impl ClientCertVerifier for Verifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        leaf::check_size(intermediates).map_err(refused)?;
        let verified = self.webpki.verify_client_cert(end_entity, intermediates, now)?;
        leaf::check_svid(end_entity, intermediates, &self.trust_domains).map_err(refused)?;
        Ok(verified)
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

fn refused(refusal: Refusal) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(refusal))).into()
}
