//! The question and the answer about a token exchange: the rule `data.svc.exchange.decision`.
//!
//! The question is everything the policy may see, and never a token. The answer is
//! `{"allow": bool, "reason": string, "refusal"?: "policy"|"audience", "grants"?: {…}}`; anything
//! else denies. Narrowing the grants to what subject, actor and request state is not done here.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::decider::{Decider, blast_radius, delegation_depth, malformed, words};
use super::{Denial, DenialKind};
use crate::{json, limits};

/// The rule that answers.
pub(super) const ENTRY_POINT: &str = "data.svc.exchange.decision";

/// What the policy is asked: its `input`. A member that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct Question<'a> {
    /// Whose token is exchanged (RFC 8693 §2.1 `subject_token`).
    pub subject: Party<'a>,
    /// Who acts for the subject (`actor_token`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<Party<'a>>,
    /// What is asked for.
    pub request: Request<'a>,
    /// Workload identifier of the authenticated caller on the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
}

/// A verified credential, as far as a policy may see it.
#[derive(Clone, Debug, Serialize)]
pub struct Party<'a> {
    /// Workload identifier.
    pub id: &'a str,
    /// Trust domain of `id`.
    pub trust_domain: &'a str,
    /// `iss` of the credential.
    pub issuer: &'a str,
    /// `jwt`, `spiffe-svid` or `agent-a2a`.
    pub kind: &'a str,
    /// `sub` as the credential spells it.
    pub original_sub: &'a str,
    /// Verified email address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<&'a str>,
    /// Kubernetes namespace, if the credential states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<&'a str>,
    /// Kubernetes service account, if the credential states one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<&'a str>,
    /// `capabilities`, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<&'a [String]>,
    /// Words of `scope`, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<&'a [String]>,
    /// `blast_radius`, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<&'a str>,
    /// `delegation_depth`, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<u32>,
    /// Identifiers of the actors in `act`, newest first.
    pub act: &'a [String],
}

/// What the exchange asks for.
#[derive(Clone, Debug, Serialize)]
pub struct Request<'a> {
    /// The one audience asked for; absent: the policy's default for the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<&'a str>,
    /// Words of the `scope` asked for; empty: all that is granted.
    pub scope: &'a [String],
    /// Whether an execution scope is asked for.
    pub execution: bool,
    /// `htm` of the execution scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htm: Option<&'a str>,
    /// `htu` of the execution scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htu: Option<&'a str>,
}

/// Proof that the policy permits an exchange, and the most it grants. Only
/// [`Bundle::decide_exchange`](super::Bundle::decide_exchange) makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    audience: String,
    capabilities: BTreeSet<String>,
    scopes: BTreeSet<String>,
    blast_radius: Option<BlastRadius>,
    delegation_depth: u32,
    policy_digest: String,
}

impl Permit {
    /// The one audience: the one asked for, or the policy's default. 1 to
    /// [`limits::URI_BYTES_MAX`] bytes of printable ASCII.
    #[must_use]
    pub fn audience(&self) -> &str {
        &self.audience
    }

    /// Capabilities granted at most; each is a scope word too (RFC 6749 §3.3).
    #[must_use]
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.capabilities
    }

    /// Scope words granted at most that are not capabilities.
    #[must_use]
    pub fn scopes(&self) -> &BTreeSet<String> {
        &self.scopes
    }

    /// Blast radius granted at most; `None`: the policy states none.
    #[must_use]
    pub fn blast_radius(&self) -> Option<&BlastRadius> {
        self.blast_radius.as_ref()
    }

    /// Delegation depth granted at most; 0 if the policy states none (contract §3 "Delegation").
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
    #[serde(default)]
    refusal: Refusal,
    grants: Option<Grants>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Refusal {
    #[default]
    Policy,
    Audience,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Grants {
    audience: String,
    capabilities: Vec<String>,
    #[serde(default)]
    scopes: Vec<String>,
    blast_radius: Option<String>,
    delegation_depth: Option<u32>,
}

/// Asks the rule, and reads its answer.
pub(super) fn decide(decider: &Decider<Permit>, question: &Question<'_>) -> Result<Permit, Denial> {
    let asked = question.request.audience;
    decider.decide(question, |answer, policy_digest| read(answer, asked, policy_digest))
}

fn read(answer: Json, asked_audience: Option<&str>, policy_digest: &str) -> Result<Permit, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let answer: Answer = json::from_value(answer).map_err(|error| malformed(error.to_string()))?;
    if !answer.allow {
        let kind = match answer.refusal {
            Refusal::Policy => DenialKind::Policy,
            Refusal::Audience => DenialKind::Audience,
        };
        return Err(Denial::new(kind, &answer.reason, None, policy_digest));
    }
    let grants = answer.grants.ok_or_else(|| malformed("allow without grants".to_owned()))?;
    // A grant for another audience than the one asked for would be a token the caller did not want.
    if asked_audience.is_some_and(|asked| asked != grants.audience) {
        return Err(malformed("grants.audience: must be the audience asked for".to_owned()));
    }
    if !is_audience(&grants.audience) {
        return Err(malformed("grants.audience: must be printable ASCII without spaces".to_owned()));
    }
    Ok(Permit {
        capabilities: words("capabilities", grants.capabilities).map_err(malformed)?,
        scopes: words("scopes", grants.scopes).map_err(malformed)?,
        blast_radius: blast_radius(grants.blast_radius).map_err(malformed)?,
        delegation_depth: delegation_depth(grants.delegation_depth).map_err(malformed)?,
        audience: grants.audience,
        policy_digest: policy_digest.to_owned(),
    })
}

