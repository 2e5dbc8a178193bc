//! The first exchange with Terraform: its environment variables, and one line on standard output.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// A variable that Terraform sets for its plugins, and its value: no secret, but the sign that a program was not started
/// by hand.
const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");
/// Version of the exchange itself.
const CORE_VERSION: u32 = 1;
/// Version of the calls.
const PROTOCOL_VERSION: &str = "6";

/// Terraform's part of the exchange.
#[derive(Debug)]
pub struct Handshake {
    /// The only client certificate that is accepted.
    pub client: CertificateDer<'static>,
    /// Directory for the socket, if Terraform states one.
    pub directory: Option<PathBuf>,
}

/// The program was not started by a Terraform that it can serve.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Started by hand.
    #[error(
        "this program is a Terraform provider: Terraform starts it\n\
         install it in a plugin directory, and name it in required_providers; --help states how"
    )]
    ByHand,
    /// Protocol 6 is not offered.
    #[error("this provider needs plugin protocol {PROTOCOL_VERSION}: Terraform 1.0 or later")]
    Protocol,
    /// Anybody on this machine could be the client.
    #[error("PLUGIN_CLIENT_CERT is required: without it the client cannot be authenticated")]
    NoClientCertificate,
    /// It is no certificate.
    #[error("PLUGIN_CLIENT_CERT holds no certificate in PEM")]
    BadClientCertificate,
}

impl Handshake {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Refusal`], in the order of its variants.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Refusal> {
        let (name, value) = COOKIE;
        if variable(name).as_deref() != Some(value) {
            return Err(Refusal::ByHand);
        }
        let offered = variable("PLUGIN_PROTOCOL_VERSIONS");
        if offered.is_some_and(|offered| offered.split(',').all(|version| version != PROTOCOL_VERSION)) {
            return Err(Refusal::Protocol);
        }
        let client = variable("PLUGIN_CLIENT_CERT").filter(|pem| !pem.is_empty());
        let client = client.ok_or(Refusal::NoClientCertificate)?;
        let client = CertificateDer::from_pem_slice(client.as_bytes());
        Ok(Self {
            client: client.map_err(|_| Refusal::BadClientCertificate)?,
            directory: variable("PLUGIN_UNIX_SOCKET_DIR").filter(|path| !path.is_empty()).map(PathBuf::from),
        })
    }
}

/// The line that states to Terraform the socket and the certificate of this run.
pub(super) fn line(socket: &Path, own: &CertificateDer<'_>) -> String {
    let own = STANDARD_NO_PAD.encode(own);
    format!("{CORE_VERSION}|{PROTOCOL_VERSION}|unix|{}|grpc|{own}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Handshake, Refusal> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Handshake::read(variable)
    }

    #[test]
    fn start_without_cookie_or_certificate_is_refused() {
        let refused = |variables: &[(&str, &str)]| read(variables).expect_err("refused");
        assert_eq!(refused(&[]), Refusal::ByHand);
        assert_eq!(refused(&[(COOKIE.0, "other")]), Refusal::ByHand);
        assert_eq!(refused(&[COOKIE, ("PLUGIN_PROTOCOL_VERSIONS", "4,5,16")]), Refusal::Protocol);
        assert_eq!(refused(&[COOKIE, ("PLUGIN_PROTOCOL_VERSIONS", "5,6")]), Refusal::NoClientCertificate);
        assert_eq!(refused(&[COOKIE, ("PLUGIN_CLIENT_CERT", "")]), Refusal::NoClientCertificate);
        assert_eq!(refused(&[COOKIE, ("PLUGIN_CLIENT_CERT", "x")]), Refusal::BadClientCertificate);
    }

    #[test]
    fn line_has_six_parts_and_an_unpadded_certificate() {
        let line = line(Path::new("/tmp/p"), &CertificateDer::from(vec![1]));
        assert_eq!(line, "1|6|unix|/tmp/p|grpc|AQ");
    }
}
