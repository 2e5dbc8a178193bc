//! The capabilities of callers.

use std::fmt;
use std::str::FromStr;

/// A capability (contract §2): in the claim `capabilities` of a bearer token, or in the table of callers for a client
/// certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Exchange credentials.
    Exchange,
    /// Issue identities to agents; read and revoke the caller's agents.
    IdentityIssue,
    /// Send signals.
    SignalsSend,
    /// Create streams; change, pause and delete the caller's streams.
    StreamsManage,
    /// Read the caller's streams.
    StreamsRead,
    /// Register, replace and deregister tools.
    ToolsManage,
    /// Read the tool registry.
    ToolsRead,
    /// Verify tokens for tool calls.
    ToolsVerify,
    /// Read the audit.
    AuditRead,
    /// Read the live feed.
    EventsRead,
    /// Administer the cluster.
    ClusterAdmin,
    /// Read metrics.
    MetricsRead,
}

impl Capability {
    /// Every capability.
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

    /// The name in configuration and tokens.
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
