//! Rules for the X.509-SVID of a workload beyond its path to a CA (SPIFFE X509-SVID).
//!
//! webpki has verified signatures, times, names and revocation before. It accepts certificates without the fields
//! checked here, because the web does not require them.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

use super::files::sha256;
use crate::clock::Timestamp;
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;

/// A verified certificate of the remote end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its only URI name (X.509-SVID §2).
    pub spiffe_id: WorkloadId,
    /// SHA-256 of its DER form (RFC 8705 §3.1, `x5t#S256`).
    pub thumbprint: [u8; 32],
    /// End of validity, which also ends its connections.
    pub not_after: Timestamp,
}

/// Refusal of a certificate that leads to a CA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SvidError {
    /// It cannot be parsed unambiguously.
    #[error("certificate is malformed")]
    Malformed,
    #[error("more than {} intermediate certificates", limits::CLIENT_INTERMEDIATES_MAX)]
    TooManyIntermediates,
    /// An intermediate whose key usage forbids signing certificates (RFC 5280 §6.1.4 n).
    #[error("intermediate certificate has no key usage keyCertSign")]
    IntermediateKeyUsage,
    /// A certificate of a CA names no workload (§4.1).
    #[error("certificate is a CA certificate")]
    Ca,
    /// No key usage, or none with digitalSignature (§4.3).
    #[error("certificate has no key usage digitalSignature")]
    NoDigitalSignature,
    /// A key usage of a CA (§4.3).
    #[error("certificate has key usage keyCertSign or cRLSign")]
    SigningKeyUsage,
    /// No extended key usage, or none with clientAuth (§4.4).
    #[error("certificate has no extended key usage clientAuth")]
    NoClientAuth,
    /// No extended key usage, or none with serverAuth.
    #[error("certificate has no extended key usage serverAuth")]
    NoServerAuth,
    /// An RSA key that is too short.
    #[error("certificate has an RSA key of less than {} bits", limits::RSA_MODULUS_BITS_MIN)]
    KeyTooShort,
    /// Not exactly one URI name (§2).
    #[error("certificate has {0} URI names, not one")]
    UriNames(usize),
    /// The URI name is not `spiffe://`, a trust domain and a path (§2, §4.1; SPIFFE-ID §2).
    #[error("certificate URI name is not a SPIFFE ID with a path")]
    NotASpiffeId,
    /// The trust domain is not configured.
    #[error("certificate is of a trust domain that is not configured")]
    TrustDomain,
    /// A node of a peer fabric whose SPIFFE ID is not one of those configured for it.
    #[error("certificate is of another SPIFFE ID than those of the peer")]
    OtherId,
}

/// Reads the certificate of a workload that calls, from its DER form: usages (X509-SVID §4), then the key, then the name
/// (§2).
pub(super) fn peer_certificate(der: &[u8]) -> Result<PeerCertificate, SvidError> {
    read(der, Role::Client)
}

/// The same for a workload that is called.
pub(super) fn server_certificate(der: &[u8]) -> Result<PeerCertificate, SvidError> {
    read(der, Role::Server)
}

#[derive(Clone, Copy)]
enum Role {
    Client,
    Server,
}

fn read(der: &[u8], role: Role) -> Result<PeerCertificate, SvidError> {
    let certificate = parse(der)?;
    // §4.1: an end-entity certificate "MUST set the cA field to false"; an absent extension means false (RFC 5280
    // §4.2.1.9).
    if is_ca(&certificate)? {
        return Err(SvidError::Ca);
    }
    // §4.3: "MUST set digitalSignature", "MUST NOT set keyCertSign or cRLSign".
    let usage = key_usage(&certificate)?.ok_or(SvidError::NoDigitalSignature)?;
    if usage.signs {
        return Err(SvidError::SigningKeyUsage);
    }
    if !usage.digital_signature {
        return Err(SvidError::NoDigitalSignature);
    }
    // §4.4, and stricter: the usage is required. anyExtendedKeyUsage does not replace it (RFC 5280 §4.2.1.12 leaves that
    // to the application).
    let purposes = certificate.extended_key_usage().map_err(|_| SvidError::Malformed)?;
    let purposes = purposes.map(|purposes| purposes.value);
    match role {
        Role::Client if !purposes.is_some_and(|purposes| purposes.client_auth) => {
            return Err(SvidError::NoClientAuth);
        }
        Role::Server if !purposes.is_some_and(|purposes| purposes.server_auth) => {
            return Err(SvidError::NoServerAuth);
        }
        Role::Client | Role::Server => {}
    }
    if let Ok(PublicKey::RSA(key)) = certificate.public_key().parsed()
        && key.key_size() < limits::RSA_MODULUS_BITS_MIN
    {
        return Err(SvidError::KeyTooShort);
    }
    let mut whole = digest::Context::new(&digest::SHA256);
    whole.update(der);
    Ok(PeerCertificate {
        spiffe_id: spiffe_id(&certificate)?,
        thumbprint: sha256(whole),
        not_after: Timestamp::from_secs(certificate.validity().not_after.timestamp()),
    })
}

