//! Files that change under a running node.

use std::os::unix::fs::symlink;

use rustls::version::TLS13;

use super::*;

async fn own_certificate(setup: &Setup, tls: &Tls) -> CertificateDer<'static> {
    let config = Arc::new(setup.client_config(None, &TLS13));
    let (_, client) = connect(tls, &config).await.expect("good");
    client.get_ref().1.peer_certificates().expect("a certificate")[0].clone().into_owned()
}

/// The value of a metric without further labels; `None` if there is none.
fn gauge(setup: &Setup, name: &str) -> Option<u64> {
    let page = setup.metrics.render().expect("page");
    let name = format!("{name}{{with=\"callers\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).map(|value| value.parse().expect("number"))
}

/// The counter of reloads exists from the first load on: alerts do not see an increase from no sample.
fn reloads(setup: &Setup, result: &str) -> u64 {
    let page = setup.metrics.render().expect("page");
    let name = format!("svc_tls_reloads_total{{result=\"{result}\",with=\"callers\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name)).expect("a counter");
    value.parse().expect("number")
}

#[tokio::test(start_paused = true)]
async fn new_certificate_and_revocation_list_are_adopted() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), Some(&fresh_crl(&ca, &[])));
    // As Kubernetes mounts a secret: links through a link that is replaced.
    let directory = setup.directory.path();
    for name in ["certificate.pem", "key.pem", "ca.pem", "crl.pem"] {
        fs::create_dir_all(directory.join("one")).expect("directory");
        fs::rename(directory.join(name), directory.join("one").join(name)).expect("moved");
        symlink(format!("..data/{name}"), directory.join(name)).expect("link");
    }
    symlink("one", directory.join("..data")).expect("link");

    let tls = setup.tls();
    let mut changes = tls.changes();
    let client = client(&ca, |_| {});
    assert!(peer(&setup, &tls, Some(client.clone()), &TLS13).await.is_ok());
    let before = own_certificate(&setup, &tls).await;
    let mut following = JoinSet::new();
    following.spawn(tls.clone().follow());

    fs::create_dir(directory.join("two")).expect("directory");
    fs::copy(directory.join("one/ca.pem"), directory.join("two/ca.pem")).expect("copied");
    let (certificate, private_key) = own(&setup.own_ca, NOW + 20 * HOUR);
    setup.write("two/certificate.pem", &certificate);
    setup.write("two/key.pem", &private_key);
    setup.write("two/crl.pem", &fresh_crl(&ca, &[0x42]));
    symlink("two", directory.join("..data_tmp")).expect("link");
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("exchanged");

    changes.changed().await.expect("followed");
    assert_eq!(*changes.borrow_and_update(), 1);
    assert_ne!(own_certificate(&setup, &tls).await, before);
    let refused = peer(&setup, &tls, Some(client), &TLS13).await;
    assert_eq!(refused, Err("certificate is revoked".to_owned()));
    for (name, time) in [
        ("svc_tls_certificate_not_before_seconds", NOW - HOUR),
        ("svc_tls_certificate_not_after_seconds", NOW + 20 * HOUR),
        ("svc_tls_ca_not_before_seconds", NOW - 24 * HOUR),
        ("svc_tls_ca_not_after_seconds", NOW + 24 * HOUR),
        ("svc_tls_crl_this_update_seconds", NOW - HOUR),
        ("svc_tls_crl_next_update_seconds", NOW + HOUR),
    ] {
        assert_eq!(gauge(&setup, name), Some(time), "{name}");
    }
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (1, 0));
}

#[tokio::test]
async fn rewritten_files_of_equal_content_change_nothing() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let tls = setup.tls();
    setup.write("ca.pem", &ca.pem());
    tls.poll(LoggedState::default());
    assert_eq!(*tls.changes().borrow(), 0);
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (0, 0));
}

