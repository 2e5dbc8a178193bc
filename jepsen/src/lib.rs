//! A cluster under faults: its load, its faults, the history of both, and the checkers of histories.

// A caller that ignores a value of a history loses nothing else.
#![allow(clippy::must_use_candidate)]

pub mod check;
mod clients;
pub mod cluster;
mod disks;
pub mod history;
mod liveness;
mod membership;
mod nemesis;
pub mod regions;
pub mod results;
pub mod run;
pub mod schedule;
mod sockets;
pub mod timeline;
mod workloads;
