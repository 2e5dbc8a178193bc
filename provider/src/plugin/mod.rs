//! The plugin process: started by Terraform, it serves one connection over a private socket until Terraform ends it.
//!
//! Nothing here knows the meaning of a call.

mod connection;
mod handshake;
mod server;
mod tls;

pub use self::handshake::{Handshake, Refusal};
pub use self::server::serve;

/// The plugin cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket, its directory or the output to Terraform.
    #[error("plugin socket cannot be made: {0}")]
    Socket(#[from] std::io::Error),
    /// The certificate of this run.
    #[error("plugin certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS with this certificate.
    #[error("TLS cannot be prepared: {0}")]
    Tls(#[from] rustls::Error),
    /// The gRPC server.
    #[error("plugin server failed: {0}")]
    Server(#[from] tonic::transport::Error),
}
