//! The ledger: the revocations, blocks and lifts of this fabric in the order of their log indexes, the latest entry of
//! each fact only, with a sum for each epoch.
//!
//! The rows of revocations and blocks have the contents; here are the order, the state and the sums. Every change of
//! such a row records its entry here, so that a reader with a position misses none.

mod read;
mod sum;
#[cfg(test)]
mod tests;

use prost::Message as _;

pub use self::read::{LedgerCursor, LedgerEntry, LedgerPage, LedgerQuery, LedgerSums, sums_of};
pub use self::sum::{Sum, entry_hash};

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::state::command::{LedgerEpochRow, LedgerRow};
use crate::state::tables::{LEDGER_SUM, REVOCATION_ORDER, Tables};

/// Length of an epoch, in elapsed time.
const EPOCH_MILLIS: i64 = 600_000;
/// Our own ledger in the keys of [`LEDGER_SUM`].
const OWN: [u8; 16] = [0; 16];
/// Length of the key of a revocation. That of a block is longer by the digest of its author.
const WATERMARK_KEY_BYTES: usize = 16;

/// State of a fact. The numbers are hashed, and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[repr(u8)]
pub enum LedgerState {
    /// Everything issued before the entry is refused.
    Revoked = 1,
    /// Everything is refused until the block is lifted.
    Blocked = 2,
    /// A block is lifted.
    Lifted = 3,
    /// Everything is refused, whatever position it states: a signing key of this fabric, or a single token.
    Key = 4,
}

impl LedgerState {
    /// From its number.
    #[must_use]
    pub const fn of_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Revoked),
            2 => Some(Self::Blocked),
            3 => Some(Self::Lifted),
            4 => Some(Self::Key),
            _ => None,
        }
    }
}

/// The epoch of an elapsed time.
#[must_use]
pub fn epoch_of(elapsed: Timestamp) -> u32 {
    u32::try_from(elapsed.millis().div_euclid(EPOCH_MILLIS).max(0)).unwrap_or(u32::MAX)
}

/// Position of an entry in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPosition {
    /// Log index.
    pub index: u64,
    pub epoch: u32,
    pub state: LedgerState,
}

impl EntryPosition {
    fn key(self, fact: &[u8]) -> Vec<u8> {
        order_key(self.index, fact)
    }

    fn to_row(self) -> Vec<u8> {
        [&[self.state as u8][..], &self.epoch.to_be_bytes()].concat()
    }

    /// The position, and the key of the revocation or block.
    fn read<'k>(key: &'k [u8], row: &[u8]) -> Result<(Self, &'k [u8]), Corrupt> {
        let (index, fact) =
            key.split_first_chunk().ok_or_else(|| Corrupt::row("the key of a ledger entry is short"))?;
        let (state, epoch) = row.split_first().ok_or_else(|| Corrupt::row("a ledger entry has no state"))?;
        let state = LedgerState::of_byte(*state);
        let state = state.ok_or_else(|| Corrupt::newer("the ledger has an entry of an unknown state"))?;
        let epoch = epoch.try_into().map_err(|_| Corrupt::row("a ledger entry has no epoch"))?;
        Ok((Self { index: u64::from_be_bytes(*index), epoch: u32::from_be_bytes(epoch), state }, fact))
    }
}

fn order_key(index: u64, fact: &[u8]) -> Vec<u8> {
    [&index.to_be_bytes()[..], fact].concat()
}

/// Key of the sum of an epoch of the ledger of this origin.
#[must_use]
pub fn epoch_key(origin: &[u8], epoch: u32) -> Vec<u8> {
    [origin, &epoch.to_be_bytes()].concat()
}

fn is_watermark(fact: &[u8]) -> bool {
    fact.len() == WATERMARK_KEY_BYTES
}

