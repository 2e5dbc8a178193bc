//! Requests to the API server: read, apply and delete one object.

use std::fmt;
use std::iter;
use std::sync::Arc;

use reqwest::{Certificate, Identity, Method, Url, header, redirect};
use serde_json::Value as Json;
use tokio::time::timeout_at;

use super::{Server, Token, User, kubeconfig};
use crate::cluster::{Call, Failure};
use crate::limits;

/// The connections as one user.
pub struct Session {
    http: reqwest::Client,
    /// The token that a program gave.
    token: Option<String>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

/// A request about one object.
#[derive(Clone, Debug)]
pub struct Request<'r> {
    pub method: Method,
    /// The segments of the path, not encoded.
    pub path: &'r [&'r str],
    pub query: &'r [(&'r str, &'r str)],
    pub content_type: &'static str,
    pub body: Option<Json>,
}

/// A request without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `Status` of a failure.
    #[error("{message}")]
    Refused { code: u16, reason: String, message: String, details: Json },
    /// No group serves the path: the definition is not installed.
    #[error("this kind is not served")]
    NotServed,
    /// No API server answers here.
    #[error("{url} does not answer like an API server (status {code})")]
    Foreign { url: String, code: u16 },
    /// No response.
    #[error("{url}: {reason}")]
    Connection {
        url: String,
        reason: String,
        /// Whether a later attempt may succeed.
        is_retryable: bool,
    },
    /// The user has no usable credential.
    #[error("{0}")]
    Credential(String),
    /// Repeated until the timeout of the operation.
    #[error("{last}, until the timeout of the operation ({after_secs} s) was reached")]
    OutOfTime { last: Box<Error>, after_secs: u64 },
    /// The object did not reach the state that is waited for.
    #[error("{0}")]
    NotReached(String),
}

impl Error {
    /// The refusal at the root of the error: code and reason.
    #[must_use]
    pub fn refusal(&self) -> Option<(u16, &str)> {
        match self {
            Self::Refused { code, reason, .. } => Some((*code, reason)),
            Self::OutOfTime { last, .. } => last.refusal(),
            _ => None,
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { is_retryable, .. } => *is_retryable,
            Self::Foreign { code, .. } | Self::Refused { code, .. } => matches!(code, 429 | 500 | 502..=504),
            _ => false,
        }
    }
}

impl Call<'_> {
    /// Sends a request to the API server until it has an outcome. Every request here may be repeated.
    ///
    /// # Errors
    /// [`Failure::Kubernetes`], [`Failure::Stopped`].
    pub async fn send_to(&self, server: &Server, request: &Request<'_>) -> Result<Json, Failure> {
        let mut wait = limits::RETRY_WAIT_MIN;
        loop {
            let sent = timeout_at(self.deadline(), server.send(request));
            let outcome = tokio::select! {
                sent = sent => sent,
                () = self.stop_grace_elapsed() => return Err(Failure::Stopped),
            };
            let Ok(outcome) = outcome else {
                return Err(Failure::NoResponse { after_secs: self.timeout().as_secs() });
            };
            let error = match outcome {
                Ok(body) => return Ok(body),
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(Failure::Kubernetes(Box::new(error))),
            };
            if self.ends_within(wait) {
                let after_secs = self.timeout().as_secs();
                let last = Box::new(error);
                return Err(Failure::Kubernetes(Box::new(Error::OutOfTime { last, after_secs })));
            }
            self.pause(wait).await?;
            wait = (wait * 2).min(limits::RETRY_WAIT_MAX);
        }
    }
}

impl Server {
    /// Sends a request once; if the credential of a program is not accepted, again with a new one.
    async fn send(&self, request: &Request<'_>) -> Result<Json, Error> {
        let session = self.session().await?;
        let outcome = self.attempt(&session, request).await;
        let is_refused =
            outcome.as_ref().is_err_and(|error| error.refusal().is_some_and(|(code, _)| code == 401));
        if !is_refused || self.user.exec.is_none() {
            return outcome;
        }
        self.end(&session).await;
        let session = self.session().await?;
        self.attempt(&session, request).await
    }

    async fn session(&self) -> Result<Arc<Session>, Error> {
        let mut kept = self.session.lock().await;
        if let Some(session) = &*kept {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(self.begin().await?);
        *kept = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Ends a session, unless another request has done so.
    async fn end(&self, session: &Arc<Session>) {
        let mut kept = self.session.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, session)) {
            *kept = None;
        }
    }

