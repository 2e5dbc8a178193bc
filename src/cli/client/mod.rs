//! The client of a node of this product, for the command line and the development broker.
//!
//! It talks to an address that the operator gave, and shows the certificate that the operator gave.

pub mod sse;

mod socket;

use std::fs;
use std::io::{self, Read as _};
use std::iter;
use std::path::{Path, PathBuf};

use reqwest::header::{self, HeaderValue};
use reqwest::{Certificate, Identity, Method, RequestBuilder, Response, StatusCode, Url, redirect};
use serde_json::Value;

use super::client::sse::{Event, Parser};
use crate::{json, limits};

/// Why there is no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not an `http` or `https` URL of a host alone.
    #[error("{0}: a server is http://host:port or https://host:port")]
    AddressMalformed(String),
    /// The client could not be built from the machine's certificates.
    #[error("http client could not be prepared")]
    Unprepared,
    /// A file of certificates or a private key.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file without what it should hold.
    #[error("{}: holds no {holds} in PEM", path.display())]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        holds: &'static str,
    },
    /// The certificate or the key that belongs to it was not named.
    #[error("{given} was given without {missing}: a certificate and its private key go together")]
    HalfIdentity {
        /// The one that was.
        given: &'static str,
        /// The one that was not.
        missing: &'static str,
    },
    /// The files were read, and cannot be used together.
    #[error("certificates cannot be used: {0}")]
    Certificates(String),
    /// One side did not accept the other's certificate, or it is no TLS that answers.
    #[error("{server}: no TLS connection: {reason}")]
    Handshake {
        /// Where.
        server: Url,
        /// The reason that TLS gives.
        reason: String,
    },
    /// No connection, or it broke.
    #[error("{0} cannot be reached")]
    Unreachable(Url),
    /// No answer in time. What was asked for may have happened.
    #[error("{0} did not answer within {secs} s", secs = limits::ADMIN_TIMEOUT.as_secs())]
    TimedOut(Url),
    /// The answer is no JSON, or too large: whoever answers there is no such node.
    #[error("{0} does not answer like a node of the Trust Fabric")]
    Foreign(Url),
    /// A list is longer than [`limits::ADMIN_ROWS_MAX`].
    #[error("there are more than {} rows", limits::ADMIN_ROWS_MAX)]
    TooManyRows,
    /// What should be a bearer token cannot be sent as one.
    #[error("this is no token")]
    NoToken,
    /// The live feed fell silent.
    #[error("{0} has said nothing for {secs} s", secs = limits::EVENTS_SILENCE_MAX.as_secs())]
    Silent(Url),
    /// What should be the id of an event cannot be sent as one.
    #[error("this is no id of an event")]
    NoEventId,
    /// The node said no.
    #[error("{description}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// `error_description`, else the status in words.
        description: String,
        /// The whole answer.
        answer: Value,
    },
}

/// Whom a client believes, and how it shows who it is. Files in PEM.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The only roots that are believed; without it those of the machine are.
    pub ca: Option<PathBuf>,
    /// The client's certificate, and those between it and the node's client CA.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub private_key: Option<PathBuf>,
}

/// A node of this product, seen from outside.
#[derive(Clone, Debug)]
pub struct NodeClient {
    http: reqwest::Client,
    server: Url,
}

impl NodeClient {
    /// A client of the node at `server`, for example `http://127.0.0.1:8693`.
    ///
    /// # Errors
    /// [`Error::AddressMalformed`] or [`Error::Unprepared`].
    pub fn new(server: &str) -> Result<Self, Error> {
        Self::with_certificates(server, &Certificates::default())
    }

    /// A client of the node at `server`, for example `https://fabric.example.org:8694`.
    ///
    /// # Errors
    /// [`Error::AddressMalformed`], or what is wrong with the certificates.
    pub fn with_certificates(server: &str, certificates: &Certificates) -> Result<Self, Error> {
        let malformed = || Error::AddressMalformed(server.to_owned());
        let url = Url::parse(server).map_err(|_| malformed())?;
        let bare = matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        if !bare {
            return Err(malformed());
        }
        let mut http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(limits::ADMIN_TIMEOUT);
        let roots = certificates.ca.as_deref().map(roots).transpose()?;
        let identity = identity(certificates)?;
        let has_files = roots.is_some() || identity.is_some();
        if let Some(roots) = roots {
            http = http.tls_certs_only(roots);
        }
        if let Some(identity) = identity {
            http = http.identity(identity);
        }
        let unprepared = |error: reqwest::Error| {
            if has_files { Error::Certificates(innermost(&error).to_string()) } else { Error::Unprepared }
        };
        Ok(Self { http: http.build().map_err(unprepared)?, server: url })
    }

