//! Logs the reasons for which a node is not ready: on every change, and at intervals.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::Front;
use crate::clock::Clock;
use crate::limits;

/// Logs readiness until the shutdown.
pub(super) async fn log_readiness(front: Front, clock: Clock, shutdown: CancellationToken) {
    let mut last = LastLogged::default();
    loop {
        let (missing, waits_for) = (front.missing(), front.waits_for());
        if last.is_due(&missing, waits_for.as_deref(), clock.boot()) {
            if missing.is_empty() {
                tracing::info!("this node is ready");
            } else if front.has_begun() {
                tracing::warn!(missing = missing.join(", "), "this node is not ready");
            } else {
                let missing = missing.join(", ");
                tracing::info!(missing, waits_for, "this node is not ready: it is starting");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(limits::READINESS_CHECK_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// The last logged reasons and their time.
#[derive(Default)]
struct LastLogged(Option<(Vec<&'static str>, Option<String>, Duration)>);

impl LastLogged {
    /// Whether the reasons differ from those logged last, or were logged long ago.
    fn is_due(&mut self, missing: &[&'static str], waits_for: Option<&str>, now: Duration) -> bool {
        let is_logged = self.0.as_ref().is_some_and(|(last, of, at)| {
            let is_same = last == missing && of.as_deref() == waits_for;
            is_same && (missing.is_empty() || now < *at + limits::NOT_READY_LOG_INTERVAL)
        });
        if !is_logged {
            self.0 = Some((missing.to_vec(), waits_for.map(str::to_owned), now));
        }
        !is_logged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_logged_on_change_and_at_intervals() {
        let (mut last, begun) = (LastLogged::default(), Duration::from_secs(100));
        let almost = (begun + limits::NOT_READY_LOG_INTERVAL).saturating_sub(Duration::from_nanos(1));
        let again = begun + limits::NOT_READY_LOG_INTERVAL;
        assert!(last.is_due(&["members"], None, begun));
        assert!(!last.is_due(&["members"], None, almost));
        assert!(last.is_due(&["members"], None, again));
        assert!(last.is_due(&["members"], Some("node 1"), again), "awaited node");
        assert!(last.is_due(&["policy"], None, again), "another reason");
        assert!(last.is_due(&[], None, again), "ready");
        assert!(!last.is_due(&[], None, 2 * again), "ready, once");
        assert!(last.is_due(&["leader"], None, 2 * again), "not ready any more");
    }
}
