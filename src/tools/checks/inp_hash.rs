//! Check 8: the body of the call is the one that the token was issued for.

use super::exec_act::Operating;
use super::{Check, Failure, Outcome, Progress};
use crate::state::command::Tool;
use crate::token::BodyHash;

/// A call with the body that the token was issued for.
#[derive(Debug)]
pub struct Carrying(Progress);

impl Carrying {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "Token has it, `request_body_hash` given, the 32 bytes equal"; skipped when not `requires_execution`
/// and the token has none. A token that is bound to a body is never good for another, whatever the tool
/// asks for.
///
/// # Errors
/// The check failed.
pub fn inp_hash(operating: Operating, body: Option<&BodyHash>, tool: &Tool) -> Result<Carrying, Failure> {
    let progress = operating.into_progress();
    let claim = progress.credential.execution().and_then(|execution| execution.inp_hash);
    let reason = match (claim, body) {
        (None, _) if !tool.requires_execution => {
            return Ok(Carrying(progress.record(Check::InpHash, Outcome::Skip)));
        }
        (None, _) => "inp_hash missing",
        (Some(_), None) => "request_body_hash missing",
        (Some(claim), Some(body)) if claim.equals(body) => {
            return Ok(Carrying(progress.record(Check::InpHash, Outcome::Pass)));
        }
        (Some(_), Some(_)) => "request body hash mismatch",
    };
    Err(progress.fail(Check::InpHash, reason))
}
