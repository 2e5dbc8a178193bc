//! The question and the answer about an agent's identity: the rule `data.svc.identity.decision`.
//!
//! The question is everything the policy may see, and never a token. The answer is
//! `{"allow": bool, "reason": string, "grants"?: {…}}`; anything else denies. A bundle need not have
//! the rule: agents then have no identity. Narrowing the grants to what was asked for, and to what the
//! parent has, is not done here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::decider::{Decider, blast_radius, delegation_depth, malformed, words};
use super::{Denial, DenialKind};
use crate::json;

/// The rule that answers.
pub(super) const ENTRY_POINT: &str = "data.svc.identity.decision";

/// What the policy is asked: its `input`. A member that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct Question<'a> {
    /// What is asked for; at a renewal, what the agent was granted.
    pub request: Request<'a>,
    /// The agent that it acts on behalf of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent<'a>>,
    /// Workload identifier of the authenticated caller; at a renewal, of whoever had the agent issued.
    /// Absent for nobody, which only development mode lets issue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
    /// The trust domain that the agent will be of.
    pub trust_domain: &'a str,
}

/// What is asked for: checked for form, not verified.
#[derive(Clone, Debug, Serialize)]
pub struct Request<'a> {
    /// For people; not unique.
    pub agent_name: &'a str,
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: &'a str,
    /// At least one, in order.
    pub capabilities: &'a BTreeSet<String>,
    /// The largest blast radius that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_blast_radius: Option<&'a str>,
    /// Hops; 0 if none were asked for.
    pub delegation_depth: u32,
    /// Whatever the caller says of the agent.
    pub metadata: &'a BTreeMap<String, String>,
}

/// The agent on whose behalf another one acts, as it was granted.
#[derive(Clone, Debug, Serialize)]
pub struct Parent<'a> {
    /// Its `agent_id`.
    pub id: &'a str,
    /// For people; not unique.
    pub agent_name: &'a str,
    /// `mcp`, `a2a`, `watsonx` or `custom`.
    pub platform: &'a str,
    /// What it may do.
    pub capabilities: &'a [String],
    /// How far it reaches, if that is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<&'a str>,
    /// Its hops.
    pub delegation_depth: u32,
    /// Who had it issued; absent for nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued_by: Option<&'a str>,
}

/// Proof that the policy permits an identity, and the most it grants. Only
/// [`Bundle::decide_identity`](super::Bundle::decide_identity) makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    capabilities: BTreeSet<String>,
    blast_radius: Option<BlastRadius>,
    delegation_depth: u32,
    policy_digest: String,
}

impl Permit {
    /// Capabilities granted at most; each is a scope word too (RFC 6749 §3.3).
    #[must_use]
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.capabilities
    }

    /// Blast radius granted at most; `None`: the policy states none.
    #[must_use]
    pub fn blast_radius(&self) -> Option<&BlastRadius> {
        self.blast_radius.as_ref()
    }

    /// Delegation depth granted at most; 0 if the policy states none.
    #[must_use]
    pub fn delegation_depth(&self) -> u32 {
        self.delegation_depth
    }

    /// Digest of the bundle that granted it (claim `policy`).
    #[must_use]
    pub fn policy_digest(&self) -> &str {
        &self.policy_digest
    }
}

/// The answer's form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
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

/// Asks the rule, and reads its answer.
pub(super) fn decide(decider: &Decider<Permit>, question: &Question<'_>) -> Result<Permit, Denial> {
    decider.decide(question, read)
}

fn read(answer: Json, policy_digest: &str) -> Result<Permit, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let answer: Answer = json::from_value(answer).map_err(|error| malformed(error.to_string()))?;
    if !answer.allow {
        return Err(Denial::new(DenialKind::Policy, &answer.reason, None, policy_digest));
    }
    let grants = answer.grants.ok_or_else(|| malformed("allow without grants".to_owned()))?;
    Ok(Permit {
        capabilities: words("capabilities", grants.capabilities).map_err(malformed)?,
        blast_radius: blast_radius(grants.blast_radius).map_err(malformed)?,
        delegation_depth: delegation_depth(grants.delegation_depth).map_err(malformed)?,
        policy_digest: policy_digest.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn granted() -> Json {
        json!({"allow": true, "reason": "granted", "grants": {
            "capabilities": ["db.read"], "blast_radius": "namespace:pay", "delegation_depth": 2}})
    }

    fn kind_of(answer: Json) -> DenialKind {
        read(answer, "digest").expect_err("denied").kind
    }

    #[test]
    fn a_well_formed_answer_is_a_permit() {
        let permit = read(granted(), "digest").expect("permitted");
        assert!(permit.capabilities().contains("db.read"));
        assert_eq!(permit.blast_radius().map(ToString::to_string).as_deref(), Some("namespace:pay"));
        assert_eq!((permit.delegation_depth(), permit.policy_digest()), (2, "digest"));
        let least = json!({"allow": true, "reason": "", "grants": {"capabilities": []}});
        assert_eq!(read(least, "digest").expect("permitted").delegation_depth(), 0);
    }

    #[test]
    fn every_other_answer_denies() {
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
        // An exchange's answer is none here.
        let mut answer = granted();
        answer["refusal"] = json!("audience");
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }
}
