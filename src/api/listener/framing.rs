//! HTTP/1.1 between the stream and the HTTP library: only complete and checked heads pass ([`super::head`]), and bodies
//! are counted, so that no byte of a body is read as a head and no head passes unchecked.
//!
//! In place of a refused head the library reads a well-formed one, and its request carries the [`Violation`], so that it
//! is answered in order and like every other request.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::head::{self, Body, Scan, Violation};
use super::idle_tracker::{Ended, IdleTracker};
use crate::limits;

/// Passed to the HTTP library in place of a refused head.
const SUBSTITUTE: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// The checks of one connection's heads, shared with its service.
#[derive(Debug, Default)]
pub struct Heads {
    passed: AtomicU64,
    /// The number of the refused request, from 1, and the violation.
    refused: OnceLock<(u64, Violation)>,
}

impl Heads {
    /// The violation of the request that the HTTP library read as its `number`th.
    ///
    /// The library reads ahead of its responses, so the last violation may belong to a later request.
    #[must_use]
    pub fn violation_of(&self, number: u64) -> Option<Violation> {
        match self.refused.get() {
            Some((refused, violation)) if *refused == number => Some(*violation),
            _ if number > self.passed.load(Ordering::Acquire) => Some(Violation::Unchecked),
            _ => None,
        }
    }

    /// Whether a head was refused.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refused.get().is_some()
    }
}

/// A stream that yields checked HTTP/1.1 only.
#[derive(Debug)]
pub struct Framed<S> {
    stream: S,
    heads: Arc<Heads>,
    tracker: Arc<IdleTracker>,
    /// Received, not yet passed.
    received: Vec<u8>,
    scan: Scan,
    next: Next,
    /// Deadline of a head that has begun.
    head_deadline: Option<Pin<Box<Sleep>>>,
}

/// The state of the parser.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A head to check.
    Head,
    /// Remaining bytes of a checked head and its body.
    Checked(u64),
    /// Chunks up to the end of the connection: only the library parses chunks, so no second parser can disagree.
    Chunks,
    /// The rest of [`SUBSTITUTE`], then nothing.
    Refused(&'static [u8]),
}

impl<S: AsyncRead + Unpin> Framed<S> {
    /// Wraps a fresh stream.
    pub fn new(stream: S, heads: Arc<Heads>, tracker: Arc<IdleTracker>) -> Self {
        Self {
            stream,
            heads,
            tracker,
            received: Vec::new(),
            scan: Scan::default(),
            next: Next::Head,
            head_deadline: None,
        }
    }

    /// Reads and discards the rest of a refused request, so that its sender reads the response: closing a socket with
    /// unread bytes discards the response (RFC 9112 §9.6).
    pub async fn linger(mut self) {
        let discarding = async {
            let mut bytes = [0; limits::HEAD_BYTES_PER_READ_MAX];
            let mut discarded = 0;
            while discarded <= limits::BODY_DISCARDED_BYTES_MAX
                && let Ok(read @ 1..) = self.stream.read(&mut bytes).await
            {
                discarded += read;
            }
        };
        drop(tokio::time::timeout(limits::LINGER_TIMEOUT, discarding).await);
    }

