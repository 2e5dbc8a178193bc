//! HTTP client of the nodes of a Trust Fabric cluster.
//!
//! A client has one or more endpoints, each a node of one cluster. A request goes to the endpoint that responded last;
//! if that one cannot be reached, fails the TLS handshake, does not respond in time or like a node, or responds 503, it goes
//! to the next. A request that may have been carried out is sent again only if that is safe: a `GET`, `PUT` or `DELETE`, or
//! one with an `Idempotency-Key`.
//!
//! Nothing here decides or retries over time: waiting for a cluster that has no leader is up to the caller.

mod certificates;
mod download;
mod error;
mod events;
pub mod limits;
mod request;
pub mod sse;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Url;
use serde_json::Value;

pub use self::certificates::{Certificates, Pem};
pub use self::download::Download;
pub use self::error::{Error, Refusal};
pub use self::events::Events;
pub use self::request::{Request, Response};
pub use reqwest::Method;

/// A client of the nodes of one cluster. Cheap to clone; clones share the preferred endpoint.
#[derive(Clone, Debug)]
pub struct NodeClient {
    http: reqwest::Client,
    endpoints: Arc<[Url]>,
    /// The endpoint that responded last.
    preferred: Arc<AtomicUsize>,
    bearer: Option<Arc<str>>,
    timeout: Duration,
}

impl NodeClient {
    /// A client of the node at `server`, for example `http://127.0.0.1:8693`.
    ///
    /// # Errors
    /// [`Error::AddressMalformed`] or [`Error::Unprepared`].
    pub fn new(server: &str) -> Result<Self, Error> {
        Self::with_certificates(&[server], &Certificates::default())
    }

    /// A client of the nodes at `servers`, for example `https://fabric.example.org:8694`.
    ///
    /// # Errors
    /// [`Error::AddressMalformed`], [`Error::EndpointCount`], or those of the certificates.
    pub fn with_certificates(
        servers: &[impl AsRef<str>],
        certificates: &Certificates,
    ) -> Result<Self, Error> {
        let endpoints =
            servers.iter().map(|server| endpoint(server.as_ref())).collect::<Result<Arc<[_]>, _>>()?;
        if !(1..=limits::ENDPOINTS_MAX).contains(&endpoints.len()) {
            return Err(Error::EndpointCount);
        }
        Ok(Self::at(certificates.http_client()?, endpoints))
    }

    /// A client of the node that serves this Unix socket.
    ///
    /// # Errors
    /// [`Error::Unprepared`].
    pub fn at_socket(path: &Path) -> Result<Self, Error> {
        let http = certificates::builder().unix_socket(path).build().map_err(|_| Error::Unprepared)?;
        Ok(Self::at(http, [endpoint("http://localhost/")?].into()))
    }

    fn at(http: reqwest::Client, endpoints: Arc<[Url]>) -> Self {
        Self { http, endpoints, preferred: Arc::default(), bearer: None, timeout: limits::REQUEST_TIMEOUT }
    }

    /// Waits this long for the response to one request at one node, instead of [`limits::REQUEST_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sends this bearer token (RFC 6750) with every request that has none of its own.
    #[must_use]
    pub fn with_bearer(self, token: String) -> Self {
        Self { bearer: Some(token.into()), ..self }
    }

    /// Calls `server` first, if it is one of the endpoints.
    #[must_use]
    pub fn starting_with(self, server: &Url) -> Self {
        if let Some(at) = self.endpoints.iter().position(|endpoint| endpoint == server) {
            self.preferred.store(at, Ordering::Relaxed);
        }
        self
    }

