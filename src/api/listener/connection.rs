//! One connection from its first byte to its last: the HTTP library with our limits around it, and
//! when it is closed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, header};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::framing::{Framed, Heads};
use super::head::{self, Violation};
use super::idle_tracker::{Activity, Answering, Ended};
use crate::api::connect_info::{Channel, Peer};
use crate::limits;

/// What serves the requests of one connection, and what may end it.
#[derive(Debug)]
pub struct Connection {
    /// Answers requests.
    pub router: Router,
    /// The other end.
    pub peer: Arc<Peer>,
    /// Until when the first request must have been read.
    pub first_request_by: Instant,
    /// The generation of the TLS configuration; without TLS nothing.
    pub changes: Option<watch::Receiver<u64>>,
    /// The listener stops.
    pub shutdown: CancellationToken,
}

impl Connection {
    /// Serves HTTP/1.1 until the connection ends.
    pub async fn http1<S>(self, stream: S) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::<Activity>::default();
        let heads = Arc::<Heads>::default();
        let stream = Framed::new(stream, Arc::clone(&heads), Arc::clone(&activity));
        let checked = Arc::clone(&heads);
        let service = self.service(&activity, move |number, _| checked.violation_of(number));
        let mut connection = http1::Builder::new()
            // Of heads there is a deadline where they are checked; the library's own counts the time
            // between two requests too.
            .header_read_timeout(None)
            .max_headers(limits::HEADERS_MAX)
            .max_buf_size(limits::HTTP1_SEND_BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let ended =
            self.watch(Pin::new(&mut connection), http1::Connection::graceful_shutdown, &activity).await;
        if !heads.is_refused() {
            return ended;
        }
        // In a box: only few connections come here, and all would have the room for it.
        Box::pin(connection.into_parts().io.into_inner().linger()).await;
        Ended::Violation
    }

    /// Serves HTTP/2 until the connection ends.
    pub async fn http2<S>(self, stream: S) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::<Activity>::default();
        let service = self.service(&activity, |_, request| check_http2(request).err());
        // Dropped with the connection, and the requests with it.
        let streams = Arc::<Mutex<JoinSet<()>>>::default();
        let connection = http2::Builder::new(Streams(Arc::downgrade(&streams)))
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits::HTTP2_STREAMS_MAX)
            .max_header_list_size(limits::HTTP2_HEADER_LIST_BYTES_MAX)
            .max_pending_accept_reset_streams(limits::HTTP2_PENDING_RESETS_MAX)
            .max_local_error_reset_streams(limits::HTTP2_LOCAL_RESETS_MAX)
            .adaptive_window(false)
            .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_CONNECTION_WINDOW_BYTES)
            .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
            .max_send_buf_size(limits::HTTP2_SEND_BUFFER_BYTES)
            .keep_alive_interval(limits::HTTP2_PING_INTERVAL)
            .keep_alive_timeout(limits::HTTP2_PING_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = pin!(connection);
        self.watch(connection, http2::Connection::graceful_shutdown, &activity).await
    }

    /// Answers the connection's requests; `judge` says what is wrong with the one of that number.
    fn service<J>(
        &self,
        activity: &Arc<Activity>,
        judge: J,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<Answering<Body>>,
        Error = Infallible,
        Future: Send + 'static,
    > + use<J>
    where
        J: Fn(u64, &Request<Incoming>) -> Option<Violation>,
    {
        let (router, peer, activity) = (self.router.clone(), Arc::clone(&self.peer), Arc::clone(activity));
        service_fn(move |request| {
            let under_way = activity.begin();
            let violation = judge(under_way.number(), &request);
            let answered = answer(&router, &peer, violation, request);
            async move { Ok(answered.await.map(|body| Answering::new(body, under_way))) }
        })
    }

    /// Drives `connection` to its end, or to the time at which it is closed.
    async fn watch<C>(self, mut connection: Pin<&mut C>, close: fn(Pin<&mut C>), activity: &Activity) -> Ended
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let natural = |ended: hyper::Result<()>| match ended {
            Ok(()) => activity.ended().unwrap_or(Ended::Closed),
            Err(error) => {
                tracing::debug!(%error, "connection");
                activity.ended().unwrap_or(if timed_out(&error) { Ended::WriteStall } else { Ended::Failed })
            }
        };
        // Not polled each time that the connection is: waiting for a token takes a lock that all
        // connections share.
        let mut reasons = FuturesUnordered::from_iter([self.reason_to_close(activity)]);
        let reason = tokio::select! {
            biased;
            ended = connection.as_mut() => return natural(ended),
            Some(reason) = reasons.next() => reason,
        };
        let drain = match reason {
            Ended::FirstRequest | Ended::WriteStall => return reason,
            // Its place is scarce: only an answer that is under way is waited for.
            Ended::Reserve if !activity.is_busy() => return reason,
            Ended::Reserve => limits::LINGER_TIMEOUT,
            _ => limits::DRAIN_TIMEOUT,
        };
        close(connection.as_mut());
        drop(tokio::time::timeout(drain, connection).await);
        reason
    }

    /// Waits until there is a reason to close the connection.
    async fn reason_to_close(&self, activity: &Activity) -> Ended {
        let by_looking = async {
            tokio::time::sleep_until(self.first_request_by).await;
            if activity.is_unused() {
                return Ended::FirstRequest;
            }
            if self.peer.in_reserve {
                return Ended::Reserve;
            }
            loop {
                tokio::time::sleep(limits::CONNECTION_LOOK_INTERVAL).await;
                if let Some(reason) = activity.look() {
                    return reason;
                }
            }
        };
        let age_max = match self.peer.channel {
            Channel::Plain => limits::CONNECTION_AGE_MAX,
            Channel::Tls(_) => limits::TLS_CONNECTION_AGE_MAX,
        };
        let changed = async {
            if let Some(mut changes) = self.changes.clone()
                && changes.changed().await.is_ok()
            {
                return;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            reason = by_looking => reason,
            () = tokio::time::sleep(age_max) => Ended::Age,
            () = changed => Ended::Reload,
            () = self.shutdown.cancelled() => Ended::Shutdown,
        }
    }
}

