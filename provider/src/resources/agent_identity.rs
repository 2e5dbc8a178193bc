//! `svc_agent_identity`: an agent, without its token.
//!
//! The token of the first response is discarded unread: every attribute of a resource is in the state. An agent states its
//! grants and not the request that led to them; the request stays as it is configured.

use std::time::{Duration, SystemTime};

use trust_fabric_client::Request;

use crate::agent::{self, CREDENTIAL};
use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::private::Private;
use crate::resource::{Found, Operation, Planned, Resource, Route, Unfinished};
use crate::schema::{Attribute, TIMEOUTS, Table, Type};
use crate::value::{Object, Value, json};
use crate::{duration, limits, rules};

/// The resource type.
pub struct AgentIdentity;

static TABLE: Table = Table {
    name: "svc_agent_identity",
    summary: "The identity of an agent. It ends 30 days after its issue. A plan that is made in its last 72 hours \
              (`rotate_before`) replaces it, so apply this configuration at least once in these hours. Its token is not \
              an attribute: the ephemeral resource `svc_agent_token` has one.",
    attributes: &[
        agent::AGENT_NAME.replaces(),
        agent::PLATFORM.replaces(),
        agent::CAPABILITIES.replaces(),
        agent::ON_BEHALF_OF.replaces(),
        agent::MAX_BLAST_RADIUS.replaces(),
        agent::DELEGATION_DEPTH.replaces(),
        agent::METADATA.replaces(),
        Attribute::optional(
            "rotate_before",
            Type::Text,
            "The agent is replaced by a plan that is made less than this time before its end; the default is `72h`, and \
             half of its life the maximum.",
        )
        .rule(rules::rotate_before),
        agent::AGENT_ID,
        Attribute::computed("id", Type::Text, "The `agent_id`.").wire("agent_id"),
        agent::GRANTED_CAPABILITIES,
        agent::BLAST_RADIUS,
        Attribute::computed("issued_by", Type::Text, "Identity that had the agent issued."),
        Attribute::computed("issued_at", Type::Text, "Time of the issue."),
        Attribute::computed("ends_at", Type::Text, "End of the agent."),
        Attribute::computed("status", Type::Text, "`active`: an agent with another status is not in the state."),
        TIMEOUTS,
    ],
    import: Some("agent_id"),
    example: include_str!("../../examples/svc_agent_identity.tf"),
    notes: "\
- The issue takes a client certificate with the capability `identity.issue`; a token is not accepted. Only the identity
  that had an agent issued sees it: to another one the provider reports an error that names both identities.
- A deletion or a replacement revokes the agent for ever, with every agent and token that derives from it. With
  `create_before_destroy` the successor exists before.
- An agent that was revoked outside of Terraform, or has ended, leaves the state with a warning, and the next apply has
  another one issued.
- An imported agent states its grants: `capabilities` is then `granted_capabilities`.",
};

/// The attributes that only a record states.
const RECORDED: [&str; 12] = [
    "agent_name",
    "platform",
    "on_behalf_of",
    "metadata",
    "agent_id",
    "id",
    "granted_capabilities",
    "blast_radius",
    "issued_by",
    "issued_at",
    "ends_at",
    "status",
];

