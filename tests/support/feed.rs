//! A client of the live feed (WHATWG HTML §9.2) without code of the product.

use reqwest::header::HeaderMap;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// `id:`, if present.
    pub id: Option<String>,
    pub kind: String,
    pub data: Value,
}

impl Event {
    /// `type`, `subject` and `detail` of its data.
    pub fn words(&self) -> (&str, &str, &str) {
        let text = |member: &str| self.data[member].as_str().unwrap_or_default();
        (text("type"), text("subject"), text("detail"))
    }
}

/// An open response of the feed.
pub struct Feed {
    pub status: u16,
    pub headers: HeaderMap,
    /// Everything received; `read` is the part that is consumed.
    bytes: Vec<u8>,
    read: usize,
    last_id: Option<String>,
    answer: reqwest::Response,
}

impl Feed {
    pub fn of(answer: reqwest::Response) -> Self {
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Self { status, headers, bytes: Vec::new(), read: 0, last_id: None, answer }
    }

    /// The next block without its final empty line; `None` at the end.
    pub async fn block(&mut self) -> Option<String> {
        loop {
            let rest = &self.bytes[self.read..];
            if let Some(length) = rest.windows(2).position(|two| two == b"\n\n") {
                let block = String::from_utf8(rest[..length].to_vec()).expect("UTF-8");
                self.read += length + 2;
                if let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) {
                    self.last_id = Some(id.to_owned());
                }
                return Some(block);
            }
            let chunk = self.answer.chunk().await.expect("a whole answer")?;
            self.bytes.extend_from_slice(&chunk);
        }
    }

    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let block = self.block().await?;
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            let Some(data) = field("data: ") else { continue };
            let data = trust_fabric::json::parse(data.as_bytes()).expect("JSON");
            let kind = field("event: ").expect("a type").to_owned();
            return Some(Event { id: field("id: ").map(str::to_owned), kind, data });
        }
    }

    /// Events before the one that reports the registration of this tool.
    pub async fn until_registered(&mut self, tool_id: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("it goes on");
            if event.kind == "tool" && event.data["subject"] == tool_id {
                return events;
            }
            events.push(event);
        }
    }

    /// Everything received.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The last id, as a client stores it.
    pub fn last_id(&self) -> &str {
        self.last_id.as_deref().expect("an id")
    }
}
