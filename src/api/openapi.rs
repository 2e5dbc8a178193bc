//! `GET /openapi.json`: the interface, described from the handlers themselves (OpenAPI 3.1).

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::OpenApi;

use super::error::Error;
use super::{App, cached, exchange, health, jwks, metadata, metrics, sys_keys, sys_policy};

/// Every handler of the route table.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Trust Fabric",
        description = "A broker of trust for workloads and AI agents.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(
        exchange::post,
        jwks::get,
        metadata::get,
        health::get,
        health::live,
        health::ready,
        metrics::get,
        get,
        sys_keys::list,
        sys_keys::rotate,
        sys_keys::taint,
        sys_policy::get,
        sys_policy::put,
        sys_policy::history,
        sys_policy::rollback,
        sys_policy::explain,
    )
)]
struct Description;

/// This description.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub async fn get(State(_app): State<App>, headers: HeaderMap) -> Result<Response, Error> {
    let document = Description::openapi().to_json().map_err(Error::internal)?;
    cached::answer(&headers, "application/json", document)
}
