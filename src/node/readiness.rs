//! Logs the reasons for which a node is not ready: on every change, and at intervals.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::Front;
use crate::clock::Clock;
use crate::limits;

/// Logs readiness until the shutdown.
pub(super) async fn tell(front: Front, clock: Clock, shutdown: CancellationToken) {
    let mut said = Said::default();
    loop {
        let (missing, waits_for) = (front.missing(), front.waits_for());
        if said.is_to_be_said(&missing, waits_for.as_deref(), clock.boot()) {
            if missing.is_empty() {
                tracing::info!("this node is ready");
            } else if front.has_begun() {
                tracing::warn!(missing = missing.join(", "), "this node is not ready");
            } else {
                tracing::info!(missing = missing.join(", "), waits_for, "this node is not ready: it starts");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(limits::READINESS_LOOK_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// The last logged reasons and their time.
#[derive(Default)]
struct Said(Option<(Vec<&'static str>, Option<String>, Duration)>);

impl Said {
    /// Whether the reasons differ from those logged last, or were logged long ago.
    fn is_to_be_said(&mut self, missing: &[&'static str], waits_for: Option<&str>, now: Duration) -> bool {
        let is_said = self.0.as_ref().is_some_and(|(said, of, at)| {
            let is_same = said == missing && of.as_deref() == waits_for;
            is_same && (missing.is_empty() || now < *at + limits::NOT_READY_SAID_INTERVAL)
        });
        if !is_said {
            self.0 = Some((missing.to_vec(), waits_for.map(str::to_owned), now));
        }
        !is_said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_logged_on_change_and_at_intervals() {
        let (mut said, begun) = (Said::default(), Duration::from_secs(100));
        let almost = (begun + limits::NOT_READY_SAID_INTERVAL).saturating_sub(Duration::from_nanos(1));
        let again = begun + limits::NOT_READY_SAID_INTERVAL;
        assert!(said.is_to_be_said(&["members"], None, begun));
        assert!(!said.is_to_be_said(&["members"], None, almost));
        assert!(said.is_to_be_said(&["members"], None, again));
        assert!(said.is_to_be_said(&["members"], Some("node 1"), again), "awaited node");
        assert!(said.is_to_be_said(&["policy"], None, again), "another reason");
        assert!(said.is_to_be_said(&[], None, again), "ready");
        assert!(!said.is_to_be_said(&[], None, 2 * again), "ready, once");
        assert!(said.is_to_be_said(&["leader"], None, 2 * again), "not ready any more");
    }
}
