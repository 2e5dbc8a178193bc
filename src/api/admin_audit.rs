//! Administrative acts in the audit: an entry is begun before the act, so that no act is unaudited, and its outcome is
//! recorded before the response.

use super::App;
use super::error::Error;
use crate::state::{CallContext, LinearizableRead};
use crate::tools::audit::{Decision, Draft, PendingEntry};

/// An act without a recorded outcome. If it is dropped, its entry states that the outcome is unknown.
#[must_use = "an act that is dropped is recorded as one whose outcome is not known"]
pub struct Act {
    open: PendingEntry,
    description: String,
}

/// Runs a change of a stream. If an operator changes another owner's stream, it is an administrative act.
///
/// # Errors
/// Those of `change`; `UnknownStream`; 503 as for [`Act`].
pub async fn on_stream<T, E>(
    (app, current): (&App, &LinearizableRead),
    caller: &CallContext,
    (description, stream_id): (&str, &str),
    change: impl Future<Output = Result<T, E>>,
) -> Result<T, Error>
where
    Error: From<E>,
{
    let view = app.streams.get(current, stream_id, caller).await?;
    let owner = &view.stream.config.owner;
    if owner == caller.name() {
        return Ok(change.await?);
    }
    let act = Act::begin(app, caller, format!("{description} stream {stream_id} of {owner}"))?;
    act.end(change.await.map_err(Error::from), |_| String::new()).await
}

impl Act {
    /// Begins the entry of an act of `caller`.
    ///
    /// # Errors
    /// 503 if the entry cannot be written; the act must not be done then.
    pub fn begin(app: &App, caller: &CallContext, description: impl Into<String>) -> Result<Self, Error> {
        let open = app.audit.begin(Draft::act(caller, app.clock.now()))?;
        Ok(Self { open, description: description.into() })
    }

    /// Records the outcome and returns it. `describe` adds to the entry of a successful act.
    ///
    /// # Errors
    /// Those of `outcome`; 503 if the act was done and could not be recorded.
    pub async fn end<T>(
        self,
        outcome: Result<T, Error>,
        describe: impl FnOnce(&T) -> String,
    ) -> Result<T, Error> {
        let Self { open, description } = self;
        let (decision, result) = match &outcome {
            Ok(done) => (Decision::Allow, describe(done)),
            Err(error) if error.is_of_server() => (Decision::Error, error.description().to_owned()),
            Err(error) => (Decision::Deny, error.description().to_owned()),
        };
        let notes = if result.is_empty() { description.clone() } else { format!("{description}: {result}") };
        let recorded = open.record(|draft| (draft.decision, draft.notes) = (decision, notes)).await;
        match (recorded, outcome) {
            (Err(error), Ok(_)) => {
                let text = format!(
                    "{description}: done, but not audited, because this node cannot write its audit journal; send the same \
                     request again, to another node or to this one once its disk has space: it is audited then"
                );
                Err(Error::unavailable(text).with_detail(error))
            }
            (_, outcome) => outcome,
        }
    }
}
