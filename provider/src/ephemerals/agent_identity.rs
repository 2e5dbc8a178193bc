//! The ephemeral resource `svc_agent_identity`: an agent that lives as long as the run, with its token.

use crate::agent;
use crate::cluster::{Call, Failure};
use crate::diagnostic::Diagnostic;
use crate::ephemeral::{Ephemeral, Opened};
use crate::schema::{Attribute, Table, Type};
use crate::value::{Object, Value, json};

/// The type.
pub struct AgentIdentity;

static TABLE: Table = Table {
    name: "svc_agent_identity",
    summary: "An agent for one run of Terraform, with its token. It is opened in the plan and again in the apply, each \
              time another agent, and revoked at the end of either.",
    attributes: &[
        agent::AGENT_NAME,
        agent::PLATFORM,
        agent::CAPABILITIES,
        agent::ON_BEHALF_OF,
        agent::MAX_BLAST_RADIUS,
        agent::DELEGATION_DEPTH,
        agent::METADATA,
        Attribute::optional_computed(
            "revoke_on_close",
            Type::Bool,
            "Whether the agent is revoked at the end of the run; the default is `true`. Otherwise it is active until it \
             ends, 30 days after its issue.",
        )
        .default(|| Value::Bool(true)),
        agent::AGENT_ID,
        Attribute::computed("token", Type::Text, "The identity token: a bearer token of the fabric for the fabric.")
            .sensitive(),
        Attribute::computed("expires_at", Type::Text, "End of the token, one hour after the opening."),
        agent::GRANTED_CAPABILITIES,
        agent::BLAST_RADIUS,
    ],
    import: None,
    example: include_str!("../../examples/ephemeral_svc_agent_identity.tf"),
    notes: "\
- The issue takes a client certificate with the capability `identity.issue`.
- An object that is created with the token belongs to this agent: the agent of another run cannot change it.
- The token cannot be renewed during a run: one that takes more than an hour ends with 401, because the token has expired.
- The agent is revoked also if the apply fails or is interrupted: the provider does it at its own end at the latest. If the
  provider is killed, it is not; `GET /v1/identity/agents` shows it under its `agent_name`.",
};

const OBSERVED: [&str; 5] = ["agent_id", "token", "expires_at", "granted_capabilities", "blast_radius"];

#[tonic::async_trait]
impl Ephemeral for AgentIdentity {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn opening(&self) -> [&'static str; 3] {
        ["issue", "issued", "agent"]
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        agent::validate(config)
    }

    fn advice(&self, status: u16) -> Option<&'static str> {
        agent::issue_advice(status)
    }

    async fn open(&self, call: &Call<'_>, config: &Object) -> Result<Opened, Failure> {
        let issued = agent::issue(call, TABLE.attributes, config).await?;
        let observed = json::observe(&issued, TABLE.attributes, &OBSERVED)?;
        let is_revoked = *config.value("revoke_on_close") == Value::Bool(true);
        let kept = observed.text("agent_id").filter(|_| is_revoked).map(str::to_owned);
        Ok(Opened { observed, kept })
    }

    async fn close(&self, call: &Call<'_>, agent_id: &str) -> Result<(), Failure> {
        // An agent that is not found has ended.
        agent::revoke(call, agent_id).await.map(drop)
    }
}
