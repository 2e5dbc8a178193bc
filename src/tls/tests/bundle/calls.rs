//! Calls to nodes of a peer: their SPIFFE IDs, roots and revocation lists.

use super::*;

/// A handshake with a node that has this certificate, as the caller sees it; and whether it presented a certificate.
async fn call(setup: &Setup, config: ClientConfig, node: Client) -> Result<bool, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(node.key).expect("key");
    let mut roots = RootCertStore::empty();
    roots.add(setup.own_ca.der().clone()).expect("root");
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.allow_unauthenticated().build().expect("verifier");
    let mut server = ServerConfig::builder_with_details(provider, Arc::new(Time(setup.clock.clone())))
        .with_protocol_versions(&[&TLS13])
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::new(node.chain, key))));
    server.alpn_protocols = vec![b"h2".to_vec()];
    let (near, far) = tokio::io::duplex(256 * 1024);
    let name = ServerName::try_from("node.peer.example").expect("name");
    let accepted = TlsAcceptor::from(Arc::new(server)).accept(near);
    let connected = TlsConnector::from(Arc::new(config)).connect(name, far);
    let (accepted, connected) = tokio::join!(accepted, connected);
    match connected {
        Ok(_) => Ok(accepted.expect("accepted").get_ref().1.peer_certificates().is_some()),
        Err(error) => Err(outbound_failure(&error).expect("a reason").into_owned()),
    }
}

fn node(issuer: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Client {
    client(issuer, |params| {
        params.subject_alt_names = vec![uri(NODE)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        change(params);
    })
}

fn only(ids: &[&str]) -> Arc<BTreeSet<WorkloadId>> {
    Arc::new(ids.iter().map(|id| id.parse().expect("id")).collect())
}

#[tokio::test]
async fn node_of_a_peer_is_known_by_its_id_under_its_root_alone() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (mut setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&two])]);
    let own_ca = root("own");
    let tls = setup.calling(&own_ca);
    setup.own_ca = own_ca;
    let ids = only(&[NODE, "spiffe://peer.example/node/2"]);
    let outcome = async |node: Client| call(&setup, tls.client_of(Arc::clone(&ids), true), node).await;
    assert_eq!(outcome(node(&one, |_| {})).await, Ok(true));
    let silent = call(&setup, tls.client_of(Arc::clone(&ids), false), node(&one, |_| {})).await;
    assert_eq!(silent, Ok(false), "no certificate is presented");
    let named =
        |id: &str, issuer: &Authority| node(issuer, |params| params.subject_alt_names = vec![uri(id)]);
    let dns = SanType::DnsName("node.peer.example".try_into().expect("name"));
    for (reason, node) in [
        (
            "certificate is of another SPIFFE ID than those of the peer",
            named("spiffe://peer.example/node/3", &one),
        ),
        // Another peer, which is connected to with its own roots.
        (
            "certificate is of another SPIFFE ID than those of the peer",
            named("spiffe://other.example/node/1", &two),
        ),
        (NO_CA, named(NODE, &two)),
        (NO_CA, named(NODE, &ca)),
        (UNKNOWN, named("spiffe://third.example/node/1", &one)),
        ("certificate has 0 URI names, not one", node(&one, |params| params.subject_alt_names = vec![dns])),
        (
            "certificate has 2 URI names, not one",
            node(&one, |params| params.subject_alt_names.push(uri("spiffe://peer.example/node/2"))),
        ),
        ("certificate has expired", node(&one, |params| params.not_after = at!(NOW - 1))),
        ("certificate is not valid yet", node(&one, |params| params.not_before = at!(NOW + HOUR / 2))),
        (
            "certificate has no extended key usage serverAuth",
            node(&one, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
        ),
    ] {
        assert_eq!(outcome(node).await, Err(reason.to_owned()));
    }
}

#[tokio::test]
async fn revoked_node_of_a_peer_is_refused() {
    let (ca, one) = (root("client CA"), root("one"));
    let (mut setup, _) = Setup::with_peers(&ca, &[("peer.example", &[&one])]);
    let crl = setup.directory.path().join("peer-crl.pem");
    setup.files.authorities.last_mut().expect("the peer").crl = Some(crl);
    let ids = only(&[NODE]);
    for (serials, expected) in [(&[][..], Ok(true)), (&[0x42][..], Err("certificate is revoked".to_owned()))]
    {
        setup.write("peer-crl.pem", &fresh_crl(&one, serials));
        let own_ca = root("own");
        let tls = setup.calling(&own_ca);
        setup.own_ca = own_ca;
        let config = tls.client_of(Arc::clone(&ids), true);
        assert_eq!(call(&setup, config, node(&one, |_| {})).await, expected);
    }
}

/// Regression: the lists of one peer stopped the reload of everything.
#[tokio::test]
async fn unusable_crl_of_a_peer_concerns_that_peer_alone() {
    let (ca, one, two) = (root("client CA"), root("one"), root("two"));
    let (mut setup, bundles) =
        Setup::with_peers(&ca, &[("peer.example", &[&one]), ("other.example", &[&two])]);
    let crl = setup.directory.path().join("peer-crl.pem");
    let of_peer = setup.files.authorities.iter_mut().find(|of| of.trust_domain == domain("peer.example"));
    of_peer.expect("the peer").crl = Some(crl.clone());
    for unusable in [None, Some("x")] {
        let _ = fs::remove_file(&crl);
        if let Some(text) = unusable {
            setup.write("peer-crl.pem", text);
        }
        assert!(setup.load().is_err_and(|error| error.to_string().contains("peer-crl.pem")), "at start");
    }
    setup.write("peer-crl.pem", &fresh_crl(&one, &[]));
    let tls = setup.tls();
    let mut logged = LoggedState::default();
    let other = "spiffe://other.example/node/1";
    for unusable in [None, Some("x")] {
        setup.write("peer-crl.pem", &fresh_crl(&one, &[]));
        logged = tls.poll(logged);
        assert!(id_of(&setup, &tls, of_id(NODE, &one)).await.is_ok(), "repaired");
        match unusable {
            Some(text) => setup.write("peer-crl.pem", text),
            None => fs::remove_file(&crl).expect("removed"),
        }
        logged = tls.poll(logged);
        assert_eq!(id_of(&setup, &tls, of_id(NODE, &one)).await, Err(UNKNOWN.to_owned()));
        assert!(id_of(&setup, &tls, of_id(ID, &ca)).await.is_ok());
        assert!(id_of(&setup, &tls, of_id(other, &two)).await.is_ok());
    }
    // The roots of another peer still follow its bundle.
    bundles[1].accept(document(&[], None).as_bytes()).expect("accepted");
    tls.poll(logged);
    assert_eq!(id_of(&setup, &tls, of_id(other, &two)).await, Err(UNKNOWN.to_owned()));
}
