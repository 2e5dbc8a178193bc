//! Replacement of the log of a stopped node, when a new cluster is created from its state.

use std::io;

use rocksdb::{DB, WriteBatch, WriteOptions};

use super::{CLUSTER_ID, COMMITTED, DISPUTE, JOINED, LOG, MEMORIES, META, PURGED, REFUSED, VOTE, log_key};
use crate::cluster::type_config::{LogId, Vote};
use crate::cluster::{codec, record};

/// Replaces everything in the log by its purged part, in one durable write: the log ends at `last`, and its cluster is
/// another. Disk identity and process starts remain.
pub(crate) fn replace_log(db: &DB, last: &LogId, vote: &Vote, cluster_id: &[u8; 16]) -> io::Result<()> {
    let family = |name| db.cf_handle(name).ok_or_else(|| io::Error::other("column family is missing"));
    let (log, meta) = (family(LOG)?, family(META)?);
    let mut batch = WriteBatch::default();
    batch.delete_range_cf(log, log_key(0), log_key(u64::MAX));
    let end = codec::encode_log_id(last);
    let vote = codec::encode_vote(vote);
    for (key, row) in
        [(PURGED, &end[..]), (COMMITTED, &end[..]), (VOTE, &vote[..]), (CLUSTER_ID, &cluster_id[..])]
    {
        batch.put_cf(meta, key, record::seal(key, row));
    }
    for key in [JOINED, REFUSED, DISPUTE, MEMORIES] {
        batch.delete_cf(meta, key);
    }
    let mut options = WriteOptions::default();
    options.set_sync(true);
    db.write_opt(batch, &options).map_err(io::Error::other)
}
