//! Input and output of the policy for a security event token: the rule `data.svc.signals.decision`.
//!
//! The input is the content of the token, checked for form, and its sender. The output is
//! `{"allow": bool, "reason": string, "effects"?: {"<event>": {"effect": …, "family"?: …}}}`; an allow states the
//! effect of every event and of no other, and any other output denies. The rule is optional: without it no signal is
//! accepted. The issuer's authority over the subject is the receiver's decision.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::decider::{Decider, malformed};
use super::{Denial, DenialKind};
use crate::{json, limits, text};

/// The rule of this decision.
pub(super) const ENTRY_POINT: &str = "data.svc.signals.decision";

/// The `input` of the policy. A field that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyInput<'a> {
    /// The token as stated by its issuer.
    pub set: SetInput<'a>,
    /// Workload identifier of the authenticated caller, which may differ from the issuer. Absent for an anonymous caller,
    /// which only development mode allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
    /// Whether the issuer's signature was verified; otherwise the caller vouches for the token.
    pub is_signed: bool,
}

/// A security event token with checked form, verified issuer and audience.
#[derive(Clone, Debug, Serialize)]
pub struct SetInput<'a> {
    pub iss: &'a str,
    pub jti: &'a str,
    /// `iat` in seconds.
    pub iat: i64,
    /// `aud`, always a list.
    pub aud: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txn: Option<&'a str>,
    /// `sub_id`, as sent.
    pub sub_id: &'a Json,
    /// The claims of each event, by its URI.
    pub events: BTreeMap<&'a str, &'a Map<String, Json>>,
}

/// Proof that the policy accepts a token, with the effect of each of its events. Only
/// [`Bundle::decide_signal`](super::Bundle::decide_signal) creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    effects: BTreeMap<String, EventEffect>,
    policy_digest: String,
}

/// Effect of an event on the credentials of its subject (contract §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// None: the event is recorded.
    None,
    /// Revokes what was issued before the event.
    Watermark,
    /// Revokes what was issued before the event, and later credentials until the block is lifted.
    Block {
        /// Name of the block within its issuer; the key of a lift.
        family: String,
    },
    /// Lifts the issuer's block of this family, if the event is later than the block.
    Lift {
        /// Name of the block within its issuer.
        family: String,
    },
}

impl Allow {
    /// Effect of `event`, a URI; `None` if it was not in the input.
    #[must_use]
    pub fn effect(&self, event: &str) -> Option<&EventEffect> {
        self.effects.get(event)
    }

