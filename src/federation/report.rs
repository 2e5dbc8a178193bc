//! The puller's findings about each peer, while this node leads.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

/// The last calls to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The endpoint of the last call.
    pub endpoint: String,
    /// Milliseconds by which the peer's clock is ahead of ours.
    pub clock_offset_millis: Option<i64>,
    /// Time of the last call without news beyond that for which the peer held it.
    pub round_trip: Option<Duration>,
    /// The reason why the last call had no effect.
    pub error: Option<String>,
}

/// Reports by issuer. Empty on a node that does not lead.
#[derive(Debug, Default)]
pub struct Reports(Mutex<BTreeMap<String, Report>>);

impl Reports {
    /// The report about a peer.
    pub fn of(&self, issuer: &str) -> Option<Report> {
        self.0.lock().get(issuer).cloned()
    }

    /// Changes the report about a peer.
    pub(super) fn change(&self, issuer: &str, change: impl FnOnce(&mut Report)) {
        change(self.0.lock().entry(issuer.to_owned()).or_default());
    }

    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
