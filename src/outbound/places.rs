//! How many may do something at once: for one host, and in all.
//!
//! Who waits for its host holds no place of the others: a host that answers nobody takes its own places, and
//! no more.

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
    per_host: usize,
    /// Without an entry that nobody has or waits for: no more entries than callers.
    hosts: Mutex<HashMap<String, Host>>,
    all: Arc<Semaphore>,
}

#[derive(Debug)]
struct Host {
    places: Arc<Semaphore>,
    /// Who has a place or waits for one.
    callers: usize,
}

/// One place. Dropping it frees it.
#[derive(Debug)]
#[must_use = "dropping it frees the place"]
pub(super) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_host: OwnedSemaphorePermit,
    _caller: Caller,
}

impl Places {
    pub(super) fn new(per_host: usize, all: usize) -> Self {
        let rooms = Rooms { per_host, hosts: Mutex::default(), all: Arc::new(Semaphore::new(all)) };
        Self { rooms: Arc::new(rooms) }
    }

    /// A place for `host`, as soon as there is one; those who wait are served in their order. `None` never
    /// comes: nobody closes the places.
    pub(super) async fn take(&self, host: &str) -> Option<Place> {
        let (caller, places) = Caller::of(&self.rooms, host);
        let of_host = places.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.rooms.all).acquire_owned().await.ok()?;
        Some(Place { _of_all: of_all, _of_host: of_host, _caller: caller })
    }
}

impl Rooms {
    fn hosts(&self) -> MutexGuard<'_, HashMap<String, Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the entry of a host while somebody has a place there or waits for one.
#[derive(Debug)]
struct Caller {
    rooms: Arc<Rooms>,
    host: String,
}

impl Caller {
    fn of(rooms: &Arc<Rooms>, host: &str) -> (Self, Arc<Semaphore>) {
        let mut hosts = rooms.hosts();
        let of_host = || Host { places: Arc::new(Semaphore::new(rooms.per_host)), callers: 0 };
        let entry = hosts.entry(host.to_owned()).or_insert_with(of_host);
        entry.callers += 1;
        (Self { rooms: Arc::clone(rooms), host: host.to_owned() }, Arc::clone(&entry.places))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut hosts = self.rooms.hosts();
        if let Some(host) = hosts.get_mut(&self.host) {
            host.callers -= 1;
            if host.callers == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn now(places: &Places, host: &str) -> Option<Place> {
        places.take(host).now_or_never().flatten()
    }

    #[test]
    fn a_host_takes_its_own_places_only() {
        let places = Places::new(2, 8);
        let held: Vec<_> = (0..2).map(|_| now(&places, "dead").expect("place")).collect();
        assert!(now(&places, "dead").is_none());
        // Nor do those who wait for it.
        let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(places.take("dead"))).collect();
        assert!(waiting.iter_mut().all(|place| place.now_or_never().is_none()));
        for host in ["a", "b", "c"] {
            assert!(now(&places, host).is_some(), "{host}");
        }
        drop(held);
        assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
    }

    #[test]
    fn in_all_there_are_only_so_many_places() {
        let places = Places::new(2, 3);
        let held: Vec<_> = ["a", "a", "b"].map(|host| now(&places, host).expect("place")).into();
        assert!(now(&places, "c").is_none());
        drop(held);
        assert!(now(&places, "c").is_some());
    }

    #[test]
    fn a_host_is_forgotten_with_the_last_who_calls_it() {
        let places = Places::new(1, 8);
        let held = now(&places, "a").expect("place");
        let mut waiting = Box::pin(places.take("a"));
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        assert_eq!(places.rooms.hosts().len(), 1);
        drop(waiting);
        assert!(places.rooms.hosts().is_empty());
        drop(now(&places, "b").expect("place"));
        assert!(places.rooms.hosts().is_empty());
    }
}
