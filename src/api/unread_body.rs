//! The rest of a request's body after its response is ready. It is read and discarded before the response is sent,
//! within limits: a client that is still sending when its stream or connection ends may never see the response, and many
//! HTTP clients report a framing error (curl over HTTP/2 does).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use crate::limits;

/// A body that is shared between its handler and [`UnreadBody`].
#[derive(Clone)]
struct Shared(Arc<Mutex<Body>>);

impl Shared {
    fn with<T>(&self, look: impl FnOnce(&mut Body) -> T) -> T {
        // They take turns, so the lock is free.
        look(&mut self.0.lock())
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
pub struct UnreadBody(Option<Shared>);

/// The body for the handler, and its rest.
pub fn share(body: Body) -> (Body, UnreadBody) {
    if body.is_end_stream() {
        return (body, UnreadBody(None));
    }
    let shared = Shared(Arc::new(Mutex::new(body)));
    (Body::new(shared.clone()), UnreadBody(Some(shared)))
}

impl UnreadBody {
    /// Reads to the end, or to [`limits::BODY_DISCARDED_BYTES_MAX`], for at most [`limits::LINGER_TIMEOUT`].
    pub async fn discard(self) {
        let Some(mut rest) = self.0.filter(|rest| !rest.is_end_stream()) else { return };
        let reading = async {
            let mut discarded = 0;
            while discarded <= limits::BODY_DISCARDED_BYTES_MAX
                && let Some(Ok(frame)) = rest.frame().await
            {
                discarded += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        // A slow or silent sender is not waited for.
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

    /// A body of `pieces`, and the number of bytes that were read of it.
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
    async fn handler_reads_the_body_and_an_empty_one_has_no_rest() {
        let (body, rest) = share(Body::from("all of it"));
        assert_eq!(body.collect().await.expect("read").to_bytes(), "all of it");
        rest.discard().await;
        let (body, rest) = share(Body::empty());
        assert!(body.is_end_stream() && rest.0.is_none());
    }

    #[tokio::test]
    async fn rest_of_a_body_is_read_to_its_end() {
        let (body, read) = counted(10);
        let (mut body, rest) = share(body);
        drop(body.frame().await);
        drop(body);
        rest.discard().await;
        assert_eq!(read.load(Ordering::Relaxed), 10 * PIECE);
    }

    #[tokio::test]
    async fn endless_body_is_read_up_to_the_limit() {
        let (body, read) = counted(10 * limits::BODY_DISCARDED_BYTES_MAX / PIECE);
        share(body).1.discard().await;
        let most = limits::BODY_DISCARDED_BYTES_MAX + PIECE;
        assert_eq!(read.load(Ordering::Relaxed), most, "the piece that exceeds the limit is the last");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_sender_is_not_waited_for() {
        let never = || Body::from_stream(stream::pending::<Result<Bytes, axum::Error>>());
        let just = limits::LINGER_TIMEOUT.saturating_sub(std::time::Duration::from_millis(10));
        let longer = limits::LINGER_TIMEOUT + std::time::Duration::from_millis(10);
        assert!(tokio::time::timeout(just, share(never()).1.discard()).await.is_err());
        assert!(tokio::time::timeout(longer, share(never()).1.discard()).await.is_ok());
    }
}
