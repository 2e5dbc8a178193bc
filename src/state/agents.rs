//! Agents as replicated state.

use super::command::{IssueAgent, Refusal, Reply, RevokeAgent};
use super::tables::Tables;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn issue(_tables: &mut Tables<'_>, _now: Timestamp, _command: IssueAgent) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn revoke(
    _tables: &mut Tables<'_>,
    _now: Timestamp,
    _index: u64,
    _command: &RevokeAgent,
) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}
