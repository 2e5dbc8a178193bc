//! `/v1/identity/agent…`: routes and headers (contract §4; specification, "Agent identity").

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::admin_audit::Act;
use super::awaited;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, Identities, IssueIdentity, OwnToken};
use super::denials::Denied;
use super::error::{Error, Refusal, Refused as _};
use super::openapi::params::{IdempotencyKey, Page};
use super::paging::{self, RawQuery};
use super::{App, text};
use crate::identity::{self, AgentIdentity, AgentIdentityRequest, AgentRecord};
use crate::policy::Point;
use crate::state::{CallContext, LinearizableRead};
use crate::{json, limits};

/// Issues an identity to an agent.
#[utoipa::path(
    post, path = "", operation_id = "issueAgentIdentity", request_body = AgentIdentityRequest,
    params(IdempotencyKey),
    responses(
        (status = 200, description = "The identity", body = AgentIdentity),
        (status = 403, description = "Denied by policy or by the grant of the parent"),
        (status = 409, description = "The quota of agents is used up"),
        (status = 501, description = "Agent identity is not configured"),
    )
)]
pub async fn issue(
    caller: Caller<IssueIdentity>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    // An unread body closes the connection under a client that is still sending.
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    app.identity.configured()?;
    let caller = caller.with_key(&parts, &bytes)?;
    let request = json::read::<AgentIdentityRequest>(&bytes)?.validate()?;
    let identified = app.identity.issue(&request, &caller).await;
    let identified = identified.inspect_err(|error| keep_denied(&app, &caller, error, None))?;
    let (request_id, agent_id, jti) = (&caller.request_id, &identified.agent_id, &identified.jti);
    tracing::info!(request_id, agent_id, jti, caller = caller.id(), "agent identity issued");
    let location = format!("/v1/identity/agents/{}", text::segment(agent_id));
    let location = HeaderValue::try_from(location).map_err(Error::internal)?;
    Ok(([(header::LOCATION, location)], NO_STORE, Json(identified)).into_response())
}

/// Renews the identity token of an agent, which is the bearer.
#[utoipa::path(post, path = "", operation_id = "renewAgentIdentity", responses(
    (status = 200, description = "The identity with a new token", body = AgentIdentity),
    (status = 403, description = "The agent is revoked or ended, or the bearer is not its identity token"),
    (status = 501, description = "Agent identity is not configured"),
))]
pub async fn renew(caller: Caller<OwnToken>, State(app): State<App>) -> Result<Response, Error> {
    app.identity.configured()?;
    let bearer = caller.credential().ok_or_else(|| Error::internal("a bearer without its token"))?;
    let identified = app.identity.renew(bearer).await;
    let agent_id = Some(bearer.sub.as_str());
    let identified = identified.inspect_err(|error| keep_denied(&app, &caller, error, agent_id))?;
    let (request_id, agent_id, jti) = (&caller.request_id, &identified.agent_id, &identified.jti);
    tracing::info!(request_id, agent_id, jti, "agent identity renewed");
    Ok((NO_STORE, Json(identified)).into_response())
}

/// Mints another identity token for an agent of the caller; an operator may name any.
#[utoipa::path(
    post, path = "", operation_id = "mintAgentToken",
    params(("agent_id" = String, Path, description = "Percent-encoded")),
    responses(
        (status = 200, description = "The identity with a token that derives from no earlier one", body = AgentIdentity),
        (status = 403, description = "The agent is revoked or ended, or policy denies it"),
        (status = 404, description = "The agent does not exist or belongs to another caller"),
        (status = 501, description = "Agent identity is not configured"),
    )
)]
pub async fn mint_token(
    caller: Caller<IssueIdentity>,
    State(app): State<App>,
    agent_id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    app.identity.configured()?;
    let Ok(Path(agent_id)) = agent_id else { return Err(identity::Error::UnknownAgent.into()) };
    let mint = async {
        let identified = app.identity.another_token(&agent_id, &caller).await;
        identified
            .inspect_err(|error| keep_denied(&app, &caller, error, Some(&agent_id)))
            .map_err(Error::from)
    };
    let identified = if is_of_another(&app, &caller, &agent_id).await? {
        let act =
            Act::begin(&app, &caller, format!("mint a token for agent {}", text::printable(&agent_id)))?;
        act.end(mint.await, |_| String::new()).await?
    } else {
        mint.await?
    };
    let (request_id, agent_id, jti) = (&caller.request_id, &identified.agent_id, &identified.jti);
    tracing::info!(request_id, agent_id, jti, caller = caller.id(), "agent identity token minted");
    Ok((NO_STORE, Json(identified)).into_response())
}

