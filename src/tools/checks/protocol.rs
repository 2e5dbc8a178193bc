//! Check 3: the tool takes the protocol of the call.

use super::revocation::Standing;
use super::{Check, Failure, Outcome, Progress};
use crate::state::command::Tool;

/// A call by a protocol that the tool takes.
#[derive(Debug)]
pub struct Spoken(Progress);

impl Spoken {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "Request `protocol` ∈ tool's `protocols`."
///
/// # Errors
/// The check failed.
pub fn protocol(standing: Standing, protocol: &str, tool: &Tool) -> Result<Spoken, Failure> {
    let progress = standing.into_progress();
    if !tool.protocols.iter().any(|taken| taken == protocol) {
        let reason = format!("protocol {protocol} not accepted by tool");
        return Err(progress.fail(Check::Protocol, reason));
    }
    Ok(Spoken(progress.record(Check::Protocol, Outcome::Pass)))
}
