//! Tests of a whole node.

mod apply_order;
mod founding;
pub(crate) mod restarts;
mod simulation;
mod storage_suite;
