//! How an event is told: one block of an event stream (WHATWG HTML §9.2), rendered once for all readers, and
//! the ids by which a reader resumes.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Serialize;

use super::Error;
use crate::clock::Timestamp;
use crate::id::{Incarnation, LogPosition};
use crate::limits;
use crate::state::{EventId, FeedEvent};

/// Every type of event (contract §7).
pub const KINDS: [&str; 10] =
    ["exchange", "denial", "caep", "signal", "tool", "agent", "stream", "revocation", "key", "cluster"];

/// The type's own name in [`KINDS`].
fn known(kind: &str) -> Option<&'static str> {
    KINDS.into_iter().find(|known| *known == kind)
}

/// Which types a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds(Vec<&'static str>);

impl Kinds {
    /// Those that are named; all if none is.
    ///
    /// # Errors
    /// [`Error::UnknownType`].
    pub fn named<'t>(names: impl IntoIterator<Item = &'t str>) -> Result<Self, Error> {
        let mut kinds = Vec::new();
        for name in names {
            let kind = known(name).ok_or(Error::UnknownType)?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(Self(kinds))
    }

    /// Whether an event of this type is told.
    pub(super) fn has(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.contains(&kind)
    }
}

/// The id of an event as readers know it: the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedId {
    /// Which life of the cluster it is of.
    pub incarnation: Incarnation,
    /// Which event.
    pub event: EventId,
}

impl fmt::Display for FeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.incarnation, self.event.index, self.event.number)
    }
}

impl FromStr for FeedId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (position, number) = text.rsplit_once('-')?;
            let LogPosition { incarnation, index } = position.parse().ok()?;
            let id = Self { incarnation, event: EventId { index, number: number.parse().ok()? } };
            // One spelling: no sign, no zeros before.
            (id.to_string() == text).then_some(id)
        };
        read().ok_or(Error::MalformedId)
    }
}

/// What somebody did, or was refused, on this node; it is in no log, and has no id.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Whether it is an exchange or a denial.
    pub kind: ActivityKind,
    /// Whose token it was, as far as a signature says so; else empty.
    pub subject: String,
    /// What it was meant for.
    pub target: Option<String>,
    /// How it ended.
    pub result: Outcome,
    /// Why, in words that hold no token.
    pub detail: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

/// The types of activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKind {
    /// A token was minted, or could not be.
    Exchange,
    /// An exchange or a verification was refused.
    Denial,
}

impl ActivityKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Denial => "denial",
        }
    }
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As was asked.
    Ok,
    /// It was refused.
    Denied,
    /// It failed.
    Error,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Denied => "denied",
            Self::Error => "error",
        }
    }
}

/// An event as it goes out. Cheap to clone: the bytes are shared.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Its id, if it is in the table.
    pub id: Option<EventId>,
    /// Its type.
    pub kind: &'static str,
    /// The block.
    pub bytes: Bytes,
}

/// `data:` of every event (contract §7).
#[derive(Serialize)]
struct Data<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'e str>,
    timestamp: String,
    #[serde(rename = "type")]
    kind: &'e str,
    subject: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'e str>,
    result: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    unit_id: &'e str,
}

impl Frame {
    /// An event of the table. `None` if it is of a type that this version does not know.
    pub(super) fn of_row(incarnation: Incarnation, row: &FeedEvent, unit_id: &str) -> Option<Self> {
        let kind = known(&row.kind)?;
        let id = FeedId { incarnation, event: row.id }.to_string();
        let data = Data {
            id: Some(&id),
            timestamp: row.at.to_rfc3339(),
            kind,
            subject: shown(&row.subject),
            target: row.target.as_deref().map(shown),
            result: &row.result,
            detail: row.detail.as_deref().map(shown),
            duration_ms: None,
            unit_id,
        };
        Some(Self { id: Some(row.id), kind, bytes: block(Some(&id), kind, &data) })
    }

    /// What happened at `at` on the node that tells it.
    pub(super) fn of_activity(at: Timestamp, activity: &Activity, unit_id: &str) -> Self {
        let kind = activity.kind.as_str();
        let data = Data {
            id: None,
            timestamp: at.to_rfc3339(),
            kind,
            subject: shown(&activity.subject),
            target: activity.target.as_deref().map(shown),
            result: activity.result.as_str(),
            detail: activity.detail.as_deref().map(shown),
            duration_ms: Some(u64::try_from(activity.duration.as_millis()).unwrap_or(u64::MAX)),
            unit_id,
        };
        Self { id: None, kind, bytes: block(None, kind, &data) }
    }
}

/// The first block: how soon to come back, and from where, although nothing was told yet. An `id:` without data
/// sets the last event id and is no event.
pub(super) fn greeting(at: Option<FeedId>) -> String {
    let mut text = format!("retry: {}\n", limits::FEED_RETRY.as_millis());
    say_place(&mut text, at);
    text
}