    /// Where the node is.
    #[must_use]
    pub fn server(&self) -> &Url {
        &self.server
    }

    /// `GET` of the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn get(&self, path: &[&str]) -> Result<Value, Error> {
        self.send(Asked { path, ..Asked::default() }).await
    }

    /// `GET` of the path with these segments, with a query.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn get_with(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Error> {
        self.send(Asked { path, query, ..Asked::default() }).await
    }

    /// `GET` of a list, page by page, to its end: the rows of all.
    ///
    /// # Errors
    /// As [`Error`] says; [`Error::TooManyRows`].
    pub async fn list(&self, path: &[&str]) -> Result<Vec<Value>, Error> {
        let foreign = || Error::Foreign(self.server.clone());
        let mut rows = Vec::new();
        let mut cursor = None;
        loop {
            let query: Vec<_> = cursor.iter().map(|cursor: &String| ("cursor", cursor.as_str())).collect();
            let page = self.answer(Asked { path, query: &query, ..Asked::default() }).await?;
            let Value::Array(page_rows) = page.body else { return Err(foreign()) };
            if rows.len().saturating_add(page_rows.len()) > limits::ADMIN_ROWS_MAX {
                return Err(Error::TooManyRows);
            }
            rows.extend(page_rows);
            match page.next {
                None => return Ok(rows),
                // A page that leads back to itself would never end.
                next if next == cursor => return Err(foreign()),
                next => cursor = next,
            }
        }
    }

    /// `GET` of one page of a list: its rows, and the cursor of the next page if there is one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn page(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<(Vec<Value>, Option<String>), Error> {
        let Answer { body, next } = self.answer(Asked { path, query, ..Asked::default() }).await?;
        let Value::Array(rows) = body else { return Err(Error::Foreign(self.server.clone())) };
        Ok((rows, next))
    }

    /// `POST` to the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.post_with(path, &[], body).await
    }

    /// `POST` to the path with these segments, with a query.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn post_with(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, Error> {
        self.send(Asked { method: Method::POST, path, query, body: Some(body), ..Asked::default() }).await
    }

    /// `POST` to the path with these segments that is answered with a page: the page, and the cursor of the
    /// next one if there is one.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn post_page(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<(Value, Option<String>), Error> {
        let asked = Asked { method: Method::POST, path, query, body: Some(body), ..Asked::default() };
        self.answer(asked).await.map(|Answer { body, next }| (body, next))
    }

    /// `POST` to the path with these segments, in the name of whom a bearer token says.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn post_as(&self, bearer: &str, path: &[&str], body: &Value) -> Result<Value, Error> {
        let bearer = Some(bearer);
        self.send(Asked { method: Method::POST, path, body: Some(body), bearer, ..Asked::default() }).await
    }

    /// `PUT` to the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.send(Asked { method: Method::PUT, path, body: Some(body), ..Asked::default() }).await
    }

    /// `DELETE` of the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn delete(&self, path: &[&str]) -> Result<(), Error> {
        self.delete_with(path, &[]).await
    }

    /// `DELETE` of the path with these segments, with a query.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn delete_with(&self, path: &[&str], query: &[(&str, &str)]) -> Result<(), Error> {
        self.send(Asked { method: Method::DELETE, path, query, ..Asked::default() }).await.map(drop)
    }

    /// Begins to read the live feed, from behind `after` on if it is given.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn events(&self, query: &[(&str, &str)], after: Option<&str>) -> Result<Events, Error> {
        let asked = Asked { path: &["v1", "events"], query, ..Asked::default() };
        let mut request = self.request(&asked)?.timeout(limits::EVENTS_REQUEST_MAX);
        if let Some(after) = after {
            let after = HeaderValue::try_from(after).map_err(|_| Error::NoEventId)?;
            request = request.header("last-event-id", after);
        }
        let sent = tokio::time::timeout(limits::ADMIN_TIMEOUT, request.send()).await;
        let answer = sent.map_err(|_| Error::TimedOut(self.server.clone()))?;
        let answer = answer.map_err(|error| self.reason(&error))?;
        if answer.status() != StatusCode::OK {
            self.read(answer).await?;
            return Err(Error::Foreign(self.server.clone()));
        }
        let media = answer.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
        if !media.is_some_and(|media| media.starts_with("text/event-stream")) {
            return Err(Error::Foreign(self.server.clone()));
        }
        Ok(Events { client: self.clone(), answer, parser: Parser::default() })
    }

    async fn send(&self, asked: Asked<'_>) -> Result<Value, Error> {
        self.answer(asked).await.map(|answer| answer.body)
    }

    async fn answer(&self, asked: Asked<'_>) -> Result<Answer, Error> {
        let answer = self.request(&asked)?.send().await.map_err(|error| self.reason(&error))?;
        self.read(answer).await
    }

    fn request(&self, asked: &Asked<'_>) -> Result<RequestBuilder, Error> {
        let mut url = self.server.clone();
        // Each segment is encoded, so what an operator types cannot become another path.
        url.path_segments_mut().map_err(|()| Error::Foreign(self.server.clone()))?.extend(asked.path);
        if !asked.query.is_empty() {
            url.query_pairs_mut().extend_pairs(asked.query);
        }
        let mut request = self.http.request(asked.method.clone(), url);
        if let Some(bearer) = asked.bearer {
            let value = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|_| Error::NoToken)?;
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some(body) = asked.body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        Ok(request)
    }

    fn reason(&self, error: &reqwest::Error) -> Error {
        let server = self.server.clone();
        if error.is_timeout() {
            Error::TimedOut(server)
        } else if let Some(reason) = tls_reason(error) {
            Error::Handshake { server, reason }
        } else {
            Error::Unreachable(server)
        }
    }

    async fn read(&self, answer: Response) -> Result<Answer, Error> {
        let status = answer.status();
        let next = answer.headers().get(header::LINK).and_then(next_cursor);
        let text = self.bytes(answer).await?;
        if status == StatusCode::NO_CONTENT && text.is_empty() {
            return Ok(Answer { body: Value::Null, next: None });
        }
        let answer = json::parse(&text).map_err(|_| Error::Foreign(self.server.clone()))?;
        if status.is_success() {
            return Ok(Answer { body: answer, next });
        }
        let description = match answer.get("error_description").and_then(Value::as_str) {
            Some(description) => description.to_owned(),
            None => format!("answered with status {status}"),
        };
        Err(Error::Refused { status: status.as_u16(), description, answer })
    }
}

