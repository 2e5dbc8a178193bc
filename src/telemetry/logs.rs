//! Logs: one line per event on standard error, written by a thread of its own.
//!
//! A reader that does not read costs lines, never time: the queue has a limit, what does not fit is
//! dropped and counted.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use super::Error;
use crate::limits;

/// What a log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// For people.
    Text,
}

/// The log writer. Dropping it writes what is queued, waiting for a blocked reader at most a second.
#[derive(Debug)]
#[must_use = "dropping it ends the log"]
pub struct Logs {
    _writer: WorkerGuard,
}

/// Lines that did not fit the queue. One per process, like the subscriber that it belongs to.
static LINES_DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines dropped since the process started.
pub(super) fn lines_dropped() -> u64 {
    LINES_DROPPED.get().map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Starts logging to standard error for the whole process. A second call changes nothing.
///
/// # Errors
/// [`Error::FilterMalformed`].
pub fn init_logs(format: LogFormat, filter: &str) -> Result<Logs, Error> {
    let filter = parse_filter(filter)?;
    let (lines, writer) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(limits::LOG_LINES_QUEUED_MAX)
        .thread_name("log-writer")
        .finish(std::io::stderr());
    let counter = lines.error_counter();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(lines);
    let started = match format {
        // The current span carries the request id and the trace; the list of all spans repeats it.
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
        LogFormat::Text => builder.try_init(),
    };
    if started.is_ok() {
        // Only the first call gets here.
        let _ = LINES_DROPPED.set(counter);
    }
    Ok(Logs { _writer: writer })
}

/// Whether `filter` can be given to [`init_logs`].
///
/// # Errors
/// [`Error::FilterMalformed`].
pub fn check_filter(filter: &str) -> Result<(), Error> {
    parse_filter(filter).map(drop)
}

fn parse_filter(filter: &str) -> Result<EnvFilter, Error> {
    EnvFilter::builder().parse(filter).map_err(|error| Error::FilterMalformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_start_of_the_logs_changes_nothing() {
        let first = init_logs(LogFormat::Json, "info").expect("first");
        let second = init_logs(LogFormat::Text, "debug").expect("second");
        tracing::info!("still written by the first");
        drop((first, second));
        assert_eq!(lines_dropped(), 0);
    }

    #[test]
    fn refuses_a_filter_that_is_none() {
        assert!(check_filter("info,openraft=warn").is_ok());
        for filter in ["info,=", "trust_fabric=loudly", "a=b=c"] {
            assert!(matches!(check_filter(filter), Err(Error::FilterMalformed(_))), "{filter}");
        }
    }
}
