//! Tests of the whole core.

mod apply_order;
pub(crate) mod restarts;
mod storage_suite;
