//! The nine checks of a call (contract §5), one small pure function each.
//!
//! Each takes the value that only the check before it can make, and returns one that only it can make,
//! so that none can be left out or moved: [`token`] is the only way in, [`Verified`] the only way out.
//! No state, no clock and no key is looked up here; the caller brings them as arguments, because some can
//! be asked for only once it is known whose token it is.

mod audience;
mod blast_radius;
mod capabilities;
mod exec_act;
mod inp_hash;
mod protocol;
mod revocation;
mod target;
mod token;

use std::fmt;

pub use revocation::Facts;
pub use target::Verified;
pub use token::{Authentic, Keys, token};

use crate::policy::blast_radius::Containment;
use crate::state::command::Tool;
use crate::token::BodyHash;
use crate::token::foreign::Credential;

/// The nine, in their order. One word for each, in the answer, the metric and the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Form, signature, issuer, subject, times, and whose certificate it is bound to.
    Token,
    /// Nothing that it derives from is revoked, and it is not spent.
    Revocation,
    /// The tool takes the protocol.
    Protocol,
    /// It is meant for the tool.
    Audience,
    /// It has what the tool requires.
    Capabilities,
    /// It reaches no further than the tool allows.
    BlastRadius,
    /// The operation is one of the tool's.
    ExecAct,
    /// The body is the one it was issued for.
    InpHash,
    /// What it is done to is one of the tool's.
    Target,
}

impl Check {
    /// Every check, in order.
    pub const ALL: [Self; 9] = [
        Self::Token,
        Self::Revocation,
        Self::Protocol,
        Self::Audience,
        Self::Capabilities,
        Self::BlastRadius,
        Self::ExecAct,
        Self::InpHash,
        Self::Target,
    ];

    /// The word of contract §5.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Revocation => "revocation",
            Self::Protocol => "protocol",
            Self::Audience => "audience",
            Self::Capabilities => "capabilities",
            Self::BlastRadius => "blast_radius",
            Self::ExecAct => "exec_act",
            Self::InpHash => "inp_hash",
            Self::Target => "target",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a check ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made, and passed.
    Pass,
    /// The tool does not ask for it.
    Skip,
}

impl Outcome {
    /// The word of contract §5.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
        }
    }
}

/// The checks that were made, in order.
pub type Trace = Vec<(Check, Outcome)>;

/// The first check that failed; those after it were not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {reason}")]
pub struct Failure {
    /// Which.
    pub check: Check,
    /// Why, for people; nothing secret, nothing of the token's text.
    pub reason: String,
    /// Those before it.
    pub trace: Trace,
}

/// What is to be done with the token.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// By which protocol the tool is called.
    pub protocol: &'c str,
    /// SHA-256 of the call's body, if the tool server says it.
    pub request_body_hash: Option<&'c BodyHash>,
}

/// Checks 2 to 9 of a token whose first check has passed, in order, up to the first that fails.
///
/// # Errors
/// The check that failed.
pub fn examine(
    authentic: Authentic,
    facts: Facts,
    call: Call<'_>,
    tool: &Tool,
    containment: &Containment,
) -> Result<Verified, Failure> {
    let standing = revocation::revocation(authentic, facts)?;
    let spoken = protocol::protocol(standing, call.protocol, tool)?;
    let addressed = audience::audience(spoken, tool)?;
    let capable = capabilities::capabilities(addressed, tool)?;
    let contained = blast_radius::blast_radius(capable, tool, containment)?;
    let operating = exec_act::exec_act(contained, tool)?;
    let carrying = inp_hash::inp_hash(operating, call.request_body_hash, tool)?;
    target::target(carrying, tool)
}

/// The token, and the checks it has come through.
#[derive(Debug)]
struct Progress {
    credential: Credential,
    trace: Trace,
}

impl Progress {
    fn record(mut self, check: Check, outcome: Outcome) -> Self {
        self.trace.push((check, outcome));
        self
    }

    fn fail(self, check: Check, reason: impl Into<String>) -> Failure {
        Failure { check, reason: reason.into(), trace: self.trace }
    }
}