fn is_audience(text: &str) -> bool {
    (1..=limits::URI_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn granted() -> Json {
        json!({"allow": true, "reason": "granted", "grants": {
            "audience": "https://a.example", "capabilities": ["db.read"], "scopes": ["openid"],
            "blast_radius": "namespace:pay", "delegation_depth": 2}})
    }

    fn kind_of(answer: Json) -> DenialKind {
        read(answer, None, "digest").expect_err("denied").kind
    }

    #[test]
    fn a_well_formed_answer_is_a_permit() {
        let permit = read(granted(), Some("https://a.example"), "digest").expect("permitted");
        assert_eq!(permit.audience(), "https://a.example");
        assert!(permit.capabilities().contains("db.read") && permit.scopes().contains("openid"));
        assert_eq!(permit.blast_radius().map(ToString::to_string).as_deref(), Some("namespace:pay"));
        assert_eq!((permit.delegation_depth(), permit.policy_digest()), (2, "digest"));
    }

    #[test]
    fn every_answer_but_an_object_with_a_true_allow_denies() {
        for answer in [
            json!("yes"),
            json!(true),
            json!(1),
            json!(null),
            json!([]),
            json!({}),
            json!({"allow": true}),
            json!({"allow": true, "reason": "x"}),
        ] {
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        for allow in [json!("true"), json!(1), json!(null), json!([true]), json!({"x": true})] {
            let mut answer = granted();
            answer["allow"] = allow;
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        let mut answer = granted();
        answer["allow"] = json!(false);
        assert_eq!(kind_of(answer), DenialKind::Policy);
    }

    #[test]
    fn wrongly_typed_or_unknown_grants_deny() {
        let long = "x".repeat(limits::URI_BYTES_MAX + 1);
        let many: Vec<String> = (0..=limits::CAPABILITIES_MAX).map(|n| format!("c{n}")).collect();
        for (member, value) in [
            ("audience", json!(["https://a.example"])),
            ("audience", json!("")),
            ("audience", json!("a b")),
            ("audience", json!(long)),
            ("audience", json!(null)),
            ("capabilities", json!("db.read")),
            ("capabilities", json!({"db.read": true})),
            ("capabilities", json!([["db.read"]])),
            ("capabilities", json!(["db read"])),
            ("capabilities", json!([""])),
            ("capabilities", json!(["a\"b"])),
            ("capabilities", json!(null)),
            ("capabilities", json!(many)),
            ("scopes", json!("openid")),
            ("blast_radius", json!("namespace:")),
            ("blast_radius", json!(["namespace:pay"])),
            ("delegation_depth", json!(-1)),
            ("delegation_depth", json!(1.5)),
            ("delegation_depth", json!("2")),
            ("delegation_depth", json!(11)),
            ("delegation_depth", json!(4_294_967_296_u64)),
            ("unknown", json!(1)),
        ] {
            let mut answer = granted();
            answer["grants"][member] = value;
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        let mut answer = granted();
        answer["unknown"] = json!(1);
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }

    #[test]
    fn another_audience_than_the_one_asked_for_denies() {
        let denial = read(granted(), Some("https://b.example"), "digest").expect_err("redirected");
        assert_eq!(denial.kind, DenialKind::Malformed);
    }

    #[test]
    fn a_refusal_of_the_audience_is_told_apart() {
        let answer = json!({"allow": false, "reason": "no such audience", "refusal": "audience"});
        assert_eq!(kind_of(answer), DenialKind::Audience);
        let answer = json!({"allow": false, "reason": "no", "refusal": "other"});
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }
}
