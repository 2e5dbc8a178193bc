//! Every metric in one table: field, type, name, labels and help. `docs/reference/metrics.md` is generated from it.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::telemetry::Error;

/// Upper bounds of duration histograms, in seconds.
const DURATION_BUCKETS_SECS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// A type of metric.
trait Kind: Collector + Clone + 'static {
    #[cfg(test)]
    const NAME: &'static str;

    fn create(opts: Opts, labels: &[&str]) -> prometheus::Result<Self>;
}

macro_rules! kinds {
    ($($kind:ty: $name:literal, $create:expr;)*) => {$(
        impl Kind for $kind {
            #[cfg(test)]
            const NAME: &str = $name;

            fn create(opts: Opts, labels: &[&str]) -> prometheus::Result<Self> {
                let create: fn(Opts, &[&str]) -> prometheus::Result<Self> = $create;
                create(opts, labels)
            }
        }
    )*};
}

kinds! {
    IntCounter: "counter", |opts, _| Self::with_opts(opts);
    IntCounterVec: "counter", Self::new;
    IntGauge: "gauge", |opts, _| Self::with_opts(opts);
    Gauge: "gauge", |opts, _| Self::with_opts(opts);
    IntGaugeVec: "gauge", Self::new;
    GaugeVec: "gauge", Self::new;
    HistogramVec: "histogram", |opts, labels| {
        Self::new(HistogramOpts::from(opts).buckets(DURATION_BUCKETS_SECS.to_vec()), labels)
    };
}

