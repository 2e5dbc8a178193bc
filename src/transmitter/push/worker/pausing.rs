//! The worker pauses its stream, whose receiver has failed for too long.

use std::sync::Arc;

use super::Worker;
use crate::state::{self, Refusal};

impl Worker {
    pub(super) fn pause(&mut self, reason: String) {
        if self.pausing.is_some() {
            return;
        }
        tracing::warn!(stream_id = self.stream_id(), reason, "stream paused");
        let (state, stream) = (self.shared.state.clone(), Arc::clone(&self.stream));
        self.pausing = Some(Box::pin(async move { state.pause_stream(&stream, &reason).await }));
    }

    /// Handles the outcome of a pause.
    pub(super) fn paused(&mut self, outcome: Result<(), state::Error>) {
        self.pausing = None;
        match outcome {
            // Otherwise it was paused, disabled or deleted concurrently.
            Ok(()) | Err(state::Error::Refused(Refusal::StreamNotEnabled | Refusal::UnknownStream)) => {
                self.forget_responses();
            }
            // Its owner has changed it, perhaps as a remedy: the next failure decides.
            Err(state::Error::Refused(Refusal::StreamChanged)) => {}
            Err(error) => {
                tracing::warn!(%error, stream_id = self.stream_id(), "failed to pause a stream");
                self.back_off(self.shared.limits.backoff.min, false);
            }
        }
    }
}
