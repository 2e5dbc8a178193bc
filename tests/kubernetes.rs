//! The charts and the custom resource, with Helm's own engine, the schemas of Kubernetes and the program itself.
//!
//! No cluster: the tests show that the objects are valid and mean what they shall, not what a cluster makes of them.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "kubernetes/chart.rs"]
mod chart;
#[path = "kubernetes/configuration.rs"]
mod configuration;
#[path = "kubernetes/definition.rs"]
mod definition;
#[path = "kubernetes/pods.rs"]
mod pods;
#[path = "support/python.rs"]
#[expect(dead_code, reason = "these programs have no conversation")]
mod python;
#[path = "kubernetes/releases.rs"]
mod releases;
