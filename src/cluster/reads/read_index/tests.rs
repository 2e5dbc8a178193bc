//! Tests of `ReadIndex` with a leader played by the test. Tokio's time is paused where a test waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::rc::Rc;

use futures::FutureExt as _;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

/// The requests in flight, oldest first, each with its response channel.
#[derive(Clone, Default)]
struct Leader(Rc<RefCell<VecDeque<oneshot::Sender<Option<u64>>>>>);

impl Leader {
    /// Receives a request. It fails if its channel is dropped.
    fn ask(&self) -> impl Future<Output = Option<u64>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.0.borrow_mut().push_back(answer);
        async { answered.await.ok().flatten() }
    }

    fn asked(&self) -> usize {
        self.0.borrow().len()
    }

    fn answer(&self, answer: Option<u64>) {
        let request = self.0.borrow_mut().pop_front().expect("a request");
        request.send(answer).ok();
    }
}

/// The reads, the leader, and the task between them.
fn parts() -> (ReadIndex, Leader, Pin<Box<dyn Future<Output = ()>>>) {
    let (reads, read_index_task) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
    let leader = Leader::default();
    let asked = leader.clone();
    (reads, leader, Box::pin(read_index_task.run(move || asked.ask())))
}

/// Polls the task.
fn go_on(work: &mut Pin<Box<dyn Future<Output = ()>>>) {
    assert!(work.as_mut().now_or_never().is_none(), "the task runs as long as there are readers");
}

#[tokio::test]
async fn reads_before_a_request_is_sent_share_it() {
    let (reads, leader, mut work) = parts();
    go_on(&mut work);
    assert_eq!(leader.asked(), 0, "no read");
    let mut readers: Vec<_> = (0..100).map(|_| Box::pin(reads.confirmed())).collect();
    assert!(readers.iter_mut().all(|reader| reader.now_or_never().is_none()));
    go_on(&mut work);
    assert_eq!(leader.asked(), 1);
    leader.answer(Some(7));
    go_on(&mut work);
    for reader in readers {
        assert_eq!(reader.now_or_never(), Some(Ok(7)));
    }
    assert_eq!(leader.asked(), 0, "no read left");
}

