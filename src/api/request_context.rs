//! The edge's record of a request, for the headers of its response and its log line. No decision depends on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::rate_limit::{Remaining, RequestPermit};
use crate::id::WorkloadId;

/// The record of one request; caller and rate are set at most once.
#[derive(Debug, Default)]
pub struct RequestContext {
    caller: OnceLock<WorkloadId>,
    rate: OnceLock<Remaining>,
    permits: Mutex<Vec<RequestPermit>>,
    is_shed: AtomicBool,
}

impl RequestContext {
    /// Sets the authenticated caller.
    pub fn set_caller(&self, id: WorkloadId) {
        self.caller.set(id).ok();
    }

    /// The authenticated caller.
    pub fn caller(&self) -> Option<&str> {
        self.caller.get().map(WorkloadId::as_str)
    }

    /// Holds a permit until the request is answered.
    pub fn hold(&self, permit: RequestPermit) {
        self.permits.lock().push(permit);
    }

    /// Marks it as shed.
    pub fn set_shed(&self) {
        self.is_shed.store(true, Ordering::Relaxed);
    }

    /// Whether it was shed; a log line would then add to the overload.
    pub fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }

    /// Sets the remainder of the caller's rate.
    pub fn set_rate(&self, rate: Remaining) {
        self.rate.set(rate).ok();
    }

    /// The remainder of the caller's rate, if one applied.
    pub fn rate(&self) -> Option<&Remaining> {
        self.rate.get()
    }
}
