//! The registry of tools as replicated state.

use super::command::{DeregisterTool, PutTool, Refusal, Reply};
use super::tables::Tables;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn put(_tables: &mut Tables<'_>, _now: Timestamp, _command: PutTool) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn deregister(_tables: &mut Tables<'_>, _command: &DeregisterTool) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}
