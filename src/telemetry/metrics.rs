//! Metrics in the Prometheus text format, in a registry of their own.
//!
//! Labels are `&'static str` wherever the compiler can see that the set is small.

mod clocks;
mod freshness;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::{
    GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::register::{counter, counters, durations, gauge, gauges, gauges_secs};
use super::{Error, logging};

/// Everything that is counted. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    http_requests: IntCounterVec,
    http_request_duration: HistogramVec,
    requests_refused: IntCounterVec,
    http_connections: IntGaugeVec,
    http_connections_refused: IntCounterVec,
    http_connections_closed: IntCounterVec,
    exchanges: IntCounterVec,
    verifications: IntCounterVec,
    verify_checks: IntCounterVec,
    signals: IntCounterVec,
    polled_sets: IntCounterVec,
    polls_waiting: IntGauge,
    revocations: IntGauge,
    blocks: IntGauge,
    streams: IntGaugeVec,
    stream_events: IntCounterVec,
    stream_backlog: IntGaugeVec,
    pushes: IntCounterVec,
    push_durations: HistogramVec,
    policy_decisions: IntCounterVec,
    policy_loads: IntCounterVec,
    agent_identities_issued: IntCounterVec,
    issuer_key_fetches: IntCounterVec,
    signing_keys: IntGaugeVec,
    tool_writes: IntCounterVec,
    tools: IntGauge,
    tls_reloads: IntCounterVec,
    tls_certificate_not_after: IntGaugeVec,
    raft_applied_index: IntGauge,
    raft_is_leader: IntGauge,
    clock_offset: GaugeVec,
    clock_agreement: IntGauge,
    log_disk_hangs: IntGauge,
    freshness_lease_held: IntGauge,
    freshness_waits: IntCounter,
    freshness_refused: IntCounter,
    acknowledgements: IntCounterVec,
    freshness_known: Arc<freshness::Known>,
    audit_entries: IntCounterVec,
    audit_backlog: IntGauge,
    audit_blocks: IntCounterVec,
    audit_blocks_dropped: IntCounterVec,
    audit_dropped_known: Arc<(AtomicU64, AtomicU64)>,
    event_readers: IntGauge,
    event_readers_dropped: IntCounterVec,
    event_activities_dropped: IntCounter,
    log_lines_dropped: IntCounter,
    log_lines_known: Arc<AtomicU64>,
}

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// [`Error::Metric`].
    #[expect(
        clippy::too_many_lines,
        reason = "one table: each metric with its name, its help and its labels"
    )]
    pub fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let metrics = Self {
            http_requests: counters(
                &registry,
                "svc_http_requests_total",
                "HTTP requests answered.",
                &["route", "method", "status"],
            )?,
            http_request_duration: durations(
                &registry,
                "svc_http_request_duration_seconds",
                "Time from a request's headers to its answer, in seconds.",
                &["route"],
            )?,
            requests_refused: counters(
                &registry,
                "svc_requests_refused_total",
                "Requests refused before their route was asked, by why.",
                &["reason"],
            )?,
            http_connections: gauges(
                &registry,
                "svc_http_connections",
                "Open HTTP connections, by listener.",
                &["listener"],
            )?,
            http_connections_refused: counters(
                &registry,
                "svc_http_connections_refused_total",
                "Connections closed before a request could be sent on them.",
                &["reason"],
            )?,
            http_connections_closed: counters(
                &registry,
                "svc_http_connections_closed_total",
                "Connections that ended, by what ended them.",
                &["reason"],
            )?,
            exchanges: counters(
                &registry,
                "svc_exchange_total",
                "Token exchanges, by kind of subject token and how they ended.",
                &["subject_token_type", "result"],
            )?,
            verifications: counters(
                &registry,
                "svc_verify_total",
                "Verifications of tokens for tools, by how they ended.",
                &["result"],
            )?,
            verify_checks: counters(
                &registry,
                "svc_verify_checks_total",
                "Checks of tokens for tools, by how they ended.",
                &["check", "result"],
            )?,
            signals: counters(
                &registry,
                "svc_signals_total",
                "Security event tokens received, by what became of them.",
                &["result"],
            )?,
            polled_sets: counters(
                &registry,
                "svc_polled_sets_total",
                "Security event tokens of streams that are polled, by what became of them.",
                &["result"],
            )?,
            polls_waiting: gauge(&registry, "svc_polls_waiting", "Polls that wait for a security event.")?,
            revocations: gauge(&registry, "svc_revocations", "Revocations that are remembered.")?,
            blocks: gauge(&registry, "svc_blocks", "Subjects blocked by issuers of signals, once for each.")?,
            streams: gauges(&registry, "svc_streams", "Streams, by their status.", &["status"])?,
            stream_events: counters(
                &registry,
                "svc_stream_events_total",
                "Events that it is over with on a stream, by what became of them.",
                &["result"],
            )?,
            stream_backlog: gauges(
                &registry,
                "svc_stream_backlog",
                "Events that wait for streams, of all together and of the one with most; 0 if this node does not lead.",
                &["of"],
            )?,
            pushes: counters(
                &registry,
                "svc_push_total",
                "Pushes to receivers, by what came of them.",
                &["result"],
            )?,
            push_durations: durations(
                &registry,
                "svc_push_seconds",
                "Time from a push to its answer or failure, in seconds.",
                &[],
            )?,
            policy_decisions: counters(
                &registry,
                "svc_policy_decisions_total",
                "Decisions of the policy, by decision point.",
                &["point", "decision"],
            )?,
            policy_loads: counters(
                &registry,
                "svc_policy_loads_total",
                "Policy bundles loaded or refused.",
                &["result"],
            )?,
            agent_identities_issued: counters(
                &registry,
                "svc_agent_identities_issued_total",
                "Identities issued to agents, by platform.",
                &["platform"],
            )?,
            issuer_key_fetches: counters(
                &registry,
                "svc_issuer_key_fetches_total",
                "Fetches of the keys of configured issuers.",
                &["result"],
            )?,
            signing_keys: gauges(
                &registry,
                "svc_signing_keys",
                "Signing keys of the cluster, by algorithm and state.",
                &["algorithm", "state"],
            )?,
            tool_writes: counters(
                &registry,
                "svc_tool_writes_total",
                "Writes of the registry of tools, by what was asked and what came of it.",
                &["action", "result"],
            )?,
            tools: gauge(&registry, "svc_tools", "Tools in the registry.")?,
            tls_reloads: counters(
                &registry,
                "svc_tls_reloads_total",
                "Changes of the files of TLS that were loaded or refused, by who is at the other end.",
                &["with", "result"],
            )?,
            tls_certificate_not_after: gauges(
                &registry,
                "svc_tls_certificate_not_after_seconds",
                "End of our TLS certificate, in seconds since the Unix epoch, by who is at the other end.",
                &["with"],
            )?,
            raft_applied_index: gauge(
                &registry,
                "svc_raft_applied_index",
                "Index of the last log entry this node applied.",
            )?,
            raft_is_leader: gauge(&registry, "svc_raft_is_leader", "1 if this node leads the cluster.")?,
            clock_offset: gauges_secs(&registry, "svc_clock_offset_seconds", clocks::OFFSET, &["node"])?,
            clock_agreement: gauge(&registry, "svc_clock_agreement", clocks::AGREEMENT)?,
            log_disk_hangs: gauge(
                &registry,
                "svc_log_disk_hangs",
                "1 if a write of the log has not finished for so long that this node does not lead.",
            )?,
            freshness_lease_held: gauge(
                &registry,
                "svc_freshness_lease_held",
                "1 if this node can prove that it knows everything that was revoked.",
            )?,
            freshness_waits: counter(
                &registry,
                "svc_freshness_waits_total",
                "Requests that waited for that proof.",
            )?,
            freshness_refused: counter(
                &registry,
                "svc_freshness_refused_total",
                "Requests refused because it did not come.",
            )?,
            acknowledgements: counters(
                &registry,
                "svc_acknowledgements_total",
                "Acknowledgements that waited until no member could answer from an older index, by result.",
                &["result"],
            )?,
            freshness_known: Arc::default(),
            audit_entries: counters(
                &registry,
                "svc_audit_entries_total",
                "Audit entries written on this node.",
                &["decision"],
            )?,
            audit_backlog: gauge(
                &registry,
                "svc_audit_backlog_bytes",
                "Audit entries of this node that are not in the log yet, in bytes.",
            )?,
            audit_blocks: counters(
                &registry,
                "svc_audit_blocks_total",
                "Blocks of audit entries shipped into the log, or not yet.",
                &["result"],
            )?,
            audit_blocks_dropped: counters(
                &registry,
                "svc_audit_blocks_dropped_total",
                "Blocks of audit entries dropped by the cluster, because of their age or of all their bytes.",
                &["reason"],
            )?,
            event_readers: gauge(&registry, "svc_event_readers", "Readers of the live feed.")?,
            event_readers_dropped: counters(
                &registry,
                "svc_event_readers_dropped_total",
                "Readers of the live feed that were cut off, by why.",
                &["reason"],
            )?,
            event_activities_dropped: counter(
                &registry,
                "svc_event_activities_dropped_total",
                "Exchanges and denials that readers of the live feed were not told, because there were too many.",
            )?,
            log_lines_dropped: counter(
                &registry,
                "svc_log_lines_dropped_total",
                "Log lines dropped because their reader was too slow.",
            )?,
            log_lines_known: Arc::default(),
            audit_dropped_known: Arc::default(),
            registry,
        };
        let build = IntGaugeVec::new(Opts::new("svc_build_info", "1, with the version."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.registry.register(Box::new(build))?;
        Ok(metrics)
    }

    /// One request was answered after `duration`. `route` is the pattern of the route table, never
    /// the path that was asked for; a method without a route of its own counts as `other`.
    pub fn http_request(&self, route: &str, method: &str, status: u16, duration: Duration) {
        const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        let method = METHODS.iter().find(|known| **known == method).unwrap_or(&"other");
        self.http_requests.with_label_values(&[route, method, &status.to_string()]).inc();
        self.http_request_duration.with_label_values(&[route]).observe(duration.as_secs_f64());
    }

    /// A request was refused before its route was asked, for example because of the `rate` of its
    /// caller. It counts as a request too, with its status.
    pub fn request_refused(&self, reason: &'static str) {
        self.requests_refused.with_label_values(&[reason]).inc();
    }

    /// A connection was opened on `listener`, `plain` or `tls`; it is closed when the answer is
    /// dropped.
    #[must_use]
    pub fn http_connection(&self, listener: &'static str) -> Counted {
        let open = self.http_connections.with_label_values(&[listener]);
        open.inc();
        Counted(open)
    }

    /// A connection was closed before a request could be sent on it, for example `address`.
    pub fn http_connection_refused(&self, reason: &'static str) {
        self.http_connections_refused.with_label_values(&[reason]).inc();
    }

    /// A connection ended, for example because it was `idle`.
    pub fn http_connection_closed(&self, reason: &'static str) {
        self.http_connections_closed.with_label_values(&[reason]).inc();
    }

    /// One exchange ended.
    pub fn exchange(&self, subject_token_type: &'static str, result: &'static str) {
        self.exchanges.with_label_values(&[subject_token_type, result]).inc();
    }

    /// One verification of a token for a tool ended, for example with `allow`.
    pub fn verification(&self, result: &'static str) {
        self.verifications.with_label_values(&[result]).inc();
    }

    /// One check of it ended with `pass`, `skip` or `fail`.
    pub fn verify_check(&self, check: &'static str, result: &'static str) {
        self.verify_checks.with_label_values(&[check, result]).inc();
    }

    /// A security event token came and was, for example, `accepted`.
    pub fn signal(&self, result: &'static str) {
        self.signals.with_label_values(&[result]).inc();
    }

    /// How many revocations are remembered, and how many blocks stand.
    pub fn set_revocations(&self, revocations: u64, blocks: usize) {
        self.revocations.set(i64::try_from(revocations).unwrap_or(i64::MAX));
        self.blocks.set(i64::try_from(blocks).unwrap_or(i64::MAX));
    }

    /// The policy was asked at `point`, for example `exchange`, and decided, for example `allow`.
    pub fn policy_decision(&self, point: &'static str, decision: &'static str) {
        self.policy_decisions.with_label_values(&[point, decision]).inc();
    }

    /// A policy bundle was loaded or refused.
    pub fn policy_load(&self, result: &'static str) {
        self.policy_loads.with_label_values(&[result]).inc();
    }

    /// An agent of `platform` was issued an identity; its renewals do not count.
    pub fn agent_identity_issued(&self, platform: &'static str) {
        self.agent_identities_issued.with_label_values(&[platform]).inc();
    }

    /// An issuer's keys were fetched or not.
    pub fn issuer_key_fetch(&self, result: &'static str) {
        self.issuer_key_fetches.with_label_values(&[result]).inc();
    }

    /// How many signing keys of `algorithm` are in `state`.
    pub fn set_signing_keys(&self, algorithm: &'static str, state: &'static str, keys: usize) {
        let gauge = self.signing_keys.with_label_values(&[algorithm, state]);
        gauge.set(i64::try_from(keys).unwrap_or(i64::MAX));
    }

    /// Somebody asked for an `action` on a tool, for example `register`, with a `result`, for example
    /// `refused`.
    pub fn tool_write(&self, action: &'static str, result: &'static str) {
        self.tool_writes.with_label_values(&[action, result]).inc();
    }

    /// How many tools are in the registry.
    pub fn set_tools(&self, tools: u64) {
        self.tools.set(i64::try_from(tools).unwrap_or(i64::MAX));
    }

    /// The files of TLS changed and were loaded, `ok`, or refused, `failed`.
    pub fn tls_reload(&self, with: &'static str, result: &'static str) {
        self.tls_reloads.with_label_values(&[with, result]).inc();
    }

    /// When our TLS certificate ends, in seconds since the Unix epoch.
    pub fn set_tls_certificate_not_after(&self, with: &'static str, secs: i64) {
        self.tls_certificate_not_after.with_label_values(&[with]).set(secs);
    }

    /// An audit entry of this decision, for example `allow`, was written.
    pub fn audit_entry(&self, decision: &'static str) {
        self.audit_entries.with_label_values(&[decision]).inc();
    }

    /// How many bytes of audit entries are not in the log yet.
    pub fn set_audit_backlog(&self, bytes: u64) {
        self.audit_backlog.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// A block of audit entries was `shipped`, or that `failed` and is tried again.
    pub fn audit_block(&self, result: &'static str) {
        self.audit_blocks.with_label_values(&[result]).inc();
    }

    /// How many blocks of audit entries the cluster has ever dropped because of their age, and because of
    /// all their bytes.
    pub fn set_audit_blocks_dropped(&self, by_age: u64, by_bytes: u64) {
        // The state counts by itself; this catches up, also when two scrapes meet.
        for (reason, known, dropped) in
            [("age", &self.audit_dropped_known.0, by_age), ("bytes", &self.audit_dropped_known.1, by_bytes)]
        {
            let known = known.fetch_max(dropped, Ordering::Relaxed);
            let counter = self.audit_blocks_dropped.with_label_values(&[reason]);
            counter.inc_by(dropped.saturating_sub(known));
        }
    }

    /// An exchange or a denial was not told to readers of the live feed.
    pub fn event_activity_dropped(&self) {
        self.event_activities_dropped.inc();
    }

    /// Where this node is in the log, and whether it leads.
    pub fn set_raft(&self, applied_index: u64, is_leader: bool) {
        self.raft_applied_index.set(i64::try_from(applied_index).unwrap_or(i64::MAX));
        self.raft_is_leader.set(i64::from(is_leader));
    }

    /// Whether the disk of the log hangs.
    pub fn set_log_disk_hangs(&self, hangs: bool) {
        self.log_disk_hangs.set(i64::from(hangs));
    }

    /// Everything in the Prometheus text format 0.0.4.
    ///
    /// # Errors
    /// [`Error::Metric`].
    pub fn render(&self) -> Result<String, Error> {
        // The writer of the log counts by itself; this catches up, also when two scrapes meet.
        let dropped = logging::lines_dropped();
        let known = self.log_lines_known.fetch_max(dropped, Ordering::Relaxed);
        self.log_lines_dropped.inc_by(dropped.saturating_sub(known));
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }
}

/// One of something that is there now, such as an open connection: dropping it counts it out again.
#[derive(Debug)]
pub struct Counted(IntGauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_name_a_help_text_and_its_labels() {
        let metrics = Metrics::new().expect("metrics");
        metrics.http_request("/livez", "GET", 200, Duration::from_millis(3));
        metrics.request_refused("rate");
        let connection = metrics.http_connection("plain");
        metrics.http_connection_refused("address");
        metrics.http_connection_closed("idle");
        metrics.exchange("jwt", "ok");
        metrics.verification("allow");
        metrics.verify_check("token", "pass");
        metrics.signal("accepted");
        metrics.polled_sets("returned", 3);
        let waiting = metrics.poll_waits();
        metrics.set_revocations(4, 1);
        metrics.set_streams("paused", 2);
        metrics.stream_events("delivered", 5);
        metrics.set_stream_backlog(12, 7);
        metrics.push("timed_out");
        metrics.push_took(Duration::from_millis(3));
        metrics.policy_decision("exchange", "allow");
        metrics.policy_load("ok");
        metrics.agent_identity_issued("mcp");
        metrics.issuer_key_fetch("ok");
        metrics.set_signing_keys("ES256", "active", 2);
        metrics.tool_write("register", "done");
        metrics.set_tools(3);
        metrics.tls_reload("callers", "ok");
        metrics.set_tls_certificate_not_after("callers", 1_800_000_000);
        metrics.set_raft(7, true);
        metrics.set_clocks(true, [(&3, &-1_500)].into_iter());
        metrics.set_log_disk_hangs(true);
        metrics.set_acknowledgements(4, 0);
        metrics.set_acknowledgements(5, 1);
        metrics.audit_entry("allow");
        metrics.set_audit_backlog(9);
        metrics.audit_block("shipped");
        metrics.set_audit_blocks_dropped(5, 0);
        metrics.set_audit_blocks_dropped(6, 1);
        let reader = metrics.event_reader();
        metrics.event_reader_dropped("slow");
        metrics.event_activity_dropped();
        let page = metrics.render().expect("page");
        for line in [
            r#"svc_http_requests_total{method="GET",route="/livez",status="200"} 1"#,
            r#"svc_http_request_duration_seconds_bucket{route="/livez",le="0.0025"} 0"#,
            r#"svc_http_request_duration_seconds_bucket{route="/livez",le="0.005"} 1"#,
            r#"svc_requests_refused_total{reason="rate"} 1"#,
            r#"svc_http_connections{listener="plain"} 1"#,
            r#"svc_http_connections_refused_total{reason="address"} 1"#,
            r#"svc_http_connections_closed_total{reason="idle"} 1"#,
            r#"svc_exchange_total{result="ok",subject_token_type="jwt"} 1"#,
            r#"svc_verify_total{result="allow"} 1"#,
            r#"svc_verify_checks_total{check="token",result="pass"} 1"#,
            r#"svc_signals_total{result="accepted"} 1"#,
            r#"svc_polled_sets_total{result="returned"} 3"#,
            "svc_polls_waiting 1",
            "svc_revocations 4",
            "svc_blocks 1",
            r#"svc_streams{status="paused"} 2"#,
            r#"svc_stream_events_total{result="delivered"} 5"#,
            r#"svc_stream_backlog{of="all"} 12"#,
            r#"svc_stream_backlog{of="largest"} 7"#,
            r#"svc_push_total{result="timed_out"} 1"#,
            r#"svc_push_seconds_bucket{le="0.005"} 1"#,
            r#"svc_policy_decisions_total{decision="allow",point="exchange"} 1"#,
            r#"svc_policy_loads_total{result="ok"} 1"#,
            r#"svc_agent_identities_issued_total{platform="mcp"} 1"#,
            r#"svc_issuer_key_fetches_total{result="ok"} 1"#,
            r#"svc_signing_keys{algorithm="ES256",state="active"} 2"#,
            r#"svc_tool_writes_total{action="register",result="done"} 1"#,
            "svc_tools 3",
            r#"svc_tls_reloads_total{result="ok",with="callers"} 1"#,
            r#"svc_tls_certificate_not_after_seconds{with="callers"} 1800000000"#,
            r#"svc_audit_entries_total{decision="allow"} 1"#,
            "svc_audit_backlog_bytes 9",
            r#"svc_audit_blocks_total{result="shipped"} 1"#,
            r#"svc_audit_blocks_dropped_total{reason="age"} 6"#,
            "svc_raft_applied_index 7",
            "svc_raft_is_leader 1",
            "svc_clock_agreement 1",
            r#"svc_clock_offset_seconds{node="3"} -1.5"#,
            "svc_log_disk_hangs 1",
            r#"svc_acknowledgements_total{result="confirmed"} 5"#,
            r#"svc_acknowledgements_total{result="unconfirmed"} 1"#,
            "svc_event_readers 1",
            r#"svc_event_readers_dropped_total{reason="slow"} 1"#,
            "svc_event_activities_dropped_total 1",
            "svc_log_lines_dropped_total 0",
            concat!(r#"svc_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in {page}");
        }
        let names = page.lines().filter(|line| line.starts_with("# TYPE")).count();
        let helps = page.lines().filter(|line| line.starts_with("# HELP svc_") && line.ends_with('.'));
        assert_eq!((names, helps.count()), (46, 46), "{page}");
        drop((connection, waiting, reader));
        assert!(metrics.render().expect("page").contains("svc_polls_waiting 0"));
        assert!(metrics.render().expect("page").contains("svc_event_readers 0"));
        assert!(metrics.render().expect("page").contains(r#"svc_http_connections{listener="plain"} 0"#));
    }

    #[test]
    fn a_method_from_outside_makes_no_new_series() {
        let metrics = Metrics::new().expect("metrics");
        for method in ["BREW", "PROPFIND", "get"] {
            metrics.http_request("/livez", method, 405, Duration::ZERO);
        }
        let page = metrics.render().expect("page");
        assert!(
            page.contains(r#"svc_http_requests_total{method="other",route="/livez",status="405"} 3"#),
            "{page}"
        );
    }
}
