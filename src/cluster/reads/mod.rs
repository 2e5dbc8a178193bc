//! Reads that see every acknowledged write: the freshness lease, the barrier, `ReadIndex`, leases on outside
//! sources and waits for outside readers.

pub(crate) mod freshness;
pub(crate) mod member_progress;
pub(crate) mod read_index;
pub(crate) mod readers;
pub(crate) mod sources;
