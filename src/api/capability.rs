//! The capabilities of callers.

use std::str::FromStr;

use crate::text;

/// A capability (contract §2): in the claim `capabilities` of a bearer token, or in the table of callers for a client
/// certificate.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Capability {
    /// Exchange credentials.
    Exchange,
    /// Issue identities to agents; read and revoke the caller's agents.
    #[strum(serialize = "identity.issue")]
    IdentityIssue,
    /// Send signals.
    #[strum(serialize = "signals.send")]
    SignalsSend,
    /// Create streams; change, pause and delete the caller's streams.
    #[strum(serialize = "streams.manage")]
    StreamsManage,
    /// Read the caller's streams.
    #[strum(serialize = "streams.read")]
    StreamsRead,
    /// Register, replace and deregister tools.
    #[strum(serialize = "tools.manage")]
    ToolsManage,
    /// Read the tool registry.
    #[strum(serialize = "tools.read")]
    ToolsRead,
    /// Verify tokens for tool calls.
    #[strum(serialize = "tools.verify")]
    ToolsVerify,
    /// Read the audit.
    #[strum(serialize = "audit.read")]
    AuditRead,
    /// Read the live feed.
    #[strum(serialize = "events.read")]
    EventsRead,
    /// Administer the cluster.
    #[strum(serialize = "cluster.admin")]
    ClusterAdmin,
    /// Read metrics.
    #[strum(serialize = "metrics.read")]
    MetricsRead,
}

impl FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text::one_of(text)
    }
}
