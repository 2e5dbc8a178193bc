//! Effects of a signal: maps the effects that policy allows, over all events of a token and all facts of its
//! subject, to one list for the log without duplicates. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Error, SubjectFacts};
use crate::clock::Timestamp;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::policy::signals::{Allow, EventEffect};
use crate::state::Effect;
use crate::token::security_event::SecurityEventToken;
use crate::token::subject_id::{self, SubjectId};

/// The effects of a signal received at `now`.
///
/// # Errors
/// [`Error::Invalid`] beyond [`limits::SIGNAL_EFFECTS_MAX`].
pub fn effects(
    set: &SecurityEventToken,
    allow: &Allow,
    facts: &SubjectFacts,
    now: Timestamp,
) -> Result<Vec<Effect>, Error> {
    let (mut is_watermark, mut blocks, mut lifts) = (false, Latest::default(), Latest::default());
    for event in &set.events {
        // Contract §6: "with a later event time"; an event without a time happened at `iat`.
        let happened_at = event.happened_at.unwrap_or(set.iat);
        match allow.effect(&event.uri) {
            None | Some(EventEffect::None) => {}
            Some(EventEffect::Watermark) => is_watermark = true,
            Some(EventEffect::Block { family }) => blocks.put(family, happened_at),
            Some(EventEffect::Lift { family }) => {
                // A lift in the future would outlast a later block.
                lifts.put(family, happened_at.min(now));
            }
        }
    }
    // A block covers everything that was issued before it to its subject. Facts that are revoked but not blocked, such as a
    // session that is one token, get the watermark of the event.
    let is_blocking = !blocks.0.is_empty();
    let watermarks: Vec<_> = facts
        .revoked
        .iter()
        .filter(|fact| if is_blocking { !facts.blocked.contains(fact) } else { is_watermark })
        .collect();
    let count = watermarks.len() + facts.blocked.len() * (blocks.0.len() + lifts.0.len());
    if count > limits::SIGNAL_EFFECTS_MAX {
        let rule = "must have at most 512 effects on the subjects of sub_id";
        return Err(Error::Invalid { field: "events".to_owned(), rule });
    }
    let device = device_of(set);
    let family_of = |family: &str| match &device {
        Some(device) => format!("{family} {device}"),
        None => family.to_owned(),
    };
    let mut effects = Vec::with_capacity(count);
    effects.extend(watermarks.into_iter().cloned().map(Effect::Watermark));
    for fact in &facts.blocked {
        effects.extend(blocks.0.iter().map(|(family, happened_at)| Effect::Block {
            fact: fact.clone(),
            family: family_of(family),
            happened_at: *happened_at,
        }));
        effects.extend(lifts.0.iter().map(|(family, happened_at)| Effect::Lift {
            fact: fact.clone(),
            family: family_of(family),
            happened_at: *happened_at,
        }));
    }
    Ok(effects)
}

/// The device that a complex subject names beside its account (SSF 1.0 §3.3), as a digest. It is part of the family of a block,
/// so that an event about another device does not lift it.
fn device_of(set: &SecurityEventToken) -> Option<Digest128> {
    let SubjectId::Complex(complex) = &set.subject else { return None };
    let device =
        set.sub_id.get("device").filter(|_| complex.user.is_some() || complex.application.is_some())?;
    let spelled = subject_id::relayed(device, Some(&set.iss)).to_string();
    Some(Digest128::of(DigestKind::Subject, b"", spelled.as_bytes()))
}

/// Latest event time per family of events.
#[derive(Default)]
struct Latest<'p>(BTreeMap<&'p str, Timestamp>);

impl<'p> Latest<'p> {
    fn put(&mut self, family: &'p str, happened_at: Timestamp) {
        let latest = self.0.entry(family).or_insert(happened_at);
        *latest = happened_at.max(*latest);
    }
}

