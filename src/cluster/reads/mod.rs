//! Reads that see every acknowledged write: the freshness lease, the barrier and `ReadIndex`. Leases on outside sources.

pub(crate) mod freshness;
pub(crate) mod member_progress;
pub(crate) mod read_index;
pub(crate) mod sources;