/// A comment, and the place of a reader that was told nothing of what it has passed.
pub(super) fn heartbeat(at: Option<FeedId>) -> Bytes {
    let mut text = ": ping\n".to_owned();
    say_place(&mut text, at);
    text.into()
}

fn say_place(text: &mut String, at: Option<FeedId>) {
    if let Some(at) = at {
        // Writing to memory does not fail.
        let _: fmt::Result = writeln!(text, "id: {at}");
    }
    text.push('\n');
}

/// "Too old: a `reset` event".
pub(super) fn reset(first_available: Option<FeedId>) -> String {
    let data = serde_json::json!({"first_available": first_available.map(|id| id.to_string())});
    format!("event: reset\ndata: {data}\n\n")
}

/// JSON escapes every character that ends a line, so that no text of anybody's begins another field.
fn block(id: Option<&str>, kind: &str, data: &Data<'_>) -> Bytes {
    // What has only text and numbers can be written as JSON.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {kind}\ndata: {data}\n\n").into()
}

/// A text as it is told: not without an end, and "never a token", wherever somebody has put one.
fn shown(text: &str) -> &str {
    if holds_token(text) {
        return "withheld, because it looks like a token";
    }
    text.get(..text.floor_char_boundary(limits::FEED_TEXT_SHOWN_BYTES_MAX)).unwrap_or(text)
}

/// Whether a JWT stands anywhere in a text, or the beginning of one: base64url up to a dot, of which some end is a
/// header. Where it begins nobody can know: what stands before it may be base64url too.
fn holds_token(text: &str) -> bool {
    let is_base64url = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let runs = text.as_bytes().split_inclusive(|byte| !is_base64url(byte));
    // What no dot ends is no header.
    let headers = runs.filter_map(|run| run.strip_suffix(b"."));
    headers.flat_map(|run| run.windows(HEADER_LEAST)).any(begins_header)
}

/// No header has less: `{"alg":"ES"}`.
const HEADER_LEAST: usize = 16;

