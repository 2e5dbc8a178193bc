//! Applying committed entries: the state machine adapter, its database and its snapshots.

pub(crate) mod database;
mod directory;
pub(crate) mod snapshot;
pub(crate) mod state_machine;
