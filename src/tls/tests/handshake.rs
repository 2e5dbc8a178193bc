//! Negotiated parameters of a handshake, and those that are never negotiated.

use rustls::HandshakeKind;
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

#[tokio::test]
async fn a_session_is_never_resumed() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let tls = setup.tls();
    for version in [&TLS13, &TLS12] {
        let mut config = setup.client_config(Some(client(&ca, |_| {})), version);
        config.resumption = Resumption::in_memory_sessions(8);
        config.enable_early_data = true;
        let config = Arc::new(config);
        for round in 0..3 {
            let (mut server, mut client) = connect(&tls, &config).await.expect("good");
            // Tickets would arrive with the first bytes after the handshake.
            server.write_all(b"x").await.expect("written");
            server.flush().await.expect("flushed");
            assert_eq!(client.read_u8().await.expect("read"), b'x');
            assert_eq!(client.get_ref().1.tls13_tickets_received(), 0, "{version:?}");
            assert_eq!(server.get_ref().1.handshake_kind(), Some(HandshakeKind::Full), "{version:?} {round}");
            assert_eq!(client.get_ref().1.handshake_kind(), Some(HandshakeKind::Full), "{version:?} {round}");
        }
    }
}

#[tokio::test]
async fn expired_certificate_opens_no_further_connection() {
    let ca = root("client CA");
    let setup = Setup::new(&ca.pem(), None);
    let tls = setup.tls();
    for version in [&TLS13, &TLS12] {
        let client = client(&ca, |svid| svid.not_after = at!(NOW + HOUR));
        assert!(peer(&setup, &tls, Some(client), version).await.is_ok());
    }
    let ends_soon = client(&ca, |svid| svid.not_after = at!(NOW + HOUR));
    setup.clock.advance(Duration::from_secs(HOUR));
    assert!(peer(&setup, &tls, Some(ends_soon.clone()), &TLS13).await.is_ok(), "its last second");
    setup.clock.advance(Duration::from_secs(1));
    let refused = peer(&setup, &tls, Some(ends_soon), &TLS13).await;
    assert_eq!(refused, Err("certificate has expired".to_owned()));
}

#[tokio::test]
async fn http_2_is_preferred_and_other_protocols_are_refused() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let tls = setup.tls();
    let negotiate = async |offered: &[&[u8]]| {
        let mut config = setup.client_config(None, &TLS13);
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        let (server, _) = connect(&tls, &Arc::new(config)).await?;
        Ok::<_, String>(server.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(negotiate(&[b"http/1.1", b"h2"]).await, Ok(Some(b"h2".to_vec())));
    assert_eq!(negotiate(&[b"http/1.1"]).await, Ok(Some(b"http/1.1".to_vec())));
    assert_eq!(negotiate(&[]).await, Ok(None));
    assert_eq!(
        negotiate(&[b"spdy/3"]).await,
        Err("no common application protocol (h2, http/1.1)".to_owned())
    );
}

/// A `ClientHello` (RFC 5246 §7.4.1.2) with these cipher suites: client libraries do not offer them alone.
fn client_hello(version: [u8; 2], suites: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).expect("short").to_be_bytes();
    let mut body = version.to_vec();
    body.extend([7; 32]); // random
    body.push(0); // session_id
    body.extend(length(suites));
    body.extend(suites);
    body.extend([1, 0]); // compression_methods: null
    let extensions = [
        0, 10, 0, 4, 0, 2, 0, 23, // supported_groups: secp256r1
        0, 11, 0, 2, 1, 0, // ec_point_formats: uncompressed
        0, 13, 0, 6, 0, 4, 4, 3, 4, 1, // signature_algorithms: ECDSA and RSA with SHA-256
        0, 23, 0, 0, // extended_master_secret
    ];
    body.extend(length(&extensions));
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend(length(&body));
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(length(&message));
    record.extend(message);
    record
}

/// The server's first reply, and the reason of its refusal, if any.
async fn answer_to(tls: &Tls, hello: &[u8]) -> (Vec<u8>, Option<String>) {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    far.write_all(hello).await.expect("written");
    far.shutdown().await.expect("shut down");
    let refused = tls.acceptor().accept(near).await.err().map(|error| handshake_failure(&error).into_owned());
    let mut answer = Vec::new();
    far.read_to_end(&mut answer).await.expect("read");
    (answer, refused)
}

#[tokio::test]
async fn tls_1_2_requires_aead() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let tls = setup.tls();
    // ECDHE-ECDSA, ECDHE-RSA and RSA with AES in CBC mode.
    let cbc = [0xc0, 0x09, 0xc0, 0x0a, 0xc0, 0x23, 0xc0, 0x13, 0xc0, 0x14, 0x00, 0x2f, 0x00, 0x35];
    let refused = Some("no common protocol version or cipher suite".to_owned());
    // Alert, fatal, handshake_failure.
    assert_eq!(
        answer_to(&tls, &client_hello([3, 3], &cbc)).await,
        (vec![21, 3, 3, 0, 2, 2, 40], refused.clone())
    );
    // The same hello is accepted with one AEAD suite, until it ends.
    let mut with_aead = cbc.to_vec();
    with_aead.extend([0xc0, 0x2b]);
    let (answer, reason) = answer_to(&tls, &client_hello([3, 3], &with_aead)).await;
    assert_eq!((answer.first(), reason.as_deref()), (Some(&22), Some("connection closed by client")));
    // TLS 1.1: alert, fatal, protocol_version.
    let (answer, reason) = answer_to(&tls, &client_hello([3, 2], &with_aead)).await;
    assert_eq!((answer.last(), reason), (Some(&70), refused));
}

#[tokio::test]
async fn input_that_is_not_tls_is_refused() {
    let setup = Setup::new(&root("client CA").pem(), None);
    let (_, reason) = answer_to(&setup.tls(), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(reason.as_deref(), Some("not a TLS handshake"));
}
