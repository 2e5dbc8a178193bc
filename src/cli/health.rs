//! `trust-fabric health`

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::endpoint::ServerArguments;
use super::output::printable;
use crate::api::admin_socket::ADMIN_SOCKET;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Query the node with this data directory through its admin.sock: works without a lease, shows all details.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["urls", "ca", "cert", "key", "token_file"])]
    data_dir: Option<PathBuf>,
    /// Show the metrics of the node.
    #[arg(long, requires = "data_dir")]
    metrics: bool,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let client = match &arguments.data_dir {
        Some(data) => NodeClient::at_socket(&data.join(ADMIN_SOCKET))?,
        None => arguments.server.client()?,
    };
    if arguments.metrics {
        let text = super::wait_for(client.text(&["metrics"]))?;
        return Ok(out.write_all(text.as_bytes())?);
    }
    let answer = super::wait_for(async {
        match client.get(&["v1", "sys", "health"]).await {
            // A node that is not ready lists its reasons.
            Err(client::Error::Refused(refusal)) if refusal.status == 503 => {
                Err(Error::NotReady(missing(&refusal.body)))
            }
            answer => Ok(answer?),
        }
    })?;
    writeln!(out, "{}", line(&answer))?;
    Ok(())
}

/// Status line; some fields are for authenticated callers only.
fn line(answer: &Value) -> String {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(printable);
    let version = text("version").map(|version| format!("version {version}"));
    let rest: Vec<String> = [text("status"), text("role"), version].into_iter().flatten().collect();
    let unit = text("unit_id").map(|unit_id| format!("{unit_id}: ")).unwrap_or_default();
    unit + &rest.join(", ")
}

fn missing(answer: &Value) -> String {
    let missing = answer.get("missing").and_then(Value::as_array);
    let words: Vec<String> = missing.into_iter().flatten().filter_map(Value::as_str).map(printable).collect();
    if words.is_empty() { "no reason given".to_owned() } else { format!("no {}", words.join(", no ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Once printed "node-1: pass, , version 0.1.0" without a certificate.
    #[test]
    fn absent_fields_are_left_out() {
        let mut answer = json!({"unit_id": "node-1", "status": "pass", "role": "leader", "version": "0.1.0"});
        assert_eq!(line(&answer), "node-1: pass, leader, version 0.1.0");
        answer.as_object_mut().expect("an object").remove("role");
        assert_eq!(line(&answer), "node-1: pass, version 0.1.0");
        assert_eq!(line(&json!({"status": "warn"})), "warn");
    }

    #[test]
    fn reasons_of_an_unready_node_are_listed() {
        assert_eq!(missing(&json!({"missing": ["leader", "policy"]})), "no leader, no policy");
        assert_eq!(missing(&json!({})), "no reason given");
    }
}
