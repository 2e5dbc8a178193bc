//! A resource in five pure steps (table, validate, plan, request, state) and one function with I/O per operation; and the
//! parts of these steps that are the same for all resources.

use std::time::{Duration, SystemTime};

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::private::Private;
use crate::schema::{Attribute, Presence, Table};
use crate::value::{Object, Value};
use crate::{duration, limits};

/// An operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Read,
    Update,
    Delete,
}

/// The route of an operation, and the credential that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub credential: Credential,
    /// Method and path, for messages.
    pub name: &'static str,
}

/// An object of the fabric after an operation.
#[derive(Debug, Default)]
pub struct Found {
    /// The attributes that the fabric states.
    pub observed: Object,
    pub private: Private,
    pub warnings: Vec<Diagnostic>,
    /// The object is there, but of no use any more: a refresh removes it from the state.
    pub is_ended: bool,
}

/// The end of an operation that did not succeed.
#[derive(Debug)]
pub struct Unfinished {
    pub failure: Failure,
    /// The object, if it exists nevertheless.
    pub found: Option<Box<Found>>,
}

impl From<Failure> for Unfinished {
    fn from(failure: Failure) -> Self {
        Self { failure, found: None }
    }
}

/// One resource type.
#[tonic::async_trait]
pub trait Resource: Send + Sync {
    /// Step 1: the schema with the rules of single values.
    fn table(&self) -> &'static Table;

    /// The kind of object in messages: `tool`.
    fn noun(&self) -> &'static str;

    /// The route of an operation. If it needs several, the one with the narrowest credential.
    fn route(&self, operation: Operation) -> Route;

    /// Whether the fabric answers every identity but the creator that the object does not exist.
    fn is_hidden_from_others(&self) -> bool {
        false
    }

    /// Step 2: rules between values. Unknown values break none.
    fn validate(&self, _config: &Object) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// Step 3: changes to the plan of [`plan`] that the table does not express.
    fn plan(&self, _prior: Option<&Object>, _config: &Object, _planned: &mut Planned) {}

    /// The reason to replace an object although its configuration is the same, at the attribute that forces it.
    fn due(&self, _planned: &Object, _now: SystemTime) -> Option<Diagnostic> {
        None
    }

    /// The effect of a deletion that no later apply undoes, which the plan states.
    fn loss(&self) -> Option<&'static str> {
        None
    }

    /// Why a planned change would be refused, as far as the plan shows it.
    fn refused(&self, _prior: Option<&Object>, _planned: &Object) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// The corrective action of a refusal, instead of the common one.
    fn advice(&self, _operation: Operation, _status: u16) -> Option<&'static str> {
        None
    }

    /// Steps 4 and 5 around the requests: creates the planned object.
    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished>;

    /// Reads the object of a state; `None` if the fabric has none with this identifier that this identity may see.
    async fn read(&self, call: &Call<'_>, state: &Object) -> Result<Option<Found>, Failure>;

    /// Changes an object from `prior` to `planned`.
    async fn update(
        &self,
        call: &Call<'_>,
        prior: &Object,
        planned: &Object,
        private: &Private,
    ) -> Result<Found, Unfinished>;

    /// Deletes the object of a state; `false` if there is none that this identity may see.
    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure>;
}

/// The plan of a creation or an update.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Planned {
    pub state: Object,
    /// Attributes whose change replaces the object.
    pub replaces: Vec<&'static str>,
}

impl Operation {
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::Update => "change",
            Self::Delete => "delete",
        }
    }

    #[must_use]
    pub const fn participle(self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Read => "read",
            Self::Update => "changed",
            Self::Delete => "deleted",
        }
    }

    /// Its attribute in `timeouts`.
    const fn timeout_name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Its timeout in a configuration or state.
    #[must_use]
    pub fn timeout(self, object: &Object) -> Duration {
        let stated = object.object("timeouts").and_then(|timeouts| timeouts.text(self.timeout_name()));
        let stated = stated.and_then(|text| duration::parse(text, limits::TIMEOUT_MAX).ok());
        stated.unwrap_or(limits::OPERATION_TIMEOUT)
    }
}