/// Whether this decodes to the beginning of a JSON object, however that is spaced.
fn begins_header(text: &[u8]) -> bool {
    if text.first() != Some(&b'e') {
        return false;
    }
    let Ok(decoded) = URL_SAFE_NO_PAD.decode(text) else { return false };
    let Some(members) = decoded.strip_prefix(b"{") else { return false };
    matches!(members.trim_ascii_start().first(), None | Some(b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation::from_bytes([0xab; 16]);

    fn row(kind: &str, detail: &str) -> FeedEvent {
        FeedEvent {
            id: EventId { index: 42, number: 1 },
            kind: kind.to_owned(),
            at: Timestamp::from_secs(1_800_000_000),
            subject: "wimse://a.example/x".to_owned(),
            target: Some("urn:t".to_owned()),
            result: "ok".to_owned(),
            detail: Some(detail.to_owned()),
        }
    }

    fn text(frame: &Frame) -> &str {
        std::str::from_utf8(&frame.bytes).expect("text")
    }

    #[test]
    fn an_event_of_the_table_is_one_block_with_its_id() {
        let frame = Frame::of_row(LIFE, &row("tool", "registered"), "unit-1").expect("a frame");
        let id = format!("{}-42-1", "ab".repeat(16));
        assert_eq!(
            text(&frame),
            format!(
                "id: {id}\nevent: tool\ndata: {{\"id\":\"{id}\",\"timestamp\":\"2027-01-15T08:00:00.000Z\",\
                 \"type\":\"tool\",\"subject\":\"wimse://a.example/x\",\"target\":\"urn:t\",\"result\":\"ok\",\
                 \"detail\":\"registered\",\"unit_id\":\"unit-1\"}}\n\n"
            )
        );
        assert!(Frame::of_row(LIFE, &row("unheard-of", ""), "unit-1").is_none());
    }

    #[test]
    fn activity_has_a_duration_and_no_id() {
        let activity = Activity {
            kind: ActivityKind::Denial,
            subject: String::new(),
            target: None,
            result: Outcome::Denied,
            detail: None,
            duration: Duration::from_micros(7_900),
        };
        let frame = Frame::of_activity(Timestamp::from_secs(1_800_000_000), &activity, "unit-1");
        assert_eq!(
            text(&frame),
            "event: denial\ndata: {\"timestamp\":\"2027-01-15T08:00:00.000Z\",\"type\":\"denial\",\"subject\":\"\",\
             \"result\":\"denied\",\"duration_ms\":7,\"unit_id\":\"unit-1\"}\n\n"
        );
    }

    /// Event injection by newline: whatever ends a line in an event stream is not in a line of ours.
    #[test]
    fn no_text_begins_a_line_of_its_own() {
        for text_of_others in
            ["a\nevent: key\ndata: {}\n\n", "a\r\nid: 1\r\n\r\n", "a\rid: 1\r", "a\0", "\u{feff}"]
        {
            let mut row = row("tool", text_of_others);
            row.subject = text_of_others.to_owned();
            row.target = Some(text_of_others.to_owned());
            row.result = text_of_others.to_owned();
            let frame = Frame::of_row(LIFE, &row, text_of_others).expect("a frame");
            let block = text(&frame);
            assert!(!block.contains(['\r', '\0']), "{block:?}");
            let lines: Vec<_> = block.split('\n').collect();
            assert_eq!(lines.len(), 5, "{block:?}");
            let data = lines[2].strip_prefix("data: ").expect("data");
            let data = crate::json::parse(data.as_bytes()).expect("JSON");
            assert_eq!(data["subject"], text_of_others);
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let most = limits::FEED_TEXT_SHOWN_BYTES_MAX;
        for (bytes, told) in [(most, most), (most + 1, most)] {
            assert_eq!(shown(&"x".repeat(bytes)).len(), told);
        }
        assert_eq!(shown(&format!("x{}", "é".repeat(most))).len(), most - 1);
    }

    #[test]
    fn a_text_with_a_token_in_it_is_withheld() {
        let token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for text in
            [token.to_owned(), format!("see {token}"), format!("eyJ eyJ.{token}&x"), format!("é{token}")]
        {
            assert!(shown(&text).starts_with("withheld"), "{text}");
            let mut row = row("tool", &text);
            row.subject.clone_from(&text);
            row.target = Some(text.clone());
            let frame = Frame::of_row(LIFE, &row, "unit-1").expect("a frame");
            assert!(!self::text(&frame).contains("eyJ"), "{text}");
        }
        for text in ["", "eyJ", "eyJhbGci.x", "honeyJar.example", "eyJhbGciOiJFUzI1NiJ9", "the keys of eyJ"] {
            assert_eq!(shown(text), text);
        }
    }

    /// Smuggling by white space: a header that does not begin with `{"` was no token.
    #[test]
    fn a_token_is_withheld_however_its_header_is_spaced_and_whatever_stands_before_it() {
        let spaces = ["", " ", "\n", "\r\n ", "\t", "\n    ", " \t\r\n \t\r\n \t\r\n \t"];
        for space in spaces {
            let header = URL_SAFE_NO_PAD.encode(format!("{{{space}\"alg\":\"ES256\"}}"));
            let token = format!("{header}.eyJzdWIiOiJ4In0.c2lnbmF0dXJl");
            for before in ["", "x", "xy", "xyz", "Bearer_", "a.b.", "e", "ey", "é", "https://t.example/?t="]
            {
                let text = format!("{before}{token}");
                assert!(shown(&text).starts_with("withheld"), "{space:?} {text}");
            }
        }
    }

    #[test]
    fn names_that_look_a_little_like_a_header_are_shown() {
        for text in [
            "spiffe://trust.example/the-e-commerce-platform.shop",
            "framework-controller-of-many.example",
            "eworker-of-the-fabric-no-1.example",
            "ey0000000000000000000000.example",
            "e.e.e",
            "https://eyewitness-network-services.example",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = FeedId { incarnation: LIFE, event: EventId { index: 7, number: 0 } };
        assert_eq!(id.to_string().parse::<FeedId>().expect("an id"), id);
        let life = "ab".repeat(16);
        for bad in [
            String::new(),
            "7-0".to_owned(),
            life.clone(),
            format!("{life}-7"),
            format!("{life}-7-"),
            format!("{life}-7--0"),
            format!("{life}-+7-0"),
            format!("{life}-7-+0"),
            format!("{life}-07-0"),
            format!("{life}-7-00"),
            format!("{life}-7-0 "),
            format!(" {life}-7-0"),
            format!("{}-7-0", life.to_uppercase()),
            format!("{life}-7-4294967296"),
            format!("{life}-18446744073709551616-0"),
            format!("{life}-7-0-0"),
        ] {
            assert!(matches!(bad.parse::<FeedId>(), Err(Error::MalformedId)), "{bad}");
        }
    }

    #[test]
    fn types_are_named_as_they_are_told_and_none_named_is_all() {
        let kinds = Kinds::named(["tool", "key", "tool"]).expect("kinds");
        assert_eq!(KINDS.map(|kind| kinds.has(kind)).iter().filter(|has| **has).count(), 2);
        assert!(kinds.has("tool") && kinds.has("key"));
        assert!(KINDS.iter().all(|kind| Kinds::default().has(kind)));
        for bad in ["", "Tool", "reset", "tool "] {
            assert!(matches!(Kinds::named(["tool", bad]), Err(Error::UnknownType)), "{bad}");
        }
    }
}
