//! A cluster under faults: its load, its faults, and the history of both.

// A caller that ignores a value of a history loses nothing else.
#![allow(clippy::must_use_candidate)]

mod clients;
pub mod cluster;
pub mod history;
mod liveness;
mod nemesis;
pub mod run;
pub mod schedule;
mod workloads;
