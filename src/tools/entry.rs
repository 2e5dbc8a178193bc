//! A tool entry that keeps every rule (contract §5; specification, "Universal tool entry").

use url::Url;

use crate::limits;
use crate::policy::blast_radius::BlastRadius;
use crate::state::command::Tool;

/// The protocols by which a tool can be called (specification, "Universal tool entry").
pub const PROTOCOLS: [&str; 3] = ["mcp", "http", "a2a/2025-draft-01"];

/// What a protocol must be, for people.
pub const PROTOCOL_RULE: &str = "must be mcp, http or a2a/2025-draft-01";

/// A rule of the entry that is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{member}: {rule}")]
pub struct Error {
    /// The member.
    pub member: &'static str,
    /// What holds for it.
    pub rule: String,
}

/// The members as they came; nothing is checked yet. Absent is `None` or empty.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Unique identifier of the tool.
    pub tool_id: Option<String>,
    /// For people.
    pub name: Option<String>,
    /// What `aud` of a token must be (RFC 8707).
    pub resource_uri: Option<String>,
    /// What a token must have.
    pub required_capabilities: Vec<String>,
    /// The most that a token may reach.
    pub max_blast_radius: Option<String>,
    /// Whether a token must be bound to one call.
    pub requires_execution: bool,
    /// Values of `exec_act`.
    pub allowed_operations: Vec<String>,
    /// Values of `target`.
    pub allowed_targets: Vec<String>,
    /// By which it can be called; empty is `mcp`.
    pub protocols: Vec<String>,
    /// For people.
    pub description: Option<String>,
    /// Of its schema, semver.
    pub version: Option<String>,
}

/// An entry that keeps every rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(Tool);

impl Entry {
    /// Checks the members in the order of the specification's table.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn read(members: Members) -> Result<Self, Error> {
        let tool_id = tool_id(members.tool_id)?;
        let name = name(members.name)?;
        resource_uri(members.resource_uri.as_deref())?;
        list(
            ("required_capabilities", &members.required_capabilities, limits::CAPABILITIES_MAX),
            &format!("must be words of 1 to {} printable ASCII characters", limits::CAPABILITY_BYTES_MAX),
            is_scope_word,
        )?;
        max_blast_radius(members.max_blast_radius.as_deref())?;
        list(
            ("allowed_operations", &members.allowed_operations, limits::TOOL_ALLOWED_MAX),
            &format!("must be 1 to {} printable ASCII characters each", limits::OPAQUE_BYTES_MAX),
            |operation| is_printable(operation, limits::OPAQUE_BYTES_MAX),
        )?;
        list(
            ("allowed_targets", &members.allowed_targets, limits::TOOL_ALLOWED_MAX),
            &format!("must be 1 to {} printable ASCII characters each", limits::URI_BYTES_MAX),
            |target| is_printable(target, limits::URI_BYTES_MAX),
        )?;
        if members.requires_execution
            && members.allowed_operations.is_empty()
            && members.allowed_targets.is_empty()
        {
            let rule = "needs allowed_operations or allowed_targets: there is nothing to bind a call to";
            return Err(broken("requires_execution", rule));
        }
        let every = ("protocols", members.protocols.as_slice(), PROTOCOLS.len());
        list(every, PROTOCOL_RULE, |protocol| PROTOCOLS.contains(&protocol))?;
        let protocols = match members.protocols {
            // "When omitted or empty, it defaults to `["mcp"]`."
            none if none.is_empty() => vec!["mcp".to_owned()],
            some => some,
        };
        description(members.description.as_deref())?;
        version(members.version.as_deref())?;
        Ok(Self(Tool {
            tool_id,
            name,
            resource_uri: members.resource_uri,
            required_capabilities: members.required_capabilities,
            max_blast_radius: members.max_blast_radius,
            requires_execution: members.requires_execution,
            allowed_operations: members.allowed_operations,
            allowed_targets: members.allowed_targets,
            protocols,
            description: members.description,
            version: members.version,
        }))
    }

    /// By which protocols the tool can be called.
    #[must_use]
    pub fn protocols(&self) -> &[String] {
        &self.0.protocols
    }

    /// As the log has it.
    #[must_use]
    pub fn into_tool(self) -> Tool {
        self.0
    }
}