/// Spawns the requests of one HTTP/2 connection, as tasks that end with it. Weak, because the tasks
/// themselves hold it.
#[derive(Clone, Debug)]
struct Streams(Weak<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Some(streams) = self.0.upgrade() else { return };
        // Only the connection's own task comes here, so it never waits.
        let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}

/// What HTTP/2 itself leaves open of the rules of [`head`].
fn check_http2(request: &Request<Incoming>) -> Result<(), Violation> {
    if request.headers().len() > limits::HEADERS_MAX {
        return Err(Violation::TooManyHeaders);
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > limits::REQUEST_LINE_BYTES_MAX {
        return Err(Violation::RequestLineTooLong);
    }
    // RFC 9113 §8.3.1: `:authority`, or a Host header, and not two that differ.
    let mut named = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = match (authority, named.next(), named.next()) {
        (Some(authority), Some(host), None) if authority == host => host,
        (Some(only), None, None) | (None, Some(only), None) => only,
        _ => return Err(Violation::Host),
    };
    if !head::is_authority(host) {
        return Err(Violation::Host);
    }
    let is_origin_form = request.uri().path().starts_with('/');
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    if request.method() == Method::CONNECT || !is_origin_form || !target.bytes().all(head::is_of_target) {
        return Err(Violation::Target);
    }
    Ok(())
}

/// The router's answer to a request that carries its peer; or to a bare one that carries what is
/// wrong with the request, so that nothing behind can mistake it for one to be served.
fn answer(
    router: &Router,
    peer: &Arc<Peer>,
    violation: Option<Violation>,
    request: Request<Incoming>,
) -> impl Future<Output = Response<Body>> + use<> {
    // A chunked request is the last of its connection (see `framing`).
    let is_last =
        peer.in_reserve || violation.is_some() || request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut request = match violation {
        None => request.map(Body::new),
        Some(violation) => {
            // With its body, which is read and thrown away before the answer.
            let mut bare = Request::new(Body::new(request.into_body()));
            bare.extensions_mut().insert(violation);
            bare
        }
    };
    request.extensions_mut().insert(Arc::clone(peer));
    let answer = router.clone().oneshot(request);
    async move {
        let Ok(mut answer) = answer.await;
        if is_last {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Whether the network gave up an error of time: the stream has one limit of its own, on writing.
fn timed_out(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::TimedOut;
        }
        source = error.source();
    }
    false
}
