//! Feature levels: which commands and row fields the cluster may use (docs/design/compatibility.md).
//!
//! The level of the cluster is a row of the state, raised only by [`Command::RaiseFeatureLevel`]. A program supports a
//! range of levels and refuses a state outside of it.

use std::ops::RangeInclusive;

use super::command::Command;
use crate::cluster::Corrupt;

/// The oldest level that this program supports.
pub const OLDEST: u32 = 0;
/// The newest level that this program supports.
pub const NEWEST: u32 = if cfg!(feature = "level-0") { 0 } else { 1 };
/// The levels that this program supports.
pub const SUPPORTED: RangeInclusive<u32> = OLDEST..=NEWEST;

/// Checks that a program which supports `supported` can run on a state of this level.
///
/// # Errors
/// [`Corrupt`], with both and the remedy.
pub fn check(level: u32, supported: &RangeInclusive<u32>) -> Result<(), Corrupt> {
    let (oldest, newest, version) = (supported.start(), supported.end(), env!("CARGO_PKG_VERSION"));
    let what = format!(
        "the cluster has feature level {level}, and this program, version {version}, supports {oldest} to {newest}"
    );
    if level > *newest {
        return Err(Corrupt::newer(what));
    }
    if level < *oldest {
        return Err(Corrupt::older(what));
    }
    Ok(())
}

/// The level that the cluster needs before a command may be proposed.
#[must_use]
pub fn needed_by(command: &Command) -> u32 {
    match command {
        #[cfg(not(feature = "level-0"))]
        Command::RecordVersion(_) | Command::ImportLedger(_) | Command::SetPeer(_) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_level_outside_the_range_is_refused() {
        for (level, supported, reason) in [
            (0, 0..=0, None),
            (1, 0..=1, None),
            (2, 1..=2, None),
            (
                1,
                0..=0,
                Some(
                    "feature level 1, and this program, version 0.1.0, supports 0 to 0; this version is too old",
                ),
            ),
            (
                3,
                1..=2,
                Some("supports 1 to 2; this version is too old for the data directory: start the version"),
            ),
            (
                0,
                1..=2,
                Some(
                    "feature level 0, and this program, version 0.1.0, supports 1 to 2; this version is too new",
                ),
            ),
        ] {
            let checked = check(level, &supported).map_err(|refused| refused.to_string());
            match (&checked, reason) {
                (Ok(()), None) => {}
                (Err(text), Some(reason)) if text.contains(reason) => {}
                _ => panic!("{level} {supported:?}: {checked:?}"),
            }
        }
    }
}
