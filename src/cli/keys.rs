//! `trust-fabric keys …`

use std::io::Write;

use clap::Subcommand;
use serde_json::{Value, json};
use trust_fabric_client as client;

use super::Error;
use super::endpoint::Server;
use super::output::{self, Output, printable};
use crate::token::signing_key::SigningAlgorithm;

const KEYS: [&str; 3] = ["v1", "sys", "keys"];
/// Status of a rotation without a successor that is old enough.
const CONFLICT: u16 = 409;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the signing keys of the cluster and their states.
    List {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        output: Output,
    },
    /// Retire the active key in favour of its successor, which must be ten minutes old.
    Rotate {
        /// Algorithm of the key: ES256 signs tokens, RS256 security events.
        #[arg(long, default_value_t = SigningAlgorithm::Es256)]
        algorithm: SigningAlgorithm,
        #[command(flatten)]
        server: Server,
    },
    /// Taint a key that may be stolen: its signatures are refused from then on. Cannot be undone.
    Taint {
        /// The key, by its kid in `keys list`.
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
            let rotated = super::wait_for(async {
                match client.post_with(&path, &query, &json!({})).await {
                    Err(client::Error::Refused(refusal)) if refusal.status == CONFLICT => {
                        let usable_from = successor_usable_from(&client.get(&KEYS).await?, algorithm);
                        Err(Error::NoSuccessor { description: refusal.description, usable_from })
                    }
                    rotated => Ok(rotated?),
                }
            })?;
            writeln!(
                out,
                "{} is retired, {} is active",
                text(&rotated, "retired"),
                text(&rotated, "active")
            )?;
        }
        Command::Taint { kid, server } => {
            let client = server.client()?;
            let path = ["v1", "sys", "keys", &kid, "taint"];
            let tainted = super::wait_for(async { Ok(client.post(&path, &json!({})).await?) })?;
            writeln!(
                out,
                "{} is tainted: its signatures are refused from now on",
                text(&tainted, "tainted")
            )?;
        }
    }
    Ok(())
}

/// Time from which the successor of the called node's active key may sign.
fn successor_usable_from(keys: &Value, algorithm: SigningAlgorithm) -> Option<String> {
    let mut rows = keys.as_array()?.iter().filter(|key| key["algorithm"] == *algorithm.as_str());
    let node_id = rows.clone().find(|key| key["signs"] == true)?["node_id"].clone();
    let successor = rows.find(|key| key["node_id"] == node_id && key["state"] == "pending")?;
    successor["usable_from"].as_str().map(printable)
}

fn text(answer: &Value, name: &str) -> String {
    answer.get(name).and_then(Value::as_str).map(printable).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_is_the_pending_key_of_the_signing_node() {
        let key = |node_id: u64, algorithm: &str, state: &str, signs: bool, usable_from: &str| {
            json!({
                "node_id": node_id, "algorithm": algorithm, "state": state, "signs": signs, "usable_from": usable_from,
            })
        };
        let keys = json!([
            key(1, "ES256", "pending", false, "other node"),
            key(2, "RS256", "pending", false, "other algorithm"),
            key(2, "ES256", "active", true, "before"),
            key(2, "ES256", "pending", false, "then"),
        ]);
        assert_eq!(successor_usable_from(&keys, SigningAlgorithm::Es256).as_deref(), Some("then"));
        assert_eq!(successor_usable_from(&json!([]), SigningAlgorithm::Es256), None);
    }
}