/// Limits the path of the remote end before any signature is verified.
pub(super) fn check_size(intermediates: &[CertificateDer<'_>]) -> Result<(), SvidError> {
    if intermediates.len() > limits::CLIENT_INTERMEDIATES_MAX {
        return Err(SvidError::TooManyIntermediates);
    }
    Ok(())
}

/// The authorities of the trust domain that an X.509-SVID names. The name counts only with a path to one of them.
pub(super) fn authorities_of<'a, A>(
    named: &WorkloadId,
    authorities: &'a BTreeMap<TrustDomain, A>,
) -> Result<&'a A, SvidError> {
    authorities.get(named.trust_domain()).ok_or(SvidError::TrustDomain)
}

/// Checks that webpki omits for the intermediates.
pub(super) fn check_intermediates(intermediates: &[CertificateDer<'_>]) -> Result<(), SvidError> {
    intermediates.iter().try_for_each(|certificate| check_intermediate(certificate))
}

/// Whether a certificate may be an intermediate. webpki checks everything but the key usage. RFC 5280 §6.1.4 (n): "If a
/// key usage extension is present, verify that the keyCertSign bit is set."
fn check_intermediate(der: &[u8]) -> Result<(), SvidError> {
    match key_usage(&parse(der)?)? {
        Some(usage) if !usage.certificates => Err(SvidError::IntermediateKeyUsage),
        _ => Ok(()),
    }
}

/// End of validity of a CA certificate; `None` for another certificate. webpki does not require a trust anchor to be a
/// CA, and the holder of a trusted key could issue any name.
pub(super) fn client_ca_not_after(der: &[u8]) -> Result<Option<Timestamp>, SvidError> {
    let certificate = parse(der)?;
    let signs = key_usage(&certificate)?.is_none_or(|usage| usage.certificates);
    let not_after = Timestamp::from_secs(certificate.validity().not_after.timestamp());
    Ok((is_ca(&certificate)? && signs).then_some(not_after))
}

/// The public key of a certificate, in DER.
pub(super) fn public_key(der: &[u8]) -> Result<Vec<u8>, SvidError> {
    Ok(parse(der)?.public_key().raw.to_vec())
}

/// Validity period of a certificate.
pub(super) fn validity(der: &[u8]) -> Result<(Timestamp, Timestamp), SvidError> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    Ok((
        Timestamp::from_secs(validity.not_before.timestamp()),
        Timestamp::from_secs(validity.not_after.timestamp()),
    ))
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, SvidError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(SvidError::Malformed),
    }
}

fn is_ca(certificate: &X509Certificate<'_>) -> Result<bool, SvidError> {
    let constraints = certificate.basic_constraints().map_err(|_| SvidError::Malformed)?;
    Ok(constraints.is_some_and(|constraints| constraints.value.ca))
}

struct KeyUsage {
    digital_signature: bool,
    certificates: bool,
    signs: bool,
}

fn key_usage(certificate: &X509Certificate<'_>) -> Result<Option<KeyUsage>, SvidError> {
    let usage = certificate.key_usage().map_err(|_| SvidError::Malformed)?;
    Ok(usage.map(|usage| KeyUsage {
        digital_signature: usage.value.digital_signature(),
        certificates: usage.value.key_cert_sign(),
        signs: usage.value.key_cert_sign() || usage.value.crl_sign(),
    }))
}

/// §2: "An X.509 SVID MUST contain exactly one URI SAN, and by extension, exactly one SPIFFE ID."
fn spiffe_id(certificate: &X509Certificate<'_>) -> Result<WorkloadId, SvidError> {
    let names = certificate.subject_alternative_name().map_err(|_| SvidError::Malformed)?;
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    if names.iter().any(|name| matches!(name, GeneralName::Invalid(..))) {
        return Err(SvidError::Malformed);
    }
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (Some(uri), 0) = (uris.next(), uris.clone().count()) else {
        let all = names.iter().filter(|name| matches!(name, GeneralName::URI(_)));
        return Err(SvidError::UriNames(all.count()));
    };
    // Every workload identifier has a path; without one the SPIFFE ID names the trust domain itself (X509-SVID §4.1).
    if !uri.starts_with("spiffe://") {
        return Err(SvidError::NotASpiffeId);
    }
    uri.parse().map_err(|_| SvidError::NotASpiffeId)
}
