//! Denial of a policy decision. The reason is for the caller, the detail for the operator.

use serde::Serialize;
use serde_json::Value as Json;

use crate::limits;

/// Cause of a denial, in the order in which they are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenialKind {
    /// The evaluation failed, for example because two rules conflict.
    Failed,
    /// The evaluation did not finish before the deadline.
    TimedOut,
    /// The rule is undefined for this input.
    Undefined,
    /// The output does not have the documented form.
    Malformed,
    /// The policy denies the audience (RFC 8693 §2.2.2, `invalid_target`).
    Audience,
    Policy,
}

/// A decision that is not an allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied by policy: {reason}")]
pub struct Denial {
    pub kind: DenialKind,
    /// For the caller: printable ASCII, at most [`limits::POLICY_REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// For log and operator only: the message of the engine.
    pub detail: Option<String>,
    /// Digest of the deciding bundle.
    pub policy_digest: String,
    /// The denied input; `None` if the bundle has no rule for the decision.
    pub input: Option<Json>,
}

impl Denial {
    /// Metric label: `deny` if the policy decided so, else `error`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self.kind {
            DenialKind::Policy | DenialKind::Audience => "deny",
            DenialKind::Failed | DenialKind::TimedOut | DenialKind::Undefined | DenialKind::Malformed => {
                "error"
            }
        }
    }

    pub(super) fn new(kind: DenialKind, reason: &str, detail: Option<String>, policy_digest: &str) -> Self {
        let policy_digest = policy_digest.to_owned();
        Self { kind, reason: printable(reason), detail, policy_digest, input: None }
    }

    pub(super) fn of(self, input: &impl Serialize) -> Self {
        Self { input: serde_json::to_value(input).ok(), ..self }
    }
}

/// The text with everything but printable ASCII replaced, truncated, never empty. It may be part of a header or an
/// error body, so quotes and backslashes are replaced too (RFC 6749 §5.2).
fn printable(text: &str) -> String {
    let safe = |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '?' };
    let text: String = text.trim().chars().take(limits::POLICY_REASON_BYTES_MAX).map(safe).collect();
    if text.is_empty() { "policy gave no reason".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_reason_is_short_printable_ascii() {
        let hostile = format!("no\r\nSet-Cookie: a=\"b\" \u{1f600}{}", "x".repeat(10_000));
        let reason = printable(&hostile);
        assert_eq!(reason.len(), limits::POLICY_REASON_BYTES_MAX);
        assert!(reason.starts_with("no??Set-Cookie: a=?b? ?x"), "{reason}");
        assert_eq!(printable(" \n"), "policy gave no reason");
    }
}
