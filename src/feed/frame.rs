//! Wire form of an event: one block of an event stream (WHATWG HTML §9.2), rendered once for all subscribers, and the
//! ids with which a subscriber resumes.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::Error;
use crate::clock::Timestamp;
use crate::id::{Incarnation, LogPosition};
use crate::limits;
use crate::state::{EventId, FeedEvent, FeedKind};

/// Every event type (contract §7).
pub fn kinds() -> impl Iterator<Item = &'static str> {
    let activities = ActivityKind::VARIANTS.iter().map(ActivityKind::into_str);
    activities.chain(FeedKind::VARIANTS.iter().map(FeedKind::into_str))
}

/// The static name of a type.
fn static_name(kind: &str) -> Option<&'static str> {
    kinds().find(|name| *name == kind)
}

/// Requested event types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds(Vec<&'static str>);

impl Kinds {
    /// These types; all without any.
    pub fn parse<'t>(names: impl IntoIterator<Item = &'t str>) -> Result<Self, Error> {
        let mut kinds = Vec::new();
        for name in names {
            let kind = static_name(name).ok_or(Error::UnknownType)?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(Self(kinds))
    }

    /// Whether events of this type are requested.
    pub(super) fn contains(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.contains(&kind)
    }
}

/// Id of an event, equal on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedId {
    pub incarnation: Incarnation,
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
            // One spelling: no sign, no leading zeros.
            (id.to_string() == text).then_some(id)
        };
        read().ok_or(Error::MalformedId)
    }
}

/// An exchange or denial on one node; in no log, without an id.
#[derive(Clone, Debug)]
pub struct Activity {
    pub kind: ActivityKind,
    /// Subject of the token as far as its signature is verified; else empty.
    pub subject: String,
    /// Target of the token.
    pub target: Option<String>,
    pub result: ActivityResult,
    /// Reason, without any token.
    pub detail: Option<String>,
    pub duration: Duration,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[serde(rename_all = "lowercase")]
pub enum ActivityKind {
    /// A token was minted, or could not be.
    Exchange,
    /// An exchange or a verification was denied.
    Denial,
}

/// Result of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[serde(rename_all = "lowercase")]
pub enum ActivityResult {
    Ok,
    Denied,
    Error,
}

/// A rendered event. Cheap to clone: the bytes are shared.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// `None` for an activity.
    pub id: Option<EventId>,
    pub kind: &'static str,
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
    /// An event of the table. `None` for a type that this version does not know.
    pub(super) fn of_row(incarnation: Incarnation, row: &FeedEvent, unit_id: &str) -> Option<Self> {
        let kind = static_name(&row.kind)?;
        let id = FeedId { incarnation, event: row.id }.to_string();
        let data = Data {
            id: Some(&id),
            timestamp: row.at.to_rfc3339(),
            kind,
            subject: sanitized(&row.subject),
            target: row.target.as_deref().map(sanitized),
            result: &row.result,
            detail: row.detail.as_deref().map(sanitized),
            duration_ms: None,
            unit_id,
        };
        Some(Self { id: Some(row.id), kind, bytes: block(Some(&id), kind, &data) })
    }

    /// An activity at `at` on this node.
    pub(super) fn of_activity(at: Timestamp, activity: &Activity, unit_id: &str) -> Self {
        let kind = activity.kind.into_str();
        let data = Data {
            id: None,
            timestamp: at.to_rfc3339(),
            kind,
            subject: sanitized(&activity.subject),
            target: activity.target.as_deref().map(sanitized),
            result: activity.result.into_str(),
            detail: activity.detail.as_deref().map(sanitized),
            duration_ms: Some(u64::try_from(activity.duration.as_millis()).unwrap_or(u64::MAX)),
            unit_id,
        };
        Self { id: None, kind, bytes: block(None, kind, &data) }
    }
}

/// The first block: retry interval and resume position. An `id:` without data sets the last event id and is no event.
pub(super) fn greeting(at: Option<FeedId>) -> String {
    let mut text = format!("retry: {}\n", limits::FEED_RETRY.as_millis());
    write_position(&mut text, at);
    text
}

/// A comment, with the resume position if it is not sent yet.
pub(super) fn heartbeat(at: Option<FeedId>) -> Bytes {
    let mut text = ": ping\n".to_owned();
    write_position(&mut text, at);
    text.into()
}

