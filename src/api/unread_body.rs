//! What is left of a request's body when its answer is there. It is read before the answer goes out,
//! within limits: a caller that is still writing when its stream or connection ends may never see the
//! answer, and many HTTP clients report an error of framing then (curl over HTTP/2 does).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, SizeHint};

use crate::limits;

/// A body that a handler reads as far as it wants to, and whose rest is read after it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn with<T>(&self, look: impl FnOnce(&mut Body) -> T) -> T {
        // Handler and rest take turns; nobody waits for this lock.
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl hyper::body::Body for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with(|body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|body| body.size_hint())
    }
}

/// The rest of a body.
pub struct Leftover(Option<Shared>);

/// The body for a handler, and what is left of it afterwards.
pub fn share(body: Body) -> (Body, Leftover) {
    if body.is_end_stream() {
        return (body, Leftover(None));
    }
    let shared = Shared(Arc::new(Mutex::new(body)));
    (Body::new(shared.clone()), Leftover(Some(shared)))
}

impl Leftover {
    /// Reads on to the end, or to [`limits::BODY_DISCARDED_MAX`], for at most [`limits::LINGER_TIMEOUT`].
    pub async fn discard(self) {
        let Some(mut rest) = self.0.filter(|rest| !rest.is_end_stream()) else { return };
        let reading = async {
            let mut discarded = 0;
            while discarded <= limits::BODY_DISCARDED_MAX
                && let Some(Ok(frame)) = rest.frame().await
            {
                discarded += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        // What does not come in time is not waited for: its sender is slow, or has none to send.
        tokio::time::timeout(limits::LINGER_TIMEOUT, reading).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream;

    use super::*;

    const PIECE: usize = 64 * 1024;

    /// A body of so many pieces, and how much of it was read.
    fn counted(pieces: usize) -> (Body, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&read);
        let pieces = (0..pieces).map(move |_| {
            counter.fetch_add(PIECE, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from(vec![b' '; PIECE]))
        });
        (Body::from_stream(stream::iter(pieces)), read)
    }

    #[tokio::test]
    async fn a_handler_reads_what_was_sent_and_an_empty_body_costs_nothing() {
        let (body, leftover) = share(Body::from("all of it"));
        assert_eq!(body.collect().await.expect("read").to_bytes(), "all of it");
        leftover.discard().await;
        let (body, leftover) = share(Body::empty());
        assert!(body.is_end_stream() && leftover.0.is_none());
    }

    #[tokio::test]
    async fn what_a_handler_leaves_is_read_to_its_end() {
        let (body, read) = counted(10);
        let (mut body, leftover) = share(body);
        drop(body.frame().await);
        drop(body);
        leftover.discard().await;
        assert_eq!(read.load(Ordering::Relaxed), 10 * PIECE);
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_read_on_for_a_while_only() {
        let (body, read) = counted(10 * limits::BODY_DISCARDED_MAX / PIECE);
        share(body).1.discard().await;
        let most = limits::BODY_DISCARDED_MAX + PIECE;
        assert_eq!(read.load(Ordering::Relaxed), most, "the piece that goes beyond it is the last");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_stops_is_waited_for_only_so_long() {
        let never = || Body::from_stream(stream::pending::<Result<Bytes, axum::Error>>());
        let just = limits::LINGER_TIMEOUT.saturating_sub(std::time::Duration::from_millis(10));
        let longer = limits::LINGER_TIMEOUT + std::time::Duration::from_millis(10);
        assert!(tokio::time::timeout(just, share(never()).1.discard()).await.is_err());
        assert!(tokio::time::timeout(longer, share(never()).1.discard()).await.is_ok());
    }
}
