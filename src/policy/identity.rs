//! Input and output of the policy for an agent's identity: the rule `data.svc.identity.decision`.
//!
//! The input is all that a policy can read, and contains no token. The output is
//! `{"allow": bool, "reason": string, "grants"?: {…}}`; any other output denies. The rule is optional: without it no
//! agent gets an identity. The grants are narrowed to request and parent by the use-case.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::decider::{Decider, blast_radius, delegation_depth, malformed, words};
use super::{Denial, DenialKind};
use crate::json;

/// The rule of this decision.
pub(super) const ENTRY_POINT: &str = "data.svc.identity.decision";

/// The `input` of the policy. A field that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyInput<'a> {
    /// The requested identity; at renewal, the granted one.
    pub request: RequestedIdentity<'a>,
    /// The parent agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent<'a>>,
    /// Workload identifier of the authenticated caller; at renewal, of the caller that the agent was issued to. Absent
    /// for an anonymous caller, which only development mode allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
    /// Trust domain of the agent.
    pub trust_domain: &'a str,
}

/// The requested identity: well formed, not verified.
#[derive(Clone, Debug, Serialize)]
pub struct RequestedIdentity<'a> {
    /// Display name; not unique.
    pub agent_name: &'a str,
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: &'a str,
    /// At least one, in order.
    pub capabilities: &'a BTreeSet<String>,
    /// Largest requested blast radius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_blast_radius: Option<&'a str>,
    /// Requested delegation depth; 0 if none.
    pub delegation_depth: u32,
    /// Free-form description by the caller.
    pub metadata: &'a BTreeMap<String, String>,
}

/// The parent agent, as granted.
#[derive(Clone, Debug, Serialize)]
pub struct Parent<'a> {
    /// Its `agent_id`.
    pub id: &'a str,
    /// Display name; not unique.
    pub agent_name: &'a str,
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: &'a str,
    pub capabilities: &'a [String],
    /// Its blast radius, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<&'a str>,
    pub delegation_depth: u32,
    /// The caller that it was issued to; absent if anonymous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued_by: Option<&'a str>,
}

/// Rights of an agent: the maximum that the policy allows, or those granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Each is a scope word too (RFC 6749 §3.3).
    pub capabilities: BTreeSet<String>,
    /// `None`: not limited.
    pub blast_radius: Option<BlastRadius>,
    /// Remaining depth; 0 if the policy states none.
    pub delegation_depth: u32,
    /// Digest of the deciding bundle (claim `policy`).
    pub policy_digest: String,
}

/// Proof that the policy allows an identity, with the maximum rights. Only
/// [`Bundle::decide_identity`](super::Bundle::decide_identity) creates one.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Deref)]
pub struct Allow(Rights);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyOutput {
    allow: bool,
    reason: String,
    grants: Option<Grants>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grants {
    capabilities: Vec<String>,
    blast_radius: Option<String>,
    delegation_depth: Option<u32>,
}

pub(super) fn decide(decider: &Decider<Allow>, input: &PolicyInput<'_>) -> Result<Allow, Denial> {
    decider.decide(input, input, read)
}

fn read(output: Json, policy_digest: &str) -> Result<Allow, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let output: PolicyOutput = json::from_value(output).map_err(|error| malformed(error.to_string()))?;
    if !output.allow {
        return Err(Denial::new(DenialKind::Policy, &output.reason, None, policy_digest));
    }
    let grants = output.grants.ok_or_else(|| malformed("allow without grants".to_owned()))?;
    Ok(Allow(Rights {
        capabilities: words("capabilities", grants.capabilities).map_err(malformed)?,
        blast_radius: blast_radius(grants.blast_radius).map_err(malformed)?,
        delegation_depth: delegation_depth(grants.delegation_depth).map_err(malformed)?,
        policy_digest: policy_digest.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn granted() -> Json {
        json!({"allow": true, "reason": "granted", "grants": {
            "capabilities": ["db.read"], "blast_radius": "namespace:pay", "delegation_depth": 2}})
    }

    fn kind_of(output: Json) -> DenialKind {
        read(output, "digest").expect_err("denied").kind
    }

    #[test]
    fn well_formed_output_allows() {
        let allow = read(granted(), "digest").expect("permitted");
        assert!(allow.capabilities.contains("db.read"));
        assert_eq!(allow.blast_radius.as_ref().map(ToString::to_string).as_deref(), Some("namespace:pay"));
        assert_eq!((allow.delegation_depth, allow.policy_digest.as_str()), (2, "digest"));
        let least = json!({"allow": true, "reason": "", "grants": {"capabilities": []}});
        assert_eq!(read(least, "digest").expect("permitted").delegation_depth, 0);
    }

    #[test]
    fn every_other_output_denies() {
        for answer in [json!(true), json!(null), json!([]), json!({}), json!({"allow": true, "reason": "x"})]
        {
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        for allow in [json!("true"), json!(1), json!(null), json!([true])] {
            let mut answer = granted();
            answer["allow"] = allow;
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        let mut answer = granted();
        answer["allow"] = json!(false);
        assert_eq!(kind_of(answer), DenialKind::Policy);
        for (member, value) in [
            ("capabilities", json!("db.read")),
            ("capabilities", json!(["db read"])),
            ("capabilities", json!(null)),
            ("blast_radius", json!("namespace:")),
            ("delegation_depth", json!(11)),
            ("delegation_depth", json!("1")),
            ("audience", json!("https://a.example")),
        ] {
            let mut answer = granted();
            answer["grants"][member] = value;
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        // The output of an exchange is malformed here.
        let mut answer = granted();
        answer["refusal"] = json!("audience");
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }
}
