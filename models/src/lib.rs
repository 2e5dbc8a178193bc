//! Small models of the promises of the Trust Fabric, each checked in every order of its events.
//!
//! A model is the argument of a page in `docs/decisions/` or `docs/design/`, written so that a machine can search for an
//! order of events that breaks it. Each rule can be left out, and the tests show the resulting violation: a rule without
//! one would be unnecessary, or its violation invisible to the model.

pub mod clocks;
pub mod disks;
pub mod federation;
pub mod judgement;
pub mod lease;
pub mod membership;
