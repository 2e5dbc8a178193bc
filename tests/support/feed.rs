//! The live feed as a client reads it (WHATWG HTML §9.2), with no code of the product.

use reqwest::header::HeaderMap;
use serde_json::Value;

/// An event that was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// `id:`, if it has one.
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

/// An answer of the feed that goes on.
pub struct Feed {
    pub status: u16,
    pub headers: HeaderMap,
    /// Everything that came, and how much of it was read.
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

    /// The next block, without the empty line that ends it; `None` at the end.
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

    /// Events up to the one that says that this tool was registered, which is not among them.
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

    /// Everything that came.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The last id that was told, as a client keeps it.
    pub fn last_id(&self) -> &str {
        self.last_id.as_deref().expect("an id")
    }
}
