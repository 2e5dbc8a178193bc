//! From a name to the addresses that are connected to: each of them judged, in the same moment.
//!
//! What the connection is opened to is what was judged, because nothing resolves the name again. A name that
//! changes its address between a check and a connection gains nothing: this is the only check.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::Calls;
use super::call_limit::{Places, Share};
use super::guard::Guard;
use crate::limits;

/// Too many names are being asked for: this says nothing of the one that was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no place among the lookups of names")]
pub(super) struct NoLookup;

/// Who knows the addresses of a name.
pub(super) trait Lookup: Send + Sync {
    /// Its addresses, in the order in which they should be tried.
    fn addresses(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the machine.
pub(super) struct Machine {
    places: Places,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self { places: Places::new(limits::OUTBOUND_LOOKUPS_MAX) }
    }

    /// What `ask` knows of `name`. It blocks its thread and cannot be stopped, so that its place is free when it
    /// has ended, not when nobody waits for it any more.
    async fn ask(
        places: Places,
        name: String,
        ask: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let share = (Share::Host(name.clone()), limits::OUTBOUND_LOOKUPS_PER_NAME_MAX);
        let place = tokio::time::timeout(limits::OUTBOUND_LOOKUP_WAIT_MAX, places.take([share])).await;
        let place = place.map_err(|_| io::Error::other(NoLookup))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the resolver of the machine blocks; it ends by itself"
        )]
        let asked = tokio::task::spawn_blocking(move || {
            let _place = place;
            ask(&name)
        });
        asked.await.map_err(io::Error::other)?
    }
}

impl Lookup for Machine {
    fn addresses(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let of_machine = |name: &str| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect());
        Box::pin(Self::ask(self.places.clone(), name, of_machine))
    }
}

/// A [`Lookup`] behind the guard.
pub(super) struct Guarded {
    pub guard: Guard,
    pub calls: Calls,
    pub lookup: Arc<dyn Lookup>,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, calls) = (self.guard.clone(), self.calls);
        let name = name.as_str().to_owned();
        if name == "localhost" {
            let address = guard.localhost(calls);
            return Box::pin(async move { Ok(addresses(vec![address?])) });
        }
        let found = self.lookup.addresses(name.clone());
        Box::pin(async move { Ok(addresses(guard.filter(&name, found.await?, calls)?)) })
    }
}

/// Without a port, so that the URL's counts.
fn addresses(permitted: Vec<IpAddr>) -> Addrs {
    let first = permitted.into_iter().take(limits::OUTBOUND_ADDRESSES_MAX);
    Box::new(first.map(|address| SocketAddr::new(address, 0)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;

    use super::*;
    use crate::outbound::guard::Rules;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    #[tokio::test]
    async fn a_name_that_nobody_answers_takes_no_place_of_another() {
        let machine = Machine::new();
        let (answer, silence) = mpsc::channel::<()>();
        let silence = Arc::new(std::sync::Mutex::new(silence));
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let ask_silence = || {
            let (silence, begun) = (Arc::clone(&silence), begun.clone());
            Machine::ask(machine.places.clone(), "dead.example".to_owned(), move |_| {
                begun.send(()).expect("told");
                let _ = silence.lock().expect("lock").recv();
                Ok(Vec::new())
            })
        };
        for _ in 0..limits::OUTBOUND_LOOKUPS_PER_NAME_MAX {
            // Nobody waits for the answer any more, and it has its place all the same.
            let abandoned = tokio::time::timeout(std::time::Duration::ZERO, ask_silence()).await;
            assert!(abandoned.is_err());
            has_begun.recv().await.expect("begun");
        }
        let mut waiting = Box::pin(ask_silence());
        assert!((&mut waiting).now_or_never().is_none());
        let other = |_: &str| Ok(vec![address("1.1.1.1")]);
        let found = Machine::ask(machine.places.clone(), "other.example".to_owned(), other).await;
        assert_eq!(found.expect("found"), [address("1.1.1.1")]);
        assert!(has_begun.try_recv().is_err());
        // The places are free when the answers are there.
        drop(answer);
        assert!(waiting.await.is_ok());
    }

    /// Attack: names whose servers do not answer take every lookup, so that other receivers seem not to be there.
    #[tokio::test(start_paused = true)]
    async fn beyond_so_many_lookups_a_name_is_not_asked_for_and_not_blamed() {
        let machine = Machine::new();
        let places = machine.places.clone();
        let mut held = Vec::new();
        for at in 0..limits::OUTBOUND_LOOKUPS_MAX {
            held.push(places.take([(Share::Host(at.to_string()), 1)]).await.expect("place"));
        }
        let ask = || Machine::ask(places.clone(), "other.example".to_owned(), |_| Ok(Vec::new()));
        let refused = ask().await.expect_err("no place");
        assert!(
            refused.get_ref().and_then(|cause| cause.downcast_ref::<NoLookup>()).is_some(),
            "{refused:?}"
        );
        assert!(limits::OUTBOUND_LOOKUP_WAIT_MAX * 2 < limits::OUTBOUND_CONNECT_TIMEOUT);
        held.pop();
        assert!(ask().await.is_ok());
    }

    #[test]
    fn all_names_of_one_caller_leave_lookups_for_others() {
        let streams = usize::try_from(limits::STREAMS_PER_CALLER_MAX).expect("small");
        assert!(streams * limits::OUTBOUND_LOOKUPS_PER_NAME_MAX < limits::OUTBOUND_LOOKUPS_MAX);
    }

    #[tokio::test]
    async fn the_machine_knows_itself() {
        let found = Machine::new().addresses("localhost".to_owned()).await.expect("found");
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(Machine::new().addresses("no such name".to_owned()).await.is_err());
    }

    struct Many(usize);

    impl Lookup for Many {
        fn addresses(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::ready(Ok(vec![address("1.1.1.1"); self.0])))
        }
    }

    #[tokio::test]
    async fn of_many_addresses_of_a_name_only_so_many_are_tried() {
        for (count, tried) in [(3, 3), (1000, limits::OUTBOUND_ADDRESSES_MAX)] {
            let guard = Guard::new(Rules::default());
            let guarded = Guarded { guard, calls: Calls::Push, lookup: Arc::new(Many(count)) };
            let found = guarded.resolve("receiver.example".parse().expect("name")).await.expect("found");
            assert_eq!(found.count(), tried);
        }
    }
}
