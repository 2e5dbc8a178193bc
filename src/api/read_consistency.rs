//! How new the state is that a handler reads (design §3, "Reads"). One that shows replicated state to people or
//! tools, or changes what it has to find first, takes a [`LinearizableRead`], and its use-case asks for that.
//!
//! It is made after the caller is decided, so that no stranger makes this node ask the leader. What judges tokens
//! takes a [`crate::state::LeaseProof`] instead; what is public, health and the live feed ask for neither.

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

/// For a request that names an index: this node has applied it, and nobody is asked. For any other the leader is.
///
/// # Errors
/// 503 if there is no leader, or this node is too far behind it.
pub(super) async fn of(app: &App, headers: &HeaderMap) -> Result<LinearizableRead, Error> {
    let named = min_index(headers)?.and_then(|index| app.state.cluster().current_at(index));
    match named {
        Some(current) => Ok(current),
        None => Ok(app.state.current().await?),
    }
}
