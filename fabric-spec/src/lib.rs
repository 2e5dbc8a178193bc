//! The desired state of a Trust Fabric on Kubernetes, and everything that is generated from it.
//!
//! [`FabricSpec`] is `spec` of the custom resource and `fabric` of the chart's values. From it come the custom resource
//! definition ([`crd::yaml`]), the schema of the chart's values ([`chart::schema`]), the configuration of a node
//! ([`config::to_toml`]) and the judgement of a plan ([`check::violations`]). No I/O.

pub mod chart;
pub mod check;
pub mod config;
pub mod crd;
mod rules;
mod schema;
mod sections;
mod spec;
mod status;

pub use self::sections::*;
pub use self::spec::*;
pub use self::status::{Condition, FabricStatus, Member};

/// Reason for which a text is not generated, or values are not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("values: {0}")]
    Values(String),
    #[error("{0}")]
    Generated(String),
}
