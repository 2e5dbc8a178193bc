//! Blocks of audit entries as replicated state. Their contents are never read here.

use super::command::{AppendAuditBlock, Refusal, Reply};
use super::tables::Tables;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn append(
    _tables: &mut Tables<'_>,
    _now: Timestamp,
    _command: AppendAuditBlock,
) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}
