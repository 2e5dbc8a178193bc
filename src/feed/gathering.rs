//! Exchanges and denials of the other members. A node with subscribers observes each other member; a member without
//! observers sends nothing. Activities have no id, so they do not affect the position from which a subscriber resumes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll};
use futures::{StreamExt as _, future};
use serde::{Deserialize, Serialize};

use super::frame::{Activity, ActivityKind, ActivityResult, Frame};
use super::{Broadcast, Hub};
use crate::clock::Timestamp;
use crate::state::State;
use crate::{json, limits};

/// A message of an observed member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// An activity, as it was published.
    Activity(Bytes),
    /// This number of activities was dropped, because they were not read fast enough.
    Dropped(u64),
}

/// The other members of the cluster. Nothing here waits, and nothing is stored.
pub trait FeedPeers: Send + Sync {
    /// Their node ids.
    fn others(&self) -> Vec<u64>;

    /// The messages of a member from now on. Ends if the member cannot be reached.
    fn observe(&self, member: u64) -> BoxStream<'static, Observed>;

    /// Publishes an activity to the observers of this node.
    fn publish(&self, activity: Bytes);

    /// Whether a member observes this node.
    fn is_observed(&self) -> bool;
}

impl FeedPeers for State {
    fn others(&self) -> Vec<u64> {
        self.cluster().other_member_ids()
    }

    fn observe(&self, member: u64) -> BoxStream<'static, Observed> {
        let observed = self.cluster().observe(member).map(|(message, dropped)| {
            let dropped = (dropped > 0).then_some(Observed::Dropped(dropped));
            stream::iter(dropped.into_iter().chain([Observed::Activity(message)]))
        });
        observed.flatten().boxed()
    }

    fn publish(&self, activity: Bytes) {
        self.cluster().publish(activity);
    }

    fn is_observed(&self) -> bool {
        self.cluster().is_observed()
    }
}

/// An activity between members.
#[derive(Serialize, Deserialize)]
struct WireActivity {
    at_millis: i64,
    kind: ActivityKind,
    subject: String,
    target: Option<String>,
    result: ActivityResult,
    detail: Option<String>,
    duration_millis: u64,
    unit_id: String,
}

/// The message of an activity on the node `unit_id`.
pub(super) fn encode(at: Timestamp, activity: &Activity, unit_id: &str) -> Bytes {
    let Activity { kind, subject, target, result, detail, duration } = activity.clone();
    let duration_millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let at_millis = at.millis();
    let unit_id = unit_id.to_owned();
    let wire = WireActivity { at_millis, kind, subject, target, result, detail, duration_millis, unit_id };
    // Text and numbers always serialize.
    serde_json::to_vec(&wire).unwrap_or_default().into()
}

/// The event of a message; `None` if this version cannot read it.
fn decode(message: &[u8]) -> Option<Frame> {
    let wire: WireActivity = json::read(message).ok()?;
    let WireActivity { at_millis, kind, subject, target, result, detail, duration_millis, unit_id } = wire;
    let duration = Duration::from_millis(duration_millis);
    let activity = Activity { kind, subject, target, result, detail, duration };
    Some(Frame::of_activity(Timestamp::from_millis(at_millis), &activity, &unit_id))
}

/// Broadcasts the activities of the other members while there are subscribers. Ends with the feed.
pub struct Gatherer {
    pub(super) hub: Arc<Hub>,
}

impl Gatherer {
    /// Runs until the node stops, then for ever.
    pub async fn run(self) {
        let shutdown = self.hub.parts.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.gather() => {}
        }
        future::pending::<()>().await;
    }

    async fn gather(&self) {
        let mut rounds = tokio::time::interval(limits::FEED_OBSERVE_INTERVAL);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut observed = SelectAll::<BoxStream<'static, (u64, Option<Observed>)>>::new();
        let mut members = BTreeSet::new();
        loop {
            tokio::select! {
                _ = rounds.tick() => {
                    if !self.hub.limiter.has_subscribers() {
                        observed.clear();
                        members.clear();
                        continue;
                    }
                    for member in self.hub.parts.peers.others() {
                        if members.insert(member) {
                            observed.push(self.observe(member));
                        }
                    }
                }
                Some((member, message)) = observed.next(), if !observed.is_empty() => match message {
                    Some(message) => self.broadcast(&message),
                    // The next round observes it again.
                    None => {
                        members.remove(&member);
                    }
                }
            }
        }
    }

    /// Ends with `None`.
    fn observe(&self, member: u64) -> BoxStream<'static, (u64, Option<Observed>)> {
        let messages = self.hub.parts.peers.observe(member).map(move |message| (member, Some(message)));
        messages.chain(stream::once(future::ready((member, None)))).boxed()
    }

    fn broadcast(&self, message: &Observed) {
        match message {
            Observed::Activity(message) => {
                if let Some(frame) = decode(message) {
                    self.hub.send(Broadcast::Event(frame));
                }
            }
            Observed::Dropped(activities) => {
                self.hub.parts.metrics.event_activities_dropped.add([], *activities);
            }
        }
    }
}
