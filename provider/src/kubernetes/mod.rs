//! The API server of Kubernetes, for `svc_fabric`: its address, the credentials for it, and its requests.
//!
//! It is called with the HTTP library of the fabric's client. A client of Kubernetes would bring a second one, for four
//! requests.

pub mod api;
pub mod exec;
pub mod failure;
pub mod kubeconfig;
pub mod settings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::diagnostic::Diagnostic;
use exec::Exec;

/// The access to an API server that the configuration gives.
#[derive(Debug)]
pub enum Access {
    /// This attribute becomes known only while other resources are applied.
    NotKnown(&'static str),
    /// None, or one that cannot be used; an error only where a resource needs it.
    Unusable(Diagnostic),
    Ready(Box<Server>),
}

/// An API server, and the user of the provider.
#[derive(Debug)]
pub struct Server {
    /// `https://host:port`, perhaps with a path.
    pub url: String,
    /// The only trusted CAs, in PEM; without them those of the machine.
    pub ca: Option<Vec<u8>>,
    pub user: User,
    /// Namespace of a fabric that states none.
    pub namespace: String,
    /// Timeout of one request.
    pub timeout: Duration,
    /// The connections as this user, made with the first request.
    session: Mutex<Option<Arc<api::Session>>>,
}

/// The credentials of a user.
#[derive(Clone, Debug, Default)]
pub struct User {
    pub token: Option<Token>,
    pub certificate: Option<Certificate>,
    /// A program that gives one of them.
    pub exec: Option<Exec>,
}

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    Text(String),
    /// Read for each request.
    File(PathBuf),
}

/// A client certificate with its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    pub certificate: Vec<u8>,
    pub private_key: Vec<u8>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate")
    }
}

impl Server {
    #[must_use]
    pub fn new(url: String, ca: Option<Vec<u8>>, user: User) -> Self {
        let timeout = crate::limits::REQUEST_TIMEOUT;
        Self { url, ca, user, namespace: "default".to_owned(), timeout, session: Mutex::default() }
    }
}
