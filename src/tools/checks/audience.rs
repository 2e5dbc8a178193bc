//! Check 4: the token is meant for the tool.

use super::protocol::Spoken;
use super::{Check, Failure, Outcome, Progress};
use crate::state::command::Tool;

/// A token that is meant for the tool, or for one that has no name.
#[derive(Debug)]
pub struct Addressed(Progress);

impl Addressed {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "`aud` = `resource_uri`, byte for byte"; skipped when the tool has none.
///
/// A token that is meant for the fabric itself passes no tool, whatever the tool's `resource_uri`: who
/// accepted it could use it here, as the agent whose it is.
///
/// # Errors
/// The check failed.
pub fn audience(spoken: Spoken, tool: &Tool) -> Result<Addressed, Failure> {
    let progress = spoken.into_progress();
    let (iss, aud) = (progress.credential.iss(), progress.credential.aud());
    if aud.iter().any(|aud| aud == iss) {
        return Err(progress.fail(Check::Audience, "token is meant for the fabric itself"));
    }
    let outcome = match &tool.resource_uri {
        None => Outcome::Skip,
        Some(resource_uri) if matches!(aud, [only] if only == resource_uri) => Outcome::Pass,
        Some(_) => {
            return Err(progress.fail(Check::Audience, "token aud does not match tool resource_uri"));
        }
    };
    Ok(Addressed(progress.record(Check::Audience, outcome)))
}
