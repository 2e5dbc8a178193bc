//! Input and output of the policy for a token exchange: the rule `data.svc.exchange.decision`.
//!
//! The input is all that a policy can read, and contains no token. The output is
//! `{"allow": bool, "reason": string, "refusal"?: "policy"|"audience", "grants"?: {…}}`; any other output denies. The
//! grants are narrowed to subject, actor and request by the use-case.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::decider::{Decider, blast_radius, delegation_depth, malformed, words};
use super::reads::RequestReads;
use super::{Denial, DenialKind};
use crate::{json, limits, text};

/// The rule of this decision.
pub(super) const ENTRY_POINT: &str = "data.svc.exchange.decision";

/// The `input` of the policy. A field that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyInput<'a> {
    /// The subject token (RFC 8693 §2.1 `subject_token`).
    pub subject: Party<'a>,
    /// The actor token (`actor_token`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<Party<'a>>,
    pub request: RequestedGrant<'a>,
    /// Workload identifier of the authenticated caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
}

/// The fields of a verified credential that a policy may read.
#[derive(Clone, Debug, Serialize)]
pub struct Party<'a> {
    pub id: &'a str,
    /// Trust domain of `id`.
    pub trust_domain: &'a str,
    /// `iss` of the credential.
    pub issuer: &'a str,
    /// Label of the peer fabric whose token it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<&'a str>,
    /// Labels of the peer fabrics through which it came, also that of `fabric`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<&'a str>,
    /// `jwt`, `spiffe-svid` or `agent-a2a`.
    pub kind: &'a str,
    /// `sub` as in the credential.
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

#[derive(Clone, Debug, Serialize)]
pub struct RequestedGrant<'a> {
    /// The requested audience; absent: the policy's default for the subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<&'a str>,
    /// The requested scope words; empty: all that the policy grants.
    pub scope: &'a [String],
    /// Whether an execution scope is requested.
    pub execution: bool,
    /// `htm` of the execution scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htm: Option<&'a str>,
    /// `htu` of the execution scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub htu: Option<&'a str>,
    /// The operation that tools check: `exec_act` of the execution scope, by default `htm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_act: Option<&'a str>,
    /// The target that tools check: `target` of the execution scope, by default `htu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<&'a str>,
}

/// Maximum grant of an exchange that the policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaximumGrant {
    /// The audience: the requested one, or the policy's default. 1 to [`limits::URI_BYTES_MAX`] bytes of printable
    /// ASCII.
    pub audience: String,
    /// Maximum capabilities; each is a scope word too (RFC 6749 §3.3).
    pub capabilities: BTreeSet<String>,
    /// Maximum scope words that are not capabilities.
    pub scopes: BTreeSet<String>,
    /// Maximum blast radius; `None`: the policy states none.
    pub blast_radius: Option<BlastRadius>,
    /// Maximum delegation depth; 0 if the policy states none (contract §3 "Delegation").
    pub delegation_depth: u32,
    /// Digest of the deciding bundle (claim `policy`).
    pub policy_digest: String,
}

