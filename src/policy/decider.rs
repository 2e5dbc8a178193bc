//! One rule of a bundle, asked: the answers that are remembered, and the parts that the grants of every
//! rule have in common.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use moka::sync::Cache;
use serde::Serialize;
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::evaluation::{Program, Stopped};
use super::{Denial, DenialKind};
use crate::limits;

/// Asks one bundle's rule, and remembers what it answered.
///
/// Remembering is exact: a policy sees nothing but the question, and may call nothing that is not
/// a function of its arguments. It is also what keeps the interpreter off the hot path, where the
/// same workloads ask the same again and again.
pub(super) struct Decider<P> {
    program: Program,
    policy_digest: String,
    /// By SHA-256 of the question.
    decided: Cache<[u8; 32], Result<P, Denial>>,
}

impl<P: Clone + Send + Sync + 'static> Decider<P> {
    pub(super) fn new(program: Program, policy_digest: String) -> Self {
        Self { program, policy_digest, decided: Cache::new(limits::POLICY_DECISIONS_CACHED_MAX) }
    }

    /// Asks, and has `read` make a permit of the answer. `read` depends on nothing but the answer, the
    /// question and the digest of the policy, which is given to it.
    pub(super) fn decide(
        &self,
        question: &impl Serialize,
        read: impl FnOnce(Json, &str) -> Result<P, Denial>,
    ) -> Result<P, Denial> {
        let bytes = serde_json::to_vec(question).map_err(|error| self.unasked(&error))?;
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, &bytes).as_ref());
        if let Some(decided) = self.decided.get(&key) {
            return decided;
        }
        let decided = self.decide_once(question, read);
        // An evaluation that the deadline stopped may end in time when it is tried again.
        if !matches!(&decided, Err(denial) if denial.kind == DenialKind::TimedOut) {
            self.decided.insert(key, decided.clone());
        }
        decided
    }

    /// The same, for a question that does not come again: nothing is remembered.
    pub(super) fn decide_once(
        &self,
        question: &impl Serialize,
        read: impl FnOnce(Json, &str) -> Result<P, Denial>,
    ) -> Result<P, Denial> {
        let input = serde_json::to_value(question).map_err(|error| self.unasked(&error))?;
        self.answer(input).and_then(|answer| read(answer, &self.policy_digest))
    }

    fn unasked(&self, error: &serde_json::Error) -> Denial {
        Denial::new(DenialKind::Failed, FAILED, Some(error.to_string()), &self.policy_digest)
    }

    /// Asks, and returns the answer unread.
    pub(super) fn answer(&self, input: Json) -> Result<Json, Denial> {
        self.program.evaluate(input).map_err(|stopped| {
            let (kind, reason, detail) = match stopped {
                Stopped::TimedOut => (DenialKind::TimedOut, "policy did not decide in time", None),
                Stopped::Undefined => (DenialKind::Undefined, "policy has no answer", None),
                Stopped::Failed(detail) => (DenialKind::Failed, FAILED, Some(detail)),
            };
            Denial::new(kind, reason, detail, &self.policy_digest)
        })
    }
}

const FAILED: &str = "policy could not be evaluated";

/// The denial that an answer of another form than the documented one is.
pub(super) fn malformed(detail: String, policy_digest: &str) -> Denial {
    Denial::new(DenialKind::Malformed, "policy gave no well-formed answer", Some(detail), policy_digest)
}

/// `grants.<member>`: scope words, each once. The error says what is wrong.
pub(super) fn words(member: &str, words: Vec<String>) -> Result<BTreeSet<String>, String> {
    if words.len() > limits::CAPABILITIES_MAX || !words.iter().all(|word| is_scope_word(word)) {
        return Err(format!(
            "grants.{member}: at most {} scope words of at most {} bytes",
            limits::CAPABILITIES_MAX,
            limits::CAPABILITY_BYTES_MAX
        ));
    }
    Ok(words.into_iter().collect())
}

/// `grants.delegation_depth`; 0 if the policy states none (contract §3 "Delegation").
pub(super) fn delegation_depth(granted: Option<u32>) -> Result<u32, String> {
    match granted.unwrap_or(0) {
        depth if depth <= limits::DELEGATION_DEPTH_MAX => Ok(depth),
        _ => Err(format!("grants.delegation_depth: at most {}", limits::DELEGATION_DEPTH_MAX)),
    }
}

/// `grants.blast_radius`, if the policy states one.
pub(super) fn blast_radius(granted: Option<String>) -> Result<Option<BlastRadius>, String> {
    let parsed = granted.map(|text| text.parse()).transpose();
    parsed.map_err(|error| format!("grants.blast_radius: {error}"))
}

/// `scope-token = 1*( %x21 / %x23-5B / %x5D-7E )` (RFC 6749 §3.3), within its limit: what a capability
/// is, since it is written into `scope`.
#[must_use]
pub fn is_scope_word(text: &str) -> bool {
    (1..=limits::CAPABILITY_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Source;

    #[test]
    fn no_more_answers_are_remembered_than_the_limit() {
        let text = "package svc.exchange\n\ndecision := {\"allow\": false, \"reason\": \"no\"}\n".to_owned();
        let sources = [Source { path: "exchange.rego".to_owned(), text }];
        let program = Program::compile(&sources, crate::policy::exchange::ENTRY_POINT).expect("compiles");
        let decider = Decider::<()>::new(program, String::new());
        let denial = malformed(String::new(), "digest");
        for question in 0..limits::POLICY_DECISIONS_CACHED_MAX * 2 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&question.to_be_bytes());
            decider.decided.insert(key, Err(denial.clone()));
        }
        decider.decided.run_pending_tasks();
        let remembered = decider.decided.entry_count();
        assert!((1..=limits::POLICY_DECISIONS_CACHED_MAX).contains(&remembered), "{remembered}");
    }
}
