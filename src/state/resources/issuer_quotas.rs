//! Quotas of the issuers of signals: the rows that each has, and its use of this minute.

use prost::Message as _;

use crate::cluster::Corrupt;
use crate::state::command::RevocationQuotaRow;
use crate::state::tables::{REVOCATION_QUOTA, Tables};

/// Kind of row that counts for an issuer.
#[derive(Clone, Copy, Debug)]
pub enum QuotaKind {
    Revocation,
    Block,
}

/// Increments or decrements a count of an issuer's rows.
pub fn count(tables: &mut Tables<'_>, issuer: &str, kind: QuotaKind, is_more: bool) -> Result<(), Corrupt> {
    let mut row = quota_of(tables, issuer)?;
    let number = match kind {
        QuotaKind::Revocation => &mut row.revocations,
        QuotaKind::Block => &mut row.blocks,
    };
    *number = if is_more { number.saturating_add(1) } else { number.saturating_sub(1) };
    tables.put(REVOCATION_QUOTA, issuer.as_bytes(), row.encode_to_vec());
    Ok(())
}

/// The row of an issuer; the default one if it has none.
pub fn quota_of(tables: &Tables<'_>, issuer: &str) -> Result<RevocationQuotaRow, Corrupt> {
    Ok(tables.message(REVOCATION_QUOTA, issuer.as_bytes())?.unwrap_or_default())
}
