//! The rules for a workload certificate alone, also those that webpki applies today.

use rcgen::CustomExtension;

use super::*;
use crate::tls::svid::peer_certificate as read_svid;

fn checked(change: impl FnOnce(&mut CertificateParams)) -> Result<PeerCertificate, SvidError> {
    read_svid(&client(&root("client CA"), change).chain[0])
}

/// subjectAltName with exactly these URI names.
fn raw_uris(svid: &mut CertificateParams, names: &[&[u8]]) {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let mut all = Vec::new();
    for name in names {
        all.extend([0x86, length(name)]);
        all.extend(*name);
    }
    let mut content = vec![0x30, length(&all)];
    content.extend(all);
    svid.subject_alt_names = Vec::new();
    svid.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], content)];
}

#[test]
fn the_rules_hold_without_webpki() {
    use ExtendedKeyUsagePurpose::{Any, ServerAuth};
    assert_eq!(checked(|_| {}).expect("good").spiffe_id.as_str(), ID);
    let ca = checked(|svid| svid.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    assert_eq!(ca, Err(SvidError::Ca));
    for purposes in [vec![Any], vec![ServerAuth], vec![Any, ServerAuth]] {
        let found = checked(|svid| svid.extended_key_usages.clone_from(&purposes));
        assert_eq!(found, Err(SvidError::NoClientAuth), "{purposes:?}");
    }
}

#[test]
fn trailing_bytes_make_a_certificate_malformed() {
    let mut der = client(&root("client CA"), |_| {}).chain[0].to_vec();
    assert!(read_svid(&der).is_ok());
    der.push(0);
    assert_eq!(read_svid(&der), Err(SvidError::Malformed));
    der.truncate(der.len() - 2);
    assert_eq!(read_svid(&der), Err(SvidError::Malformed));
}

#[test]
fn non_text_name_counts_as_a_name() {
    assert!(checked(|svid| raw_uris(svid, &[ID.as_bytes()])).is_ok());
    let beside = checked(|svid| raw_uris(svid, &[ID.as_bytes(), b"spiffe://trust.example/\xff"]));
    assert_eq!(beside, Err(SvidError::Malformed));
    let alone = checked(|svid| raw_uris(svid, &[b"spiffe://trust.example/\xff"]));
    assert_eq!(alone, Err(SvidError::Malformed));
}
