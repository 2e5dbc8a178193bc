//! Idle and stall detection of a connection without locks: requests in flight, responses that wait for the client, and
//! the time without requests. Time is counted in samples, one each [`limits::CONNECTION_CHECK_INTERVAL`], so that a
//! request costs no timer and no clock.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::limits;

/// Samples without a request in flight after which a connection is idle.
const IDLE_SAMPLES: usize = samples_in(limits::IDLE_TIMEOUT);
/// Samples after which a connection is stalled if a response has waited for the client all the time.
const STALL_SAMPLES: usize = samples_in(limits::WRITE_STALL_TIMEOUT) + 1;
/// One counter for each sample since which a response can have waited.
const WAITING_SLOTS: usize = STALL_SAMPLES + 1;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Ended {
    /// The client closed it, or both ends agreed to.
    Closed,
    /// An error of the network, of TLS or of HTTP.
    Failed,
    /// No request within [`limits::FIRST_REQUEST_TIMEOUT`].
    FirstRequest,
    /// Its time in the reserve elapsed.
    Reserve,
    /// The head of a request was not complete in time.
    HeaderTimeout,
    /// No request for [`limits::IDLE_TIMEOUT`].
    Idle,
    /// The client did not read for [`limits::WRITE_STALL_TIMEOUT`].
    WriteStall,
    /// It reached its maximum age.
    Age,
    /// The TLS configuration changed.
    Reload,
    /// The framing of a request was refused.
    Violation,
    /// The listener stopped.
    Shutdown,
}

/// Marks a response, in its extensions, that may take longer than a connection lives, and that its client would have to request
/// from the beginning again.
#[derive(Clone, Copy, Debug)]
pub struct Download;

/// Tracks one connection.
#[derive(Debug, Default)]
pub struct IdleTracker {
    requests: AtomicU64,
    in_flight: AtomicUsize,
    downloads: AtomicUsize,
    samples: AtomicUsize,
    last_end: AtomicUsize,
    /// Responses that wait for the client, by the sample since which they do.
    waiting: [AtomicUsize; WAITING_SLOTS],
    ended: OnceLock<Ended>,
}

impl IdleTracker {
    /// A request was read; it is in flight until the body of its response is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let number = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        InFlight { tracker: Arc::clone(self), number, waits_since: None, is_download: false }
    }

    /// Whether a request is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Whether a [`Download`] is in flight.
    #[must_use]
    pub fn is_downloading(&self) -> bool {
        self.downloads.load(Ordering::Acquire) > 0
    }

    /// Whether no request was read yet.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Takes a sample: whether the connection has been idle, or a response has waited, for too long.
    #[must_use]
    pub fn sample(&self) -> Option<Ended> {
        let now = self.samples.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.is_busy() {
            let idle = now.saturating_sub(self.last_end.load(Ordering::Acquire));
            return (idle > IDLE_SAMPLES).then_some(Ended::Idle);
        }
        // The counter that responses of the next sample would share.
        let longest = now.checked_sub(STALL_SAMPLES).and_then(|since| self.waiting_since(since));
        longest.is_some_and(|waiting| waiting.load(Ordering::Acquire) > 0).then_some(Ended::WriteStall)
    }

    /// Records why the connection ends; the first reason counts.
    pub fn end(&self, reason: Ended) {
        let _: Result<(), Ended> = self.ended.set(reason);
    }

    /// The recorded reason.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended.get().copied()
    }

    fn waiting_since(&self, sample: usize) -> Option<&AtomicUsize> {
        self.waiting.get(sample % WAITING_SLOTS)
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    tracker: Arc<IdleTracker>,
    number: u64,
    waits_since: Option<usize>,
    is_download: bool,
}

impl InFlight {
    /// The number of the request on its connection, from 1.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its response is a [`Download`].
    pub fn set_download(&mut self) {
        self.is_download = true;
        self.tracker.downloads.fetch_add(1, Ordering::AcqRel);
    }

    fn wait_for_client(&mut self) {
        let now = self.tracker.samples.load(Ordering::Acquire);
        if let Some(waiting) = self.tracker.waiting_since(now) {
            waiting.fetch_add(1, Ordering::AcqRel);
        }
        self.waits_since = Some(now);
    }

    fn resume(&mut self) {
        if let Some(waiting) = self.waits_since.take().and_then(|since| self.tracker.waiting_since(since)) {
            waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.resume();
        if self.is_download {
            self.tracker.downloads.fetch_sub(1, Ordering::AcqRel);
        }
        self.tracker.last_end.store(self.tracker.samples.load(Ordering::Acquire), Ordering::Release);
        self.tracker.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of a response. Its request is in flight until this is dropped; while it is not polled, it waits for the
/// client.
#[derive(Debug)]
pub struct TrackedBody<B> {
    body: B,
    request: InFlight,
}

impl<B> TrackedBody<B> {
    /// The body of the response to `request`.
    pub fn new(body: B, mut request: InFlight) -> Self {
        request.wait_for_client();
        Self { body, request }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        this.request.resume();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.request.wait_for_client();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Samples within `duration`.
const fn samples_in(duration: Duration) -> usize {
    let mut samples = 0;
    while (samples as u64 + 1) * limits::CONNECTION_CHECK_INTERVAL.as_secs() <= duration.as_secs() {
        samples += 1;
    }
    samples
}
