//! JSON Schemas of the types, in the form that both Kubernetes and Helm read.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The schema of `T` without references, alternatives with null, and formats that only Rust knows.
pub(crate) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    // The order must not depend on features of serde_json that another crate of the build enables.
    schema.sort_all_objects();
    schema
}

fn simplify(schema: &mut Value) {
    if let Value::Object(object) = schema {
        for key in ["$schema", "title", "format"] {
            // Properties may have these names; their schemas are objects.
            if object.get(key).is_some_and(Value::is_string) {
                object.remove(key);
            }
        }
        if object.get("default").is_some_and(Value::is_null) {
            object.remove("default");
        }
        unite_alternatives(object);
        drop_null(object, "type");
        drop_null(object, "enum");
    }
    each_child(schema, &mut simplify);
}

/// `anyOf` of a type and null, of which only the type remains. Optional means absent here, never null.
fn unite_alternatives(object: &mut Map<String, Value>) {
    let Some(Value::Array(alternatives)) = object.get("anyOf").cloned() else { return };
    let is_null = |schema: &Value| schema["type"] == "null";
    let mut others = alternatives.iter().filter(|schema| !is_null(schema));
    if let (Some(Value::Object(only)), None) = (others.next(), others.next()) {
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

fn drop_null(object: &mut Map<String, Value>, key: &str) {
    let Some(Value::Array(values)) = object.get_mut(key) else { return };
    values.retain(|value| !value.is_null() && value != "null");
    if key == "type"
        && let [only] = values.as_slice()
    {
        let only = only.clone();
        object.insert(key.to_owned(), only);
    }
}

/// Without `additionalProperties: false`, which a structural schema must not have: the API server prunes or refuses
/// unknown fields by itself.
pub(crate) fn structural(schema: &mut Value) {
    if let Value::Object(object) = schema
        && object.get("additionalProperties") == Some(&Value::Bool(false))
    {
        object.remove("additionalProperties");
    }
    each_child(schema, &mut structural);
}

fn each_child(schema: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    match schema {
        Value::Object(object) => object.values_mut().for_each(change),
        Value::Array(items) => items.iter_mut().for_each(change),
        _ => {}
    }
}