/// The broken rules of single values, at their attributes.
#[must_use]
pub fn broken_rules(attributes: &[Attribute], config: &Object) -> Vec<Diagnostic> {
    let mut broken = Vec::new();
    for attribute in attributes {
        let value = config.value(attribute.name);
        let rules = attribute.broken_rules(value).into_iter();
        broken.extend(rules.map(|rule| invalid(attribute.name, rule)));
        if let (crate::schema::Type::Object(inner), Value::Object(object)) = (attribute.kind, value) {
            let rules = inner.iter().flat_map(|within| within.broken_rules(object.value(within.name)));
            broken.extend(rules.map(|rule| invalid(attribute.name, format!("{}.{rule}", attribute.name))));
        }
    }
    broken
}

/// Refusals of write-only values, for a Terraform that would store them.
#[must_use]
pub fn stated_write_only(attributes: &[Attribute], config: &Object) -> Vec<Diagnostic> {
    let stated = attributes
        .iter()
        .filter(|attribute| attribute.is_write_only && !config.value(attribute.name).is_null());
    let refusal = |attribute: &Attribute| {
        invalid(
            attribute.name,
            format!("{}: needs Terraform 1.11 or later, which does not store it", attribute.name),
        )
    };
    stated.map(refusal).collect()
}

/// A value that breaks a rule.
pub fn invalid(attribute: &'static str, detail: impl Into<String>) -> Diagnostic {
    Diagnostic::error("Invalid value", detail).at(attribute)
}

/// The plan of a resource: configured values, defaults, and computed values as far as they are known.
#[must_use]
pub fn plan(resource: &dyn Resource, prior: Option<&Object>, proposed: &Object, config: &Object) -> Planned {
    let attributes = resource.table().attributes;
    let mut planned = Planned::default();
    for attribute in attributes {
        let value = proposed.value(attribute.name).clone();
        let is_left_out = attribute.is_computed() && config.value(attribute.name).is_null();
        let value = match (is_left_out, attribute.default, prior) {
            _ if attribute.is_write_only => Value::Null,
            (true, Some(default), _) => default(),
            (true, None, None) => Value::Unknown,
            _ => value,
        };
        planned.state.set(attribute.name, value);
    }
    if let Some(prior) = prior {
        let differs =
            |attribute: &&Attribute| planned.state.value(attribute.name) != prior.value(attribute.name);
        let changed: Vec<&Attribute> =
            attributes.iter().filter(|attribute| attribute.is_configurable()).filter(differs).collect();
        let replacing = changed.iter().filter(|attribute| attribute.replaces).map(|attribute| attribute.name);
        let is_other = |name: &&str| !planned.state.value(name).is_equivalent(prior.value(name));
        planned.replaces = replacing.filter(is_other).collect();
        if !changed.is_empty() {
            let volatile = attributes.iter().filter(|attribute| attribute.is_volatile);
            for attribute in volatile.filter(|attribute| config.value(attribute.name).is_null()) {
                planned.state.set(attribute.name, Value::Unknown);
            }
        }
    }
    resource.plan(prior, config, &mut planned);
    planned
}

/// Plans the replacement of an object that is due, unless it is replaced anyway.
pub fn replace_if_due(resource: &dyn Resource, now: SystemTime, planned: &mut Planned) -> Option<Diagnostic> {
    let reason = resource.due(&planned.state, now).filter(|_| planned.replaces.is_empty())?;
    let computed = resource.table().attributes.iter();
    for attribute in computed.filter(|attribute| attribute.presence == Presence::Computed) {
        planned.state.set(attribute.name, Value::Unknown);
    }
    planned.replaces.extend(reason.attribute);
    Some(reason)
}

/// A planned object with the write-only values of the configuration, for the requests of one operation.
#[must_use]
pub fn with_write_only(attributes: &[Attribute], planned: Object, config: &Object) -> Object {
    let names = attributes.iter().filter(|attribute| attribute.is_write_only);
    names.fold(planned, |planned, Attribute { name, .. }| planned.with(name, config.value(name).clone()))
}

/// The state after a creation or an update: the plan wherever it was known, otherwise the fabric's value.
#[must_use]
pub fn applied_state(attributes: &[Attribute], planned: &Object, observed: &Object) -> Object {
    let mut state = Object::default();
    for attribute in attributes {
        let value = match planned.value(attribute.name) {
            _ if attribute.is_write_only => &Value::Null,
            Value::Unknown => observed.value(attribute.name),
            known => known,
        };
        state.set(attribute.name, value.clone());
    }
    state
}

