//! What the node says about itself: logs, metrics, and the two names that tie a request's lines
//! together.
//!
//! Nothing here knows what the product does: callers say what happened. No token, no credential and
//! no header of a request is ever written; labels are from small fixed sets, never a subject, tool,
//! agent, `jti` or issuer (contract §4, `GET /metrics`).

mod logging;
mod metrics;
mod register;
mod trace;

pub use self::logging::{LogFormat, Logs, check_filter, init_logs};
pub use self::metrics::{Counted, Metrics};
pub use self::trace::TraceContext;

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not a list of levels and `target=level` directives.
    #[error("log filter must be levels such as \"info\" or \"info,openraft=error\": {0}")]
    FilterMalformed(String),
    /// A metric was described wrongly. A mistake in this file's own table, found by its tests.
    #[error("metric could not be registered: {0}")]
    Metric(#[from] prometheus::Error),
}
