//! Certificates with and without current revocation lists.

use super::certificates::{Row, check_rows, passes, refused};
use super::*;

const REVOKED: &str = "certificate is revoked";
const NO_CRL: &str = "no revocation list covers the certificate";
const CRL_EXPIRED: &str = "revocation list has expired";
const CRL_FORGED: &str = "revocation list is not validly signed by its CA";

fn of_revocation(ca: &Authority) -> Vec<Row> {
    const LEAF: u8 = 0x42;
    const INTERMEDIATE: u8 = 0x17;
    let good = intermediate("good", ca, |_| {});
    let below = || client(&good, |_| {}).then(&good);
    let direct = || client(ca, |_| {});
    let forged = root("client CA");
    let no_crl_sign = intermediate("no cRLSign", ca, |ca| ca.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
    // Signed by the same name and key, whose certificate lacks the usage.
    let with_crl_sign = CertifiedIssuer::self_signed(
        ca_params("no cRLSign"),
        KeyPair::from_pem(&no_crl_sign.key().serialize_pem()).expect("key"),
    )
    .expect("twin");
    let both = |serials_of_ca: &[u8], serials_below: &[u8]| {
        fresh_crl(ca, serials_of_ca) + &fresh_crl(&good, serials_below)
    };
    let old = crl(ca, &[], NOW - 3 * HOUR, NOW + HOUR);
    let new = crl(ca, &[LEAF], NOW - HOUR, NOW + HOUR);
    vec![
        passes("none revoked", direct()).with_crl(fresh_crl(ca, &[])),
        passes("another revoked", direct()).with_crl(fresh_crl(ca, &[0x41, 0x43])),
        refused("revoked", direct(), REVOKED).with_crl(fresh_crl(ca, &[0x41, LEAF])),
        passes("none revoked below", below()).with_crl(both(&[], &[])),
        passes("serial of another issuer revoked", below()).with_crl(both(&[LEAF], &[])),
        refused("revoked below", below(), REVOKED).with_crl(both(&[], &[LEAF])),
        refused("intermediate revoked", below(), REVOKED).with_crl(both(&[INTERMEDIATE], &[])),
        refused("no list of the intermediate", below(), NO_CRL).with_crl(fresh_crl(ca, &[])),
        refused("no list of the CA", below(), NO_CRL).with_crl(fresh_crl(&good, &[])),
        refused("list of another CA only", direct(), NO_CRL).with_crl(fresh_crl(&root("other CA"), &[])),
        refused("list by another key", direct(), CRL_FORGED).with_crl(fresh_crl(&forged, &[])),
        refused(
            "list by a CA without the usage",
            client(&no_crl_sign, |_| {}).then(&no_crl_sign),
            CRL_FORGED,
        )
        .with_crl(fresh_crl(ca, &[]) + &fresh_crl(&with_crl_sign, &[])),
        refused("list expired a second ago", direct(), CRL_EXPIRED).with_crl(crl(
            ca,
            &[],
            NOW - HOUR,
            NOW - 1,
        )),
        refused("revoked in the newer list, older first", direct(), REVOKED).with_crl(old.clone() + &new),
        refused("revoked in the newer list, newer first", direct(), REVOKED).with_crl(new + &old),
        Row { name: "none, with a list", client: None, client_crl: None, expected: Ok(None) }
            .with_crl(fresh_crl(ca, &[])),
    ]
}

#[tokio::test]
async fn only_unrevoked_certificates_with_current_lists_are_accepted() {
    let ca = root("client CA");
    check_rows(of_revocation(&ca), &ca).await;
}
