//! `trust-fabric signals …`

use std::io::Write;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Error;
use super::endpoint::ServerArguments;
use super::output::printable;

const ALLOWANCE: [&str; 4] = ["v1", "sys", "signals", "allowance"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Let an issuer of signals exceed its quota of revocations, once.
    ///
    /// The quota bounds the revocations per minute, so that a broken or compromised transmitter does not revoke every
    /// subject. Allow more where needed; 0 withdraws the allowance.
    #[command(after_help = "Example:\n  trust-fabric signals allow https://idp.example.org --more 50000")]
    Allow {
        /// The issuer, as configured in `[[signals]]`.
        issuer: String,
        /// Additional facts, until used up; replaces the previous allowance.
        #[arg(long, value_name = "N")]
        more: u32,
        #[command(flatten)]
        server: ServerArguments,
    },
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    let Command::Allow { issuer, more, server } = command;
    let request = json!({"issuer": issuer, "more": more});
    let allowed = super::wait_for(server.client()?.post(&ALLOWANCE, &request))?;
    let issuer = allowed.get("issuer").and_then(Value::as_str).map(printable).unwrap_or_default();
    Ok(writeln!(out, "{issuer} may revoke {} more than its quota, once", allowed["more"])?)
}
