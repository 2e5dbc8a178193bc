//! `GET /v1/sys/backup`: the state of this node as a file, while the cluster runs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;

use super::App;
use super::admin_audit::Act;
use super::caller::{Caller, ClusterAdmin};
use super::error::{Error, Refusal};
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
    let backup = begin(&app).map_err(Error::internal);
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
    Ok((headers, Body::from_stream(body)).into_response())
}

fn begin(app: &App) -> std::io::Result<BackupStream> {
    let cluster = app.state.cluster();
    let mode = if app.requires_tls { "production" } else { "development" };
    let origin = Origin { mode, issuer: app.issuer.clone(), node_id: cluster.node_id() };
    BackupStream::new(cluster.checkpoint()?, origin)
}
