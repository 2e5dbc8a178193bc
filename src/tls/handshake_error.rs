//! Reason of a failed handshake, for the log. It contains no text of the remote end but the SPIFFE ID of a certificate
//! that led to a CA.

use std::borrow::Cow;
use std::io;

use rustls::{CertificateError, Error};

use super::svid::SvidError;

/// Reason of a failed handshake of a `TlsAcceptor`.
#[must_use]
pub fn handshake_failure(error: &io::Error) -> Cow<'static, str> {
    match error.get_ref().and_then(|source| source.downcast_ref::<Error>()) {
        Some(error) => of_tls(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "connection closed by client".into(),
        None => "connection failed".into(),
    }
}

const REFUSED_BY_PEER: &str = "handshake refused by the node of the peer";

/// Reason of a failed handshake with a node of a peer fabric, if the failure was one.
#[must_use]
pub fn outbound_failure(error: &(dyn std::error::Error + 'static)) -> Option<Cow<'static, str>> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<Error>() {
            Some(Error::AlertReceived(_)) => return Some(REFUSED_BY_PEER.into()),
            Some(failure) => return Some(of_tls(failure)),
            // With TLS 1.3 the alert follows the handshake, and h2 keeps only the text of an I/O error.
            None if error.to_string().contains("received fatal alert") => {
                return Some(REFUSED_BY_PEER.into());
            }
            None => {}
        }
        // The source of an I/O error is that of the error within it.
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = within.map_or_else(|| error.source(), |within| Some(within));
    }
    None
}

fn of_tls(error: &Error) -> Cow<'static, str> {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::InvalidCertRevocationList(_) => "revocation list is not validly signed by its CA".into(),
        Error::PeerIncompatible(_) => "no common protocol version or cipher suite".into(),
        Error::AlertReceived(_) => "handshake refused by client".into(),
        Error::NoApplicationProtocol => "no common application protocol (h2, http/1.1)".into(),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => "not a TLS handshake".into(),
        Error::InappropriateHandshakeMessage { .. } => "handshake messages out of order".into(),
        Error::PeerMisbehaved(_) | Error::DecryptError | Error::PeerSentOversizedRecord => {
            "protocol violation".into()
        }
        _ => "handshake failed".into(),
    }
}

fn of_certificate(error: &CertificateError) -> Cow<'static, str> {
    use CertificateError as C;
    match error {
        C::BadEncoding => "certificate is malformed".into(),
        C::Expired | C::ExpiredContext { .. } => "certificate has expired".into(),
        C::NotValidYet | C::NotValidYetContext { .. } => "certificate is not valid yet".into(),
        C::Revoked => "certificate is revoked".into(),
        C::UnhandledCriticalExtension => "certificate has an unknown critical extension".into(),
        C::UnknownIssuer => "certificate has no path to a client CA".into(),
        C::UnknownRevocationStatus => "no revocation list covers the certificate".into(),
        C::ExpiredRevocationList | C::ExpiredRevocationListContext { .. } => {
            "revocation list has expired".into()
        }
        C::BadSignature => "signature does not verify".into(),
        C::UnsupportedSignatureAlgorithmContext { .. }
        | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "signature algorithm is not accepted".into()
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => SvidError::NoClientAuth.to_string().into(),
        C::Other(other) => of_other(other.0.as_ref()),
        _ => "certificate refused".into(),
    }
}

/// Reasons without a variant in rustls.
fn of_other(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Cow<'static, str> {
    if let Some(refusal) = error.downcast_ref::<SvidError>() {
        return refusal.to_string().into();
    }
    match error.downcast_ref::<webpki::Error>() {
        Some(webpki::Error::UnsupportedCriticalExtension) => {
            of_certificate(&CertificateError::UnhandledCriticalExtension)
        }
        Some(webpki::Error::ExtensionValueInvalid) => of_certificate(&CertificateError::BadEncoding),
        Some(webpki::Error::CaUsedAsEndEntity) => SvidError::Ca.to_string().into(),
        Some(webpki::Error::EndEntityUsedAsCa) => {
            "certificate was issued by a certificate that is not a CA".into()
        }
        // A verifier of our own reports these; rustls has variants for its own verifiers.
        Some(webpki::Error::CertExpired { .. }) => of_certificate(&CertificateError::Expired),
        Some(webpki::Error::CertNotValidYet { .. }) => of_certificate(&CertificateError::NotValidYet),
        Some(webpki::Error::CertRevoked) => of_certificate(&CertificateError::Revoked),
        Some(webpki::Error::CrlExpired { .. }) => of_certificate(&CertificateError::ExpiredRevocationList),
        Some(webpki::Error::UnknownRevocationStatus) => {
            of_certificate(&CertificateError::UnknownRevocationStatus)
        }
        Some(webpki::Error::UnknownIssuer) => "certificate has no path to an accepted CA".into(),
        Some(webpki::Error::InvalidSignatureForPublicKey) => of_certificate(&CertificateError::BadSignature),
        Some(webpki::Error::NameConstraintViolation) => "certificate name violates a name constraint".into(),
        Some(webpki::Error::PathLenConstraintViolated | webpki::Error::MaximumPathDepthExceeded) => {
            "path to the CA is too long".into()
        }
        _ => "certificate refused".into(),
    }
}