/// The issuer's reason, for operators: the first `reason` (specification) or `reason_admin` (CAEP §2) of an event,
/// preferring English; empty without one. Control characters become spaces; longer text is cut.
pub fn reason(set: &SecurityEventToken) -> String {
    let text = set.events.iter().find_map(|event| {
        let admin = match event.claims.get("reason_admin") {
            Some(Value::Object(texts)) => texts.get("en").or_else(|| texts.values().next()),
            text => text,
        };
        event.claims.get("reason").and_then(Value::as_str).or_else(|| admin.and_then(Value::as_str))
    });
    let mut reason = String::new();
    for c in text.unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if reason.len() + c.len_utf8() > limits::SIGNAL_REASON_BYTES_MAX {
            break;
        }
        reason.push(c);
    }
    reason
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::signals::PolicyInput;
    use crate::policy::{Bundle, Source};
    use crate::receiver::set_input;
    use crate::token::lineage::Fact;
    use crate::token::security_event::EventClaims;

    /// A policy in which every event names its own effect.
    fn echo_policy() -> Bundle {
        let source = |point: &str, decision: &str| Source {
            path: format!("{point}.rego"),
            text: format!("package svc.{point}\n\ndecision := {decision}\n"),
        };
        let sources = [
            source("exchange", r#"{"allow": false, "reason": "no"}"#),
            source("signals", r#"{"allow": true, "reason": "", "effects": input.set.events}"#),
        ];
        Bundle::compile(&sources).expect("compiles")
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// Issued at second 100. Each event has its effect and its event time.
    fn set(events: &[(&Value, Option<i64>)]) -> SecurityEventToken {
        let event = |(number, (claims, happened_at)): (usize, &(&Value, Option<i64>))| EventClaims {
            uri: format!("urn:event:{number}"),
            claims: claims.as_object().expect("object").clone(),
            happened_at: happened_at.map(at),
        };
        SecurityEventToken {
            iss: "https://idp.example".to_owned(),
            jti: "1".to_owned(),
            iat: at(100),
            aud: vec!["https://fabric.example".to_owned()],
            txn: None,
            via: Vec::new(),
            subject: SubjectId::Opaque("7".to_owned()),
            sub_id: json!({"format": "opaque", "id": "7"}),
            events: events.iter().enumerate().map(event).collect(),
        }
    }

    #[test]
    fn policy_input_is_the_token_as_sent() {
        let claims = json!({"reason": "left"});
        let input = serde_json::to_value(set_input(&set(&[(&claims, None)]))).expect("JSON");
        let expected = json!({
            "iss": "https://idp.example", "jti": "1", "iat": 100, "aud": ["https://fabric.example"],
            "sub_id": {"format": "opaque", "id": "7"}, "events": {"urn:event:0": claims},
        });
        assert_eq!(input, expected, "an absent txn is absent, not null");
    }

    fn fact(sub: &str) -> Fact {
        Fact::subject("https://idp.example", sub)
    }

    fn effects_of(set: &SecurityEventToken, facts: &[Fact]) -> Result<Vec<Effect>, Error> {
        let allow =
            echo_policy().decide_signal(&PolicyInput { set: set_input(set), caller: None, is_signed: true });
        let facts =
            SubjectFacts { revoked: facts.to_vec(), blocked: facts.to_vec(), ..SubjectFacts::default() };
        effects(set, &allow.expect("permitted"), &facts, at(100))
    }

    fn applied(events: &[(&Value, Option<i64>)], facts: &[Fact]) -> Vec<Effect> {
        effects_of(&set(events), facts).expect("few enough")
    }

    fn block(sub: &str, family: &str, secs: i64) -> Effect {
        Effect::Block { fact: fact(sub), family: family.to_owned(), happened_at: at(secs) }
    }

    /// Regression: an event that blocks had no effect on a session, if the subject named its user too.
    #[test]
    fn block_of_a_user_revokes_the_session_beside_it() {
        let blocked = json!({"effect": "block", "family": "account"});
        let set = set(&[(&blocked, None)]);
        let input = PolicyInput { set: set_input(&set), caller: None, is_signed: true };
        let allow = echo_policy().decide_signal(&input).expect("permitted");
        let session = Fact::token("https://idp.example", "t");
        for user in [&[fact("a")][..], &[]] {
            let facts = SubjectFacts {
                revoked: vec![session.clone()],
                blocked: user.to_vec(),
                ..SubjectFacts::default()
            };
            let of_user = user.iter().map(|_| block("a", "account", 100));
            let expected: Vec<_> = [Effect::Watermark(session.clone())].into_iter().chain(of_user).collect();
            assert_eq!(effects(&set, &allow, &facts, at(100)).expect("few"), expected);
        }
    }

    /// Regression: a device that complies lifted the block of a user for another device, which does not.
    #[test]
    fn block_for_a_device_is_lifted_for_that_device_only() {
        let family = |device: Option<&str>, effect: &str| {
            let claims = json!({"effect": effect, "family": "device-compliance"});
            let part = |id: &str| json!({"format": "opaque", "id": id});
            let mut sub_id = json!({"format": "complex", "user": part("a")});
            if let Some(device) = device {
                sub_id["device"] = part(device);
            }
            let subject = SubjectId::read(&sub_id, "sub_id").expect("a subject");
            let set = SecurityEventToken { subject, sub_id, ..set(&[(&claims, None)]) };
            let input = PolicyInput { set: set_input(&set), caller: None, is_signed: true };
            let allow = echo_policy().decide_signal(&input).expect("permitted");
            let facts = SubjectFacts { blocked: vec![fact("a")], ..SubjectFacts::default() };
            let effects = effects(&set, &allow, &facts, at(100)).expect("few");
            let [Effect::Block { family, .. } | Effect::Lift { family, .. }] = &effects[..] else {
                panic!("one effect: {effects:?}")
            };
            family.clone()
        };
        let block = family(Some("1"), "block");
        assert_eq!(family(Some("1"), "lift"), block);
        assert_ne!(family(Some("2"), "lift"), block);
        assert_ne!(family(None, "lift"), block);
    }

    fn lift(sub: &str, family: &str, secs: i64) -> Effect {
        Effect::Lift { fact: fact(sub), family: family.to_owned(), happened_at: at(secs) }
    }

    #[test]
    fn every_event_acts_on_every_fact_once() {
        let (none, watermark) = (json!({"effect": "none"}), json!({"effect": "watermark"}));
        let two = [fact("a"), fact("b")];
        assert_eq!(applied(&[(&none, None)], &two), []);
        assert_eq!(applied(&[(&watermark, None)], &[]), []);
        let watermarks = two.clone().map(Effect::Watermark).to_vec();
        assert_eq!(applied(&[(&watermark, None), (&none, None), (&watermark, Some(1))], &two), watermarks);
        // A block includes a watermark.
        let blocked = json!({"effect": "block", "family": "account"});
        assert_eq!(
            applied(&[(&watermark, None), (&blocked, None)], &[fact("a")]),
            [block("a", "account", 100)]
        );
    }

    #[test]
    fn block_and_lift_use_event_time_or_else_iat() {
        let blocked = json!({"effect": "block", "family": "account"});
        let lifted = json!({"effect": "lift", "family": "account"});
        let one = [fact("a")];
        assert_eq!(applied(&[(&blocked, Some(7))], &one), [block("a", "account", 7)]);
        assert_eq!(applied(&[(&lifted, None)], &one), [lift("a", "account", 100)]);
        // The latest of several of one family; a lift lifts no watermark.
        let several = [(&blocked, Some(7)), (&blocked, Some(9)), (&lifted, Some(8))];
        assert_eq!(applied(&several, &one), [block("a", "account", 9), lift("a", "account", 8)]);
        let risk = json!({"effect": "lift", "family": "risk"});
        let watermark = json!({"effect": "watermark"});
        assert_eq!(
            applied(&[(&risk, None), (&watermark, None)], &one),
            [Effect::Watermark(fact("a")), lift("a", "risk", 100)]
        );
    }

    #[test]
    fn lift_in_the_future_counts_from_receipt() {
        let lifted = json!({"effect": "lift", "family": "account"});
        assert_eq!(applied(&[(&lifted, Some(130))], &[fact("a")]), [lift("a", "account", 100)]);
        let blocked = json!({"effect": "block", "family": "account"});
        assert_eq!(applied(&[(&blocked, Some(130))], &[fact("a")]), [block("a", "account", 130)]);
    }

    #[test]
    fn effects_of_one_signal_are_limited() {
        let watermark = json!({"effect": "watermark"});
        let lifted = json!({"effect": "lift", "family": "account"});
        let facts: Vec<Fact> =
            (0..=limits::SIGNAL_EFFECTS_MAX / 2).map(|sub| fact(&sub.to_string())).collect();
        let both = set(&[(&watermark, None), (&lifted, None)]);
        let most = effects_of(&both, &facts[1..]).map(|effects| effects.len());
        assert_eq!(most.ok(), Some(limits::SIGNAL_EFFECTS_MAX));
        let refused = effects_of(&both, &facts);
        assert!(matches!(refused, Err(Error::Invalid { field, .. }) if field == "events"));
    }

    #[test]
    fn reason_is_for_operators_and_cut_at_its_limit() {
        let text = |claims: &Value| reason(&set(&[(&json!({}), None), (claims, None)]));
        for (claims, expected) in [
            (json!({}), ""),
            (json!({"reason": "leaked"}), "leaked"),
            (json!({"reason_admin": "leaked"}), "leaked"),
            (json!({"reason_admin": {"de": "verloren", "en": "lost"}}), "lost"),
            (json!({"reason_admin": {"de": "verloren"}}), "verloren"),
            (json!({"reason": "leaked", "reason_admin": {"en": "lost"}}), "leaked"),
            (json!({"reason": "a\r\nb\u{7}"}), "a  b "),
            (json!({"reason": 1, "reason_admin": [1]}), ""),
            (json!({"reason_user": {"en": "for the user"}}), ""),
        ] {
            assert_eq!(text(&claims), expected, "{claims}");
        }
        let most = limits::SIGNAL_REASON_BYTES_MAX;
        assert_eq!(text(&json!({"reason": "r".repeat(most)})).len(), most);
        // The cut falls between two characters.
        assert_eq!(text(&json!({"reason": format!("r{}", "\u{e9}".repeat(most))})).len(), most - 1);
    }
}
