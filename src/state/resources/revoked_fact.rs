//! A revoked or blocked fact as a command states it, and the retention of its row.

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::limits;
use crate::state::command::Fact as FactRow;
use crate::state::tables::EntryTime;
use crate::token::lineage::Fact;

/// Encodes a fact for a command.
#[must_use]
pub fn fact_row(fact: &Fact) -> FactRow {
    FactRow {
        digest: Bytes::copy_from_slice(fact.digest().as_bytes()),
        kind: fact.kind().to_owned(),
        issuer: fact.issuer().to_owned(),
        value: fact.value().to_owned(),
    }
}

/// End of the retention of a revocation or lift at this time, in elapsed time.
#[must_use]
pub fn retained_until(time: EntryTime) -> Timestamp {
    time.elapsed.plus(limits::REVOCATION_RETENTION)
}
