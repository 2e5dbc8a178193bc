//! What policy answers instead of a permit. Public text and private detail are separate fields.

use crate::limits;

/// Why no permit was made, in the order in which it is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenialKind {
    /// The evaluation stopped with an error, for example two rules that contradict each other.
    Failed,
    /// The evaluation did not end in time.
    TimedOut,
    /// The policy has no answer to this question.
    Undefined,
    /// The policy's answer does not have the documented form.
    Malformed,
    /// The policy says no because of the audience (RFC 8693 §2.2.2, `invalid_target`).
    Audience,
    /// The policy says no.
    Policy,
}

/// Policy does not permit it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied by policy: {reason}")]
pub struct Denial {
    /// What kind of denial it is.
    pub kind: DenialKind,
    /// For the caller: printable ASCII, at most [`limits::POLICY_REASON_BYTES_MAX`] bytes.
    pub reason: String,
    /// For the log and the operator only: what the engine said.
    pub detail: Option<String>,
    /// Digest of the bundle that decided.
    pub policy_digest: String,
}

impl Denial {
    /// What a metric says of it: the policy said `deny`, or its answer is an `error`.
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
        Self { kind, reason: printable(reason), detail, policy_digest: policy_digest.to_owned() }
    }
}

/// The text with everything but printable ASCII replaced, cut at the limit; never empty. It may
/// end up in a header or an error body, so quotes and backslashes go as well (RFC 6749 §5.2).
fn printable(text: &str) -> String {
    let safe = |c: char| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '?' };
    let text: String = text.trim().chars().take(limits::POLICY_REASON_BYTES_MAX).map(safe).collect();
    if text.is_empty() { "policy gave no reason".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_reason_is_short_printable_ascii() {
        let hostile = format!("no\r\nSet-Cookie: a=\"b\" \u{1f600}{}", "x".repeat(10_000));
        let reason = printable(&hostile);
        assert_eq!(reason.len(), limits::POLICY_REASON_BYTES_MAX);
        assert!(reason.starts_with("no??Set-Cookie: a=?b? ?x"), "{reason}");
        assert_eq!(printable(" \n"), "policy gave no reason");
    }
}
