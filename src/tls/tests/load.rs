//! Files that a node refuses to start with.

use super::*;

/// The error of loading after one change to valid files.
fn refused(change: impl FnOnce(&Setup)) -> Error {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), Some(&fresh_crl(&ca, &[])));
    assert!(setup.load().is_ok());
    change(&setup);
    let Err(error) = setup.load() else { panic!("loaded") };
    error
}

fn writes(name: &str, text: &str) -> Error {
    refused(|setup| setup.write(name, text))
}

fn with_mode(name: &str, mode: u32) -> Error {
    refused(|setup| {
        let path = setup.directory.path().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    })
}

#[test]
fn missing_or_irregular_file_is_named() {
    for name in ["certificate.pem", "key.pem", "ca.pem", "crl.pem"] {
        let error = refused(|setup| fs::remove_file(setup.directory.path().join(name)).expect("removed"));
        assert!(matches!(&error, Error::File { path, .. } if path.ends_with(name)), "{error}");
        let error = refused(|setup| {
            let path = setup.directory.path().join(name);
            fs::remove_file(&path).expect("removed");
            fs::create_dir(&path).expect("directory");
        });
        assert!(matches!(&error, Error::NotAFile { path, .. } if path.ends_with(name)), "{error}");
    }
}

#[test]
fn pipe_in_the_place_of_a_file_does_not_block() {
    let error = refused(|setup| {
        let path = setup.directory.path().join("ca.pem");
        fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("pipe");
    });
    assert!(matches!(error, Error::NotAFile { .. }), "{error}");
}

#[test]
fn file_writable_by_others_is_refused() {
    for name in ["certificate.pem", "ca.pem", "crl.pem"] {
        let error = with_mode(name, 0o646);
        assert!(
            matches!(&error, Error::WritableByOthers { path, mode: 0o646 } if path.ends_with(name)),
            "{error}"
        );
    }
}

#[test]
fn private_key_readable_by_others_is_refused() {
    for mode in [0o644, 0o604, 0o660, 0o602] {
        let error = with_mode("key.pem", mode);
        assert!(matches!(error, Error::KeyTooOpen { mode: found, .. } if found == mode), "{error}");
    }
}

#[test]
fn file_beyond_its_limit_is_refused() {
    let ca = root("client CA");
    let padded = |text: &str, bytes: usize| format!("{text}{}", "\n".repeat(bytes - text.len()));
    let setup = Setup::new(&padded(&ca.pem(), limits::TLS_FILE_BYTES_MAX), None);
    assert!(setup.load().is_ok(), "at the limit");
    setup.write("ca.pem", &padded(&ca.pem(), limits::TLS_FILE_BYTES_MAX + 1));
    assert!(matches!(setup.load(), Err(Error::TooLarge { bytes_max: limits::TLS_FILE_BYTES_MAX, .. })));
    let list = fresh_crl(&ca, &[]);
    let setup = Setup::new(&ca.pem(), Some(&padded(&list, limits::TLS_CRL_BYTES_MAX)));
    assert!(setup.load().is_ok(), "at the limit");
    setup.write("crl.pem", &padded(&list, limits::TLS_CRL_BYTES_MAX + 1));
    assert!(matches!(setup.load(), Err(Error::TooLarge { bytes_max: limits::TLS_CRL_BYTES_MAX, .. })));
}

#[test]
fn absent_malformed_or_expired_certificate_is_refused() {
    let pem = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
    assert!(matches!(writes("certificate.pem", ""), Error::NoCertificate { .. }));
    assert!(matches!(writes("certificate.pem", &key().serialize_pem()), Error::NoCertificate { .. }));
    assert!(matches!(writes("certificate.pem", &pem("MAMCAQU=")), Error::NotPem { .. }));
    assert!(matches!(writes("certificate.pem", &pem("!")), Error::NotPem { .. }));
    let error = refused(|setup| {
        let (certificate, private_key) = own(&setup.own_ca, NOW - 1);
        setup.write("certificate.pem", &certificate);
        setup.write("key.pem", &private_key);
    });
    assert!(
        matches!(&error, Error::CertificateExpired { not_after, .. } if not_after == "2027-01-15T07:59:59.000Z"),
        "{error}"
    );
}

