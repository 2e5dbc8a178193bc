//! Refusals of the sender: a verification event decides whether the receiver refuses single events or all events of
//! this fabric.

use std::sync::Arc;

use super::Worker;
use crate::state::{NewDeadLetter, OutboxEvent};
use crate::transmitter::push::attempt;
use crate::transmitter::push::response::{PushResponse, Unsent};

impl Worker {
    /// Completes an event as a dead letter.
    pub(super) fn reject(&mut self, letter: NewDeadLetter) {
        let NewDeadLetter { id, err, description, .. } = &letter;
        tracing::warn!(stream_id = self.stream_id(), %id, err, description, "event became a dead letter");
        self.window.done(letter.id);
        self.uncommitted.dead(letter);
    }

    /// Sends a verification event, unless one is in flight.
    pub(super) fn verify(&mut self) {
        if self.verifying.is_some() {
            return;
        }
        let (shared, stream, epoch) = (Arc::clone(&self.shared), Arc::clone(&self.stream), self.epoch);
        let nonce = u128::from(self.jitter.draw()) << 64 | u128::from(self.jitter.draw());
        self.verifying = Some(Box::pin(async move { (epoch, attempt::verify(shared, stream, nonce).await) }));
    }

    /// If the receiver refuses the verification event too, it refuses everything: the stream is paused. If it accepts,
    /// it refuses single events. Any other outcome leaves the decision to the next refusal.
    pub(super) fn verified(&mut self, epoch: u64, outcome: Result<PushResponse, Unsent>) {
        self.verifying = None;
        if epoch != self.epoch {
            return;
        }
        match outcome {
            Ok(PushResponse::Delivered { .. } | PushResponse::DeadLetter { .. }) => {
                self.succeeded();
                for (id, letter) in std::mem::take(&mut self.refused) {
                    // An event in flight again is decided by its own response.
                    if self.window.is_idle(id) {
                        self.reject(letter);
                    }
                }
            }
            Ok(PushResponse::Refused { err, .. }) => {
                self.pause(format!("the receiver refuses a verification event too: it answered {err}"));
            }
            Ok(PushResponse::Retry { .. }) | Err(_) => {}
        }
    }
}

pub(super) fn dead_letter(event: &OutboxEvent, err: String, description: String) -> NewDeadLetter {
    let (event_type, sub_id) = (event.event.event_type.clone(), event.event.sub_id.to_string());
    NewDeadLetter { id: event.id, err, description, event_type, sub_id }
}
