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
    writeln!(out, "{}", line(&answer))?;
    Ok(())
}

/// What a node tells whoever asks; some of it only those with a certificate.
fn line(answer: &Value) -> String {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(printable);
    let version = text("version").map(|version| format!("version {version}"));
    let rest: Vec<String> = [text("status"), text("role"), version].into_iter().flatten().collect();
    let who = text("unit_id").map(|unit_id| format!("{unit_id}: ")).unwrap_or_default();
    who + &rest.join(", ")
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

    /// Without a certificate it said "node-1: pass, , version 0.1.0".
    #[test]
    fn says_only_what_the_node_has_told() {
        let mut answer = json!({"unit_id": "node-1", "status": "pass", "role": "leader", "version": "0.1.0"});
        assert_eq!(line(&answer), "node-1: pass, leader, version 0.1.0");
        answer.as_object_mut().expect("an object").remove("role");
        assert_eq!(line(&answer), "node-1: pass, version 0.1.0");
        assert_eq!(line(&json!({"status": "warn"})), "warn");
    }

    #[test]
    fn says_what_a_node_is_waiting_for() {
        assert_eq!(missing(&json!({"missing": ["leader", "policy"]})), "no leader, no policy");
        assert_eq!(missing(&json!({})), "it does not say why");
    }
}
