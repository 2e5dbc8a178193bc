//! A response of the node, and the invariants of every response.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::HeaderMap;
use serde_json::Value;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// A granted token, decoded. [`Node::granted`](super::Node::granted) verifies its signature.
#[derive(Debug)]
pub struct Minted {
    pub token: String,
    pub header: Value,
    pub claims: Value,
    pub answer: Value,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header in ASCII"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("a JSON body: {}", self.body))
    }

    /// `(status, error, error_description)`.
    #[track_caller]
    pub fn refusal(&self) -> (u16, String, String) {
        let body = self.json();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        assert!(self.status >= 400, "must be refused: {} {}", self.status, self.body);
        (self.status, text("error"), text("error_description"))
    }

    /// Asserts this refusal; `description` is a substring.
    #[track_caller]
    pub fn is_refused(&self, status: u16, error: &str, description: &str) {
        let refusal = self.refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (status, error), "{}", self.body);
        assert!(refusal.2.contains(description), "{} lacks {description:?}", self.body);
    }

    /// Decodes the token of a 200 response.
    #[track_caller]
    pub fn minted(&self) -> Minted {
        assert_eq!(self.status, 200, "{}", self.body);
        let answer = self.json();
        let token = answer["access_token"].as_str().expect("access_token").to_owned();
        let part = |at: usize| {
            let text = token.split('.').nth(at).expect("three parts");
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).expect("base64url")).expect("JSON")
        };
        Minted { header: part(0), claims: part(1), token, answer }
    }

    /// Invariants of every response.
    pub fn assert_invariants(&self, sent: &str) {
        let request_id = self.header("x-request-id").expect("X-Request-Id");
        assert!(!request_id.is_empty());
        self.header("svc-index").expect("Svc-Index").parse::<u64>().expect("an index");
        assert!(self.headers.get("server").is_none());
        let headers = format!("{:?}", self.headers);
        for secret in secrets(sent) {
            assert!(!self.body.contains(secret), "the answer repeats a token: {}", self.body);
            assert!(!headers.contains(secret), "a header repeats a token: {headers}");
        }
        if self.status < 400 {
            return;
        }
        for part in parts(sent) {
            assert!(!self.body.contains(part), "the refusal repeats part of a token: {}", self.body);
        }
        assert_eq!(self.header("cache-control"), Some("no-store"), "{}", self.body);
        // Health has its own schema.
        let body = self.json();
        if body.get("unit_id").is_some() {
            return;
        }
        // RFC 8935 §2.3 defines its own fields.
        let description = if body.get("err").is_some() {
            assert_eq!(self.header("content-language"), Some("en"), "{}", self.body);
            body["description"].as_str().expect("description")
        } else {
            assert_eq!(body["request_id"], request_id);
            body["error_description"].as_str().expect("error_description")
        };
        assert!(!description.is_empty());
        let plain = |b: u8| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\';
        assert!(description.bytes().all(plain), "RFC 6749 §5.2: {description}");
        let retry = self.header("retry-after").is_some();
        let comes_back = matches!(self.status, 429 | 503);
        assert_eq!(comes_back, retry, "429 and 503 say when to come back: {}", self.body);
    }
}

/// The signatures of the tokens in a request: long runs of base64url after a dot.
fn secrets(sent: &str) -> impl Iterator<Item = &str> {
    runs(sent, 80).filter(|run| sent.contains(&format!(".{run}")))
}

/// Prefixes of every part of every token in a request. A refusal must not contain them either.
fn parts(sent: &str) -> impl Iterator<Item = &str> {
    const PART_MIN: usize = 24;
    runs(sent, PART_MIN)
        .filter(|run| sent.contains(&format!("{run}.")) || sent.contains(&format!(".{run}")))
        .filter_map(|run| run.get(..PART_MIN))
}

fn runs(sent: &str, length_min: usize) -> impl Iterator<Item = &str> {
    let is_base64url = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    sent.split(move |c| !is_base64url(c)).filter(move |run| run.len() >= length_min)
}
