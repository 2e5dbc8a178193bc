//! Rate limits: one for each identity, and one for each address of anonymous callers (RFC 6585 §4;
//! draft-ietf-httpapi-ratelimit-headers-10).

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use moka::sync::Cache;

use super::connect_info::network_of;
use super::error::{Error, Refusal};
use crate::clock::Clock;
use crate::id::WorkloadId;
use crate::limits;

/// The unit of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An authenticated caller.
    Workload(WorkloadId),
    /// The nodes of a peer fabric, by its name.
    Peer(String),
    /// An address, for requests without an authenticated caller, and for other workloads of a peer fabric.
    Address(IpAddr),
}

impl Key {
    /// The unit of an address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self::Address(network_of(address))
    }
}

/// The remainder of a caller's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Requests per second.
    pub quota: u32,
    /// Requests that may be sent now.
    pub requests: u32,
}

/// The result for one request.
#[derive(Debug)]
pub struct RateDecision {
    /// The remainder after it.
    pub remaining: Remaining,
    /// Its permit among the caller's requests in flight, or 429.
    pub permit: Result<RequestPermit, Error>,
}

/// Permit for one request of a caller.
#[derive(Debug)]
pub struct RequestPermit(Arc<Account>);

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, SinceBoot, StateInformationMiddleware>;

#[derive(Debug)]
struct Account {
    limiter: Limiter,
    in_flight: AtomicUsize,
}

/// The rate limits of every caller.
pub struct RateLimits {
    accounts: Cache<Key, Arc<Account>>,
    per_second: NonZeroU32,
    clock: Clock,
}

impl RateLimits {
    /// Each caller may send `per_second` requests a second, and bursts of the same size.
    #[must_use]
    pub fn new(per_second: u32, clock: Clock) -> Self {
        // The configuration is 1 or more.
        let per_second = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
        let accounts = Cache::builder()
            .max_capacity(limits::RATE_LIMITED_CALLERS_MAX)
            // A second without a request restores the whole rate.
            .time_to_idle(limits::RATE_LIMIT_RETENTION)
            .build();
        Self { accounts, per_second, clock }
    }

    /// Counts one request. 429 if the caller's rate is used up, or too many of its requests are in flight.
    #[must_use]
    pub fn acquire(&self, key: Key) -> RateDecision {
        let quota = self.per_second.get();
        let account = self.accounts.get_with(key, || {
            let limiter = RateLimiter::direct_with_clock(
                Quota::per_second(self.per_second),
                SinceBoot(self.clock.clone()),
            );
            Arc::new(Account { limiter: limiter.with_middleware(), in_flight: AtomicUsize::new(0) })
        });
        match account.limiter.check() {
            Ok(state) => {
                let remaining = Remaining { quota, requests: state.remaining_burst_capacity() };
                RateDecision { remaining, permit: permit_of(account) }
            }
            Err(until) => {
                let wait = until.wait_time_from(SinceBoot(self.clock.clone()).now());
                let secs = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
                let refused = too_many("too many requests of this caller, retry later", secs);
                RateDecision { remaining: Remaining { quota, requests: 0 }, permit: Err(refused) }
            }
        }
    }
}

fn permit_of(account: Arc<Account>) -> Result<RequestPermit, Error> {
    let before = account.in_flight.fetch_add(1, Ordering::Relaxed);
    let permit = RequestPermit(account);
    if before < limits::REQUESTS_PER_CALLER_MAX {
        return Ok(permit);
    }
    Err(too_many("too many concurrent requests of this caller", 1))
}

fn too_many(text: &str, retry_after_secs: u32) -> Error {
    Error::new(Refusal::TooMany { retry_after_secs }, text)
}

/// Our clock for the library.
#[derive(Clone, Debug)]
struct SinceBoot(Clock);

impl governor::clock::Clock for SinceBoot {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.boot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn rate_limits(clock: &Clock) -> RateLimits {
        RateLimits::new(3, clock.clone())
    }

    fn address(text: &str) -> Key {
        Key::of_address(text.parse().expect("address"))
    }

    #[test]
    fn request_beyond_the_rate_is_refused_until_it_refills() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rate_limits = rate_limits(&clock);
        let acquire = || rate_limits.acquire(address("192.0.2.1"));
        let left: Vec<_> =
            (0..4).map(|_| acquire()).map(|t| (t.remaining.requests, t.permit.is_ok())).collect();
        assert_eq!(left, [(2, true), (1, true), (0, true), (0, false)]);
        clock.advance(Duration::from_millis(334));
        assert!(acquire().permit.is_ok());
        assert!(acquire().permit.is_err());
    }

    #[test]
    fn rate_limits_are_per_caller() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rate_limits = rate_limits(&clock);
        for text in ["192.0.2.1", "192.0.2.2", "2001:db8:1::1", "2001:db8:1:1::1"] {
            assert_eq!(rate_limits.acquire(address(text)).remaining.requests, 2, "{text}");
        }
        let caller = Key::Workload("spiffe://trust.example/a".parse().expect("id"));
        assert_eq!(rate_limits.acquire(caller).remaining.requests, 2);
    }

    #[test]
    fn requests_in_flight_per_caller_are_limited() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rate_limits = RateLimits::new(limits::REQUESTS_PER_SECOND_MAX, clock);
        let acquire = |text| rate_limits.acquire(address(text)).permit;
        let mut permits: Vec<_> =
            (0..limits::REQUESTS_PER_CALLER_MAX).map(|_| acquire("192.0.2.1").expect("a permit")).collect();
        assert!(acquire("192.0.2.1").is_err());
        assert!(acquire("192.0.2.2").is_ok(), "another's are its own");
        permits.pop();
        assert!(acquire("192.0.2.1").is_ok(), "an answered one makes room");
    }

    #[test]
    fn ipv6_network_is_one_caller_and_mapped_ipv4_its_own() {
        assert_eq!(address("2001:db8:1:2::1"), address("2001:db8:1:2:ffff::9"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
    }

    #[test]
    fn retained_callers_are_bounded() {
        let rate_limits = rate_limits(&Clock::manual(Timestamp::from_secs(1_000)));
        for at in 0..u32::try_from(limits::RATE_LIMITED_CALLERS_MAX).expect("small") + 10_000 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(at));
            assert!(rate_limits.acquire(Key::of_address(address)).permit.is_ok(), "{address}");
        }
        rate_limits.accounts.run_pending_tasks();
        let remembered = rate_limits.accounts.entry_count();
        assert!((1..=limits::RATE_LIMITED_CALLERS_MAX).contains(&remembered), "{remembered}");
    }
}
