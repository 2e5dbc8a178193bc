//! The question and the answer about a security event token: the rule `data.svc.signals.decision`.
//!
//! The question is the token's content, checked for form, and who brought it. The answer is
//! `{"allow": bool, "reason": string, "effects"?: {"<event>": {"effect": …, "family"?: …}}}`; an allowed
//! answer says the effect of every event and of no other, and anything else denies. A bundle need not have
//! the rule: no signal is accepted then. Whether the issuer has authority over the subject is not decided
//! here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::decider::{Decider, malformed};
use super::{Denial, DenialKind};
use crate::{json, limits};

/// The rule that answers.
pub(super) const ENTRY_POINT: &str = "data.svc.signals.decision";

/// What the policy is asked: its `input`. A member that does not apply is absent, not null.
#[derive(Clone, Debug, Serialize)]
pub struct Question<'a> {
    /// The token, as its issuer states it.
    pub set: AskedSet<'a>,
    /// Workload identifier of the authenticated caller, who need not be the issuer. Absent for nobody,
    /// which only development mode lets send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<&'a str>,
    /// Whether the issuer's signature was verified; else the caller vouches for it.
    pub is_signed: bool,
}

/// A security event token: checked for form, its issuer and audience verified.
#[derive(Clone, Debug, Serialize)]
pub struct AskedSet<'a> {
    /// `iss`.
    pub iss: &'a str,
    /// `jti`.
    pub jti: &'a str,
    /// `iat` in seconds.
    pub iat: i64,
    /// `aud`: always a list.
    pub aud: &'a [String],
    /// `txn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txn: Option<&'a str>,
    /// `sub_id`, as it was sent.
    pub sub_id: &'a Json,
    /// What each event says, by its URI.
    pub events: BTreeMap<&'a str, &'a Map<String, Json>>,
}

/// Proof that the policy accepts a token, and what each of its events does. Only
/// [`Bundle::decide_signal`](super::Bundle::decide_signal) makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    effects: BTreeMap<String, EventEffect>,
    policy_digest: String,
}

/// What an event does to the credentials of its subject (contract §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// Nothing: it is recorded.
    None,
    /// What was issued up to now is refused.
    Watermark,
    /// What was issued up to now is refused, and what will be, until the block is lifted.
    Block {
        /// Which events lift it: those of the same issuer and family.
        family: String,
    },
    /// Lifts the issuer's block of this family, if the event is later.
    Lift {
        /// Which blocks it lifts.
        family: String,
    },
}

impl Permit {
    /// What `event`, an URI, does; `None` for one that was not asked about.
    #[must_use]
    pub fn effect(&self, event: &str) -> Option<&EventEffect> {
        self.effects.get(event)
    }

    /// Digest of the bundle that permitted it.
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

/// Asks the rule, and reads its answer. It is not remembered: no `jti` comes twice.
pub(super) fn decide(decider: &Decider<Permit>, question: &Question<'_>) -> Result<Permit, Denial> {
    decider.decide_once(question, |answer, digest| read(answer, question, digest))
}

fn read(answer: Json, question: &Question<'_>, policy_digest: &str) -> Result<Permit, Denial> {
    let malformed = |detail: String| malformed(detail, policy_digest);
    let answer: Answer = json::from_value(answer).map_err(|error| malformed(error.to_string()))?;
    if !answer.allow {
        return Err(Denial::new(DenialKind::Policy, &answer.reason, None, policy_digest));
    }
    let effects = answer.effects.ok_or_else(|| malformed("allow without effects".to_owned()))?;
    // An event that the answer passes over would be one that is accepted and not obeyed.
    if !effects.keys().map(String::as_str).eq(question.set.events.keys().copied()) {
        return Err(malformed("effects must name every event, and no other".to_owned()));
    }
    let effects = effects.into_iter().map(|(event, effect)| Ok((event, effect.read()?)));
    let effects = effects.collect::<Result<_, String>>().map_err(malformed)?;
    Ok(Permit { effects, policy_digest: policy_digest.to_owned() })
}

impl Effect {
    fn read(self) -> Result<EventEffect, String> {
        if self.family.as_deref().is_some_and(|family| !is_family(family)) {
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
            _ => Err("family: must be there for block and lift, and for no other effect".to_owned()),
        }
    }
}

fn is_family(text: &str) -> bool {
    (1..=limits::SIGNAL_FAMILY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const A: &str = "https://events.example/a";
    const B: &str = "https://events.example/b";

    /// Reads an answer to a question about these events.
    fn read_for(events: &[&str], answer: Json) -> Result<Permit, Denial> {
        let (claims, sub_id, aud) = (Map::new(), json!({}), ["https://fabric.example".to_owned()]);
        let events = events.iter().map(|event| (*event, &claims)).collect();
        let iss = "https://issuer.example";
        let set = AskedSet { iss, jti: "j", iat: 0, aud: &aud, txn: None, sub_id: &sub_id, events };
        read(answer, &Question { set, caller: None, is_signed: true }, "digest")
    }

    fn allowed(effects: &Json) -> Json {
        json!({"allow": true, "reason": "accepted", "effects": effects})
    }

    fn kind_of(answer: Json) -> DenialKind {
        read_for(&[A], answer).expect_err("denied").kind
    }

    #[test]
    fn a_well_formed_answer_is_a_permit_with_the_effect_of_each_event() {
        for (effect, expected) in [
            (json!({"effect": "none"}), EventEffect::None),
            (json!({"effect": "watermark"}), EventEffect::Watermark),
            (json!({"effect": "block", "family": "f"}), EventEffect::Block { family: "f".to_owned() }),
            (json!({"effect": "lift", "family": "f"}), EventEffect::Lift { family: "f".to_owned() }),
        ] {
            let permit = read_for(&[A, B], allowed(&json!({B: {"effect": "none"}, A: effect})));
            let permit = permit.expect("permitted");
            assert_eq!((permit.effect(A), permit.effect(B)), (Some(&expected), Some(&EventEffect::None)));
            assert_eq!((permit.effect("https://events.example/"), permit.policy_digest()), (None, "digest"));
        }
    }

    #[test]
    fn an_answer_that_passes_an_event_over_or_names_another_denies() {
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
    fn every_other_answer_denies() {
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
        // An agent's answer is none here.
        let mut answer = allowed(&json!({A: {"effect": "none"}}));
        answer["grants"] = json!({"capabilities": []});
        assert_eq!(kind_of(answer), DenialKind::Malformed);
    }

    #[test]
    fn a_family_is_one_to_sixty_four_printable_characters() {
        let of = |family: &str| read_for(&[A], allowed(&json!({A: {"effect": "block", "family": family}})));
        let longest = "f".repeat(limits::SIGNAL_FAMILY_BYTES_MAX);
        assert!(of(&longest).is_ok());
        for family in ["", &format!("{longest}f"), "a b", "a\n", "\u{e9}"] {
            assert_eq!(of(family).expect_err("denied").kind, DenialKind::Malformed, "{family:?}");
        }
    }
}
