//! What a certificate of a client must be beyond a path to a CA: an X.509-SVID (SPIFFE X509-SVID).
//!
//! webpki has verified signatures, times, names and revocation before; it lets pass what is missing
//! here, because for the web it may be missing.

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

/// A client certificate that was verified in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its only URI name (X.509-SVID §2).
    pub spiffe_id: WorkloadId,
    /// SHA-256 of its DER form (RFC 8705 §3.1, `x5t#S256`).
    pub thumbprint: [u8; 32],
    /// From when on it counts no more, whatever connection it opened.
    pub not_after: Timestamp,
}

/// Why a certificate that leads to a client CA is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read without doubt.
    #[error("certificate is malformed")]
    Malformed,
    /// More certificates than a path needs.
    #[error("more than {} intermediate certificates", limits::CLIENT_INTERMEDIATES_MAX)]
    TooManyIntermediates,
    /// An intermediate certificate whose key usage does not allow it to be one (RFC 5280 §6.1.4 n).
    #[error("intermediate certificate is without key usage keyCertSign")]
    IntermediateKeyUsage,
    /// A CA's certificate names no workload (§4.1).
    #[error("certificate is that of a CA")]
    Ca,
    /// Key usage, or digitalSignature in it, is absent (§4.3).
    #[error("certificate is without key usage digitalSignature")]
    NoDigitalSignature,
    /// Key usage is that of a CA (§4.3).
    #[error("certificate has key usage keyCertSign or cRLSign")]
    SigningKeyUsage,
    /// Extended key usage, or clientAuth in it, is absent (§4.4).
    #[error("certificate is without extended key usage clientAuth")]
    NoClientAuth,
    /// An RSA key that can be broken.
    #[error("certificate has an RSA key of less than {} bits", limits::RSA_MODULUS_BITS_MIN)]
    KeyTooShort,
    /// Not exactly one URI name (§2).
    #[error("certificate has {0} URI names, not one")]
    UriNames(usize),
    /// The URI name is not `spiffe://`, a trust domain and a path (§2, §4.1; SPIFFE-ID §2).
    #[error("URI name of the certificate is not a SPIFFE id with a path")]
    NotASpiffeId,
    /// The trust domain is not one whose workloads may call.
    #[error("certificate is of a trust domain that is not allowed here")]
    TrustDomain,
}

/// The certificate of a workload, from its DER form. In this order: what it may be used for (X509-SVID
/// §4), with which key, whom it names (§2).
pub(super) fn peer_certificate(der: &[u8]) -> Result<PeerCertificate, Refusal> {
    let certificate = parse(der)?;
    // §4.1: a leaf "MUST set the cA field to false"; without the extension it is false (RFC 5280
    // §4.2.1.9).
    if is_ca(&certificate)? {
        return Err(Refusal::Ca);
    }
    // §4.3: "MUST set digitalSignature", "MUST NOT set keyCertSign or cRLSign".
    let usage = key_usage(&certificate)?.ok_or(Refusal::NoDigitalSignature)?;
    if usage.signs {
        return Err(Refusal::SigningKeyUsage);
    }
    if !usage.digital_signature {
        return Err(Refusal::NoDigitalSignature);
    }
    // §4.4, and stricter: what is not marked for clients is not taken for one. anyExtendedKeyUsage
    // is no mark (RFC 5280 §4.2.1.12 leaves that to the application).
    let purposes = certificate.extended_key_usage().map_err(|_| Refusal::Malformed)?;
    if !purposes.is_some_and(|purposes| purposes.value.client_auth) {
        return Err(Refusal::NoClientAuth);
    }
    if let Ok(PublicKey::RSA(key)) = certificate.public_key().parsed()
        && key.key_size() < limits::RSA_MODULUS_BITS_MIN
    {
        return Err(Refusal::KeyTooShort);
    }
    let mut whole = digest::Context::new(&digest::SHA256);
    whole.update(der);
    Ok(PeerCertificate {
        spiffe_id: spiffe_id(&certificate)?,
        thumbprint: sha256(whole),
        not_after: Timestamp::from_secs(certificate.validity().not_after.timestamp()),
    })
}

