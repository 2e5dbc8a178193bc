//! Reads that see every acknowledged write: the freshness lease, the barrier and `ReadIndex`.

pub(crate) mod freshness;
pub(crate) mod member_progress;
pub(crate) mod read_index;