#[tonic::async_trait]
impl Resource for AgentIdentity {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn noun(&self) -> &'static str {
        "agent"
    }

    fn route(&self, operation: Operation) -> Route {
        let (credential, name) = match operation {
            Operation::Create => (Credential::Certificate, "POST /v1/identity/agent"),
            Operation::Read | Operation::Update => (CREDENTIAL, "GET /v1/identity/agents/{agent_id}"),
            Operation::Delete => (CREDENTIAL, "DELETE /v1/identity/agents/{agent_id}"),
        };
        Route { credential, name }
    }

    fn is_hidden_from_others(&self) -> bool {
        true
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        agent::validate(config)
    }

    fn plan(&self, prior: Option<&Object>, _config: &Object, planned: &mut Planned) {
        let Some(prior) = prior else { return };
        // A request that states what is granted without it changes nothing: after an import, and for a default.
        let granted =
            [("max_blast_radius", prior.value("blast_radius")), ("delegation_depth", &Value::Number(0))];
        for (name, granted) in granted {
            if prior.value(name).is_null() && planned.state.value(name) == granted {
                planned.replaces.retain(|replacing| *replacing != name);
            }
        }
    }

    fn due(&self, planned: &Object, now: SystemTime) -> Option<Diagnostic> {
        let time = |name| humantime::parse_rfc3339(planned.text(name)?).ok();
        let (issued_at, ends_at) = (time("issued_at")?, time("ends_at")?);
        let stated = planned.text("rotate_before");
        let stated = stated.and_then(|text| duration::parse(text, limits::ROTATE_BEFORE_MAX).ok());
        // A successor with a short life, of a parent that ends soon, is not due at once.
        let half = ends_at.duration_since(issued_at).unwrap_or(Duration::ZERO) / 2;
        let due_at = ends_at.checked_sub(stated.unwrap_or(limits::ROTATE_BEFORE).min(half))?;
        let end = planned.text("ends_at").unwrap_or_default();
        let detail =
            format!("It ends at {end}. rotate_before states how long before its end it is replaced.");
        (now >= due_at).then(|| Diagnostic::warning("The agent ends soon", detail).at("ends_at"))
    }

    fn loss(&self) -> Option<&'static str> {
        Some("The agent is revoked for ever, with every agent and token that derives from it.")
    }

    fn advice(&self, operation: Operation, status: u16) -> Option<&'static str> {
        if operation == Operation::Create { agent::issue_advice(status) } else { None }
    }

    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished> {
        let issued = agent::issue(call, TABLE.attributes, planned).await?;
        let names = ["agent_id", "id", "granted_capabilities", "blast_radius"];
        let observed = json::observe(&issued, TABLE.attributes, &names).map_err(Failure::from)?;
        // The rest of the record, among it its end.
        let state = planned.clone().with("agent_id", observed.value("agent_id").clone());
        match self.read(call, &state).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(Failure::Gone.into()),
            Err(failure) => {
                let owner = call.identity(Credential::Certificate);
                let private = Private { owner, ..Private::default() };
                let found = Some(Box::new(Found { observed, private, ..Found::default() }));
                Err(Unfinished { failure, found })
            }
        }
    }

    async fn read(&self, call: &Call<'_>, state: &Object) -> Result<Option<Found>, Failure> {
        let agent_id = state.text("agent_id").unwrap_or_default();
        let record = match call.send(CREDENTIAL, Request::get(&agent::path(agent_id))).await {
            Ok(response) => response.body,
            Err(failure) if failure.status() == Some(404) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let mut observed = json::observe(&record, TABLE.attributes, &RECORDED)?;
        if state.value("capabilities").is_null() {
            // An import.
            observed.set("capabilities", observed.value("granted_capabilities").clone());
            let depth = record["delegation_depth"].as_i64().filter(|depth| *depth > 0);
            observed.set("delegation_depth", depth.map_or(Value::Null, Value::Number));
        }
        let ended = observed.text("status").filter(|status| *status != "active");
        let warnings = ended.map(|status| {
            let detail =
                format!("{agent_id} is {status}. It leaves the state; the next apply has another issued.");
            Diagnostic::warning("The agent is of no use any more", detail)
        });
        let (is_ended, warnings) = (ended.is_some(), warnings.into_iter().collect());
        let owner = observed.text("issued_by").map(str::to_owned);
        let private = Private { owner, ..Private::default() };
        Ok(Some(Found { observed, private, warnings, is_ended }))
    }

    /// No request: without a replacement only `rotate_before`, `timeouts` and members without a value change.
    async fn update(
        &self,
        call: &Call<'_>,
        prior: &Object,
        _planned: &Object,
        _private: &Private,
    ) -> Result<Found, Unfinished> {
        Ok(self.read(call, prior).await?.ok_or(Failure::Gone)?)
    }

    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure> {
        agent::revoke(call, state.text("agent_id").unwrap_or_default()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource;

    fn state() -> Object {
        Object::default()
            .with("agent_name", Value::text("a"))
            .with("issued_at", Value::text("2027-01-01T00:00:00.000Z"))
            .with("ends_at", Value::text("2027-01-31T00:00:00.000Z"))
    }

    fn planned_at(state: &Object, now: &str) -> (Planned, Option<Diagnostic>) {
        let mut planned = Planned { state: state.clone(), replaces: Vec::new() };
        let now = humantime::parse_rfc3339(now).expect("a time");
        let reason = resource::replace_if_due(&AgentIdentity, now, &mut planned);
        (planned, reason)
    }

    #[test]
    fn agent_is_replaced_from_rotate_before_on() {
        let stated = |text| state().with("rotate_before", Value::text(text));
        for (state, before, from) in [
            (state(), "2027-01-27T23:59:59Z", "2027-01-28T00:00:00Z"),
            (stated("1h"), "2027-01-30T22:59:59Z", "2027-01-30T23:00:00Z"),
            (stated("700h"), "2027-01-15T23:59:59Z", "2027-01-16T00:00:00Z"),
        ] {
            assert_eq!(
                planned_at(&state, before),
                (Planned { state: state.clone(), replaces: vec![] }, None)
            );
            let (planned, reason) = planned_at(&state, from);
            assert_eq!(
                (planned.replaces, planned.state.value("ends_at")),
                (vec!["ends_at"], &Value::Unknown)
            );
            assert_eq!(planned.state.value("agent_name"), &Value::text("a"));
            let reason = reason.expect("a reason");
            assert!(!reason.is_error && reason.detail.contains("2027-01-31T00:00:00.000Z"), "{reason:?}");
        }
    }

    #[test]
    fn new_or_changed_agent_is_not_due() {
        let unknown = state().with("ends_at", Value::Unknown);
        assert_eq!(planned_at(&unknown, "2027-02-28T00:00:00Z").1, None);
        let mut planned = Planned { state: state(), replaces: vec!["agent_name"] };
        let now = humantime::parse_rfc3339("2027-01-30T00:00:00Z").expect("a time");
        assert_eq!(resource::replace_if_due(&AgentIdentity, now, &mut planned), None);
        assert_eq!(planned.replaces, ["agent_name"]);
    }
}
