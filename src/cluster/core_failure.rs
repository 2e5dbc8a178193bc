//! The end of openraft's core: its failure, which ends the process, and calls to a core that has failed.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, Stream, StreamExt as _};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};

use super::type_config::TypeConfig;
use super::{Handle, Machine};

impl<M: Machine> Handle<M> {
    /// Waits for a fatal error of Raft or its storage and returns the reason. The process must then exit.
    pub(crate) async fn until_failed(&self) -> String {
        let mut stops = self.channels.local.stops();
        tokio::select! {
            biased;
            failure = self.until_core_failed() => failure,
            Ok(reason) = stops.wait_for(Option::is_some) => reason.clone().unwrap_or_default(),
        }
    }

    async fn until_core_failed(&self) -> String {
        let metrics = self.raft.metrics();
        let failure = || metrics.borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        // The core states its failure before it closes the channel of a call, so the failure is looked for at each poll. No
        // change of the metrics is awaited: every entry and every read causes one.
        let mut stopped = pin!(self.until_stopped());
        poll_fn(|context| {
            if let Some(failure) = failure() {
                return Poll::Ready(failure);
            }
            let stopped = stopped.as_mut().poll(context);
            stopped.map(|()| failure().unwrap_or_else(|| "Raft has stopped".to_owned()))
        })
        .await
    }

    /// Awaits a call of openraft, at most until its core fails. Every call that may be cancelled goes this way:
    /// openraft panics in a call to a failed core once another one was cancelled that waited for the end of that core.
    ///
    /// # Errors
    /// That of the call, or the failure.
    pub(super) async fn unless_failed<T, E: std::fmt::Display>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        tokio::select! {
            biased;
            failure = self.until_core_failed() => Err(failure),
            answer = call => answer.map_err(|error| error.to_string()),
        }
    }

    /// Passes a stream of appends to openraft. The answers end with the first error.
    pub(super) fn stream_append(
        &self,
        appends: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> BoxStream<'static, Result<StreamAppendResult<TypeConfig>, String>> {
        let answers = Box::pin(self.raft.stream_append(appends));
        let handle = self.clone();
        let answers = stream::unfold(Some(answers), move |answers| {
            let handle = handle.clone();
            async move {
                let mut answers = answers?;
                let next = handle.unless_failed(answers.next().map(Option::transpose)).await.transpose()?;
                let rest = next.is_ok().then_some(answers);
                Some((next, rest))
            }
        });
        answers.boxed()
    }

    /// Stops Raft. Acknowledged writes are durable already.
    ///
    /// # Errors
    /// If it did not stop cleanly.
    pub async fn shutdown(&self) -> Result<(), String> {
        // openraft panics here if a caller was dropped while it waited for the end of a core that failed.
        if self.raft.metrics().borrow_watched().running_state.is_err() {
            return Ok(());
        }
        self.raft.shutdown().await.map_err(|error| error.to_string())
    }
}
