//! Typed values: those of a configuration, a plan or a state, as a schema describes them.

pub mod json;
pub mod msgpack;

use std::collections::BTreeMap;

use crate::schema::{Attribute, Type};

/// A value. Numbers are integers, because no attribute is anything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Not known before something else is applied.
    Unknown,
    /// Not stated.
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Value>),
    /// Sorted; the known members are distinct. Made by [`Value::set`].
    Set(Vec<Value>),
    Map(BTreeMap<String, Value>),
    Object(Object),
}

/// The values of attributes, by name. An absent one is null.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object(BTreeMap<&'static str, Value>);

/// A value that does not fit its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no value, or more than one.
    #[error("value is malformed")]
    Malformed,
    /// Deeper than [`crate::limits::VALUE_DEPTH_MAX`].
    #[error("value is nested too deeply")]
    TooDeep,
    /// Another type.
    #[error("{attribute}: must be {expected}")]
    Type {
        attribute: &'static str,
        /// Its type.
        expected: &'static str,
    },
}

impl Value {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A set. Members that are not known yet stay apart: Terraform counts each of them.
    #[must_use]
    pub fn set(mut members: Vec<Self>) -> Self {
        members.sort_unstable();
        members.dedup_by(|one, other| one == other && *one != Self::Unknown);
        Self::Set(members)
    }

    /// A set of texts.
    pub fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::set(texts.into_iter().map(Self::text).collect())
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// Whether it is known and not null.
    #[must_use]
    pub fn is_stated(&self) -> bool {
        !matches!(self, Self::Unknown | Self::Null)
    }

    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a text, a list, a set or a map; those that are unknown are left out.
    #[must_use]
    pub fn all_texts(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::List(members) | Self::Set(members) => members.iter().filter_map(Self::as_text).collect(),
            Self::Map(members) => members.values().filter_map(Self::as_text).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether both are the same for the fabric, which distinguishes neither null from empty nor a null member from an absent
    /// one.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let (one, other) = (self.without_null_members(), other.without_null_members());
        one == other || (one.is_nothing() && other.is_nothing())
    }

    fn without_null_members(&self) -> Self {
        let is_stated = |member: &&Self| !member.is_null();
        match self {
            Self::List(members) => Self::List(members.iter().filter(is_stated).cloned().collect()),
            Self::Set(members) => Self::Set(members.iter().filter(is_stated).cloned().collect()),
            Self::Map(members) => {
                let stated = members.iter().filter(|(_, member)| !member.is_null());
                Self::Map(stated.map(|(name, member)| (name.clone(), member.clone())).collect())
            }
            _ => self.clone(),
        }
    }

    fn is_nothing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::List(members) | Self::Set(members) => members.is_empty(),
            Self::Map(members) => members.is_empty(),
            _ => false,
        }
    }
}

impl Object {
    /// The value of an attribute.
    #[must_use]
    pub fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    /// The known text of an attribute.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).as_text()
    }

    /// The object of an attribute.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<&Self> {
        match self.value(name) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Names and values.
    pub fn members(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    pub fn set(&mut self, name: &'static str, value: Value) {
        self.0.insert(name, value);
    }

    /// The same with one more value.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Value) -> Self {
        self.set(name, value);
        self
    }

    /// The same with each value changed.
    #[must_use]
    pub fn map(self, change: impl Fn(Value) -> Value) -> Self {
        Self(self.0.into_iter().map(|(name, value)| (name, change(value))).collect())
    }

    /// Whether it has a value for the attribute, null included.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Texts of stated sensitive attributes, which no message may contain.
    pub fn secrets<'o>(&'o self, attributes: &'o [Attribute]) -> impl Iterator<Item = &'o str> {
        let sensitive = attributes.iter().filter(|attribute| attribute.is_sensitive);
        let own = sensitive.flat_map(|attribute| self.value(attribute.name).all_texts());
        let within =
            attributes.iter().filter_map(|attribute| match (attribute.kind, self.value(attribute.name)) {
                (Type::Object(inner), Value::Object(object)) => Some((inner, object)),
                _ => None,
            });
        let within = within.flat_map(|(inner, object)| object.secrets(inner).collect::<Vec<_>>());
        own.chain(within)
    }
}