/// How much the other end sends, before any of it costs a signature check.
pub(super) fn check_size(intermediates: &[CertificateDer<'_>]) -> Result<(), Refusal> {
    if intermediates.len() > limits::CLIENT_INTERMEDIATES_MAX {
        return Err(Refusal::TooManyIntermediates);
    }
    Ok(())
}

/// The authorities of the trust domain that an X.509-SVID names. The name is proven by the path to one of them, and by
/// nothing else.
pub(super) fn authorities_of<'a, A>(
    end_entity: &CertificateDer<'_>,
    authorities: &'a BTreeMap<TrustDomain, A>,
) -> Result<&'a A, Refusal> {
    let named = peer_certificate(end_entity)?.spiffe_id;
    authorities.get(named.trust_domain()).ok_or(Refusal::TrustDomain)
}

/// What webpki lets pass in the path of whichever end.
pub(super) fn check_intermediates(intermediates: &[CertificateDer<'_>]) -> Result<(), Refusal> {
    intermediates.iter().try_for_each(|certificate| check_intermediate(certificate))
}

/// Whether a certificate may stand between a leaf and a CA. webpki looks at everything but the key
/// usage. RFC 5280 §6.1.4 (n): "If a key usage extension is present, verify that the keyCertSign bit
/// is set."
fn check_intermediate(der: &[u8]) -> Result<(), Refusal> {
    match key_usage(&parse(der)?)? {
        Some(usage) if !usage.certificates => Err(Refusal::IntermediateKeyUsage),
        _ => Ok(()),
    }
}

/// When a CA's certificate ends; `None` if it is not a CA's. webpki does not ask that of what it is
/// told to trust, and who holds the key of something trusted can name anybody.
pub(super) fn client_ca_not_after(der: &[u8]) -> Result<Option<Timestamp>, Refusal> {
    let certificate = parse(der)?;
    let signs = key_usage(&certificate)?.is_none_or(|usage| usage.certificates);
    let not_after = Timestamp::from_secs(certificate.validity().not_after.timestamp());
    Ok((is_ca(&certificate)? && signs).then_some(not_after))
}

/// From when to when a certificate is valid.
pub(super) fn validity(der: &[u8]) -> Result<(Timestamp, Timestamp), Refusal> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    Ok((
        Timestamp::from_secs(validity.not_before.timestamp()),
        Timestamp::from_secs(validity.not_after.timestamp()),
    ))
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Refusal> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Refusal::Malformed),
    }
}

fn is_ca(certificate: &X509Certificate<'_>) -> Result<bool, Refusal> {
    let constraints = certificate.basic_constraints().map_err(|_| Refusal::Malformed)?;
    Ok(constraints.is_some_and(|constraints| constraints.value.ca))
}

struct KeyUsage {
    digital_signature: bool,
    certificates: bool,
    signs: bool,
}

fn key_usage(certificate: &X509Certificate<'_>) -> Result<Option<KeyUsage>, Refusal> {
    let usage = certificate.key_usage().map_err(|_| Refusal::Malformed)?;
    Ok(usage.map(|usage| KeyUsage {
        digital_signature: usage.value.digital_signature(),
        certificates: usage.value.key_cert_sign(),
        signs: usage.value.key_cert_sign() || usage.value.crl_sign(),
    }))
}

/// §2: "An X.509 SVID MUST contain exactly one URI SAN, and by extension, exactly one SPIFFE ID."
fn spiffe_id(certificate: &X509Certificate<'_>) -> Result<WorkloadId, Refusal> {
    let names = certificate.subject_alternative_name().map_err(|_| Refusal::Malformed)?;
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    if names.iter().any(|name| matches!(name, GeneralName::Invalid(..))) {
        return Err(Refusal::Malformed);
    }
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (Some(uri), 0) = (uris.next(), uris.clone().count()) else {
        let all = names.iter().filter(|name| matches!(name, GeneralName::URI(_)));
        return Err(Refusal::UriNames(all.count()));
    };
    // A path is part of every workload identifier; without one the id would name the trust domain
    // itself (X509-SVID §4.1).
    if !uri.starts_with("spiffe://") {
        return Err(Refusal::NotASpiffeId);
    }
    uri.parse().map_err(|_| Refusal::NotASpiffeId)
}
