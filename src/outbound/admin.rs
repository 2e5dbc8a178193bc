//! The client of a node of this product, for the command line and the development broker.
//!
//! It talks to an address that the operator gave; nothing it sends or reads is a secret.

use reqwest::{Method, Url, redirect};
use serde_json::Value;

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
    /// No connection, or it broke.
    #[error("{0} cannot be reached")]
    Unreachable(Url),
    /// No answer in time. What was asked for may have happened.
    #[error("{0} did not answer within {secs} s", secs = limits::ADMIN_TIMEOUT.as_secs())]
    TimedOut(Url),
    /// The answer is no JSON, or too large: whoever answers there is no such node.
    #[error("{0} does not answer like a node of the Trust Fabric")]
    Foreign(Url),
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
        let http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(limits::ADMIN_TIMEOUT)
            .build()
            .map_err(|_| Error::Unprepared)?;
        Ok(Self { http, server: url })
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
        self.send(Method::GET, path, None).await
    }

    /// `POST` to the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// `PUT` to the path with these segments.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn put(&self, path: &[&str], body: &Value) -> Result<Value, Error> {
        self.send(Method::PUT, path, Some(body)).await
    }

    async fn send(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Value, Error> {
        let mut url = self.server.clone();
        // Each segment is encoded, so what an operator types cannot become another path.
        url.path_segments_mut().map_err(|()| Error::Foreign(self.server.clone()))?.extend(path);
        let mut request = self.http.request(method, url);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let reason = |error: reqwest::Error| {
            let server = self.server.clone();
            if error.is_timeout() { Error::TimedOut(server) } else { Error::Unreachable(server) }
        };
        let mut answer = request.send().await.map_err(reason)?;
        let status = answer.status();
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(reason)? {
            if text.len() + chunk.len() > limits::ADMIN_ANSWER_BYTES_MAX {
                return Err(Error::Foreign(self.server.clone()));
            }
            text.extend_from_slice(&chunk);
        }
        let answer = json::parse(&text).map_err(|_| Error::Foreign(self.server.clone()))?;
        if status.is_success() {
            return Ok(answer);
        }
        let description = match answer.get("error_description").and_then(Value::as_str) {
            Some(description) => description.to_owned(),
            None => format!("answered with status {status}"),
        };
        Err(Error::Refused { status: status.as_u16(), description, answer })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wiremock::matchers::{body_json, method, path};
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
}
