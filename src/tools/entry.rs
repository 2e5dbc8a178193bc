//! A tool on the wire: the entry and its validation, and the record (contract §5; specification, "Universal tool
//! entry").

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::policy::blast_radius::BlastRadius;
use crate::state::command::{Tool, ToolRow};
use crate::state::stated;
use crate::text::values::Protocol;
use crate::{limits, text};

/// Rule of a protocol field, for error texts.
pub const PROTOCOL_RULE: &str = "must be mcp, http or a2a/2025-draft-01";

/// A broken rule of a tool entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct Error {
    pub field: &'static str,
    pub rule: String,
}

/// A tool and its requirements on tokens. Unknown fields are refused, so that no requirement is dropped silently.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolEntry {
    /// 1 to 256 printable ASCII characters without space, `/`, `?`, `#`, `%`; not `.` or `..`. With PUT it is optional
    /// and equals the one in the path.
    pub tool_id: Option<String>,
    /// Human-readable, at most 256 bytes.
    #[schema(required = true, value_type = String)]
    pub name: Option<String>,
    /// An absolute URI without a fragment; the required `aud` of tokens (RFC 8707).
    pub resource_uri: Option<String>,
    /// Capabilities that a token needs.
    pub required_capabilities: Option<Vec<String>>,
    /// `<kind>[:<name>]`: the largest blast radius of a token.
    pub max_blast_radius: Option<String>,
    /// Whether a token must have an execution scope.
    pub requires_execution: Option<bool>,
    /// Allowed values of `exec_act`, with `requires_execution`.
    pub allowed_operations: Option<Vec<String>>,
    /// Allowed values of `target`, with `requires_execution`.
    pub allowed_targets: Option<Vec<String>>,
    /// Supported protocols; the default is `mcp`.
    #[schema(value_type = Option<Vec<Protocol>>)]
    pub protocols: Option<Vec<String>>,
    /// Human-readable, at most 4096 bytes.
    pub description: Option<String>,
    /// Version of the tool's schema, semver.
    pub version: Option<String>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    pub(crate) registered_by: Option<IgnoredAny>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    pub(crate) registered_at: Option<IgnoredAny>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    pub(crate) updated_at: Option<IgnoredAny>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<u64>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    pub(crate) revision: Option<IgnoredAny>,
}

/// A registered tool. Times are log time, RFC 3339, UTC.
#[derive(Serialize, ToSchema)]
pub struct ToolRecord {
    #[serde(flatten)]
    #[schema(inline)]
    tool: Tool,
    /// The caller that registered it and may change it; absent for an anonymous one.
    #[serde(skip_serializing_if = "Option::is_none")]
    registered_by: Option<String>,
    /// Time of registration.
    registered_at: String,
    /// Time of the last change.
    updated_at: String,
    /// Number of the revision, from 1.
    revision: u64,
}

impl ToolRecord {
    /// Its identifier.
    #[must_use]
    pub fn tool_id(&self) -> &str {
        &self.tool.tool_id
    }
}

impl TryFrom<ToolRow> for ToolRecord {
    type Error = Corrupt;

    fn try_from(row: ToolRow) -> Result<Self, Corrupt> {
        let (Some(tool), Some(version)) = (row.tool, row.version) else {
            return Err(Corrupt::row("the row of a tool is incomplete"));
        };
        Ok(Self {
            tool,
            registered_by: stated(row.registered_by),
            registered_at: Timestamp::from_millis(row.registered_at_millis).to_rfc3339(),
            updated_at: Timestamp::from_millis(row.updated_at_millis).to_rfc3339(),
            revision: version.revision,
        })
    }
}

/// Validated tool entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(Tool);

impl ToolEntry {
    /// Checks the fields in the order of the specification's table.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn validate(self) -> Result<Entry, Error> {
        let tool = Tool {
            tool_id: tool_id(self.tool_id)?,
            name: name(self.name)?,
            resource_uri: checked(self.resource_uri, resource_uri)?,
            required_capabilities: list(
                ("required_capabilities", self.required_capabilities, limits::CAPABILITIES_MAX),
                &format!("must be words of 1 to {} printable ASCII characters", limits::CAPABILITY_BYTES_MAX),
                text::is_scope_word,
            )?,
            max_blast_radius: checked(self.max_blast_radius, max_blast_radius)?,
            requires_execution: self.requires_execution.unwrap_or_default(),
            allowed_operations: allowed(
                "allowed_operations",
                self.allowed_operations,
                limits::OPAQUE_BYTES_MAX,
            )?,
            allowed_targets: allowed("allowed_targets", self.allowed_targets, limits::URI_BYTES_MAX)?,
            ..Tool::default()
        };
        if tool.requires_execution && tool.allowed_operations.is_empty() && tool.allowed_targets.is_empty() {
            let rule = "requires allowed_operations or allowed_targets: without them there is no constraint";
            return Err(broken("requires_execution", rule));
        }
        let protocols = ("protocols", self.protocols, Protocol::TEXTS.len());
        let protocols = match list(protocols, PROTOCOL_RULE, |protocol| Protocol::TEXTS.contains(&protocol))?
        {
            // "When omitted or empty, it defaults to `["mcp"]`."
            none if none.is_empty() => vec!["mcp".to_owned()],
            some => some,
        };
        let description = checked(self.description, description)?;
        Ok(Entry(Tool { protocols, description, version: checked(self.version, version)?, ..tool }))
    }
}

