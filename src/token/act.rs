//! The claims `act` and `may_act` (RFC 8693 §4.1, §4.4), typed.

use serde::Serialize;
use serde_json::Value;

use super::Error;
use super::lineage::is_same_name;
use crate::id::WorkloadId;
use crate::{limits, text};

/// An actor and, nested, the actors before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Act {
    pub iss: String,
    pub sub: String,
    /// The actor before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<Box<Act>>,
}

impl Act {
    /// Reads an actor chain. An actor without `iss` has the issuer of the token.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`], [`Error::ActTooDeep`], or [`Error::ActLoop`] if an actor occurs twice, under the same or
    /// another spelling of its name.
    pub fn read(value: &Value, token_iss: &str) -> Result<Self, Error> {
        let mut actors: Vec<(String, String)> = Vec::new();
        let mut next = Some(value);
        while let Some(value) = next {
            if actors.len() == limits::ACT_DEPTH_MAX {
                return Err(Error::ActTooDeep);
            }
            let actor = actor(value, "act")?;
            let actor = (actor.0.unwrap_or_else(|| token_iss.to_owned()), actor.1);
            let is_actor = |(iss, sub): &(String, String)| *iss == actor.0 && is_same_name(sub, &actor.1);
            if actors.iter().any(is_actor) {
                return Err(Error::ActLoop);
            }
            actors.push(actor);
            next = value.get("act");
        }
        let chain = actors
            .into_iter()
            .rev()
            .fold(None, |prior, (iss, sub)| Some(Self { iss, sub, act: prior.map(Box::new) }));
        chain.ok_or(Error::ClaimMalformed("act"))
    }

    /// The actors, current first.
    pub fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |actor| actor.act.as_deref())
    }
}

/// The only actor that may act for the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MayAct {
    /// Issuer of the actor, if stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    pub sub: String,
}

impl MayAct {
    /// Reads the claim.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`].
    pub fn read(value: &Value) -> Result<Self, Error> {
        let (iss, sub) = actor(value, "may_act")?;
        Ok(Self { iss, sub })
    }

    /// The claim of a token of `token_iss`, for a token of another issuer: a name of the former stays one.
    #[must_use]
    pub fn qualified(&self, token_iss: &str) -> Self {
        let is_name = self.sub.parse::<WorkloadId>().is_err();
        let iss = self.iss.clone().or_else(|| is_name.then(|| token_iss.to_owned()));
        Self { iss, sub: self.sub.clone() }
    }

    /// Whether the claim, in a token of `token_iss`, names this actor. Compared byte for byte.
    ///
    /// A name has a meaning only within its issuer, so without `iss` it is a name of the token's issuer, unless it is a
    /// workload identifier, which contains its own trust domain.
    #[must_use]
    pub fn names(&self, token_iss: &str, actor: &NamedActor<'_>) -> bool {
        let iss = self.iss.as_deref();
        let by_id = self.sub == actor.id && iss.is_none_or(|stated| stated == actor.iss);
        let by_name = self.sub == actor.sub && iss.unwrap_or(token_iss) == actor.iss;
        by_id || by_name
    }
}

/// An actor with all its names.
#[derive(Clone, Copy, Debug)]
pub struct NamedActor<'a> {
    pub iss: &'a str,
    /// Its `sub` there.
    pub sub: &'a str,
    pub id: &'a str,
}

fn actor(value: &Value, claim: &'static str) -> Result<(Option<String>, String), Error> {
    let fields = value.as_object().ok_or(Error::ClaimMalformed(claim))?;
    let text = |name| match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) if text::fits(text, limits::WORKLOAD_ID_BYTES_MAX) => {
            Ok(Some(text.clone()))
        }
        Some(_) => Err(Error::ClaimMalformed(claim)),
    };
    Ok((text("iss")?, text("sub")?.ok_or(Error::ClaimMalformed(claim))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(Value::Null, |inner, level| {
            let mut actor = json!({"sub": format!("agent-{level}")});
            if !inner.is_null() {
                actor["act"] = inner;
            }
            actor
        })
    }

    #[test]
    fn chain_is_read_in_order_and_serialized_unchanged() {
        let value = json!({"iss": "https://a", "sub": "x", "act": {"iss": "https://b", "sub": "y"}});
        let act = Act::read(&value, "https://own").expect("well formed");
        assert_eq!(act.chain().map(|actor| actor.sub.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(serde_json::to_value(&act).expect("serializes"), value);
    }

    #[test]
    fn loop_with_implied_issuer_is_refused() {
        let value = json!({"sub": "x", "act": {"sub": "y", "act": {"iss": "https://own", "sub": "x"}}});
        assert_eq!(Act::read(&value, "https://own"), Err(Error::ActLoop));
        assert!(Act::read(&value, "https://other").is_ok());
        let value = json!({"sub": "spiffe://a/x", "act": {"sub": "wimse://a/x"}});
        assert_eq!(Act::read(&value, "https://own"), Err(Error::ActLoop), "two names of one workload");
    }

    #[test]
    fn chain_beyond_the_limit_is_refused() {
        assert!(Act::read(&nested(limits::ACT_DEPTH_MAX), "i").is_ok());
        assert_eq!(Act::read(&nested(limits::ACT_DEPTH_MAX + 1), "i"), Err(Error::ActTooDeep));
    }

    #[test]
    fn actor_without_sub_or_of_wrong_type_is_refused() {
        for value in
            [json!({}), json!("x"), json!({"sub": 1}), json!({"sub": ""}), json!({"sub": "x", "act": null})]
        {
            assert_eq!(Act::read(&value, "i"), Err(Error::ClaimMalformed("act")), "{value}");
        }
    }

    #[test]
    fn may_act_is_compared_byte_for_byte() {
        let actor = |iss, sub, id| NamedActor { iss, sub, id };
        let may_act = MayAct::read(&json!({"iss": "https://a", "sub": "x"})).expect("well formed");
        assert!(may_act.names("https://s", &actor("https://a", "x", "wimse://a/x")));
        assert!(!may_act.names("https://s", &actor("https://a/", "x", "wimse://a/x")));
        assert!(!may_act.names("https://s", &actor("https://a", "X", "wimse://a/x")));
    }

    /// Regression: the name became one of this fabric with the first exchange, and the actor was refused.
    #[test]
    fn may_act_keeps_its_issuer_in_a_token_of_another() {
        let names = |may_act: Value, iss: &str| {
            let carried = MayAct::read(&may_act).expect("well formed").qualified("https://s");
            carried.names("https://fabric", &NamedActor { iss, sub: "x", id: "wimse://a/x" })
        };
        assert!(names(json!({"sub": "x"}), "https://s") && !names(json!({"sub": "x"}), "https://fabric"));
        assert!(
            names(json!({"sub": "wimse://a/x"}), "https://any"),
            "a workload identifier has its trust domain"
        );
        assert!(names(json!({"iss": "https://a", "sub": "x"}), "https://a"));
        assert!(!names(json!({"iss": "https://a", "sub": "x"}), "https://s"));
    }

    #[test]
    fn may_act_without_iss_names_an_actor_of_the_token_issuer() {
        let may_act = MayAct::read(&json!({"sub": "x"})).expect("well formed");
        let actor = |iss| NamedActor { iss, sub: "x", id: "wimse://a/x" };
        assert!(may_act.names("https://s", &actor("https://s")));
        assert!(!may_act.names("https://s", &actor("https://a")));
        let by_id = MayAct::read(&json!({"sub": "wimse://a/x"})).expect("well formed");
        assert!(by_id.names("https://s", &actor("https://a")));
    }
}
