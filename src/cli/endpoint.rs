//! The node that a command calls, and the certificates for it.

use std::path::PathBuf;

use clap::Args;
use trust_fabric_client::{Certificates, NodeClient};

use super::Error;
use crate::config;

/// Arguments of every command that calls a node.
#[derive(Clone, Debug, Args)]
pub(super) struct Server {
    /// URL of a node; further ones, separated by commas or in a repeated option, are used if it does not respond.
    #[arg(
        long = "server",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8693"
    )]
    pub urls: Vec<String>,
    /// Trust only these CAs, PEM; default: those of the system [env: `TRUST_FABRIC_CA`]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Client certificate with intermediates, PEM [env: `TRUST_FABRIC_CERT`]
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM [env: `TRUST_FABRIC_KEY`]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl Server {
    pub(super) fn client(&self) -> Result<NodeClient, Error> {
        Ok(NodeClient::with_certificates(&self.urls, &self.certificates(config::environment()))?)
    }

    /// The arguments override the environment. Empty is unset.
    fn certificates(&self, environment: impl Iterator<Item = (String, String)>) -> Certificates {
        let mut certificates = Certificates::default();
        for (name, value) in environment.filter(|(_, value)| !value.is_empty()) {
            match name.as_str() {
                "TRUST_FABRIC_CA" => certificates.ca = Some(value.into()),
                "TRUST_FABRIC_CERT" => certificates.certificate = Some(value.into()),
                "TRUST_FABRIC_KEY" => certificates.private_key = Some(value.into()),
                _ => {}
            }
        }
        // Certificate and key come from one source.
        if self.cert.is_some() || self.key.is_some() {
            certificates.certificate.clone_from(&self.cert);
            certificates.private_key.clone_from(&self.key);
        }
        if self.ca.is_some() {
            certificates.ca.clone_from(&self.ca);
        }
        certificates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_override_the_environment_as_a_pair() {
        let environment = || {
            ["CA", "CERT", "KEY", "_CLUSTER__HEARTBEAT"]
                .map(|name| (format!("TRUST_FABRIC_{name}"), format!("env-{name}")))
                .into_iter()
        };
        let path = |text: &str| Some(PathBuf::from(text));
        let server = |ca, cert, key| Server { urls: Vec::new(), ca, cert, key };
        let told = |server: Server| {
            let Certificates { ca, certificate, private_key } = server.certificates(environment());
            (ca, certificate, private_key)
        };
        assert_eq!(told(server(None, None, None)), (path("env-CA"), path("env-CERT"), path("env-KEY")));
        assert_eq!(told(server(path("c"), path("a"), path("k"))), (path("c"), path("a"), path("k")));
        assert_eq!(told(server(None, path("a"), None)), (path("env-CA"), path("a"), None));
        assert_eq!(told(server(None, None, path("k"))), (path("env-CA"), None, path("k")));
        let empty = [("TRUST_FABRIC_CA".to_owned(), String::new())].into_iter();
        assert!(server(None, None, None).certificates(empty).ca.is_none());
    }
}
