//! Validation of the identity request, independent of whether it is granted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Error;
use crate::id::WorkloadId;
use crate::policy::blast_radius::{self, BlastRadius};
use crate::text::values::Platform;
use crate::{limits, text};

/// The identity to issue. Unknown fields are ignored.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct AgentIdentityRequest {
    /// Human-readable, 1 to 256 bytes without control characters; not unique.
    #[schema(required = true, value_type = String, min_length = 1)]
    pub agent_name: Option<String>,
    /// The platform of the agent.
    #[schema(required = true, value_type = Platform)]
    pub platform: Option<String>,
    /// At least one; each is a valid scope word.
    #[schema(required = true, value_type = Vec<String>)]
    pub capabilities: Option<Vec<String>>,
    /// The parent's `agent_id`.
    pub on_behalf_of: Option<String>,
    /// `<kind>[:<name>]`, for example `namespace:prod`.
    pub max_blast_radius: Option<String>,
    /// 0 to 10; the default 0 is an agent that cannot delegate.
    #[schema(value_type = Option<u32>, maximum = 10)]
    pub delegation_depth: Option<Value>,
    /// At most 64 names of at most 128 bytes, with values of at most 512.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Validated request. Only [`AgentIdentityRequest::validate`] creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    pub(super) agent_name: String,
    pub(super) platform: &'static str,
    pub(super) capabilities: BTreeSet<String>,
    pub(super) on_behalf_of: Option<String>,
    pub(super) max_blast_radius: Option<BlastRadius>,
    pub(super) delegation_depth: u32,
    pub(super) metadata: BTreeMap<String, String>,
}

impl AgentIdentityRequest {
    /// Checks each field.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first field that breaks its rule.
    pub fn validate(self) -> Result<AgentRequest, Error> {
        Ok(AgentRequest {
            agent_name: agent_name(self.agent_name)?,
            platform: platform(self.platform.as_deref())?,
            capabilities: capabilities(self.capabilities)?,
            on_behalf_of: self.on_behalf_of.map(on_behalf_of).transpose()?,
            max_blast_radius: self.max_blast_radius.as_deref().map(blast_radius).transpose()?,
            delegation_depth: delegation_depth(self.delegation_depth.as_ref())?,
            metadata: metadata(self.metadata.unwrap_or_default())?,
        })
    }
}

fn invalid(field: &'static str, rule: impl Into<String>) -> Error {
    Error::Invalid { field, rule: rule.into() }
}

fn agent_name(name: Option<String>) -> Result<String, Error> {
    const FIELD: &str = "agent_name";
    let name = name.ok_or_else(|| invalid(FIELD, "is required"))?;
    let well_formed = text::is_display(&name, limits::AGENT_NAME_BYTES_MAX);
    let rule = format!("must be 1 to {} bytes without control characters", limits::AGENT_NAME_BYTES_MAX);
    if well_formed { Ok(name) } else { Err(invalid(FIELD, rule)) }
}

fn platform(platform: Option<&str>) -> Result<&'static str, Error> {
    const FIELD: &str = "platform";
    let platform = platform.ok_or_else(|| invalid(FIELD, "is required"))?;
    let found = Platform::TEXTS.iter().copied().find(|known| *known == platform);
    found.ok_or_else(|| invalid(FIELD, format!("must be one of {}", Platform::TEXTS.join(", "))))
}

fn capabilities(words: Option<Vec<String>>) -> Result<BTreeSet<String>, Error> {
    const FIELD: &str = "capabilities";
    let words = words.ok_or_else(|| invalid(FIELD, "is required"))?;
    if words.is_empty() {
        return Err(invalid(FIELD, "must not be empty"));
    }
    if words.len() > limits::CAPABILITIES_MAX || !words.iter().all(|word| text::is_scope_word(word)) {
        let (most, bytes) = (limits::CAPABILITIES_MAX, limits::CAPABILITY_BYTES_MAX);
        let rule =
            format!("must be at most {most} words of 1 to {bytes} characters of a scope (RFC 6749 3.3)");
        return Err(invalid(FIELD, rule));
    }
    let words: BTreeSet<String> = words.into_iter().collect();
    let bytes: usize = words.iter().map(String::len).sum();
    if bytes > limits::AGENT_CAPABILITIES_BYTES_MAX {
        let rule = format!("must be at most {} bytes together", limits::AGENT_CAPABILITIES_BYTES_MAX);
        return Err(invalid(FIELD, rule));
    }
    Ok(words)
}

