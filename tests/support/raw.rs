//! Raw bytes over TCP or TLS, for requests that no HTTP client sends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use trust_fabric::pki::IssuedCertificate;

/// Target address and transport.
pub struct Wire<'w> {
    pub address: SocketAddr,
    /// CA to trust and certificate to present; `None` is plain TCP.
    pub tls: Option<(&'w Path, Option<&'w IssuedCertificate>)>,
}

/// A connection over TCP or TLS.
pub type Stream = Box<dyn Duplex>;

pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

impl Wire<'_> {
    pub async fn connect(&self) -> std::io::Result<Stream> {
        self.connect_for(&[]).await
    }

    /// Connects with ALPN (RFC 7301).
    pub async fn connect_for(&self, protocols: &[&[u8]]) -> std::io::Result<Stream> {
        let socket = TcpStream::connect(self.address).await?;
        let Some((ca, caller)) = self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::from(self.address.ip());
        let mut client = client(ca, caller);
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Box::new(TlsConnector::from(Arc::new(client)).connect(name, socket).await?))
    }

    /// Connects, sends these bytes and reads until the node closes.
    pub async fn exchange(&self, bytes: &[u8]) -> String {
        match self.connect().await {
            Ok(stream) => finish(stream, bytes).await,
            Err(error) => format!("handshake: {error}"),
        }
    }
}

/// Sends these bytes and reads until the node closes.
pub async fn finish(mut stream: Stream, bytes: &[u8]) -> String {
    // A node that refuses early may close before it has read everything.
    drop(stream.write_all(bytes).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

fn client(ca: &Path, caller: Option<&IssuedCertificate>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("CA")).expect("a root");
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let Some(pair) = caller else { return builder.with_no_client_auth() };
    let certificate = CertificateDer::from_pem_file(&pair.certificate).expect("certificate");
    let key = PrivateKeyDer::from_pem_file(&pair.private_key).expect("key");
    builder.with_client_auth_cert(vec![certificate], key).expect("a pair")
}

/// The status of the first response, 0 without one.
pub fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// The body of the first response.
pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
