//! The feature level of the cluster, and the recorded version of each member.
//!
//! The level is raised to one that every member has reported to support. It is never lowered.

use super::feed::{self, FeedKind, NewFeedEvent};
use super::nodes;
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, Status};
use crate::state::command::{Command, Node, RaiseFeatureLevel, Refusal, Reply};
#[cfg(not(feature = "level-0"))]
use crate::state::command::{MemberVersion, RecordVersion};
use crate::state::feature_level::{SUPPORTED, check};
use crate::state::tables::{FEATURE_LEVEL, META, Tables};
use crate::state::{Error, OnBehalf, State};

/// The program of a member, as the member reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLevel {
    pub node_id: u64,
    /// Version and the newest feature level, or the reason for which it sent no report.
    pub report: Result<(String, u32), String>,
}

/// Decodes the row.
pub fn from_row(row: &[u8]) -> Result<u32, Corrupt> {
    let level = row.try_into().map(u64::from_be_bytes).ok().and_then(|level| u32::try_from(level).ok());
    level.ok_or_else(|| Corrupt::row("a feature level is not a number of 32 bits"))
}

/// The level of the cluster.
pub fn of_cluster(tables: &Tables<'_>) -> Result<u32, Corrupt> {
    tables.row(META, FEATURE_LEVEL)?.map_or(Ok(0), |row| from_row(&row))
}

/// Sets the level of a new cluster.
pub fn set_initial(tables: &mut Tables<'_>, level: u32) -> Result<(), Corrupt> {
    check(level, &SUPPORTED)?;
    if level > 0 {
        tables.set_number(FEATURE_LEVEL, level.into());
    }
    Ok(())
}

/// Raises the level. A node that does not support it stops: it could not apply what follows.
pub fn raise(tables: &mut Tables<'_>, now: Timestamp, command: &RaiseFeatureLevel) -> Result<Reply, Corrupt> {
    if command.level <= of_cluster(tables)? {
        return Ok(Reply::Done { changed: false });
    }
    let is_asked = |node: &Node| command.node_ids.contains(&node.node_id);
    if nodes::read(tables)?.values().any(|node| nodes::has_joined(node) && !is_asked(node)) {
        return Ok(Reply::Refused(Refusal::MembersChanged));
    }
    check(command.level, &SUPPORTED)?;
    tables.set_number(FEATURE_LEVEL, command.level.into());
    let detail = &format!("raised to {}", command.level);
    let event =
        NewFeedEvent { kind: FeedKind::Cluster, subject: "feature level", target: &command.caller, detail };
    feed::append(tables, now, event)?;
    Ok(Reply::Done { changed: true })
}

/// Records the version of a member.
#[cfg(not(feature = "level-0"))]
pub fn record_version(tables: &mut Tables<'_>, command: RecordVersion) -> Result<Reply, Corrupt> {
    let node = nodes::read(tables)?.remove(&command.node_id);
    let node = match node {
        None => return Ok(Reply::Refused(Refusal::UnknownNode)),
        Some(node) if nodes::is_removed(&node) => return Ok(Reply::Refused(Refusal::NodeRemoved)),
        Some(node) if !nodes::has_joined(&node) => return Ok(Reply::Refused(Refusal::NodeNotJoined)),
        Some(node) => node,
    };
    let changed = node.recorded != command.version;
    if changed {
        nodes::put(tables, &Node { recorded: command.version, ..node });
    }
    Ok(Reply::Done { changed })
}

/// Version and newest feature level of a member at its last start; `None` if they are not recorded.
#[cfg(not(feature = "level-0"))]
#[must_use]
pub fn recorded_version(node: &Node) -> Option<(&str, u32)> {
    node.recorded.as_ref().map(|recorded| (recorded.version.as_str(), recorded.feature_level))
}

/// Feature level 0 records none.
#[cfg(feature = "level-0")]
#[must_use]
pub fn recorded_version(_: &Node) -> Option<(&str, u32)> {
    None
}

/// The level to which the cluster can be raised by these reports.
///
/// # Errors
/// [`Error::NotSupported`].
fn level_of(current: u32, members: &[MemberLevel]) -> Result<u32, Error> {
    let newest = |member: &MemberLevel| member.report.as_ref().map_or(0, |(_, newest)| *newest);
    let level = members.iter().map(newest).max().unwrap_or_default();
    if level <= current {
        return Ok(current);
    }
    let obstacle = |member: &MemberLevel| match &member.report {
        Ok((_, newest)) if *newest >= level => None,
        Ok((version, newest)) => Some(format!(
            "node {} runs version {version}, which supports at most feature level {newest}",
            member.node_id
        )),
        Err(reason) => Some(format!("node {} does not answer: {reason}", member.node_id)),
    };
    let obstacles: Vec<String> = members.iter().filter_map(obstacle).collect();
    if obstacles.is_empty() {
        return Ok(level);
    }
    Err(Error::NotSupported { level, reasons: obstacles.join("; ") })
}

impl State {
    /// Requests the version and the newest feature level of every member.
    pub async fn member_levels(&self) -> Vec<MemberLevel> {
        let Status { members, .. } = self.cluster.status().await;
        let level = |member: crate::cluster::Member| MemberLevel {
            node_id: member.node_id,
            report: member.report.map(|report| (report.version, report.feature_level)),
        };
        members.into_iter().map(level).collect()
    }

    /// Whether this node is a member, the cluster records versions, and that of this program is not recorded.
    #[must_use]
    pub fn owes_version(&self) -> bool {
        let (index, node_id) = (self.index(), self.cluster.node_id());
        let this = Some((env!("CARGO_PKG_VERSION"), *SUPPORTED.end()));
        let differs = |node: &Node| nodes::has_joined(node) && recorded_version(node) != this;
        index.feature_level >= 1 && index.nodes.get(&node_id).is_some_and(|node| differs(node))
    }

    /// Records the version of this program, if [`Self::owes_version`].
    ///
    /// # Errors
    /// [`Error::Write`].
    #[cfg(not(feature = "level-0"))]
    pub async fn record_version(&self) -> Result<(), Error> {
        if !self.owes_version() {
            return Ok(());
        }
        let (version, feature_level) = (env!("CARGO_PKG_VERSION").to_owned(), *SUPPORTED.end());
        let version = Some(MemberVersion { version, feature_level });
        let command = RecordVersion { node_id: self.cluster.node_id(), version };
        self.as_node().propose(Command::RecordVersion(command)).await.map(drop)
    }

    /// Feature level 0 records none.
    #[cfg(feature = "level-0")]
    pub async fn record_version(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl OnBehalf<'_> {
    /// Raises the feature level of the cluster to the newest that every member supports, and returns it.
    ///
    /// # Errors
    /// [`Error::NotSupported`], `Refusal::MembersChanged`, `Refusal::IdempotencyKeyReused`.
    pub async fn raise_feature_level(self) -> Result<u32, Error> {
        let members = self.state.member_levels().await;
        let level = level_of(self.state.index().feature_level, &members)?;
        let node_ids = members.iter().map(|member| member.node_id).collect();
        let command = Command::RaiseFeatureLevel(RaiseFeatureLevel { level, node_ids, caller: self.name() });
        self.propose_once(command).await?;
        Ok(self.state.index().feature_level)
    }
}

#[cfg(test)]
mod tests;
