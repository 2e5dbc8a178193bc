//! One resource in a workspace of Terraform: validate, refresh, plan and apply in its order, with its own checks that a
//! provider is consistent and that nothing which Terraform stores or shows contains a token.

use serde_json::{Value as Json, json};
use trust_fabric_provider::proto::tfplugin6 as proto;
use trust_fabric_provider::resource::Resource;
use trust_fabric_provider::schema::Attribute;
use trust_fabric_provider::value::{self, Object, Value, msgpack};
use trust_fabric_provider::{resources, settings};

use super::plugin::Plugin;

/// A message, with the attribute that it points at.
#[derive(Clone, Debug)]
pub struct Message {
    pub is_error: bool,
    pub text: String,
    pub attribute: Option<String>,
}

/// A resource and its state.
pub struct Workspace<'p> {
    pub plugin: &'p mut Plugin,
    resource: &'static dyn Resource,
    pub state: Option<Object>,
    pub private: Vec<u8>,
    /// Messages of the last call that had any; of a plan, those of its refresh too.
    pub messages: Vec<Message>,
    /// Whether Terraform knows write-only values (1.11).
    pub is_current: bool,
}

/// The plan of a change.
#[derive(Debug)]
pub struct Plan {
    pub state: Option<Object>,
    pub replaces: Vec<String>,
    /// Attributes that change.
    pub changes: Vec<&'static str>,
    private: Vec<u8>,
}

pub type Outcome<T> = Result<T, Vec<Message>>;

/// The canary: bytes that Terraform stores or shows.
pub fn assert_no_token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(!text.contains("eyJ") && !text.contains("PRIVATE KEY"), "{text}");
}

pub fn messages(diagnostics: Vec<proto::Diagnostic>) -> Vec<Message> {
    assert_no_token(format!("{diagnostics:?}").as_bytes());
    let message = |diagnostic: proto::Diagnostic| {
        use proto::attribute_path::step::Selector;
        let step = diagnostic.attribute.and_then(|path| path.steps.into_iter().next());
        let attribute = step.and_then(|step| match step.selector {
            Some(Selector::AttributeName(name)) => Some(name),
            _ => None,
        });
        let is_error = diagnostic.severity == i32::from(proto::diagnostic::Severity::Error);
        Message { is_error, text: format!("{}: {}", diagnostic.summary, diagnostic.detail), attribute }
    };
    diagnostics.into_iter().map(message).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "the type of the fields")]
pub fn dynamic(object: Option<&Object>, attributes: &[Attribute]) -> Option<proto::DynamicValue> {
    Some(proto::DynamicValue { msgpack: msgpack::encode(object, attributes), json: Vec::new() })
}

fn decoded(value: Option<proto::DynamicValue>, attributes: &'static [Attribute]) -> Option<Object> {
    let value = value.expect("a value");
    assert_no_token(&value.msgpack);
    let object = msgpack::decode(&value.msgpack, attributes).expect("decoded");
    let mut write_only = attributes.iter().filter(|attribute| attribute.is_write_only);
    assert!(
        write_only.all(|stored| object.as_ref().is_none_or(|object| object.value(stored.name).is_null()))
    );
    object
}

/// Configures the provider. In `config` the text `UNKNOWN` is an unknown value.
pub async fn configure(plugin: &mut Plugin, config: &Json) -> Outcome<()> {
    let attributes = settings::TABLE.attributes;
    let object = value::json::decode(config, attributes).expect("a configuration");
    let object = object.map(|value| if value == Value::text("UNKNOWN") { Value::Unknown } else { value });
    let config = dynamic(Some(&object), attributes);
    let request = proto::ValidateProviderRequest { config: config.clone() };
    let validated = plugin.provider.validate_provider_config(request).await.expect("validated");
    succeeded(messages(validated.into_inner().diagnostics))?;
    let request = proto::ConfigureRequest { terraform_version: "1.11.4".to_owned(), config };
    let configured = plugin.provider.configure_provider(request).await.expect("configured");
    succeeded(messages(configured.into_inner().diagnostics)).map(drop)
}

/// The messages, if none is an error.
pub fn succeeded(messages: Vec<Message>) -> Outcome<Vec<Message>> {
    if messages.iter().any(|message| message.is_error) { Err(messages) } else { Ok(messages) }
}

impl<'p> Workspace<'p> {
    pub fn new(plugin: &'p mut Plugin, type_name: &str) -> Self {
        let resource = resources::named(type_name).expect("a resource type");
        let (private, messages) = (Vec::new(), Vec::new());
        Self { plugin, resource, state: None, private, messages, is_current: true }
    }