fn write_position(text: &mut String, at: Option<FeedId>) {
    if let Some(at) = at {
        // Writing to memory is infallible.
        let _: fmt::Result = writeln!(text, "id: {at}");
    }
    text.push('\n');
}

/// A subscriber whose last event is too old receives a `reset` event (contract §7).
pub(super) fn reset(first_available: Option<FeedId>) -> String {
    let data = serde_json::json!({"first_available": first_available.map(|id| id.to_string())});
    format!("event: reset\ndata: {data}\n\n")
}

/// JSON escapes every line break, so that no foreign text begins another field.
fn block(id: Option<&str>, kind: &str, data: &Data<'_>) -> Bytes {
    // Text and numbers always serialize.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {kind}\ndata: {data}\n\n").into()
}

/// The text, bounded, and withheld if it contains a token ("never a token").
fn sanitized(text: &str) -> &str {
    if contains_token(text) {
        return "withheld, because it looks like a token";
    }
    text.get(..text.floor_char_boundary(limits::FEED_FRAME_TEXT_BYTES_MAX)).unwrap_or(text)
}

/// Whether a text contains a JWT or its beginning: base64url up to a dot, some tail of which is a header. The
/// beginning is unknown, because the text before it may be base64url too.
fn contains_token(text: &str) -> bool {
    let is_base64url = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let runs = text.as_bytes().split_inclusive(|byte| !is_base64url(byte));
    // Without a dot after it, a run is no header.
    let headers = runs.filter_map(|run| run.strip_suffix(b"."));
    headers.flat_map(|run| run.windows(HEADER_LEN_MIN)).any(is_header_start)
}

/// The shortest header, `{"alg":"ES"}`, encoded.
const HEADER_LEN_MIN: usize = 16;

