//! Linearizable reads (design §3). A handler that shows replicated state, or looks it up before a change, takes a
//! [`LinearizableRead`].
//!
//! The extractor runs after the caller is authorized, so that no anonymous request causes a ReadIndex. Verification of
//! tokens takes a [`crate::state::LeaseProof`] instead; public routes, health and the live feed take neither.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::App;
use super::error::Error;
use super::middleware::min_index;
use crate::state::LinearizableRead;

impl FromRequestParts<App> for LinearizableRead {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        of(app, &parts.headers).await
    }
}

/// Uses the index in `Svc-Min-Index` if this node has applied it; otherwise performs a ReadIndex.
///
/// # Errors
/// 503 without a leader, or if this node lags too far behind it.
pub(super) async fn of(app: &App, headers: &HeaderMap) -> Result<LinearizableRead, Error> {
    let named = min_index(headers)?.and_then(|index| app.state.cluster().current_at(index));
    match named {
        Some(current) => Ok(current),
        None => Ok(app.state.current().await?),
    }
}
