//! `trust-fabric serve`

use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::clock::Clock;
use crate::{config, node, telemetry};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Configuration file; without it the environment must set every required setting.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Overrides `node.data_dir`.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Overrides `listen.http`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Error> {
    config::forbid_core_dumps();
    let overrides = config::Overrides { data_dir: arguments.data_dir, listen: arguments.listen };
    let config = config::load(arguments.config.as_deref(), &mut config::environment(), &overrides)?;
    let program = config::program().map_err(Error::Program)?;
    let _logs = telemetry::init_logs(config.log.format, &config.log.filter)?;
    tracing::debug!(?config, "configuration");
    let shutdown = CancellationToken::new();
    let serving = async {
        let mut hangups = signal(SignalKind::hangup()).map_err(Error::Runtime)?;
        let running = node::start(config, Clock::system(), &program, shutdown.clone()).await?;
        let stopped = running.until_stopped();
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                outcome = &mut stopped => return Ok(outcome?),
                // Its default action ends the process. Many servers take it for a reload.
                Some(()) = hangups.recv() => tracing::warn!(
                    rule = "changed TLS files are read without it, other settings at the start only",
                    "SIGHUP ignored"
                ),
            }
        }
    };
    let outcome = super::wait_for(super::until_signalled(shutdown.clone(), serving));
    // The last line of the log names the cause of the exit.
    match &outcome {
        Ok(()) => tracing::info!(cause = "shutdown requested", "stopped"),
        Err(error) => tracing::error!(cause = %error, "stopped"),
    }
    outcome
}