impl Entry {
    /// Accepted protocols.
    #[must_use]
    pub fn protocols(&self) -> &[String] {
        &self.0.protocols
    }

    /// The entry as replicated.
    #[must_use]
    pub fn into_tool(self) -> Tool {
        self.0
    }
}

/// An optional value that passes its check.
fn checked(
    value: Option<String>,
    check: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<Option<String>, Error> {
    value.as_deref().map_or(Ok(()), check)?;
    Ok(value)
}

fn allowed(
    field: &'static str,
    entries: Option<Vec<String>>,
    bytes_max: usize,
) -> Result<Vec<String>, Error> {
    let rule = format!("must be 1 to {bytes_max} printable ASCII characters each");
    list((field, entries, limits::TOOL_ALLOWED_MAX), &rule, |entry| text::is_printable(entry, bytes_max))
}

fn broken(field: &'static str, rule: impl Into<String>) -> Error {
    Error { field, rule: rule.into() }
}

/// 1 to 256 printable ASCII characters without `/?#%` and space (contract §5). Not a dot segment: URLs drop them
/// (RFC 3986 §5.2.4), so the tool could be neither read nor deregistered.
fn tool_id(value: Option<String>) -> Result<String, Error> {
    let tool_id = value.ok_or_else(|| broken("tool_id", "is required"))?;
    let well_formed = text::is_printable(&tool_id, limits::TOOL_ID_BYTES_MAX)
        && !tool_id.contains(['/', '?', '#', '%'])
        && !matches!(tool_id.as_str(), "." | "..");
    if well_formed {
        return Ok(tool_id);
    }
    let rule = format!(
        "must be 1 to {} printable ASCII characters without space, '/', '?', '#', '%', and not '.' or '..'",
        limits::TOOL_ID_BYTES_MAX
    );
    Err(broken("tool_id", rule))
}

fn name(value: Option<String>) -> Result<String, Error> {
    let name = value.ok_or_else(|| broken("name", "is required"))?;
    if text::is_display(&name, limits::TOOL_NAME_BYTES_MAX) {
        return Ok(name);
    }
    let bytes_max = limits::TOOL_NAME_BYTES_MAX;
    Err(broken("name", format!("must be 1 to {bytes_max} bytes of UTF-8 without control characters")))
}

/// A description may have several lines, but no other control characters, which a terminal would interpret.
fn description(value: &str) -> Result<(), Error> {
    let is_interpreted = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    if value.len() <= limits::TOOL_DESCRIPTION_BYTES_MAX && !value.contains(is_interpreted) {
        return Ok(());
    }
    let bytes_max = limits::TOOL_DESCRIPTION_BYTES_MAX;
    let rule =
        format!("must be at most {bytes_max} bytes of UTF-8, without control characters except line breaks");
    Err(broken("description", rule))
}

/// RFC 8707 §2: "MUST be an absolute URI", "MUST NOT include a fragment component". Not normalized: `aud` is compared
/// byte for byte.
fn resource_uri(value: &str) -> Result<(), Error> {
    let well_formed = text::is_printable(value, limits::URI_BYTES_MAX)
        && !value.contains(['#', '"', '<', '>', '\\', '^', '`', '{', '|', '}'])
        && Url::parse(value).is_ok();
    if well_formed {
        return Ok(());
    }
    let rule =
        format!("must be an absolute URI without a fragment, of at most {} bytes", limits::URI_BYTES_MAX);
    Err(broken("resource_uri", rule))
}

fn max_blast_radius(value: &str) -> Result<(), Error> {
    let parsed = value.parse::<BlastRadius>();
    parsed.map(drop).map_err(|error| broken("max_blast_radius", error.to_string()))
}

fn version(value: &str) -> Result<(), Error> {
    if value.len() <= limits::TOOL_VERSION_BYTES_MAX && semver::Version::parse(value).is_ok() {
        return Ok(());
    }
    let rule = format!(
        "must be a semantic version, for example 1.2.0, of at most {} bytes",
        limits::TOOL_VERSION_BYTES_MAX
    );
    Err(broken("version", rule))
}

/// A list of distinct entries that all satisfy `rule`.
fn list(
    (field, entries, entries_max): (&'static str, Option<Vec<String>>, usize),
    rule: &str,
    is_valid: impl Fn(&str) -> bool,
) -> Result<Vec<String>, Error> {
    let entries = entries.unwrap_or_default();
    if entries.len() > entries_max {
        return Err(broken(field, format!("must not have more than {entries_max} entries")));
    }
    if !entries.iter().all(|entry| is_valid(entry)) {
        return Err(broken(field, rule));
    }
    let mut sorted: Vec<&String> = entries.iter().collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
        return Err(broken(field, "must not have duplicate entries"));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smallest() -> ToolEntry {
        ToolEntry { tool_id: Some("t".to_owned()), name: Some("n".to_owned()), ..ToolEntry::default() }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the type of the fields")]
    fn words(texts: &[&str]) -> Option<Vec<String>> {
        Some(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    /// Different words.
    #[expect(clippy::unnecessary_wraps, reason = "the type of the fields")]
    fn many(count: usize) -> Option<Vec<String>> {
        Some((0..count).map(|at| format!("w{at}")).collect())
    }

    #[track_caller]
    fn passes(change: impl FnOnce(&mut ToolEntry)) -> Entry {
        let mut input = smallest();
        change(&mut input);
        input.validate().expect("passes")
    }

    #[track_caller]
    fn is_refused(field: &str, change: impl FnOnce(&mut ToolEntry)) {
        let mut input = smallest();
        change(&mut input);
        let debug = format!("{input:?}");
        let error = input.validate().expect_err(&debug);
        assert_eq!(error.field, field, "{debug}: {error}");
    }

    #[test]
    fn entry_without_protocols_accepts_mcp() {
        assert_eq!(passes(|_| ()).protocols(), ["mcp"]);
        let every = passes(|input| input.protocols = words(Protocol::TEXTS));
        assert_eq!(every.protocols(), Protocol::TEXTS);
    }

    #[test]
    fn tool_id_is_one_url_path_segment_with_one_spelling() {
        for id in ["t", "a.b", "...", "<>\"`{}|^~!*'()", "wimse:x", "a@b", "&=+$,;", "\\", "[]"] {
            passes(|input| input.tool_id = Some(id.to_owned()));
        }
        for id in [
            "",
            ".",
            "..",
            "a/b",
            "a?b",
            "a#b",
            "a%2fb",
            "a b",
            " a",
            "a\n",
            "\u{7f}",
            "t\u{f6}\u{f6}l",
            "\u{202e}a",
        ] {
            is_refused("tool_id", |input| input.tool_id = Some(id.to_owned()));
        }
        is_refused("tool_id", |input| input.tool_id = None);
    }

    #[test]
    fn name_and_description_have_no_terminal_control_characters() {
        for name in ["\u{5d0}\u{5d1}", "\u{202e}eman", "\u{1f527}", "a \"b\" <c>", "'; DROP TABLE tools; --"]
        {
            passes(|input| input.name = Some(name.to_owned()));
        }
        for name in ["", "a\nb", "\u{1b}[31m", "a\0", "a\u{9b}31m", "\t", "a\u{7f}"] {
            is_refused("name", |input| input.name = Some(name.to_owned()));
        }
        is_refused("name", |input| input.name = None);
        passes(|input| input.description = Some("one\r\n\ttwo\n".to_owned()));
        passes(|input| input.description = Some(String::new()));
        for description in ["\u{1b}[31m", "a\0", "a\u{9b}31m"] {
            is_refused("description", |input| input.description = Some(description.to_owned()));
        }
    }

    #[test]
    fn resource_is_an_absolute_uri_without_a_fragment() {
        for uri in ["https://tools.example/sql", "HTTPS://Tools.Example:443", "urn:x:y", "mcp://h/p?q=1"] {
            let entry = passes(|input| input.resource_uri = Some(uri.to_owned()));
            assert_eq!(entry.into_tool().resource_uri.as_deref(), Some(uri), "not normalized");
        }
        for uri in [
            "",
            "/sql",
            "tools.example/sql",
            "//tools.example",
            "https://tools.example/#",
            "https://tools.example/#a",
            "https://",
            "https://a b",
            " https://a",
            "https://a\n",
            "https://[::1",
            "https://t\u{f6}l.example",
            "https://a/<b>",
            "1a:b",
        ] {
            is_refused("resource_uri", |input| input.resource_uri = Some(uri.to_owned()));
        }
    }

    #[test]
    fn requirement_that_no_token_can_meet_is_refused() {
        passes(|input| input.required_capabilities = words(&["db.read", "a:b/c"]));
        for word in ["", "a b", "a\"", "a\\", "\u{e9}", "a\n"] {
            is_refused("required_capabilities", |input| input.required_capabilities = words(&[word]));
        }
        for radius in ["namespace", "namespace:pay", "workspace:pay/ledger"] {
            passes(|input| input.max_blast_radius = Some(radius.to_owned()));
        }
        for radius in
            ["", ":", "namespace:", "Namespace", "namespace:a b", "namespace:../x", "namespace:a//b"]
        {
            is_refused("max_blast_radius", |input| input.max_blast_radius = Some(radius.to_owned()));
        }
        for operation in ["", "a b", "\u{e9}"] {
            is_refused("allowed_operations", |input| input.allowed_operations = words(&[operation]));
        }
        for target in ["", "https://a b", "\u{e9}", "a\n"] {
            is_refused("allowed_targets", |input| input.allowed_targets = words(&[target]));
        }
    }

    #[test]
    fn requires_execution_needs_operations_or_targets() {
        is_refused("requires_execution", |input| input.requires_execution = Some(true));
        passes(|input| {
            input.requires_execution = Some(true);
            input.allowed_operations = words(&["GET"]);
        });
        passes(|input| {
            input.requires_execution = Some(true);
            input.allowed_targets = words(&["https://tools.example/sql"]);
        });
    }

    #[test]
    fn malformed_protocol_or_version_is_refused() {
        for protocol in ["", "MCP", "grpc", "a2a", "mcp "] {
            is_refused("protocols", |input| input.protocols = words(&[protocol]));
        }
        for version in ["1.2.0", "0.0.1-alpha.1+build.5"] {
            passes(|input| input.version = Some(version.to_owned()));
        }
        for version in ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3.4", "1.2.3-", "1.2.x", "latest"] {
            is_refused("version", |input| input.version = Some(version.to_owned()));
        }
    }

    #[test]
    fn duplicate_list_entry_is_refused() {
        let twice = || words(&["http", "mcp", "http"]);
        is_refused("required_capabilities", |input| input.required_capabilities = twice());
        is_refused("allowed_operations", |input| input.allowed_operations = twice());
        is_refused("allowed_targets", |input| input.allowed_targets = twice());
        is_refused("protocols", |input| input.protocols = twice());
    }

    #[test]
    fn longest_field_passes_and_one_byte_more_is_refused() {
        type Set = fn(&mut ToolEntry, String);
        let cases: [(&str, usize, Set); 8] = [
            ("tool_id", limits::TOOL_ID_BYTES_MAX, |m, text| m.tool_id = Some(text)),
            ("name", limits::TOOL_NAME_BYTES_MAX, |m, text| m.name = Some(text)),
            ("description", limits::TOOL_DESCRIPTION_BYTES_MAX, |m, text| m.description = Some(text)),
            ("resource_uri", limits::URI_BYTES_MAX, |m, text| {
                m.resource_uri = Some(text.replacen("aa", "a:", 1));
            }),
            ("required_capabilities", limits::CAPABILITY_BYTES_MAX, |m, text| {
                m.required_capabilities = Some(vec![text]);
            }),
            ("allowed_operations", limits::OPAQUE_BYTES_MAX, |m, text| {
                m.allowed_operations = Some(vec![text]);
            }),
            ("allowed_targets", limits::URI_BYTES_MAX, |m, text| m.allowed_targets = Some(vec![text])),
            ("version", limits::TOOL_VERSION_BYTES_MAX, |m, text| {
                m.version = Some(text.replacen("aaaaaa", "1.2.3-", 1));
            }),
        ];
        for (field, bytes_max, set) in cases {
            passes(|input| set(input, "a".repeat(bytes_max)));
            is_refused(field, |input| set(input, "a".repeat(bytes_max + 1)));
        }
    }

    #[test]
    fn longest_list_passes_and_one_entry_more_is_refused() {
        passes(|input| {
            input.required_capabilities = many(limits::CAPABILITIES_MAX);
            input.allowed_operations = many(limits::TOOL_ALLOWED_MAX);
            input.allowed_targets = many(limits::TOOL_ALLOWED_MAX);
        });
        let more = limits::TOOL_ALLOWED_MAX + 1;
        is_refused("required_capabilities", |m| m.required_capabilities = many(limits::CAPABILITIES_MAX + 1));
        is_refused("allowed_operations", |m| m.allowed_operations = many(more));
        is_refused("allowed_targets", |m| m.allowed_targets = many(more));
    }
}
