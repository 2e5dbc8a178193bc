//! DNS resolution with the guard: a connection is opened to a checked address, and the name is not resolved again, so
//! a name that changes its address between check and connection gains nothing (DNS rebinding).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::Purpose;
use super::guard::Guard;
use crate::limiter::KeyedLimiter;
use crate::limits;

/// The limit of concurrent lookups was reached; this states nothing about the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DNS lookup limit reached")]
pub(super) struct LookupLimitReached;

/// A source of addresses for a name.
pub(super) trait Lookup: Send + Sync {
    /// The addresses, in the order in which they should be tried.
    fn addresses(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
pub(super) struct SystemResolver {
    limiter: KeyedLimiter<String>,
}

impl SystemResolver {
    pub(super) fn new() -> Self {
        let (per_name, total) = (limits::OUTBOUND_LOOKUPS_PER_NAME_MAX, limits::OUTBOUND_LOOKUPS_MAX);
        Self { limiter: KeyedLimiter::new(per_name, total) }
    }

    /// Runs `resolve` for `name`. It blocks its thread and cannot be cancelled, so its permit is held until
    /// it has ended.
    async fn resolve(
        limiter: KeyedLimiter<String>,
        name: String,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let permit = limiter.acquire(Some(name.clone()));
        let permit = tokio::time::timeout(limits::OUTBOUND_LOOKUP_WAIT_MAX, permit).await;
        let permit = permit.map_err(|_| io::Error::other(LookupLimitReached))?;
        #[expect(clippy::disallowed_methods, reason = "getaddrinfo blocks; it ends by itself")]
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            resolve(&name)
        });
        task.await.map_err(io::Error::other)?
    }
}

impl Lookup for SystemResolver {
    fn addresses(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let of_system = |name: &str| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect());
        Box::pin(Self::resolve(self.limiter.clone(), name, of_system))
    }
}

/// A [`Lookup`] with the guard. Clones share the limits of the lookups, which go on after their callers have gone.
#[derive(Clone)]
pub(super) struct GuardedResolver {
    pub guard: Guard,
    pub purpose: Purpose,
    pub lookup: Arc<dyn Lookup>,
}

impl fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedResolver").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, purpose) = (self.guard.clone(), self.purpose);
        let name = name.as_str().to_owned();
        if name == "localhost" {
            let address = guard.localhost(purpose);
            return Box::pin(async move { Ok(addresses(vec![address?])) });
        }
        let lookup = self.lookup.addresses(name.clone());
        Box::pin(async move { Ok(addresses(guard.filter(&name, lookup.await?, purpose)?)) })
    }
}

/// Port 0, so that the port of the URL is used.
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
    async fn unanswered_name_blocks_no_other() {
        let resolver = SystemResolver::new();
        let (response, silence) = mpsc::channel::<()>();
        let silence = Arc::new(std::sync::Mutex::new(silence));
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let resolve_silence = || {
            let (silence, begun) = (Arc::clone(&silence), begun.clone());
            SystemResolver::resolve(resolver.limiter.clone(), "dead.example".to_owned(), move |_| {
                begun.send(()).expect("received");
                let _ = silence.lock().expect("lock").recv();
                Ok(Vec::new())
            })
        };
        for _ in 0..limits::OUTBOUND_LOOKUPS_PER_NAME_MAX {
            // An abandoned lookup holds its permit.
            let abandoned = tokio::time::timeout(std::time::Duration::ZERO, resolve_silence()).await;
            assert!(abandoned.is_err());
            has_begun.recv().await.expect("begun");
        }
        let mut waiting = Box::pin(resolve_silence());
        assert!((&mut waiting).now_or_never().is_none());
        let other = |_: &str| Ok(vec![address("1.1.1.1")]);
        let addresses =
            SystemResolver::resolve(resolver.limiter.clone(), "other.example".to_owned(), other).await;
        assert_eq!(addresses.expect("found"), [address("1.1.1.1")]);
        assert!(has_begun.try_recv().is_err());
        // The permits are free once the lookups have ended.
        drop(response);
        assert!(waiting.await.is_ok());
    }

    /// Attack: names whose servers do not answer use every lookup, so that other receivers seem unreachable.
    #[tokio::test(start_paused = true)]
    async fn lookup_beyond_the_limit_fails_without_blame() {
        let resolver = SystemResolver::new();
        let limiter = resolver.limiter.clone();
        let mut held = Vec::new();
        for at in 0..limits::OUTBOUND_LOOKUPS_MAX {
            held.push(limiter.acquire(Some(at.to_string())).await.expect("permit"));
        }
        let resolve =
            || SystemResolver::resolve(limiter.clone(), "other.example".to_owned(), |_| Ok(Vec::new()));
        let refused = resolve().await.expect_err("limit reached");
        assert!(
            refused.get_ref().and_then(|cause| cause.downcast_ref::<LookupLimitReached>()).is_some(),
            "{refused:?}"
        );
        assert!(limits::OUTBOUND_LOOKUP_WAIT_MAX * 2 < limits::OUTBOUND_CONNECT_TIMEOUT);
        held.pop();
        assert!(resolve().await.is_ok());
    }

    #[test]
    fn names_of_one_owner_leave_lookups_for_others() {
        let streams = usize::try_from(limits::STREAMS_PER_CALLER_MAX).expect("small");
        assert!(streams * limits::OUTBOUND_LOOKUPS_PER_NAME_MAX < limits::OUTBOUND_LOOKUPS_MAX);
    }

    #[tokio::test]
    async fn the_machine_knows_itself() {
        let addresses = SystemResolver::new().addresses("localhost".to_owned()).await.expect("found");
        assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
        assert!(SystemResolver::new().addresses("no such name".to_owned()).await.is_err());
    }

    struct Many(usize);

    impl Lookup for Many {
        fn addresses(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::ready(Ok(vec![address("1.1.1.1"); self.0])))
        }
    }

    #[tokio::test]
    async fn addresses_tried_per_name_are_limited() {
        for (count, tried) in [(3, 3), (1000, limits::OUTBOUND_ADDRESSES_MAX)] {
            let guard = Guard::new(Rules::default());
            let guarded = GuardedResolver { guard, purpose: Purpose::Push, lookup: Arc::new(Many(count)) };
            let addresses = guarded.resolve("receiver.example".parse().expect("name")).await.expect("found");
            assert_eq!(addresses.count(), tried);
        }
    }
}
