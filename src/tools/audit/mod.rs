//! What was decided about tools, and by whom: kept on this node before it is answered, then shipped
//! through the log in blocks, so that any node shows it (contract §5, Audit).

use crate::clock::Timestamp;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tool was registered.
    Register,
    /// A tool was replaced.
    Replace,
    /// A tool was deregistered.
    Deregister,
    /// A call was checked.
    Verify,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It was allowed, or done.
    Allow,
    /// It was refused.
    Deny,
    /// It is not known to have been either.
    Error,
}

/// What an entry says; its id, its node and its place in the chain come with being written.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When it was decided.
    pub timestamp: Timestamp,
    /// The tool.
    pub tool_id: String,
    /// What was done.
    pub action: Action,
    /// What came of it.
    pub decision: Decision,
    /// The check that failed, as the answer names it.
    pub check: Option<&'static str>,
    /// For people: why, without any secret or token.
    pub notes: String,
    /// The protocol of a call.
    pub protocol: Option<String>,
    /// `sub` of a token that was verified.
    pub subject: Option<String>,
    /// Its current actor.
    pub actor: Option<String>,
    /// Its `jti`.
    pub jti: Option<String>,
    /// Its `txn`.
    pub txn: Option<String>,
    /// Who asked, as authenticated.
    pub caller: Option<String>,
    /// Who acts for the caller.
    pub caller_actor: Option<String>,
    /// `X-Request-Id` of the request.
    pub request_id: String,
}

/// Why an entry was not written. What it is about must not be answered then.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// More waits to be shipped, or to be written, than the limit.
    #[error("too much audit is waiting to be shipped")]
    Overloaded,
    /// The file could not be written.
    #[error("audit could not be written")]
    Unwritten,
}

/// Writes the audit of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit {}

impl Audit {
    /// Writes an entry. It survives the end of the process once this returns.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn record(&self, _draft: Draft) -> Result<(), Error> {
        Err(Error::Unwritten)
    }
}