fn broken(member: &'static str, rule: impl Into<String>) -> Error {
    Error { member, rule: rule.into() }
}

/// Contract §5: "1–256 printable ASCII without `/?#%` or space". A dot segment cannot be the end of a
/// URL (RFC 3986 §5.2.4), so a tool of that name could be neither read nor deregistered.
fn tool_id(given: Option<String>) -> Result<String, Error> {
    let tool_id = given.ok_or_else(|| broken("tool_id", "is required"))?;
    let well_formed = is_printable(&tool_id, limits::TOOL_ID_BYTES_MAX)
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

fn name(given: Option<String>) -> Result<String, Error> {
    let name = given.ok_or_else(|| broken("name", "is required"))?;
    if (1..=limits::TOOL_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control) {
        return Ok(name);
    }
    let bytes_max = limits::TOOL_NAME_BYTES_MAX;
    Err(broken("name", format!("must be 1 to {bytes_max} bytes of UTF-8 without control characters")))
}

/// A description may have several lines, and nothing else that a terminal would obey.
fn description(given: Option<&str>) -> Result<(), Error> {
    let Some(given) = given else { return Ok(()) };
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    if given.len() <= limits::TOOL_DESCRIPTION_BYTES_MAX && !given.contains(is_obeyed) {
        return Ok(());
    }
    let bytes_max = limits::TOOL_DESCRIPTION_BYTES_MAX;
    let rule =
        format!("must be at most {bytes_max} bytes of UTF-8, without control characters but line breaks");
    Err(broken("description", rule))
}

/// RFC 8707 §2: "MUST be an absolute URI", "MUST NOT include a fragment component". Stored as it was
/// given: `aud` is compared byte for byte.
fn resource_uri(given: Option<&str>) -> Result<(), Error> {
    let Some(given) = given else { return Ok(()) };
    let well_formed = is_printable(given, limits::URI_BYTES_MAX)
        && !given.contains(['#', '"', '<', '>', '\\', '^', '`', '{', '|', '}'])
        && Url::parse(given).is_ok();
    if well_formed {
        return Ok(());
    }
    let rule =
        format!("must be an absolute URI without a fragment, of at most {} bytes", limits::URI_BYTES_MAX);
    Err(broken("resource_uri", rule))
}

fn max_blast_radius(given: Option<&str>) -> Result<(), Error> {
    let Some(given) = given else { return Ok(()) };
    let parsed = given.parse::<BlastRadius>();
    parsed.map(drop).map_err(|error| broken("max_blast_radius", error.to_string()))
}

fn version(given: Option<&str>) -> Result<(), Error> {
    let Some(given) = given else { return Ok(()) };
    if given.len() <= limits::TOOL_VERSION_BYTES_MAX && semver::Version::parse(given).is_ok() {
        return Ok(());
    }
    let rule = format!(
        "must be a semantic version, for example 1.2.0, of at most {} bytes",
        limits::TOOL_VERSION_BYTES_MAX
    );
    Err(broken("version", rule))
}

/// A list whose entries all are as `rule` says, each once.
fn list(
    (member, entries, entries_max): (&'static str, &[String], usize),
    rule: &str,
    keeps_it: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    if entries.len() > entries_max {
        return Err(broken(member, format!("must not have more than {entries_max} entries")));
    }
    if !entries.iter().all(|entry| keeps_it(entry)) {
        return Err(broken(member, rule));
    }
    let mut sorted: Vec<&String> = entries.iter().collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
        return Err(broken(member, "must not name anything twice"));
    }
    Ok(())
}

/// RFC 6749 §3.3: what a capability of a token can be.
fn is_scope_word(text: &str) -> bool {
    is_printable(text, limits::CAPABILITY_BYTES_MAX) && !text.contains(['"', '\\'])
}

fn is_printable(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}
