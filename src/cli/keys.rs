//! `trust-fabric keys …`

use std::io::Write;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Error;
use super::endpoint::Server;
use super::output::{self, Output, printable};
use crate::token::signing_key::SigningAlgorithm;

const KEYS: [&str; 3] = ["v1", "sys", "keys"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the signing keys of the cluster and the state each is in.
    List {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        output: Output,
    },
    /// Retire the key that signs now in favour of its successor, which must be ten minutes old.
    Rotate {
        /// Which key: ES256 signs tokens, RS256 the security events that are sent to others.
        #[arg(long, default_value_t = SigningAlgorithm::Es256)]
        algorithm: SigningAlgorithm,
        #[command(flatten)]
        server: Server,
    },
    /// Taint a key that may be stolen: nothing it signed is accepted any more. Cannot be undone.
    Taint {
        /// The key, as `keys list` names it.
        kid: String,
        #[command(flatten)]
        server: Server,
    },
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::List { server, output } => {
            let client = server.client()?;
            let keys = super::wait_for(async { Ok(client.get(&KEYS).await?) })?;
            let columns = [
                ("kid", "kid"),
                ("node", "node_id"),
                ("algorithm", "algorithm"),
                ("state", "state"),
                ("signs", "signs"),
                ("published", "published_at"),
                ("usable from", "usable_from"),
                ("retired", "retired_at"),
                ("tainted", "tainted_at"),
            ];
            output::list(out, output, &keys, &columns)?;
        }
        Command::Rotate { algorithm, server } => {
            let client = server.client()?;
            let path = ["v1", "sys", "keys", "rotate"];
            let query = [("algorithm", algorithm.as_str())];
            let rotated = super::wait_for(async { Ok(client.post_with(&path, &query, &json!({})).await?) })?;
            writeln!(out, "{} is retired, {} signs", text(&rotated, "retired"), text(&rotated, "active"))?;
        }
        Command::Taint { kid, server } => {
            let client = server.client()?;
            let path = ["v1", "sys", "keys", &kid, "taint"];
            let tainted = super::wait_for(async { Ok(client.post(&path, &json!({})).await?) })?;
            writeln!(
                out,
                "{} is tainted: nothing it signed is accepted any more",
                text(&tainted, "tainted")
            )?;
        }
    }
    Ok(())
}

fn text(answer: &Value, name: &str) -> String {
    answer.get(name).and_then(Value::as_str).map(printable).unwrap_or_default()
}