#[tokio::test]
async fn removed_ca_refuses_its_clients() {
    let (ca, other) = (root("client CA"), root("other CA"));
    let setup = Setup::new(&ca.pem(), None);
    let tls = setup.tls();
    setup.write("ca.pem", &other.pem());
    tls.poll(LoggedState::default());
    assert_eq!(*tls.changes().borrow(), 1);
    assert!(peer(&setup, &tls, Some(client(&ca, |_| {})), &TLS13).await.is_err());
    assert!(peer(&setup, &tls, Some(client(&other, |_| {})), &TLS13).await.is_ok());
}

/// Attack: the certificate of a node has expired, which a thief ignores. Regression: the list that revokes the stolen
/// certificate was not adopted.
#[tokio::test]
async fn expired_own_certificate_holds_back_no_revocation() {
    let ca = lasting_root();
    let list = |serials: &[u8]| crl(&ca, serials, NOW - HOUR, NOW + 50 * HOUR);
    let setup = Setup::new(&ca.pem(), Some(&list(&[])));
    let tls = setup.tls();
    let stolen = client(&ca, |params| params.not_after = at!(NOW + 50 * HOUR));
    setup.clock.advance(Duration::from_secs(11 * HOUR));
    setup.write("crl.pem", &list(&[0x42]));
    tls.poll(LoggedState::default());
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (1, 0));
    let mut config = setup.client_config(Some(stolen), &TLS13);
    config.time_provider = Arc::new(Time(Clock::manual(Timestamp::from_secs(NOW.cast_signed()))));
    let refused = connect(&tls, &Arc::new(config)).await.map(drop);
    assert_eq!(refused, Err("certificate is revoked".to_owned()));
    // Another pair that has expired is refused with all files, as at the start.
    let (certificate, private_key) = own(&setup.own_ca, NOW + 9 * HOUR);
    setup.write("certificate.pem", &certificate);
    setup.write("key.pem", &private_key);
    tls.poll(LoggedState::default());
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (1, 1));
}

fn lasting_root() -> Authority {
    let mut params = ca_params("lasting CA");
    params.not_after = at!(NOW + 100 * HOUR);
    Authority::self_signed(params, key()).expect("root")
}

/// As a root of a bundle. webpki does not check the validity of trust anchors, and the file does not change.
#[tokio::test]
async fn ca_that_expires_is_no_ca_without_a_change_of_the_file() {
    let (one, lasting) = (root("one"), lasting_root());
    let setup = Setup::new(&(one.pem() + &lasting.pem()), None);
    let (certificate, private_key) = own(&setup.own_ca, NOW + 100 * HOUR);
    setup.write("certificate.pem", &certificate);
    setup.write("key.pem", &private_key);
    let tls = setup.tls();
    let [of_one, of_lasting] =
        [&one, &lasting].map(|ca| client(ca, |params| params.not_after = at!(NOW + 48 * HOUR)));
    for client in [&of_one, &of_lasting] {
        assert!(peer(&setup, &tls, Some(client.clone()), &TLS13).await.is_ok());
    }
    setup.clock.advance(Duration::from_secs(23 * HOUR));
    tls.poll(LoggedState::default());
    assert_eq!(*tls.changes().borrow(), 0);
    setup.clock.advance(Duration::from_secs(HOUR + 1));
    tls.poll(LoggedState::default());
    assert_eq!(*tls.changes().borrow(), 1);
    assert!(peer(&setup, &tls, Some(of_one), &TLS13).await.is_err());
    assert!(peer(&setup, &tls, Some(of_lasting), &TLS13).await.is_ok());
}

