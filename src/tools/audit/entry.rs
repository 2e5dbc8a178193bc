//! An audit entry and its hash. Fields are strings in alphabetical order, so that the serialized entry is RFC 8785
//! canonical JSON and any party can recompute the hash.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Action, Decision, Draft};
use crate::state::AuditHash;

/// An audit entry (contract §5). Fields that do not apply are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AuditEntry)]
pub struct Entry {
    /// The action; absent in an entry about the audit itself.
    #[schema(value_type = Option<Action>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Current actor of a verified token (RFC 8693 §4.1); of an administrative act, the acting identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Authenticated caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Actor of the caller's bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_actor: Option<String>,
    /// The check that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The decision.
    #[schema(value_type = Decision)]
    pub decision: String,
    /// Base64url SHA-256 of the RFC 8785 form of the entry without this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// A UUID (RFC 9562).
    pub id: String,
    /// `jti` of a verified token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// Node that wrote the entry.
    pub node: String,
    /// Reason, for people.
    pub notes: String,
    /// `hash` of the previous entry of this node about the same tool; empty for the first.
    pub prev_hash: String,
    /// Protocol of a tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `X-Request-Id` of the request; empty in an entry about the audit itself.
    pub request_id: String,
    /// `sub` of the presented token, empty if check 1 failed. Of a write to the registry or an administrative act: the
    /// caller. Empty in an entry about the audit itself.
    pub subject: String,
    /// RFC 3339, UTC, milliseconds.
    pub timestamp: String,
    /// The tool; empty in an entry about an administrative act or the audit itself.
    pub tool_id: String,
    /// `txn` of a verified token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn: Option<String>,
}

impl Entry {
    /// Fields of a draft; the writer sets the others.
    #[must_use]
    pub fn of(draft: Draft) -> Self {
        Self {
            action: Some(draft.action.as_str().to_owned()),
            actor: draft.actor,
            caller: draft.caller,
            caller_actor: draft.caller_actor,
            check: draft.check.map(str::to_owned),
            decision: draft.decision.as_str().to_owned(),
            jti: draft.jti,
            notes: draft.notes,
            protocol: draft.protocol,
            request_id: draft.request_id,
            subject: draft.subject,
            timestamp: draft.timestamp.to_rfc3339(),
            tool_id: draft.tool_id,
            txn: draft.txn,
            ..Self::default()
        }
    }

    /// Sets `hash` and returns it.
    ///
    /// # Errors
    /// None in practice: an entry of strings serializes.
    pub fn seal(&mut self) -> Result<AuditHash, serde_json::Error> {
        self.hash.clear();
        let hash = sha256(&serde_json::to_vec(self)?);
        self.hash = URL_SAFE_NO_PAD.encode(hash);
        Ok(hash)
    }
}

impl Action {
    /// Wire value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Replace => "replace",
            Self::Deregister => "deregister",
            Self::Verify => "verify",
            Self::Admin => "admin",
        }
    }
}

impl Decision {
    /// Wire value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Error => "error",
        }
    }
}

/// A block of one node's entries, as exported and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditBlockDocument {
    /// Entries, oldest first.
    pub entries: Vec<Entry>,
    /// Base64url SHA-256 of the RFC 8785 form of the block without this field, with each entry replaced by its `hash`.
    pub hash: String,
    /// Node that wrote it.
    pub node_id: u64,
    /// `hash` of the node's previous block; empty for the first.
    pub prev_hash: String,
    /// Number among the node's blocks, from 1.
    pub sequence: u64,
}

/// Hash of a block, from the hashes of its entries.
///
/// # Errors
/// None in practice: numbers and strings serialize.
pub fn block_hash(
    node_id: u64,
    sequence: u64,
    prev_hash: &str,
    entries: &[String],
) -> Result<AuditHash, serde_json::Error> {
    #[derive(Serialize)]
    struct Hashed<'h> {
        entries: &'h [String],
        node_id: u64,
        prev_hash: &'h str,
        sequence: u64,
    }
    Ok(sha256(&serde_json::to_vec(&Hashed { entries, node_id, prev_hash, sequence })?))
}

/// Base64url of a hash.
#[must_use]
pub fn text_of(hash: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(hash)
}

fn sha256(bytes: &[u8]) -> AuditHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}
