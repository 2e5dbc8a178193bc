//! Small models of what the Trust Fabric promises, each checked in every order in which its events can come.
//!
//! A model is the reasoning of a page in `docs/decisions/`, written so that a machine can look for the order of
//! events that breaks it. Each of its rules can be left out, and its tests show what that costs: a rule whose
//! absence is not found would be one that the model does not need, or does not see.

pub mod clocks;
pub mod disks;
pub mod lease;
