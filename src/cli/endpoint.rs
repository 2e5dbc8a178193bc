//! The node that a command calls, and its authentication.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use trust_fabric_client::{self as client, Certificates, NodeClient, Pem};

use super::Error;
use super::output::Output;
use crate::api::admin_socket::ADMIN_SOCKET;
use crate::{config, limits};

const DEFAULT_URL: &str = "http://127.0.0.1:8693";

/// Arguments of every command that calls a node.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerArguments {
    #[command(flatten)]
    pub connection: Connection,
    /// File with a bearer token for the node [env: `TRUST_FABRIC_TOKEN_FILE`]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl ServerArguments {
    pub(super) fn client(&self) -> Result<NodeClient, Error> {
        Ok(with_token(self.connection.client()?, self.token()?.as_deref()))
    }

    /// A client with the certificates and the token that the files hold now, which may have been renewed. `None` if they cannot
    /// be used, or if the token came from standard input.
    pub(super) fn renewed_client(&self) -> Option<NodeClient> {
        let is_read_once = self.token_file(config::environment()).is_some_and(|path| path.as_os_str() == "-");
        if is_read_once { None } else { self.client().ok() }
    }

    /// A client of each node, which calls no other. Standard input has the token once.
    pub(super) fn client_of_each(&self) -> Result<Vec<NodeClient>, Error> {
        let token = self.token()?;
        let clients = self.connection.client_of_each()?;
        Ok(clients.into_iter().map(|client| with_token(client, token.as_deref())).collect())
    }

    fn token(&self) -> Result<Option<String>, Error> {
        self.token_file(config::environment()).as_deref().map(read_token).transpose()
    }

    /// The argument overrides the environment.
    fn token_file(&self, environment: impl Iterator<Item = (String, String)>) -> Option<PathBuf> {
        self.token_file
            .clone()
            .or_else(|| variable(environment, "TRUST_FABRIC_TOKEN_FILE").map(PathBuf::from))
    }
}

/// Arguments of a command that calls a node and shows its answer.
#[derive(Debug, Args)]
pub(super) struct Call {
    #[command(flatten)]
    pub server: ServerArguments,
    #[command(flatten)]
    pub output: Output,
}

fn with_token(client: NodeClient, token: Option<&str>) -> NodeClient {
    match token {
        Some(token) => client.with_bearer(token.to_owned()),
        None => client,
    }
}

/// A variable of the environment. Empty is unset.
fn variable(mut environment: impl Iterator<Item = (String, String)>, name: &str) -> Option<String> {
    environment.find(|(found, value)| found == name && !value.is_empty()).map(|(_, value)| value)
}

/// The token in a file, or in standard input for `-`, without surrounding white space.
pub(super) fn read_token(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let limit = limits::TOKEN_BYTES_MAX as u64;
    let read = if path.as_os_str() == "-" {
        io::stdin().take(limit).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text))
    };
    read.map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(text.trim().to_owned())
}

/// Calls the node with the data directory `data` through its `admin.sock`.
pub(super) fn admin_socket<T>(
    data: &Path,
    call: impl AsyncFnOnce(NodeClient) -> Result<T, Error>,
) -> Result<T, Error> {
    let path = data.join(ADMIN_SOCKET);
    let called = super::wait_for(call(NodeClient::at_socket(&path)?));
    called.map_err(|error| match error {
        Error::Answer(client::Error::Unreachable { reason, .. }) => Error::AdminSocket { path, reason },
        other => other,
    })
}

/// Arguments of a command that calls a node by certificate, or with a token of its own.
#[derive(Clone, Debug, Args)]
pub(super) struct Connection {
    /// URL of a node; further ones, separated by commas or in a repeated option, are used if it does not respond; default:
    /// `http://127.0.0.1:8693` [env: `TRUST_FABRIC_ENDPOINTS`]
    // Not the `env` of clap, which refuses an empty variable, and takes a set one for an argument.
    #[arg(long = "server", value_name = "URL", value_delimiter = ',')]
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

impl Connection {
    pub(super) fn client(&self) -> Result<NodeClient, Error> {
        let urls = self.urls(config::environment());
        Ok(NodeClient::with_certificates(&urls, &self.certificates(config::environment()))?)
    }

    fn client_of_each(&self) -> Result<Vec<NodeClient>, Error> {
        let urls = self.urls(config::environment()).into_iter();
        urls.map(|url| Self { urls: vec![url], ..self.clone() }.client()).collect()
    }

    /// The arguments override the environment.
    fn urls(&self, environment: impl Iterator<Item = (String, String)>) -> Vec<String> {
        if !self.urls.is_empty() {
            return self.urls.clone();
        }
        match variable(environment, "TRUST_FABRIC_ENDPOINTS") {
            Some(urls) => urls.split(',').map(str::to_owned).collect(),
            None => vec![DEFAULT_URL.to_owned()],
        }
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
            certificates.certificate = self.cert.clone().map(Pem::File);
            certificates.private_key = self.key.clone().map(Pem::File);
        }
        if let Some(ca) = &self.ca {
            certificates.ca = Some(Pem::File(ca.clone()));
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
        let pem = |text: &str| Some(Pem::from(text));
        let server = |ca, cert, key| Connection { urls: Vec::new(), ca, cert, key };
        let chosen = |server: Connection| {
            let Certificates { ca, certificate, private_key } = server.certificates(environment());
            (ca, certificate, private_key)
        };
        assert_eq!(chosen(server(None, None, None)), (pem("env-CA"), pem("env-CERT"), pem("env-KEY")));
        assert_eq!(chosen(server(path("c"), path("a"), path("k"))), (pem("c"), pem("a"), pem("k")));
        assert_eq!(chosen(server(None, path("a"), None)), (pem("env-CA"), pem("a"), None));
        assert_eq!(chosen(server(None, None, path("k"))), (pem("env-CA"), None, pem("k")));
        let empty = [("TRUST_FABRIC_CA".to_owned(), String::new())].into_iter();
        assert!(server(None, None, None).certificates(empty).ca.is_none());
    }

    #[test]
    fn urls_come_from_argument_environment_or_default() {
        let urls = |arguments: &[&str], value: &str| {
            let urls = arguments.iter().map(ToString::to_string).collect();
            let connection = Connection { urls, ca: None, cert: None, key: None };
            connection.urls([("TRUST_FABRIC_ENDPOINTS".to_owned(), value.to_owned())].into_iter())
        };
        assert_eq!(urls(&["a", "b"], "c"), ["a", "b"]);
        assert_eq!(urls(&[], "c,d"), ["c", "d"]);
        assert_eq!(urls(&[], ""), [DEFAULT_URL]);
    }

    #[test]
    fn token_file_argument_overrides_the_environment() {
        let environment =
            |value: &str| [("TRUST_FABRIC_TOKEN_FILE".to_owned(), value.to_owned())].into_iter();
        let connection = Connection { urls: Vec::new(), ca: None, cert: None, key: None };
        let server = |token_file: Option<&str>| ServerArguments {
            connection: connection.clone(),
            token_file: token_file.map(PathBuf::from),
        };
        assert_eq!(server(None).token_file(environment("e")), Some("e".into()));
        assert_eq!(server(Some("a")).token_file(environment("e")), Some("a".into()));
        assert_eq!(server(None).token_file(environment("")), None);
    }
}
