//! Encryption keys of agents as replicated state.

use super::command::{Refusal, RegisterEncryptionKey, Reply};
use super::tables::Tables;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;

/// Stub.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn register(
    _tables: &mut Tables<'_>,
    _now: Timestamp,
    _command: RegisterEncryptionKey,
) -> Result<Reply, Corrupt> {
    Ok(Reply::Refused(Refusal::Unspecified))
}
