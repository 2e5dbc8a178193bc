//! Every metric in one table: field, type, name, labels and help. `docs/reference/metrics.md` is generated from it.

use prometheus::{Opts, Registry};

use super::kinds::{Counter, FloatGauge, Gauge, Kind, Timing};
use crate::telemetry::Error;

const fn count(labels: &[&str]) -> usize {
    labels.len()
}

/// Name, type, labels and help.
#[cfg(test)]
pub(super) type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

macro_rules! metrics {
    ($($section:literal; $($field:ident: $kind:ident = $name:literal [$($label:literal),*] $help:literal;)*)*) => {
        /// A handle of every metric. Clones share their values.
        #[derive(Clone, Debug)]
        pub struct Families {
            $($(pub $field: $kind<{ count(&[$($label),*]) }>,)*)*
        }

        impl Families {
            /// Registers every metric at zero.
            pub(super) fn register(registry: &Registry) -> Result<Self, Error> {
                Ok(Self {
                    $($($field: Kind::register(registry, Opts::new($name, $help), &[$($label),*])?,)*)*
                })
            }
        }

        /// The rows of each section.
        #[cfg(test)]
        pub(super) const SECTIONS: &[(&str, &[Row])] = &[
            $(($section, &[$(($name, <$kind<0> as Kind>::NAME, &[$($label),*], $help)),*])),*
        ];
    };
}

