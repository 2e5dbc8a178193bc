//! An audit entry and its hash. Fields are strings and one number in alphabetical order, so that the serialized entry is
//! RFC 8785 canonical JSON and any party can recompute the hash.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Action, Decision, Draft};
use crate::limits;
use crate::state::AuditHash;

/// Beginning of the field after `hash`.
const ID: &[u8] = b",\"id\":\"";
/// [`limits::AUDIT_BUCKETS`], of which each fits into a byte.
const BUCKETS: u8 = {
    assert!(limits::AUDIT_BUCKETS <= 128);
    #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
    let buckets = limits::AUDIT_BUCKETS as u8;
    buckets
};

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
    /// Number of equal denials that this entry represents; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
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
    /// `hash` of the previous entry of this node about the same tool by callers of the same bucket; empty for the first.
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
            action: Some(draft.action.into_str().to_owned()),
            actor: draft.actor,
            caller: draft.caller,
            caller_actor: draft.caller_actor,
            check: draft.check.map(str::to_owned),
            count: draft.count,
            decision: draft.decision.into_str().to_owned(),
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

    /// [`Self::seal`], and the text of the sealed entry: serialized once.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn into_sealed(mut self) -> Result<(AuditHash, Vec<u8>), serde_json::Error> {
        self.hash.clear();
        let mut text = serde_json::to_vec(&self)?;
        let hash = sha256(&text);
        // `hash` comes before `id`. In a text the quotes would be escaped.
        let at = text.windows(ID.len()).position(|part| part == ID).unwrap_or_default();
        text.splice(at..at, format!(",\"hash\":\"{}\"", text_of(&hash)).into_bytes());
        Ok((hash, text))
    }

    /// Bucket of its caller.
    #[must_use]
    pub fn bucket(&self) -> u8 {
        bucket_of(self.caller.as_deref())
    }
}

/// Bucket of a caller: the first byte of the SHA-256 of its identity, modulo [`limits::AUDIT_BUCKETS`]. Without an
/// authenticated caller: of the empty text.
#[must_use]
pub fn bucket_of(caller: Option<&str>) -> u8 {
    let [first, ..] = sha256(caller.unwrap_or_default().as_bytes());
    first % BUCKETS
}

/// A block of one node's entries, as exported. Its hash covers the fields except `entries`, of which it covers the hashes
/// by `content`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditBlockDocument {
    /// Bucket of the callers of the entries.
    pub bucket: u8,
    /// Base64url SHA-256 of the JSON array of the hashes of the entries.
    pub content: String,
    /// Number of entries.
    pub count: u64,
    /// Entries, oldest first; absent if they were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<Entry>>,
    /// Time of the first entry.
    pub first: String,
    /// Base64url SHA-256 of the RFC 8785 form of the block without this field and `entries`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Time of the last entry.
    pub last: String,
    /// Node that wrote it.
    pub node_id: u64,
    /// `hash` of the node's previous block; empty for the first.
    pub prev_hash: String,
    /// Number among the node's blocks, from 1.
    pub sequence: u64,
}

impl AuditBlockDocument {
    /// `hash` as computed from the other fields.
    ///
    /// # Errors
    /// None in practice: numbers and strings serialize.
    pub fn computed_hash(&self) -> Result<AuditHash, serde_json::Error> {
        let header = Self {
            content: self.content.clone(),
            first: self.first.clone(),
            last: self.last.clone(),
            prev_hash: self.prev_hash.clone(),
            entries: None,
            hash: String::new(),
            ..*self
        };
        Ok(sha256(&serde_json::to_vec(&header)?))
    }
}

/// Hash of a block's content, from the hashes of its entries.
///
/// # Errors
/// None in practice: strings serialize.
pub fn content_hash(entries: &[String]) -> Result<AuditHash, serde_json::Error> {
    Ok(sha256(&serde_json::to_vec(entries)?))
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