#[test]
fn absent_or_mismatched_private_key_is_refused() {
    assert!(matches!(writes("key.pem", ""), Error::NoPrivateKey { .. }));
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAMCAQU=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert!(matches!(writes("key.pem", encrypted), Error::NoPrivateKey { .. }));
    let damaged = "-----BEGIN PRIVATE KEY-----\nMAMCAQU=\n-----END PRIVATE KEY-----\n";
    assert!(matches!(writes("key.pem", damaged), Error::NoPrivateKey { .. }));
    assert!(matches!(writes("key.pem", &key().serialize_pem()), Error::KeyMismatch { .. }));
}

#[test]
fn absent_expired_or_non_ca_client_ca_is_refused() {
    assert!(matches!(writes("ca.pem", ""), Error::NoClientCa { .. }));
    let ended = {
        let mut params = ca_params("client CA");
        params.not_after = at!(NOW - 1);
        CertifiedIssuer::self_signed(params, key()).expect("root")
    };
    assert!(matches!(writes("ca.pem", &ended.pem()), Error::NoClientCa { .. }));
    let svid = svid_params().self_signed(&key()).expect("leaf");
    assert!(matches!(writes("ca.pem", &(root("client CA").pem() + &svid.pem())), Error::NotACa { .. }));
    let without_constraints = {
        let mut params = ca_params("client CA");
        params.is_ca = IsCa::ExplicitNoCa;
        CertifiedIssuer::self_signed(params, key()).expect("root")
    };
    assert!(matches!(writes("ca.pem", &without_constraints.pem()), Error::NotACa { .. }));
    let without_usage = {
        let mut params = ca_params("client CA");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        CertifiedIssuer::self_signed(params, key()).expect("root")
    };
    assert!(matches!(writes("ca.pem", &without_usage.pem()), Error::NotACa { .. }));
}

#[tokio::test]
async fn expired_client_ca_is_skipped_beside_a_valid_one() {
    let good = root("good CA");
    let ended = {
        let mut params = ca_params("ended CA");
        params.not_after = at!(NOW - 1);
        CertifiedIssuer::self_signed(params, key()).expect("root")
    };
    let setup = Setup::new(&(ended.pem() + &good.pem()), None);
    let tls = setup.tls();
    let version = &rustls::version::TLS13;
    assert!(peer(&setup, &tls, Some(client(&good, |_| {})), version).await.is_ok());
    let refused = peer(&setup, &tls, Some(client(&ended, |_| {})), version).await;
    assert_eq!(refused, Err("certificate has no path to a client CA".to_owned()));
}

#[test]
fn absent_or_malformed_revocation_list_is_refused() {
    let pem = |body: &str| format!("-----BEGIN X509 CRL-----\n{body}\n-----END X509 CRL-----\n");
    assert!(matches!(writes("crl.pem", ""), Error::NoCrl { .. }));
    assert!(matches!(writes("crl.pem", &root("client CA").pem()), Error::NoCrl { .. }));
    assert!(matches!(writes("crl.pem", &pem("MAMCAQU=")), Error::CrlMalformed { .. }));
    assert!(matches!(writes("crl.pem", &pem("!")), Error::CrlMalformed { .. }));
}

#[test]
fn refusal_names_the_file_but_not_its_contents() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let secret = key().serialize_pem().replace("BEGIN PRIVATE KEY-----", "BEGIN PRIVATE KEY----");
    setup.write("key.pem", &secret);
    let Err(error) = setup.load() else { panic!("loaded") };
    let logged = format!("{error} {error:?}");
    assert!(logged.contains("key.pem"), "{logged}");
    assert!(secret.lines().all(|line| !logged.contains(line)), "{logged}");
}

#[test]
fn client_certificate_without_its_key_is_refused() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let now = setup.clock.now();
    let pair = setup.files.own.read(now).expect("a good pair");
    assert!(String::from_utf8(pair.pem).expect("text").contains("PRIVATE KEY"));
    let (certificate, other_key) = own(&setup.own_ca, NOW + HOUR);
    setup.write("key.pem", &other_key);
    assert!(matches!(setup.files.own.read(now), Err(Error::KeyMismatch { .. })));
    setup.write("certificate.pem", &certificate);
    assert!(setup.files.own.read(now).is_ok());
    setup.clock.advance(Duration::from_secs(2 * HOUR));
    assert!(matches!(setup.files.own.read(setup.clock.now()), Err(Error::CertificateExpired { .. })));
}
