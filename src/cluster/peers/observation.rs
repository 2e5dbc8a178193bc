//! Messages that a node publishes to members that observe it: best-effort, outside the log, in no file. The meaning of a
//! message is not known here.

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::Status;

use super::channels::Purpose;
use super::proto;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// The messages of this node, and its observers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Publisher(broadcast::Sender<Bytes>);

impl Default for Publisher {
    fn default() -> Self {
        Self(broadcast::Sender::new(limits::OBSERVED_MESSAGES_QUEUED_MAX))
    }
}

impl Publisher {
    /// The messages from now on. A slow observer loses the oldest queued ones, and receives their number.
    pub(crate) fn observe(
        &self,
    ) -> Result<impl Stream<Item = Result<proto::ObservedMessage, Status>> + Send + 'static, Status> {
        if self.0.receiver_count() >= limits::OBSERVERS_MAX {
            return Err(Status::resource_exhausted("this node has too many observers"));
        }
        let messages = BroadcastStream::new(self.0.subscribe()).scan(0_u64, |lost, received| {
            let message = match received {
                Ok(message) => Some(Ok(proto::ObservedMessage { message, dropped: std::mem::take(lost) })),
                Err(BroadcastStreamRecvError::Lagged(messages)) => {
                    *lost = lost.saturating_add(messages);
                    None
                }
            };
            futures::future::ready(Some(message))
        });
        Ok(messages.filter_map(futures::future::ready))
    }
}

impl<M: Machine> Handle<M> {
    /// Publishes a message to the members that observe this node. Never waits.
    pub(crate) fn publish(&self, message: Bytes) {
        // An error means that there is no observer.
        drop(self.publisher.0.send(message));
    }

    /// Whether a member observes this node.
    pub(crate) fn is_observed(&self) -> bool {
        self.publisher.0.receiver_count() > 0
    }

    pub(crate) fn other_member_ids(&self) -> Vec<u64> {
        self.other_members().into_iter().map(|(id, _)| id).collect()
    }

    /// The messages of a member from now on, each with the number of messages dropped before it. Ends if the member is
    /// unknown, cannot be reached or stops.
    pub(crate) fn observe(&self, member: u64) -> BoxStream<'static, (Bytes, u64)> {
        let record = self.known_members().get(member).cloned();
        let client =
            record.and_then(|record| self.channels.shared(Purpose::Observation, member, &record).ok());
        let Some(client) = client else { return stream::empty().boxed() };
        let messages = async move {
            let mut peer = client.peer();
            let observed = peer.observe(client.request(proto::ObserveRequest {}));
            let observed = tokio::time::timeout(limits::PEER_CONNECT_TIMEOUT, observed).await;
            let observed = observed.ok().and_then(Result::ok).map(tonic::Response::into_inner);
            let whole = observed
                .map(|messages| messages.take_while(|message| futures::future::ready(message.is_ok())));
            stream::iter(whole).flatten().filter_map(|message| futures::future::ready(message.ok()))
        };
        let messages = stream::once(messages).flatten();
        messages.map(|proto::ObservedMessage { message, dropped }| (message, dropped)).boxed()
    }
}
