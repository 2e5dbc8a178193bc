//! Reads the live feed: server-sent events over any connection.

use std::io;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::wire::{self, Io};

/// An event of the feed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    /// `event`; empty if there is none.
    pub kind: String,
    pub data: String,
}

/// Events of an open feed. Chunk lengths between events are lines that are ignored.
pub struct Events<S> {
    stream: S,
    read: Vec<u8>,
    /// Id of the latest event.
    pub last_id: Option<String>,
}

/// Subscribes, optionally after an id, and waits for the head of the response.
pub async fn open<S: Io>(mut stream: S, path: &str, host: &str, last_id: Option<&str>) -> Result<Events<S>> {
    let more = last_id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
    stream.write_all(&wire::request("GET", path, host, &more)).await?;
    stream.flush().await?;
    let mut head = Vec::new();
    while wire::find(&head, b"\r\n\r\n").is_none() {
        head.push(stream.read_u8().await?);
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        bail!("the feed is answered {}", String::from_utf8_lossy(&head));
    }
    Ok(Events { stream, read: Vec::with_capacity(32 * 1024), last_id: None })
}

impl<S: Io> Events<S> {
    /// The next event.
    pub async fn next(&mut self) -> io::Result<Event> {
        let mut event = Event::default();
        loop {
            while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end();
                if let Some(id) = line.strip_prefix("id: ") {
                    event.id = Some(id.to_owned());
                    self.last_id.clone_from(&event.id);
                } else if let Some(kind) = line.strip_prefix("event: ") {
                    kind.clone_into(&mut event.kind);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    data.clone_into(&mut event.data);
                    return Ok(event);
                }
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_read_between_chunks_and_comments() {
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(
            b"HTTP/1.1 200 OK\r\n\r\n5\r\n: hi\n\r\n20\r\nid: a-1-0\nevent: tool\ndata: {}\n\n\r\n",
        )
        .await
        .expect("written");
        let mut events = open(near, "/v1/events", "localhost", Some("a-0-0")).await.expect("open");
        let event = events.next().await.expect("an event");
        assert_eq!(
            event,
            Event { id: Some("a-1-0".to_owned()), kind: "tool".to_owned(), data: "{}".to_owned() }
        );
        assert_eq!(events.last_id.as_deref(), Some("a-1-0"));
        let mut request = vec![0; 300];
        let length = far.read(&mut request).await.expect("read");
        assert!(String::from_utf8_lossy(&request[..length]).contains("last-event-id: a-0-0\r\n"));
    }
}
