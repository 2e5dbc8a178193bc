//! Errors of stream management. `api` maps each to a status and a code.

use crate::cluster::Corrupt;
use crate::state;
use crate::token::subject_id;

/// Why a stream was not created, returned or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No base URL is configured.
    #[error("the transmitter of signals is not configured: there is no [transmitter]")]
    NotConfigured,
    /// A field of the request breaks a rule.
    #[error("{field}: {rule}")]
    Invalid { field: String, rule: String },
    /// The state refused, or the result is unknown.
    #[error(transparent)]
    State(#[from] state::Error),
}

impl Error {
    pub(super) fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), rule: rule.into() }
    }
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::State(error.into())
    }
}

impl From<subject_id::Error> for Error {
    fn from(error: subject_id::Error) -> Self {
        Self::invalid(error.field, error.rule)
    }
}
