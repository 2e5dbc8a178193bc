//! A table as Terraform's schema.

use super::{Attribute, Presence, Table, Type};
use crate::proto::tfplugin6 as proto;

impl Table {
    /// The schema of version 0: there was no other.
    #[must_use]
    pub fn schema(&self) -> proto::Schema {
        proto::Schema {
            version: 0,
            block: Some(proto::schema::Block {
                version: 0,
                attributes: self.attributes.iter().map(attribute).collect(),
                description: self.summary.to_owned(),
                description_kind: proto::StringKind::Markdown.into(),
            }),
        }
    }
}

fn attribute(attribute: &Attribute) -> proto::schema::Attribute {
    let is = |presences: &[Presence]| presences.contains(&attribute.presence);
    proto::schema::Attribute {
        name: attribute.name.to_owned(),
        r#type: kind(attribute.kind).unwrap_or_default().into(),
        nested_type: nested(attribute.kind),
        description: attribute.summary.to_owned(),
        required: is(&[Presence::Required]),
        optional: is(&[Presence::Optional, Presence::OptionalComputed]),
        computed: is(&[Presence::Computed, Presence::OptionalComputed]),
        sensitive: attribute.is_sensitive,
        description_kind: proto::StringKind::Markdown.into(),
        write_only: attribute.is_write_only,
    }
}

/// The JSON of a type that is no object with described attributes.
fn kind(kind: Type) -> Option<&'static str> {
    match kind {
        Type::Bool => Some("\"bool\""),
        Type::Number => Some("\"number\""),
        Type::Text => Some("\"string\""),
        Type::Texts => Some("[\"list\",\"string\"]"),
        Type::TextSet => Some("[\"set\",\"string\"]"),
        Type::TextMap => Some("[\"map\",\"string\"]"),
        Type::Object(_) | Type::Objects(_) => None,
    }
}

fn nested(kind: Type) -> Option<proto::schema::Object> {
    use proto::schema::object::Nesting;
    let (attributes, nesting) = match kind {
        Type::Object(attributes) => (attributes, Nesting::Single),
        Type::Objects(attributes) => (attributes, Nesting::List),
        _ => return None,
    };
    let attributes = attributes.iter().map(attribute).collect();
    Some(proto::schema::Object { attributes, nesting: nesting.into() })
}
