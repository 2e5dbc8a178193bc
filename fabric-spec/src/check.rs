//! The judgement of a fabric as the API server makes it: its schema, its defaults and its rules.
//!
//! Without an API server, so that a plan shows what an apply would be refused for. The rules are those of the definition;
//! they are not written a second time.

use std::fmt;

use serde_json::{Map, Value};

use crate::spec::FabricSpec;
use crate::{Error, crd, schema};

/// A value that the API server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The path, such as `spec.issuers[0].keysUrl`.
    pub path: String,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Violations of `spec`, and of its change from `old` if it replaces one.
///
/// # Errors
/// [`Error::Generated`] if the schema cannot be used.
pub fn violations(spec: &Value, old: Option<&Value>) -> Result<Vec<Violation>, Error> {
    let unusable = |error: &dyn fmt::Display| Error::Generated(error.to_string());
    // With `additionalProperties: false`, so that a value that the type does not have is one too many.
    let strict = schema::of::<FabricSpec>();
    let validator = jsonschema::validator_for(&strict).map_err(|error| unusable(&error))?;
    let found: Vec<Violation> = validator
        .iter_errors(spec)
        .map(|error| Violation {
            path: place("spec", &error.instance_path().to_string()),
            message: error.to_string(),
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let definition = crd::definition()?;
    let stated = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let with_rules = definition.pointer(stated).ok_or_else(|| unusable(&"the definition has no spec"))?;
    let (mut spec, mut old) = (spec.clone(), old.cloned());
    set_defaults(with_rules, &mut spec);
    if let Some(old) = &mut old {
        set_defaults(with_rules, old);
    }
    Ok(broken_rules(with_rules, &spec, old.as_ref(), "spec"))
}

/// Sets the defaults of a structural schema, as the API server does.
pub fn set_defaults(schema: &Value, value: &mut Value) {
    if let Value::Object(members) = value {
        for (name, inner) in properties(schema) {
            if let Some(default) = inner.get("default") {
                members.entry(name.clone()).or_insert_with(|| default.clone());
            }
            if let Some(member) = members.get_mut(name) {
                set_defaults(inner, member);
            }
        }
    }
    if let (Value::Array(items), Some(inner)) = (value, schema.get("items")) {
        for item in items {
            set_defaults(inner, item);
        }
    }
}

/// Removes fields that are null: to the API server they are absent.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The rules below a structural schema (`x-kubernetes-validations`) that `value` breaks, which is at `path`. A rule about
/// a change is judged only if there is an `old` value.
#[must_use]
pub fn broken_rules(schema: &Value, value: &Value, old: Option<&Value>, path: &str) -> Vec<Violation> {
    let mut broken = Vec::new();
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    for rule in rules.into_iter().flatten() {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
        let is_judged = old.is_some() || !text("rule").contains("oldSelf");
        if is_judged && !holds(text("rule"), value, old) {
            broken.push(Violation { path: path.to_owned(), message: text("message").to_owned() });
        }
    }
    for (name, inner) in properties(schema) {
        if let Some(member) = value.get(name) {
            let old = old.and_then(|old| old.get(name));
            broken.extend(broken_rules(inner, member, old, &format!("{path}.{name}")));
        }
    }
    if let (Value::Array(items), Some(inner)) = (value, schema.get("items")) {
        for (index, item) in items.iter().enumerate() {
            broken.extend(broken_rules(inner, item, None, &format!("{path}[{index}]")));
        }
    }
    broken
}

/// Whether a rule in CEL is true. One that cannot be evaluated is not, as for the API server.
fn holds(rule: &str, value: &Value, old: Option<&Value>) -> bool {
    let Ok(program) = cel::Program::compile(rule) else { return false };
    let mut context = cel::Context::default();
    for (name, value) in [("self", Some(value)), ("oldSelf", old)] {
        let Some(value) = value else { continue };
        let Ok(value) = cel::to_value(value) else { return false };
        context.add_variable_from_value(name, value);
    }
    program.execute(&context).is_ok_and(|result| result == cel::Value::Bool(true))
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// A JSON pointer below `root`, in the notation of Kubernetes.
fn place(root: &str, pointer: &str) -> String {
    let segments = pointer.split('/').skip(1);
    segments.fold(root.to_owned(), |path, segment| {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        if segment.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("{path}[{segment}]")
        } else {
            format!("{path}.{segment}")
        }
    })
}
