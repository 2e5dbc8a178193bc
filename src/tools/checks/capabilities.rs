//! Check 5: the token has every capability that the tool requires.

use super::audience::Addressed;
use super::{Check, Failure, Outcome, Progress};
use crate::state::command::Tool;

/// A token that has what the tool requires.
#[derive(Debug)]
pub struct Capable(Progress);

impl Capable {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "`required_capabilities` ⊆ token's", whole words; skipped when the list is empty.
///
/// # Errors
/// The check failed. It names the first of the tool's capabilities that is missing, nothing of the
/// token's.
pub fn capabilities(addressed: Addressed, tool: &Tool) -> Result<Capable, Failure> {
    let progress = addressed.into_progress();
    let granted = progress.credential.capabilities().unwrap_or_default();
    if let Some(missing) = tool.required_capabilities.iter().find(|required| !granted.contains(required)) {
        let reason = format!("missing capability {missing}");
        return Err(progress.fail(Check::Capabilities, reason));
    }
    let outcome = if tool.required_capabilities.is_empty() { Outcome::Skip } else { Outcome::Pass };
    Ok(Capable(progress.record(Check::Capabilities, outcome)))
}
