//! `trust-fabric health`

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::endpoint::{ServerArguments, admin_socket};
use super::output::printable;

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
    let text = match &arguments.data_dir {
        Some(data) if arguments.metrics => {
            admin_socket(data, async |client| Ok(client.text(&["metrics"]).await?))?
        }
        Some(data) => admin_socket(data, health)?,
        None => super::wait_for(health(arguments.server.client()?))?,
    };
    Ok(out.write_all(text.as_bytes())?)
}

async fn health(client: NodeClient) -> Result<String, Error> {
    match client.get(&["v1", "sys", "health"]).await {
        Err(client::Error::Refused(refusal)) if refusal.status == 503 => {
            Err(Error::NotReady(missing(&refusal.body).unwrap_or_else(|| "no reason given".to_owned())))
        }
        answer => Ok(line(&answer?) + "\n"),
    }
}

/// Status line; some fields are for authenticated callers only.
fn line(answer: &Value) -> String {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(printable);
    let version = text("version").map(|version| format!("version {version}"));
    let rest = [text("status"), text("role"), version, missing(answer)];
    let unit = text("unit_id").map(|unit_id| format!("{unit_id}: ")).unwrap_or_default();
    unit + &rest.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The unmet conditions, if any are stated.
fn missing(answer: &Value) -> Option<String> {
    let missing = answer.get("missing").and_then(Value::as_array);
    let words: Vec<String> = missing.into_iter().flatten().filter_map(Value::as_str).map(printable).collect();
    (!words.is_empty()).then(|| format!("no {}", words.join(", no ")))
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

    /// Regression: the reasons of a warning were left out.
    #[test]
    fn reasons_of_a_warning_are_listed() {
        let answer = json!({"status": "warn", "version": "0.1.0", "missing": ["signing key", "disk space"]});
        assert_eq!(line(&answer), "warn, version 0.1.0, no signing key, no disk space");
        assert_eq!(line(&json!({"status": "pass", "missing": []})), "pass");
    }

    #[test]
    fn reasons_of_an_unready_node_are_listed() {
        let reasons = missing(&json!({"missing": ["leader", "policy"]}));
        assert_eq!((reasons.as_deref(), missing(&json!({}))), (Some("no leader, no policy"), None));
    }
}