/// Regression: the only CA of a trust domain stayed in use after its end, and held back every other change of the files.
#[tokio::test]
async fn only_ca_that_expires_refuses_its_clients() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let (certificate, private_key) = own(&setup.own_ca, NOW + 100 * HOUR);
    setup.write("certificate.pem", &certificate);
    setup.write("key.pem", &private_key);
    let tls = setup.tls();
    let before = own_certificate(&setup, &tls).await;
    let lasting = client(&ca, |params| params.not_after = at!(NOW + 48 * HOUR));
    assert!(peer(&setup, &tls, Some(lasting.clone()), &TLS13).await.is_ok());
    setup.clock.advance(Duration::from_secs(24 * HOUR + 1));
    let (certificate, private_key) = own(&setup.own_ca, NOW + 99 * HOUR);
    setup.write("certificate.pem", &certificate);
    setup.write("key.pem", &private_key);
    tls.poll(LoggedState::default());
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (1, 0));
    assert_ne!(own_certificate(&setup, &tls).await, before, "the other files are adopted");
    assert!(peer(&setup, &tls, Some(lasting), &TLS13).await.is_err());
    assert_eq!(gauge(&setup, "svc_tls_ca_not_after_seconds"), Some(NOW + 24 * HOUR), "the alert goes on");
    setup.write("ca.pem", &lasting_root().pem());
    tls.poll(LoggedState::default());
    assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (2, 0));
}

#[tokio::test]
async fn invalid_files_change_nothing_and_count_once() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), Some(&fresh_crl(&ca, &[])));
    let tls = setup.tls();
    let before = own_certificate(&setup, &tls).await;
    let (good_certificate, good_key, good_list) = (
        fs::read_to_string(&setup.files.own.certificate).expect("read"),
        fs::read_to_string(&setup.files.own.private_key).expect("read"),
        fs::read_to_string(setup.directory.path().join("crl.pem")).expect("read"),
    );
    let (new_certificate, new_key) = own(&setup.own_ca, NOW + 20 * HOUR);
    let mut logged = LoggedState::default();
    // Half of a pair, a missing list, an empty list, and a valid change beside an invalid one.
    let steps: [&dyn Fn(); 4] = [
        &|| setup.write("certificate.pem", &new_certificate),
        &|| {
            setup.write("certificate.pem", &good_certificate);
            fs::remove_file(setup.directory.path().join("crl.pem")).expect("removed");
        },
        &|| setup.write("crl.pem", ""),
        &|| {
            setup.write("certificate.pem", &new_certificate);
            setup.write("key.pem", &new_key);
        },
    ];
    for (step, failed) in steps.into_iter().zip(1..) {
        step();
        for _ in 0..3 {
            logged = tls.poll(logged);
        }
        assert_eq!((reloads(&setup, "ok"), reloads(&setup, "failed")), (0, failed));
        assert_eq!(*tls.changes().borrow(), 0);
        assert_eq!(own_certificate(&setup, &tls).await, before);
        assert!(peer(&setup, &tls, Some(client(&ca, |_| {})), &TLS13).await.is_ok());
    }
    // Restored content is no change, and the missing half completes the pair.
    setup.write("certificate.pem", &good_certificate);
    setup.write("key.pem", &good_key);
    setup.write("crl.pem", &good_list);
    logged = tls.poll(logged);
    assert_eq!((reloads(&setup, "ok"), *tls.changes().borrow()), (0, 0));
    setup.write("certificate.pem", &new_certificate);
    setup.write("key.pem", &new_key);
    tls.poll(logged);
    assert_eq!((reloads(&setup, "ok"), *tls.changes().borrow()), (1, 1));
    assert_ne!(own_certificate(&setup, &tls).await, before);
}

#[tokio::test]
async fn certificate_expiry_is_logged_once_in_its_last_tenth() {
    let ca = root("client CA");
    // Valid from an hour ago to ten hours ahead.
    let setup = Setup::new(&ca.pem(), None);
    let tls = setup.tls();
    setup.clock.advance(Duration::from_secs(8 * HOUR + HOUR / 2));
    let logged = tls.poll(LoggedState::default());
    assert_eq!(logged.expires_soon, None);
    setup.clock.advance(Duration::from_secs(HOUR));
    let logged = tls.poll(logged);
    assert!(logged.expires_soon.is_some());
    assert_eq!(tls.poll(logged).expires_soon, logged.expires_soon);
}
