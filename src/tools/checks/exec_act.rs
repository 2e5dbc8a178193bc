//! Check 7: the operation that the token was issued for is one of the tool's.

use super::blast_radius::Contained;
use super::{Check, Failure, Outcome, Progress};
use crate::state::command::Tool;

/// A token for an operation of the tool.
#[derive(Debug)]
pub struct Operating(Progress);

impl Operating {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "Present and in `allowed_operations`"; skipped when not `requires_execution`, or the list is empty.
///
/// # Errors
/// The check failed.
pub fn exec_act(contained: Contained, tool: &Tool) -> Result<Operating, Failure> {
    let progress = contained.into_progress();
    if !tool.requires_execution || tool.allowed_operations.is_empty() {
        return Ok(Operating(progress.record(Check::ExecAct, Outcome::Skip)));
    }
    let claim = progress.credential.execution().and_then(|execution| execution.exec_act.as_ref());
    let Some(exec_act) = claim else {
        return Err(progress.fail(Check::ExecAct, "exec_act missing"));
    };
    if !tool.allowed_operations.contains(exec_act) {
        let reason = format!("operation {exec_act} not allowed");
        return Err(progress.fail(Check::ExecAct, reason));
    }
    Ok(Operating(progress.record(Check::ExecAct, Outcome::Pass)))
}
