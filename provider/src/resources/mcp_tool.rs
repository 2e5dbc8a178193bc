//! `svc_mcp_tool`: a tool in the registry.
//!
//! It is created through `/v1/mcp/tools`, and read, changed and deleted through `/v1/tools/{tool_id}`, where it is also
//! found after another party removed `mcp` from its protocols: that is drift, not a deletion.

use trust_fabric_client::{Method, Request, Response};

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::private::Private;
use crate::resource::{Found, Operation, Resource, Route, Unfinished, invalid};
use crate::rules;
use crate::schema::{Attribute, TIMEOUTS, Table, Type};
use crate::value::{Object, Value, json};

/// The resource type.
pub struct McpTool;

static TABLE: Table = Table {
    name: "svc_mcp_tool",
    summary: "A tool in the registry of the fabric, with the properties that a token must have to call it.",
    attributes: &[
        Attribute::required("tool_id", Type::Text, "Identifier, unique in the cluster.")
            .replaces()
            .rule(rules::tool_id),
        Attribute::required("name", Type::Text, "Name for people.").rule(rules::display),
        Attribute::optional(
            "resource_uri",
            Type::Text,
            "Absolute URI without a fragment: the `aud` that a token must have.",
        )
        .rule(rules::resource_uri),
        Attribute::optional("required_capabilities", Type::TextSet, "Capabilities that a token must have.")
            .rule(rules::capability)
            .members(0, 128),
        Attribute::optional(
            "max_blast_radius",
            Type::Text,
            "`<kind>` or `<kind>:<name>`: the largest blast radius that a token may have.",
        )
        .rule(rules::blast_radius),
        Attribute::optional_computed(
            "requires_execution",
            Type::Bool,
            "Whether a token must be bound to an operation or a target; the default is `false`.",
        )
        .default(|| Value::Bool(false)),
        Attribute::optional("allowed_operations", Type::TextSet, "Allowed `exec_act`, with `requires_execution`.")
            .rule(rules::operation)
            .members(0, 256),
        Attribute::optional("allowed_targets", Type::TextSet, "Allowed `target`, with `requires_execution`.")
            .rule(rules::target)
            .members(0, 256),
        Attribute::optional_computed(
            "protocols",
            Type::TextSet,
            "Protocols of the tool, `mcp` among them: `mcp`, `http`, `a2a/2025-draft-01`. The default is `mcp` alone.",
        )
        .rule(rules::protocol)
        .default(|| Value::texts(["mcp"])),
        Attribute::optional("description", Type::Text, "Description for people.").rule(rules::lines),
        Attribute::optional("version", Type::Text, "Semantic version of the tool.").rule(rules::version),
        Attribute::computed("id", Type::Text, "The `tool_id`.").wire("tool_id"),
        Attribute::computed("registered_by", Type::Text, "Identity that registered the tool."),
        Attribute::computed("registered_at", Type::Text, "Time of the registration."),
        Attribute::computed("updated_at", Type::Text, "Time of the last change.").volatile(),
        Attribute::computed("revision", Type::Number, "Number of the revision, from 1.").volatile(),
        TIMEOUTS,
    ],
    import: Some("tool_id"),
    example: include_str!("../../examples/svc_mcp_tool.tf"),
    notes: "\
- A tool belongs to the identity that registered it: only that identity, or an operator, changes or deletes it.
- The record is replaced only if it is still the one that was read. If another party changed it between plan and apply,
  the apply fails, and nothing is overwritten: plan again.
- A tool that exists with the same content is taken over, with a warning; one with other content is an error.",
};

/// The attributes that a request states.
const STATED: [&str; 11] = [
    "tool_id",
    "name",
    "resource_uri",
    "required_capabilities",
    "max_blast_radius",
    "requires_execution",
    "allowed_operations",
    "allowed_targets",
    "protocols",
    "description",
    "version",
];

/// The attributes that only a record states.
const RECORDED: [&str; 5] = ["id", "registered_by", "registered_at", "updated_at", "revision"];

/// A tool can be created and changed with either credential.
const CREDENTIAL: Credential = Credential::TokenFirst;

#[tonic::async_trait]
impl Resource for McpTool {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn noun(&self) -> &'static str {
        "tool"
    }

    fn route(&self, operation: Operation) -> Route {
        let name = match operation {
            Operation::Create => "POST /v1/mcp/tools",
            Operation::Read => "GET /v1/tools/{tool_id}",
            Operation::Update => "PUT /v1/tools/{tool_id}",
            Operation::Delete => "DELETE /v1/tools/{tool_id}",
        };
        Route { credential: CREDENTIAL, name }
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        let mut broken = Vec::new();
        let is_empty = |name| match config.value(name) {
            Value::Null => true,
            Value::Set(members) => members.is_empty(),
            _ => false,
        };
        if *config.value("requires_execution") == Value::Bool(true)
            && is_empty("allowed_operations")
            && is_empty("allowed_targets")
        {
            let rule = "requires_execution: requires allowed_operations or allowed_targets: without them there is no \
                        constraint";
            broken.push(invalid("requires_execution", rule));
        }
        if let Value::Set(members) = config.value("protocols")
            && !members.contains(&Value::text("mcp"))
            && !members.contains(&Value::Unknown)
        {
            broken.push(invalid("protocols", "protocols: must include mcp"));
        }
        broken
    }

    fn advice(&self, operation: Operation, status: u16) -> Option<&'static str> {
        match (operation, status) {
            (Operation::Create, 409) => Some(
                "The tool exists with other content: import it or choose another tool_id. Or the registry is full.",
            ),
            (Operation::Update, 412) => {
                Some("The tool was changed outside of Terraform since it was read; run plan again.")
            }
            _ => None,
        }
    }

    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished> {
        let body = json::body(planned, TABLE.attributes, &STATED);
        let response = call.send(CREDENTIAL, Request::post(&["v1", "mcp", "tools"], &body)).await?;
        let existed = response.status == 200;
        let mut found = state(response)?;
        if existed {
            let detail =
                "It was registered with the same content before, and is now managed by this resource.";
            found.warnings.push(Diagnostic::warning("The tool existed", detail));
        }
        Ok(found)
    }

    async fn read(&self, call: &Call<'_>, state_before: &Object) -> Result<Option<Found>, Failure> {
        let path = path(state_before);
        match call.send(CREDENTIAL, Request::get(&path)).await {
            Ok(response) => state(response).map(Some),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn update(
        &self,
        call: &Call<'_>,
        _prior: &Object,
        planned: &Object,
        private: &Private,
    ) -> Result<Found, Unfinished> {
        let body = json::body(planned, TABLE.attributes, &STATED);
        let path = path(planned);
        let if_match = private.etag.as_deref();
        let request = Request { method: Method::PUT, if_match, ..Request::post(&path, &body) };
        Ok(state(call.send(CREDENTIAL, request).await?)?)
    }

    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure> {
        let path = path(state);
        let request = Request { method: Method::DELETE, ..Request::get(&path) };
        match call.send(CREDENTIAL, request).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.status() == Some(404) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

fn path(object: &Object) -> [&str; 3] {
    ["v1", "tools", object.text("tool_id").unwrap_or_default()]
}

/// Step 5: the record as attributes. Its owner is the identity that registered it.
fn state(response: Response) -> Result<Found, Failure> {
    let names = [&STATED[..], &RECORDED[..]].concat();
    let observed = json::observe(&response.body, TABLE.attributes, &names)?;
    let owner = observed.text("registered_by").map(str::to_owned);
    Ok(Found { private: Private { etag: response.etag, owner }, observed, ..Found::default() })
}
