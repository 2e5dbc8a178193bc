//! The client certificate of pushes: presented from the start on, and replaced when its files change.

use tokio::task::JoinSet;

use super::Error;
use crate::clock::Clock;
use crate::limits;
use crate::outbound::client::Client;
use crate::telemetry::Metrics;
use crate::tls::KeyPairFiles;

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
        let presented = files.read(clock.now()).map_err(Error::PushCertificate)?;
        client.present(&presented)?;
        Ok(Self { files, client, clock, metrics, presented, failed: None })
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

    fn replace(&mut self, read: Result<Vec<u8>, String>) {
        let presented = read.and_then(|pem| {
            if pem != self.presented {
                self.client.present(&pem).map_err(|error| error.to_string())?;
                self.metrics.tls_reload(WITH, "ok");
                tracing::info!("push certificate replaced");
            }
            Ok(pem)
        });
        match presented {
            Ok(pem) => (self.presented, self.failed) = (pem, None),
            Err(error) => {
                if self.failed.as_ref() != Some(&error) {
                    self.metrics.tls_reload(WITH, "failed");
                    tracing::warn!(error, "push certificate is invalid; the previous one stays in use");
                }
                self.failed = Some(error);
            }
        }
    }
}
