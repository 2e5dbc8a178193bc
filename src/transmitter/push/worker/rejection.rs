//! Events that a receiver refuses as those of this sender: whether it refuses single events or takes nothing, a
//! verification event decides.

use std::sync::Arc;

use super::Worker;
use crate::state::{NewDeadLetter, OutboxEvent};
use crate::transmitter::push::attempt;
use crate::transmitter::push::response::{Unsent, Verdict};

impl Worker {
    /// It is over with an event that its receiver does not take.
    pub(super) fn dead(&mut self, letter: NewDeadLetter) {
        let NewDeadLetter { id, err, description, .. } = &letter;
        tracing::warn!(stream_id = self.stream_id(), %id, err, description, "dead letter");
        self.window.done(letter.id);
        self.ledger.dead(letter);
    }

    /// Sends a verification event, unless one is under way.
    pub(super) fn verify(&mut self) {
        if self.verifying.is_some() {
            return;
        }
        let (shared, stream, epoch) = (Arc::clone(&self.shared), Arc::clone(&self.stream), self.epoch);
        let drawn = u128::from(self.jitter.draw()) << 64 | u128::from(self.jitter.draw());
        self.verifying = Some(Box::pin(async move { (epoch, attempt::verify(shared, stream, drawn).await) }));
    }

    /// A receiver that refuses the verification event too takes nothing; another one refuses single events. An
    /// answer that decides neither leaves it to the next refusal to ask again.
    pub(super) fn verified(&mut self, epoch: u64, outcome: Result<Verdict, Unsent>) {
        self.verifying = None;
        if epoch != self.epoch {
            return;
        }
        match outcome {
            Ok(Verdict::Delivered { .. } | Verdict::DeadLetter { .. }) => {
                for (id, letter) in std::mem::take(&mut self.doubted) {
                    // One that is sent again at this moment is judged by that answer.
                    if self.window.is_held(id) {
                        self.dead(letter);
                    }
                }
            }
            Ok(Verdict::Refused { err, .. }) => {
                self.pause(format!("the receiver refuses a verification event too: it answered {err}"));
            }
            Ok(Verdict::Again { .. }) | Err(_) => {}
        }
    }
}

/// The dead letter of an event.
pub(super) fn letter(event: &OutboxEvent, err: String, description: String) -> NewDeadLetter {
    let (event_type, sub_id) = (event.event.event_type.clone(), event.event.sub_id.to_string());
    NewDeadLetter { id: event.id, err, description, event_type, sub_id }
}
