//! The resource types, one file each.

pub mod agent_identity;
pub mod encryption_key;
pub mod fabric;
pub mod mcp_tool;
pub mod ssf_stream;

use crate::resource::Resource;

/// Every resource type.
#[must_use]
pub fn all() -> Vec<&'static dyn Resource> {
    vec![
        &agent_identity::AgentIdentity,
        &encryption_key::EncryptionKey,
        &fabric::Fabric,
        &mcp_tool::McpTool,
        &ssf_stream::SsfStream,
    ]
}

/// The resource type with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Resource> {
    all().into_iter().find(|resource| resource.table().name == name)
}