/// Records that the revocation or block with this key changes in this entry. `before` is the log index of its last
/// change, `None` for a new one.
pub fn record(
    tables: &mut Tables<'_>,
    elapsed: Timestamp,
    fact: &[u8],
    before: Option<u64>,
    state: LedgerState,
) -> Result<(), Corrupt> {
    let mut ledger = row_of(tables, &OWN)?;
    let known = before.map(|before| take(tables, &mut ledger, fact, before)).transpose()?;
    // A later watermark on the same digest covers no less.
    let state =
        known.map_or(state, |known| if known.state == LedgerState::Key { known.state } else { state });
    let position = EntryPosition { index: tables.entry_index(), epoch: epoch_of(elapsed), state };
    tables.put(REVOCATION_ORDER, &position.key(fact), position.to_row());
    change_sum(tables, &OWN, &mut ledger, fact, position, Change::Add)?;
    put_row(tables, &OWN, ledger);
    Ok(())
}

/// Removes the entry of a revocation or block that is deleted after its retention.
pub fn forget(tables: &mut Tables<'_>, fact: &[u8], index: u64) -> Result<(), Corrupt> {
    let mut ledger = row_of(tables, &OWN)?;
    let gone = take(tables, &mut ledger, fact, index)?;
    ledger.forgotten_to = ledger.forgotten_to.max(gone.index);
    if is_watermark(fact) {
        ledger.complete_from = ledger.complete_from.max(gone.epoch.saturating_add(1));
    }
    put_row(tables, &OWN, ledger);
    Ok(())
}

/// Removes the entry of a fact from order and sums.
fn take(
    tables: &mut Tables<'_>,
    ledger: &mut LedgerRow,
    fact: &[u8],
    index: u64,
) -> Result<EntryPosition, Corrupt> {
    let key = order_key(index, fact);
    let row = tables.row(REVOCATION_ORDER, &key)?;
    let row = row.ok_or_else(|| Corrupt::row("a revocation or block is not in the ledger"))?;
    let (position, _) = EntryPosition::read(&key, &row)?;
    tables.delete(REVOCATION_ORDER, &key);
    change_sum(tables, &OWN, ledger, fact, position, Change::Subtract)?;
    Ok(position)
}

/// Change of a sum by one entry.
#[derive(Clone, Copy)]
pub enum Change {
    /// The entry is added.
    Add,
    /// The entry is removed.
    Subtract,
}

impl Change {
    fn apply(self, sum: Sum, hash: [u8; 32]) -> Result<Sum, Corrupt> {
        match self {
            Self::Add => Ok(sum.plus(&Sum::of_one(hash))),
            Self::Subtract => {
                sum.minus_one(hash).ok_or_else(|| Corrupt::row("a sum of the ledger lacks an entry"))
            }
        }
    }
}

/// Changes the sums of the ledger of this origin. Watermarks count in their epoch, blocks in force in a sum of their own,
/// lifts nowhere.
pub fn change_sum(
    tables: &mut Tables<'_>,
    origin: &[u8],
    ledger: &mut LedgerRow,
    fact: &[u8],
    position: EntryPosition,
    change: Change,
) -> Result<(), Corrupt> {
    let hash = entry_hash(fact, position.state, position.index, position.epoch);
    if !is_watermark(fact) {
        if position.state == LedgerState::Blocked {
            ledger.blocks = Some(change.apply(Sum::read(ledger.blocks.as_ref())?, hash)?.to_row());
        }
        return Ok(());
    }
    let key = epoch_key(origin, position.epoch);
    let known = tables.message::<LedgerEpochRow>(LEDGER_SUM, &key)?;
    let row = known.unwrap_or(LedgerEpochRow { watermarks: None, first_index: position.index });
    let sum = change.apply(Sum::read(row.watermarks.as_ref())?, hash)?;
    if sum.count == 0 {
        tables.delete(LEDGER_SUM, &key);
    } else {
        let row = LedgerEpochRow { watermarks: Some(sum.to_row()), ..row };
        tables.put(LEDGER_SUM, &key, row.encode_to_vec());
    }
    Ok(())
}

/// The ledger of this origin, without its epochs.
pub fn row_of(tables: &Tables<'_>, origin: &[u8]) -> Result<LedgerRow, Corrupt> {
    Ok(tables.message(LEDGER_SUM, origin)?.unwrap_or_default())
}

/// Stores it as changed by this entry.
pub fn put_row(tables: &mut Tables<'_>, origin: &[u8], ledger: LedgerRow) {
    let row = LedgerRow { changed_at: tables.entry_index(), ..ledger };
    tables.put(LEDGER_SUM, origin, row.encode_to_vec());
}
