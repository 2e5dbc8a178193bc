//! Tools: the registry, the nine checks of a call, and the audit of both (contract §5).
//!
//! What a tool asks of a token is written by `registry`; whether a token has it is decided in `checks`,
//! which reads no state and no clock; `verify` is the line from a request to a verdict; `audit` keeps
//! what was decided.

pub mod audit;
pub mod checks;
pub mod entry;
pub mod registry;
pub mod verify;

use std::sync::Arc;

use crate::state::{CallerFacts, Idempotency};

/// Who asks, and in which request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// As authenticated; `None` for nobody, which only development mode knows.
    pub id: Option<String>,
    /// Who acts for it, by its bearer token.
    pub actor: Option<String>,
    /// Whether it may change what others registered.
    pub is_operator: bool,
    /// `X-Request-Id` of the request.
    pub request_id: String,
    /// The facts by which the caller is judged when its commands are applied.
    pub facts: Arc<CallerFacts>,
    /// Its `Idempotency-Key`, with the request.
    pub idempotency: Option<Idempotency>,
}