    /// Receives into the buffer; whether anything arrived.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [std::mem::MaybeUninit::uninit(); limits::HEAD_BYTES_PER_READ_MAX];
        let mut bytes = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut bytes))?;
        self.received.extend_from_slice(bytes.filled());
        Poll::Ready(Ok(!bytes.filled().is_empty()))
    }

    /// Checks whether a complete head was received.
    fn check_head(&mut self) -> Result<Option<Next>, Violation> {
        let Some((head, end)) = self.scan.head_in(&self.received)? else { return Ok(None) };
        match head::check(head)? {
            Body::Chunked => Ok(Some(Next::Chunks)),
            Body::Length(length) => Ok(Some(Next::Checked(length.saturating_add(end as u64)))),
        }
    }

    /// Passes at most `most` received bytes; returns the number.
    fn pass(&mut self, most: u64, buf: &mut ReadBuf<'_>) -> u64 {
        let passed =
            self.received.len().min(buf.remaining()).min(usize::try_from(most).unwrap_or(usize::MAX));
        buf.put_slice(self.received.get(..passed).unwrap_or_default());
        self.received.drain(..passed);
        if self.received.is_empty() {
            // An idle connection keeps only a small buffer.
            self.received.shrink_to(limits::HEAD_BYTES_PER_READ_MAX);
        }
        passed as u64
    }

    /// Reads at most `most` bytes without a copy; bytes beyond them are buffered.
    fn poll_pass(&mut self, cx: &mut Context<'_>, most: u64, buf: &mut ReadBuf<'_>) -> Poll<io::Result<u64>> {
        if !self.received.is_empty() {
            return Poll::Ready(Ok(self.pass(most, buf)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let passed = usize::try_from(most).map_or(read, |most| read.min(most));
        self.received.extend_from_slice(buf.filled().get(before + passed..).unwrap_or_default());
        buf.set_filled(before + passed);
        Poll::Ready(Ok(passed as u64))
    }

    /// Whether a head that has begun exceeds its deadline.
    fn head_is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let deadline =
            self.head_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limits::HEADER_TIMEOUT)));
        while deadline.as_mut().poll(cx).is_ready() {
            // A partial head after a request must not end that request.
            if !self.tracker.is_busy() {
                return true;
            }
            deadline.set(tokio::time::sleep(limits::HEADER_TIMEOUT));
        }
        false
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Framed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.next {
                Next::Checked(0) => this.next = Next::Head,
                Next::Checked(left) => {
                    let passed = ready!(this.poll_pass(cx, left, buf))?;
                    this.next = Next::Checked(left.saturating_sub(passed));
                    return Poll::Ready(Ok(()));
                }
                Next::Chunks => {
                    ready!(this.poll_pass(cx, u64::MAX, buf))?;
                    return Poll::Ready(Ok(()));
                }
                Next::Head => match this.check_head() {
                    Ok(Some(next)) => {
                        this.heads.passed.fetch_add(1, Ordering::Release);
                        this.next = next;
                        this.scan = Scan::default();
                        this.head_deadline = None;
                    }
                    Ok(None) => match this.poll_receive(cx) {
                        Poll::Ready(Ok(true)) => {}
                        // The end. Nothing of an incomplete head was passed.
                        Poll::Ready(Ok(false)) => return Poll::Ready(Ok(())),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending if !this.received.is_empty() && this.head_is_late(cx) => {
                            this.tracker.end(Ended::HeaderTimeout);
                            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                        }
                        Poll::Pending => return Poll::Pending,
                    },
                    Err(violation) => {
                        let number = this.heads.passed.load(Ordering::Relaxed) + 1;
                        // No head is read after this one.
                        let _: Result<(), _> = this.heads.refused.set((number, violation));
                        this.next = Next::Refused(SUBSTITUTE);
                        this.received = Vec::new();
                        this.head_deadline = None;
                    }
                },
                // Not the end of the stream, which would end the requests in flight.
                Next::Refused([]) => return Poll::Pending,
                Next::Refused(rest) => {
                    let (now, later) = rest.split_at(rest.len().min(buf.remaining()));
                    buf.put_slice(now);
                    this.next = Next::Refused(later);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Framed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_belongs_to_one_request_and_unchecked_is_refused() {
        let heads = Heads::default();
        assert_eq!(heads.violation_of(1), Some(Violation::Unchecked));
        heads.passed.store(1, Ordering::Release);
        heads.refused.set((2, Violation::Host)).expect("the first");
        assert_eq!(heads.violation_of(1), None, "checked");
        assert_eq!(heads.violation_of(2), Some(Violation::Host));
        assert_eq!(heads.violation_of(3), Some(Violation::Unchecked));
    }
}
