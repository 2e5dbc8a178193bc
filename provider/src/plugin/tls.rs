//! TLS between Terraform and this process: TLS 1.3, a certificate of this run on each side, and no CA.

use std::sync::Arc;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

/// The name by which Terraform checks the certificate of a plugin.
const SERVER_NAME: &str = "localhost";

/// TLS that accepts exactly the client certificate `client`, and the certificate of this run.
pub(super) fn server(
    client: CertificateDer<'static>,
) -> Result<(Arc<ServerConfig>, CertificateDer<'static>), super::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let own = params.self_signed(&key)?.der().clone();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = OnlyThisClient { client, provider: Arc::clone(&provider) };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![own.clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), own))
}

/// Accepts one certificate, byte for byte. The handshake proves that the client has its key.
#[derive(Debug)]
struct OnlyThisClient {
    client: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for OnlyThisClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if *end_entity == self.client {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
