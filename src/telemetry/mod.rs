//! Logs, metrics and trace context.
//!
//! No token, credential or request header is written. Labels have small fixed sets of values, never a subject, tool,
//! agent, `jti` or issuer (contract §4).

mod failure_log;
mod logging;
mod metrics;
mod trace;

pub(crate) use self::failure_log::FailureLog;
pub(crate) use self::logging::{LogFormat, check_filter, init_logs};
pub(crate) use self::metrics::{GaugeGuard, Metrics, PeerSample, TlsValidity, Validity};
pub(crate) use self::trace::TraceContext;

/// Errors of telemetry at start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not a list of levels and `target=level` directives.
    #[error("log filter must be levels such as \"info\" or \"info,openraft=error\": {0}")]
    FilterMalformed(String),
    /// A metric is malformed or registered twice; the tests rule it out.
    #[error("metric could not be registered: {0}")]
    Metric(#[from] prometheus::Error),
}
