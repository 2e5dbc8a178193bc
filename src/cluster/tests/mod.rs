//! Tests of a whole node.

mod apply_order;
pub(crate) mod restarts;
mod storage_suite;