fn on_behalf_of(parent: String) -> Result<String, Error> {
    match parent.parse::<WorkloadId>() {
        Ok(_) => Ok(parent),
        Err(_) => Err(invalid("on_behalf_of", "must be the agent_id of an agent")),
    }
}

fn blast_radius(text: &str) -> Result<BlastRadius, Error> {
    text.parse().map_err(|error: blast_radius::Error| invalid("max_blast_radius", error.to_string()))
}

/// "`delegation_depth` absent at identity issue = 0" (contract §3, Delegation).
fn delegation_depth(depth: Option<&Value>) -> Result<u32, Error> {
    let Some(depth) = depth else { return Ok(0) };
    let whole = depth.as_u64().and_then(|depth| u32::try_from(depth).ok());
    whole.filter(|depth| *depth <= limits::DELEGATION_DEPTH_MAX).ok_or_else(|| {
        let rule = format!("must be a whole number from 0 to {}", limits::DELEGATION_DEPTH_MAX);
        invalid("delegation_depth", rule)
    })
}

fn metadata(pairs: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Error> {
    const FIELD: &str = "metadata";
    if pairs.len() > limits::METADATA_MAX {
        return Err(invalid(FIELD, format!("must have at most {} entries", limits::METADATA_MAX)));
    }
    let is_named = |name: &String| text::is_display(name, limits::METADATA_NAME_BYTES_MAX);
    if !pairs.keys().all(is_named) {
        let most = limits::METADATA_NAME_BYTES_MAX;
        let rule = format!("names must be 1 to {most} bytes without control characters");
        return Err(invalid(FIELD, rule));
    }
    let is_value = |value: &String| {
        value.len() <= limits::METADATA_VALUE_BYTES_MAX && !value.chars().any(char::is_control)
    };
    if !pairs.values().all(is_value) {
        let most = limits::METADATA_VALUE_BYTES_MAX;
        let rule = format!("values must be at most {most} bytes without control characters");
        return Err(invalid(FIELD, rule));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input() -> AgentIdentityRequest {
        AgentIdentityRequest {
            agent_name: Some("planner".to_owned()),
            platform: Some("mcp".to_owned()),
            capabilities: Some(vec!["db.read".to_owned()]),
            ..AgentIdentityRequest::default()
        }
    }

    fn refused(input: AgentIdentityRequest) -> String {
        input.validate().expect_err("refused").to_string()
    }

    fn words(count: usize, bytes: usize) -> Vec<String> {
        (0..count).map(|at| format!("{at:0bytes$}")).collect()
    }

    fn pairs(count: usize, name: usize, value: usize) -> BTreeMap<String, String> {
        (0..count).map(|at| (format!("{at:0name$}"), "v".repeat(value))).collect()
    }

    #[test]
    fn minimal_request_has_defaults() {
        let request = input().validate().expect("well formed");
        assert_eq!((request.delegation_depth, request.max_blast_radius), (0, None));
        assert_eq!((request.on_behalf_of, request.metadata.len()), (None, 0));
        let twice = Some(vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]);
        let request =
            AgentIdentityRequest { capabilities: twice, ..input() }.validate().expect("well formed");
        assert_eq!(request.capabilities.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn fields_are_accepted_at_their_limit_and_refused_beyond() {
        let name = |bytes| AgentIdentityRequest { agent_name: Some("n".repeat(bytes)), ..input() };
        assert!(name(limits::AGENT_NAME_BYTES_MAX).validate().is_ok());
        assert!(refused(name(limits::AGENT_NAME_BYTES_MAX + 1)).starts_with("agent_name: must be 1 to 256"));
        let able = |count, bytes| AgentIdentityRequest { capabilities: Some(words(count, bytes)), ..input() };
        assert!(able(limits::CAPABILITIES_MAX, 3).validate().is_ok());
        assert!(
            refused(able(limits::CAPABILITIES_MAX + 1, 3)).starts_with("capabilities: must be at most 128")
        );
        assert!(able(1, limits::CAPABILITY_BYTES_MAX).validate().is_ok());
        assert!(
            refused(able(1, limits::CAPABILITY_BYTES_MAX + 1)).starts_with("capabilities: must be at most")
        );
        assert!(able(limits::AGENT_CAPABILITIES_BYTES_MAX / 128, 128).validate().is_ok());
        assert_eq!(
            refused(able(limits::AGENT_CAPABILITIES_BYTES_MAX / 128 + 1, 128)),
            "capabilities: must be at most 2048 bytes together"
        );
        let with = |count, name, value| AgentIdentityRequest {
            metadata: Some(pairs(count, name, value)),
            ..input()
        };
        let (most, name, value) =
            (limits::METADATA_MAX, limits::METADATA_NAME_BYTES_MAX, limits::METADATA_VALUE_BYTES_MAX);
        assert!(with(most, name, value).validate().is_ok());
        assert_eq!(refused(with(most + 1, 2, 1)), "metadata: must have at most 64 entries");
        assert!(refused(with(1, name + 1, 1)).starts_with("metadata: names must be 1 to 128 bytes"));
        assert_eq!(
            refused(with(1, 1, value + 1)),
            "metadata: values must be at most 512 bytes without control characters"
        );
        let depth = |depth: Value| AgentIdentityRequest { delegation_depth: Some(depth), ..input() };
        assert!(depth(json!(limits::DELEGATION_DEPTH_MAX)).validate().is_ok());
        for wrong in [json!(11), json!(-1), json!(1.5), json!("1"), json!(true), json!([]), json!(1e99)] {
            assert_eq!(refused(depth(wrong)), "delegation_depth: must be a whole number from 0 to 10");
        }
    }

    #[test]
    fn refusal_names_field_and_rule() {
        for (input, text) in [
            (AgentIdentityRequest { agent_name: None, ..input() }, "agent_name: is required"),
            (
                AgentIdentityRequest { agent_name: Some(String::new()), ..input() },
                "agent_name: must be 1 to 256",
            ),
            (
                AgentIdentityRequest { agent_name: Some("a\nb".to_owned()), ..input() },
                "agent_name: must be 1 to 256",
            ),
            (AgentIdentityRequest { platform: None, ..input() }, "platform: is required"),
            (
                AgentIdentityRequest { platform: Some("MCP".to_owned()), ..input() },
                "platform: must be one of mcp, a2a, watsonx, custom",
            ),
            (AgentIdentityRequest { capabilities: None, ..input() }, "capabilities: is required"),
            (
                AgentIdentityRequest { capabilities: Some(Vec::new()), ..input() },
                "capabilities: must not be empty",
            ),
            (
                AgentIdentityRequest { capabilities: Some(vec!["a b".to_owned()]), ..input() },
                "capabilities: must be at most 128 words",
            ),
            (
                AgentIdentityRequest { on_behalf_of: Some("planner".to_owned()), ..input() },
                "on_behalf_of: must be the agent_id of an agent",
            ),
            (
                AgentIdentityRequest { max_blast_radius: Some("namespace:".to_owned()), ..input() },
                "max_blast_radius: blast radius must be <kind>",
            ),
            (
                AgentIdentityRequest { metadata: Some([(String::new(), String::new())].into()), ..input() },
                "metadata: names must be",
            ),
            (
                AgentIdentityRequest {
                    metadata: Some([("a\n".to_owned(), String::new())].into()),
                    ..input()
                },
                "metadata: names must be",
            ),
            (
                AgentIdentityRequest {
                    metadata: Some([("a".to_owned(), "\u{1b}[2J".to_owned())].into()),
                    ..input()
                },
                "metadata: values must be at most 512 bytes without control",
            ),
        ] {
            let refusal = refused(input);
            assert!(refusal.starts_with(text), "{refusal} is not {text}");
        }
    }
}
