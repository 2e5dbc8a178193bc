//! Rows that are remembered for a while and dropped by log time, a whole bucket at once.
//!
//! A row is kept at least as long as was promised and dropped late, never early. Expiry costs one
//! range deletion per bucket, however many rows it holds.

use std::time::Duration;

use super::tables::Tables;
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;

/// How much log time one bucket covers. Larger ones mean fewer look-ups and later expiry.
const BUCKET_SECS: i64 = 6 * 3600;

/// A table of rows by digest, dropped some time after they were written.
pub struct Bucketed {
    /// The table.
    pub table: &'static str,
    /// Row of the meta table: the oldest bucket that may hold rows.
    pub oldest: &'static [u8],
    /// How long a row is remembered at least.
    pub retention: Duration,
}

impl Bucketed {
    /// The row of `digest`, in whichever bucket it is.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    pub fn find(
        &self,
        tables: &Tables<'_>,
        now: Timestamp,
        digest: &Digest128,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        for bucket in (self.first_kept(now)..=bucket_of(now)).rev() {
            if let Some(row) = tables.row(self.table, &key(bucket, digest))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Remembers `row` under `digest`, and drops the buckets that have expired.
    ///
    /// # Errors
    /// [`Corrupt`] if the meta row is not what was written.
    pub fn remember(
        &self,
        tables: &mut Tables<'_>,
        now: Timestamp,
        digest: &Digest128,
        row: Vec<u8>,
    ) -> Result<(), Corrupt> {
        let (oldest, kept) = (tables.number(self.oldest)?, self.first_kept(now));
        if oldest < kept {
            tables.delete_range(self.table, oldest.to_be_bytes().to_vec(), kept.to_be_bytes().to_vec());
            tables.put(super::tables::META, self.oldest, kept.to_be_bytes().to_vec());
        }
        tables.put(self.table, &key(bucket_of(now), digest), row);
        Ok(())
    }

    fn first_kept(&self, now: Timestamp) -> u64 {
        bucket_of(now.minus(self.retention))
    }
}

fn bucket_of(time: Timestamp) -> u64 {
    u64::try_from(time.secs().div_euclid(BUCKET_SECS)).unwrap_or(0)
}

fn key(bucket: u64, digest: &Digest128) -> Vec<u8> {
    [&bucket.to_be_bytes()[..], digest.as_bytes()].concat()
}
