//! How many connections may be open, in all, from one address and with one identity. A place is
//! taken when a connection is accepted and freed when it is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::connect_info::network_of;
use crate::id::WorkloadId;
use crate::limits;

/// The caps that an operator can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most open connections from one address; of IPv6, from one /64.
    pub per_address: usize,
    /// Most open connections with one client certificate's identity.
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

/// Why a connection has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As many as may be, and the reserve is taken too.
    #[error("too many connections")]
    Full,
    /// Too many from its address.
    #[error("too many connections from this address")]
    Address,
    /// Too many with its identity.
    #[error("too many connections with this identity")]
    Identity,
}

impl Error {
    /// As a label of a metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Address => "address",
            Self::Identity => "identity",
        }
    }
}

/// The places of all listeners of a node. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Places {
    rooms: Arc<Rooms>,
    in_reserve: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Rooms {
    caps: Caps,
    connections_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    usual: usize,
    /// Neither map has an entry of zero, so neither is larger than the number of connections.
    by_network: HashMap<IpAddr, usize>,
    by_identity: HashMap<WorkloadId, usize>,
}

impl Places {
    /// Room for `connections_max` connections and the reserve.
    #[must_use]
    pub fn new(caps: Caps, connections_max: usize) -> Self {
        let rooms = Arc::new(Rooms { caps, connections_max, taken: Mutex::default() });
        Self { rooms, in_reserve: Arc::default() }
    }

    /// The same places, with another reserve.
    #[must_use]
    pub fn with_own_reserve(&self) -> Self {
        Self { rooms: Arc::clone(&self.rooms), in_reserve: Arc::default() }
    }

    /// A place for a connection from `address`: a usual one, or one of the reserve.
    ///
    /// # Errors
    /// [`Error::Address`] or [`Error::Full`].
    pub fn take(&self, address: IpAddr) -> Result<Place, Error> {
        let network = network_of(address);
        let mut taken = self.taken();
        if taken.by_network.get(&network).is_some_and(|open| *open >= self.rooms.caps.per_address) {
            return Err(Error::Address);
        }
        let in_reserve = taken.usual >= self.rooms.connections_max;
        if in_reserve {
            // Counted under the lock of the others.
            if self.in_reserve.load(Ordering::Relaxed) >= limits::CONNECTIONS_IN_RESERVE_MAX {
                return Err(Error::Full);
            }
            self.in_reserve.fetch_add(1, Ordering::Relaxed);
        } else {
            taken.usual += 1;
        }
        *taken.by_network.entry(network).or_default() += 1;
        Ok(Place { places: self.clone(), network, in_reserve })
    }

    /// A place for a connection with this identity, beside the one it has.
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub fn take_for(&self, identity: &WorkloadId) -> Result<IdentityPlace, Error> {
        let mut taken = self.taken();
        if taken.by_identity.get(identity).is_some_and(|open| *open >= self.rooms.caps.per_identity) {
            return Err(Error::Identity);
        }
        *taken.by_identity.entry(identity.clone()).or_default() += 1;
        Ok(IdentityPlace { places: self.clone(), identity: identity.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.rooms.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub struct Place {
    places: Places,
    network: IpAddr,
    in_reserve: bool,
}

impl Place {
    /// Whether it is one of the reserve.
    #[must_use]
    pub const fn is_in_reserve(&self) -> bool {
        self.in_reserve
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if self.in_reserve {
            self.places.in_reserve.fetch_sub(1, Ordering::Relaxed);
        } else {
            taken.usual = taken.usual.saturating_sub(1);
        }
        leave(&mut taken.by_network, &self.network);
    }
}

/// The place of one connection among those with its identity.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub struct IdentityPlace {
    places: Places,
    identity: WorkloadId,
}

impl Drop for IdentityPlace {
    fn drop(&mut self) {
        leave(&mut self.places.taken().by_identity, &self.identity);
    }
}

fn leave<K: Eq + Hash>(open: &mut HashMap<K, usize>, key: &K) {
    let Some(count) = open.get_mut(key) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        open.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn places(per_address: usize, connections_max: usize) -> Places {
        Places::new(Caps { per_address, per_identity: 2 }, connections_max)
    }

    #[test]
    fn one_address_takes_its_share_and_no_more() {
        let places = places(2, 100);
        let first = places.take(A).expect("first");
        let _second = places.take(A).expect("second");
        assert_eq!(places.take(A).err(), Some(Error::Address));
        let _other = places.take(B).expect("another address");
        drop(first);
        let _again = places.take(A).expect("freed");
        assert_eq!(places.take(A).err(), Some(Error::Address));
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let places = places(1, 100);
        let _place = places.take("2001:db8:0:1::1".parse().expect("address")).expect("first");
        let neighbour = "2001:db8:0:1:ffff::2".parse().expect("address");
        assert_eq!(places.take(neighbour).err(), Some(Error::Address));
        let _other = places.take("2001:db8:0:2::1".parse().expect("address")).expect("another /64");
    }

    #[test]
    fn an_ipv4_address_written_as_ipv6_is_the_same_address() {
        let places = places(1, 100);
        let _place = places.take(A).expect("first");
        let mapped = "::ffff:192.0.2.1".parse().expect("address");
        assert_eq!(places.take(mapped).err(), Some(Error::Address));
        let other = "::ffff:192.0.2.2".parse().expect("address");
        let _other = places.take(other).expect("mapped addresses are not one /64");
    }

    #[test]
    fn beyond_the_usual_places_there_is_a_reserve_and_beyond_it_nothing() {
        let places = places(1000, 1);
        let usual = places.take(A).expect("usual");
        assert!(!usual.is_in_reserve());
        let reserve: Vec<Place> =
            (0..limits::CONNECTIONS_IN_RESERVE_MAX).map(|_| places.take(B).expect("reserve")).collect();
        assert!(reserve.iter().all(Place::is_in_reserve));
        assert_eq!(places.take(A).err(), Some(Error::Full));
        drop(usual);
        let usual = places.take(A).expect("usual again");
        assert!(!usual.is_in_reserve(), "a freed usual place is used before the reserve");
        drop(reserve);
        assert!(places.take(A).expect("reserve again").is_in_reserve());
    }

    #[test]
    fn one_identity_takes_its_share_and_no_more() {
        let places = places(100, 100);
        let identity: WorkloadId = "spiffe://a.example/one".parse().expect("id");
        let other: WorkloadId = "spiffe://a.example/two".parse().expect("id");
        let first = places.take_for(&identity).expect("first");
        let _second = places.take_for(&identity).expect("second");
        assert_eq!(places.take_for(&identity).err(), Some(Error::Identity));
        let _other = places.take_for(&other).expect("another identity");
        drop(first);
        let _again = places.take_for(&identity).expect("freed");
    }

    #[test]
    fn nothing_is_remembered_of_connections_that_ended() {
        let places = places(10, 1);
        let identity: WorkloadId = "spiffe://a.example/one".parse().expect("id");
        let all = (places.take(A), places.take(B), places.take(A), places.take_for(&identity));
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok());
        drop(all);
        let taken = places.taken();
        assert_eq!((taken.usual, places.in_reserve.load(Ordering::Relaxed)), (0, 0));
        assert!(taken.by_network.is_empty() && taken.by_identity.is_empty(), "{taken:?}");
    }
}
