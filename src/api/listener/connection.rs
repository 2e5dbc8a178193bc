//! One connection: the HTTP library with our limits, and the reasons to close it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, header};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::HasChanged;
use super::framing::{Framed, Heads};
use super::head::{self, Violation};
use super::idle_tracker::{Download, Ended, IdleTracker, TrackedBody};
use crate::api::connect_info::{Channel, ClientConnection};
use crate::limits;

/// The service of one connection, and its reasons to end.
pub struct Connection {
    /// Serves the requests.
    pub router: Router,
    /// Goes into every request.
    pub peer: Arc<ClientConnection>,
    /// Deadline of the first request.
    pub first_request_by: Instant,
    /// Changes of the TLS configuration; `None` without TLS.
    pub changes: Option<Changes>,
    /// Cancelled when the listener stops.
    pub shutdown: CancellationToken,
}

/// Changes of the TLS configuration since a handshake.
pub struct Changes {
    pub receiver: watch::Receiver<u64>,
    /// The generation before the handshake.
    pub generation: u64,
    pub has_changed: HasChanged,
}

impl Changes {
    /// Waits for one by which the certificate of `channel` might be refused.
    async fn until_changed(&self, channel: &Channel) {
        let certificate = if let Channel::Tls(certificate) = channel { certificate.as_ref() } else { None };
        let trust_domain = certificate.map(|certificate| certificate.spiffe_id.trust_domain());
        let mut changes = self.receiver.clone();
        while changes.changed().await.is_ok() {
            if (self.has_changed)(self.generation, trust_domain) {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

impl Connection {
    /// Serves HTTP/1.1 until the connection ends.
    pub async fn http1<S>(self, stream: S) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tracker = Arc::<IdleTracker>::default();
        let heads = Arc::<Heads>::default();
        let stream = Framed::new(stream, Arc::clone(&heads), Arc::clone(&tracker));
        let checked = Arc::clone(&heads);
        let service = self.service(&tracker, move |number, _| checked.violation_of(number));
        let mut connection = http1::Builder::new()
            // `Framed` has a deadline for heads; the library's own would also count the time between two requests.
            .header_read_timeout(None)
            .max_headers(limits::HEADERS_MAX)
            .max_buf_size(limits::HTTP1_SEND_BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let ended =
            self.watch(Pin::new(&mut connection), http1::Connection::graceful_shutdown, &tracker).await;
        if !heads.is_refused() {
            return ended;
        }
        // Boxed: few connections come here, and every one would pay for its size.
        Box::pin(connection.into_parts().io.into_inner().linger()).await;
        Ended::Violation
    }

    /// Serves HTTP/2 until the connection ends.
    pub async fn http2<S>(self, stream: S) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tracker = Arc::<IdleTracker>::default();
        let service = self.service(&tracker, |_, request| check_http2(request).err());
        // Dropped with the connection, which aborts its requests.
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
        self.watch(connection, http2::Connection::graceful_shutdown, &tracker).await
    }

    /// Serves the connection's requests; `judge` returns the violation of the request with that number.
    fn service<J>(
        &self,
        tracker: &Arc<IdleTracker>,
        judge: J,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<TrackedBody<Body>>,
        Error = Infallible,
        Future: Send + 'static,
    > + use<J>
    where
        J: Fn(u64, &Request<Incoming>) -> Option<Violation>,
    {
        let (router, peer, tracker) = (self.router.clone(), Arc::clone(&self.peer), Arc::clone(tracker));
        service_fn(move |request| {
            let mut in_flight = tracker.begin();
            let violation = judge(in_flight.number(), &request);
            let answered = answer(&router, &peer, violation, request);
            async move {
                let answer = answered.await;
                if answer.extensions().get::<Download>().is_some() {
                    in_flight.set_download();
                }
                Ok(answer.map(|body| TrackedBody::new(body, in_flight)))
            }
        })
    }

    /// Drives `connection` to its end or to the deadline at which it is closed.
    async fn watch<C>(
        self,
        mut connection: Pin<&mut C>,
        close: fn(Pin<&mut C>),
        tracker: &IdleTracker,
    ) -> Ended
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let natural = |ended: hyper::Result<()>| match ended {
            Ok(()) => tracker.ended().unwrap_or(Ended::Closed),
            Err(error) => {
                tracing::debug!(%error, "connection");
                tracker.ended().unwrap_or(if timed_out(&error) { Ended::WriteStall } else { Ended::Failed })
            }
        };
        // Polled on its own: polling a cancellation token takes a lock that all connections share.
        let mut reasons = FuturesUnordered::from_iter([self.reason_to_close(tracker)]);
        let reason = tokio::select! {
            biased;
            ended = connection.as_mut() => return natural(ended),
            Some(reason) = reasons.next() => reason,
        };
        let drain = match reason {
            Ended::FirstRequest | Ended::WriteStall => return reason,
            // The reserve is scarce: only a response in flight is waited for.
            Ended::Reserve if !tracker.is_busy() => return reason,
            Ended::Reserve => limits::LINGER_TIMEOUT,
            Ended::Age | Ended::Reload if tracker.is_downloading() => limits::DOWNLOAD_DRAIN_TIMEOUT,
            _ => limits::DRAIN_TIMEOUT,
        };
        close(connection.as_mut());
        drop(tokio::time::timeout(drain, connection).await);
        reason
    }

    /// Waits for a reason to close the connection.
    async fn reason_to_close(&self, tracker: &IdleTracker) -> Ended {
        let by_sampling = async {
            tokio::time::sleep_until(self.first_request_by).await;
            if tracker.is_unused() {
                return Ended::FirstRequest;
            }
            if self.peer.in_reserve {
                return Ended::Reserve;
            }
            loop {
                tokio::time::sleep(limits::CONNECTION_CHECK_INTERVAL).await;
                if let Some(reason) = tracker.sample() {
                    return reason;
                }
            }
        };
        let age_max = match self.peer.channel {
            Channel::Plain => limits::CONNECTION_AGE_MAX,
            Channel::Tls(_) => limits::TLS_CONNECTION_AGE_MAX,
        };
        let changed = async {
            match &self.changes {
                Some(changes) => changes.until_changed(&self.peer.channel).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reason = by_sampling => reason,
            () = tokio::time::sleep(age_max) => Ended::Age,
            () = changed => Ended::Reload,
            () = self.shutdown.cancelled() => Ended::Shutdown,
        }
    }
}

/// Spawns the requests of one HTTP/2 connection as tasks that end with it. Weak, because the tasks hold it too.
#[derive(Clone, Debug)]
struct Streams(Weak<Mutex<JoinSet<()>>>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Some(streams) = self.0.upgrade() else { return };
        // Only the connection's own task calls this, so the lock is free.
        let mut streams = streams.lock();
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }
}

/// The rules of [`head`] that HTTP/2 does not enforce itself.
fn check_http2(request: &Request<Incoming>) -> Result<(), Violation> {
    if request.headers().len() > limits::HEADERS_MAX {
        return Err(Violation::TooManyHeaders);
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > limits::REQUEST_LINE_BYTES_MAX {
        return Err(Violation::RequestLineTooLong);
    }
    // RFC 9113 §8.3.1: `:authority` or `Host`; both only if they are equal.
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

/// The router's response. A request with a violation is replaced by a bare one that carries it, so that no handler can
/// serve it by mistake.
fn answer(
    router: &Router,
    peer: &Arc<ClientConnection>,
    violation: Option<Violation>,
    request: Request<Incoming>,
) -> impl Future<Output = Response<Body>> + use<> {
    // A chunked request is the last of its connection (see `framing`).
    let is_last =
        peer.in_reserve || violation.is_some() || request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut request = match violation {
        None => request.map(Body::new),
        Some(violation) => {
            // The body is kept, to be read and discarded before the response.
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

/// Whether the error is a timeout of the stream, which has only one, on writing.
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
