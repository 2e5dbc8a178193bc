//! Check 2: nothing that the token derives from is revoked, and it is not spent.

use super::token::Authentic;
use super::{Check, Failure, Outcome, Progress};

/// A token that still stands.
#[derive(Debug)]
pub struct Standing(Progress);

impl Standing {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// What the state knows of a token.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Something it derives from is revoked.
    pub is_revoked: bool,
    /// It is good for one action, and was used.
    pub is_spent: bool,
}

/// "Nothing in the index covers `jti`, `sub`, `act`, `client_id`, key or any `lineage` id at this
/// `idx`/`iat`; an execution-scoped token is unspent."
///
/// # Errors
/// The check failed. What was revoked is not said: it is not the tool's to know.
pub fn revocation(authentic: Authentic, facts: Facts) -> Result<Standing, Failure> {
    let progress = authentic.into_progress();
    if facts.is_revoked {
        return Err(progress.fail(Check::Revocation, "token revoked"));
    }
    if facts.is_spent {
        return Err(progress.fail(Check::Revocation, ALREADY_USED));
    }
    Ok(Standing(progress.record(Check::Revocation, Outcome::Pass)))
}

/// Why a token fails that was spent before.
pub(super) const ALREADY_USED: &str = "token already used";
