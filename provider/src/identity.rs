//! The identity that a credential gives the provider at the fabric. It is read, not verified: the fabric verifies it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value as Json;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// The SPIFFE ID of the first certificate in `pem`: its first URI.
#[must_use]
pub fn of_certificate(pem: &[u8]) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = parse_x509_certificate(&der).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    })
}

/// `sub` of a token.
#[must_use]
pub fn of_token(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Json = serde_json::from_slice(&payload).ok()?;
    claims.get("sub")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_the_uri_or_the_subject() {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(vec!["node".to_owned()]).expect("names");
        let uri = "spiffe://trust.example/terraform".try_into().expect("ASCII");
        params.subject_alt_names.push(rcgen::SanType::URI(uri));
        let pem = params.self_signed(&key).expect("signed").pem();
        assert_eq!(of_certificate(pem.as_bytes()).as_deref(), Some("spiffe://trust.example/terraform"));
        assert_eq!(of_certificate(b"nothing"), None);
        let token = format!("e30.{}.s", URL_SAFE_NO_PAD.encode(r#"{"sub":"wimse://trust.example/agent"}"#));
        assert_eq!(of_token(&token).as_deref(), Some("wimse://trust.example/agent"));
        assert_eq!(of_token("e30"), None);
    }
}
