//! The number of connections that the limit of open files allows. Called once, at start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits;

/// Why the node does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection fits beside the node's own files.
    #[error("the limit of open files is {limit}; it must be more than {needed} (ulimit -n)")]
    TooFewDescriptors {
        /// The hard limit of the process.
        limit: u64,
        /// Descriptors reserved for other uses.
        needed: usize,
    },
}

/// Raises the soft limit of open files to the hard one. Returns the number of connections that it allows:
/// [`limits::CONNECTIONS_MAX`], or fewer with a warning.
///
/// # Errors
/// [`Error::TooFewDescriptors`].
pub fn connections_max() -> Result<usize, Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "failed to raise the limit of open files");
            current
        }
    };
    let room = room_within(limit)?;
    if room < limits::CONNECTIONS_MAX {
        tracing::warn!(
            open_files = limit,
            connections = room,
            "the limit of open files allows fewer connections than the maximum"
        );
    }
    Ok(room)
}

/// `None` is no limit.
fn room_within(limit: Option<u64>) -> Result<usize, Error> {
    const NEEDED: usize = limits::DESCRIPTORS_RESERVED + LISTENERS * limits::CONNECTIONS_IN_RESERVE_MAX;
    /// Plain and TLS, each with a reserve.
    const LISTENERS: usize = 2;
    let Some(limit) = limit else { return Ok(limits::CONNECTIONS_MAX) };
    match usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(NEEDED) {
        0 => Err(Error::TooFewDescriptors { limit, needed: NEEDED }),
        room => Ok(room.min(limits::CONNECTIONS_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_the_limit_of_open_files() {
        for (limit, room) in [
            (None, Some(10_240)),
            (Some(u64::MAX), Some(10_240)),
            (Some(10_240 + 1152), Some(10_240)),
            (Some(10_240 + 1151), Some(10_239)),
            (Some(1153), Some(1)),
            (Some(1152), None),
            (Some(0), None),
        ] {
            assert_eq!(room_within(limit).ok(), room, "{limit:?}");
        }
    }

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        let room = connections_max().expect("room");
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(room_within(maximum).ok(), Some(room));
    }
}
