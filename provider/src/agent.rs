//! Agents of the fabric, as the resource and the ephemeral resource `svc_agent_identity` share them: the attributes of a
//! request, its rules, issue and revocation.

use serde_json::Value as Json;
use trust_fabric_client::{Method, Request};

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::resource::invalid;
use crate::rules;
use crate::schema::{Attribute, Type};
use crate::value::{Object, Value, json};

pub const AGENT_NAME: Attribute =
    Attribute::required("agent_name", Type::Text, "Name for people; not unique.").rule(rules::display);
pub const PLATFORM: Attribute =
    Attribute::required("platform", Type::Text, "`mcp`, `a2a`, `watsonx` or `custom`.").rule(rules::platform);
pub const CAPABILITIES: Attribute = Attribute::required(
    "capabilities",
    Type::TextSet,
    "Requested capabilities; the policy may grant fewer (`granted_capabilities`).",
)
.rule(rules::capability)
.members(1, 128);
pub const ON_BEHALF_OF: Attribute =
    Attribute::optional("on_behalf_of", Type::Text, "`agent_id` of the parent agent.")
        .rule(rules::workload_id);
pub const MAX_BLAST_RADIUS: Attribute = Attribute::optional(
    "max_blast_radius",
    Type::Text,
    "`<kind>` or `<kind>:<name>`: the largest blast radius to grant.",
)
.rule(rules::blast_radius);
pub const DELEGATION_DEPTH: Attribute = Attribute::optional(
    "delegation_depth",
    Type::Number,
    "0 to 10: how many agents may act after this one; the default 0 is an agent that cannot delegate.",
);
pub const METADATA: Attribute =
    Attribute::optional("metadata", Type::TextMap, "Further properties for the policy and for people.")
        .rule(rules::metadata_value)
        .members(0, 64);
pub const AGENT_ID: Attribute =
    Attribute::computed("agent_id", Type::Text, "Identifier of the agent.").rule(rules::workload_id);
pub const GRANTED_CAPABILITIES: Attribute =
    Attribute::computed("granted_capabilities", Type::TextSet, "Capabilities that the policy granted.")
        .wire("capabilities");
pub const BLAST_RADIUS: Attribute =
    Attribute::computed("blast_radius", Type::Text, "Granted blast radius; null if unrestricted.");

/// The attributes that a request states.
pub const STATED: [&str; 7] = [
    "agent_name",
    "platform",
    "capabilities",
    "on_behalf_of",
    "max_blast_radius",
    "delegation_depth",
    "metadata",
];

/// The credential of every request but the issue: only the identity that had an agent issued sees it, and only a
/// certificate has agents issued.
pub const CREDENTIAL: Credential = Credential::CertificateFirst;

/// Rules of a request that the table does not express.
#[must_use]
pub fn validate(config: &Object) -> Vec<Diagnostic> {
    match config.value("delegation_depth") {
        Value::Number(depth) if !(0..=10).contains(depth) => {
            vec![invalid("delegation_depth", "delegation_depth: must be a whole number from 0 to 10")]
        }
        _ => Vec::new(),
    }
}

/// The corrective action of a refused issue.
#[must_use]
pub fn issue_advice(status: u16) -> Option<&'static str> {
    match status {
        403 => Some(
            "The policy decides which agents this identity may have issued (data.identity), and the identity needs the \
             capability identity.issue. An agent has no more rights than its parent.",
        ),
        409 => Some("The quota of agents is used up, of the fabric or of this identity."),
        501 => Some("The policy of the fabric has no rule about agents."),
        _ => None,
    }
}

/// Has an agent issued; the record of the response, with its token.
pub async fn issue(call: &Call<'_>, attributes: &[Attribute], stated: &Object) -> Result<Json, Failure> {
    let body = json::body(stated, attributes, &STATED);
    let request = Request::post(&["v1", "identity", "agent"], &body);
    Ok(call.send(Credential::Certificate, request).await?.body)
}

/// Revokes an agent; `false` if there is none that this identity may see.
pub async fn revoke(call: &Call<'_>, agent_id: &str) -> Result<bool, Failure> {
    let path = path(agent_id);
    let request = Request { method: Method::DELETE, ..Request::get(&path) };
    match call.send(CREDENTIAL, request).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.status() == Some(404) => Ok(false),
        Err(failure) => Err(failure),
    }
}

#[must_use]
pub const fn path(agent_id: &str) -> [&str; 4] {
    ["v1", "identity", "agents", agent_id]
}