/// The live feed of a node, over one request.
#[derive(Debug)]
pub struct Events {
    client: NodeClient,
    answer: Response,
    parser: Parser,
}

impl Events {
    /// The next event; `None` when the node has ended it.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the connection broke, [`Error::Silent`], [`Error::Foreign`].
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        let server = || self.client.server.clone();
        loop {
            if let Some(event) = self.parser.pop() {
                return Ok(Some(event));
            }
            let chunk = tokio::time::timeout(limits::EVENTS_SILENCE_MAX, self.answer.chunk()).await;
            let chunk = chunk.map_err(|_| Error::Silent(server()))?;
            let Some(chunk) = chunk.map_err(|error| self.client.reason(&error))? else { return Ok(None) };
            self.parser.push(&chunk).map_err(|_| Error::Foreign(server()))?;
        }
    }

    /// The last id that was told, to go on from there.
    #[must_use]
    pub fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }
}

/// What a node is asked.
#[derive(Default)]
struct Asked<'a> {
    method: Method,
    path: &'a [&'a str],
    query: &'a [(&'a str, &'a str)],
    body: Option<&'a Value>,
    bearer: Option<&'a str>,
}

/// What it answered.
struct Answer {
    body: Value,
    /// The cursor of the next page.
    next: Option<String>,
}

/// The cursor in `Link: <…?cursor=…>; rel="next"` (RFC 8288). Nothing else of the address counts, so
/// that a list is never continued elsewhere.
fn next_cursor(link: &HeaderValue) -> Option<String> {
    let (target, parameters) = link.to_str().ok()?.strip_prefix('<')?.split_once('>')?;
    let query = target.split_once('?').filter(|_| parameters.contains("rel=\"next\""))?.1;
    let mut members = form_urlencoded::parse(query.as_bytes());
    members.find(|(name, _)| name == "cursor").map(|(_, value)| value.into_owned())
}

