//! `GET /openapi.json`: the interface description (OpenAPI 3.1), generated from the handlers and completed from the route
//! table ([`completion`]).

mod completion;
pub mod params;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::OpenApi;

use self::params::IfNoneMatch;
use super::caller::{Caller, Public};
use super::error::Error;
use super::{
    App, agents, audit, backup, blocks, cache_control, cluster, encryption_keys, events, exchange, finalize,
    health, jwks, members, metrics, oauth_metadata, poll, revocations, signals, ssf_configuration,
    stream_controls, streams, sys_keys, sys_policy, sys_signals, tools, verify,
};
pub(crate) use crate::text::values;

/// Every handler of the route table.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Trust Fabric",
        description = "A broker of trust for workloads and AI agents: it exchanges credentials for narrower tokens, issues \
                       identities to agents, verifies tool calls, and receives and transmits security events.",
        contact(name = "The maintainers of Trust Fabric"),
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    // Named by a parameter only, so that it is not found by itself.
    components(schemas(values::PolicyPoint)),
    paths(
        exchange::post,
        agents::issue,
        agents::renew,
        agents::list,
        agents::show,
        agents::revoke,
        jwks::get,
        encryption_keys::register,
        encryption_keys::list,
        encryption_keys::remove,
        oauth_metadata::get,
        verify::post,
        signals::receive,
        streams::create,
        streams::read,
        streams::update,
        streams::replace,
        streams::delete,
        stream_controls::status,
        stream_controls::set_status,
        stream_controls::verify,
        stream_controls::add_subject,
        stream_controls::remove_subject,
        stream_controls::dead_letters,
        ssf_configuration::get,
        poll::post,
        health::get,
        health::live,
        health::ready,
        metrics::get,
        get,
        backup::save,
        cluster::get,
        members::invite,
        members::join,
        members::promote,
        members::remove,
        members::transfer,
        finalize::post,
        sys_keys::list,
        sys_keys::rotate,
        sys_keys::taint,
        sys_policy::get,
        sys_policy::put,
        sys_policy::history,
        sys_policy::rollback,
        sys_policy::explain,
        revocations::revoke,
        revocations::list,
        blocks::list,
        blocks::lift,
        events::read,
        sys_signals::allow,
        audit::acts,
        audit::blocks,
        audit::of_tool,
        tools::deregister,
        tools::deregister_mcp,
        tools::deregister_mcp_by_query,
        tools::get,
        tools::get_mcp,
        tools::list,
        tools::list_mcp,
        tools::put,
        tools::register,
        tools::register_mcp,
    )
)]
struct Handlers;

/// This interface description.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    params(IfNoneMatch),
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object),
        (status = 304, description = "Not modified"),
    )
)]
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
    let generated = serde_json::to_value(Handlers::openapi()).unwrap_or_default();
    completion::complete(generated, &super::rows()).to_string()
}
