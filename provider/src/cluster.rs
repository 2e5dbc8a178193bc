//! Requests to the fabric: the credential of each route, and the repetition of a request until it has an outcome.
//!
//! The client tries the endpoints in turn; here the whole round is repeated, with a pause, until the operation's deadline.
//! Every write carries one `Idempotency-Key` for all attempts, so that a lost response is no second write.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use trust_fabric_client::{self as client, Method, NodeClient, Request, Response};
use uuid::Uuid;

use crate::kubernetes;
use crate::limits;
use crate::value;

/// The fabric, with the credentials of the provider.
#[derive(Debug)]
pub struct Cluster {
    pub client: NodeClient,
    /// Whether a node is called over TLS: only without it no credential is needed, in development.
    pub is_secure: bool,
    /// The client certificate that is presented.
    pub certificate: Option<Certificate>,
    pub token: Option<Token>,
}

/// A client certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Its identity, if it has one.
    pub spiffe_id: Option<String>,
}

/// A bearer token.
#[derive(Clone)]
pub enum Token {
    Text(String),
    /// Read for each request.
    File(PathBuf),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// The credential that a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The certificate, never a token: such a route refuses one.
    Certificate,
    /// The certificate, otherwise the token: for objects that only a certificate can create, and only their creator sees.
    CertificateFirst,
    /// The token, otherwise the certificate.
    TokenFirst,
    /// The token, never the certificate: for objects of the token's subject.
    Token,
    /// None of the fabric: the API server of Kubernetes has its own.
    Kubernetes,
}

/// A request without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The response of a node, or a connection that no repetition mends.
    #[error(transparent)]
    Fabric(Box<client::Error>),
    /// Repeated until the timeout of the operation.
    #[error("{last}, until the timeout of the operation ({after_secs} s) was reached")]
    OutOfTime { last: Box<client::Error>, after_secs: u64 },
    /// No node responded before the timeout of the operation.
    #[error("no response within the timeout of the operation ({after_secs} s)")]
    NoResponse { after_secs: u64 },
    /// Terraform stopped the provider. The request may have been carried out.
    #[error("Terraform stopped the operation")]
    Stopped,
    /// No credential for the route.
    #[error("{0}")]
    NoCredential(String),
    /// The object was gone before the operation was complete.
    #[error("the object is not there any more")]
    Gone,
    /// A value that is not sent, without the value.
    #[error("{0}")]
    Withheld(String),
    /// The file of the token cannot be read.
    #[error("jwt_token_file: {0}")]
    TokenFile(std::io::Error),
    /// A value that the fabric would not keep.
    #[error("{rule}")]
    Invalid { attribute: &'static str, rule: String },
    /// A request to the API server of Kubernetes.
    #[error(transparent)]
    Kubernetes(Box<kubernetes::api::Error>),
    /// The response is no record of the expected kind.
    #[error("the response is not that of a Trust Fabric: {0}")]
    Response(#[from] value::Error),
}

impl Failure {
    /// The refusal of a node.
    #[must_use]
    pub fn refusal(&self) -> Option<&client::Refusal> {
        match self {
            Self::Fabric(error) | Self::OutOfTime { last: error, .. } => match &**error {
                client::Error::Refused(refusal) => Some(refusal),
                _ => None,
            },
            _ => None,
        }
    }

    /// HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.status)
    }
}

impl Cluster {
    /// Why no request to a route with this credential can be sent, if so.
    #[must_use]
    pub fn missing_credential(&self, credential: Credential, route: &str) -> Option<String> {
        if credential == Credential::Token {
            let rule = "takes a token and no client certificate: set jwt_token in the provider configuration";
            return self.token.is_none().then(|| format!("{route} {rule}"));
        }
        if !self.is_secure || self.certificate.is_some() {
            return None;
        }
        match (credential, &self.token) {
            (Credential::Certificate, Some(_)) => Some(format!(
                "{route} takes a client certificate and no token: set client_cert and client_key in the provider \
                 configuration, or client_cert_file and client_key_file"
            )),
            (Credential::Certificate, None) => Some(format!(
                "{route} takes a client certificate: set client_cert and client_key in the provider configuration, \
                 or client_cert_file and client_key_file"
            )),
            (_, Some(_)) => None,
            (_, None) => Some(format!(
                "{route} takes a client certificate or a token: set client_cert and client_key, or jwt_token, in the \
                 provider configuration"
            )),
        }
    }

