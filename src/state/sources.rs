//! Leases on the ledgers of peer fabrics: for how long this node may decide by its copy of one.

use std::time::Duration;

use super::{LeaseProof, State};
pub use crate::cluster::{NoSourceLease, Source, SourceCall, SourceProof};

impl State {
    /// Begins a call to a peer, before it is sent; `None` unless this node leads.
    #[must_use]
    pub fn begin_source_call(&self) -> Option<SourceCall> {
        self.cluster.begin_source_call()
    }

    /// Records that everything in a complete response to `call` is applied on this node. `source` names the peer and the
    /// generation of the copy that holds it: that into which it was imported or, if there was nothing to import, that for
    /// which the call was sent. `length` is the time since the call for which its credentials may be accepted. False if
    /// the record has no effect, because this node no longer leads or a later call is recorded.
    #[must_use]
    pub fn record_source(&self, call: SourceCall, source: Source, length: Duration) -> bool {
        self.cluster.record_source(call, source, length)
    }

    /// Time since the last call of which this node knows that its response is applied.
    #[must_use]
    pub fn source_heard(&self, source: Source) -> Option<Duration> {
        self.cluster.source_heard(source)
    }

    /// The lease on a copy of a peer's ledger, without a wait. A request takes it once, after the lease on the state and
    /// before anything of the copy is read for it; afterwards it decides by the copy of that generation only. `own` is the
    /// longest time since the last call that the configuration of this node allows.
    ///
    /// # Errors
    /// [`NoSourceLease`].
    pub fn source_lease(
        &self,
        fresh: &LeaseProof,
        source: Source,
        own: Duration,
    ) -> Result<SourceProof, NoSourceLease> {
        self.cluster.source_lease(fresh, source, own)
    }
}