metrics! {
    "HTTP edge";
    http_requests: Counter = "svc_http_requests_total" ["route", "method", "status"]
        "Requests; `route` is the pattern of the route table.";
    http_request_duration: Timing = "svc_http_request_duration_seconds" ["route"]
        "Time from the head of a request to its response, in seconds.";
    requests_refused: Counter = "svc_requests_refused_total" ["reason"]
        "Requests refused before their handler: `rate`, `overload`, `violation`, `origin`, `reserve`.";
    http_connections: Gauge = "svc_http_connections" ["listener"]
        "Open connections: `plain`, `tls`.";
    http_connections_refused: Counter = "svc_http_connections_refused_total" ["reason"]
        "Connections closed before their first request.";
    http_connections_closed: Counter = "svc_http_connections_closed_total" ["reason"]
        "Closed connections.";
    "Use-cases";
    exchanges: Counter = "svc_exchange_total" ["subject_token_type", "result"]
        "Token exchanges; `result` is `granted` or the reason of the refusal.";
    policy_decisions: Counter = "svc_policy_decisions_total" ["point", "decision"]
        "Policy decisions at `exchange`, `identity`, `signals`: `allow`, `deny`, `error`.";
    policy_decisions_cached: Gauge = "svc_policy_decisions_cached" []
        "Cached decisions of token exchange, 10 000 at most. At that number, each request with a new policy input evaluates the policy.";
    signature_cache_bytes: Gauge = "svc_signature_cache_bytes" []
        "Memory of cached verified signatures, 256 MiB at most.";
    policy_loads: Counter = "svc_policy_loads_total" ["result"]
        "Loads of policy bundles.";
    agent_identities_issued: Counter = "svc_agent_identities_issued_total" ["platform"]
        "Agent identities issued, without renewals.";
    verifications: Counter = "svc_verify_total" ["result"]
        "Verifications of tool calls: `allow`, `deny`, `error`, `not_found` for an unknown tool, `invalid_request`.";
    verify_checks: Counter = "svc_verify_checks_total" ["check", "result"]
        "Single checks of tool calls: `pass`, `skip`, `fail`.";
    tool_writes: Counter = "svc_tool_writes_total" ["action", "result"]
        "Writes to the tool registry.";
    tools: Gauge = "svc_tools" []
        "Tools in the registry.";
    issuer_key_fetches: Counter = "svc_issuer_key_fetches_total" ["result"]
        "Fetches of issuers' keys.";
    signing_keys: Gauge = "svc_signing_keys" ["algorithm", "state"]
        "Signing keys of the cluster.";
    "Signals and streams";
    signals: Counter = "svc_signals_total" ["result"]
        "Security event tokens received: `accepted`, `duplicate`, `ignored`, or the reason of the refusal.";
    revocations: Gauge = "svc_revocations" []
        "Retained revocations.";
    blocks: Gauge = "svc_blocks" []
        "Subject blocks in force.";
    streams: Gauge = "svc_streams" ["status"]
        "Streams by their stored status. An enabled stream with an obstacle, such as a blocked owner, counts as enabled.";
    stream_events: Counter = "svc_stream_events_total" ["result"]
        "Events finished on streams: delivered, dropped, dead letters and others.";
    stream_backlog: Gauge = "svc_stream_backlog" ["of"]
        "Undelivered events: `all`, and `largest` of one stream; 0 on a follower.";
    pushes: Counter = "svc_push_total" ["result"]
        "Pushes to receivers.";
    push_duration: Timing = "svc_push_seconds" []
        "Time from a push to its response or failure, in seconds.";
    polled_sets: Counter = "svc_polled_sets_total" ["result"]
        "Security event tokens of polled streams: `returned`, `acknowledged`, `refused`.";
    polls_waiting: Gauge = "svc_polls_waiting" []
        "Polls that wait for an event.";
    event_readers: Gauge = "svc_event_readers" []
        "Subscribers of the live feed.";
    event_readers_dropped: Counter = "svc_event_readers_dropped_total" ["reason"]
        "Subscribers of the live feed that were disconnected.";
    event_activities_dropped: Counter = "svc_event_activities_dropped_total" []
        "Exchanges and denials that the live feed dropped under load.";
    "Federation";
    federation_calls: Counter = "svc_federation_calls_total" ["peer", "result"]
        "Calls of this node to a peer: `imported`, `nothing_new`, `held`, or the reason of the failure.";
    federation_import: Timing = "svc_federation_import_seconds" ["peer"]
        "Time from the response of a peer to its application here, in seconds.";
    federation_await: Timing = "svc_federation_await_seconds" ["peer"]
        "Time for which a revocation waited for an awaited peer, in seconds.";
    federation_state: Gauge = "svc_federation_state" ["peer", "state"]
        "1 for the present state of a peer: `not_read`, `joining`, `live`, `stale`, `held`, `paused`.";
    federation_heard: FloatGauge = "svc_federation_heard_seconds" ["peer"]
        "Seconds since the last call to a peer whose response this node knows to be applied.";
    federation_entries: Gauge = "svc_federation_entries" ["peer"]
        "Entries and blocks in the copy of a peer's ledger.";
    federation_clock_offset: FloatGauge = "svc_federation_clock_offset_seconds" ["peer"]
        "Seconds by which a peer's wall clock is ahead of this node's, as its last response states; leader only.";
    federation_audits: Counter = "svc_federation_audit_total" ["peer", "result"]
        "Comparisons of a peer's root with that of its copy, by the leader: `equal`, `differs`, `skipped`.";
    federation_unjudged: Counter = "svc_federation_unjudged_total" ["peer"]
        "Refusals of credentials because the copy of a peer's ledger is stale, incomplete or held.";
    "Cluster";
    raft_applied_index: Gauge = "svc_raft_applied_index" []
        "Index of the last log entry that this node applied.";
    raft_is_leader: Gauge = "svc_raft_is_leader" []
        "1 if this node leads the cluster.";
    raft_term: Gauge = "svc_raft_term" []
        "Current Raft term of this node.";
    raft_leader_changes: Counter = "svc_raft_leader_changes_total" []
        "Times that this node learned of a new leader, or of the same leader in a new term.";
    freshness_lease_held: Gauge = "svc_freshness_lease_held" []
        "1 if this node holds a freshness lease.";
    freshness_waits: Counter = "svc_freshness_waits_total" []
        "Requests that waited for a freshness lease.";
    freshness_refused: Counter = "svc_freshness_refused_total" []
        "Requests refused for lack of a freshness lease.";
    acknowledgements: Counter = "svc_acknowledgements_total" ["result"]
        "Acknowledgements that waited for the barrier: `confirmed`, `unconfirmed`.";
    clock_offset: FloatGauge = "svc_clock_offset_seconds" ["node"]
        "Seconds by which a node's wall clock is ahead of the voters' median, as the leader last reported.";
    clock_agreement: Gauge = "svc_clock_agreement" []
        "1 if the wall clocks of a majority of the voters are close to their median.";
    log_time_ahead: FloatGauge = "svc_log_time_ahead_seconds" []
        "Seconds by which log time is ahead of the voters' median: their clocks were set back. 0 if it is not.";
    log_disk_hangs: Gauge = "svc_log_disk_hangs" []
        "1 if a write to the log has stalled for so long that this node does not lead.";
    disk_free_bytes: Gauge = "svc_disk_free_bytes" []
        "Free bytes of the file system with the data directory.";
    disk_space_state: Gauge = "svc_disk_space_state" []
        "State of the free disk space: 0 sufficient; 1 low, writes that add data are refused; 2 almost gone, the node gives up leadership if another voter has space.";
    "Audit, TLS, process";
    audit_entries: Counter = "svc_audit_entries_total" ["decision"]
        "Audit entries recorded by this node.";
    audit_backlog: Gauge = "svc_audit_backlog_bytes" []
        "Audit entries of this node that are not replicated yet, in bytes.";
    audit_blocks: Counter = "svc_audit_blocks_total" ["result"]
        "Audit blocks `shipped` into the log, or `failed` and retried.";
    audit_blocks_dropped: Counter = "svc_audit_blocks_dropped_total" ["reason"]
        "Audit blocks dropped by retention: `age`, `bytes`.";
    tls_reloads: Counter = "svc_tls_reloads_total" ["with", "result"]
        "Reloads of changed TLS files: `ok`, `failed`; for `callers`, `peers`, `fabrics`, `bundles`, `push`.";
    tls_certificate_not_before: Gauge = "svc_tls_certificate_not_before_seconds" ["with"]
        "Begin of this node's TLS certificate, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`, `push`.";
    tls_certificate_not_after: Gauge = "svc_tls_certificate_not_after_seconds" ["with"]
        "End of this node's TLS certificate, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`, `push`.";
    tls_ca_not_before: Gauge = "svc_tls_ca_not_before_seconds" ["with"]
        "Begin of the last CA of the trust domain whose CAs end first, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_ca_not_after: Gauge = "svc_tls_ca_not_after_seconds" ["with"]
        "End of the last CA of the trust domain whose CAs end first, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_crl_this_update: Gauge = "svc_tls_crl_this_update_seconds" ["with"]
        "Issue of the revocation list that expires first, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_crl_next_update: Gauge = "svc_tls_crl_next_update_seconds" ["with"]
        "Time at which the first revocation list expires, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    log_lines_dropped: Counter = "svc_log_lines_dropped_total" []
        "Log lines dropped because standard error was not read fast enough.";
    build_info: Gauge = "svc_build_info" ["version"]
        "1, with the version as a label.";
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The sections of the page that are generated.
    fn sections() -> String {
        let row = |(name, kind, labels, help): &Row| {
            let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            format!("| `{name}` | {kind} | {labels} | {help} |\n")
        };
        let section = |(title, rows): &(&str, &[Row])| {
            let rows: String = rows.iter().map(row).collect();
            format!("\n## {title}\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n{rows}")
        };
        SECTIONS.iter().map(section).collect()
    }

    /// Introduction and alerts of the page are written by hand.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "`make fix` sets the variable")]
    fn metrics_page_equals_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md");
        let written = fs::read_to_string(&path).expect("the page");
        let (introduction, rest) = written.split_once("\n## ").expect("sections");
        let (_, alerts) = rest.split_once("\n## Alerts").expect("alerts");
        let page = format!("{introduction}{}\n## Alerts{alerts}", sections());
        if std::env::var_os("TRUST_FABRIC_REWRITE").is_some() {
            fs::write(&path, &page).expect("write the page");
        }
        let written = fs::read_to_string(&path).expect("the page");
        assert!(written == page, "docs/reference/metrics.md differs from the table: run `make fix`");
    }

    #[test]
    fn help_is_a_sentence() {
        for (name, _, _, help) in SECTIONS.iter().flat_map(|(_, rows)| *rows) {
            assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
        }
    }
}
