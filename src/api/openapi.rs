//! `GET /openapi.json`: the interface description (OpenAPI 3.1), generated from the handlers of the route table and
//! completed from its rows ([`completion`]).

mod completion;
pub mod params;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::OpenApi;

use self::params::IfNoneMatch;
use super::caller::{Caller, Public};
use super::error::{Body, Error};
use super::{App, cache_control};
use crate::text::values;

/// The document without its operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Trust Fabric",
        description = "A broker of trust for workloads and AI agents: it exchanges credentials for narrower tokens, issues \
                       identities to agents, verifies tool calls, and receives and transmits security events.",
        contact(name = "The maintainers of Trust Fabric"),
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    // The second is the body of every refusal, the first is named by a parameter only.
    components(schemas(values::PolicyPoint, Body)),
)]
struct Document;

/// This interface description.
#[utoipa::path(get, path = "", operation_id = "openapi", params(IfNoneMatch), responses(
    (status = 200, description = "OpenAPI 3.1", body = Object),
))]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    cache_control::answer(&headers, "application/json", app.description.to_string())
}

/// The interface description as JSON.
#[must_use]
pub fn description() -> String {
    let (mut document, rows) = (Document::openapi(), super::rows());
    for row in &rows {
        let mut described = (row.describe)();
        described.paths.paths =
            described.paths.paths.into_values().map(|item| (row.path.to_owned(), item)).collect();
        document.merge(described);
    }
    completion::complete(serde_json::to_value(document).unwrap_or_default(), &rows).to_string()
}
