//! Logs: one line per event on standard error, written by a thread of its own.
//!
//! A slow consumer of standard error costs lines, never time: the queue is bounded, and dropped lines are counted.

use std::io::{BufWriter, Write};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use super::Error;
use crate::limits;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Human-readable.
    Text,
}

/// The log writer. Dropping it writes the queued lines, for at most a second.
#[derive(Debug)]
#[must_use = "dropping it ends the log"]
pub struct Logs {
    _writer: WorkerGuard,
}

/// Dropped lines. One counter per process, like the subscriber.
static LINES_DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Number of lines dropped since process start.
pub(super) fn lines_dropped() -> u64 {
    LINES_DROPPED.get().map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Starts logging to standard error for the whole process. A second call has no effect.
///
/// # Errors
/// [`Error::FilterMalformed`].
pub fn init_logs(format: LogFormat, filter: &str) -> Result<Logs, Error> {
    let filter = parse_filter(filter)?;
    // The thread flushes when its queue is empty, so a busy node writes several lines at once.
    let (lines, writer) = queue(BufWriter::with_capacity(limits::LOG_BUFFER_BYTES, std::io::stderr()));
    let counter = lines.error_counter();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(lines);
    let started = match format {
        // The current span has the request id and the trace; the list of spans would repeat them.
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
        LogFormat::Text => builder.try_init(),
    };
    if started.is_ok() {
        // Only the first call succeeds.
        let _ = LINES_DROPPED.set(counter);
    }
    Ok(Logs { _writer: writer })
}

/// The queue before `reader`, and the thread that drains it.
fn queue<W: Write + Send + 'static>(reader: W) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(limits::LOG_LINES_QUEUED_MAX)
        .thread_name("log-lines")
        .finish(reader)
}

/// Validates a filter for [`init_logs`].
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
    use std::io;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn second_start_has_no_effect() {
        let first = init_logs(LogFormat::Json, "info").expect("first");
        let second = init_logs(LogFormat::Text, "debug").expect("second");
        tracing::info!("still written by the first");
        drop((first, second));
        assert_eq!(lines_dropped(), 0);
    }

    #[test]
    fn malformed_filter_is_refused() {
        assert!(check_filter("info,openraft=error").is_ok());
        for filter in ["info,=", "trust_fabric=loudly", "a=b=c"] {
            assert!(matches!(check_filter(filter), Err(Error::FilterMalformed(_))), "{filter}");
        }
    }

    /// A writer that reports each line and blocks until it is released.
    struct Stuck {
        begun: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // After the test the channels are closed, and nothing blocks.
            let _ = self.begun.send(());
            let _ = self.go_on.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        let ((begun, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        let (mut lines, _writer) = queue(Stuck { begun, go_on: may_go_on });
        let dropped = lines.error_counter();
        lines.write_all(b"taken from the queue").expect("queued");
        has_begun.recv().expect("the reader has it, and is stuck");
        for _ in 0..limits::LOG_LINES_QUEUED_MAX {
            lines.write_all(b"queued").expect("queued");
        }
        assert_eq!(dropped.dropped_lines(), 0, "at the limit");
        lines.write_all(b"dropped").expect("never an error");
        assert_eq!(dropped.dropped_lines(), 1);
        drop(go_on);
    }
}
