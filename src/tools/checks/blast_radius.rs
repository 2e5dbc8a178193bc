//! Check 6: the token reaches no further than the tool allows.

use super::capabilities::Capable;
use super::{Check, Failure, Outcome, Progress};
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::state::command::Tool;

/// A token that reaches no further than the tool allows.
#[derive(Debug)]
pub struct Contained(Progress);

impl Contained {
    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// "Token's fits `max_blast_radius`"; skipped when the tool has none. A token that states none reaches
/// anywhere: it does not fit.
///
/// # Errors
/// The check failed.
pub fn blast_radius(capable: Capable, tool: &Tool, containment: &Containment) -> Result<Contained, Failure> {
    let progress = capable.into_progress();
    let Some(limit) = tool.max_blast_radius.as_deref() else {
        return Ok(Contained(progress.record(Check::BlastRadius, Outcome::Skip)));
    };
    match exceeds(progress.credential.blast_radius(), limit, containment) {
        Some(reason) => Err(progress.fail(Check::BlastRadius, reason)),
        None => Ok(Contained(progress.record(Check::BlastRadius, Outcome::Pass))),
    }
}

/// Why `value` does not fit `limit`; `None` if it does. What cannot be read does not fit.
fn exceeds(value: Option<&str>, limit: &str, containment: &Containment) -> Option<String> {
    let Some(value) = value else { return Some("token has no blast radius".to_owned()) };
    let Ok(value) = value.parse::<BlastRadius>() else {
        return Some("blast radius of the token is malformed".to_owned());
    };
    let fits = limit.parse().is_ok_and(|limit| containment.fits(&value, &limit));
    (!fits).then(|| format!("{value} exceeds {limit}"))
}
