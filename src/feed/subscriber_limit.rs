//! How many read the live feed, in all and with one identity.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use crate::limits;
use crate::telemetry::{Counted, Metrics};

/// The readers of one node. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Readers(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// The same as under the lock, for those who only ask whether there is anybody.
    all: AtomicUsize,
    /// Has no entry of zero.
    by_caller: Mutex<HashMap<String, usize>>,
}

impl Readers {
    /// Whether anybody reads.
    pub(super) fn is_any(&self) -> bool {
        self.0.all.load(Ordering::SeqCst) > 0
    }

    /// One more, with this identity if it has one. Who has none counts with all only: in development mode
    /// that is everybody on this machine.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`] or [`Error::TooManyOfCaller`].
    pub(super) fn enter(&self, caller: Option<&str>, metrics: &Metrics) -> Result<Place, Error> {
        let mut by_caller = self.by_caller();
        if self.0.all.load(Ordering::SeqCst) >= limits::EVENT_READERS_MAX {
            return Err(Error::TooManyReaders);
        }
        if let Some(caller) = caller {
            let readers = by_caller.entry(caller.to_owned()).or_default();
            if *readers >= limits::EVENT_READERS_PER_CALLER_MAX {
                return Err(Error::TooManyOfCaller);
            }
            *readers += 1;
        }
        self.0.all.fetch_add(1, Ordering::SeqCst);
        drop(by_caller);
        Ok(Place { readers: self.clone(), caller: caller.map(str::to_owned), _open: metrics.event_reader() })
    }

    fn by_caller(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.by_caller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one reader; dropping it makes room.
#[derive(Debug)]
pub(super) struct Place {
    readers: Readers,
    caller: Option<String>,
    _open: Counted,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_caller = self.readers.by_caller();
        self.readers.0.all.fetch_sub(1, Ordering::SeqCst);
        let Some(caller) = &self.caller else { return };
        let Some(readers) = by_caller.get_mut(caller) else { return };
        *readers = readers.saturating_sub(1);
        if *readers == 0 {
            by_caller.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new().expect("metrics")
    }

    #[test]
    fn a_node_has_only_so_many_readers_and_one_that_leaves_makes_room() {
        let (readers, metrics) = (Readers::default(), metrics());
        let enter = || readers.enter(None, &metrics);
        assert!(!readers.is_any());
        let mut places: Vec<_> = (0..limits::EVENT_READERS_MAX).map(|_| enter().expect("a place")).collect();
        assert!(readers.is_any());
        assert!(matches!(enter(), Err(Error::TooManyReaders)));
        assert!(matches!(readers.enter(Some("a"), &metrics), Err(Error::TooManyReaders)));
        let page = metrics.render().expect("page");
        assert!(page.contains(&format!("svc_event_readers {}", limits::EVENT_READERS_MAX)), "{page}");
        places.pop();
        let again = enter().expect("room");
        drop((places, again));
        assert!(!readers.is_any());
        assert!(metrics.render().expect("page").contains("svc_event_readers 0"));
    }

    #[test]
    fn one_identity_has_its_share_and_nothing_is_remembered_of_who_has_left() {
        let (readers, metrics) = (Readers::default(), metrics());
        let enter = |caller| readers.enter(Some(caller), &metrics);
        let mut places: Vec<_> =
            (0..limits::EVENT_READERS_PER_CALLER_MAX).map(|_| enter("a").expect("a place")).collect();
        assert!(matches!(enter("a"), Err(Error::TooManyOfCaller)));
        let other = enter("b").expect("another's are its own");
        places.pop();
        places.push(enter("a").expect("room"));
        assert!(matches!(enter("a"), Err(Error::TooManyOfCaller)));
        drop((places, other));
        assert!(readers.by_caller().is_empty());
        assert!(!readers.is_any());
    }
}