/// Whether this decodes to the beginning of a JSON object, with any white space.
fn is_header_start(text: &[u8]) -> bool {
    if text.first() != Some(&b'e') {
        return false;
    }
    let Ok(decoded) = URL_SAFE_NO_PAD.decode(text) else { return false };
    let Some(fields) = decoded.strip_prefix(b"{") else { return false };
    matches!(fields.trim_ascii_start().first(), None | Some(b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: Incarnation = Incarnation::from_bytes([0xab; 16]);

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
    fn table_event_is_one_block_with_its_id() {
        let frame = Frame::of_row(INCARNATION, &row("tool", "registered"), "unit-1").expect("a frame");
        let id = format!("{}-42-1", "ab".repeat(16));
        assert_eq!(
            text(&frame),
            format!(
                "id: {id}\nevent: tool\ndata: {{\"id\":\"{id}\",\"timestamp\":\"2027-01-15T08:00:00.000Z\",\
                 \"type\":\"tool\",\"subject\":\"wimse://a.example/x\",\"target\":\"urn:t\",\"result\":\"ok\",\
                 \"detail\":\"registered\",\"unit_id\":\"unit-1\"}}\n\n"
            )
        );
        assert!(Frame::of_row(INCARNATION, &row("unknown", ""), "unit-1").is_none());
    }

    #[test]
    fn activity_has_a_duration_and_no_id() {
        let activity = Activity {
            kind: ActivityKind::Denial,
            subject: String::new(),
            target: None,
            result: ActivityResult::Denied,
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

    /// Attack: event injection by line breaks. No line break of an event stream may be in foreign text.
    #[test]
    fn foreign_text_begins_no_line() {
        for foreign in ["a\nevent: key\ndata: {}\n\n", "a\r\nid: 1\r\n\r\n", "a\rid: 1\r", "a\0", "\u{feff}"]
        {
            let mut row = row("tool", foreign);
            row.subject = foreign.to_owned();
            row.target = Some(foreign.to_owned());
            row.result = foreign.to_owned();
            let frame = Frame::of_row(INCARNATION, &row, foreign).expect("a frame");
            let block = text(&frame);
            assert!(!block.contains(['\r', '\0']), "{block:?}");
            let lines: Vec<_> = block.split('\n').collect();
            assert_eq!(lines.len(), 5, "{block:?}");
            let data = lines[2].strip_prefix("data: ").expect("data");
            let data = crate::json::parse(data.as_bytes()).expect("JSON");
            assert_eq!(data["subject"], foreign);
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let most = limits::FEED_FRAME_TEXT_BYTES_MAX;
        for (bytes, sent) in [(most, most), (most + 1, most)] {
            assert_eq!(sanitized(&"x".repeat(bytes)).len(), sent);
        }
        assert_eq!(sanitized(&format!("x{}", "é".repeat(most))).len(), most - 1);
    }

    #[test]
    fn text_with_a_token_is_withheld() {
        let token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for text in
            [token.to_owned(), format!("see {token}"), format!("eyJ eyJ.{token}&x"), format!("é{token}")]
        {
            assert!(sanitized(&text).starts_with("withheld"), "{text}");
            let mut row = row("tool", &text);
            row.subject.clone_from(&text);
            row.target = Some(text.clone());
            let frame = Frame::of_row(INCARNATION, &row, "unit-1").expect("a frame");
            assert!(!self::text(&frame).contains("eyJ"), "{text}");
        }
        for text in ["", "eyJ", "eyJhbGci.x", "honeyJar.example", "eyJhbGciOiJFUzI1NiJ9", "the keys of eyJ"] {
            assert_eq!(sanitized(text), text);
        }
    }

    /// Attack: a header with white space after `{` was not detected as a token.
    #[test]
    fn token_is_withheld_with_any_header_spacing_and_prefix() {
        let spaces = ["", " ", "\n", "\r\n ", "\t", "\n    ", " \t\r\n \t\r\n \t\r\n \t"];
        for space in spaces {
            let header = URL_SAFE_NO_PAD.encode(format!("{{{space}\"alg\":\"ES256\"}}"));
            let token = format!("{header}.eyJzdWIiOiJ4In0.c2lnbmF0dXJl");
            for before in ["", "x", "xy", "xyz", "Bearer_", "a.b.", "e", "ey", "é", "https://t.example/?t="]
            {
                let text = format!("{before}{token}");
                assert!(sanitized(&text).starts_with("withheld"), "{space:?} {text}");
            }
        }
    }

    #[test]
    fn names_similar_to_a_header_are_shown() {
        for text in [
            "spiffe://trust.example/the-e-commerce-platform.shop",
            "framework-controller-of-many.example",
            "eworker-of-the-fabric-no-1.example",
            "ey0000000000000000000000.example",
            "e.e.e",
            "https://eyewitness-network-services.example",
        ] {
            assert_eq!(sanitized(text), text);
        }
    }

    #[test]
    fn id_has_one_spelling() {
        let id = FeedId { incarnation: INCARNATION, event: EventId { index: 7, number: 0 } };
        assert_eq!(id.to_string().parse::<FeedId>().expect("an id"), id);
        let incarnation = "ab".repeat(16);
        for bad in [
            String::new(),
            "7-0".to_owned(),
            incarnation.clone(),
            format!("{incarnation}-7"),
            format!("{incarnation}-7-"),
            format!("{incarnation}-7--0"),
            format!("{incarnation}-+7-0"),
            format!("{incarnation}-7-+0"),
            format!("{incarnation}-07-0"),
            format!("{incarnation}-7-00"),
            format!("{incarnation}-7-0 "),
            format!(" {incarnation}-7-0"),
            format!("{}-7-0", incarnation.to_uppercase()),
            format!("{incarnation}-7-4294967296"),
            format!("{incarnation}-18446744073709551616-0"),
            format!("{incarnation}-7-0-0"),
        ] {
            assert!(matches!(bad.parse::<FeedId>(), Err(Error::MalformedId)), "{bad}");
        }
    }

    #[test]
    fn kinds_match_named_types_or_all() {
        let requested = Kinds::parse(["tool", "federation", "tool"]).expect("kinds");
        assert_eq!(
            kinds().filter(|kind| requested.contains(kind)).collect::<Vec<_>>(),
            ["tool", "federation"]
        );
        assert!(kinds().all(|kind| Kinds::default().contains(kind)));
        for bad in ["", "Tool", "reset", "tool "] {
            assert!(matches!(Kinds::parse(["tool", bad]), Err(Error::UnknownType)), "{bad}");
        }
    }
}
