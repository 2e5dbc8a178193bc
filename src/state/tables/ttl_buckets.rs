//! TTL buckets: rows by digest that are retained for a time, elapsed or log time, and deleted a whole bucket at once; with
//! limits per owner and in total for rows of callers.
//!
//! A row is deleted late, never early. Expiry costs one range deletion per bucket, regardless of its size. The counters
//! of a bucket are among its rows and are deleted with it.

use std::time::Duration;

use super::{Tables, eight_bytes};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;

/// Suffix of the key of a counter; no key of a row is as long.
const COUNT: &[u8] = b"#";
/// Owner of the total.
const ALL: Digest128 = Digest128::from_bytes([0; 16]);

/// A table of rows by digest in TTL buckets.
pub struct TtlBuckets {
    pub table: &'static str,
    /// Row of the meta table: the oldest bucket that may have rows.
    pub oldest: &'static [u8],
    /// Minimum time for which a row is retained.
    pub retention: Duration,
    /// Time span of a bucket. Larger buckets mean fewer lookups and later expiry.
    pub bucket: Duration,
}

/// Maximum number of rows.
pub struct QuotaLimits {
    pub per_owner: u64,
    pub total: u64,
}

impl TtlBuckets {
    /// The row of `digest`, from any bucket.
    pub fn find(
        &self,
        tables: &Tables<'_>,
        now: Timestamp,
        digest: &Digest128,
    ) -> Result<Option<Vec<u8>>, Corrupt> {
        for bucket in (self.first_retained(now)..=self.bucket_of(now)).rev() {
            if let Some(row) = tables.row(self.table, &key(bucket, digest))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Stores `row` under `digest`, and deletes expired buckets.
    pub fn insert(
        &self,
        tables: &mut Tables<'_>,
        now: Timestamp,
        digest: &Digest128,
        row: Vec<u8>,
    ) -> Result<(), Corrupt> {
        let (oldest, retained) = (tables.number(self.oldest)?, self.first_retained(now));
        if oldest < retained {
            tables.delete_range(self.table, oldest.to_be_bytes().to_vec(), retained.to_be_bytes().to_vec());
            tables.put(super::META, self.oldest, retained.to_be_bytes().to_vec());
        }
        tables.put(self.table, &key(self.bucket_of(now), digest), row);
        Ok(())
    }

    /// Deletes every row.
    pub fn delete_all(&self, tables: &mut Tables<'_>) {
        tables.delete_range(self.table, 0_u64.to_be_bytes().to_vec(), u64::MAX.to_be_bytes().to_vec());
    }

    /// Whether one more row of `owner` fits into the limits.
    pub fn has_capacity(
        &self,
        tables: &Tables<'_>,
        now: Timestamp,
        owner: &Digest128,
        limits: &QuotaLimits,
    ) -> Result<bool, Corrupt> {
        Ok(self.count(tables, now, owner)? < limits.per_owner
            && self.count(tables, now, &ALL)? < limits.total)
    }

    /// As [`Self::insert`], counted as a row of `owner`.
    pub fn insert_owned(
        &self,
        tables: &mut Tables<'_>,
        now: Timestamp,
        owner: &Digest128,
        digest: &Digest128,
        row: Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.insert(tables, now, digest, row)?;
        let bucket = self.bucket_of(now);
        for owner in [owner, &ALL] {
            let count = self.count_in(tables, bucket, owner)?.saturating_add(1);
            tables.put(self.table, &count_key(bucket, owner), count.to_be_bytes().to_vec());
        }
        Ok(())
    }

    fn count(&self, tables: &Tables<'_>, now: Timestamp, owner: &Digest128) -> Result<u64, Corrupt> {
        let buckets = self.first_retained(now)..=self.bucket_of(now);
        buckets.map(|bucket| self.count_in(tables, bucket, owner)).sum()
    }

    fn count_in(&self, tables: &Tables<'_>, bucket: u64, owner: &Digest128) -> Result<u64, Corrupt> {
        let row = tables.row(self.table, &count_key(bucket, owner))?;
        row.map_or(Ok(0), |row| eight_bytes(self.table.as_bytes(), row))
    }

    fn first_retained(&self, now: Timestamp) -> u64 {
        self.bucket_of(now.minus(self.retention))
    }

    fn bucket_of(&self, time: Timestamp) -> u64 {
        u64::try_from(time.millis()).unwrap_or(0) / u64::try_from(self.bucket.as_millis()).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
impl TtlBuckets {
    /// The key of the counter of `owner`, or of the total, in the bucket of this time.
    pub fn count_key_at(&self, at: Timestamp, owner: Option<Digest128>) -> Vec<u8> {
        count_key(self.bucket_of(at), &owner.unwrap_or(ALL))
    }
}

fn key(bucket: u64, digest: &Digest128) -> Vec<u8> {
    [&bucket.to_be_bytes()[..], digest.as_bytes()].concat()
}

fn count_key(bucket: u64, owner: &Digest128) -> Vec<u8> {
    [&key(bucket, owner)[..], COUNT].concat()
}