fn roots(path: &Path) -> Result<Vec<Certificate>, Error> {
    match Certificate::from_pem_bundle(&read(path)?) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err(Error::NotPem { path: path.to_owned(), holds: "certificate" }),
    }
}

fn identity(certificates: &Certificates) -> Result<Option<Identity>, Error> {
    let (certificate, private_key) = match (&certificates.certificate, &certificates.private_key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(private_key)) => (certificate, private_key),
        (Some(_), None) => {
            return Err(Error::HalfIdentity { given: "a certificate", missing: "its private key" });
        }
        (None, Some(_)) => {
            return Err(Error::HalfIdentity { given: "a private key", missing: "its certificate" });
        }
    };
    let mut pem = read(certificate)?;
    if !Certificate::from_pem_bundle(&pem).is_ok_and(|found| !found.is_empty()) {
        return Err(Error::NotPem { path: certificate.clone(), holds: "certificate" });
    }
    // A file may end without a line break.
    pem.push(b'\n');
    pem.extend(read(private_key)?);
    // The certificate is good, so what is missing is the key.
    match Identity::from_pem(&pem) {
        Ok(identity) => Ok(Some(identity)),
        Err(_) => Err(Error::NotPem { path: private_key.clone(), holds: "private key" }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limits::PEM_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(bytes)
}

/// Why TLS ended the connection, if it did: rustls says so as invalid data of the stream.
fn tls_reason(error: &reqwest::Error) -> Option<String> {
    let is_invalid = |error: &Cause<'_>| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
    };
    let invalid = iter::successors(Some(error as Cause<'_>), |error| cause(*error)).find(is_invalid)?;
    Some(innermost(invalid).to_string())
}

type Cause<'e> = &'e (dyn std::error::Error + 'static);

fn innermost(error: Cause<'_>) -> Cause<'_> {
    iter::successors(Some(error), |error| cause(*error)).last().unwrap_or(error)
}

/// What `error` is about. `source` of an [`io::Error`] skips the error that it wraps.
fn cause(error: Cause<'_>) -> Option<Cause<'_>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use serde_json::json;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
    use wiremock::matchers::{
        body_json, header as header_is, method, path, query_param, query_param_is_missing,
    };
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    #[test]
    fn refuses_a_server_that_is_more_or_less_than_a_host() {
        for server in
            ["", "127.0.0.1:8693", "ftp://h", "http://h/path", "http://h?q", "http://u@h", "http://h#f"]
        {
            assert!(matches!(NodeClient::new(server), Err(Error::AddressMalformed(_))), "{server}");
        }
        assert!(NodeClient::new("http://127.0.0.1:8693/").is_ok());
    }

    #[tokio::test]
    async fn sends_what_was_given_and_reads_the_answer() {
        let server = MockServer::start().await;
        Mock::given(method("PUT"))
            .and(path("/v1/sys/policy"))
            .and(body_json(json!({"a": 1})))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!({"changed": true})))
            .mount(&server)
            .await;
        let client = NodeClient::new(&server.uri()).expect("client");
        let answer = client.put(&["v1", "sys", "policy"], &json!({"a": 1})).await.expect("answer");
        assert_eq!(answer, json!({"changed": true}));
    }

    #[tokio::test]
    async fn a_segment_never_becomes_another_path() {
        let server = MockServer::start().await;
        Mock::given(path("/v1/sys/keys/a%2Fb%3Fc/taint"))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!({})))
            .mount(&server)
            .await;
        let client = NodeClient::new(&server.uri()).expect("client");
        assert!(client.post(&["v1", "sys", "keys", "a/b?c", "taint"], &json!({})).await.is_ok());
    }

    #[tokio::test]
    async fn says_what_the_node_said() {
        let server = MockServer::start().await;
        let body =
            json!({"error": "not_found", "error_description": "there is no such key", "request_id": "1"});
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(404).set_body_json(body))
            .mount(&server)
            .await;
        let refused = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await.expect_err("404");
        assert_eq!(refused.to_string(), "there is no such key");
    }

    #[tokio::test]
    async fn another_program_on_the_port_is_told_apart() {
        let server = MockServer::start().await;
        let page = ResponseTemplate::new(200).set_body_string("<html>");
        Mock::given(method("GET")).respond_with(page).mount(&server).await;
        let outcome = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await;
        assert!(matches!(outcome, Err(Error::Foreign(_))), "{outcome:?}");
    }

    /// A list in pages of `rows` rows each, the last of which says that there are no more.
    async fn pages(pages: usize, rows: usize) -> MockServer {
        let server = MockServer::start().await;
        for page in 0..pages {
            let mut answer = ResponseTemplate::new(200).set_body_json(vec![page; rows]);
            if page + 1 < pages {
                let link = format!("<http://elsewhere.example/x?limit=1&cursor=p{}>; rel=\"next\"", page + 1);
                answer = answer.insert_header("link", link);
            }
            let asked = Mock::given(method("GET")).and(path("/v1/list"));
            let asked = if page == 0 {
                asked.and(query_param_is_missing("cursor"))
            } else {
                asked.and(query_param("cursor", format!("p{page}")))
            };
            asked.respond_with(answer).mount(&server).await;
        }
        server
    }

    #[tokio::test]
    async fn a_list_is_read_page_by_page_to_its_end_and_to_the_limit() {
        let list = async |server: &MockServer| {
            NodeClient::new(&server.uri()).expect("client").list(&["v1", "list"]).await
        };
        assert_eq!(list(&pages(3, 2).await).await.expect("rows"), [0, 0, 1, 1, 2, 2].map(Value::from));
        assert_eq!(list(&pages(1, 0).await).await.expect("rows"), [] as [Value; 0]);
        assert_eq!(
            list(&pages(2, limits::ADMIN_ROWS_MAX / 2).await).await.expect("rows").len(),
            limits::ADMIN_ROWS_MAX
        );
        let more = list(&pages(3, limits::ADMIN_ROWS_MAX / 2).await).await;
        assert!(matches!(more, Err(Error::TooManyRows)));
        // No page at all, and one that leads to itself.
        let server = MockServer::start().await;
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!({})))
            .mount(&server)
            .await;
        assert!(matches!(list(&server).await, Err(Error::Foreign(_))));
        let server = MockServer::start().await;
        let circle = ResponseTemplate::new(200).set_body_json(json!([1]));
        Mock::given(method("GET"))
            .respond_with(circle.insert_header("link", "</x?cursor=a>; rel=\"next\""))
            .mount(&server)
            .await;
        assert!(matches!(list(&server).await, Err(Error::Foreign(_))));
    }

    #[tokio::test]
    async fn a_bearer_a_query_and_an_answer_without_content() {
        let server = MockServer::start().await;
        Mock::given(method("POST"))
            .and(header_is("authorization", "Bearer a.b.c"))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!(1)))
            .mount(&server)
            .await;
        Mock::given(method("POST"))
            .and(query_param("point", "a&b"))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!(2)))
            .mount(&server)
            .await;
        Mock::given(method("DELETE")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
        let client = NodeClient::new(&server.uri()).expect("client");
        assert_eq!(client.post_as("a.b.c", &["x"], &json!({})).await.expect("answer"), 1);
        assert_eq!(client.post_with(&["x"], &[("point", "a&b")], &json!({})).await.expect("answer"), 2);
        client.delete(&["x"]).await.expect("nothing");
        let bad = client.post_as("a\nb", &["x"], &json!({})).await;
        assert!(matches!(bad, Err(Error::NoToken)));
    }

    /// A CA, and beside it `<name>.pem` and `<name>-key.pem` of a leaf that it signed.
    struct Signed {
        directory: TempDir,
        ca: CertifiedIssuer<'static, KeyPair>,
        leaf: rcgen::Certificate,
        key: KeyPair,
    }

    impl Signed {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("CA");
            let key = KeyPair::generate().expect("key");
            let names = CertificateParams::new(["127.0.0.1".to_owned()]).expect("names");
            let leaf = names.signed_by(&key, &ca).expect("leaf");
            let directory = tempfile::tempdir().expect("directory");
            for (name, text) in
                [("ca.pem", ca.pem()), ("leaf.pem", leaf.pem()), ("leaf-key.pem", key.serialize_pem())]
            {
                fs::write(directory.path().join(name), text).expect("written");
            }
            Self { directory, ca, leaf, key }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn certificates(&self) -> Certificates {
            Certificates {
                ca: Some(self.file("ca.pem")),
                certificate: Some(self.file("leaf.pem")),
                private_key: Some(self.file("leaf-key.pem")),
            }
        }
    }

    /// Asks a server of `node`, which wants a certificate of `clients`, once.
    async fn asked(node: &Signed, clients: &Signed, certificates: &Certificates) -> Result<Value, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(clients.ca.der().clone()).expect("root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = PrivateKeyDer::Pkcs8(node.key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("verifier"))
            .with_single_cert(vec![node.leaf.der().clone()], key)
            .expect("certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let server = format!("https://{}", listener.local_addr().expect("address"));
        let client = NodeClient::with_certificates(&server, certificates)?;
        let answering = async {
            let (stream, _) = listener.accept().await.expect("accepted");
            let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer).await.expect("answered");
        };
        tokio::join!(client.get(&["x"]), answering).0
    }

    #[tokio::test]
    async fn shows_its_certificate_and_believes_only_the_ca_it_was_given() {
        let (node, clients) = (Signed::new(), Signed::new());
        let good = Certificates { ca: Some(node.file("ca.pem")), ..clients.certificates() };
        assert_eq!(asked(&node, &clients, &good).await.expect("an answer"), json!({}));
        let nameless = Certificates { ca: Some(node.file("ca.pem")), ..Certificates::default() };
        let stranger = Certificates { ca: Some(node.file("ca.pem")), ..node.certificates() };
        for (certificates, said) in [
            (clients.certificates(), "invalid peer certificate"),
            (Certificates { ca: None, ..good }, "invalid peer certificate"),
            (nameless, "CertificateRequired"),
            (stranger, "alert"),
        ] {
            let refused = asked(&node, &clients, &certificates).await.expect_err("refused");
            let Error::Handshake { reason, .. } = &refused else { panic!("{certificates:?}: {refused}") };
            assert!(reason.contains(said), "{certificates:?}: {refused}");
        }
    }

    #[test]
    fn says_which_file_does_not_hold_what_it_should() {
        let (one, other) = (Signed::new(), Signed::new());
        let empty = one.directory.path().join("empty.pem");
        fs::write(&empty, "nothing").expect("written");
        let refused = |certificates: &Certificates| {
            NodeClient::with_certificates("https://h", certificates).expect_err("refused").to_string()
        };
        let good = one.certificates();
        for (certificates, said) in [
            (Certificates { ca: Some(one.file("gone.pem")), ..good.clone() }, "gone.pem: No such file"),
            (
                Certificates { ca: Some(empty.clone()), ..good.clone() },
                "empty.pem: holds no certificate in PEM",
            ),
            (
                Certificates { ca: Some(one.file("leaf-key.pem")), ..good.clone() },
                "leaf-key.pem: holds no certificate",
            ),
            (
                Certificates { certificate: Some(empty.clone()), ..good.clone() },
                "empty.pem: holds no certificate",
            ),
            (
                Certificates { private_key: Some(empty), ..good.clone() },
                "empty.pem: holds no private key in PEM",
            ),
            (
                Certificates { private_key: Some(one.file("leaf.pem")), ..good.clone() },
                "leaf.pem: holds no private key",
            ),
            (Certificates { private_key: Some(one.file("")), ..good.clone() }, "Is a directory"),
            (
                Certificates { private_key: None, ..good.clone() },
                "a certificate was given without its private key",
            ),
            (
                Certificates { certificate: None, ..good.clone() },
                "a private key was given without its certificate",
            ),
            (
                Certificates { private_key: Some(other.file("leaf-key.pem")), ..good.clone() },
                "certificates cannot be used",
            ),
        ] {
            let line = refused(&certificates);
            assert!(line.contains(said) && !line.contains("BEGIN"), "{line}");
        }
        assert!(NodeClient::with_certificates("https://h", &good).is_ok());
    }

    #[tokio::test]
    async fn an_answer_is_read_to_the_limit_and_no_further() {
        let padded = |bytes: usize| {
            let answer = ResponseTemplate::new(200).set_body_bytes([b"{}", &*vec![b' '; bytes - 2]].concat());
            Mock::given(method("GET")).respond_with(answer)
        };
        for (bytes, is_read) in
            [(limits::ADMIN_ANSWER_BYTES_MAX, true), (limits::ADMIN_ANSWER_BYTES_MAX + 1, false)]
        {
            let server = MockServer::start().await;
            padded(bytes).mount(&server).await;
            let outcome = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await;
            assert_eq!(outcome.is_ok(), is_read, "{bytes}");
            assert!(is_read || matches!(outcome, Err(Error::Foreign(_))), "{bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_answer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let client = NodeClient::new(&address).expect("client");
        let outcome = client.get(&["x"]).await;
        assert!(matches!(outcome, Err(Error::TimedOut(_))), "{outcome:?}");
        assert!(outcome.is_err_and(|error| error.to_string().ends_with("within 20 s")));
    }

    /// A node that answers one request with this text, and then neither says anything nor ends it.
    async fn that_says(text: &'static str) -> (Events, tokio::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let client = NodeClient::new(&address).expect("client");
        let answering = async {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a request"));
            }
            let head = String::from_utf8(head).expect("a head");
            assert!(head.starts_with("GET /v1/events?types=tool%2Ckey HTTP/1.1"), "{head}");
            assert!(head.contains("last-event-id: a-1-0"), "{head}");
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
            stream.write_all([answer, text].concat().as_bytes()).await.expect("answered");
            stream
        };
        let asked = client.events(&[("types", "tool,key")], Some("a-1-0"));
        let (events, stream) = tokio::join!(asked, answering);
        (events.expect("a feed"), stream)
    }

    #[tokio::test]
    async fn a_feed_that_falls_silent_is_given_up() {
        let (mut events, node) = that_says("id: a-2-0\nevent: tool\ndata: {}\n\n: ping\n\n").await;
        let event = events.next().await.expect("no error").expect("an event");
        assert_eq!((event.kind.as_str(), event.data.as_str()), ("tool", "{}"));
        assert_eq!(events.last_id(), Some("a-2-0"));
        tokio::time::pause();
        let now = || tokio::time::sleep(Duration::ZERO).deadline();
        let begun = now();
        let silent = events.next().await.expect_err("silence");
        assert!(silent.to_string().ends_with("has said nothing for 45 s"), "{silent}");
        assert!(now() - begun >= limits::EVENTS_SILENCE_MAX);
        drop(node);
    }

    #[tokio::test]
    async fn a_feed_ends_with_what_its_node_says_and_a_refusal_says_why() {
        let (mut events, node) = that_says("id: a-2-0\nevent: tool\ndata: {}\n\ndata: half").await;
        drop(node);
        assert!(events.next().await.expect("no error").is_some());
        assert_eq!(events.next().await.expect("no error"), None);
        let (mut long, _node) =
            that_says(Box::leak("x".repeat(limits::EVENT_BYTES_MAX + 1).into_boxed_str())).await;
        assert!(matches!(long.next().await, Err(Error::Foreign(_))));
        let server = MockServer::start().await;
        let refusal = json!({"error": "access_denied", "error_description": "too many read"});
        for (answer, said) in [
            (ResponseTemplate::new(429).set_body_json(refusal), "too many read"),
            (ResponseTemplate::new(200).set_body_json(json!({})), "does not answer like a node"),
            (ResponseTemplate::new(204), "does not answer like a node"),
        ] {
            server.reset().await;
            Mock::given(method("GET")).and(path("/v1/events")).respond_with(answer).mount(&server).await;
            let client = NodeClient::new(&server.uri()).expect("client");
            let refused = client.events(&[], None).await.expect_err("refused").to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let client = NodeClient::new(&server.uri()).expect("client");
        assert!(matches!(client.events(&[], Some("a\nb")).await, Err(Error::NoEventId)));
    }

    #[test]
    fn a_file_is_read_to_the_limit_and_no_further() {
        let signed = Signed::new();
        let (path, ca) = (signed.file("ca.pem"), fs::read_to_string(signed.file("ca.pem")).expect("read"));
        let most = usize::try_from(limits::PEM_BYTES_MAX).expect("small");
        for (bytes, is_read) in [(most, true), (most + 1, false)] {
            // The certificate ends where the file does.
            fs::write(&path, format!("{}{}", "\n".repeat(bytes - ca.trim_end().len()), ca.trim_end()))
                .expect("written");
            assert_eq!(roots(&path).is_ok(), is_read, "{bytes}");
        }
    }
}
