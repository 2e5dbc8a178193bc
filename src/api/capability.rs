//! The capabilities that routes require of a caller.

use std::fmt;
use std::str::FromStr;

/// What a caller may do (contract §2). A bearer has it in its claim `capabilities`, a client
/// certificate in the table of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Exchange credentials.
    Exchange,
    /// Issue identities to agents, see and revoke those it issued.
    IdentityIssue,
    /// Bring signals.
    SignalsSend,
    /// Make streams of signals, change, pause and delete its own.
    StreamsManage,
    /// See its own streams.
    StreamsRead,
    /// Register, replace and deregister tools.
    ToolsManage,
    /// Read the registry of tools.
    ToolsRead,
    /// Have tokens verified for a tool.
    ToolsVerify,
    /// Read the audit.
    AuditRead,
    /// Read the live feed.
    EventsRead,
    /// Administer the cluster: keys, policy.
    ClusterAdmin,
    /// Read metrics, where they are not public.
    MetricsRead,
}

impl Capability {
    /// Every capability that some route asks for.
    pub const ALL: [Self; 12] = [
        Self::Exchange,
        Self::IdentityIssue,
        Self::SignalsSend,
        Self::StreamsManage,
        Self::StreamsRead,
        Self::ToolsManage,
        Self::ToolsRead,
        Self::ToolsVerify,
        Self::AuditRead,
        Self::EventsRead,
        Self::ClusterAdmin,
        Self::MetricsRead,
    ];

    /// As it is spelled in configuration and tokens.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::IdentityIssue => "identity.issue",
            Self::SignalsSend => "signals.send",
            Self::StreamsManage => "streams.manage",
            Self::StreamsRead => "streams.read",
            Self::ToolsManage => "tools.manage",
            Self::ToolsRead => "tools.read",
            Self::ToolsVerify => "tools.verify",
            Self::AuditRead => "audit.read",
            Self::EventsRead => "events.read",
            Self::ClusterAdmin => "cluster.admin",
            Self::MetricsRead => "metrics.read",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::ALL.map(Self::as_str).join(", ");
        let known = Self::ALL.into_iter().find(|capability| capability.as_str() == text);
        known.ok_or_else(|| format!("must be one of {all}"))
    }
}