    fn type_name(&self) -> String {
        self.resource.table().name.to_owned()
    }

    fn attributes(&self) -> &'static [Attribute] {
        self.resource.table().attributes
    }

    fn config(&self, config: &Json) -> Object {
        value::json::decode(config, self.attributes()).expect("a configuration")
    }

    /// The attribute of the state, as JSON.
    pub fn value(&self, name: &str) -> Json {
        let state = self.state.as_ref().expect("a state");
        value::json::encode(state.value(name)).unwrap_or_default()
    }

    pub async fn validate(&mut self, config: &Json) -> Outcome<()> {
        let config = dynamic(Some(&self.config(config)), self.attributes());
        let capabilities = proto::ClientCapabilities { write_only_attributes_allowed: true };
        let client_capabilities = self.is_current.then_some(capabilities);
        let type_name = self.type_name();
        let request = proto::ValidateResourceRequest { type_name, config, client_capabilities };
        let validated = self.plugin.provider.validate_resource_config(request).await.expect("validated");
        succeeded(messages(validated.into_inner().diagnostics)).map(drop)
    }

    pub async fn refresh(&mut self) -> Outcome<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let request = proto::ReadRequest {
            type_name: self.type_name(),
            current_state: dynamic(Some(state), self.attributes()),
            private: self.private.clone(),
        };
        let read = self.plugin.provider.read_resource(request).await.expect("read").into_inner();
        let after = decoded(read.new_state, self.attributes());
        let outcome = succeeded(messages(read.diagnostics));
        if outcome.is_err() {
            assert_eq!(after.as_ref(), Some(state), "a failed read keeps the state");
        }
        self.messages = outcome?;
        assert_no_token(&read.private);
        (self.state, self.private) = (after, read.private);
        Ok(())
    }

    /// Validates, refreshes and plans. `None` plans the deletion.
    pub async fn plan(&mut self, config: Option<&Json>) -> Outcome<Plan> {
        if let Some(config) = config {
            self.validate(config).await?;
        }
        self.refresh().await?;
        self.plan_without_refresh(config).await
    }

    pub async fn plan_without_refresh(&mut self, config: Option<&Json>) -> Outcome<Plan> {
        let config = config.map(|config| self.config(config));
        let prior = self.state.clone();
        let mut plan = self.planned(prior.as_ref(), config.as_ref()).await?;
        let empty = Object::default();
        let (before, after) = (prior.as_ref().unwrap_or(&empty), plan.state.as_ref().unwrap_or(&empty));
        let names = self.attributes().iter().map(|attribute| attribute.name);
        plan.changes = names.filter(|name| before.value(name) != after.value(name)).collect();
        if plan.changes.is_empty() {
            assert_eq!(plan.replaces, Vec::<String>::new(), "an empty plan replaces nothing");
        }
        Ok(plan)
    }

    async fn planned(&mut self, prior: Option<&Object>, config: Option<&Object>) -> Outcome<Plan> {
        let attributes = self.attributes();
        let proposed = config.map(|config| proposed(attributes, prior, config));
        let request = proto::PlanRequest {
            type_name: self.type_name(),
            prior_state: dynamic(prior, attributes),
            proposed_new_state: dynamic(proposed.as_ref(), attributes),
            config: dynamic(config, attributes),
            prior_private: self.private.clone(),
        };
        let planned = self.plugin.provider.plan_resource_change(request).await.expect("planned").into_inner();
        self.messages.extend(succeeded(messages(planned.diagnostics))?);
        assert_no_token(&planned.planned_private);
        let state = decoded(planned.planned_state, attributes);
        if let (Some(state), Some(config)) = (&state, config) {
            for attribute in attributes {
                let (planned, stated) = (state.value(attribute.name), config.value(attribute.name));
                // Terraform accepts the prior value as one that is equivalent.
                let is_prior = prior.is_some_and(|prior| planned == prior.value(attribute.name));
                let is_kept = planned == stated
                    || attribute.is_write_only
                    || (stated.is_null() && attribute.is_computed())
                    || (is_prior && !planned.is_null() && !stated.is_null());
                assert!(is_kept, "{}: planned {planned:?}, configured {stated:?}", attribute.name);
            }
        }
        let name = |path: proto::AttributePath| format!("{:?}", path.steps[0].selector);
        let replaces = planned.requires_replace.into_iter().map(name);
        let replaces = replaces.map(|text| text.split('"').nth(1).expect("a name").to_owned()).collect();
        Ok(Plan { state, replaces, changes: Vec::new(), private: planned.planned_private })
    }

    /// Plans and applies. `None` deletes.
    pub async fn apply(&mut self, config: Option<&Json>) -> Outcome<Plan> {
        let plan = self.plan(config).await?;
        self.apply_plan(&plan, config).await?;
        Ok(plan)
    }

    pub async fn apply_plan(&mut self, plan: &Plan, config: Option<&Json>) -> Outcome<()> {
        if plan.changes.is_empty() {
            return Ok(());
        }
        let config = config.map(|config| self.config(config));
        if plan.replaces.is_empty() {
            return self.applied(plan, config.as_ref()).await;
        }
        let deletion = Plan { state: None, replaces: vec![], changes: vec![], private: plan.private.clone() };
        self.applied(&deletion, None).await?;
        self.private.clear();
        let creation = self.planned(None, config.as_ref()).await?;
        self.applied(&creation, config.as_ref()).await
    }

    async fn applied(&mut self, plan: &Plan, config: Option<&Object>) -> Outcome<()> {
        let attributes = self.attributes();
        let request = proto::ApplyRequest {
            type_name: self.type_name(),
            prior_state: dynamic(self.state.as_ref(), attributes),
            planned_state: dynamic(plan.state.as_ref(), attributes),
            config: dynamic(config, attributes),
            planned_private: plan.private.clone(),
        };
        let applied =
            self.plugin.provider.apply_resource_change(request).await.expect("applied").into_inner();
        self.state = decoded(applied.new_state, attributes);
        assert_no_token(&applied.private);
        self.private = applied.private;
        let messages = succeeded(messages(applied.diagnostics))?;
        if !messages.is_empty() {
            self.messages = messages;
        }
        assert_eq!(self.state.is_some(), plan.state.is_some());
        let (Some(state), Some(planned)) = (&self.state, &plan.state) else { return Ok(()) };
        for attribute in attributes {
            let (planned, value) = (planned.value(attribute.name), state.value(attribute.name));
            assert_ne!(value, &Value::Unknown, "{}", attribute.name);
            assert!(
                planned == &Value::Unknown || planned == value,
                "{}: inconsistent result",
                attribute.name
            );
        }
        Ok(())
    }

    /// Imports an object, and reads it.
    pub async fn import(&mut self, id: &str) -> Outcome<()> {
        let request = proto::ImportRequest { type_name: self.type_name(), id: id.to_owned() };
        let imported =
            self.plugin.provider.import_resource_state(request).await.expect("imported").into_inner();
        succeeded(messages(imported.diagnostics))?;
        let [imported] = imported.imported_resources.try_into().expect("one");
        self.state = decoded(imported.state, self.attributes());
        self.private = imported.private;
        self.refresh().await
    }

    /// Stores the state as JSON and reads it again, as the next run of Terraform does.
    pub async fn store(&mut self) {
        let attributes = self.attributes();
        let state = self.state.as_ref().expect("a state");
        let members = attributes.iter().map(|attribute| {
            (attribute.name.to_owned(), value::json::encode(state.value(attribute.name)).unwrap_or_default())
        });
        let json = Json::Object(members.collect()).to_string().into_bytes();
        let request = proto::UpgradeRequest {
            type_name: self.type_name(),
            version: 0,
            raw_state: Some(proto::RawState { json }),
        };
        let upgraded =
            self.plugin.provider.upgrade_resource_state(request).await.expect("upgraded").into_inner();
        self.state = decoded(upgraded.upgraded_state, attributes);
    }
}

/// Terraform's proposal: the configuration, with prior values of computed attributes that it does not state.
fn proposed(attributes: &[Attribute], prior: Option<&Object>, config: &Object) -> Object {
    let mut proposed = Object::default();
    for attribute in attributes {
        let stated = config.value(attribute.name);
        let prior = prior.map_or(&Value::Null, |prior| prior.value(attribute.name));
        let value = if stated.is_null() && attribute.is_computed() { prior } else { stated };
        proposed.set(attribute.name, value.clone());
    }
    proposed
}

/// `value` with the members of `changes`; a null removes one.
pub fn with(value: &Json, changes: &Json) -> Json {
    let mut value = value.clone();
    for (name, change) in changes.as_object().expect("an object") {
        value[name] = change.clone();
    }
    value
}

/// The text of all messages.
pub fn text(messages: &[Message]) -> String {
    messages.iter().map(|message| message.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The smallest tool.
pub fn tool(tool_id: &str) -> Json {
    json!({ "tool_id": tool_id, "name": "Tool" })
}
