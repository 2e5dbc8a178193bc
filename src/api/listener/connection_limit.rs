//! Limits of open connections: in all, per address and per identity.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::connect_info::network_of;
use crate::id::WorkloadId;
use crate::limiter::{KeyedLimiter, KeyedPermit};
use crate::limits;

/// Configurable limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Maximum open connections from one address; of IPv6, from one /64.
    pub per_address: usize,
    /// Maximum open connections with one client certificate's identity.
    pub per_identity: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            per_address: limits::CONNECTIONS_PER_ADDRESS_MAX,
            per_identity: limits::CONNECTIONS_PER_IDENTITY_MAX,
        }
    }
}

/// Why a connection gets no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Error {
    /// The total and the reserve are used up.
    #[error("too many connections")]
    Full,
    /// The limit of its address.
    #[error("too many connections from this address")]
    Address,
    /// The limit of its identity.
    #[error("too many connections with this identity")]
    Identity,
}

/// The connections of all listeners of a node. Clones share their counts.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    by_network: KeyedLimiter<IpAddr>,
    by_identity: KeyedLimiter<WorkloadId>,
    regular: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
}

impl ConnectionLimiter {
    /// `connections_max` connections, and the reserve.
    #[must_use]
    pub fn new(caps: Caps, connections_max: usize) -> Self {
        Self {
            by_network: KeyedLimiter::per_key(caps.per_address),
            by_identity: KeyedLimiter::per_key(caps.per_identity),
            regular: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            reserve: reserve(),
        }
    }

    /// The same limits, with another reserve.
    #[must_use]
    pub fn with_own_reserve(&self) -> Self {
        Self { reserve: reserve(), ..self.clone() }
    }

    /// A permit for a connection from `address`: regular, else of the reserve.
    ///
    /// # Errors
    /// [`Error::Address`] or [`Error::Full`].
    pub fn acquire(&self, address: IpAddr) -> Result<ConnectionPermit, Error> {
        let network = self.by_network.try_acquire(Some(network_of(address))).map_err(|_| Error::Address)?;
        let (connection, is_in_reserve) = match Arc::clone(&self.regular).try_acquire_owned() {
            Ok(regular) => (regular, false),
            Err(_) => (Arc::clone(&self.reserve).try_acquire_owned().map_err(|_| Error::Full)?, true),
        };
        Ok(ConnectionPermit { _network: network, _connection: connection, is_in_reserve })
    }

    /// A further permit for a connection with this identity.
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub(crate) fn acquire_for(&self, identity: &WorkloadId) -> Result<IdentityPermit, Error> {
        self.by_identity.try_acquire(Some(identity.clone())).map_err(|_| Error::Identity)
    }
}

fn reserve() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(limits::CONNECTIONS_IN_RESERVE_MAX))
}

pub(crate) type IdentityPermit = KeyedPermit<WorkloadId>;

/// Permit of one connection.
#[derive(Debug)]
#[must_use = "dropping it releases the permit"]
pub struct ConnectionPermit {
    _network: KeyedPermit<IpAddr>,
    _connection: OwnedSemaphorePermit,
    is_in_reserve: bool,
}

impl ConnectionPermit {
    #[must_use]
    pub const fn is_in_reserve(&self) -> bool {
        self.is_in_reserve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn limiter(per_address: usize, connections_max: usize) -> ConnectionLimiter {
        ConnectionLimiter::new(Caps { per_address, per_identity: 2 }, connections_max)
    }

    #[test]
    fn connections_per_address_are_limited() {
        let limiter = limiter(2, 100);
        let first = limiter.acquire(A).expect("first");
        let _second = limiter.acquire(A).expect("second");
        assert_eq!(limiter.acquire(A).err(), Some(Error::Address));
        let _other = limiter.acquire(B).expect("another address");
        drop(first);
        let _again = limiter.acquire(A).expect("freed");
        assert_eq!(limiter.acquire(A).err(), Some(Error::Address));
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let limiter = limiter(1, 100);
        let _permit = limiter.acquire("2001:db8:0:1::1".parse().expect("address")).expect("first");
        let neighbour = "2001:db8:0:1:ffff::2".parse().expect("address");
        assert_eq!(limiter.acquire(neighbour).err(), Some(Error::Address));
        let _other = limiter.acquire("2001:db8:0:2::1".parse().expect("address")).expect("another /64");
    }

    #[test]
    fn mapped_ipv4_address_counts_as_ipv4() {
        let limiter = limiter(1, 100);
        let _permit = limiter.acquire(A).expect("first");
        let mapped = "::ffff:192.0.2.1".parse().expect("address");
        assert_eq!(limiter.acquire(mapped).err(), Some(Error::Address));
        let other = "::ffff:192.0.2.2".parse().expect("address");
        let _other = limiter.acquire(other).expect("mapped addresses are not one /64");
    }

    #[test]
    fn reserve_is_used_beyond_the_regular_permits() {
        let limiter = limiter(1000, 1);
        let regular = limiter.acquire(A).expect("regular");
        assert!(!regular.is_in_reserve());
        let reserve: Vec<ConnectionPermit> =
            (0..limits::CONNECTIONS_IN_RESERVE_MAX).map(|_| limiter.acquire(B).expect("reserve")).collect();
        assert!(reserve.iter().all(ConnectionPermit::is_in_reserve));
        assert_eq!(limiter.acquire(A).err(), Some(Error::Full));
        drop(regular);
        let regular = limiter.acquire(A).expect("regular again");
        assert!(!regular.is_in_reserve(), "a released regular permit is used before the reserve");
        drop(reserve);
        assert!(limiter.acquire(A).expect("reserve again").is_in_reserve());
    }

    #[test]
    fn connections_per_identity_are_limited() {
        let limiter = limiter(100, 100);
        let identity: WorkloadId = "spiffe://a.example/one".parse().expect("id");
        let other: WorkloadId = "spiffe://a.example/two".parse().expect("id");
        let first = limiter.acquire_for(&identity).expect("first");
        let _second = limiter.acquire_for(&identity).expect("second");
        assert_eq!(limiter.acquire_for(&identity).err(), Some(Error::Identity));
        let _other = limiter.acquire_for(&other).expect("another identity");
        drop(first);
        let _again = limiter.acquire_for(&identity).expect("freed");
    }

    #[test]
    fn closed_connections_leave_no_counts() {
        let limiter = limiter(10, 1);
        let identity: WorkloadId = "spiffe://a.example/one".parse().expect("id");
        let all =
            (limiter.acquire(A), limiter.acquire(B), limiter.acquire(A), limiter.acquire_for(&identity));
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok());
        drop(all);
        assert_eq!(limiter.regular.available_permits(), 1);
        assert_eq!(limiter.reserve.available_permits(), limits::CONNECTIONS_IN_RESERVE_MAX);
        assert_eq!((limiter.by_network.keys(), limiter.by_identity.keys()), (0, 0));
    }
}
