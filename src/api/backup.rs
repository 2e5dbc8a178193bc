//! `GET /v1/sys/backup`: the state of this node as a file, while the cluster runs.

use std::io;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::task::JoinSet;

use super::App;
use super::admin_audit::Act;
use super::caller::{Caller, ClusterAdmin};
use super::error::{Error, Refusal};
use super::listener::Download;
use crate::backup::{BackupStream, Origin};
use crate::state::LinearizableRead;

/// Seconds after which a caller may try again while another backup is being read.
const BUSY_RETRY_SECS: u32 = 30;

/// A backup of the replicated state.
///
/// A zstd-compressed tar archive with a manifest and a digest, for `trust-fabric backup verify` and `trust-fabric
/// restore`. It contains every write that was acknowledged before the request. It contains no secret, but is
/// confidential.
#[utoipa::path(get, path = "", operation_id = "saveBackup", responses(
    (status = 200, description = "The backup", content_type = "application/zstd", body = Vec<u8>),
    (status = 429, description = "Another backup is being read from this node"),
))]
pub async fn save(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Result<Response, Error> {
    let permit = Arc::clone(&app.backup_permits).try_acquire_owned();
    let busy = Refusal::TooMany { retry_after_secs: BUSY_RETRY_SECS };
    let permit = permit.map_err(|_| Error::new(busy, "another backup is being read from this node"))?;
    let act = Act::begin(&app, &caller, "read a backup of the state")?;
    let backup = begin(app.clone()).await.map_err(Error::internal);
    let backup = act.end(backup, |backup| format!("up to log index {}", backup.index())).await?;
    tracing::info!(index = backup.index(), caller = caller.id(), "backup begun");
    let body = stream::unfold((backup, permit), |(mut backup, permit)| async {
        let part = backup.next().await.transpose()?;
        if let Err(error) = &part {
            tracing::error!(%error, "failed to send a backup");
        }
        Some((part, (backup, permit)))
    });
    let headers = [(header::CONTENT_TYPE, "application/zstd"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Extension(Download), Body::from_stream(body)).into_response())
}

/// A checkpoint copies what the write-ahead log of the state holds, and opening it replays that: seconds, during which a
/// worker thread would serve nothing.
async fn begin(app: App) -> io::Result<BackupStream> {
    let mut beginning = JoinSet::new();
    beginning.spawn_blocking(move || {
        let cluster = app.state.cluster();
        let mode = if app.requires_tls { "production" } else { "development" };
        let origin = Origin { mode, issuer: app.issuer.clone(), node_id: cluster.node_id() };
        BackupStream::new(cluster.checkpoint()?, origin)
    });
    let begun = beginning.join_next().await.unwrap_or_else(|| Ok(Err(io::ErrorKind::NotFound.into())));
    begun.map_err(io::Error::other)?
}
