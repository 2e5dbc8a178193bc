//! `GET /openapi.json`: the interface, described from the handlers themselves (OpenAPI 3.1).

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Content, Ref, Required, Response as Described, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::caller::{Access, Caller, Public};
use super::error::Error;
use super::{
    App, agents, audit, blocks, cache_control, encryption_keys, events, exchange, health, jwks, metrics,
    oauth_metadata, poll, revocations, signals, ssf_configuration, stream_controls, streams, sys_keys,
    sys_policy, sys_signals, tools, verify,
};

/// Every handler of the route table.
#[derive(OpenApi)]
#[openapi(
    modifiers(&Everywhere),
    info(
        title = "Trust Fabric",
        description = "A broker of trust for workloads and AI agents.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
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
    audit::acts, audit::blocks, audit::of_tool, tools::deregister, tools::deregister_mcp, tools::deregister_mcp_by_query, tools::get, tools::get_mcp, tools::list, tools::list_mcp, tools::put, tools::register, tools::register_mcp,
    )
)]
struct Description;

/// What every operation takes and can answer, whatever it does (contract §1).
struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let rows = super::rows();
        for (path, item) in &mut openapi.paths.paths {
            let waits = !rows.iter().any(|row| row.path == path && row.access == Access::Health);
            let operations =
                [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                describe_surroundings(operation, waits);
            }
        }
    }
}

/// `waits`: whether it waits for a log index that is asked for, which health does not.
fn describe_surroundings(operation: &mut Operation, waits: bool) {
    let refused = |description: &str| -> Described {
        let body = Content::new(Some(Ref::from_schema_name("Body")));
        ResponseBuilder::new().description(description).content("application/json", body).build()
    };
    let mut add = |status: &str, description: &str| {
        let responses = &mut operation.responses.responses;
        responses.entry(status.to_owned()).or_insert_with(|| refused(description).into());
    };
    add("400", "A header is not valid");
    add("401", "The caller is not authenticated");
    add("403", "Sent to another name, for a page of another site, or by a caller that may not");
    add("429", "Too many requests of this caller");
    add("500", "Internal error");
    add("503", "Svc-Min-Index is not reached, or not possible now");
    if operation.request_body.is_some() {
        add("408", "The body did not come in time");
        add("413", "The body is too large");
        add("415", "The media type is not supported");
    }
    if !waits {
        return;
    }
    let index = ParameterBuilder::new()
        .name("Svc-Min-Index")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("Answered at this log index or later, or 503"))
        .schema(Some(ObjectBuilder::new().schema_type(Type::Integer)))
        .build();
    operation.parameters.get_or_insert_default().push(index.into());
}

/// This description.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    cache_control::answer(&headers, "application/json", app.description.to_string())
}

/// The description as it is served; empty if it cannot be written, which the tests rule out.
#[must_use]
pub fn description() -> String {
    Description::openapi().to_json().unwrap_or_default()
}
