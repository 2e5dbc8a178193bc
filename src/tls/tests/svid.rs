//! The rules for a workload's certificate on their own: what webpki refuses too, and would not refuse
//! for ever.

use rcgen::CustomExtension;

use super::*;
use crate::tls::svid::peer_certificate as read_svid;

fn judged(change: impl FnOnce(&mut CertificateParams)) -> Result<PeerCertificate, Refusal> {
    read_svid(&client(&root("client CA"), change).chain[0])
}

/// subjectAltName with these URI names, byte for byte.
fn raw_uris(leaf: &mut CertificateParams, names: &[&[u8]]) {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let mut all = Vec::new();
    for name in names {
        all.extend([0x86, length(name)]);
        all.extend(*name);
    }
    let mut content = vec![0x30, length(&all)];
    content.extend(all);
    leaf.subject_alt_names = Vec::new();
    leaf.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], content)];
}

#[test]
fn the_rules_hold_without_webpki() {
    use ExtendedKeyUsagePurpose::{Any, ServerAuth};
    assert_eq!(judged(|_| {}).expect("good").spiffe_id.as_str(), ID);
    let ca = judged(|leaf| leaf.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    assert_eq!(ca, Err(Refusal::Ca));
    for purposes in [vec![Any], vec![ServerAuth], vec![Any, ServerAuth]] {
        let found = judged(|leaf| leaf.extended_key_usages.clone_from(&purposes));
        assert_eq!(found, Err(Refusal::NoClientAuth), "{purposes:?}");
    }
}

#[test]
fn a_certificate_that_is_not_read_to_its_end_is_malformed() {
    let mut der = client(&root("client CA"), |_| {}).chain[0].to_vec();
    assert!(read_svid(&der).is_ok());
    der.push(0);
    assert_eq!(read_svid(&der), Err(Refusal::Malformed));
    der.truncate(der.len() - 2);
    assert_eq!(read_svid(&der), Err(Refusal::Malformed));
}

#[test]
fn a_name_that_is_no_text_counts_as_a_name() {
    assert!(judged(|leaf| raw_uris(leaf, &[ID.as_bytes()])).is_ok());
    let beside = judged(|leaf| raw_uris(leaf, &[ID.as_bytes(), b"spiffe://trust.example/\xff"]));
    assert_eq!(beside, Err(Refusal::Malformed));
    let alone = judged(|leaf| raw_uris(leaf, &[b"spiffe://trust.example/\xff"]));
    assert_eq!(alone, Err(Refusal::Malformed));
}