/// Its answer may not cover their writes.
#[tokio::test]
async fn request_in_flight_is_not_shared_by_later_reads() {
    let (reads, leader, mut work) = parts();
    let mut first = pin!(reads.confirmed());
    assert!(first.as_mut().now_or_never().is_none());
    go_on(&mut work);
    let mut later: Vec<_> = (0..100).map(|_| Box::pin(reads.confirmed())).collect();
    assert!(later.iter_mut().all(|reader| reader.now_or_never().is_none()));
    go_on(&mut work);
    assert_eq!(leader.asked(), 1, "one at a time");
    leader.answer(Some(7));
    go_on(&mut work);
    assert_eq!(first.now_or_never(), Some(Ok(7)));
    assert!(later.iter_mut().all(|reader| reader.now_or_never().is_none()), "it was not their request");
    assert_eq!(leader.asked(), 1, "one for all of them");
    leader.answer(Some(9));
    go_on(&mut work);
    for reader in later {
        assert_eq!(reader.now_or_never(), Some(Ok(9)));
    }
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_failed_request_share_the_next() {
    let (reads, leader, mut work) = parts();
    let mut first = pin!(reads.confirmed());
    assert!(first.as_mut().now_or_never().is_none());
    go_on(&mut work);
    leader.answer(None);
    go_on(&mut work);
    assert!(first.as_mut().now_or_never().is_none());
    let mut second = pin!(reads.confirmed());
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(leader.asked(), 0, "not at once");
    tokio::time::advance(limits::READ_INDEX_RETRY_PAUSE + MILLISECOND).await;
    go_on(&mut work);
    assert_eq!(leader.asked(), 1);
    leader.answer(Some(8));
    go_on(&mut work);
    assert_eq!((first.now_or_never(), second.now_or_never()), (Some(Ok(8)), Some(Ok(8))));
}

/// etcd issue 20418: a retry that shares the answer to the first request reads stale state.
#[tokio::test(start_paused = true)]
async fn late_answer_to_an_abandoned_request_is_dropped() {
    let (reads, leader, mut work) = parts();
    let mut first = pin!(reads.confirmed());
    assert!(first.as_mut().now_or_never().is_none());
    go_on(&mut work);
    tokio::time::advance(limits::READ_INDEX_ATTEMPT + MILLISECOND).await;
    go_on(&mut work);
    let mut second = pin!(reads.confirmed());
    assert!(second.as_mut().now_or_never().is_none());
    tokio::time::advance(limits::READ_INDEX_RETRY_PAUSE + MILLISECOND).await;
    go_on(&mut work);
    assert_eq!(leader.asked(), 2, "a new request");
    leader.answer(Some(7));
    go_on(&mut work);
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    leader.answer(Some(9));
    go_on(&mut work);
    assert_eq!((first.now_or_never(), second.now_or_never()), (Some(Ok(9)), Some(Ok(9))));
}

#[tokio::test(start_paused = true)]
async fn read_without_a_leader_times_out() {
    let (reads, read_index_task) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
    let asked = Cell::new(0);
    let ask = || {
        asked.set(asked.get() + 1);
        async { None }
    };
    let refused = async {
        let a_tick = Duration::from_millis(2);
        let almost = limits::READ_INDEX_WAIT.saturating_sub(a_tick);
        assert!(tokio::time::timeout(almost, reads.confirmed()).await.is_err(), "still waiting");
        let most = limits::READ_INDEX_WAIT + a_tick;
        assert_eq!(tokio::time::timeout(most, reads.confirmed()).await, Ok(Err(ReadIndexError::NoLeader)));
    };
    tokio::select! {
        () = read_index_task.run(ask) => panic!("there are readers"),
        () = refused => {}
    }
    assert!((40..=84).contains(&asked.get()), "with a pause between: {}", asked.get());
}

/// A failed request without waiting reads is not retried.
#[tokio::test(start_paused = true)]
async fn abandoned_read_causes_no_request() {
    let (reads, leader, mut work) = parts();
    assert!(reads.confirmed().now_or_never().is_none());
    go_on(&mut work);
    if leader.asked() == 1 {
        leader.answer(None);
    }
    go_on(&mut work);
    tokio::time::advance(limits::READ_INDEX_RETRY_PAUSE + MILLISECOND).await;
    go_on(&mut work);
    assert_eq!(leader.asked(), 0);
}

#[tokio::test]
async fn reads_beyond_the_limit_are_refused() {
    // Exceeds tokio's cooperative budget of one task.
    tokio::task::unconstrained(async {
        let (reads, leader, mut work) = parts();
        let ask = || Box::pin(reads.confirmed());
        let mut waiting: Vec<_> = (0..limits::READ_INDEX_WAITS_MAX).map(|_| ask()).collect();
        assert!(waiting.iter_mut().all(|reader| reader.now_or_never().is_none()));
        assert_eq!(ask().now_or_never(), Some(Err(ReadIndexError::TooManyWait)));
        // As many may wait for the next request.
        go_on(&mut work);
        let mut next: Vec<_> = (0..limits::READ_INDEX_WAITS_MAX).map(|_| ask()).collect();
        assert!(next.iter_mut().all(|reader| reader.now_or_never().is_none()));
        assert_eq!(ask().now_or_never(), Some(Err(ReadIndexError::TooManyWait)));
        for (readers, index) in [(waiting, 7), (next, 8)] {
            leader.answer(Some(index));
            go_on(&mut work);
            for reader in readers {
                assert_eq!(reader.now_or_never(), Some(Ok(index)));
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_the_confirmed_index_times_out() {
    assert!(until_applied_within(async {}, limits::READ_INDEX_WAIT).await.is_ok());
    let behind = until_applied_within(std::future::pending(), limits::READ_INDEX_WAIT).await;
    assert!(matches!(behind, Err(ReadIndexError::Behind)));
}

#[tokio::test]
async fn task_ends_with_its_last_reader() {
    let (reads, read_index_task) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
    let reading = reads.clone();
    drop(reads);
    let mut work = pin!(read_index_task.run(async || Some(7)));
    assert!(work.as_mut().now_or_never().is_none());
    drop(reading);
    work.await;
}
