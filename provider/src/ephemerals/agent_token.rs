//! The ephemeral resource `svc_agent_token`: another token of an agent of this identity.

use trust_fabric_client::{Method, Request};

use crate::agent;
use crate::cluster::{Call, Credential, Failure};
use crate::ephemeral::{Ephemeral, Opened};
use crate::rules;
use crate::schema::{Attribute, Table, Type};
use crate::value::{Object, json};

/// The type.
pub struct AgentToken;

static TABLE: Table = Table {
    name: "svc_agent_token",
    summary: "An identity token of an agent that this identity had issued, for one run of Terraform.",
    attributes: &[
        Attribute::required("agent_id", Type::Text, "The agent.").rule(rules::workload_id),
        Attribute::computed("token", Type::Text, "The identity token: a bearer token of the fabric for the fabric.")
            .sensitive(),
        Attribute::computed("expires_at", Type::Text, "End of the token, one hour after the opening."),
    ],
    import: None,
    example: include_str!("../../examples/ephemeral_svc_agent_token.tf"),
    notes: "\
- The request takes a client certificate with the capability `identity.issue`, of the identity that had the agent issued,
  or of an operator. The policy decides again.
- The token cannot be renewed during a run: one that takes more than an hour ends with 401, because the token has expired.
- The end of a run does not revoke the token: it expires.",
};

#[tonic::async_trait]
impl Ephemeral for AgentToken {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn opening(&self) -> [&'static str; 3] {
        ["mint", "minted", "token of the agent"]
    }

    fn advice(&self, status: u16) -> Option<&'static str> {
        match status {
            403 => Some("The agent is revoked or ended, or the policy denies it a token by now."),
            404 => Some("The agent does not exist any more, or another identity had it issued."),
            501 => Some("The policy of the fabric has no rule about agents."),
            _ => None,
        }
    }

    async fn open(&self, call: &Call<'_>, config: &Object) -> Result<Opened, Failure> {
        let agent_id = config.text("agent_id").unwrap_or_default();
        let [v1, identity, agents, agent] = agent::path(agent_id);
        let path = [v1, identity, agents, agent, "token"];
        let request = Request { method: Method::POST, ..Request::get(&path) };
        let response = call.send(Credential::Certificate, request).await?;
        let observed = json::observe(&response.body, TABLE.attributes, &["token", "expires_at"])?;
        Ok(Opened { observed, kept: None })
    }
}
