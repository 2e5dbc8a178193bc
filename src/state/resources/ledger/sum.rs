//! The sums of `svc-ledger-sum-sha256-v1`: the hash of an entry, a sum of hashes modulo 2^256, and the root over the
//! sums of a ledger.
//!
//! A sum detects loss and faults. It proves nothing about a ledger whose author chooses its entries.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

use super::{LedgerState, is_watermark};
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::state::command::LedgerSum;

const ENTRY: u8 = 0;
const ROOT: u8 = 1;

/// Number of entries, and the sum of their hashes modulo 2^256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of entries.
    pub count: u64,
    /// Sum of their hashes, big-endian.
    pub bytes: [u8; 32],
}

impl Sum {
    /// One entry.
    #[must_use]
    pub const fn of_one(hash: [u8; 32]) -> Self {
        Self { count: 1, bytes: hash }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        let mut carry = 0;
        for (byte, other) in self.bytes.iter_mut().zip(other.bytes).rev() {
            let sum = u16::from(*byte) + u16::from(other) + carry;
            *byte = sum.to_be_bytes()[1];
            carry = sum >> 8;
        }
        Self { count: self.count.saturating_add(other.count), ..self }
    }

    /// Without one entry; `None` if there is none.
    pub fn minus_one(self, hash: [u8; 32]) -> Option<Self> {
        let count = self.count.checked_sub(1)?;
        // The negative of a number is its complement plus one.
        let mut one = [0; 32];
        one[31] = 1;
        let negative = Self::of_one(hash.map(|byte| !byte)).plus(&Self::of_one(one));
        Some(Self { count, ..self.plus(&negative) })
    }

    /// Decodes a field of a row; absent: zero.
    pub fn read(row: Option<&LedgerSum>) -> Result<Self, Corrupt> {
        let Some(row) = row else { return Ok(Self::default()) };
        let bytes = row.sum.as_ref().try_into();
        let bytes = bytes.map_err(|_| Corrupt::row("a sum of the ledger is not 32 bytes"))?;
        Ok(Self { count: row.count, bytes })
    }

    /// Encodes it as a field of a row.
    #[must_use]
    pub fn to_row(self) -> LedgerSum {
        LedgerSum { count: self.count, sum: Bytes::copy_from_slice(&self.bytes) }
    }
}

/// Hash of an entry. A block has the digest of its author in place of the epoch.
#[must_use]
pub fn entry_hash(fact: &[u8], state: LedgerState, index: u64, epoch: u32) -> [u8; 32] {
    let (id, by) = fact.split_at(fact.len().min(16));
    let mut context = Context::new(&SHA256);
    context.update(&[ENTRY]);
    context.update(id);
    context.update(&[state as u8]);
    context.update(&index.to_be_bytes());
    if is_watermark(fact) {
        context.update(&epoch.to_be_bytes());
    } else {
        context.update(by);
    }
    finish(context)
}

/// The root over epochs from `floor` on, in order, and the blocks in force.
pub(super) fn root(incarnation: &Incarnation, floor: u32, epochs: &[(u32, Sum)], blocks: &Sum) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(&[ROOT]);
    context.update(incarnation.as_bytes());
    context.update(&floor.to_be_bytes());
    for (epoch, sum) in epochs {
        context.update(&epoch.to_be_bytes());
        update(&mut context, sum);
    }
    update(&mut context, blocks);
    finish(context)
}

fn update(context: &mut Context, sum: &Sum) {
    context.update(&sum.count.to_be_bytes());
    context.update(&sum.bytes);
}

fn finish(context: Context) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}
