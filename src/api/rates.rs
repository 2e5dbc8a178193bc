//! How often one caller may call: a rate for each identity, and for each address of those who have
//! none (RFC 6585 §4; draft-ietf-httpapi-ratelimit-headers-10).

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use moka::sync::Cache;

use super::error::Error;
use crate::clock::Clock;
use crate::id::WorkloadId;
use crate::limits;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An authenticated caller's.
    Workload(WorkloadId),
    /// Those of an address without an authenticated caller.
    Address(IpAddr),
}

impl Key {
    /// The key of an address. One IPv6 customer has a /64 (RFC 6177), so that is what counts.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// What a caller has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Requests per second.
    pub quota: u32,
    /// Requests that may be sent at once.
    pub requests: u32,
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, SinceBoot, StateInformationMiddleware>;

/// The rate of every caller.
pub struct Rates {
    limiters: Cache<Key, Arc<Limiter>>,
    per_second: NonZeroU32,
    clock: Clock,
}

impl Rates {
    /// Everyone may call `per_second` times a second, in bursts of as much.
    #[must_use]
    pub fn new(per_second: u32, clock: Clock) -> Self {
        // The configuration says 1 or more.
        let per_second = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
        let limiters = Cache::builder()
            .max_capacity(limits::RATES_REMEMBERED_MAX)
            // A second without a request restores the whole rate.
            .time_to_idle(Duration::from_secs(60))
            .build();
        Self { limiters, per_second, clock }
    }

    /// Counts one request.
    ///
    /// # Errors
    /// 429 if the rate is used up.
    pub fn take(&self, key: Key) -> Result<Remaining, Error> {
        let quota = self.per_second.get();
        let limiter = self.limiters.get_with(key, || {
            let limiter = RateLimiter::direct_with_clock(
                Quota::per_second(self.per_second),
                SinceBoot(self.clock.clone()),
            );
            Arc::new(limiter.with_middleware())
        });
        match limiter.check() {
            Ok(state) => Ok(Remaining { quota, requests: state.remaining_burst_capacity() }),
            Err(until) => {
                let wait = until.wait_time_from(SinceBoot(self.clock.clone()).now());
                Err(Error::too_many_requests(
                    u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1),
                ))
            }
        }
    }
}

/// Our clock, as the library asks for it.
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

    fn rates(clock: &Clock) -> Rates {
        Rates::new(3, clock.clone())
    }

    #[test]
    fn the_fourth_request_of_a_second_is_refused_and_one_comes_back_with_time() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rates = rates(&clock);
        let key = Key::of_address("192.0.2.1".parse().expect("address"));
        let left: Vec<_> = (0..3).map(|_| rates.take(key.clone()).expect("free").requests).collect();
        assert_eq!(left, [2, 1, 0]);
        assert!(rates.take(key.clone()).is_err());
        clock.advance(Duration::from_millis(334));
        assert!(rates.take(key.clone()).is_ok());
        assert!(rates.take(key).is_err());
    }

    #[test]
    fn callers_do_not_use_up_each_others_rate() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rates = rates(&clock);
        let keys = ["192.0.2.1", "192.0.2.2", "2001:db8:1::1", "2001:db8:1:1::1"];
        let keys = keys.map(|text| Key::of_address(text.parse().expect("address")));
        for key in &keys {
            assert_eq!(rates.take(key.clone()).expect("free").requests, 2, "{key:?}");
        }
        let caller = Key::Workload("spiffe://trust.example/a".parse().expect("id"));
        assert_eq!(rates.take(caller).expect("free").requests, 2);
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_caller_and_a_mapped_ipv4_address_is_itself() {
        let key = |text: &str| Key::of_address(text.parse().expect("address"));
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
    }
}
