//! `bench verify`: the processor time of verifications beside that of a floor server, which verifies one signature; and
//! the cost of auditing them.
//!
//! The audit cannot be switched off. Its cost is a part of the workers, and the thread that writes the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::beside::{Beside, Kind, Most, Plan};
use crate::exchange::answer;
use crate::floor::{Floor, Route};
use crate::load::{Write, as_f64};
use crate::node::{Node, Start};
use crate::oha;
use crate::reading::Table;
use crate::registry::{self, drawn, tool_id, write_verification};
use crate::wire;

const CONNECTIONS: usize = 64;
const TOOLS: u64 = 1000;
/// Tokens that are verified repeatedly.
const TOKENS: usize = 64;
/// Upper bound of verifications of new tokens per second and core; a measurement ends when they are used.
const PER_SEC_MAX: u32 = 8_000;
/// The thread that writes the log, which contains only audit blocks here.
const LOG_WRITER: &str = "log-writer";
const CALLER: &str = "gateway";

pub async fn run(start: &Start, plan: &Plan) -> Result<bool> {
    let node = start.node(Some(plan.cores.node_core)).await?;
    let token = node.mint().await?;
    let target = node.target(CALLER)?;
    eprintln!("{TOOLS} tools are registered");
    registry::register(&target, 0, TOOLS).await?;
    node.until_quiet().await?;

    let mut request = Vec::new();
    write_verification(&mut request, &target.host, &tool_id(0), &token, 0);
    let verified = answer(&target, &request).await?;
    let path = format!("/v1/tools/{}", tool_id(0));
    let tool = answer(&target, &wire::request("GET", &path, &target.host, "")).await?;
    let routes = vec![
        Route::new("/es256", &verified).verifying(&own_key(&node, &token).await?),
        Route::new("/json", &verified),
        Route::get("/read", &tool),
    ];
    let floor = Floor::start(&node, plan.cores.node_core, CALLER, routes).await?;
    let before = Totals::now(&node)?;
    let mut beside = Beside::new("Verifications", (&node, &target, &floor), CONNECTIONS, plan);
    for round in 1..=plan.rounds {
        let most = plan.most(PER_SEC_MAX);
        let new = Arc::new(node.tokens(most.all()).await?);
        let few = Arc::new(new.iter().take(TOKENS).cloned().collect::<Vec<_>>());
        let first = (round as u64) << 32;
        for (name, floor_path, most, write) in [
            ("new token", "/es256", most, verifications(&target.host, new, first)),
            ("token seen before", "/json", Most::UNBOUNDED, verifications(&target.host, few, first)),
            ("read of one tool", "/read", Most::UNBOUNDED, reads(&target.host)),
        ] {
            beside.measure(round, &Kind { name, write, floor_path, most }).await?;
        }
    }
    if let Some(program) = &plan.oha {
        // A newly minted token, because it lives for five minutes.
        write_verification(&mut request, &target.host, &tool_id(0), &node.mint().await?, 0);
        let confirmed =
            oha::Confirmed { program, caller: CALLER, connections: CONNECTIONS, cores: plan.cores };
        beside.confirm(&confirmed, "/v1/mcp/verify", &request).await?;
    }
    node.until_quiet().await?;
    let written = before.written(&Totals::now(&node)?, beside.answered("token"));
    beside.table(written);
    beside.finish("verify", start.output.as_deref())
}

/// Verifications of these tokens, in their order, for tools everywhere, each with another body hash.
fn verifications(host: &str, tokens: Arc<Vec<String>>, first: u64) -> Write {
    let host = host.to_owned();
    Arc::new(move |number, request| {
        let place = usize::try_from(number).unwrap_or_default() % tokens.len().max(1);
        let token = tokens.get(place).map_or("", String::as_str);
        write_verification(request, &host, &tool_id(drawn(number, TOOLS)), token, first + number);
    })
}

fn reads(host: &str) -> Write {
    let host = host.to_owned();
    Arc::new(move |number, request| {
        let path = format!("/v1/tools/{}", tool_id(drawn(number, TOOLS)));
        *request = wire::request("GET", &path, &host, "");
    })
}

/// The JWK with which the node signed a token.
async fn own_key(node: &Node, token: &str) -> Result<Value> {
    let header = token.split('.').next().unwrap_or_default();
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header)?)?;
    let keys = answer(&node.http, &wire::request("GET", "/v1/identity/jwks", &node.http.host, "")).await?;
    let keys = keys.get("keys").and_then(Value::as_array).context("no keys")?;
    keys.iter()
        .find(|key| key["kid"] == header["kid"])
        .cloned()
        .context("the key of the token is not published")
}

/// Totals so far.
struct Totals {
    written_bytes: BTreeMap<String, u64>,
    data_bytes: u64,
}

impl Totals {
    fn now(node: &Node) -> Result<Self> {
        Ok(Self { written_bytes: node.written_bytes()?, data_bytes: node.data_bytes()? })
    }

    fn written(&self, after: &Self, verifications: u64) -> Table {
        let written = |whole: &Self, name| whole.written_bytes.get(name).copied().unwrap_or_default();
        let by = |name| written(after, name).saturating_sub(written(self, name));
        let each = |bytes: u64| format!("{:.0}", as_f64(bytes) / as_f64(verifications.max(1)));
        let mut table = Table::new(&["written", "bytes for each of the verifications"]);
        let grown = after.data_bytes.saturating_sub(self.data_bytes);
        for (name, bytes) in [
            ("to the log, in blocks", each(by(LOG_WRITER))),
            ("by which the data directory has grown, log and state", each(grown)),
            ("verifications", verifications.to_string()),
        ] {
            table.row(vec![name.to_owned(), bytes]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_determine_the_token_of_a_verification() {
        let tokens = Arc::new(vec!["a.a.a".to_owned(), "b.b.b".to_owned()]);
        let write = verifications("localhost", tokens, 7 << 32);
        let of = |number| {
            let mut request = Vec::new();
            write(number, &mut request);
            let text = String::from_utf8(request).expect("text");
            let (_, body) = text.split_once("\r\n\r\n").expect("a head");
            serde_json::from_str::<Value>(body).expect("JSON")
        };
        assert_eq!((of(0)["token"].as_str(), of(1)["token"].as_str()), (Some("a.a.a"), Some("b.b.b")));
        assert_eq!(of(2)["token"], "a.a.a");
        assert_ne!(of(0)["request_body_hash"], of(2)["request_body_hash"]);
        assert_eq!(of(0), of(0), "the floor receives the same bytes");
    }
}
