//! `trust-fabric keys …`

use std::io::Write;

use clap::Subcommand;
use serde_json::json;
use trust_fabric_client::Request;

use super::Error;
use super::confirmation::Confirmation;
use super::endpoint::{Call, ServerArguments};
use super::output::{self, printable, printable_text};
use crate::token::signing_key::SigningAlgorithm;

const KEYS: [&str; 3] = ["v1", "sys", "keys"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the signing keys of the cluster and their states.
    List(Call),
    /// Retire the active key of the node that responds in favour of its successor, which must be ten minutes old.
    #[command(after_help = "Each node has keys of its own: repeat it with --server for each of them.")]
    Rotate {
        /// Algorithm of the key: ES256 signs tokens, RS256 security events.
        #[arg(long, default_value_t = SigningAlgorithm::Es256)]
        algorithm: SigningAlgorithm,
        #[command(flatten)]
        server: ServerArguments,
    },
    /// Taint a key that may be stolen: its signatures are refused from then on. Cannot be undone.
    Taint {
        /// The key, by its kid in `keys list`.
        #[arg(allow_hyphen_values = true)]
        kid: String,
        #[command(flatten)]
        confirmation: Confirmation,
        #[command(flatten)]
        server: ServerArguments,
    },
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::List(call) => {
            let keys = super::wait_for(call.server.client()?.get(&KEYS))?;
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
            output::list(out, call.output, &keys, &columns)?;
        }
        Command::Rotate { algorithm, server } => {
            let path = ["v1", "sys", "keys", "rotate"];
            let (client, query) = (server.client()?, [("algorithm", algorithm.into_str())]);
            let rotated = super::wait_for(client.post_with(&path, &query, &json!({})))?;
            let [retired, active] = ["retired", "active"].map(|name| printable_text(&rotated, name));
            writeln!(out, "{}: {retired} is retired, {active} is active", client.server())?;
        }
        Command::Taint { kid, confirmation, server } => {
            confirmation.ask(&format!("refuse every signature of {} for good", printable(&kid)))?;
            let path = ["v1", "sys", "keys", &kid, "taint"];
            let body = json!({});
            let request = Request { is_repeatable: true, ..Request::post(&path, &body) };
            let tainted = super::wait_for(server.client()?.send(&request))?.body;
            writeln!(
                out,
                "{} is tainted: its signatures are refused from now on",
                printable_text(&tainted, "tainted")
            )?;
        }
    }
    Ok(())
}