    /// The identity that a request with this credential has: a SPIFFE ID or a `sub`.
    #[must_use]
    pub fn identity(&self, credential: Credential) -> Option<String> {
        match self.bearer(credential).ok()? {
            Some(token) => crate::identity::of_token(&token),
            None if credential == Credential::Token => None,
            None => self.certificate.as_ref()?.spiffe_id.clone(),
        }
    }

    /// The token of a request with this credential.
    fn bearer(&self, credential: Credential) -> Result<Option<String>, Failure> {
        let takes_token = match credential {
            Credential::Certificate | Credential::Kubernetes => false,
            Credential::CertificateFirst => self.certificate.is_none(),
            Credential::TokenFirst | Credential::Token => true,
        };
        match &self.token {
            Some(token) if takes_token => token.read().map(Some),
            _ => Ok(None),
        }
    }
}

impl Token {
    fn read(&self) -> Result<String, Failure> {
        match self {
            Self::Text(token) => Ok(token.clone()),
            Self::File(path) => {
                let mut token = String::new();
                let read = File::open(path)
                    .and_then(|file| file.take(limits::TOKEN_FILE_BYTES_MAX).read_to_string(&mut token));
                read.map_err(Failure::TokenFile)?;
                Ok(token.trim().to_owned())
            }
        }
    }
}

/// The party that an operation calls.
#[derive(Clone, Copy, Debug)]
pub enum Target<'c> {
    Fabric(&'c Cluster),
    Kubernetes(&'c kubernetes::Server),
}

/// One operation on one resource: all its requests share a deadline.
#[derive(Debug)]
pub struct Call<'c> {
    target: Target<'c>,
    stopped: &'c CancellationToken,
    timeout: Duration,
    deadline: Instant,
}

impl<'c> Call<'c> {
    #[must_use]
    pub fn begin(target: Target<'c>, stopped: &'c CancellationToken, timeout: Duration) -> Self {
        Self { target, stopped, timeout, deadline: Instant::now() + timeout }
    }

    /// The identity that a request with this credential has.
    #[must_use]
    pub fn identity(&self, credential: Credential) -> Option<String> {
        self.cluster().ok()?.identity(credential)
    }

    fn cluster(&self) -> Result<&'c Cluster, Failure> {
        match self.target {
            Target::Fabric(cluster) => Ok(cluster),
            Target::Kubernetes(_) => {
                Err(Failure::NoCredential("this resource is not one of the fabric".to_owned()))
            }
        }
    }

    /// The API server of a resource of Kubernetes.
    ///
    /// # Errors
    /// [`Failure::NoCredential`].
    pub fn server(&self) -> Result<&'c kubernetes::Server, Failure> {
        match self.target {
            Target::Kubernetes(server) => Ok(server),
            Target::Fabric(_) => {
                Err(Failure::NoCredential("this resource is not one of Kubernetes".to_owned()))
            }
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the time of the operation ends within `wait`.
    #[must_use]
    pub fn ends_within(&self, wait: Duration) -> bool {
        Instant::now() + wait >= self.deadline
    }

    /// Waits, unless Terraform stops the provider.
    ///
    /// # Errors
    /// [`Failure::Stopped`].
    pub async fn pause(&self, wait: Duration) -> Result<(), Failure> {
        tokio::select! {
            () = sleep(wait) => Ok(()),
            () = self.stopped.cancelled() => Err(Failure::Stopped),
        }
    }

    /// Resolves when Terraform has stopped the provider and a response is not awaited any longer.
    pub(crate) async fn stop_grace_elapsed(&self) {
        self.stopped.cancelled().await;
        sleep(limits::STOP_GRACE).await;
    }

    /// Sends a request until it has an outcome. A bearer of its own is the credential instead.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn send(&self, credential: Credential, request: Request<'_>) -> Result<Response, Failure> {
        let cluster = self.cluster()?;
        let route = format!("{} /{}", request.method, request.path.join("/"));
        let own = request.bearer;
        if let Some(reason) = cluster.missing_credential(credential, &route).filter(|_| own.is_none()) {
            return Err(Failure::NoCredential(reason));
        }
        let key = Uuid::new_v4().to_string();
        let is_write = request.method != Method::GET;
        let mut wait = limits::RETRY_WAIT_MIN;
        loop {
            let ours = if own.is_some() { None } else { cluster.bearer(credential)? };
            let idempotency_key = is_write.then_some(key.as_str());
            let attempt = Request { bearer: own.or(ours.as_deref()), idempotency_key, ..request.clone() };
            let error = match self.attempt(cluster, &attempt).await? {
                Ok(response) => return Ok(response),
                Err(error) if is_retryable(&error) => error,
                Err(error) => return Err(Failure::Fabric(Box::new(error))),
            };
            let pause = pause(&error, wait);
            if self.ends_within(pause) {
                let after_secs = self.timeout.as_secs();
                return Err(Failure::OutOfTime { last: Box::new(error), after_secs });
            }
            self.pause(pause).await?;
            wait = (wait * 2).min(limits::RETRY_WAIT_MAX);
        }
    }

    /// One attempt at every endpoint, within the deadline. After a stop, the response is awaited a little longer, so that
    /// an outcome is not lost.
    async fn attempt(
        &self,
        cluster: &Cluster,
        request: &Request<'_>,
    ) -> Result<Result<Response, client::Error>, Failure> {
        tokio::select! {
            sent = timeout_at(self.deadline, cluster.client.send(request)) => {
                sent.map_err(|_| Failure::NoResponse { after_secs: self.timeout.as_secs() })
            }
            () = self.stop_grace_elapsed() => Err(Failure::Stopped),
        }
    }
}