/// Keeps a denial for an explanation.
fn keep_denied(app: &App, caller: &CallContext, error: &identity::Error, agent_id: Option<&str>) {
    if matches!(error.refusal(), Refusal::Denied) {
        let policy = match error {
            identity::Error::Denied(denial) => Some((Point::Identity, denial)),
            _ => None,
        };
        Denied { operation: "identity", error, subject: None, target: agent_id, policy }.keep(app, caller);
    }
}

/// The agents of the caller; an operator sees all.
#[utoipa::path(get, path = "", operation_id = "listAgents", params(Page), responses(
    (status = 200, description = "A page, ordered by `agent_id`", body = [AgentRecord]),
))]
pub async fn list(
    caller: Caller<Identities>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let page = paging::QueryParams::read(query, &["limit", "cursor"])?.page()?;
    let (agents, next) = app.identity.list(&current, &caller, page.after.as_deref(), page.limit).await?;
    paging::answer(&uri, &agents, next.as_deref())
}

/// Reads an agent.
#[utoipa::path(
    get, path = "", operation_id = "getAgent",
    params(("agent_id" = String, Path, description = "Percent-encoded")),
    responses(
        (status = 200, description = "The agent", body = AgentRecord),
        (status = 404, description = "The agent does not exist or belongs to another caller"),
    )
)]
pub async fn show(
    caller: Caller<Identities>,
    State(app): State<App>,
    current: LinearizableRead,
    agent_id: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    // An agent_id is ASCII.
    let Ok(Path(agent_id)) = agent_id else { return Err(identity::Error::UnknownAgent.into()) };
    let record = app.identity.show(&current, &agent_id, &caller).await?;
    Ok((NO_STORE, Json(record)).into_response())
}

/// Revokes an agent permanently, with every agent and token that derives from it. It works without a policy for agents.
#[utoipa::path(
    delete, path = "", operation_id = "revokeAgent",
    params(("agent_id" = String, Path, description = "Percent-encoded"), IdempotencyKey),
    responses(
        (status = 204, description = "The agent is revoked", headers(("Svc-Federation" = String, description = "The awaited peer fabrics: `us=enforced, ap=lapsed`"))),
        (status = 404, description = "The agent does not exist or belongs to another caller"),
    )
)]
pub async fn revoke(
    caller: Caller<Identities>,
    State(app): State<App>,
    agent_id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let Ok(Path(agent_id)) = agent_id else { return Err(identity::Error::UnknownAgent.into()) };
    let caller = caller.with_key(&parts, b"")?;
    let is_act = is_of_another(&app, &caller, &agent_id).await?;
    let revocation = async { app.identity.revoke(&agent_id, &caller).await.map_err(Error::from) };
    let (changed, awaited) = if is_act {
        let act = Act::begin(&app, &caller, format!("revoke agent {}", text::printable(&agent_id)))?;
        act.end(revocation.await, |_| String::new()).await?
    } else {
        revocation.await?
    };
    tracing::warn!(request_id = caller.request_id, agent_id, changed, caller = caller.id(), "agent revoked");
    Ok((StatusCode::NO_CONTENT, awaited::header(&awaited), NO_STORE).into_response())
}

/// Whether an operator acts on an agent that another caller had issued.
async fn is_of_another(app: &App, caller: &CallContext, agent_id: &str) -> Result<bool, Error> {
    Ok(caller.is_operator && !app.identity.is_issued_by(agent_id, caller.name()).await?)
}
