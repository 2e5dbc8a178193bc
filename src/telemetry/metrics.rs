//! Metrics in the Prometheus text format. [`table`] declares them; methods are for events with more than one sample, and
//! for labels whose values are not fixed.

mod kinds;
mod table;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};

use self::table::Families;
use super::{Error, logging};
use crate::clock::Timestamp;

/// Samples of a peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerSample {
    /// Time since it was heard.
    pub heard_ago: Option<Duration>,
    /// Entries and blocks in the copy of its ledger.
    pub entries: u64,
    /// Milliseconds by which its clock is ahead.
    pub clock_offset_millis: Option<i64>,
}

/// Begin and end of the validity of a certificate or of a revocation list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// `notBefore`, or `thisUpdate` of a list.
    pub begin: Timestamp,
    /// `notAfter`, or `nextUpdate` of a list.
    pub end: Timestamp,
}

/// Validity of the files of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsValidity {
    /// Of our own certificate.
    pub certificate: Validity,
    /// Of the CA that ends last, where CAs are read from a file.
    pub ca: Option<Validity>,
    /// Of the list that ends first, among the newest of each CA.
    pub crl: Option<Validity>,
}

/// All metrics of a node. Clones share their values.
#[derive(Clone, Debug, derive_more::Deref)]
pub struct Metrics {
    registry: Registry,
    #[deref]
    families: Families,
    /// Held while a counter is raised to a total.
    raising: Arc<Mutex<()>>,
}

impl Metrics {
    /// Registers all metrics at zero.
    ///
    /// # Errors
    /// [`Error::Metric`].
    pub fn new() -> Result<Self, Error> {
        let registry = Registry::new();
        let families = Families::register(&registry)?;
        families.build_info.set([env!("CARGO_PKG_VERSION")], 1);
        // Alerts do not see an increase from no sample.
        for result in ["delivered", "dropped", "dead_letter"] {
            families.stream_events.add([result], 0);
        }
        Ok(Self { registry, families, raising: Arc::default() })
    }

    /// One request was answered after `duration`. `route` is the pattern of the route table, never the path; an unusual
    /// method is `other`.
    pub fn http_request(&self, route: &str, method: &'static str, status: u16, duration: Duration) {
        self.http_requests.of([route, method, &status.to_string()]).inc();
        self.http_request_duration.of([route]).observe(duration.as_secs_f64());
    }

    /// A connection was opened on `listener`, `plain` or `tls`, until the returned guard is dropped.
    #[must_use]
    pub fn http_connection(&self, listener: &'static str) -> GaugeGuard {
        let open = self.http_connections.of([listener]);
        open.inc();
        GaugeGuard(open)
    }

    /// Validity of the loaded TLS files. The counters of their reloads exist from then on: alerts do not see an increase from
    /// no sample.
    pub fn set_tls_validity(&self, with: &'static str, validity: &TlsValidity) {
        let TlsValidity { certificate, ca, crl } = validity;
        for (begin, end, of) in [
            (&self.tls_certificate_not_before, &self.tls_certificate_not_after, Some(certificate)),
            (&self.tls_ca_not_before, &self.tls_ca_not_after, ca.as_ref()),
            (&self.tls_crl_this_update, &self.tls_crl_next_update, crl.as_ref()),
        ] {
            if let Some(of) = of {
                begin.set([with], of.begin.secs());
                end.set([with], of.end.secs());
            }
        }
        for result in ["ok", "failed"] {
            self.tls_reloads.add([with, result], 0);
        }
    }

    /// The totals of audit blocks that retention has dropped by age and by bytes.
    pub fn set_audit_blocks_dropped(&self, by_age: u64, by_bytes: u64) {
        for (reason, total) in [("age", by_age), ("bytes", by_bytes)] {
            self.raise(&self.audit_blocks_dropped.of([reason]), total);
        }
    }

    /// The term, and the total of leaders in new terms since the start.
    pub fn set_leadership(&self, term: u64, leader_changes: u64) {
        self.raft_term.set([], term);
        self.raise(&self.raft_leader_changes.of([]), leader_changes);
    }