/// Whether a later attempt may succeed. TLS errors are not among them: a certificate does not become valid.
fn is_retryable(error: &client::Error) -> bool {
    matches!(
        error,
        client::Error::Unreachable { .. } | client::Error::Interrupted(_) | client::Error::TimedOut(_)
    ) || matches!(error.status(), Some(429 | 503))
}

/// The pause before the next attempt: `Retry-After` up to its limit, otherwise between half of `wait` and `wait`, so that
/// many resources do not return at once.
fn pause(error: &client::Error, wait: Duration) -> Duration {
    let stated = match error {
        client::Error::Refused(refusal) => refusal.retry_after,
        _ => None,
    };
    match stated {
        Some(stated) if !stated.is_zero() => stated.min(limits::RETRY_AFTER_MAX),
        _ => {
            let [random, ..] = *Uuid::new_v4().as_bytes();
            wait / 2 + wait * u32::from(random) / 512
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(certificate: bool, token: bool, endpoint: &str) -> Cluster {
        Cluster {
            client: NodeClient::new(endpoint).expect("client"),
            is_secure: endpoint.starts_with("https"),
            certificate: certificate.then(|| Certificate { spiffe_id: Some("spiffe://td/cert".to_owned()) }),
            // {"sub":"token"}
            token: token.then(|| Token::Text("e30.eyJzdWIiOiJ0b2tlbiJ9.s".to_owned())),
        }
    }

    #[test]
    fn each_route_gets_the_credential_that_it_takes() {
        const ROUTES: [Credential; 4] = [
            Credential::Certificate,
            Credential::CertificateFirst,
            Credential::TokenFirst,
            Credential::Token,
        ];
        const CERT: Option<&str> = Some("spiffe://td/cert");
        for (certificate, token, expected) in [
            (true, true, [CERT, CERT, Some("token"), Some("token")]),
            (true, false, [CERT, CERT, CERT, None]),
            (false, true, [None, Some("token"), Some("token"), Some("token")]),
            (false, false, [None; 4]),
        ] {
            let cluster = cluster(certificate, token, "https://h");
            let identities = ROUTES.map(|route| cluster.identity(route));
            assert_eq!(identities.each_ref().map(Option::as_deref), expected);
            let lacks = ROUTES.map(|route| cluster.missing_credential(route, "r").is_none());
            assert_eq!(lacks, expected.map(|identity| identity.is_some()));
        }
        assert_eq!(
            cluster(false, false, "http://127.0.0.1:1").missing_credential(Credential::Certificate, "r"),
            None
        );
    }

    #[test]
    fn pause_grows_and_obeys_retry_after() {
        let busy = |retry_after| {
            client::Error::Refused(Box::new(client::Refusal {
                server: "http://h".parse().expect("url"),
                status: 429,
                code: String::new(),
                description: String::new(),
                retry_after,
                body: serde_json::Value::Null,
            }))
        };
        let wait = Duration::from_secs(2);
        for _ in 0..100 {
            let pause = pause(&busy(None), wait);
            assert!((wait / 2..=wait).contains(&pause), "{pause:?}");
        }
        assert_eq!(pause(&busy(Some(Duration::from_secs(7))), wait), Duration::from_secs(7));
        assert_eq!(pause(&busy(Some(Duration::from_secs(700))), wait), limits::RETRY_AFTER_MAX);
    }
}
