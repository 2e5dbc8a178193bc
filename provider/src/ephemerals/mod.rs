//! The types of ephemeral resources, one file each.

pub mod agent_identity;
pub mod agent_token;
pub mod token;

use crate::ephemeral::Ephemeral;

/// Every type of ephemeral resources.
#[must_use]
pub fn all() -> [&'static dyn Ephemeral; 3] {
    [&agent_identity::AgentIdentity, &agent_token::AgentToken, &token::Token]
}

/// The type with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Ephemeral> {
    all().into_iter().find(|ephemeral| ephemeral.table().name == name)
}
