//! One GET with every limit on it.

use std::time::Duration;

use reqwest::redirect;
use reqwest::{StatusCode, Url};

use crate::limits;

/// Why nothing was fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an absolute URL, or one with a user name, password or fragment.
    #[error("address is not an absolute URL without user name and fragment")]
    AddressMalformed,
    /// Not HTTPS, and not plain HTTP to an allowed loopback host.
    #[error("address is neither https nor allowed loopback http")]
    AddressNotAllowed,
    /// The client could not be built from the machine's certificates.
    #[error("http client could not be prepared")]
    Unprepared,
    /// No connection, or it broke.
    #[error("source could not be reached")]
    Unreachable,
    /// Not complete in time.
    #[error("source did not answer in time")]
    TimedOut,
    /// The source answered with a redirect, which is never followed.
    #[error("source answered with a redirect")]
    Redirected,
    /// Any other answer than 200.
    #[error("source answered with status {0}")]
    Status(u16),
    /// The document is larger than the limit.
    #[error("document is too large")]
    TooLarge,
}

/// What one client may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Total time of one fetch, connecting and reading included.
    pub timeout: Duration,
    /// Largest document.
    pub bytes_max: usize,
    /// Whether plain HTTP to `localhost`, `127.0.0.1` and `[::1]` is allowed.
    pub allow_loopback_http: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: limits::FETCH_TIMEOUT,
            bytes_max: limits::FETCH_BYTES_MAX,
            allow_loopback_http: false,
        }
    }
}

/// The HTTP client.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    limits: Limits,
}

impl Client {
    /// A client with its own connection pool.
    ///
    /// # Errors
    /// [`Error::Unprepared`].
    pub fn new(limits: Limits) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .timeout(limits.timeout)
            .connect_timeout(limits.timeout)
            .build()
            .map_err(|_| Error::Unprepared)?;
        Ok(Self { http, limits })
    }

    /// The document at `address`.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn fetch(&self, address: &str) -> Result<Vec<u8>, Error> {
        let url = allowed(address, self.limits.allow_loopback_http)?;
        let mut answer = self.http.get(url).send().await.map_err(|error| reason(&error))?;
        if answer.status().is_redirection() {
            return Err(Error::Redirected);
        }
        if answer.status() != StatusCode::OK {
            return Err(Error::Status(answer.status().as_u16()));
        }
        let mut document = Vec::new();
        // The stated length is not believed: what counts is what arrives.
        while let Some(chunk) = answer.chunk().await.map_err(|error| reason(&error))? {
            if document.len() + chunk.len() > self.limits.bytes_max {
                return Err(Error::TooLarge);
            }
            document.extend_from_slice(&chunk);
        }
        Ok(document)
    }
}

fn reason(error: &reqwest::Error) -> Error {
    if error.is_timeout() { Error::TimedOut } else { Error::Unreachable }
}

/// The address as a URL that may be fetched. Hosts are compared after parsing, never as text.
fn allowed(address: &str, allow_loopback_http: bool) -> Result<Url, Error> {
    let url = Url::parse(address).map_err(|_| Error::AddressMalformed)?;
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(Error::AddressMalformed);
    }
    let loopback = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match url.scheme() {
        "https" if url.has_host() => Ok(url),
        "http" if allow_loopback_http && loopback => Ok(url),
        _ => Err(Error::AddressNotAllowed),
    }
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    fn client(limits: Limits) -> Client {
        Client::new(Limits { allow_loopback_http: true, ..limits }).expect("client")
    }

    async fn answering(answer: ResponseTemplate) -> MockServer {
        let server = MockServer::start().await;
        Mock::given(method("GET")).respond_with(answer).mount(&server).await;
        server
    }

    #[test]
    fn allows_https_and_only_exact_loopback_hosts_over_http() {
        assert!(allowed("https://issuer.example/keys", false).is_ok());
        for loopback in ["http://localhost:1/", "http://127.0.0.1/", "http://[::1]:8/"] {
            assert!(allowed(loopback, true).is_ok(), "{loopback}");
            assert_eq!(allowed(loopback, false), Err(Error::AddressNotAllowed), "{loopback}");
        }
        for foreign in [
            "http://localhost.evil.example/",
            "http://127.0.0.1.nip.io/",
            "http://localhost./",
            "http://issuer.example/",
            "http://0.0.0.0/",
            "http://[::ffff:127.0.0.1]/",
            "ftp://localhost/",
            "file:///etc/passwd",
        ] {
            assert_eq!(allowed(foreign, true), Err(Error::AddressNotAllowed), "{foreign}");
        }
        for malformed in [
            "keys",
            "https://a@b.example/",
            "http://127.0.0.1@evil.example/",
            "https://b.example/#x",
            "https://",
        ] {
            assert_eq!(allowed(malformed, true), Err(Error::AddressMalformed), "{malformed}");
        }
    }

    #[tokio::test]
    async fn never_follows_a_redirect() {
        let target = answering(ResponseTemplate::new(200).set_body_string("{}")).await;
        for status in [301, 302, 303, 307, 308] {
            let answer = ResponseTemplate::new(status).insert_header("location", target.uri().as_str());
            let source = answering(answer).await;
            let outcome = client(Limits::default()).fetch(&source.uri()).await;
            assert_eq!(outcome, Err(Error::Redirected), "{status}");
        }
        assert!(target.received_requests().await.expect("recorded").is_empty());
    }

    #[tokio::test]
    async fn stops_reading_a_document_beyond_the_limit() {
        let source = answering(ResponseTemplate::new(200).set_body_bytes(vec![b' '; 1025])).await;
        let limits = Limits { bytes_max: 1024, ..Limits::default() };
        assert_eq!(client(limits).fetch(&source.uri()).await, Err(Error::TooLarge));
        let limits = Limits { bytes_max: 1025, ..Limits::default() };
        assert_eq!(client(limits).fetch(&source.uri()).await.map(|document| document.len()), Ok(1025));
    }

    #[tokio::test]
    async fn gives_up_on_a_slow_source() {
        let slow = ResponseTemplate::new(200).set_delay(Duration::from_secs(30));
        let source = answering(slow).await;
        let limits = Limits { timeout: Duration::from_millis(50), ..Limits::default() };
        assert_eq!(client(limits).fetch(&source.uri()).await, Err(Error::TimedOut));
    }

    #[tokio::test]
    async fn takes_nothing_but_200() {
        for status in [201, 204, 206, 304, 404, 500] {
            let source = answering(ResponseTemplate::new(status)).await;
            let outcome = client(Limits::default()).fetch(&source.uri()).await;
            let expected = if status == 304 { Error::Redirected } else { Error::Status(status) };
            assert_eq!(outcome, Err(expected), "{status}");
        }
    }

    #[tokio::test]
    async fn says_that_a_source_hung_up_or_is_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let client = client(Limits::default());
        let hang_up = async { drop((listener.accept().await.expect("accepted"), listener)) };
        let (outcome, ()) = tokio::join!(client.fetch(&address), hang_up);
        assert_eq!(outcome, Err(Error::Unreachable));
    }

    #[tokio::test]
    async fn fetches_a_document() {
        let source = MockServer::start().await;
        Mock::given(path("/keys"))
            .respond_with(ResponseTemplate::new(200).set_body_string("{}"))
            .mount(&source)
            .await;
        let address = format!("{}/keys", source.uri());
        assert_eq!(client(Limits::default()).fetch(&address).await, Ok(b"{}".to_vec()));
    }
}
