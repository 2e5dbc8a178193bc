//! A tool on the wire: entry, record and entity tag.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::error::Error;
use crate::api::openapi::values;
use crate::clock::Timestamp;
use crate::state::command::{ToolRow, ToolVersion};
use crate::state::stated;
use crate::tools::entry::ToolInput;

/// A tool and its requirements on tokens. Unknown fields are refused, so that no requirement is dropped silently.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolEntry {
    /// 1 to 256 printable ASCII characters without space, `/`, `?`, `#`, `%`; not `.` or `..`. With PUT it is optional
    /// and equals the one in the path.
    tool_id: Option<String>,
    /// Human-readable, at most 256 bytes.
    #[schema(required = true, value_type = String)]
    name: Option<String>,
    /// An absolute URI without a fragment; the required `aud` of tokens (RFC 8707).
    resource_uri: Option<String>,
    /// Capabilities that a token needs.
    required_capabilities: Option<Vec<String>>,
    /// `<kind>[:<name>]`: the largest blast radius of a token.
    max_blast_radius: Option<String>,
    /// Whether a token must have an execution scope.
    requires_execution: Option<bool>,
    /// Allowed values of `exec_act`, with `requires_execution`.
    allowed_operations: Option<Vec<String>>,
    /// Allowed values of `target`, with `requires_execution`.
    allowed_targets: Option<Vec<String>>,
    /// Supported protocols; the default is `mcp`.
    #[schema(value_type = Option<Vec<values::Protocol>>)]
    protocols: Option<Vec<String>>,
    /// Human-readable, at most 4096 bytes.
    description: Option<String>,
    /// Version of the tool's schema, semver.
    version: Option<String>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    registered_by: Option<serde_json::Value>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    registered_at: Option<serde_json::Value>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    updated_at: Option<serde_json::Value>,
    /// Ignored, so that a record can be sent back.
    #[schema(value_type = Option<u64>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    revision: Option<serde_json::Value>,
}

/// A registered tool. Times are log time, RFC 3339, UTC.
#[derive(Serialize, ToSchema)]
pub struct ToolRecord {
    /// Its identifier.
    tool_id: String,
    /// Human-readable.
    name: String,
    /// The required `aud` of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_uri: Option<String>,
    /// Capabilities that a token needs.
    required_capabilities: Vec<String>,
    /// The largest blast radius of a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_blast_radius: Option<String>,
    /// Whether a token must have an execution scope.
    requires_execution: bool,
    /// Allowed values of `exec_act`; empty: any.
    allowed_operations: Vec<String>,
    /// Allowed values of `target`; empty: any.
    allowed_targets: Vec<String>,
    /// Supported protocols.
    #[schema(value_type = Vec<values::Protocol>)]
    protocols: Vec<String>,
    /// Human-readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Version of the tool's schema, semver.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
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

impl ToolEntry {
    /// The fields, unvalidated.
    #[must_use]
    pub fn into_input(self) -> ToolInput {
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
    /// # Errors
    /// 500 if the row is incomplete.
    pub fn of(row: ToolRow) -> Result<Self, Error> {
        let (Some(tool), Some(version)) = (row.tool, row.version) else {
            return Err(Error::internal("the row of a tool is incomplete"));
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

/// The strong entity tag of a tool.
///
/// # Errors
/// 500 if the row is incomplete.
pub fn etag(row: &ToolRow) -> Result<String, Error> {
    let version = row.version.ok_or_else(|| Error::internal("a tool has no version"))?;
    Ok(text_of(version))
}

fn text_of(version: ToolVersion) -> String {
    format!("\"{}.{}\"", version.registration, version.revision)
}

/// The version that an entity tag names. Tags are compared character by character, so only one spelling counts.
#[must_use]
pub fn version_of(etag: &str) -> Option<ToolVersion> {
    let (registration, revision) = etag.trim_matches('"').split_once('.')?;
    let version = ToolVersion { registration: registration.parse().ok()?, revision: revision.parse().ok()? };
    (text_of(version) == etag).then_some(version)
}
