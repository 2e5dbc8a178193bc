//! `trust-fabric config …`

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Error;
use super::output::{self, counted};
use crate::config::{self, Overrides};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Report every mistake in a configuration and its source.
    Check(Source),
    /// Show every setting with its effective value, defaults included, as JSON.
    Show(Source),
}

#[derive(Debug, Args)]
pub(super) struct Source {
    /// Configuration file; the environment overrides it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    let mut environment = config::environment();
    match command {
        Command::Check(Source { config }) => {
            let config = config::load(config.as_deref(), &mut environment, &Overrides::default())?;
            let files = config.policy_sources()?.len();
            let issuers = counted(config.issuers.len() as u64, "issuer", "issuers");
            let signals = counted(config.signals.len() as u64, "issuer of signals", "issuers of signals");
            let files = counted(files as u64, "policy file", "policy files");
            writeln!(out, "the configuration is valid: {issuers}, {signals}, {files}")?;
        }
        Command::Show(Source { config }) => {
            let keys = config::show(config.as_deref(), &mut environment, &Overrides::default())?;
            output::json(out, &keys)?;
        }
    }
    Ok(())
}
