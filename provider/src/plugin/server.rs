//! The gRPC server on its socket, and its end: `Shutdown` of Terraform, SIGTERM, or the death of the parent process.
//!
//! SIGINT is ignored: Ctrl-C reaches every process of the terminal, and Terraform then calls `StopProvider` and waits.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::parent_id;
use std::sync::Arc;

use rustls::ServerConfig;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::connection::Connection;
use super::handshake::{self, Handshake};
use super::{Error, tls};
use crate::limits;
use crate::proto::plugin::Nothing;
use crate::proto::plugin::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::proto::tfplugin6::provider_server::{Provider, ProviderServer};

/// Serves until Terraform ends it. The socket and its directory are gone afterwards.
///
/// # Errors
/// [`Error`], before the first call is served.
pub async fn serve(handshake: Handshake, provider: impl Provider) -> Result<(), Error> {
    let directory = private_directory(&handshake)?;
    let socket = directory.path().join("plugin");
    let listener = UnixListener::bind(&socket)?;
    let (tls, own) = tls::server(handshake.client)?;
    let stopped = CancellationToken::new();
    let signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ends = tokio::spawn(stop_at_the_end(signals, stopped.clone()));

    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", handshake::line(&socket, &own))?;
    out.flush()?;
    drop(out);

    let (connections, incoming) = mpsc::channel(limits::CONNECTIONS_MAX);
    let accepting = tokio::spawn(accept(listener, tls, connections));
    let provider = ProviderServer::new(provider)
        .max_decoding_message_size(limits::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::MESSAGE_BYTES_MAX);
    let serving = Server::builder()
        .add_service(provider)
        .add_service(GrpcControllerServer::new(Controller { stopped: stopped.clone() }))
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), stopped.clone().cancelled_owned());
    let stop_grace_elapsed = async {
        stopped.cancelled().await;
        sleep(limits::SHUTDOWN_MAX).await;
    };
    let served = tokio::select! {
        served = serving => served,
        () = stop_grace_elapsed => Ok(()),
    };
    accepting.abort();
    ends.abort();
    Ok(served?)
}

/// A new directory with mode 0700, so that no other user reaches the socket.
fn private_directory(handshake: &Handshake) -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("svc-").permissions(Permissions::from_mode(0o700));
    match &handshake.directory {
        None => builder.tempdir(),
        Some(directory) => builder.tempdir_in(directory),
    }
}

/// Cancels `stopped` at SIGTERM and when the parent process has ended.
async fn stop_at_the_end((mut terminated, mut interrupted): (Signal, Signal), stopped: CancellationToken) {
    let parent = parent_id();
    let mut looks = interval(limits::PARENT_INTERVAL);
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            _ = interrupted.recv() => {}
            _ = looks.tick() => if parent_id() != parent { break },
        }
    }
    stopped.cancel();
}

type Incoming = std::io::Result<Connection>;

/// Accepts connections; each handshake has its own task, so that a silent client delays no other.
async fn accept(listener: UnixListener, tls: Arc<ServerConfig>, connections: mpsc::Sender<Incoming>) {
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let tls = TlsAcceptor::from(tls);
    loop {
        // An error is one of this connection, or a lack of file descriptors that passes.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(limits::PARENT_INTERVAL).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let (tls, connections) = (tls.clone(), connections.clone());
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(limits::HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                // The server may have ended.
                drop(connections.send(Ok(Connection { stream, _permit: permit })).await);
            }
        });
    }
}

/// The only call that is served beside those of the provider.
struct Controller {
    stopped: CancellationToken,
}

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _request: Request<Nothing>) -> Result<Response<Nothing>, Status> {
        self.stopped.cancel();
        Ok(Response::new(Nothing {}))
    }
}
