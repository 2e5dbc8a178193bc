//! Sends the same request with oha (<https://github.com/hatoo/oha>), an independent load generator.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::load::Tally;
use crate::node::{Node, on_core};
use crate::overload::Cores;
use crate::reading::{Meter, Table};
use crate::wire::find;

/// Requests of one run.
const REQUESTS: u64 = 20_000;

pub struct Confirmed<'a> {
    pub program: &'a Path,
    pub caller: &'a str,
    pub connections: usize,
    pub cores: Cores,
}

impl Confirmed<'_> {
    /// Sends the body of `request` to `path`, on the generator's core; with the processor time of the node.
    pub async fn run(&self, node: &Node, path: &str, request: &[u8]) -> Result<Table> {
        let file = node.pki().with_file_name("oha.json");
        let head = find(request, b"\r\n\r\n").map_or(0, |at| at + 4);
        std::fs::write(&file, &request[head..])?;
        let pem = |name: &str| node.pki().join(name).display().to_string();
        let port = node.https.as_ref().context("no TLS")?.address.port();
        let mut command = on_core(Some(self.cores.generator_core), self.program);
        for (name, value) in [
            ("-n", REQUESTS.to_string()),
            ("-c", self.connections.to_string()),
            ("-m", "POST".to_owned()),
            ("-T", "application/json".to_owned()),
            ("-D", file.display().to_string()),
            ("--cacert", pem("ca.pem")),
            ("--cert", pem(&format!("{}.pem", self.caller))),
            ("--key", pem(&format!("{}-key.pem", self.caller))),
            ("--output-format", "json".to_owned()),
        ] {
            command.arg(name).arg(value);
        }
        command.args(["--no-tui", "--http-version", "1.1"]).arg(format!("https://localhost:{port}{path}"));
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let pids = [node.pid()];
        let meter = Meter::start(&pids)?;
        let ran = tokio::task::spawn_blocking(move || command.output()).await?.context("start oha")?;
        let reading = meter.read(Tally::new(), 200)?;
        let found: Value = serde_json::from_slice(&ran.stdout).context("the result of oha")?;
        let answered = found["statusCodeDistribution"]["200"].as_u64().unwrap_or_default();
        if answered != REQUESTS {
            bail!("oha: {answered} of {REQUESTS} are answered 200: {}", found["statusCodeDistribution"]);
        }
        let number = |value: &Value, scale: f64| {
            value.as_f64().map_or_else(String::new, |value| format!("{:.2}", value * scale))
        };
        let latency = &found["latencyPercentiles"];
        let mut table = Table::new(&["by oha", "requests", "per second", "p50, ms", "p99, ms", "node, µs"]);
        table.row(vec![
            path.to_owned(),
            answered.to_string(),
            number(&found["summary"]["requestsPerSec"], 1.0),
            number(&latency["p50"], 1000.0),
            number(&latency["p99"], 1000.0),
            format!("{:.1}", 1e6 * reading.usage.all() / crate::load::as_f64(answered)),
        ]);
        Ok(table)
    }
}
