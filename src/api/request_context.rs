//! What the edge learns of a request on its way in, for the headers of its answer and its line in
//! the log. Nobody decides by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::rate_limit::{Place, Remaining};
use crate::id::WorkloadId;

/// Notes on one request; caller and rate are written once at most.
#[derive(Debug, Default)]
pub struct Notes {
    caller: OnceLock<WorkloadId>,
    rate: OnceLock<Remaining>,
    places: Mutex<Vec<Place>>,
    is_shed: AtomicBool,
}

impl Notes {
    /// Who calls.
    pub fn set_caller(&self, id: WorkloadId) {
        self.caller.set(id).ok();
    }

    /// Who calls, if somebody said.
    pub fn caller(&self) -> Option<&str> {
        self.caller.get().map(WorkloadId::as_str)
    }

    /// Keeps a place among a caller's requests until the request is answered.
    pub fn hold(&self, place: Place) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    /// It was refused for overload.
    pub fn set_shed(&self) {
        self.is_shed.store(true, Ordering::Relaxed);
    }

    /// Whether it was refused for overload: then a line in the log would make the overload worse.
    pub fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }

    /// What is left of the caller's rate.
    pub fn set_rate(&self, rate: Remaining) {
        self.rate.set(rate).ok();
    }

    /// What is left of the caller's rate, if it was counted.
    pub fn rate(&self) -> Option<&Remaining> {
        self.rate.get()
    }
}
