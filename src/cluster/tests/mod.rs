//! Tests of a whole node.

mod apply_order;
mod creation;
pub(crate) mod restarts;
mod simulation;
mod storage_suite;
