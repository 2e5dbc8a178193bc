//! The declarative table of a resource or of the provider: from it come Terraform's schema, the checks of single values,
//! the plan of computed values, and the page of the documentation.

pub mod pages;
mod wire;

use crate::value::Value;

/// One table: a resource, or the configuration of the provider.
#[derive(Debug)]
pub struct Table {
    /// Name of the resource type; of the provider, its local name.
    pub name: &'static str,
    /// One paragraph of Markdown.
    pub summary: &'static str,
    pub attributes: &'static [Attribute],
    /// The attribute by which an existing object is imported.
    pub import: Option<&'static str>,
    /// A complete example in HCL.
    pub example: &'static str,
    /// Further paragraphs of Markdown.
    pub notes: &'static str,
}

/// Type of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    Bool,
    Number,
    Text,
    /// A list of texts.
    Texts,
    /// A set of texts: their order is no difference.
    TextSet,
    /// A map from text to text.
    TextMap,
    /// One object with these attributes.
    Object(&'static [Attribute]),
    /// A list of objects with these attributes.
    Objects(&'static [Attribute]),
}

/// The party that states an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The configuration must state it.
    Required,
    /// The configuration may state it.
    Optional,
    /// The configuration may state it, otherwise the fabric or a default does.
    OptionalComputed,
    /// The fabric states it.
    Computed,
}

/// The rule of a text, or of each text of a list, a set or a map; the error is the rule, as a clause after the name.
pub type Rule = fn(&str) -> Result<(), String>;

/// One attribute.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent marks of a row")]
pub struct Attribute {
    pub name: &'static str,
    pub kind: Type,
    pub presence: Presence,
    /// A sentence of Markdown.
    pub summary: &'static str,
    /// The name of the member in the API.
    pub wire: &'static str,
    /// A change replaces the resource.
    pub replaces: bool,
    /// Not shown by Terraform, and in no message.
    pub is_sensitive: bool,
    /// Given to the provider with the configuration of each run and never stored.
    pub is_write_only: bool,
    /// A computed value that every update may change.
    pub is_volatile: bool,
    /// The value if the configuration does not state one.
    pub default: Option<fn() -> Value>,
    pub rule: Option<Rule>,
    /// Minimum and maximum number of members.
    pub members: Option<(usize, usize)>,
}

impl Type {
    /// In words, for errors and pages.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Number => "whole number",
            Self::Text => "string",
            Self::Texts => "list of strings",
            Self::TextSet => "set of strings",
            Self::TextMap => "map of strings",
            Self::Object(_) => "object",
            Self::Objects(_) => "list of objects",
        }
    }
}

impl Attribute {
    const fn new(name: &'static str, kind: Type, presence: Presence, summary: &'static str) -> Self {
        Self {
            name,
            kind,
            presence,
            summary,
            wire: name,
            replaces: false,
            is_sensitive: false,
            is_write_only: false,
            is_volatile: false,
            default: None,
            rule: None,
            members: None,
        }
    }

    #[must_use]
    pub const fn required(name: &'static str, kind: Type, summary: &'static str) -> Self {
        Self::new(name, kind, Presence::Required, summary)
    }

    #[must_use]
    pub const fn optional(name: &'static str, kind: Type, summary: &'static str) -> Self {
        Self::new(name, kind, Presence::Optional, summary)
    }

    #[must_use]
    pub const fn optional_computed(name: &'static str, kind: Type, summary: &'static str) -> Self {
        Self::new(name, kind, Presence::OptionalComputed, summary)
    }

    #[must_use]
    pub const fn computed(name: &'static str, kind: Type, summary: &'static str) -> Self {
        Self::new(name, kind, Presence::Computed, summary)
    }

    #[must_use]
    pub const fn wire(self, wire: &'static str) -> Self {
        Self { wire, ..self }
    }

    #[must_use]
    pub const fn replaces(self) -> Self {
        Self { replaces: true, ..self }
    }

    #[must_use]
    pub const fn sensitive(self) -> Self {
        Self { is_sensitive: true, ..self }
    }

    #[must_use]
    pub const fn write_only(self) -> Self {
        Self { is_sensitive: true, is_write_only: true, ..self }
    }

    #[must_use]
    pub const fn volatile(self) -> Self {
        Self { is_volatile: true, ..self }
    }

    #[must_use]
    pub const fn default(self, default: fn() -> Value) -> Self {
        Self { default: Some(default), ..self }
    }

    #[must_use]
    pub const fn rule(self, rule: Rule) -> Self {
        Self { rule: Some(rule), ..self }
    }

    #[must_use]
    pub const fn members(self, min: usize, max: usize) -> Self {
        Self { members: Some((min, max)), ..self }
    }

    /// Whether the configuration may state it.
    #[must_use]
    pub fn is_configurable(&self) -> bool {
        self.presence != Presence::Computed
    }

    /// Whether a value comes from the fabric or a default if the configuration states none.
    #[must_use]
    pub fn is_computed(&self) -> bool {
        matches!(self.presence, Presence::Computed | Presence::OptionalComputed)
    }

    /// The broken rules of a known value, each with the name of its attribute.
    #[must_use]
    pub fn broken_rules(&self, value: &Value) -> Vec<String> {
        let mut broken = Vec::new();
        let count = match value {
            Value::List(members) => Some(members.len()),
            Value::Map(members) => Some(members.len()),
            // An unknown member may equal another.
            Value::Set(members) if !members.contains(&Value::Unknown) => Some(members.len()),
            _ => None,
        };
        if let (Some((min, max)), Some(count)) = (self.members, count)
            && !(min..=max).contains(&count)
        {
            broken.push(format!("{}: must have {min} to {max} members", self.name));
        }
        if let Some(rule) = self.rule {
            let errors = value.all_texts().into_iter().filter_map(|text| rule(text).err());
            broken.extend(errors.map(|rule| format!("{}: {rule}", self.name)));
        }
        broken
    }
}

/// `timeouts` of every resource.
pub const TIMEOUTS: Attribute = Attribute::optional(
    "timeouts",
    Type::Object(OPERATIONS),
    "Maximum time of an operation with all its attempts, as durations like `2m`; the default is `2m`.",
);

const OPERATIONS: &[Attribute] = &[
    timeout("create", "Of the creation."),
    timeout("read", "Of a read."),
    timeout("update", "Of a change."),
    timeout("delete", "Of the deletion."),
];

const fn timeout(name: &'static str, summary: &'static str) -> Attribute {
    Attribute::optional(name, Type::Text, summary).rule(crate::rules::duration)
}