    async fn begin(&self) -> Result<Session, Error> {
        let User { token: _, certificate, exec } = &self.user;
        let given = match exec {
            Some(exec) => exec.run().await.map_err(Error::Credential)?,
            None => super::exec::Credential::default(),
        };
        let mut http = reqwest::Client::builder().http1_only().redirect(redirect::Policy::none()).no_proxy();
        http = http.timeout(self.timeout).https_only(true);
        if let Some(ca) = &self.ca {
            let roots = Certificate::from_pem_bundle(ca).ok().filter(|roots| !roots.is_empty());
            let roots =
                roots.ok_or_else(|| Error::Credential("the CA holds no certificate in PEM".to_owned()))?;
            http = http.tls_certs_only(roots);
        }
        if let Some(certificate) = given.certificate.as_ref().or(certificate.as_ref()) {
            let pem = [&certificate.certificate[..], b"\n", &certificate.private_key].concat();
            let identity = Identity::from_pem(&pem).map_err(|_| {
                Error::Credential(
                    "the client certificate and its key cannot be used: both must be PEM".to_owned(),
                )
            })?;
            http = http.identity(identity);
        }
        let http = http.build().map_err(|error| Error::Credential(innermost(&error)))?;
        Ok(Session { http, token: given.token })
    }

    async fn attempt(&self, session: &Session, request: &Request<'_>) -> Result<Json, Error> {
        let url = self.address(request)?;
        let mut built = session.http.request(request.method.clone(), url);
        built = built.header(header::ACCEPT, "application/json");
        if let Some(token) = self.bearer(session)? {
            built = built.bearer_auth(token);
        }
        if let Some(body) = &request.body {
            built = built.header(header::CONTENT_TYPE, request.content_type).body(body.to_string());
        }
        let connection = |error: &reqwest::Error| {
            let reason = if error.is_timeout() { "no response in time".to_owned() } else { innermost(error) };
            // A certificate does not become valid.
            let is_retryable = !reason.contains("certificate") && !error.is_builder();
            Error::Connection { url: self.url.clone(), reason, is_retryable }
        };
        let mut response = built.send().await.map_err(|error| connection(&error))?;
        let code = response.status().as_u16();
        let mut text = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| connection(&error))? {
            text.extend_from_slice(&part);
            if text.len() > limits::OBJECT_BYTES_MAX {
                return Err(Error::Foreign { url: self.url.clone(), code });
            }
        }
        self.outcome(code, &text)
    }

    fn outcome(&self, code: u16, text: &[u8]) -> Result<Json, Error> {
        let body: Option<Json> = serde_json::from_slice(text).ok();
        let is_status = body.as_ref().is_some_and(|body| body["kind"] == "Status");
        match (code, body) {
            (200..=299, Some(body)) => Ok(body),
            (_, Some(body)) if is_status => {
                let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
                let (reason, message) = (text("reason"), text("message"));
                Err(Error::Refused { code, reason, message, details: body["details"].clone() })
            }
            (404, _) => Err(Error::NotServed),
            _ => Err(Error::Foreign { url: self.url.clone(), code }),
        }
    }

    fn bearer(&self, session: &Session) -> Result<Option<String>, Error> {
        match (&session.token, &self.user.token) {
            (Some(token), _) | (None, Some(Token::Text(token))) => Ok(Some(token.clone())),
            (None, Some(Token::File(path))) => {
                let token = kubeconfig::bytes(path).map_err(Error::Credential)?;
                Ok(Some(String::from_utf8_lossy(&token).trim().to_owned()))
            }
            (None, None) => Ok(None),
        }
    }

    /// The address of a request: each segment is encoded, so that a name cannot become another path.
    fn address(&self, request: &Request<'_>) -> Result<Url, Error> {
        let unusable = || Error::Credential(format!("{}: an API server is https://host:port", self.url));
        let mut url = Url::parse(&self.url).map_err(|_| unusable())?;
        url.path_segments_mut().map_err(|()| unusable())?.pop_if_empty().extend(request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(request.query);
        }
        Ok(url)
    }
}

/// The cause at the root of an error.
fn innermost(error: &dyn std::error::Error) -> String {
    iter::successors(Some(error), |error| error.source()).last().map(ToString::to_string).unwrap_or_default()
}
