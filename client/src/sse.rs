//! Parser for a server-sent event stream (WHATWG HTML §9.2), with a size limit per event.

use std::collections::VecDeque;
use std::mem;

use crate::limits;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The last event id received, with this event or before it.
    pub last_id: Option<String>,
    pub kind: String,
    pub data: String,
}

/// A line or event beyond [`limits::EVENT_BYTES_MAX`], or text that is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Incremental parser.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    /// The last byte was a carriage return: a following line feed ends no other line.
    is_after_return: bool,
    event: Event,
    /// The last event id received, which counts once its event is complete.
    id: Option<String>,
    /// Complete events, and whether they have data: without it, only the id counts.
    ready: VecDeque<(Event, bool)>,
    last_id: Option<String>,
}

impl Parser {
    /// Parses more bytes.
    ///
    /// # Errors
    /// [`Malformed`]; the stream must then be closed.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for byte in bytes {
            let is_after_return = mem::replace(&mut self.is_after_return, *byte == b'\r');
            match byte {
                b'\n' if is_after_return => {}
                b'\n' | b'\r' => {
                    let line = mem::take(&mut self.line);
                    self.take_line(std::str::from_utf8(&line).map_err(|_| Malformed)?)?;
                }
                _ if self.line.len() >= limits::EVENT_BYTES_MAX => return Err(Malformed),
                byte => self.line.push(*byte),
            }
        }
        Ok(())
    }

    /// The next complete event.
    pub fn pop(&mut self) -> Option<Event> {
        while let Some((event, has_data)) = self.ready.pop_front() {
            self.last_id.clone_from(&event.last_id);
            if has_data {
                return Some(event);
            }
        }
        None
    }

    /// The event id as of the last event that was popped, for resuming.
    #[must_use]
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    fn take_line(&mut self, line: &str) -> Result<(), Malformed> {
        if line.is_empty() {
            self.end_event();
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if self.event.data.len() + value.len() >= limits::EVENT_BYTES_MAX {
                    return Err(Malformed);
                }
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            "id" if !value.contains('\0') => {
                self.id = Some(value.to_owned()).filter(|id| !id.is_empty());
            }
            // A comment, `retry`, and unknown fields.
            _ => {}
        }
        Ok(())
    }

    fn end_event(&mut self) {
        let mut event = mem::take(&mut self.event);
        let has_data = event.data.pop().is_some();
        event.last_id.clone_from(&self.id);
        let last_id = self.ready.back().map_or(&self.last_id, |(last, _)| &last.last_id);
        if has_data || event.last_id != *last_id {
            self.ready.push_back((event, has_data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parser: &mut Parser) -> Vec<(Option<String>, String, String)> {
        std::iter::from_fn(|| parser.pop()).map(|event| (event.last_id, event.kind, event.data)).collect()
    }

    fn event(last_id: Option<&str>, kind: &str, data: &str) -> (Option<String>, String, String) {
        (last_id.map(str::to_owned), kind.to_owned(), data.to_owned())
    }

    #[test]
    fn events_parse_for_all_line_ends_and_chunkings() {
        let text = "retry: 3000\nid: a-1\n\n: ping\n\nid: a-2\nevent: tool\ndata: {\"x\":1}\n\nevent: denial\ndata:y\ndata: z\n\n\
                    data\n\nevent: key\n\nid\ndata: end\n\ndata: cut off";
        let expected = [
            event(Some("a-2"), "tool", "{\"x\":1}"),
            event(Some("a-2"), "denial", "y\nz"),
            event(Some("a-2"), "", ""),
            event(None, "", "end"),
        ];
        for text in [text.to_owned(), text.replace('\n', "\r\n"), text.replace('\n', "\r")] {
            for size in [1, 2, 3, 7, text.len()] {
                let mut parser = Parser::default();
                text.as_bytes().chunks(size).try_for_each(|bytes| parser.push(bytes)).expect("a stream");
                assert_eq!(all(&mut parser), expected, "{size} {text:?}");
            }
        }
    }

    #[test]
    fn an_id_without_data_counts() {
        let mut parser = Parser::default();
        parser.push(b"retry: 3000\nid: a-1\n\n").expect("a stream");
        assert_eq!((all(&mut parser), parser.last_id()), (Vec::new(), Some("a-1")));
        parser.push(b"id: a\0b\n\n").expect("a stream");
        assert_eq!(parser.last_id(), Some("a-1"), "an id with NUL is ignored");
    }

    /// Regression: the next subscription began after an event that was cut off, or that had not been read.
    #[test]
    fn id_counts_once_its_event_is_read() {
        let mut parser = Parser::default();
        parser.push(b"id: a-1\ndata: x\n\nid: a-2\ndata: y\n\nid: a-3\nevent: tool\nda").expect("a stream");
        let mut seen = Vec::new();
        loop {
            seen.push(parser.last_id().map(str::to_owned));
            if parser.pop().is_none() {
                break;
            }
        }
        assert_eq!(seen, [None, Some("a-1".to_owned()), Some("a-2".to_owned())]);
        assert_eq!(parser.last_id(), Some("a-2"));
    }

    #[test]
    fn line_and_event_are_read_to_the_limit() {
        let line = |bytes: usize| format!("data: {}\n\n", "x".repeat(bytes - "data: ".len()));
        assert_eq!(Parser::default().push(line(limits::EVENT_BYTES_MAX).as_bytes()), Ok(()));
        assert_eq!(Parser::default().push(line(limits::EVENT_BYTES_MAX + 1).as_bytes()), Err(Malformed));
        let half = format!("data: {}\n", "x".repeat(limits::EVENT_BYTES_MAX / 2 - 1));
        let mut parser = Parser::default();
        assert_eq!(parser.push(half.as_bytes()), Ok(()));
        assert_eq!(parser.push(b"data: x\n"), Ok(()));
        assert_eq!(parser.push(half.as_bytes()), Err(Malformed));
        assert_eq!(Parser::default().push(b"data: \xff\n"), Err(Malformed));
    }
}