fn register<K: Kind>(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<K, Error> {
    let metric = K::create(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Name, type, labels and help.
#[cfg(test)]
pub(super) type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

macro_rules! metrics {
    ($($section:literal; $($field:ident: $kind:ident = $name:literal [$($label:literal),*] $help:literal;)*)*) => {
        /// A handle of every metric. Clones share their values.
        #[derive(Clone, Debug)]
        pub(super) struct Families {
            $($(pub(super) $field: $kind,)*)*
        }

        impl Families {
            /// Registers every metric at zero.
            pub(super) fn register(registry: &Registry) -> Result<Self, Error> {
                Ok(Self { $($($field: register(registry, $name, $help, &[$($label),*])?,)*)* })
            }
        }

        /// The rows of each section.
        #[cfg(test)]
        pub(super) const SECTIONS: &[(&str, &[Row])] = &[
            $(($section, &[$(($name, <$kind as Kind>::NAME, &[$($label),*], $help)),*])),*
        ];
    };
}

metrics! {
    "HTTP edge";
    http_requests: IntCounterVec = "svc_http_requests_total" ["route", "method", "status"]
        "Requests; `route` is the pattern of the route table.";
    http_request_duration: HistogramVec = "svc_http_request_duration_seconds" ["route"]
        "Time from the head of a request to its response, in seconds.";
    requests_refused: IntCounterVec = "svc_requests_refused_total" ["reason"]
        "Requests refused before their handler: `rate`, `overload`, `violation`, `origin`, `reserve`.";
    http_connections: IntGaugeVec = "svc_http_connections" ["listener"]
        "Open connections: `plain`, `tls`.";
    http_connections_refused: IntCounterVec = "svc_http_connections_refused_total" ["reason"]
        "Connections closed before their first request.";
    http_connections_closed: IntCounterVec = "svc_http_connections_closed_total" ["reason"]
        "Closed connections.";
    "Use-cases";
    exchanges: IntCounterVec = "svc_exchange_total" ["subject_token_type", "result"]
        "Token exchanges; `result` is `granted` or the reason of the refusal.";
    policy_decisions: IntCounterVec = "svc_policy_decisions_total" ["point", "decision"]
        "Policy decisions at `exchange`, `identity`, `signals`.";
    policy_decisions_cached: IntGauge = "svc_policy_decisions_cached" []
        "Cached decisions of token exchange, 10 000 at most. At that number, each request with a new policy input evaluates the policy.";
    signature_cache_bytes: IntGauge = "svc_signature_cache_bytes" []
        "Memory of cached verified signatures, 256 MiB at most.";
    policy_loads: IntCounterVec = "svc_policy_loads_total" ["result"]
        "Loads of policy bundles.";
    agent_identities_issued: IntCounterVec = "svc_agent_identities_issued_total" ["platform"]
        "Agent identities issued, without renewals.";
    verifications: IntCounterVec = "svc_verify_total" ["result"]
        "Verifications of tool calls: `allow`, `deny`, `error`, `not_found` for an unknown tool, `invalid_request`.";
    verify_checks: IntCounterVec = "svc_verify_checks_total" ["check", "result"]
        "Single checks of tool calls: `pass`, `skip`, `fail`.";
    tool_writes: IntCounterVec = "svc_tool_writes_total" ["action", "result"]
        "Writes to the tool registry.";
    tools: IntGauge = "svc_tools" []
        "Tools in the registry.";
    issuer_key_fetches: IntCounterVec = "svc_issuer_key_fetches_total" ["result"]
        "Fetches of issuers' keys.";
    signing_keys: IntGaugeVec = "svc_signing_keys" ["algorithm", "state"]
        "Signing keys of the cluster.";
    "Signals and streams";
    signals: IntCounterVec = "svc_signals_total" ["result"]
        "Security event tokens received: `accepted`, `duplicate`, `ignored`, or the reason of the refusal.";
    revocations: IntGauge = "svc_revocations" []
        "Retained revocations.";
    blocks: IntGauge = "svc_blocks" []
        "Subject blocks in force.";
    streams: IntGaugeVec = "svc_streams" ["status"]
        "Streams by their stored status. An enabled stream with an obstacle, such as a blocked owner, counts as enabled.";
    stream_events: IntCounterVec = "svc_stream_events_total" ["result"]
        "Events finished on streams: delivered, dropped, dead letters and others.";
    stream_backlog: IntGaugeVec = "svc_stream_backlog" ["of"]
        "Undelivered events: `all`, and `largest` of one stream; 0 on a follower.";
    pushes: IntCounterVec = "svc_push_total" ["result"]
        "Pushes to receivers.";
    push_duration: HistogramVec = "svc_push_seconds" []
        "Time from a push to its response or failure, in seconds.";
    polled_sets: IntCounterVec = "svc_polled_sets_total" ["result"]
        "Security event tokens of polled streams: `returned`, `acknowledged`, `refused`.";
    polls_waiting: IntGauge = "svc_polls_waiting" []
        "Polls that wait for an event.";
    event_readers: IntGauge = "svc_event_readers" []
        "Subscribers of the live feed.";
    event_readers_dropped: IntCounterVec = "svc_event_readers_dropped_total" ["reason"]
        "Subscribers of the live feed that were disconnected.";
    event_activities_dropped: IntCounter = "svc_event_activities_dropped_total" []
        "Exchanges and denials that the live feed dropped under load.";
    "Federation";
    federation_calls: IntCounterVec = "svc_federation_calls_total" ["peer", "result"]
        "Calls of this node to a peer: `imported`, `nothing_new`, `held`, or the reason of the failure.";
    federation_import: HistogramVec = "svc_federation_import_seconds" ["peer"]
        "Time from the response of a peer to its application here, in seconds.";
    federation_await: HistogramVec = "svc_federation_await_seconds" ["peer"]
        "Time for which a revocation waited for an awaited peer, in seconds.";
    federation_state: IntGaugeVec = "svc_federation_state" ["peer", "state"]
        "1 for the present state of a peer: `not_read`, `joining`, `live`, `stale`, `held`, `paused`.";
    federation_heard: GaugeVec = "svc_federation_heard_seconds" ["peer"]
        "Seconds since the last call to a peer whose response this node knows to be applied.";
    federation_entries: IntGaugeVec = "svc_federation_entries" ["peer"]
        "Entries and blocks in the copy of a peer's ledger.";
    federation_clock_offset: GaugeVec = "svc_federation_clock_offset_seconds" ["peer"]
        "Seconds by which a peer's wall clock is ahead of this node's, as its last response states; leader only.";
    federation_audits: IntCounterVec = "svc_federation_audit_total" ["peer", "result"]
        "Comparisons of a peer's root with that of its copy, by the leader: `equal`, `differs`, `skipped`.";
    federation_unjudged: IntCounterVec = "svc_federation_unjudged_total" ["peer"]
        "Refusals of credentials because the copy of a peer's ledger is stale, incomplete or held.";
    "Cluster";
    raft_applied_index: IntGauge = "svc_raft_applied_index" []
        "Index of the last log entry that this node applied.";
    raft_is_leader: IntGauge = "svc_raft_is_leader" []
        "1 if this node leads the cluster.";
    raft_term: IntGauge = "svc_raft_term" []
        "Current Raft term of this node.";
    raft_leader_changes: IntCounter = "svc_raft_leader_changes_total" []
        "Times that this node learned of a new leader, or of the same leader in a new term.";
    freshness_lease_held: IntGauge = "svc_freshness_lease_held" []
        "1 if this node holds a freshness lease.";
    freshness_waits: IntCounter = "svc_freshness_waits_total" []
        "Requests that waited for a freshness lease.";
    freshness_refused: IntCounter = "svc_freshness_refused_total" []
        "Requests refused for lack of a freshness lease.";
    acknowledgements: IntCounterVec = "svc_acknowledgements_total" ["result"]
        "Acknowledgements that waited for the barrier: `confirmed`, `unconfirmed`.";
    clock_offset: GaugeVec = "svc_clock_offset_seconds" ["node"]
        "Seconds by which a node's wall clock is ahead of the voters' median, as the leader last reported.";
    clock_agreement: IntGauge = "svc_clock_agreement" []
        "1 if the wall clocks of a majority of the voters are close to their median.";
    log_time_ahead: Gauge = "svc_log_time_ahead_seconds" []
        "Seconds by which log time is ahead of the voters' median: their clocks were set back. 0 if it is not.";
    log_disk_hangs: IntGauge = "svc_log_disk_hangs" []
        "1 if a write to the log has stalled for so long that this node does not lead.";
    disk_free_bytes: IntGauge = "svc_disk_free_bytes" []
        "Free bytes of the file system with the data directory.";
    disk_space_state: IntGauge = "svc_disk_space_state" []
        "0 if that is enough; 1 if it is low, and writes that add data are refused; 2 if this node does not lead for lack of it.";
    "Audit, TLS, process";
    audit_entries: IntCounterVec = "svc_audit_entries_total" ["decision"]
        "Audit entries recorded by this node.";
    audit_backlog: IntGauge = "svc_audit_backlog_bytes" []
        "Audit entries of this node that are not replicated yet, in bytes.";
    audit_blocks: IntCounterVec = "svc_audit_blocks_total" ["result"]
        "Audit blocks `shipped` into the log, or `failed` and retried.";
    audit_blocks_dropped: IntCounterVec = "svc_audit_blocks_dropped_total" ["reason"]
        "Audit blocks dropped by retention: `age`, `bytes`.";
    tls_reloads: IntCounterVec = "svc_tls_reloads_total" ["with", "result"]
        "Reloads of changed TLS files: `ok`, `failed`; for `callers`, `peers`, `fabrics`, `bundles`, `push`.";
    tls_certificate_not_before: IntGaugeVec = "svc_tls_certificate_not_before_seconds" ["with"]
        "Begin of this node's TLS certificate, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`, `push`.";
    tls_certificate_not_after: IntGaugeVec = "svc_tls_certificate_not_after_seconds" ["with"]
        "End of this node's TLS certificate, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`, `push`.";
    tls_ca_not_before: IntGaugeVec = "svc_tls_ca_not_before_seconds" ["with"]
        "Begin of the accepted CA that ends last, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_ca_not_after: IntGaugeVec = "svc_tls_ca_not_after_seconds" ["with"]
        "End of the accepted CA that ends last, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_crl_this_update: IntGaugeVec = "svc_tls_crl_this_update_seconds" ["with"]
        "Issue of the revocation list that expires first, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    tls_crl_next_update: IntGaugeVec = "svc_tls_crl_next_update_seconds" ["with"]
        "Time at which the first revocation list expires, in seconds since the Unix epoch; for `callers`, `peers`, `fabrics`.";
    log_lines_dropped: IntCounter = "svc_log_lines_dropped_total" []
        "Log lines dropped because standard error was not read fast enough.";
    build_info: IntGaugeVec = "svc_build_info" ["version"]
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
