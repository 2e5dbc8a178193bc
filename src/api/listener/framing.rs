//! HTTP/1.1 on its way from the stream to the HTTP library: only whole and checked heads pass
//! ([`super::head`]), and the body between two heads is counted, so that no byte of a body is taken
//! for a head and no head passes unchecked.
//!
//! Nothing is answered here. In place of a refused head the library gets a well-formed one, and the
//! request made of it carries the [`Violation`], so that it is answered in its turn and like every
//! other request.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::head::{self, Body, Scan, Violation};
use super::idle_tracker::{Activity, Ended};
use crate::limits;

/// Given to the HTTP library in place of a head that is refused.
const SUBSTITUTE: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// What the stream knows of the requests of its connection, for the connection's service.
#[derive(Debug, Default)]
pub struct Heads {
    passed: AtomicU64,
    /// The number of the request it belongs to, from 1, and the violation.
    refused: OnceLock<(u64, Violation)>,
}

impl Heads {
    /// What is wrong with the request that the HTTP library read as its `number`th.
    ///
    /// The library reads ahead of what it answers: the last violation seen need not be this
    /// request's.
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

/// A stream whose reader gets checked HTTP/1.1 only.
#[derive(Debug)]
pub struct Framed<S> {
    stream: S,
    heads: Arc<Heads>,
    activity: Arc<Activity>,
    /// Received and not passed on yet.
    received: Vec<u8>,
    scan: Scan,
    next: Next,
    /// When the head that has begun must be complete.
    head_deadline: Option<Pin<Box<Sleep>>>,
}

/// What comes next on the stream.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A head, to be checked.
    Head,
    /// So many bytes that may pass: a checked head and its body.
    Checked(u64),
    /// Chunks up to the end: the last request of its connection, so that no reading of chunks but
    /// the library's own can matter.
    Chunks,
    /// The rest of [`SUBSTITUTE`], and nothing after it.
    Refused(&'static [u8]),
}

impl<S: AsyncRead + Unpin> Framed<S> {
    /// Around a stream on which nothing was read yet.
    pub fn new(stream: S, heads: Arc<Heads>, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            heads,
            activity,
            received: Vec::new(),
            scan: Scan::default(),
            next: Next::Head,
            head_deadline: None,
        }
    }

    /// Reads and throws away what the sender of a refused request still sends, so that it comes to
    /// read the answer: closing a socket with unread bytes takes the answer back.
    pub async fn linger(mut self) {
        let discarding = async {
            let mut bytes = [0; limits::HEAD_BYTES_PER_READ_MAX];
            let mut discarded = 0;
            while discarded <= limits::BODY_DISCARDED_MAX
                && let Ok(read @ 1..) = self.stream.read(&mut bytes).await
            {
                discarded += read;
            }
        };
        drop(tokio::time::timeout(limits::LINGER_TIMEOUT, discarding).await);
    }

    /// Reads into memory of our own; the answer is whether anything came.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [std::mem::MaybeUninit::uninit(); limits::HEAD_BYTES_PER_READ_MAX];
        let mut bytes = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut bytes))?;
        self.received.extend_from_slice(bytes.filled());
        Poll::Ready(Ok(!bytes.filled().is_empty()))
    }

    /// Looks whether what was received is a whole head.
    fn check_head(&mut self) -> Result<Option<Next>, Violation> {
        let Some((head, end)) = self.scan.head_in(&self.received)? else { return Ok(None) };
        match head::check(head)? {
            Body::Chunked => Ok(Some(Next::Chunks)),
            Body::Length(length) => Ok(Some(Next::Checked(length.saturating_add(end as u64)))),
        }
    }

    /// Passes on what was received, at most `most` bytes; the answer is how many.
    fn pass(&mut self, most: u64, buf: &mut ReadBuf<'_>) -> u64 {
        let passed =
            self.received.len().min(buf.remaining()).min(usize::try_from(most).unwrap_or(usize::MAX));
        buf.put_slice(self.received.get(..passed).unwrap_or_default());
        self.received.drain(..passed);
        if self.received.is_empty() {
            // An idle connection keeps no more than a usual head needs.
            self.received.shrink_to(limits::HEAD_BYTES_PER_READ_MAX);
        }
        passed as u64
    }

    /// Reads bytes that may pass without a copy, at most `most`; what came beyond them is kept.
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

    /// Whether the head that has begun has taken too long.
    fn head_is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let deadline =
            self.head_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limits::HEADER_TIMEOUT)));
        while deadline.as_mut().poll(cx).is_ready() {
            // Half a head behind a request must not end that request.
            if !self.activity.is_busy() {
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
                        // The end. Of a head that has begun nothing was passed on.
                        Poll::Ready(Ok(false)) => return Poll::Ready(Ok(())),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending if !this.received.is_empty() && this.head_is_late(cx) => {
                            this.activity.end(Ended::HeaderTimeout);
                            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                        }
                        Poll::Pending => return Poll::Pending,
                    },
                    Err(violation) => {
                        let number = this.heads.passed.load(Ordering::Relaxed) + 1;
                        // Nothing is read as a head after this, so it is the first and only one.
                        let _: Result<(), _> = this.heads.refused.set((number, violation));
                        this.next = Next::Refused(SUBSTITUTE);
                        this.received = Vec::new();
                        this.head_deadline = None;
                    }
                },
                // Not the end of the stream: that would end the requests under way.
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
    fn a_violation_belongs_to_one_request_and_what_was_not_checked_is_refused() {
        let heads = Heads::default();
        assert_eq!(heads.violation_of(1), Some(Violation::Unchecked));
        heads.passed.store(1, Ordering::Release);
        heads.refused.set((2, Violation::Host)).expect("the first");
        assert_eq!(heads.violation_of(1), None, "checked");
        assert_eq!(heads.violation_of(2), Some(Violation::Host));
        assert_eq!(heads.violation_of(3), Some(Violation::Unchecked));
    }
}
