//! The refusal of a command whose caller is blocked by the time it is applied.

use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::state::CallerFacts;
use crate::state::command;
use crate::state::resources::revocation_index::{Epoch, RevocationIndex};
use crate::state::resources::{revocations, subject_blocks};
use crate::state::tables::{BLOCK, REVOCATION, Tables};

/// Whether the caller of a command is blocked, or for a bearer token revoked, in the state after the commands before
/// it. `known` is the state before this entry, in memory: only digests that the entry has changed are read from the
/// tables.
pub fn is_refused(
    tables: &Tables<'_>,
    known: &RevocationIndex,
    epoch: Epoch,
    caller: &command::Caller,
) -> Result<bool, Corrupt> {
    let caller = CallerFacts::from_row(caller)?;
    let is_changed = |fact: &Digest128| {
        [REVOCATION, BLOCK].into_iter().any(|table| tables.has_changed_under(table, fact.as_bytes()))
    };
    let (changed, unchanged): (Vec<_>, Vec<_>) = caller.digests().iter().copied().partition(is_changed);
    if caller.is_refused_by(known, epoch, &unchanged) {
        return Ok(true);
    }
    if changed.is_empty() {
        return Ok(false);
    }
    let current = RevocationIndex::default();
    for fact in &changed {
        if let Some(row) = tables.row(REVOCATION, fact.as_bytes())? {
            let (digest, index, at) = revocations::watermark(fact.as_bytes(), &row)?;
            current.put(digest, index, at)?;
        }
        if subject_blocks::is_fact_blocked(tables, fact)? {
            current.set_block(*fact, *fact, true);
        }
    }
    Ok(caller.is_refused_by(&current, epoch, &changed))
}
