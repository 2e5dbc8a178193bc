//! Tools (contract §5): `registry` of tool entries, `checks` of a tool call, `verify` from request to verdict, and
//! `audit` of both.
//!
//! `checks` reads neither state nor clock.

pub(crate) mod audit;
pub mod checks;
pub(crate) mod entry;
pub(crate) mod registry;
pub(crate) mod verify;

use std::sync::Arc;

use crate::state::{CallerFacts, Idempotency};

/// Caller of one request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Authenticated identifier; `None` only in development mode.
    pub id: Option<String>,
    /// Actor of its bearer token.
    pub actor: Option<String>,
    /// Whether it may change tools of other callers.
    pub is_operator: bool,
    /// `X-Request-Id` of the request.
    pub request_id: String,
    /// Digests by which `apply` checks subject blocks.
    pub facts: Arc<CallerFacts>,
    /// `Idempotency-Key` with the digest of the request.
    pub idempotency: Option<Idempotency>,
}
