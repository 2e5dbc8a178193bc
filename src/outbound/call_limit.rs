//! How many may do something at once: for each of those who share the places, and in all.
//!
//! Who waits for its own share holds no place of the others: a host that answers nobody takes its own places,
//! and no more; and so does whoever makes many calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub(super) struct Places {
    rooms: Arc<Rooms>,
}

#[derive(Debug)]
struct Rooms {
    /// Without an entry that nobody has a place of or waits for: no more entries than callers have shares.
    shares: Mutex<HashMap<Share, Room>>,
    all: Arc<Semaphore>,
}

/// Who shares the places with others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Share {
    /// A host, or a name.
    Host(String),
    /// Whoever has calls made.
    Owner(String),
    /// The same, of its calls to one host.
    OwnerAtHost(String, String),
}

#[derive(Debug)]
struct Room {
    places: Arc<Semaphore>,
    /// Who has a place or waits for one.
    callers: usize,
}

/// One place. Dropping it frees it.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub(super) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_shares: Vec<(OwnedSemaphorePermit, Caller)>,
}

impl Places {
    pub(super) fn new(all: usize) -> Self {
        Self { rooms: Arc::new(Rooms { shares: Mutex::default(), all: Arc::new(Semaphore::new(all)) }) }
    }

    /// A place of each of these shares, of which there are so many, as soon as there is one; those who wait are
    /// served in their order. The narrowest share first, and everybody in the same order. `None` never comes:
    /// nobody closes the places.
    pub(super) async fn take(&self, shares: impl IntoIterator<Item = (Share, usize)>) -> Option<Place> {
        let mut of_shares = Vec::new();
        for (share, places) in shares {
            let (caller, places) = Caller::of(&self.rooms, share, places);
            of_shares.push((places.acquire_owned().await.ok()?, caller));
        }
        let of_all = Arc::clone(&self.rooms.all).acquire_owned().await.ok()?;
        Some(Place { _of_all: of_all, _of_shares: of_shares })
    }
}

impl Rooms {
    fn shares(&self) -> MutexGuard<'_, HashMap<Share, Room>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the entry of a share while somebody has a place of it or waits for one.
#[derive(Debug)]
struct Caller {
    rooms: Arc<Rooms>,
    share: Share,
}

impl Caller {
    fn of(rooms: &Arc<Rooms>, share: Share, places: usize) -> (Self, Arc<Semaphore>) {
        let mut shares = rooms.shares();
        let room = || Room { places: Arc::new(Semaphore::new(places)), callers: 0 };
        let entry = shares.entry(share.clone()).or_insert_with(room);
        entry.callers += 1;
        (Self { rooms: Arc::clone(rooms), share }, Arc::clone(&entry.places))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut shares = self.rooms.shares();
        if let Some(room) = shares.get_mut(&self.share) {
            room.callers -= 1;
            if room.callers == 0 {
                shares.remove(&self.share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn of(host: &str, places: usize) -> [(Share, usize); 1] {
        [(Share::Host(host.to_owned()), places)]
    }

    fn now(places: &Places, host: &str) -> Option<Place> {
        places.take(of(host, 2)).now_or_never().flatten()
    }

    #[test]
    fn a_host_takes_its_own_places_only() {
        let places = Places::new(8);
        let held: Vec<_> = (0..2).map(|_| now(&places, "dead").expect("place")).collect();
        assert!(now(&places, "dead").is_none());
        // Nor do those who wait for it.
        let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(places.take(of("dead", 2)))).collect();
        assert!(waiting.iter_mut().all(|place| place.now_or_never().is_none()));
        for host in ["a", "b", "c"] {
            assert!(now(&places, host).is_some(), "{host}");
        }
        drop(held);
        assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
    }

    #[test]
    fn in_all_there_are_only_so_many_places() {
        let places = Places::new(3);
        let held: Vec<_> = ["a", "a", "b"].map(|host| now(&places, host).expect("place")).into();
        assert!(now(&places, "c").is_none());
        drop(held);
        assert!(now(&places, "c").is_some());
    }

    #[test]
    fn a_host_is_forgotten_with_the_last_who_calls_it() {
        let places = Places::new(8);
        let held = places.take(of("a", 1)).now_or_never().flatten().expect("place");
        let mut waiting = Box::pin(places.take(of("a", 1)));
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        assert_eq!(places.rooms.shares().len(), 1);
        drop(waiting);
        assert!(places.rooms.shares().is_empty());
        drop(now(&places, "b").expect("place"));
        assert!(places.rooms.shares().is_empty());
    }

    #[test]
    fn who_waits_for_one_share_holds_no_place_of_the_wider_ones() {
        let places = Places::new(8);
        let owned = |owner: &str, host: &str| {
            let (owner, host) = (owner.to_owned(), host.to_owned());
            [(Share::Owner(owner), 1), (Share::Host(host), 2)]
        };
        let held = places.take(owned("greedy", "a")).now_or_never().flatten().expect("place");
        let mut waiting: Vec<_> = (0..9).map(|_| Box::pin(places.take(owned("greedy", "a")))).collect();
        assert!(waiting.iter_mut().all(|place| place.now_or_never().is_none()));
        let other = places.take(owned("other", "a")).now_or_never().flatten();
        assert!(other.is_some(), "the second place of the host is free");
        drop(held);
        assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
    }
}
