//! Evaluation of one rule of a bundle with a decision cache, and validation shared by the grants of all rules.

use std::collections::BTreeSet;

use aws_lc_rs::digest;
use moka::sync::Cache;
use serde::Serialize;
use serde_json::Value as Json;

use super::blast_radius::BlastRadius;
use super::evaluation::{EvaluationError, Program};
use super::{Denial, DenialKind};
use crate::{limits, text};

/// Evaluates one rule of a bundle and caches the decisions.
///
/// The cache is exact: a decision depends on its input only, because only pure builtins are allowed. It keeps
/// the interpreter off the hot path, where the same workloads repeat the same exchanges.
pub(super) struct Decider<P> {
    program: Program,
    policy_digest: String,
    /// Key: SHA-256 of `question` as JSON.
    cache: Cache<[u8; 32], Result<P, Denial>>,
}

impl<P: Clone + Send + Sync + 'static> Decider<P> {
    pub(super) fn new(program: Program, policy_digest: String) -> Self {
        Self { program, policy_digest, cache: Cache::new(limits::POLICY_DECISIONS_CACHED_MAX) }
    }

    /// Evaluates the rule for `question`, and `read`s an allow from the output. `read` depends on the output,
    /// `question` and the digest of the policy only. `question` is `input` without the fields that the rule
    /// does not read; a denial shows `input`.
    pub(super) fn decide(
        &self,
        question: &impl Serialize,
        input: &impl Serialize,
        read: impl FnOnce(Json, &str) -> Result<P, Denial>,
    ) -> Result<P, Denial> {
        let bytes = serde_json::to_vec(question).map_err(|error| self.not_serialized(&error))?;
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, &bytes).as_ref());
        if let Some(decision) = self.cache.get(&key) {
            return decision.map_err(|denial| denial.of(input));
        }
        let decision = self.decide_uncached(question, read);
        // A second evaluation may finish before the deadline, so a timeout is not cached.
        if !matches!(&decision, Err(denial) if denial.kind == DenialKind::TimedOut) {
            self.cache.insert(key, decision.clone());
        }
        decision.map_err(|denial| denial.of(input))
    }

    /// As [`decide`](Self::decide), without the cache: for an input that never repeats.
    pub(super) fn decide_once(
        &self,
        input: &impl Serialize,
        read: impl FnOnce(Json, &str) -> Result<P, Denial>,
    ) -> Result<P, Denial> {
        self.decide_uncached(input, read).map_err(|denial| denial.of(input))
    }

    /// A denial is returned without its input, so that the cache does not hold it.
    fn decide_uncached(
        &self,
        input: &impl Serialize,
        read: impl FnOnce(Json, &str) -> Result<P, Denial>,
    ) -> Result<P, Denial> {
        let input = serde_json::to_value(input).map_err(|error| self.not_serialized(&error))?;
        self.evaluate(input).and_then(|output| read(output, &self.policy_digest))
    }

    /// Number of cached decisions.
    pub(super) fn cached(&self) -> u64 {
        self.cache.run_pending_tasks();
        self.cache.entry_count()
    }

    fn not_serialized(&self, error: &serde_json::Error) -> Denial {
        Denial::new(DenialKind::Failed, FAILED, Some(error.to_string()), &self.policy_digest)
    }

    /// Evaluates the rule and returns its output.
    pub(super) fn evaluate(&self, input: Json) -> Result<Json, Denial> {
        self.program.evaluate(input).map_err(|error| {
            let (kind, reason, detail) = match error {
                EvaluationError::TimedOut => (DenialKind::TimedOut, "policy did not decide in time", None),
                EvaluationError::Undefined => (DenialKind::Undefined, "policy has no answer", None),
                EvaluationError::Failed(detail) => (DenialKind::Failed, FAILED, Some(detail)),
            };
            Denial::new(kind, reason, detail, &self.policy_digest)
        })
    }
}

const FAILED: &str = "policy could not be evaluated";

/// The denial for an output of another than the documented form.
pub(super) fn malformed(detail: String, policy_digest: &str) -> Denial {
    Denial::new(DenialKind::Malformed, "policy gave no well-formed answer", Some(detail), policy_digest)
}

/// `grants.<field>`: distinct scope words.
pub(super) fn words(member: &str, words: Vec<String>) -> Result<BTreeSet<String>, String> {
    if words.len() > limits::CAPABILITIES_MAX || !words.iter().all(|word| text::is_scope_word(word)) {
        return Err(format!(
            "grants.{member}: at most {} scope words of at most {} bytes",
            limits::CAPABILITIES_MAX,
            limits::CAPABILITY_BYTES_MAX
        ));
    }
    Ok(words.into_iter().collect())
}

/// `grants.delegation_depth`; 0 if absent (contract §3 "Delegation").
pub(super) fn delegation_depth(granted: Option<u32>) -> Result<u32, String> {
    match granted.unwrap_or(0) {
        depth if depth <= limits::DELEGATION_DEPTH_MAX => Ok(depth),
        _ => Err(format!("grants.delegation_depth: at most {}", limits::DELEGATION_DEPTH_MAX)),
    }
}

/// `grants.blast_radius`, if present.
pub(super) fn blast_radius(granted: Option<String>) -> Result<Option<BlastRadius>, String> {
    let parsed = granted.map(|text| text.parse()).transpose();
    parsed.map_err(|error| format!("grants.blast_radius: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Source;

    #[test]
    fn decision_cache_is_limited() {
        let text = "package svc.exchange\n\ndecision := {\"allow\": false, \"reason\": \"no\"}\n".to_owned();
        let sources = [Source { path: "exchange.rego".to_owned(), text }];
        let program = Program::compile(&sources, crate::policy::exchange::ENTRY_POINT).expect("compiles");
        let decider = Decider::<()>::new(program, String::new());
        let denial = malformed(String::new(), "digest");
        for number in 0..limits::POLICY_DECISIONS_CACHED_MAX * 2 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            decider.cache.insert(key, Err(denial.clone()));
        }
        let cached = decider.cached();
        assert!((1..=limits::POLICY_DECISIONS_CACHED_MAX).contains(&cached), "{cached}");
    }
}
