//! Values in JSON: a stored state, and the records of the fabric.

use serde_json::Value as Json;

use super::{Error, Object, Value};
use crate::schema::{Attribute, Type};

/// The object in a stored state. An attribute that the state does not have is null, and one that the schema does not
/// have is left out: one of them is of another version.
///
/// # Errors
/// [`Error`], if a value has another type.
pub fn decode(json: &Json, attributes: &'static [Attribute]) -> Result<Object, Error> {
    let members = json.as_object().ok_or(Error::Malformed)?;
    let mut object = Object::default();
    for attribute in attributes {
        let member = members.get(attribute.name).unwrap_or(&Json::Null);
        object.set(attribute.name, value(member, attribute.name, attribute.kind)?);
    }
    Ok(object)
}

/// The observed values of `names` in a record of the fabric, which has them under the names of its API.
///
/// # Errors
/// [`Error`], if a value has another type.
pub fn observe(record: &Json, attributes: &'static [Attribute], names: &[&str]) -> Result<Object, Error> {
    let mut object = Object::default();
    for attribute in attributes.iter().filter(|attribute| names.contains(&attribute.name)) {
        let member = record.get(attribute.wire).unwrap_or(&Json::Null);
        object.set(attribute.name, value(member, attribute.name, attribute.kind)?);
    }
    Ok(object)
}

/// A value in a request to the fabric. Neither unknown nor null: an absent member states both.
#[must_use]
pub fn encode(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Unknown | Value::Null => return None,
        Value::Bool(is_true) => Json::from(*is_true),
        Value::Number(number) => Json::from(*number),
        Value::Text(text) => Json::from(text.as_str()),
        Value::List(members) | Value::Set(members) => members.iter().filter_map(encode).collect(),
        Value::Map(members) => {
            members.iter().filter_map(|(name, member)| Some((name.clone(), encode(member)?))).collect()
        }
        Value::Object(object) => {
            object.members().filter_map(|(name, member)| Some((name.to_owned(), encode(member)?))).collect()
        }
    })
}

/// The body of a request: the stated ones among `names`, under the names of the API.
#[must_use]
pub fn body(object: &Object, attributes: &[Attribute], names: &[&str]) -> Json {
    let stated = attributes.iter().filter(|attribute| names.contains(&attribute.name));
    stated
        .filter_map(|attribute| Some((attribute.wire.to_owned(), encode(object.value(attribute.name))?)))
        .collect()
}

fn value(json: &Json, attribute: &'static str, kind: Type) -> Result<Value, Error> {
    let mismatch = || Error::Type { attribute, expected: kind.words() };
    let texts = |members: &[Json]| -> Result<Vec<Value>, Error> {
        members.iter().map(|member| value(member, attribute, Type::Text)).collect()
    };
    Ok(match (kind, json) {
        (_, Json::Null) => Value::Null,
        (Type::Bool, Json::Bool(is_true)) => Value::Bool(*is_true),
        (Type::Number, Json::Number(number)) => Value::Number(number.as_i64().ok_or_else(mismatch)?),
        (Type::Text, Json::String(text)) => Value::text(text.as_str()),
        (Type::Texts, Json::Array(members)) => Value::List(texts(members)?),
        (Type::TextSet, Json::Array(members)) => Value::set(texts(members)?),
        (Type::TextMap, Json::Object(members)) => {
            let member =
                |(name, member): (&String, &Json)| Ok((name.clone(), value(member, attribute, Type::Text)?));
            Value::Map(members.iter().map(member).collect::<Result<_, Error>>()?)
        }
        (Type::Objects(attributes), Json::Array(members)) => {
            let member = |member| value(member, attribute, Type::Object(attributes));
            Value::List(members.iter().map(member).collect::<Result<_, Error>>()?)
        }
        (Type::Object(attributes), json @ Json::Object(_)) => Value::Object(decode(json, attributes)?),
        _ => return Err(mismatch()),
    })
}
