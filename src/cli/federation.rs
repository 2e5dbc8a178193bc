//! `trust-fabric federation …`

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Error;
use super::endpoint::ServerArguments;
use super::output::{self, Output, printable};
use crate::clock::Clock;
use crate::tls;

const PEERS: [&str; 3] = ["v1", "federation", "peers"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the peer fabrics, as the node sees them.
    Status {
        #[command(flatten)]
        server: ServerArguments,
        #[command(flatten)]
        output: Output,
    },
    /// Print the SPIFFE bundle of the CAs of this fabric, which a peer needs as its `bundle_file`.
    Bundle {
        /// The CA certificates: PEM, as in `tls.client_ca`.
        ca: PathBuf,
    },
    /// Refuse the calls and the credentials of a peer. Its ledger is read on.
    Pause(Peer),
    /// End a pause.
    Resume(Peer),
    /// Accept the fault for which a peer is held: no earlier credential of it counts.
    Approve(Peer),
    /// Delete the copy of a peer's ledger: no earlier credential of it counts. A peer that stays configured joins again.
    Forget(Peer),
}

#[derive(Debug, clap::Args)]
pub(super) struct Peer {
    /// The peer, by its name in the configuration.
    name: String,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    let (verb, peer) = match command {
        Command::Status { server, output } => return status(&server, output, out),
        Command::Bundle { ca } => {
            let bundle = tls::bundle_of_file(&ca, Clock::system().now()).map_err(Error::Ca)?;
            return Ok(writeln!(out, "{bundle}")?);
        }
        Command::Pause(peer) => ("pause", peer),
        Command::Resume(peer) => ("resume", peer),
        Command::Approve(peer) => ("approve", peer),
        Command::Forget(peer) => ("forget", peer),
    };
    let path = [PEERS.as_slice(), &[&peer.name, verb]].concat();
    let changed = super::wait_for(peer.server.client()?.post(&path, &json!({})))?;
    let state = changed.get("state").and_then(Value::as_str).map(printable).unwrap_or_default();
    Ok(writeln!(out, "{}: {verb} is done, the peer is {state}", printable(&peer.name))?)
}

fn status(server: &ServerArguments, output: Output, out: &mut dyn Write) -> Result<(), Error> {
    let peers = super::wait_for(server.client()?.get(&PEERS))?;
    let columns = [
        ("name", "name"),
        ("state", "state"),
        ("fault", "fault"),
        ("heard ms ago", "heard_ms_ago"),
        ("entries", "entries"),
        ("blocks", "blocks"),
        ("position", "position"),
        ("issuer", "issuer"),
        ("error", "error"),
    ];
    Ok(output::list(out, output, &peers, &columns)?)
}
