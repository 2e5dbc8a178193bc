//! openraft's configuration.

use std::sync::Arc;
use std::time::Duration;

/// The Raft configuration (reasons: `docs/decisions/2026-11-20-openraft-alpha-exact-pin.md`).
///
/// # Errors
/// If the values contradict each other.
pub(crate) fn raft_config(heartbeat: Duration) -> Result<Arc<openraft::Config>, openraft::ConfigError> {
    let heartbeat_millis = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: "trust-fabric".to_owned(),
        heartbeat_interval: heartbeat_millis,
        election_timeout_min: heartbeat_millis * 3,
        election_timeout_max: heartbeat_millis * 6,
        // The default, 200 ms, also bounds the transfer of a whole snapshot.
        install_snapshot_timeout: 600_000,
        // Followers should catch up from the log, and openraft regards neither bytes nor followers: `log_keeper` purges.
        // Besides, a purge after a snapshot of entries that are not applied yet stops openraft (issue 2116).
        max_in_snapshot_log_to_keep: u64::MAX,
        snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(100_000),
        enable_pre_vote: Some(true),
        // A restarted leader must win an election before it leads again.
        enable_leader_restore: Some(false),
        // The upper bound is short: a node that returns after a moment gets entries soon.
        backoff: "50ms 100ms 200ms ..500ms".to_owned(),
        ..openraft::Config::default()
    }
    .validate()
    .map(Arc::new)
}
