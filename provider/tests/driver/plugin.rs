//! The client side of the plugin protocol, as Terraform 1.11 has it: cookie, line, mutual TLS with a P-521 certificate.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P521_SHA512};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use trust_fabric_provider::proto::plugin::Nothing;
use trust_fabric_provider::proto::plugin::grpc_controller_client::GrpcControllerClient;
use trust_fabric_provider::proto::tfplugin6::provider_client::ProviderClient;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_terraform-provider-svc");

const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");

/// A certificate of one run of Terraform.
pub struct Client {
    pub certificate: rcgen::Certificate,
    pub key: KeyPair,
}

/// A running provider, killed when dropped.
pub struct Plugin {
    pub child: Child,
    pub socket: PathBuf,
    pub own: CertificateDer<'static>,
    pub provider: ProviderClient<Channel>,
    pub channel: Channel,
    _out: BufReader<ChildStdout>,
}

impl Client {
    pub fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512).expect("key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key).expect("signed");
        Self { certificate, key }
    }

    /// The command that starts a provider for this client.
    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env_clear().env(COOKIE.0, COOKIE.1).env("PLUGIN_PROTOCOL_VERSIONS", "5,6");
        command.env("PLUGIN_CLIENT_CERT", self.certificate.pem());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// A channel to a provider, with this certificate.
    pub async fn connect(
        &self,
        socket: PathBuf,
        own: CertificateDer<'static>,
    ) -> Result<Channel, tonic::transport::Error> {
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der()).into();
        let mut tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OnlyThis(own)))
            .with_client_auth_cert(vec![self.certificate.der().clone()], key)
            .expect("certificate");
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsConnector::from(Arc::new(tls));
        let connector = service_fn(move |_| {
            let (socket, tls) = (socket.clone(), tls.clone());
            async move {
                let stream = UnixStream::connect(socket).await?;
                let name = ServerName::try_from("localhost").expect("a name");
                tls.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(Duration::from_secs(150));
        endpoint.connect_with_connector(connector).await
    }
}

impl Plugin {
    pub async fn start() -> Self {
        let client = Client::new();
        Self::start_with(&client, client.command()).await
    }

    pub async fn start_with(client: &Client, mut command: Command) -> Self {
        let mut child = command.spawn().expect("started");
        let mut out = BufReader::new(child.stdout.take().expect("output"));
        let mut line = String::new();
        out.read_line(&mut line).await.expect("a line");
        let parts: Vec<&str> = line.trim_end().split('|').collect();
        assert_eq!(parts.len(), 6, "{line}");
        assert_eq!((parts[0], parts[1], parts[2], parts[4]), ("1", "6", "unix", "grpc"), "{line}");
        let own = CertificateDer::from(STANDARD_NO_PAD.decode(parts[5]).expect("base64"));
        let socket = PathBuf::from(parts[3]);
        let channel = client.connect(socket.clone(), own.clone()).await.expect("connected");
        let provider = ProviderClient::new(channel.clone());
        Self { child, socket, own, provider, channel, _out: out }
    }

    /// Ends it as Terraform does, and returns its exit code.
    pub async fn shut_down(mut self) -> Option<i32> {
        let mut controller = GrpcControllerClient::new(self.channel.clone());
        controller.shutdown(Nothing {}).await.expect("shut down");
        tokio::time::timeout(Duration::from_secs(2), self.child.wait())
            .await
            .expect("in time")
            .expect("ended")
            .code()
    }
}

/// Accepts one certificate, as Terraform does.
#[derive(Debug)]
struct OnlyThis(CertificateDer<'static>);

impl ServerCertVerifier for OnlyThis {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        assert_eq!(*end_entity, self.0);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
