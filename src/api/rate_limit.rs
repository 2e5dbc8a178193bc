//! How often one caller may call: a rate for each identity, and for each address of those who have
//! none (RFC 6585 §4; draft-ietf-httpapi-ratelimit-headers-10).

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
    /// The key of an address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self::Address(network_of(address))
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

/// One request, counted.
#[derive(Debug)]
pub struct Taken {
    /// What is left after it.
    pub remaining: Remaining,
    /// Its place among the caller's requests under way, or 429.
    pub place: Result<Place, Error>,
}

/// A place among the requests of one caller; dropping it makes it free.
#[derive(Debug)]
pub struct Place(Arc<Account>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, SinceBoot, StateInformationMiddleware>;

#[derive(Debug)]
struct Account {
    limiter: Limiter,
    under_way: AtomicUsize,
}

/// The rate of every caller.
pub struct Rates {
    accounts: Cache<Key, Arc<Account>>,
    per_second: NonZeroU32,
    clock: Clock,
}

impl Rates {
    /// Everyone may call `per_second` times a second, in bursts of as much.
    #[must_use]
    pub fn new(per_second: u32, clock: Clock) -> Self {
        // The configuration says 1 or more.
        let per_second = NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN);
        let accounts = Cache::builder()
            .max_capacity(limits::RATES_REMEMBERED_MAX)
            // A second without a request restores the whole rate.
            .time_to_idle(limits::RATES_REMEMBERED_IDLE)
            .build();
        Self { accounts, per_second, clock }
    }

    /// Counts one request. It is refused with 429 if the caller's rate is used up, or if too many of
    /// its requests are under way.
    #[must_use]
    pub fn take(&self, key: Key) -> Taken {
        let quota = self.per_second.get();
        let account = self.accounts.get_with(key, || {
            let limiter = RateLimiter::direct_with_clock(
                Quota::per_second(self.per_second),
                SinceBoot(self.clock.clone()),
            );
            Arc::new(Account { limiter: limiter.with_middleware(), under_way: AtomicUsize::new(0) })
        });
        match account.limiter.check() {
            Ok(state) => {
                let remaining = Remaining { quota, requests: state.remaining_burst_capacity() };
                Taken { remaining, place: place_in(account) }
            }
            Err(until) => {
                let wait = until.wait_time_from(SinceBoot(self.clock.clone()).now());
                let secs = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
                let refused =
                    Error::too_many_requests("too many requests of this caller, try again later", secs);
                Taken { remaining: Remaining { quota, requests: 0 }, place: Err(refused) }
            }
        }
    }
}

fn place_in(account: Arc<Account>) -> Result<Place, Error> {
    let before = account.under_way.fetch_add(1, Ordering::Relaxed);
    let place = Place(account);
    if before < limits::REQUESTS_OF_CALLER_MAX {
        return Ok(place);
    }
    Err(Error::too_many_requests("too many requests of this caller at once, wait for their answers", 1))
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

    fn address(text: &str) -> Key {
        Key::of_address(text.parse().expect("address"))
    }

    #[test]
    fn the_fourth_request_of_a_second_is_refused_and_one_comes_back_with_time() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rates = rates(&clock);
        let take = || rates.take(address("192.0.2.1"));
        let left: Vec<_> = (0..4).map(|_| take()).map(|t| (t.remaining.requests, t.place.is_ok())).collect();
        assert_eq!(left, [(2, true), (1, true), (0, true), (0, false)]);
        clock.advance(Duration::from_millis(334));
        assert!(take().place.is_ok());
        assert!(take().place.is_err());
    }

    #[test]
    fn callers_do_not_use_up_each_others_rate() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rates = rates(&clock);
        for text in ["192.0.2.1", "192.0.2.2", "2001:db8:1::1", "2001:db8:1:1::1"] {
            assert_eq!(rates.take(address(text)).remaining.requests, 2, "{text}");
        }
        let caller = Key::Workload("spiffe://trust.example/a".parse().expect("id"));
        assert_eq!(rates.take(caller).remaining.requests, 2);
    }

    #[test]
    fn one_caller_has_only_so_many_requests_under_way_whatever_its_rate() {
        let clock = Clock::manual(Timestamp::from_secs(1_000));
        let rates = Rates::new(limits::REQUESTS_PER_SECOND_MAX, clock);
        let take = |text| rates.take(address(text)).place;
        let mut places: Vec<_> =
            (0..limits::REQUESTS_OF_CALLER_MAX).map(|_| take("192.0.2.1").expect("a place")).collect();
        assert!(take("192.0.2.1").is_err());
        assert!(take("192.0.2.2").is_ok(), "another's are its own");
        places.pop();
        assert!(take("192.0.2.1").is_ok(), "an answered one makes room");
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_caller_and_a_mapped_ipv4_address_is_itself() {
        assert_eq!(address("2001:db8:1:2::1"), address("2001:db8:1:2:ffff::9"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
    }

    #[test]
    fn no_more_callers_are_remembered_than_the_limit() {
        let rates = rates(&Clock::manual(Timestamp::from_secs(1_000)));
        for at in 0..u32::try_from(limits::RATES_REMEMBERED_MAX).expect("small") + 10_000 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(at));
            assert!(rates.take(Key::of_address(address)).place.is_ok(), "{address}");
        }
        rates.accounts.run_pending_tasks();
        let remembered = rates.accounts.entry_count();
        assert!((1..=limits::RATES_REMEMBERED_MAX).contains(&remembered), "{remembered}");
    }
}
