//! `trust-fabric federation …`

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Error;
use super::confirmation::Confirmation;
use super::endpoint::{Call, ServerArguments};
use super::new_file::NewFile;
use super::output::{self, printable};
use crate::clock::Clock;
use crate::tls;

const PEERS: [&str; 3] = ["v1", "federation", "peers"];
/// A node accepts no bundle that others than its owner may write.
const BUNDLE_MODE: u32 = 0o644;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the peer fabrics, as the node sees them.
    Status(Call),
    /// Print the SPIFFE bundle of the CAs of this fabric, which a peer needs as its `bundle_file`.
    Bundle {
        /// The CA certificates: PEM, as in `tls.client_ca`.
        ca: PathBuf,
        /// Write it to this file instead, which is replaced as a whole: nodes of a peer may read it.
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Refuse the calls and the credentials of a peer. Its ledger is still read.
    Pause(Peer),
    /// End a pause.
    Resume(Peer),
    /// Accept the fault for which a peer is held: no earlier credential of it counts.
    Approve(Confirmed),
    /// Read the copy of a peer's ledger again, because the disk of a node has corrupted it. Earlier
    /// credentials count again once it is read.
    Repair(Peer),
    /// Delete the copy of a peer's ledger: no earlier credential of it counts. A peer that stays configured joins again.
    Forget(Confirmed),
}

#[derive(Debug, clap::Args)]
pub(super) struct Peer {
    /// The peer, by its name in the configuration.
    name: String,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, clap::Args)]
pub(super) struct Confirmed {
    #[command(flatten)]
    peer: Peer,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Confirmed {
    fn ask(self, deed: &str) -> Result<Peer, Error> {
        let deed = format!("{deed} {}: no earlier credential of it counts", printable(&self.peer.name));
        self.confirmation.ask(&deed).map(|()| self.peer)
    }
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    let (verb, peer) = match command {
        Command::Status(call) => return status(&call, out),
        Command::Bundle { ca, to } => {
            let bundle = tls::bundle_of_file(&ca, Clock::system().now()).map_err(Error::Ca)?;
            return match to {
                Some(file) => NewFile::prepare(&file, BUNDLE_MODE)?.store(&bundle).map(drop),
                None => Ok(writeln!(out, "{bundle}")?),
            };
        }
        Command::Pause(peer) => ("pause", peer),
        Command::Resume(peer) => ("resume", peer),
        Command::Approve(peer) => ("approve", peer.ask("accept the fault of")?),
        Command::Repair(peer) => ("repair", peer),
        Command::Forget(peer) => ("forget", peer.ask("delete the copy of the ledger of")?),
    };
    let path = [PEERS.as_slice(), &[&peer.name, verb]].concat();
    let changed = super::wait_for(peer.server.client()?.post(&path, &json!({})))?;
    let state = changed.get("state").and_then(Value::as_str).map(printable).unwrap_or_default();
    Ok(writeln!(out, "{}: {verb} is done, the peer is {state}", printable(&peer.name))?)
}

fn status(call: &Call, out: &mut dyn Write) -> Result<(), Error> {
    let peers = super::wait_for(call.server.client()?.get(&PEERS))?;
    let columns = [
        ("name", "name"),
        ("state", "state"),
        ("fault", "fault"),
        ("heard ms ago", "heard_ms_ago"),
        ("entries", "entries"),
        ("blocks", "blocks"),
        ("position", "position"),
        ("acknowledged", "acknowledged"),
        ("issuer", "issuer"),
        ("error", "error"),
    ];
    Ok(output::list(out, call.output, &peers, &columns)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::pki::{self, CertificatePlan};

    #[test]
    fn bundle_replaces_a_file_as_a_whole() {
        let directory = tempfile::tempdir().expect("directory");
        let plan = CertificatePlan {
            directory: directory.path().join("pki"),
            trust_domain: "eu.example".parse().expect("trust domain"),
            hosts: Vec::new(),
            peers: Vec::new(),
            callers: Vec::new(),
            lifetime_days: 1,
        };
        let ca = pki::make(&plan, Clock::system().now()).expect("made").ca.certificate;
        let file = directory.path().join("eu.json");
        let mut printed = Vec::new();
        run(Command::Bundle { ca: ca.clone(), to: None }, &mut printed).expect("printed");
        fs::write(&file, "an earlier bundle").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("a mode that nodes refuse");
        let before = fs::File::open(&file).expect("opened");
        run(Command::Bundle { ca: ca.clone(), to: Some(file.clone()) }, &mut Vec::new()).expect("written");
        assert_eq!(fs::read(&file).expect("read"), printed);
        assert_eq!(
            std::io::read_to_string(before).expect("read"),
            "an earlier bundle",
            "not truncated under its reader"
        );
        assert_eq!(fs::metadata(&file).expect("metadata").permissions().mode() & 0o022, 0);
        let nowhere = Some(directory.path().join("no/where.json"));
        assert!(matches!(run(Command::Bundle { ca, to: nowhere }, &mut Vec::new()), Err(Error::File { .. })));
    }
}
