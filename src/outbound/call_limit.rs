//! Limits of concurrent calls: per owner and host, per owner, per host, and in all.
//!
//! A call waits for the narrowest limit first, and holds no permit of a wider one meanwhile: an unresponsive host, or an
//! owner of many calls, uses its own permits only.

use crate::limiter::{KeyedLimiter, KeyedPermit};
use crate::limits;

/// Limits of one kind of call. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub(super) struct CallLimiter {
    owners_at_host: KeyedLimiter<(String, String)>,
    owners: KeyedLimiter<String>,
    hosts: KeyedLimiter<String>,
}

/// Permit of one call.
#[derive(Debug)]
#[must_use = "dropping it releases the permit"]
pub(super) struct CallPermit {
    _host: KeyedPermit<String>,
    _owner: Option<KeyedPermit<String>>,
    _owner_at_host: Option<KeyedPermit<(String, String)>>,
}

impl CallLimiter {
    pub(super) fn new() -> Self {
        Self {
            owners_at_host: KeyedLimiter::per_key(limits::PUSHES_PER_CALLER_AND_HOST_MAX),
            owners: KeyedLimiter::per_key(limits::PUSHES_PER_CALLER_MAX),
            hosts: KeyedLimiter::new(limits::OUTBOUND_CALLS_PER_HOST_MAX, limits::OUTBOUND_CALLS_MAX),
        }
    }

    /// A permit for a call to `host`, as soon as one is free; waiters are served in order. `None` never occurs.
    pub(super) async fn acquire(&self, host: String) -> Option<CallPermit> {
        let host = self.hosts.acquire(Some(host)).await?;
        Some(CallPermit { _host: host, _owner: None, _owner_at_host: None })
    }

    /// A permit for a call to `host` on behalf of `owner`.
    pub(super) async fn acquire_for(&self, owner: &str, host: String) -> Option<CallPermit> {
        let at_host = self.owners_at_host.acquire(Some((owner.to_owned(), host.clone()))).await?;
        let owner = self.owners.acquire(Some(owner.to_owned())).await?;
        let host = self.hosts.acquire(Some(host)).await?;
        Some(CallPermit { _host: host, _owner: Some(owner), _owner_at_host: Some(at_host) })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn waiter_for_its_owner_holds_no_permit_of_the_host() {
        let limiter = CallLimiter::new();
        let acquire = |owner: &'static str| limiter.acquire_for(owner, "a".to_owned());
        let held: Vec<_> = (0..limits::PUSHES_PER_CALLER_AND_HOST_MAX)
            .map(|_| acquire("greedy").now_or_never().flatten().expect("permit"))
            .collect();
        let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(acquire("greedy"))).collect();
        assert!(waiting.iter_mut().all(|permit| permit.now_or_never().is_none()));
        assert!(acquire("other").now_or_never().flatten().is_some(), "the host has a free permit");
        drop(held);
        assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
    }

    #[test]
    fn calls_are_limited_per_host_and_in_all() {
        let limiter = CallLimiter::new();
        let mut held = Vec::new();
        for call in 0..limits::OUTBOUND_CALLS_MAX {
            let host = (call / limits::OUTBOUND_CALLS_PER_HOST_MAX).to_string();
            held.push(limiter.acquire(host).now_or_never().flatten().expect("permit"));
        }
        assert!(limiter.acquire("other".to_owned()).now_or_never().is_none(), "the limit in all");
        held.pop();
        assert!(limiter.acquire("0".to_owned()).now_or_never().is_none(), "the limit of the host");
        assert!(limiter.acquire("other".to_owned()).now_or_never().flatten().is_some());
    }
}