    /// The endpoint that responded last, or the first.
    #[must_use]
    pub fn server(&self) -> &Url {
        &self.endpoints[self.preferred.load(Ordering::Relaxed)]
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Error::Refused`], or that error among those of the endpoints that says most about the outcome.
    pub async fn send(&self, request: &Request<'_>) -> Result<Response, Error> {
        self.with_failover(request.may_be_repeated(), |server| self.send_to(server, request)).await.0
    }

    /// Calls the endpoints, the preferred one first, until one responds or the call must not be repeated. Also returns whether
    /// an earlier endpoint may have carried it out.
    async fn with_failover<T, F>(
        &self,
        is_repeatable: bool,
        call: impl Fn(Url) -> F,
    ) -> (Result<T, Error>, bool)
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut tried = 0;
        let mut earlier: Option<Error> = None;
        let mut is_repetition = false;
        loop {
            let at = (first + tried) % self.endpoints.len();
            let outcome = call(self.endpoints[at].clone()).await;
            tried += 1;
            match outcome {
                Err(error)
                    if tried < self.endpoints.len()
                        && error.is_of_node()
                        && (is_repeatable || error.is_before_request()) =>
                {
                    is_repetition |= !error.is_before_request();
                    earlier = Some(error.or_of_another(earlier));
                }
                Err(error) if error.is_of_node() => {
                    return (Err(error.or_of_another(earlier)), is_repetition);
                }
                outcome => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return (outcome, is_repetition);
                }
            }
        }
    }

    /// `GET` of the path with these segments.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn get(&self, path: &[&str]) -> Result<Value, Error> {
        self.get_with(path, &[]).await
    }

    /// `GET` of the path with these segments and a query.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn get_with(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Error> {
        self.body(&Request { query, ..Request::get(path) }).await
    }

    /// `GET` of a list to its end: the rows of all pages.
    ///
    /// # Errors
    /// [`Error::TooManyRows`], [`Error::Foreign`], those of [`send`](Self::send).
    pub async fn list(&self, path: &[&str]) -> Result<Vec<Value>, Error> {
        let mut rows = Vec::new();
        let mut cursor = None;
        loop {
            let query: Vec<_> = cursor.iter().map(|cursor: &String| ("cursor", cursor.as_str())).collect();
            let (page, next) = self.page(path, &query).await?;
            if rows.len().saturating_add(page.len()) > limits::LIST_ROWS_MAX {
                return Err(Error::TooManyRows);
            }
            rows.extend(page);
            if next.is_none() {
                return Ok(rows);
            }
            cursor = next;
        }
    }

    /// `GET` of one page of a list: its rows, and the cursor of the next page if there is one.
    ///
    /// # Errors
    /// [`Error::Foreign`], those of [`send`](Self::send).
    pub async fn page(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<(Vec<Value>, Option<String>), Error> {
        let Response { body, next, .. } = self.send(&Request { query, ..Request::get(path) }).await?;
        let Value::Array(rows) = body else { return Err(Error::Foreign(self.server().clone())) };
        Ok((rows, next))
    }

    /// `POST` to the path with these segments.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.post_with(path, &[], body).await
    }

    /// `POST` to the path with these segments and a query.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn post_with(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, Error> {
        self.body(&Request { query, ..Request::post(path, body) }).await
    }

    /// `POST` with this `Idempotency-Key` to a route that honours it: another node gets the request if one does not respond.
    ///
    /// # Errors
    /// [`Error::Header`] if `key` is no such key; those of [`send`](Self::send).
    pub async fn post_once(&self, key: &str, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.body(&Request { idempotency_key: Some(key), ..Request::post(path, body) }).await
    }

    /// `POST` with a bearer token instead of the client certificate.
    ///
    /// # Errors
    /// [`Error::Header`] if `bearer` is no token; those of [`send`](Self::send).
    pub async fn post_as(&self, bearer: &str, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.body(&Request { bearer: Some(bearer), ..Request::post(path, body) }).await
    }

    /// `PUT` to the path with these segments.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.body(&Request { method: Method::PUT, ..Request::post(path, body) }).await
    }

    /// `DELETE` of the path with these segments.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn delete(&self, path: &[&str]) -> Result<(), Error> {
        self.delete_with(path, &[]).await
    }

    /// `DELETE` of the path with these segments and a query. A node that responds with 404 after another one may have carried it
    /// out is no error.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn delete_with(&self, path: &[&str], query: &[(&str, &str)]) -> Result<(), Error> {
        let request = Request { method: Method::DELETE, query, ..Request::get(path) };
        let send = |server| self.send_to(server, &request);
        match self.with_failover(request.may_be_repeated(), send).await {
            (Err(Error::Refused(refusal)), true) if refusal.status == 404 => Ok(()),
            (outcome, _) => outcome.map(drop),
        }
    }

    /// `GET` of text at the path with these segments, from the preferred node.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Foreign`]; those of the connection.
    pub async fn text(&self, path: &[&str]) -> Result<String, Error> {
        let server = self.server();
        let sent = self.build(server, &Request::get(path))?.send().await;
        let response = sent.map_err(|error| error::of_request(server.clone(), &error))?;
        let foreign = || Error::Foreign(server.clone());
        if response.status() != 200 {
            return self.read(server, response).await.and_then(|_| Err(foreign()));
        }
        String::from_utf8(request::bytes(server, response).await?).map_err(|_| foreign())
    }

    async fn body(&self, request: &Request<'_>) -> Result<Value, Error> {
        self.send(request).await.map(|response| response.body)
    }
}

fn endpoint(server: &str) -> Result<Url, Error> {
    let malformed = || Error::AddressMalformed(server.to_owned());
    let url = Url::parse(server).map_err(|_| malformed())?;
    let bare = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if bare { Ok(url) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests;
