//! Why a stream is not what was asked for, by reason. `api` maps each to a status and a code.

use crate::cluster::Corrupt;
use crate::state;
use crate::token::subject_id;

/// Why a stream was not made, shown or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Nobody has said where receivers reach this fabric.
    #[error("the transmitter of signals is not configured: there is no [transmitter]")]
    NotConfigured,
    /// A member of the request breaks a rule.
    #[error("{field}: {rule}")]
    Invalid {
        /// Its path.
        field: String,
        /// What it must be.
        rule: String,
    },
    /// It was refused, or is not known to have been done.
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
