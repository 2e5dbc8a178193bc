//! A tool on the wire: the entry as it comes, the record as it goes out, and its entity tag.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::error::Error;
use crate::clock::Timestamp;
use crate::state::command::{ToolRow, ToolVersion};
use crate::state::stated;
use crate::tools::entry::ToolInput;

/// A tool and what it asks of a token. Unknown members are refused: a constraint must not be dropped
/// silently.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolEntry {
    /// 1 to 256 printable ASCII characters without space, `/`, `?`, `#`, `%`; not `.` or `..`. With PUT it
    /// may be absent, or is the one in the path.
    tool_id: Option<String>,
    /// For people, at most 256 bytes.
    #[schema(required = true)]
    name: Option<String>,
    /// An absolute URI without a fragment: what `aud` of a token must be (RFC 8707).
    resource_uri: Option<String>,
    /// What a token must have.
    required_capabilities: Option<Vec<String>>,
    /// `<kind>[:<name>]`: the most that a token may reach.
    max_blast_radius: Option<String>,
    /// Whether a token must be bound to one call.
    requires_execution: Option<bool>,
    /// Values that `exec_act` may have, with `requires_execution`.
    allowed_operations: Option<Vec<String>>,
    /// Values that `target` may have, with `requires_execution`.
    allowed_targets: Option<Vec<String>>,
    /// Of `mcp`, `http` and `a2a/2025-draft-01`; absent or empty: `mcp`.
    protocols: Option<Vec<String>>,
    /// For people, at most 4096 bytes.
    description: Option<String>,
    /// Of the tool's schema, semver.
    version: Option<String>,
    /// Of the record: ignored, so that what was read can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "it may be there, and means nothing")]
    registered_by: Option<serde_json::Value>,
    /// Of the record: ignored.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "it may be there, and means nothing")]
    registered_at: Option<serde_json::Value>,
    /// Of the record: ignored.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "it may be there, and means nothing")]
    updated_at: Option<serde_json::Value>,
    /// Of the record: ignored.
    #[schema(value_type = Option<u64>)]
    #[expect(dead_code, reason = "it may be there, and means nothing")]
    revision: Option<serde_json::Value>,
}

/// A registered tool. Times are RFC 3339, UTC, in log time.
#[derive(Serialize, ToSchema)]
pub struct ToolRecord {
    /// Its identifier.
    tool_id: String,
    /// For people.
    name: String,
    /// What `aud` of a token must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_uri: Option<String>,
    /// What a token must have.
    required_capabilities: Vec<String>,
    /// The most that a token may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_blast_radius: Option<String>,
    /// Whether a token must be bound to one call.
    requires_execution: bool,
    /// Values that `exec_act` may have; empty: any.
    allowed_operations: Vec<String>,
    /// Values that `target` may have; empty: any.
    allowed_targets: Vec<String>,
    /// By which it can be called.
    protocols: Vec<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Of its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Who registered it, and may change it; absent if nobody said.
    #[serde(skip_serializing_if = "Option::is_none")]
    registered_by: Option<String>,
    /// When it was registered.
    registered_at: String,
    /// When it was last changed.
    updated_at: String,
    /// Counts its changes, from 1.
    revision: u64,
}

impl ToolEntry {
    /// As they came; nothing is checked yet.
    #[must_use]
    pub fn into_members(self) -> ToolInput {
        ToolInput {
            tool_id: self.tool_id,
            name: self.name,
            resource_uri: self.resource_uri,
            required_capabilities: self.required_capabilities.unwrap_or_default(),
            max_blast_radius: self.max_blast_radius,
            requires_execution: self.requires_execution.unwrap_or_default(),
            allowed_operations: self.allowed_operations.unwrap_or_default(),
            allowed_targets: self.allowed_targets.unwrap_or_default(),
            protocols: self.protocols.unwrap_or_default(),
            description: self.description,
            version: self.version,
        }
    }
}

impl ToolRecord {
    /// Of a row.
    ///
    /// # Errors
    /// 500 if the row is not whole.
    pub fn of(row: ToolRow) -> Result<Self, Error> {
        let (Some(tool), Some(version)) = (row.tool, row.version) else {
            return Err(Error::internal("the row of a tool is not whole"));
        };
        Ok(Self {
            tool_id: tool.tool_id,
            name: tool.name,
            resource_uri: tool.resource_uri,
            required_capabilities: tool.required_capabilities,
            max_blast_radius: tool.max_blast_radius,
            requires_execution: tool.requires_execution,
            allowed_operations: tool.allowed_operations,
            allowed_targets: tool.allowed_targets,
            protocols: tool.protocols,
            description: tool.description,
            version: tool.version,
            registered_by: stated(row.registered_by),
            registered_at: Timestamp::from_millis(row.registered_at_millis).to_rfc3339(),
            updated_at: Timestamp::from_millis(row.updated_at_millis).to_rfc3339(),
            revision: version.revision,
        })
    }

    /// Its identifier.
    #[must_use]
    pub fn tool_id(&self) -> &str {
        &self.tool_id
    }
}

/// The strong entity tag of a tool as it is.
///
/// # Errors
/// 500 if the row is not whole.
pub fn etag(row: &ToolRow) -> Result<String, Error> {
    let version = row.version.ok_or_else(|| Error::internal("a tool has no version"))?;
    Ok(text_of(version))
}

fn text_of(version: ToolVersion) -> String {
    format!("\"{}.{}\"", version.registration, version.revision)
}

/// The state that an entity tag names. Tags are compared character by character: only the one spelling
/// counts.
#[must_use]
pub fn version_of(etag: &str) -> Option<ToolVersion> {
    let (registration, revision) = etag.trim_matches('"').split_once('.')?;
    let version = ToolVersion { registration: registration.parse().ok()?, revision: revision.parse().ok()? };
    (text_of(version) == etag).then_some(version)
}
