//! Concurrency limits per key: the one implementation for connections, outbound calls, polls and subscribers.
//!
//! A permit is released when it is dropped. A key has an entry only while a permit of it is held or awaited, so the
//! number of entries is bounded by the number of permits and waiters.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At most `per_key_max` permits per key, and at most `total_max` in all. Cheap to clone; clones count together.
pub(crate) struct KeyedLimiter<K: Eq + Hash> {
    per_key_max: usize,
    total_max: usize,
    total: Arc<Semaphore>,
    keys: Arc<Mutex<HashMap<K, Entry>>>,
}

struct Entry {
    semaphore: Arc<Semaphore>,
    /// Held permits and waiters.
    users: usize,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitReached {
    Total,
    Key,
}

/// A permit of one key, and of the total.
#[must_use = "dropping it releases the permit"]
pub(crate) struct KeyedPermit<K: Eq + Hash> {
    _total: OwnedSemaphorePermit,
    _key: Option<(OwnedSemaphorePermit, User<K>)>,
}

/// Keeps the entry of a key while a permit of it is held or awaited.
struct User<K: Eq + Hash> {
    keys: Arc<Mutex<HashMap<K, Entry>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> KeyedLimiter<K> {
    pub(crate) fn new(per_key_max: usize, total_max: usize) -> Self {
        let per_key_max = per_key_max.min(Semaphore::MAX_PERMITS);
        let total_max = total_max.min(Semaphore::MAX_PERMITS);
        Self { per_key_max, total_max, total: Arc::new(Semaphore::new(total_max)), keys: Arc::default() }
    }

    /// Limits the permits per key only.
    pub(crate) fn per_key(max: usize) -> Self {
        Self::new(max, Semaphore::MAX_PERMITS)
    }

    /// Whether any permit is held.
    pub(crate) fn is_used(&self) -> bool {
        self.total.available_permits() < self.total_max
    }

    /// A permit for `key`, or for the total alone if there is none. The total is checked first.
    pub(crate) fn try_acquire(&self, key: Option<K>) -> Result<KeyedPermit<K>, LimitReached> {
        let total = Arc::clone(&self.total).try_acquire_owned().map_err(|_| LimitReached::Total)?;
        let key = key.map(|key| self.user(key)).map(|(user, semaphore)| {
            let permit = semaphore.try_acquire_owned().map_err(|_| LimitReached::Key)?;
            Ok((permit, user))
        });
        Ok(KeyedPermit { _total: total, _key: key.transpose()? })
    }

    /// A permit for `key`, or for the total alone if there is none, as soon as one is free; waiters are served in
    /// order. A waiter for its key holds no permit of the total. `None` never occurs: no semaphore is closed.
    pub(crate) async fn acquire(&self, key: Option<K>) -> Option<KeyedPermit<K>> {
        let key = match key.map(|key| self.user(key)) {
            Some((user, semaphore)) => Some((semaphore.acquire_owned().await.ok()?, user)),
            None => None,
        };
        let total = Arc::clone(&self.total).acquire_owned().await.ok()?;
        Some(KeyedPermit { _total: total, _key: key })
    }

    fn user(&self, key: K) -> (User<K>, Arc<Semaphore>) {
        let mut keys = self.keys.lock();
        let entry = || Entry { semaphore: Arc::new(Semaphore::new(self.per_key_max)), users: 0 };
        let entry = keys.entry(key.clone()).or_insert_with(entry);
        entry.users += 1;
        (User { keys: Arc::clone(&self.keys), key }, Arc::clone(&entry.semaphore))
    }
}

impl<K: Eq + Hash> KeyedLimiter<K> {
    /// Number of keys with a permit or a waiter.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.keys.lock().len()
    }
}

impl<K: Eq + Hash> Drop for User<K> {
    fn drop(&mut self) {
        let mut keys = self.keys.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.users -= 1;
            if entry.users == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

impl<K: Eq + Hash> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self {
            per_key_max: self.per_key_max,
            total_max: self.total_max,
            total: Arc::clone(&self.total),
            keys: Arc::clone(&self.keys),
        }
    }
}

impl<K: Eq + Hash> fmt::Debug for KeyedLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter").field("free", &self.total.available_permits()).finish_non_exhaustive()
    }
}

impl<K: Eq + Hash> fmt::Debug for KeyedPermit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPermit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn acquired(
        limiter: &KeyedLimiter<&'static str>,
        key: &'static str,
    ) -> Option<KeyedPermit<&'static str>> {
        limiter.acquire(Some(key)).now_or_never().flatten()
    }

    #[test]
    fn permits_are_limited_per_key_and_in_total() {
        let limiter = KeyedLimiter::new(2, 3);
        assert!(!limiter.is_used());
        let first = limiter.try_acquire(Some("a")).expect("first");
        let _second = limiter.try_acquire(Some("a")).expect("second");
        assert!(limiter.is_used());
        assert_eq!(limiter.try_acquire(Some("a")).err(), Some(LimitReached::Key));
        let _other = limiter.try_acquire(Some("b")).expect("another key");
        assert_eq!(limiter.try_acquire(Some("b")).err(), Some(LimitReached::Total));
        assert_eq!(limiter.try_acquire(None).err(), Some(LimitReached::Total));
        assert!(acquired(&limiter, "b").is_none());
        drop(first);
        assert!(acquired(&limiter, "b").is_some(), "released at once");
        assert!(limiter.try_acquire(None).is_ok(), "a refused key releases its permit of the total");
    }

    #[test]
    fn waiters_for_a_key_hold_no_permit_of_the_total() {
        let limiter = KeyedLimiter::new(2, 8);
        let held: Vec<_> = (0..2).map(|_| acquired(&limiter, "dead").expect("permit")).collect();
        let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(limiter.acquire(Some("dead")))).collect();
        assert!(waiting.iter_mut().all(|permit| permit.now_or_never().is_none()));
        for key in ["a", "b", "c"] {
            assert!(acquired(&limiter, key).is_some(), "{key}");
        }
        drop(held);
        assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
    }

    #[test]
    fn key_is_removed_with_its_last_permit_or_waiter() {
        let limiter = KeyedLimiter::new(1, 8);
        let held = acquired(&limiter, "a").expect("permit");
        let mut waiting = Box::pin(limiter.acquire(Some("a")));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(limiter.try_acquire(Some("a")).is_err());
        drop(held);
        assert_eq!(limiter.keys(), 1);
        drop(waiting);
        assert_eq!(limiter.keys(), 0);
    }
}