    /// Digest of the deciding bundle.
    #[must_use]
    pub fn policy_digest(&self) -> &str {
        &self.policy_digest
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyOutput {
    allow: bool,
    reason: String,
    effects: Option<BTreeMap<String, Effect>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Effect {
    effect: Word,
    family: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    None,
    Watermark,
    Block,
    Lift,
}

/// Evaluates the rule, without the cache: no `jti` repeats.
pub(super) fn decide(decider: &Decider<Allow>, input: &PolicyInput<'_>) -> Result<Allow, Denial> {
    decider.decide_once(input, |output, digest| read(output, input, digest))
}

fn read(output: Json, input: &PolicyInput<'_>, policy_digest: &str) -> Result<Allow, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let output: PolicyOutput = json::from_value(output).map_err(|error| malformed(error.to_string()))?;
    if !output.allow {
        return Err(Denial::new(DenialKind::Policy, &output.reason, None, policy_digest));
    }
    let effects = output.effects.ok_or_else(|| malformed("allow without effects".to_owned()))?;
    // An event without effect would be accepted and ignored.
    if !effects.keys().map(String::as_str).eq(input.set.events.keys().copied()) {
        return Err(malformed("effects must name every event, and no other".to_owned()));
    }
    let effects = effects.into_iter().map(|(event, effect)| Ok((event, effect.read()?)));
    let effects = effects.collect::<Result<_, String>>().map_err(malformed)?;
    Ok(Allow { effects, policy_digest: policy_digest.to_owned() })
}

impl Effect {
    fn read(self) -> Result<EventEffect, String> {
        if self
            .family
            .as_deref()
            .is_some_and(|family| !text::is_printable(family, limits::SIGNAL_FAMILY_BYTES_MAX))
        {
            return Err(format!(
                "family: must be 1 to {} printable ASCII characters without spaces",
                limits::SIGNAL_FAMILY_BYTES_MAX
            ));
        }
        match (self.effect, self.family) {
            (Word::None, None) => Ok(EventEffect::None),
            (Word::Watermark, None) => Ok(EventEffect::Watermark),
            (Word::Block, Some(family)) => Ok(EventEffect::Block { family }),
            (Word::Lift, Some(family)) => Ok(EventEffect::Lift { family }),
            _ => Err("family: required for block and lift, forbidden for other effects".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const A: &str = "https://events.example/a";
    const B: &str = "https://events.example/b";

    /// Reads an output for an input with these events.
    fn read_for(events: &[&str], output: Json) -> Result<Allow, Denial> {
        let (claims, sub_id, aud) = (Map::new(), json!({}), ["https://fabric.example".to_owned()]);
        let events = events.iter().map(|event| (*event, &claims)).collect();
        let iss = "https://issuer.example";
        let set = SetInput { iss, jti: "j", iat: 0, aud: &aud, txn: None, sub_id: &sub_id, events };
        read(output, &PolicyInput { set, caller: None, is_signed: true }, "digest")
    }

    fn allowed(effects: &Json) -> Json {
        json!({"allow": true, "reason": "accepted", "effects": effects})
    }

    fn kind_of(output: Json) -> DenialKind {
        read_for(&[A], output).expect_err("denied").kind
    }

    #[test]
    fn well_formed_output_allows_with_all_effects() {
        for (effect, expected) in [
            (json!({"effect": "none"}), EventEffect::None),
            (json!({"effect": "watermark"}), EventEffect::Watermark),
            (json!({"effect": "block", "family": "f"}), EventEffect::Block { family: "f".to_owned() }),
            (json!({"effect": "lift", "family": "f"}), EventEffect::Lift { family: "f".to_owned() }),
        ] {
            let allow = read_for(&[A, B], allowed(&json!({B: {"effect": "none"}, A: effect})));
            let allow = allow.expect("permitted");
            assert_eq!((allow.effect(A), allow.effect(B)), (Some(&expected), Some(&EventEffect::None)));
            assert_eq!((allow.effect("https://events.example/"), allow.policy_digest()), (None, "digest"));
        }
    }

    #[test]
    fn output_without_an_event_or_with_another_denies() {
        let effect = || json!({"effect": "watermark"});
        for effects in [json!({}), json!({A: effect()}), json!({A: effect(), B: effect(), "c:d": effect()})] {
            let denial = read_for(&[A, B], allowed(&effects)).expect_err("denied");
            assert_eq!(denial.kind, DenialKind::Malformed, "{effects}");
        }
        let other = json!({"https://events.example/A": effect()});
        assert_eq!(kind_of(allowed(&other)), DenialKind::Malformed);
        assert!(read_for(&[A], allowed(&json!({A: effect()}))).is_ok());
    }

    #[test]
    fn every_other_output_denies() {
        for answer in [json!(true), json!(null), json!([]), json!({}), json!({"allow": true, "reason": "x"})]
        {
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        for allow in [json!("true"), json!(1), json!(null), json!([true])] {
            let mut answer = allowed(&json!({A: {"effect": "none"}}));
            answer["allow"] = allow;
            assert_eq!(kind_of(answer.clone()), DenialKind::Malformed, "{answer}");
        }
        let mut answer = allowed(&json!({A: {"effect": "none"}}));
        answer["allow"] = json!(false);
        assert_eq!(kind_of(answer), DenialKind::Policy);
        for effect in [
            json!("none"),
            json!(null),
            json!({}),
            json!({"effect": "revoke"}),
            json!({"effect": "Watermark"}),
            json!({"effect": ["watermark"]}),
            json!({"effect": "block"}),
            json!({"effect": "lift"}),
            json!({"effect": "block", "family": null}),
            json!({"effect": "block", "family": 1}),
            json!({"effect": "none", "family": "f"}),
            json!({"effect": "watermark", "family": "f"}),
            json!({"effect": "watermark", "until": 1}),
        ] {
            assert_eq!(kind_of(allowed(&json!({A: effect}))), DenialKind::Malformed, "{effect}");
        }
        // The output of an identity decision is malformed here.
        let mut answer = allowed(&json!({A: {"effect": "none"}}));
        answer["grants"] = json!({"capabilities": []});
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }

    #[test]
    fn family_is_one_to_64_printable_characters() {
        let of = |family: &str| read_for(&[A], allowed(&json!({A: {"effect": "block", "family": family}})));
        let longest = "f".repeat(limits::SIGNAL_FAMILY_BYTES_MAX);
        assert!(of(&longest).is_ok());
        for family in ["", &format!("{longest}f"), "a b", "a\n", "\u{e9}"] {
            assert_eq!(of(family).expect_err("denied").kind, DenialKind::Malformed, "{family:?}");
        }
    }
}
