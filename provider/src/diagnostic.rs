//! A message for the user of Terraform: an error or a warning, at an attribute or at the whole resource.

use crate::proto::tfplugin6 as proto;

/// Minimum length of a text that is kept out of messages.
const SECRET_BYTES_MIN: usize = 8;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub is_error: bool,
    /// One line: the failed operation in words.
    pub summary: String,
    /// The cause, and the corrective action.
    pub detail: String,
    /// Name of the attribute at which Terraform points.
    pub attribute: Option<&'static str>,
}

impl Diagnostic {
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { is_error: true, summary: summary.into(), detail: detail.into(), attribute: None }
    }

    pub fn warning(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { is_error: false, ..Self::error(summary, detail) }
    }

    /// The same at an attribute.
    #[must_use]
    pub fn at(self, attribute: &'static str) -> Self {
        Self { attribute: Some(attribute), ..self }
    }

    /// The same without these texts, which it may have got from a configuration or a node.
    #[must_use]
    pub fn without<'s>(self, secrets: impl IntoIterator<Item = &'s str>) -> Self {
        // A shorter text is no secret, and may be part of any word.
        secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN).fold(self, |message, secret| {
            Self {
                summary: message.summary.replace(secret, "(sensitive)"),
                detail: message.detail.replace(secret, "(sensitive)"),
                ..message
            }
        })
    }
}

impl From<Diagnostic> for proto::Diagnostic {
    fn from(message: Diagnostic) -> Self {
        use proto::attribute_path::{Step, step::Selector};
        use proto::diagnostic::Severity;
        let severity = if message.is_error { Severity::Error } else { Severity::Warning };
        let step = |name: &str| Step { selector: Some(Selector::AttributeName(name.to_owned())) };
        let path = |name| proto::AttributePath { steps: vec![step(name)] };
        Self {
            severity: severity.into(),
            summary: message.summary,
            detail: message.detail,
            attribute: message.attribute.map(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_of_every_text() {
        let message =
            Diagnostic::error("at https://r/secret-1", "https://r/secret-1 and token-2-of-three, no");
        let shown = message.without(["https://r/secret-1", "token-2-of-three", "no"]);
        assert_eq!((&*shown.summary, &*shown.detail), ("at (sensitive)", "(sensitive) and (sensitive), no"));
    }
}
