//! What a connection is doing, counted without a lock: how many requests are under way, which of
//! them wait for the other end, and since when there is none. Time is counted in looks, one each
//! [`limits::CONNECTION_LOOK_INTERVAL`], so that a request costs no timer and no clock.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::limits;

/// Looks without a request under way after which a connection is idle.
const IDLE_LOOKS: usize = looks_in(limits::IDLE_TIMEOUT);
/// Looks after which a connection stalls if an answer has waited for the other end all the time.
const STALL_LOOKS: usize = looks_in(limits::WRITE_STALL_TIMEOUT) + 1;
/// One place for each look that an answer can have waited since.
const WAITING_PLACES: usize = STALL_LOOKS + 1;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The other end closed it, or both ends had agreed to.
    Closed,
    /// An error of the network, of TLS or of HTTP.
    Failed,
    /// No request within [`limits::FIRST_REQUEST_TIMEOUT`].
    FirstRequest,
    /// It was in the reserve and its time was over.
    Reserve,
    /// The head of a request was not complete in time.
    HeaderTimeout,
    /// No request for [`limits::IDLE_TIMEOUT`].
    Idle,
    /// The other end did not read on for [`limits::WRITE_STALL_TIMEOUT`].
    WriteStall,
    /// Its greatest age.
    Age,
    /// The TLS configuration changed.
    Reload,
    /// A request was refused for how it was framed.
    Violation,
    /// The listener stops.
    Shutdown,
}

impl Ended {
    /// As a label of a metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Failed => "failed",
            Self::FirstRequest => "first_request",
            Self::Reserve => "reserve",
            Self::HeaderTimeout => "header_timeout",
            Self::Idle => "idle",
            Self::WriteStall => "write_stall",
            Self::Age => "age",
            Self::Reload => "reload",
            Self::Violation => "violation",
            Self::Shutdown => "shutdown",
        }
    }
}

/// What one connection is doing.
#[derive(Debug, Default)]
pub struct Activity {
    requests: AtomicU64,
    under_way: AtomicUsize,
    looks: AtomicUsize,
    last_end: AtomicUsize,
    /// Answers that wait for the other end, by the look since which they do.
    waiting: [AtomicUsize; WAITING_PLACES],
    ended: OnceLock<Ended>,
}

impl Activity {
    /// A request was read; it is under way until the answer of this is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let number = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        UnderWay { activity: Arc::clone(self), number, waits_since: None }
    }

    /// Whether a request is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Whether no request was read yet.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// One look: whether the connection has been idle, or an answer has waited, for too long.
    #[must_use]
    pub fn look(&self) -> Option<Ended> {
        let now = self.looks.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.is_busy() {
            let idle = now.saturating_sub(self.last_end.load(Ordering::Acquire));
            return (idle > IDLE_LOOKS).then_some(Ended::Idle);
        }
        // The place that the next look's answers would share.
        let longest = now.checked_sub(STALL_LOOKS).and_then(|since| self.waiting_since(since));
        longest.is_some_and(|waiting| waiting.load(Ordering::Acquire) > 0).then_some(Ended::WriteStall)
    }

    /// Notes why the connection ends, for whoever ends it; the first reason stays.
    pub fn end(&self, reason: Ended) {
        let _: Result<(), Ended> = self.ended.set(reason);
    }

    /// The reason noted.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended.get().copied()
    }

    fn waiting_since(&self, look: usize) -> Option<&AtomicUsize> {
        self.waiting.get(look % WAITING_PLACES)
    }
}

/// A request under way.
#[derive(Debug)]
pub struct UnderWay {
    activity: Arc<Activity>,
    number: u64,
    waits_since: Option<usize>,
}

impl UnderWay {
    /// The number of the request on its connection, from 1.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    fn wait_for_other_end(&mut self) {
        let now = self.activity.looks.load(Ordering::Acquire);
        if let Some(waiting) = self.activity.waiting_since(now) {
            waiting.fetch_add(1, Ordering::AcqRel);
        }
        self.waits_since = Some(now);
    }

    fn go_on(&mut self) {
        if let Some(waiting) = self.waits_since.take().and_then(|since| self.activity.waiting_since(since)) {
            waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.go_on();
        self.activity.last_end.store(self.activity.looks.load(Ordering::Acquire), Ordering::Release);
        self.activity.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of an answer; its request is under way until it is dropped. While nobody asks it for
/// more, it waits for the other end.
#[derive(Debug)]
pub struct Answering<B> {
    body: B,
    request: UnderWay,
}

impl<B> Answering<B> {
    /// The body that answers `request`.
    pub fn new(body: B, mut request: UnderWay) -> Self {
        request.wait_for_other_end();
        Self { body, request }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answering<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        this.request.go_on();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.request.wait_for_other_end();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How often a connection is looked at in `duration`.
const fn looks_in(duration: Duration) -> usize {
    let mut looks = 0;
    while (looks as u64 + 1) * limits::CONNECTION_LOOK_INTERVAL.as_secs() <= duration.as_secs() {
        looks += 1;
    }
    looks
}
