//! The client certificate of pushes: presented from the start on, and replaced when its files change.

use tokio::task::JoinSet;

use super::Error;
use crate::clock::Clock;
use crate::limits;
use crate::outbound::client::Client;
use crate::telemetry::{Metrics, TlsValidity};
use crate::tls::{KeyPair, KeyPairFiles};

/// Value of the metric label, besides those of callers and nodes.
const WITH: &str = "push";

/// The files of the certificate, and the client that presents it.
pub(super) struct PushCertificate {
    files: KeyPairFiles,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    presented: Vec<u8>,
    /// Last failure, so that it is logged once.
    failed: Option<String>,
}

impl PushCertificate {
    /// Presents the current certificate.
    pub(super) fn load(
        files: KeyPairFiles,
        client: Client,
        clock: Clock,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let KeyPair { pem, validity } = files.read(clock.now()).map_err(Error::PushCertificate)?;
        client.present(&pem)?;
        metrics.set_tls_validity(WITH, &TlsValidity { certificate: validity, ca: None, crl: None });
        Ok(Self { files, client, clock, metrics, presented: pem, failed: None })
    }

    /// Reads the files every [`limits::TLS_RELOAD_INTERVAL`]. An invalid certificate leaves the previous one in use.
    pub(super) async fn follow(mut self) {
        let mut ticks = tokio::time::interval(limits::TLS_RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reads = JoinSet::new();
        loop {
            ticks.tick().await;
            let (files, now) = (self.files.clone(), self.clock.now());
            reads.spawn_blocking(move || files.read(now));
            match reads.join_next().await {
                Some(Ok(read)) => self.replace(read.map_err(|error| error.to_string())),
                Some(Err(error)) => tracing::error!(%error, "failed to read the push certificate"),
                None => {}
            }
        }
    }

    fn replace(&mut self, read: Result<KeyPair, String>) {
        let presented = read.and_then(|KeyPair { pem, validity }| {
            if pem != self.presented {
                self.client.present(&pem).map_err(|error| error.to_string())?;
                let validity = TlsValidity { certificate: validity, ca: None, crl: None };
                self.metrics.set_tls_validity(WITH, &validity);
                self.metrics.tls_reloads.inc([WITH, "ok"]);
                tracing::info!("push certificate replaced");
            }
            Ok(pem)
        });
        match presented {
            Ok(pem) => (self.presented, self.failed) = (pem, None),
            Err(error) => {
                if self.failed.as_ref() != Some(&error) {
                    self.metrics.tls_reloads.inc([WITH, "failed"]);
                    tracing::warn!(error, "push certificate is invalid; the previous one stays in use");
                }
                self.failed = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::clock::Timestamp;
    use crate::outbound::client::CallLimits;
    use crate::outbound::guard::{Guard, Rules};
    use crate::pki;

    /// The certificate of a caller, made at a time, and the end of it.
    fn made(at: Timestamp) -> (TempDir, KeyPairFiles, i64) {
        let directory = tempfile::tempdir().expect("directory");
        let trust_domain = "trust.example".parse().expect("trust domain");
        let plan = pki::CertificatePlan {
            directory: directory.path().join("pki"),
            callers: vec![pki::CertificateSubject::within("transmitter", &trust_domain).expect("caller")],
            trust_domain,
            hosts: Vec::new(),
            peers: Vec::new(),
            lifetime_days: 1,
        };
        let pair = pki::make(&plan, at).expect("made").callers.remove(0).1;
        let files = KeyPairFiles { certificate: pair.certificate, private_key: pair.private_key };
        (directory, files, pair.not_after.secs())
    }

    /// Regression: this certificate was the only one of a node without its end in the metrics.
    #[test]
    fn end_of_the_presented_certificate_is_a_metric() {
        let first = Timestamp::from_secs(1_800_000_000);
        let now = first.plus(Duration::from_secs(60));
        let ((_own, files, end), (_new, new, later)) = (made(first), made(now));
        let client = Client::new(CallLimits::default(), Guard::new(Rules::default())).expect("client");
        let metrics = Metrics::new().expect("metrics");
        let shows = |line: &str, value: i64| {
            let page = metrics.render().expect("page");
            page.lines().any(|found| found == format!("{line} {value}"))
        };
        let not_after = r#"svc_tls_certificate_not_after_seconds{with="push"}"#;
        let clock = Clock::manual(now);
        let mut certificate =
            PushCertificate::load(files.clone(), client, clock, metrics.clone()).expect("loaded");
        assert!(shows(not_after, end));
        let mut poll = || {
            let read = files.read(now).map_err(|error| error.to_string());
            certificate.replace(read);
        };
        // A certificate without its key does not replace the pair.
        fs::copy(&new.certificate, &files.certificate).expect("copied");
        poll();
        poll();
        assert!(shows(not_after, end) && shows(r#"svc_tls_reloads_total{result="failed",with="push"}"#, 1));
        fs::copy(&new.private_key, &files.private_key).expect("copied");
        poll();
        assert!(later > end && shows(not_after, later));
        assert!(shows(r#"svc_tls_reloads_total{result="ok",with="push"}"#, 1));
    }
}