    /// Whether the wall clocks agree, how far log time is ahead of them, and by how many milliseconds each node's clock is.
    pub fn set_clocks<'o>(
        &self,
        is_agreed: bool,
        log_time_ahead: Duration,
        offset_millis: impl Iterator<Item = (&'o u64, &'o i64)>,
    ) {
        self.clock_agreement.set([], is_agreed);
        self.log_time_ahead.of([]).set(log_time_ahead.as_secs_f64());
        // Nodes whose clock was not read lately disappear.
        self.clock_offset.0.reset();
        for (node, millis) in offset_millis {
            #[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
            let secs = *millis as f64 / 1000.0;
            self.clock_offset.of([&node.to_string()]).set(secs);
        }
    }

    /// Whether the freshness lease is held, and the totals of requests that waited for it and that were refused.
    pub fn set_freshness(&self, is_held: bool, waits: u64, refused: u64) {
        self.freshness_lease_held.set([], is_held);
        self.raise(&self.freshness_waits.of([]), waits);
        self.raise(&self.freshness_refused.of([]), refused);
    }

    /// The totals of acknowledgements that the barrier confirmed and did not confirm.
    pub fn set_acknowledgements(&self, confirmed: u64, unconfirmed: u64) {
        for (result, total) in [("confirmed", confirmed), ("unconfirmed", unconfirmed)] {
            self.raise(&self.acknowledgements.of([result]), total);
        }
    }

    /// A poll waits until the returned guard is dropped.
    #[must_use]
    pub fn poll_waits(&self) -> GaugeGuard {
        let waiting = self.polls_waiting.of([]);
        waiting.inc();
        GaugeGuard(waiting)
    }

    /// A call to a peer ended.
    pub fn federation_call(&self, peer: &str, result: &'static str) {
        self.federation_calls.of([peer, result]).inc();
    }

    /// The root of a peer's response was compared, or not.
    pub fn federation_audited(&self, peer: &str, result: &'static str) {
        self.federation_audits.of([peer, result]).inc();
    }

    /// A credential was refused because the copy of this peer's ledger could not decide about it.
    pub fn federation_unjudged(&self, peer: &str) {
        self.federation_unjudged.of([peer]).inc();
    }

    /// The response of a peer was applied after `duration`.
    pub fn federation_import_took(&self, peer: &str, duration: Duration) {
        self.federation_import.of([peer]).observe(duration.as_secs_f64());
    }

    /// A revocation waited for a peer for `duration`.
    pub fn federation_awaited(&self, peer: &str, duration: Duration) {
        self.federation_await.of([peer]).observe(duration.as_secs_f64());
    }

    /// A peer, as this node sees it. `states` are all states, and whether each is the present one.
    pub fn set_peer(
        &self,
        peer: &str,
        states: impl IntoIterator<Item = (&'static str, bool)>,
        sample: PeerSample,
    ) {
        for (state, is_present) in states {
            self.federation_state.of([peer, state]).set(i64::from(is_present));
        }
        self.federation_unjudged.of([peer]).inc_by(0);
        let PeerSample { heard_ago, entries, clock_offset_millis } = sample;
        self.federation_entries.of([peer]).set(i64::try_from(entries).unwrap_or(i64::MAX));
        // An unknown value is absent.
        drop(self.federation_heard.0.remove_label_values(&[peer]));
        if let Some(heard_ago) = heard_ago {
            self.federation_heard.of([peer]).set(heard_ago.as_secs_f64());
        }
        drop(self.federation_clock_offset.0.remove_label_values(&[peer]));
        if let Some(millis) = clock_offset_millis {
            #[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
            let secs = millis as f64 / 1000.0;
            self.federation_clock_offset.of([peer]).set(secs);
        }
    }

    /// Undelivered events of all streams, and of the stream with most.
    pub fn set_stream_backlog(&self, all: u64, largest: u64) {
        self.stream_backlog.set(["all"], all);
        self.stream_backlog.set(["largest"], largest);
    }

    /// A push was answered, or failed, after `duration`.
    pub fn push_took(&self, duration: Duration) {
        self.push_duration.of([]).observe(duration.as_secs_f64());
    }

    /// A subscriber of the live feed is connected until the returned guard is dropped.
    #[must_use]
    pub fn event_reader(&self) -> GaugeGuard {
        let connected = self.event_readers.of([]);
        connected.inc();
        GaugeGuard(connected)
    }

    /// All metrics in the Prometheus text format 0.0.4.
    ///
    /// # Errors
    /// [`Error::Metric`].
    pub fn render(&self) -> Result<String, Error> {
        self.raise(&self.log_lines_dropped.of([]), logging::lines_dropped());
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }

    /// Raises a counter to a total that another component has. Concurrent scrapes must not count twice.
    fn raise(&self, counter: &IntCounter, total: u64) {
        let _one_at_a_time = self.raising.lock();
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}

/// Guard of a gauge, for example of an open connection: dropping it decrements the gauge.
#[derive(Debug)]
pub struct GaugeGuard(IntGauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_changes_are_raised_to_their_total() {
        let metrics = Metrics::new().expect("metrics");
        metrics.set_leadership(4, 2);
        metrics.set_leadership(5, 3);
        let page = metrics.render().expect("page");
        for line in ["svc_raft_term 5", "svc_raft_leader_changes_total 3"] {
            assert!(page.lines().any(|metric| metric == line), "{page}");
        }
    }

    fn with_peer() -> Metrics {
        let metrics = Metrics::new().expect("metrics");
        metrics.federation_call("eu", "imported");
        metrics.federation_import_took("eu", Duration::from_millis(3));
        metrics.federation_awaited("eu", Duration::from_millis(3));
        metrics.federation_audited("eu", "equal");
        metrics.federation_unjudged("eu");
        let sample = PeerSample {
            heard_ago: Some(Duration::from_millis(1_500)),
            entries: 4,
            clock_offset_millis: Some(-250),
        };
        metrics.set_peer("eu", [("live", true), ("stale", false)], sample);
        metrics
    }

    #[test]
    fn samples_of_a_peer_are_rendered() {
        let metrics = with_peer();
        let page = metrics.render().expect("page");
        for line in [
            r#"svc_federation_calls_total{peer="eu",result="imported"} 1"#,
            r#"svc_federation_import_seconds_bucket{peer="eu",le="0.005"} 1"#,
            r#"svc_federation_await_seconds_bucket{peer="eu",le="0.005"} 1"#,
            r#"svc_federation_audit_total{peer="eu",result="equal"} 1"#,
            r#"svc_federation_unjudged_total{peer="eu"} 1"#,
            r#"svc_federation_state{peer="eu",state="live"} 1"#,
            r#"svc_federation_state{peer="eu",state="stale"} 0"#,
            r#"svc_federation_heard_seconds{peer="eu"} 1.5"#,
            r#"svc_federation_entries{peer="eu"} 4"#,
            r#"svc_federation_clock_offset_seconds{peer="eu"} -0.25"#,
        ] {
            assert!(page.lines().any(|metric| metric == line), "{line} in {page}");
        }
        let unknown = PeerSample { entries: 4, ..PeerSample::default() };
        metrics.set_peer("eu", [("live", false), ("stale", true)], unknown);
        let page = metrics.render().expect("page");
        assert!(!page.contains("svc_federation_heard_seconds{"), "an unknown value is absent: {page}");
    }

    const fn validity(begin: i64, end: i64) -> Validity {
        Validity { begin: Timestamp::from_secs(begin), end: Timestamp::from_secs(end) }
    }

    const VALIDITY: TlsValidity = TlsValidity {
        certificate: validity(1_700_000_000, 1_800_000_000),
        ca: Some(validity(1_600_000_000, 1_900_000_000)),
        crl: Some(validity(1_700_000_000, 1_700_000_060)),
    };

    #[test]
    fn validity_of_tls_files_is_rendered() {
        let metrics = Metrics::new().expect("metrics");
        metrics.set_tls_validity("callers", &VALIDITY);
        let page = metrics.render().expect("page");
        for line in [
            r#"svc_tls_reloads_total{result="failed",with="callers"} 0"#,
            r#"svc_tls_certificate_not_before_seconds{with="callers"} 1700000000"#,
            r#"svc_tls_certificate_not_after_seconds{with="callers"} 1800000000"#,
            r#"svc_tls_ca_not_before_seconds{with="callers"} 1600000000"#,
            r#"svc_tls_ca_not_after_seconds{with="callers"} 1900000000"#,
            r#"svc_tls_crl_this_update_seconds{with="callers"} 1700000000"#,
            r#"svc_tls_crl_next_update_seconds{with="callers"} 1700000060"#,
            r#"svc_stream_events_total{result="dropped"} 0"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line}");
        }
        metrics.set_tls_validity("push", &TlsValidity { ca: None, crl: None, ..VALIDITY });
        let page = metrics.render().expect("page");
        assert!(page.contains(r#"svc_tls_certificate_not_after_seconds{with="push"} 1800000000"#));
        assert!(!page.contains(r#"svc_tls_ca_not_after_seconds{with="push"}"#));
    }

    /// Samples of every metric but those of guards.
    fn take_samples(metrics: &Metrics) {
        metrics.http_request("/livez", "GET", 200, Duration::from_millis(3));
        metrics.requests_refused.inc(["rate"]);
        metrics.http_connections_refused.inc(["address"]);
        metrics.http_connections_closed.inc(["idle"]);
        metrics.exchanges.inc(["jwt", "ok"]);
        metrics.verifications.inc(["allow"]);
        metrics.verify_checks.inc(["token", "pass"]);
        metrics.signals.inc(["accepted"]);
        metrics.polled_sets.add(["returned"], 3);
        metrics.revocations.set([], 4);
        metrics.blocks.set([], 1);
        metrics.streams.set(["paused"], 2);
        metrics.stream_events.add(["delivered"], 5);
        metrics.set_stream_backlog(12, 7);
        metrics.pushes.inc(["timed_out"]);
        metrics.push_took(Duration::from_millis(3));
        metrics.policy_decisions.inc(["exchange", "allow"]);
        metrics.policy_loads.inc(["ok"]);
        metrics.agent_identities_issued.inc(["mcp"]);
        metrics.issuer_key_fetches.inc(["ok"]);
        metrics.signing_keys.set(["ES256", "active"], 2);
        metrics.tool_writes.inc(["register", "done"]);
        metrics.tools.set([], 3);
        metrics.tls_reloads.inc(["callers", "ok"]);
        metrics.set_tls_validity("callers", &VALIDITY);
        metrics.raft_applied_index.set([], 7);
        metrics.raft_is_leader.set([], true);
        metrics.set_clocks(true, Duration::from_secs(7), [(&3, &-1_500)].into_iter());
        metrics.log_disk_hangs.set([], true);
        metrics.disk_free_bytes.set([], 7_000);
        metrics.disk_space_state.set([], 1);
        metrics.set_acknowledgements(4, 0);
        metrics.set_acknowledgements(5, 1);
        metrics.audit_entries.inc(["allow"]);
        metrics.audit_backlog.set([], 9);
        metrics.audit_blocks.inc(["shipped"]);
        metrics.set_audit_blocks_dropped(5, 0);
        metrics.set_audit_blocks_dropped(6, 1);
        metrics.event_readers_dropped.inc(["slow"]);
        metrics.event_activities_dropped.inc([]);
    }

    #[test]
    fn every_metric_is_rendered_with_its_labels() {
        let metrics = with_peer();
        take_samples(&metrics);
        let connection = metrics.http_connection("plain");
        let waiting = metrics.poll_waits();
        let reader = metrics.event_reader();
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
            r#"svc_audit_entries_total{decision="allow"} 1"#,
            "svc_audit_backlog_bytes 9",
            r#"svc_audit_blocks_total{result="shipped"} 1"#,
            r#"svc_audit_blocks_dropped_total{reason="age"} 6"#,
            "svc_raft_applied_index 7",
            "svc_raft_is_leader 1",
            "svc_clock_agreement 1",
            "svc_log_time_ahead_seconds 7",
            r#"svc_clock_offset_seconds{node="3"} -1.5"#,
            "svc_log_disk_hangs 1",
            "svc_disk_free_bytes 7000",
            "svc_disk_space_state 1",
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
        let families = page.lines().filter(|line| line.starts_with("# TYPE svc_")).count();
        let rows: usize = table::SECTIONS.iter().map(|(_, rows)| rows.len()).sum();
        assert_eq!(families, rows, "{page}");
        drop((connection, waiting, reader));
        assert!(metrics.render().expect("page").contains("svc_polls_waiting 0"));
        assert!(metrics.render().expect("page").contains("svc_event_readers 0"));
        assert!(metrics.render().expect("page").contains(r#"svc_http_connections{listener="plain"} 0"#));
    }
}
