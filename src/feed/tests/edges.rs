//! Where what is told begins and ends: rows that do not count yet, rows that are gone, and how fast the past is read.

use super::*;

/// A revocation can be read in the table a moment before it counts. A reader that was told of it then, and was
/// judged by what counted before, went on; and one that came in that moment was never told at all.
#[tokio::test(start_paused = true)]
async fn a_row_that_does_not_count_yet_is_told_to_nobody_and_then_to_everybody_once() {
    let (feed, teller) = Told::new();
    feed.append(&["tool"]);
    let (mut live, mut behind) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
    next(&mut live).await;
    next(&mut behind).await;
    let counts = feed.write(&["tool"]);
    let end = feed.write(&["revocation"]);
    beside(teller, async {
        feed.rows.end.send_replace(counts);
        assert_eq!(told(&mut live, 1).await, numbers([11]));
        assert_eq!(told(&mut behind, 1).await, numbers([11]));
        tokio::time::sleep(2 * limits::FEED_PAGE_PAUSE).await;
        for reader in [&mut live, &mut behind] {
            assert!(reader.next().now_or_never().is_none(), "the revocation does not count yet");
        }
        let (mut between, mut again) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
        assert_eq!(next(&mut between).await, format!("retry: 3000\nid: {}\n\n", id(11)));
        next(&mut again).await;
        assert_eq!(told(&mut again, 1).await, numbers([11]));
        feed.rows.end.send_replace(end);
        for reader in [&mut live, &mut behind, &mut between, &mut again] {
            assert_eq!(told(reader, 1).await, numbers([12]));
            assert!(reader.next().now_or_never().is_none(), "and once");
        }
    })
    .await;
}

/// As the first of all, which is there and does not count yet.
#[tokio::test]
async fn a_reset_names_no_event_that_does_not_count_yet() {
    let (feed, _teller) = Told::new();
    feed.write(&["tool"]);
    let mut reader = feed.subscribe(Some(id(3)));
    assert!(next(&mut reader).await.ends_with("data: {\"first_available\":null}\n\n"));
}

/// The ids that readers were told jumped over what was dropped before it was told, and who came back with the
/// last one was never reset.
#[tokio::test(start_paused = true)]
async fn when_something_cannot_be_told_any_more_all_who_listen_are_cut_off_and_reset_when_they_come_back() {
    let (feed, teller) = Told::new();
    feed.append(&["tool"]);
    let mut live = feed.subscribe(None);
    assert_eq!(next(&mut live).await, format!("retry: 3000\nid: {}\n\n", id(10)));
    feed.append(&["tool"; 5]);
    feed.drop_before(13);
    beside(teller, async {
        assert!(live.next().await.is_none());
        assert!(feed.dropped("overtaken"));
        let mut back = feed.subscribe(Some(id(10)));
        assert!(next(&mut back).await.contains("event: reset\n"));
        feed.append(&["key"]);
        assert_eq!(told(&mut back, 1).await, numbers([16]), "and then it goes on");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn when_a_row_cannot_be_read_it_is_not_passed_over_and_all_who_listen_are_cut_off() {
    let (feed, teller) = Told::new();
    feed.append(&["tool"]);
    let mut live = feed.subscribe(None);
    next(&mut live).await;
    *feed.rows.is_damaged.lock().expect("lock") = true;
    feed.append(&["tool"]);
    beside(teller, async {
        assert!(live.next().await.is_none());
        assert!(feed.dropped("damaged"));
        *feed.rows.is_damaged.lock().expect("lock") = false;
        feed.append(&["key"]);
        let mut back = feed.subscribe(Some(id(10)));
        assert_eq!(told(&mut back, 2).await, numbers([11, 12]));
    })
    .await;
}

/// Flood by coming back: with the oldest id and types that hardly exist, every reader had the whole table read at
/// full speed.
#[tokio::test(start_paused = true)]
async fn all_who_read_the_past_together_read_no_faster_than_a_few() {
    const PAGES: usize = 3;
    const PAUSES: usize = 10;
    let (feed, _teller) = Told::new();
    let rows = PAGES * limits::FEED_ROWS_AT_ONCE;
    feed.append(&vec!["tool"; rows + 1]);
    let pages = || *feed.rows.reads.lock().expect("lock");
    let past = || {
        let only = Kinds::named(["cluster"]).expect("types");
        feed.feed.subscribe(None, Some(id(10)), only).expect("a reader")
    };
    // One that is not taken from any more, whatever it waits for.
    let mut stalled = past();
    next(&mut stalled).await;
    let mut stalled = Box::pin(stalled.next());
    assert!(futures::poll!(&mut stalled).is_pending());
    let readers = (0..PAUSES * limits::FEED_PAGES_PER_PAUSE).map(|_| async {
        let mut reader = past();
        next(&mut reader).await;
        next(&mut reader).await
    });
    let mut readers = Box::pin(futures::future::join_all(readers));
    let begun = now();
    for pause in 1..=PAUSES * PAGES {
        drop(
            tokio::time::timeout_at(
                begun + limits::FEED_PAGE_PAUSE * u32::try_from(pause).expect("few"),
                &mut readers,
            )
            .await,
        );
        assert!(pages() <= pause * limits::FEED_PAGES_PER_PAUSE, "{} in {pause}", pages());
    }
    // And they all get there, in time for a heartbeat that says so.
    let expected = format!(": ping\nid: {}\n\n", id(10 + rows as u64));
    assert!(readers.await.iter().all(|told| *told == expected));
    assert!(now() - begun <= limits::FEED_HEARTBEAT);
}

#[tokio::test(start_paused = true)]
async fn a_reader_pauses_before_each_page_of_the_past() {
    const PAGES: u32 = 3;
    let (feed, _teller) = Told::new();
    let rows = PAGES as usize * limits::FEED_ROWS_AT_ONCE;
    feed.append(&vec!["tool"; rows + 1]);
    let mut reader = feed.subscribe(Some(id(10)));
    next(&mut reader).await;
    let begun = now();
    told(&mut reader, rows).await;
    assert!(now() - begun >= PAGES * limits::FEED_PAGE_PAUSE);
}
