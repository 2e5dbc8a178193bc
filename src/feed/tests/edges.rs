//! Beginning and end of the feed: rows that are not in effect yet, dropped rows, and the pace of replays.

use super::*;

/// A revocation is readable in the table shortly before it is in effect. Regression: a subscriber that
/// received it then was checked against the old state and continued; one that subscribed then never received
/// it.
#[tokio::test(start_paused = true)]
async fn row_not_in_effect_yet_is_sent_later_once_to_all() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&["tool"]);
    let (mut live, mut replaying) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
    next(&mut live).await;
    next(&mut replaying).await;
    let counts = feed.write(&["tool"]);
    let end = feed.write(&["revocation"]);
    with_broadcaster(broadcaster, async {
        feed.rows.end.send_replace(counts);
        assert_eq!(receive(&mut live, 1).await, numbers([11]));
        assert_eq!(receive(&mut replaying, 1).await, numbers([11]));
        tokio::time::sleep(2 * limits::FEED_PAGE_PAUSE).await;
        for subscriber in [&mut live, &mut replaying] {
            assert!(subscriber.next().now_or_never().is_none(), "the revocation is not in effect yet");
        }
        let (mut between, mut resumed) = (feed.subscribe(None), feed.subscribe(Some(id(10))));
        assert_eq!(next(&mut between).await, format!("retry: 3000\nid: {}\n\n", id(11)));
        next(&mut resumed).await;
        assert_eq!(receive(&mut resumed, 1).await, numbers([11]));
        feed.rows.end.send_replace(end);
        for subscriber in [&mut live, &mut replaying, &mut between, &mut resumed] {
            assert_eq!(receive(subscriber, 1).await, numbers([12]));
            assert!(subscriber.next().now_or_never().is_none(), "only once");
        }
    })
    .await;
}

/// The only row is not in effect yet.
#[tokio::test]
async fn reset_names_no_event_that_is_not_in_effect() {
    let (feed, _broadcaster) = Harness::new();
    feed.write(&["tool"]);
    let mut subscriber = feed.subscribe(Some(id(3)));
    assert!(next(&mut subscriber).await.ends_with("data: {\"first_available\":null}\n\n"));
}

/// Regression: the ids jumped over rows that were dropped before their broadcast, and a subscriber that
/// resumed with the last id was never reset.
#[tokio::test(start_paused = true)]
async fn gap_disconnects_subscribers_and_resume_resets() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&["tool"]);
    let mut live = feed.subscribe(None);
    assert_eq!(next(&mut live).await, format!("retry: 3000\nid: {}\n\n", id(10)));
    feed.append(&["tool"; 5]);
    feed.drop_before(13);
    with_broadcaster(broadcaster, async {
        assert!(live.next().await.is_none());
        assert!(feed.dropped("overtaken"));
        let mut back = feed.subscribe(Some(id(10)));
        assert!(next(&mut back).await.contains("event: reset\n"));
        feed.append(&["key"]);
        assert_eq!(receive(&mut back, 1).await, numbers([16]), "then it continues");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_row_is_not_skipped_and_disconnects_subscribers() {
    let (feed, broadcaster) = Harness::new();
    feed.append(&["tool"]);
    let mut live = feed.subscribe(None);
    next(&mut live).await;
    *feed.rows.is_corrupt.lock().expect("lock") = true;
    feed.append(&["tool"]);
    with_broadcaster(broadcaster, async {
        assert!(live.next().await.is_none());
        assert!(feed.dropped("damaged"));
        *feed.rows.is_corrupt.lock().expect("lock") = false;
        feed.append(&["key"]);
        let mut back = feed.subscribe(Some(id(10)));
        assert_eq!(receive(&mut back, 2).await, numbers([11, 12]));
    })
    .await;
}

/// Attack: many subscribers resume with the oldest id and rare types, so that each reads the whole table at full speed.
#[tokio::test(start_paused = true)]
async fn concurrent_replays_share_a_bounded_pace() {
    const PAGES: usize = 3;
    const PAUSES: usize = 10;
    let (feed, _broadcaster) = Harness::new();
    let rows = PAGES * limits::FEED_ROWS_PER_READ;
    feed.append(&vec!["tool"; rows + 1]);
    let pages = || *feed.rows.reads.lock().expect("lock");
    let past = || {
        let only = Kinds::parse(["cluster"]).expect("types");
        feed.feed.subscribe(None, Some(id(10)), only).expect("a subscription")
    };
    // A stalled one, whose future is not polled any more.
    let mut stalled = past();
    next(&mut stalled).await;
    let mut stalled = Box::pin(stalled.next());
    assert!(futures::poll!(&mut stalled).is_pending());
    let subscribers = (0..PAUSES * limits::FEED_PAGES_PER_PAUSE).map(|_| async {
        let mut subscriber = past();
        next(&mut subscriber).await;
        next(&mut subscriber).await
    });
    let mut subscribers = Box::pin(futures::future::join_all(subscribers));
    let begun = now();
    for pause in 1..=PAUSES * PAGES {
        drop(
            tokio::time::timeout_at(
                begun + limits::FEED_PAGE_PAUSE * u32::try_from(pause).expect("few"),
                &mut subscribers,
            )
            .await,
        );
        assert!(pages() <= pause * limits::FEED_PAGES_PER_PAUSE, "{} in {pause}", pages());
    }
    // All of them get there, in time for a heartbeat.
    let expected = format!(": ping\nid: {}\n\n", id(10 + rows as u64));
    assert!(subscribers.await.iter().all(|text| *text == expected));
    assert!(now() - begun <= limits::FEED_HEARTBEAT_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn replay_pauses_before_each_page() {
    const PAGES: u32 = 3;
    let (feed, _broadcaster) = Harness::new();
    let rows = PAGES as usize * limits::FEED_ROWS_PER_READ;
    feed.append(&vec!["tool"; rows + 1]);
    let mut subscriber = feed.subscribe(Some(id(10)));
    next(&mut subscriber).await;
    let begun = now();
    receive(&mut subscriber, rows).await;
    assert!(now() - begun >= PAGES * limits::FEED_PAGE_PAUSE);
}
