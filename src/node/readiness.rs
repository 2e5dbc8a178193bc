//! The log says why a node is not ready, at once and again while that lasts: a node that waits says for whom.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::Front;
use crate::clock::Clock;
use crate::limits;

/// Says what is missing until the shutdown.
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

/// What was said last, and when.
#[derive(Default)]
struct Said(Option<(Vec<&'static str>, Option<String>, Duration)>);

impl Said {
    /// Whether what is missing now, and who is waited for, is another than was said last, or was said long ago.
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
    fn what_is_missing_is_said_at_once_and_again() {
        let (mut said, begun) = (Said::default(), Duration::from_secs(100));
        let almost = (begun + limits::NOT_READY_SAID_INTERVAL).saturating_sub(Duration::from_nanos(1));
        let again = begun + limits::NOT_READY_SAID_INTERVAL;
        assert!(said.is_to_be_said(&["members"], None, begun));
        assert!(!said.is_to_be_said(&["members"], None, almost));
        assert!(said.is_to_be_said(&["members"], None, again));
        assert!(said.is_to_be_said(&["members"], Some("node 1"), again), "for whom it waits");
        assert!(said.is_to_be_said(&["policy"], None, again), "something else");
        assert!(said.is_to_be_said(&[], None, again), "that it is ready");
        assert!(!said.is_to_be_said(&[], None, 2 * again), "once");
        assert!(said.is_to_be_said(&["leader"], None, 2 * again), "and that it is not any more");
    }
}
