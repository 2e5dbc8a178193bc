//! Activities of other members.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::*;
use crate::feed::gathering::Observed;

/// One other member, whose messages a test sends.
#[derive(Default)]
pub(super) struct Members {
    observed: Mutex<Vec<mpsc::UnboundedSender<Observed>>>,
    published: Mutex<Vec<Bytes>>,
    is_observed: AtomicBool,
}

impl FeedPeers for Members {
    fn others(&self) -> Vec<u64> {
        vec![2]
    }

    fn observe(&self, _member: u64) -> BoxStream<'static, Observed> {
        let (sender, mut messages) = mpsc::unbounded_channel();
        self.observed.lock().expect("lock").push(sender);
        futures::stream::poll_fn(move |context| messages.poll_recv(context)).boxed()
    }

    fn publish(&self, activity: Bytes) {
        self.published.lock().expect("lock").push(activity);
    }

    fn is_observed(&self) -> bool {
        self.is_observed.load(Ordering::Relaxed)
    }
}

/// The texts of the next chunks, up to the first with `wanted`.
async fn until(subscriber: &mut Subscriber, wanted: &str) -> String {
    let mut all = String::new();
    while !all.contains(wanted) {
        let chunk = subscriber.next().await.expect("a chunk");
        all.push_str(std::str::from_utf8(&chunk.bytes).expect("text"));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn activity_of_a_member_is_sent_with_its_unit_id_and_no_id() {
    // The other member: it is observed, and publishes what happens on it.
    let (there, broadcaster) = Harness::new();
    there.members.is_observed.store(true, Ordering::Relaxed);
    there.publish(ActivityKind::Denial);
    with_broadcaster(broadcaster, tokio::time::sleep(limits::FEED_ACTIVITY_INTERVAL * 2)).await;
    let published = there.members.published.lock().expect("lock").clone();
    assert_eq!(published.len(), 1);
    let text = std::str::from_utf8(&published[0]).expect("text").replace("unit-1", "unit-2");

    let (here, broadcaster, gatherer) = Harness::with_gatherer();
    let mut subscriber = here.subscribe(None);
    let test = async {
        while here.members.observed.lock().expect("lock").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let sender = here.members.observed.lock().expect("lock")[0].clone();
        sender.send(Observed::Activity(Bytes::from_static(b"{}"))).expect("sent");
        sender.send(Observed::Dropped(3)).expect("sent");
        sender.send(Observed::Activity(text.into())).expect("sent");
        let read = until(&mut subscriber, "unit-2").await;
        assert!(read.contains("event: denial\n"), "{read}");
        assert!(!read.contains("\"id\""), "{read}");
        let page = here.metrics.render().expect("page");
        assert!(page.contains("svc_event_activities_dropped_total 3"), "{page}");
        assert!(here.members.published.lock().expect("lock").is_empty(), "it is not published again");
    };
    tokio::select! {
        () = gatherer.run() => panic!("ended"),
        () = with_broadcaster(broadcaster, test) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn members_are_observed_while_there_are_subscribers() {
    let (here, _broadcaster, gatherer) = Harness::with_gatherer();
    let observed = |count: usize| {
        let members = Arc::clone(&here.members);
        async move {
            while members.observed.lock().expect("lock").iter().filter(|one| !one.is_closed()).count()
                != count
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let test = async {
        tokio::time::sleep(limits::FEED_OBSERVE_INTERVAL * 2).await;
        observed(0).await;
        let subscriber = here.subscribe(None);
        observed(1).await;
        // A member that stopped is observed again.
        here.members.observed.lock().expect("lock").clear();
        observed(1).await;
        drop(subscriber);
        observed(0).await;
    };
    tokio::select! {
        () = gatherer.run() => panic!("ended"),
        () = test => {}
    }
}
