//! One request to one node, and its response.

use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use serde_json::Value;

use crate::error::{self, Error, Refusal};
use crate::{NodeClient, limits};

/// A request to the cluster.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub method: Method,
    /// The segments of the path, not encoded.
    pub path: &'a [&'a str],
    /// The query, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// The JSON body.
    pub body: Option<&'a Value>,
    /// A bearer token (RFC 6750).
    pub bearer: Option<&'a str>,
    /// `Idempotency-Key`: the request may be repeated.
    pub idempotency_key: Option<&'a str>,
    /// Whether a second execution changes nothing although the method promises no such thing: the request may be repeated.
    pub is_repeatable: bool,
    /// `If-Match` (RFC 9110 §13.1.1): an entity tag, in quotes.
    pub if_match: Option<&'a str>,
}

/// A successful response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// The JSON body; null if there is none.
    pub body: Value,
    /// `ETag`, with its quotes.
    pub etag: Option<String>,
    /// `Svc-Index`: the log index that the node had applied.
    pub index: Option<u64>,
    /// The cursor of the next page (`Link`, RFC 8288).
    pub next: Option<String>,
}

impl<'a> Request<'a> {
    /// `GET` of the path with these segments.
    #[must_use]
    pub fn get(path: &'a [&'a str]) -> Self {
        Self {
            method: Method::GET,
            path,
            query: &[],
            body: None,
            bearer: None,
            idempotency_key: None,
            is_repeatable: false,
            if_match: None,
        }
    }

    /// `POST` to the path with these segments.
    #[must_use]
    pub fn post(path: &'a [&'a str], body: &'a Value) -> Self {
        Self { method: Method::POST, body: Some(body), ..Self::get(path) }
    }

    /// Whether it may be sent again after it may have been carried out (RFC 9110 §9.2.2).
    pub(crate) fn may_be_repeated(&self) -> bool {
        self.is_repeatable || self.method.is_idempotent() || self.idempotency_key.is_some()
    }
}

impl NodeClient {
    pub(crate) async fn send_to(&self, server: Url, request: &Request<'_>) -> Result<Response, Error> {
        let sent = self.build(&server, request)?.send().await;
        let sent = sent.map_err(|error| error::of_request(server.clone(), &error))?;
        let response = self.read(&server, sent).await?;
        // A page that leads to itself would never end.
        let cursor = request.query.iter().find(|(name, _)| *name == "cursor").map(|(_, cursor)| *cursor);
        if cursor.is_some() && cursor == response.next.as_deref() {
            return Err(Error::Foreign(server));
        }
        Ok(response)
    }

    pub(crate) fn build(&self, server: &Url, request: &Request<'_>) -> Result<RequestBuilder, Error> {
        let mut url = server.clone();
        // Each segment is encoded, so that an argument cannot become another path.
        url.path_segments_mut().map_err(|()| Error::Foreign(server.clone()))?.extend(request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(request.query);
        }
        let mut built = self.http.request(request.method.clone(), url).timeout(self.timeout);
        let bearer = request.bearer.or(self.bearer.as_deref()).map(|bearer| format!("Bearer {bearer}"));
        let idempotency_key = HeaderName::from_static("idempotency-key");
        for (name, value, kind) in [
            (header::AUTHORIZATION, bearer.as_deref(), "token"),
            (idempotency_key, request.idempotency_key, "Idempotency-Key"),
            (header::IF_MATCH, request.if_match, "entity tag"),
        ] {
            let Some(value) = value else { continue };
            built = built.header(name, HeaderValue::try_from(value).map_err(|_| Error::Header(kind))?);
        }
        if let Some(body) = request.body {
            built = built.header(header::CONTENT_TYPE, "application/json").body(body.to_string());
        }
        Ok(built)
    }

    pub(crate) async fn read(&self, server: &Url, response: reqwest::Response) -> Result<Response, Error> {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = bytes(server, response).await?;
        let body = if status == StatusCode::NO_CONTENT && text.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&text).map_err(|_| Error::Foreign(server.clone()))?
        };
        if !status.is_success() {
            return Err(Error::Refused(Box::new(refusal(server, status, &headers, body))));
        }
        Ok(Response {
            status: status.as_u16(),
            body,
            etag: text_of(&headers, header::ETAG.as_str()).map(str::to_owned),
            index: text_of(&headers, "svc-index").and_then(|index| index.parse().ok()),
            next: headers.get(header::LINK).and_then(next_cursor),
        })
    }
}

fn refusal(server: &Url, status: StatusCode, headers: &HeaderMap, body: Value) -> Refusal {
    let text = |name| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let retry_after = text_of(headers, header::RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok());
    Refusal {
        server: server.clone(),
        status: status.as_u16(),
        code: text("error").unwrap_or_default(),
        description: text("error_description").unwrap_or_else(|| format!("answered with status {status}")),
        retry_after: retry_after.map(Duration::from_secs),
        body,
    }
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(crate) async fn bytes(server: &Url, mut response: reqwest::Response) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| error::of_request(server.clone(), &error))?
    {
        if text.len() + chunk.len() > limits::RESPONSE_BYTES_MAX {
            return Err(Error::Foreign(server.clone()));
        }
        text.extend_from_slice(&chunk);
    }
    Ok(text)
}

/// The cursor in `Link: <…?cursor=…>; rel="next"` (RFC 8288). The rest of the address is ignored, so that a list is
/// never continued at another server.
fn next_cursor(link: &HeaderValue) -> Option<String> {
    let (target, parameters) = link.to_str().ok()?.strip_prefix('<')?.split_once('>')?;
    let query = target.split_once('?').filter(|_| parameters.contains("rel=\"next\""))?.1;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == "cursor").map(|(_, value)| value.into_owned())
}
