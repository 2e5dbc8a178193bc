//! `trust-fabric health`

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::Error;
use super::output::printable;
use super::server::Server;
use crate::outbound::admin;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    server: Server,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let client = arguments.server.client()?;
    let answer = super::wait_for(async {
        match client.get(&["v1", "sys", "health"]).await {
            // The answer of a node that cannot do its work says what is missing.
            Err(admin::Error::Refused { status: 503, answer, .. }) => Err(Error::NotReady(missing(&answer))),
            answer => Ok(answer?),
        }
    })?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(printable).unwrap_or_default();
    writeln!(out, "{}: {}, {}, version {}", text("unit_id"), text("status"), text("role"), text("version"))?;
    Ok(())
}

fn missing(answer: &Value) -> String {
    let missing = answer.get("missing").and_then(Value::as_array);
    let words: Vec<String> = missing.into_iter().flatten().filter_map(Value::as_str).map(printable).collect();
    if words.is_empty() { "it does not say why".to_owned() } else { format!("no {}", words.join(", no ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn says_what_a_node_is_waiting_for() {
        assert_eq!(missing(&json!({"missing": ["leader", "policy"]})), "no leader, no policy");
        assert_eq!(missing(&json!({})), "it does not say why");
    }
}
