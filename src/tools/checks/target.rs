//! Check 9: what the operation is done to is one of the tool's targets. The last.

use super::inp_hash::Carrying;
use super::{Check, Failure, Outcome, Progress, Trace};
use crate::state::command::Tool;
use crate::token::foreign::Credential;

/// A token that passed all nine checks. There is no other way to one.
#[derive(Debug)]
pub struct Verified(Progress);

impl Verified {
    /// What the token says.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.0.credential
    }

    /// The nine checks, in order.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// Check 2 as it ends for the loser of a race: another call spent the token while this one was
    /// examined.
    #[must_use]
    pub fn into_already_used(self) -> Failure {
        let before = |(check, _): &(Check, Outcome)| *check != Check::Revocation;
        let trace = self.0.trace.iter().copied().take_while(before).collect();
        Failure { check: Check::Revocation, reason: super::revocation::ALREADY_USED.to_owned(), trace }
    }
}

/// "Present and in `allowed_targets` (exact)"; skipped when not `requires_execution`, or the list is
/// empty. No normalisation: two spellings of one address are two targets.
///
/// # Errors
/// The check failed.
pub fn target(carrying: Carrying, tool: &Tool) -> Result<Verified, Failure> {
    let progress = carrying.into_progress();
    if !tool.requires_execution || tool.allowed_targets.is_empty() {
        return Ok(Verified(progress.record(Check::Target, Outcome::Skip)));
    }
    let claim = progress.credential.execution().and_then(|execution| execution.target.as_ref());
    let Some(target) = claim else {
        return Err(progress.fail(Check::Target, "target missing"));
    };
    if !tool.allowed_targets.contains(target) {
        return Err(progress.fail(Check::Target, "target not allowed"));
    }
    Ok(Verified(progress.record(Check::Target, Outcome::Pass)))
}