/// The state after a read: the fabric's values. One that is equivalent to the prior value stays as the configuration
/// states it, and so does an attribute of which the fabric knows nothing.
#[must_use]
pub fn refreshed_state(attributes: &[Attribute], prior: &Object, observed: &Object) -> Object {
    let mut state = Object::default();
    for attribute in attributes {
        let before = prior.value(attribute.name);
        let now = observed.value(attribute.name);
        let keeps = !observed.has(attribute.name) || now.is_equivalent(before);
        let value = if keeps { before } else { now };
        state.set(attribute.name, if attribute.is_write_only { Value::Null } else { value.clone() });
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::encryption_key::EncryptionKey;
    use crate::resources::mcp_tool::McpTool;

    fn tool(name: &str) -> Object {
        Object::default().with("tool_id", Value::text("t")).with("name", Value::text(name))
    }

    fn stored(name: &str) -> Object {
        let state = plan(&McpTool, None, &tool(name), &tool(name)).state;
        let observed = Object::default()
            .with("id", Value::text("t"))
            .with("updated_at", Value::text("2026"))
            .with("revision", Value::Number(1));
        applied_state(McpTool.table().attributes, &state, &observed)
    }

    /// The proposal of Terraform: the configuration, with prior values of computed attributes.
    fn proposed(prior: &Object, config: &Object) -> Object {
        let mut proposed = prior.clone();
        for attribute in McpTool.table().attributes {
            let value = config.value(attribute.name);
            if !attribute.is_computed() || value.is_stated() {
                proposed.set(attribute.name, value.clone());
            }
        }
        proposed
    }

    /// Neither a fabric that answers with it nor a state that has it keeps it in a state.
    #[test]
    fn write_only_value_is_never_in_a_state() {
        let attributes = EncryptionKey.table().attributes;
        let stated = Object::default().with("agent_token", Value::text("secret"));
        for state in
            [applied_state(attributes, &stated, &stated), refreshed_state(attributes, &stated, &stated)]
        {
            assert_eq!(state.value("agent_token"), &Value::Null);
        }
    }

    #[test]
    fn unchanged_configuration_plans_nothing() {
        let prior = stored("n");
        let planned = plan(&McpTool, Some(&prior), &proposed(&prior, &tool("n")), &tool("n"));
        assert_eq!(planned, Planned { state: prior, replaces: vec![] });
    }

    #[test]
    fn change_makes_only_volatile_values_unknown() {
        let prior = stored("n");
        let planned = plan(&McpTool, Some(&prior), &proposed(&prior, &tool("m")), &tool("m"));
        assert_eq!(planned.replaces, Vec::<&str>::new());
        assert_eq!(planned.state.value("revision"), &Value::Unknown);
        assert_eq!(planned.state.value("id"), &Value::text("t"));
        assert_eq!(planned.state.value("protocols"), &Value::texts(["mcp"]));
    }

    #[test]
    fn change_of_the_identifier_replaces() {
        let prior = stored("n");
        let config = tool("n").with("tool_id", Value::text("other"));
        let planned = plan(&McpTool, Some(&prior), &proposed(&prior, &config), &config);
        assert_eq!(planned.replaces, ["tool_id"]);
    }

    #[test]
    fn null_and_empty_stay_as_they_are_configured() {
        let attributes = McpTool.table().attributes;
        let observed = Object::default().with("allowed_targets", Value::texts::<&str>([]));
        for stated in [Value::Null, Value::texts::<&str>([])] {
            let prior = tool("n").with("allowed_targets", stated.clone());
            let state = refreshed_state(attributes, &prior, &observed);
            assert_eq!(state.value("allowed_targets"), &stated);
        }
        let drifted = Object::default().with("allowed_targets", Value::texts(["a"]));
        let state = refreshed_state(attributes, &tool("n"), &drifted);
        assert_eq!(state.value("allowed_targets"), &Value::texts(["a"]));
    }

    #[test]
    fn known_plan_is_the_state_whatever_the_fabric_states() {
        let observed = Object::default().with("name", Value::text("other")).with("id", Value::text("t"));
        let planned = tool("n").with("id", Value::Unknown);
        let state = applied_state(McpTool.table().attributes, &planned, &observed);
        assert_eq!((state.text("name"), state.text("id")), (Some("n"), Some("t")));
    }

    #[test]
    fn timeout_is_that_of_the_operation() {
        let timeouts = Object::default().with("update", Value::text("3s"));
        let state = tool("n").with("timeouts", Value::Object(timeouts));
        assert_eq!(Operation::Update.timeout(&state), Duration::from_secs(3));
        assert_eq!(Operation::Delete.timeout(&state), limits::OPERATION_TIMEOUT);
    }
}
