//! Rows that are remembered for a while and dropped by elapsed time, a whole bucket at once; of those that callers
//! bring, so many of each owner and so many in all.
//!
//! A row is kept at least as long as was promised and dropped late, never early. Expiry costs one
//! range deletion per bucket, however many rows it holds. The counts of a bucket stand among its rows and go with it.

use std::time::Duration;

use super::{Tables, eight_bytes};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;

/// Behind the digest in the key of a count: no row has so long a key.
const COUNT: &[u8] = b"#";
/// The owner of every row.
const ALL: Digest128 = Digest128::from_bytes([0; 16]);

/// A table of rows by digest, dropped some time after they were written.
pub struct Bucketed {
    /// The table.
    pub table: &'static str,
    /// Row of the meta table: the oldest bucket that may hold rows.
    pub oldest: &'static [u8],
    /// How long a row is remembered at least.
    pub retention: Duration,
    /// How much time one bucket covers. Larger ones mean fewer look-ups and later expiry.
    pub bucket: Duration,
}

/// How many rows there may be.
pub struct Most {
    /// Of one owner.
    pub per_owner: u64,
    /// Of all.
    pub total: u64,
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
        for bucket in (self.first_kept(now)..=self.bucket_of(now)).rev() {
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
            tables.put(super::META, self.oldest, kept.to_be_bytes().to_vec());
        }
        tables.put(self.table, &key(self.bucket_of(now), digest), row);
        Ok(())
    }

    /// Whether one more row of `owner` may be remembered with [`Self::remember_of`].
    ///
    /// # Errors
    /// [`Corrupt`] if a count is not what was written.
    pub fn has_room(
        &self,
        tables: &Tables<'_>,
        now: Timestamp,
        owner: &Digest128,
        most: &Most,
    ) -> Result<bool, Corrupt> {
        Ok(self.count(tables, now, owner)? < most.per_owner && self.count(tables, now, &ALL)? < most.total)
    }

    /// The same as [`Self::remember`], of a row that counts as one of `owner`.
    ///
    /// # Errors
    /// [`Corrupt`] if a count or the meta row is not what was written.
    pub fn remember_of(
        &self,
        tables: &mut Tables<'_>,
        now: Timestamp,
        owner: &Digest128,
        digest: &Digest128,
        row: Vec<u8>,
    ) -> Result<(), Corrupt> {
        self.remember(tables, now, digest, row)?;
        let bucket = self.bucket_of(now);
        for owner in [owner, &ALL] {
            let count = self.count_in(tables, bucket, owner)?.saturating_add(1);
            tables.put(self.table, &count_key(bucket, owner), count.to_be_bytes().to_vec());
        }
        Ok(())
    }

    fn count(&self, tables: &Tables<'_>, now: Timestamp, owner: &Digest128) -> Result<u64, Corrupt> {
        let buckets = self.first_kept(now)..=self.bucket_of(now);
        buckets.map(|bucket| self.count_in(tables, bucket, owner)).sum()
    }

    fn count_in(&self, tables: &Tables<'_>, bucket: u64, owner: &Digest128) -> Result<u64, Corrupt> {
        let row = tables.row(self.table, &count_key(bucket, owner))?;
        row.map_or(Ok(0), |row| eight_bytes(self.table.as_bytes(), row))
    }

    fn first_kept(&self, now: Timestamp) -> u64 {
        self.bucket_of(now.minus(self.retention))
    }

    fn bucket_of(&self, time: Timestamp) -> u64 {
        u64::try_from(time.millis()).unwrap_or(0) / u64::try_from(self.bucket.as_millis()).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
impl Bucketed {
    /// The key of the count of `owner`, or of all, in the bucket of this time.
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
