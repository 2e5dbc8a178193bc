//! Generated messages of Terraform's plugin protocol.

#![allow(clippy::pedantic, unused_qualifications, reason = "generated")]

/// The calls of a provider.
pub mod tfplugin6 {
    tonic::include_proto!("tfplugin6");
}

/// The end of a plugin.
pub mod plugin {
    tonic::include_proto!("plugin");
}