/// Proof that the policy allows an exchange, with the maximum grant. Only
/// [`Bundle::decide_exchange`](super::Bundle::decide_exchange) creates one.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Deref)]
pub struct Allow(MaximumGrant);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyOutput {
    allow: bool,
    reason: String,
    #[serde(default)]
    refusal: DenialCause,
    grants: Option<Grants>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DenialCause {
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

pub(super) fn decide(
    decider: &Decider<Allow>,
    reads: &RequestReads,
    input: &PolicyInput<'_>,
) -> Result<Allow, Denial> {
    let question = input.without_unread(reads);
    let requested = question.request.audience;
    decider.decide(&question, input, |output, policy_digest| read(output, requested, policy_digest))
}

impl PolicyInput<'_> {
    /// Without the fields of the request that the policy does not read. The audience stays: the one of an
    /// allow is compared with it, whether the policy reads it or not.
    fn without_unread(&self, reads: &RequestReads) -> Self {
        let RequestedGrant { audience, scope, execution, htm, htu, exec_act, target } = self.request;
        let request = RequestedGrant {
            audience,
            scope: if reads.contains("scope") { scope } else { &[] },
            execution: execution && reads.contains("execution"),
            htm: htm.filter(|_| reads.contains("htm")),
            htu: htu.filter(|_| reads.contains("htu")),
            exec_act: exec_act.filter(|_| reads.contains("exec_act")),
            target: target.filter(|_| reads.contains("target")),
        };
        Self { request, ..self.clone() }
    }
}

fn read(output: Json, requested_audience: Option<&str>, policy_digest: &str) -> Result<Allow, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let output: PolicyOutput = json::from_value(output).map_err(|error| malformed(error.to_string()))?;
    if !output.allow {
        let kind = match output.refusal {
            DenialCause::Policy => DenialKind::Policy,
            DenialCause::Audience => DenialKind::Audience,
        };
        return Err(Denial::new(kind, &output.reason, None, policy_digest));
    }
    let grants = output.grants.ok_or_else(|| malformed("allow without grants".to_owned()))?;
    // Another audience than the requested one would be a token that the caller did not request.
    if requested_audience.is_some_and(|requested| requested != grants.audience) {
        return Err(malformed("grants.audience: must be the requested audience".to_owned()));
    }
    if !text::is_printable(&grants.audience, limits::URI_BYTES_MAX) {
        return Err(malformed("grants.audience: must be printable ASCII without spaces".to_owned()));
    }
    Ok(Allow(MaximumGrant {
        capabilities: words("capabilities", grants.capabilities).map_err(malformed)?,
        scopes: words("scopes", grants.scopes).map_err(malformed)?,
        blast_radius: blast_radius(grants.blast_radius).map_err(malformed)?,
        delegation_depth: delegation_depth(grants.delegation_depth).map_err(malformed)?,
        audience: grants.audience,
        policy_digest: policy_digest.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::{Bundle, Source};

    fn granted() -> Json {
        json!({"allow": true, "reason": "granted", "grants": {
            "audience": "https://a.example", "capabilities": ["db.read"], "scopes": ["openid"],
            "blast_radius": "namespace:pay", "delegation_depth": 2}})
    }

    fn kind_of(output: Json) -> DenialKind {
        read(output, None, "digest").expect_err("denied").kind
    }

    #[test]
    fn well_formed_output_allows() {
        let allow = read(granted(), Some("https://a.example"), "digest").expect("permitted");
        assert_eq!(allow.audience, "https://a.example");
        assert!(allow.capabilities.contains("db.read") && allow.scopes.contains("openid"));
        assert_eq!(allow.blast_radius.as_ref().map(ToString::to_string).as_deref(), Some("namespace:pay"));
        assert_eq!((allow.delegation_depth, allow.policy_digest.as_str()), (2, "digest"));
    }

    #[test]
    fn output_without_true_allow_denies() {
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
    fn mistyped_or_unknown_grants_deny() {
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
    fn audience_other_than_requested_denies() {
        let denial = read(granted(), Some("https://b.example"), "digest").expect_err("redirected");
        assert_eq!(denial.kind, DenialKind::Malformed);
    }

    /// A policy that grants this, with a rule `reads`.
    fn bundle(reads: &str) -> Bundle {
        let granted = granted();
        let text = format!("package svc.exchange\n\ndecision := {granted}\n\nreads := {reads}\n");
        Bundle::compile(&[Source { path: "exchange.rego".to_owned(), text }]).expect("compiles")
    }

    fn decide(bundle: &Bundle, audience: &str, scope: &str, htu: &str) -> Result<Allow, Denial> {
        let party = Party {
            id: "wimse://a.example/x",
            trust_domain: "a.example",
            issuer: "https://issuer.example",
            fabric: None,
            via: Vec::new(),
            kind: "jwt",
            original_sub: "x",
            email: None,
            namespace: None,
            service_account: None,
            capabilities: None,
            scope: None,
            blast_radius: None,
            delegation_depth: None,
            act: &[],
        };
        let scope = [scope.to_owned()];
        let request = RequestedGrant {
            audience: Some(audience),
            scope: &scope,
            execution: true,
            htm: Some("POST"),
            htu: Some(htu),
            exec_act: Some(htu),
            target: Some(htu),
        };
        bundle.decide_exchange(&PolicyInput { subject: party, actor: None, request, caller: None })
    }

    #[test]
    fn fields_that_the_policy_does_not_read_share_a_decision() {
        for (reads, questions) in [
            ("1", 1),
            ("input.request.htu", 3),
            ("input.request.exec_act", 3),
            ("input.request.target", 3),
            ("input.request", 4),
        ] {
            let bundle = bundle(reads);
            for (scope, htu) in [("a", "/1"), ("a", "/2"), ("a", "/3"), ("b", "/3")] {
                decide(&bundle, "https://a.example", scope, htu).expect("allowed");
            }
            assert_eq!(bundle.0.exchange.cached(), questions, "{reads}");
        }
    }

    /// Attack: an allow for one audience is cached, and another audience is requested.
    #[test]
    fn cached_allow_is_for_its_audience_only() {
        let bundle = bundle("1");
        assert!(decide(&bundle, "https://a.example", "a", "/1").is_ok());
        let denial = decide(&bundle, "https://b.example", "a", "/1").expect_err("another audience");
        assert_eq!(denial.kind, DenialKind::Malformed);
        assert!(decide(&bundle, "https://a.example", "a", "/2").is_ok());
    }

    #[test]
    fn denial_shows_what_the_policy_did_not_read() {
        let text = "package svc.exchange\n\ndecision := {\"allow\": false, \"reason\": \"no\"}\n".to_owned();
        let sources = [Source { path: "exchange.rego".to_owned(), text }];
        let bundle = Bundle::compile(&sources).expect("compiles");
        for htu in ["/1", "/2"] {
            let denial = decide(&bundle, "https://a.example", "a", htu).expect_err("denied");
            assert_eq!(denial.input.expect("input")["request"]["htu"], htu);
        }
    }

    #[test]
    fn refused_audience_has_its_own_denial() {
        let answer = json!({"allow": false, "reason": "no such audience", "refusal": "audience"});
        assert_eq!(kind_of(answer), DenialKind::Audience);
        let answer = json!({"allow": false, "reason": "no", "refusal": "other"});
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }
}
