//! Questions that a test answers by hand. Where a test waits, its time is paused.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::rc::Rc;

use futures::FutureExt as _;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

/// The questions that were sent, oldest first, each with the way to answer it.
#[derive(Clone, Default)]
struct Leader(Rc<RefCell<VecDeque<oneshot::Sender<Option<u64>>>>>);

impl Leader {
    /// Takes a question. One that is never answered fails.
    fn ask(&self) -> impl Future<Output = Option<u64>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.0.borrow_mut().push_back(answer);
        async { answered.await.ok().flatten() }
    }

    fn asked(&self) -> usize {
        self.0.borrow().len()
    }

    fn answer(&self, answer: Option<u64>) {
        let question = self.0.borrow_mut().pop_front().expect("a question");
        question.send(answer).ok();
    }
}

/// Who reads, the leader, and who asks it.
fn parts() -> (ReadIndex, Leader, Pin<Box<dyn Future<Output = ()>>>) {
    let (reads, questions) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
    let leader = Leader::default();
    let asked = leader.clone();
    (reads, leader, Box::pin(questions.keep(move || asked.ask())))
}

/// Lets those run who can.
fn go_on(work: &mut Pin<Box<dyn Future<Output = ()>>>) {
    assert!(work.as_mut().now_or_never().is_none(), "it goes on for as long as somebody may read");
}

#[tokio::test]
async fn those_who_come_before_a_question_is_sent_share_it() {
    let (reads, leader, mut work) = parts();
    go_on(&mut work);
    assert_eq!(leader.asked(), 0, "nobody reads");
    let mut readers: Vec<_> = (0..100).map(|_| Box::pin(reads.confirmed())).collect();
    assert!(readers.iter_mut().all(|reader| reader.now_or_never().is_none()));
    go_on(&mut work);
    assert_eq!(leader.asked(), 1);
    leader.answer(Some(7));
    go_on(&mut work);
    for reader in readers {
        assert_eq!(reader.now_or_never(), Some(Ok(7)));
    }
    assert_eq!(leader.asked(), 0, "nobody reads any more");
}

/// The answer to it may be of before their write.
#[tokio::test]
async fn a_question_that_was_sent_already_is_shared_by_nobody_who_comes_later() {
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
    assert!(later.iter_mut().all(|reader| reader.now_or_never().is_none()), "it was not theirs");
    assert_eq!(leader.asked(), 1, "one for all of them");
    leader.answer(Some(9));
    go_on(&mut work);
    for reader in later {
        assert_eq!(reader.now_or_never(), Some(Ok(9)));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waited_for_a_question_that_failed_shares_the_next_with_those_who_came_meanwhile() {
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

/// etcd issue 20418: a retry that shares the first request's answer reads what was true before it.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_its_question_was_given_up_is_for_nobody() {
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
    assert_eq!(leader.asked(), 2, "another question");
    leader.answer(Some(7));
    go_on(&mut work);
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    leader.answer(Some(9));
    go_on(&mut work);
    assert_eq!((first.now_or_never(), second.now_or_never()), (Some(Ok(9)), Some(Ok(9))));
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_a_read_waits_and_is_then_refused() {
    let (reads, questions) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
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
        assert_eq!(tokio::time::timeout(most, reads.confirmed()).await, Ok(Err(NotCurrent::NoLeader)));
    };
    tokio::select! {
        () = questions.keep(ask) => panic!("somebody may read"),
        () = refused => {}
    }
    assert!((40..=84).contains(&asked.get()), "with a pause between: {}", asked.get());
}

/// A question that nobody waits for any more is not asked again.
#[tokio::test(start_paused = true)]
async fn who_has_given_up_is_asked_for_no_more() {
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
async fn beyond_their_limit_nobody_waits_for_the_leader() {
    // So many at once are more than a task may poll without a pause.
    tokio::task::unconstrained(async {
        let (reads, leader, mut work) = parts();
        let ask = || Box::pin(reads.confirmed());
        let mut waiting: Vec<_> = (0..limits::READ_INDEX_WAITS_MAX).map(|_| ask()).collect();
        assert!(waiting.iter_mut().all(|reader| reader.now_or_never().is_none()));
        assert_eq!(ask().now_or_never(), Some(Err(NotCurrent::TooManyWait)));
        // As many again may wait for the next question.
        go_on(&mut work);
        let mut next: Vec<_> = (0..limits::READ_INDEX_WAITS_MAX).map(|_| ask()).collect();
        assert!(next.iter_mut().all(|reader| reader.now_or_never().is_none()));
        assert_eq!(ask().now_or_never(), Some(Err(NotCurrent::TooManyWait)));
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
async fn what_the_leader_named_is_waited_for_and_no_longer_than_its_limit() {
    assert!(in_time(async {}, limits::READ_INDEX_WAIT).await.is_ok());
    let behind = in_time(std::future::pending(), limits::READ_INDEX_WAIT).await;
    assert!(matches!(behind, Err(NotCurrent::Behind)));
}

#[tokio::test]
async fn nobody_is_asked_once_nobody_can_read() {
    let (reads, questions) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
    let reading = reads.clone();
    drop(reads);
    let mut work = pin!(questions.keep(async || Some(7)));
    assert!(work.as_mut().now_or_never().is_none());
    drop(reading);
    work.await;
}
