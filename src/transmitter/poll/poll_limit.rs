//! How many polls look and wait at once, in all and of one caller: who has many streams keeps nobody from theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Error;
use crate::limits;

/// The places of one node.
pub struct Places {
    all: Counted,
    by_caller: Mutex<HashMap<String, Weak<Counted>>>,
}

struct Counted {
    looking: Semaphore,
    waiting: Semaphore,
}

/// The places that one poll can have.
pub struct Share<'p> {
    all: &'p Counted,
    /// Who has no identity counts with all only: in development mode that is everybody on this machine.
    own: Option<Arc<Counted>>,
}

/// A place, of all and of its caller; dropping it makes room.
pub struct Place<'p> {
    _of_all: SemaphorePermit<'p>,
    _of_own: Option<SemaphorePermit<'p>>,
}

impl Counted {
    fn new(looks: usize, waits: usize) -> Self {
        Self { looking: Semaphore::new(looks), waiting: Semaphore::new(waits) }
    }
}

impl Default for Places {
    fn default() -> Self {
        let all = Counted::new(limits::POLL_LOOKS_MAX, limits::POLLS_WAITING_MAX);
        Self { all, by_caller: Mutex::default() }
    }
}

impl Places {
    /// What a poll of this caller can have. Nothing is remembered of a caller none of whose polls is under way.
    pub fn of(&self, caller: Option<&str>) -> Share<'_> {
        let own = caller.map(|caller| {
            let mut by_caller = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = by_caller.get(caller).and_then(Weak::upgrade) {
                return own;
            }
            by_caller.retain(|_, own| own.strong_count() > 0);
            let own = Counted::new(limits::POLL_LOOKS_PER_CALLER_MAX, limits::POLLS_WAITING_PER_CALLER_MAX);
            let own = Arc::new(own);
            by_caller.insert(caller.to_owned(), Arc::downgrade(&own));
            own
        });
        Share { all: &self.all, own }
    }
}

impl Share<'_> {
    /// A place to look through the outbox and to sign; its caller's turn comes first, so that only those of one
    /// caller wait for each other.
    ///
    /// # Errors
    /// [`Error::Busy`] after [`limits::POLL_LOOK_WAIT`].
    pub async fn to_look(&self) -> Result<Place<'_>, Error> {
        let places = async {
            let of_own = match &self.own {
                Some(own) => Some(own.looking.acquire().await?),
                None => None,
            };
            Ok::<_, tokio::sync::AcquireError>(Place {
                _of_own: of_own,
                _of_all: self.all.looking.acquire().await?,
            })
        };
        let place = tokio::time::timeout(limits::POLL_LOOK_WAIT, places).await;
        place.ok().and_then(Result::ok).ok_or(Error::Busy)
    }

    /// A place to wait for something to give.
    ///
    /// # Errors
    /// [`Error::Busy`]: a poll that was answered at once would be sent again at once.
    pub fn to_wait(&self) -> Result<Place<'_>, Error> {
        let own = self.own.as_ref().map(|own| own.waiting.try_acquire()).transpose();
        let of_own = own.map_err(|_| Error::Busy)?;
        let of_all = self.all.waiting.try_acquire().map_err(|_| Error::Busy)?;
        Ok(Place { _of_all: of_all, _of_own: of_own })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_so_many_polls_look_at_once_and_who_waits_too_long_is_told() {
        let places = Places::default();
        let nobody = places.of(None);
        let mut looking = Vec::new();
        for _ in 0..limits::POLL_LOOKS_MAX {
            looking.push(nobody.to_look().now_or_never().expect("no wait").expect("a place"));
        }
        let mut waiting = Box::pin(nobody.to_look());
        assert!((&mut waiting).now_or_never().is_none());
        looking.pop();
        let taken = waiting.await.expect("its turn has come");
        let almost = limits::POLL_LOOK_WAIT.mul_f64(0.999);
        assert!(tokio::time::timeout(almost, nobody.to_look()).await.is_err(), "it still waits");
        assert!(matches!(nobody.to_look().await, Err(Error::Busy)));
        drop((taken, looking));
    }

    #[test]
    fn beyond_so_many_that_wait_a_poll_is_told_to_come_later() {
        let places = Places::default();
        let nobody = places.of(None);
        let mut waiting: Vec<_> =
            (0..limits::POLLS_WAITING_MAX).map(|_| nobody.to_wait().expect("a place")).collect();
        assert!(matches!(nobody.to_wait(), Err(Error::Busy)));
        waiting.pop();
        assert!(nobody.to_wait().is_ok(), "there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attack_with_many_polls_of_one_caller_leaves_the_others_their_places() {
        let places = Places::default();
        let greedy: Vec<_> = (0..limits::POLLS_WAITING_MAX).map(|_| places.of(Some("greedy"))).collect();
        let waiting: Vec<_> = greedy.iter().filter_map(|share| share.to_wait().ok()).collect();
        assert_eq!(waiting.len(), limits::POLLS_WAITING_PER_CALLER_MAX);
        let mut looking = Vec::new();
        for share in &greedy {
            // Those without a place wait in line.
            let mut look = Box::pin(share.to_look());
            looking.push(((&mut look).now_or_never(), look));
        }
        let placed = looking.iter().filter(|(placed, _)| placed.is_some()).count();
        assert_eq!(placed, limits::POLL_LOOKS_PER_CALLER_MAX);
        let other = places.of(Some("other"));
        assert!(other.to_wait().is_ok());
        assert!(other.to_look().now_or_never().is_some_and(|place| place.is_ok()), "before all that wait");
        drop(looking);
        drop(waiting);
        drop((greedy, other));
        assert!(places.of(Some("third")).to_wait().is_ok());
        assert_eq!(places.by_caller.lock().expect("a lock").len(), 1, "who has left is forgotten");
    }
}
