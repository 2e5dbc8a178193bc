//! Synthetic tools: their registration, and requests about random ones.
//!
//! Tool n has the id `tool-<16 hexadecimal digits>`, a bijection of n: earlier tools lie everywhere among
//! later ones, as with names that people choose.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::credentials::AUDIENCE;
use crate::load::{self, Write, as_f64};
use crate::wire::{self, Connection, RESPONSE_TIMEOUT, Target};

/// Connections for registrations.
const CONNECTIONS: usize = 96;
/// Pause before a request that was answered 503 is retried.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum failed tries of a registration.
const TRIES_MAX: u32 = 2000;
/// Registrations between two progress messages.
const PROGRESS_EVERY: u64 = 50_000;

/// The id of a tool. All have the same length.
pub fn tool_id(number: u64) -> String {
    format!("tool-{:016x}", split_mix(number))
}

/// `SplitMix64`: a bijection whose values look random.
fn split_mix(number: u64) -> u64 {
    let mut value = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The entry of a tool, with every usual field.
fn entry(number: u64) -> String {
    format!(
        r#"{{"tool_id":"{}","name":"Reports of shard {number}","resource_uri":"{AUDIENCE}","required_capabilities":["db.read"],"max_blast_radius":"namespace:demo","protocols":["mcp","http"],"version":"1.4.{number}","description":"Answers a question in SQL over the tables of shard {number}, with at most a thousand rows, for reports and for whoever asks on behalf of somebody that may read them."}}"#,
        tool_id(number)
    )
}

/// Registers the tools `from..to`. Returns the duration.
pub async fn register(target: &Target, from: u64, to: u64) -> Result<Duration> {
    let next = Arc::new(AtomicU64::new(from));
    let mut workers = JoinSet::<Result<()>>::new();
    let begun = Instant::now();
    for connection in load::open(target, CONNECTIONS).await? {
        let (target, next) = (target.clone(), Arc::clone(&next));
        workers.spawn(async move {
            let mut connection = Some(connection);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= to {
                    return Ok(());
                }
                register_one(&target, &mut connection, number).await?;
                if number > 0 && number.is_multiple_of(PROGRESS_EVERY) {
                    let per_sec = as_f64(number - from) / begun.elapsed().as_secs_f64();
                    eprintln!("{number} tools, {per_sec:.0} in a second");
                }
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(begun.elapsed())
}

/// Retries until it is registered: the same entry changes nothing.
async fn register_one(target: &Target, connection: &mut Option<Connection>, number: u64) -> Result<()> {
    let body = entry(number);
    let request = wire::request_with("POST", "/v1/tools", &target.host, "", body.as_bytes());
    for _ in 0..TRIES_MAX {
        let mut open = match connection.take() {
            Some(open) => open,
            None => target.connect().await?,
        };
        match timeout(RESPONSE_TIMEOUT, open.call_status(&request)).await {
            Ok(Ok((status, last))) => {
                *connection = (!last).then_some(open);
                match status {
                    200 | 201 => return Ok(()),
                    429 | 503 => tokio::time::sleep(PAUSE).await,
                    other => bail!("registering a tool is answered {other}: {body}"),
                }
            }
            Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    bail!("a tool could not be registered")
}

/// Draws tools; no two draws of one bench have the same sequence number.
#[derive(Clone, Default)]
pub struct Draws(Arc<AtomicU64>);

impl Draws {
    /// Sequence number of this draw, and a number below `tools`.
    fn next(&self, tools: u64) -> (u64, u64) {
        let place = self.0.fetch_add(1, Ordering::Relaxed);
        (place, drawn(place, tools))
    }
}

/// A number below `tools`, which seems random and depends on `place` and `tools` only.
pub fn drawn(place: u64, tools: u64) -> u64 {
    split_mix(place ^ 0x5bd1_e995_0000_0000) % tools.max(1)
}

/// Verifications of one of `tokens` for one of the tools, each with another body hash.
pub fn verify(draws: &Draws, host: &str, tools: u64, tokens: Arc<Vec<String>>) -> Write {
    let (draws, host) = (draws.clone(), host.to_owned());
    Arc::new(move |_, request| {
        let (place, tool) = draws.next(tools);
        write_verification(request, &host, &tool_id(tool), token(&tokens, place), place);
    })
}

/// Reads of one tool.
pub fn get(draws: &Draws, host: &str, tools: u64) -> Write {
    let (draws, host) = (draws.clone(), host.to_owned());
    Arc::new(move |_, request| {
        let (_, tool) = draws.next(tools);
        *request = wire::request("GET", &format!("/v1/tools/{}", tool_id(tool)), &host, "");
    })
}

/// Pages of a hundred tools after one of them.
pub fn list(draws: &Draws, host: &str, tools: u64) -> Write {
    let (draws, host) = (draws.clone(), host.to_owned());
    Arc::new(move |_, request| {
        let (_, tool) = draws.next(tools);
        let cursor = URL_SAFE_NO_PAD.encode(tool_id(tool));
        *request = wire::request("GET", &format!("/v1/tools?limit=100&cursor={cursor}"), &host, "");
    })
}

fn token(tokens: &[String], place: u64) -> &str {
    let index = place % (tokens.len() as u64).max(1);
    usize::try_from(index).ok().and_then(|index| tokens.get(index)).map_or("", String::as_str)
}

/// A hash that no body has, unique for the number.
pub fn body_hash(place: u64) -> String {
    let mut hash = [0; 32];
    for (number, part) in (0..).zip(hash.chunks_exact_mut(8)) {
        part.copy_from_slice(&split_mix(place.wrapping_mul(4).wrapping_add(number)).to_be_bytes());
    }
    URL_SAFE_NO_PAD.encode(hash)
}

/// A verification with such a body hash.
pub fn write_verification(request: &mut Vec<u8>, host: &str, tool_id: &str, token: &str, place: u64) {
    let mut body = String::with_capacity(token.len() + 160);
    let hash = body_hash(place);
    // Writing to a string does not fail.
    let _ = write!(body, r#"{{"tool_id":"{tool_id}","token":"{token}","request_body_hash":"{hash}"}}"#);
    *request = wire::request_with("POST", "/v1/mcp/verify", host, "", body.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_tool_has_an_id_of_its_own_and_an_entry_that_is_json() {
        let ids: BTreeSet<_> = (0..10_000).map(tool_id).collect();
        assert_eq!(ids.len(), 10_000);
        let entry: serde_json::Value = serde_json::from_str(&entry(7)).expect("JSON");
        assert_eq!(entry["tool_id"], tool_id(7));
    }

    #[test]
    fn draws_cover_the_tools_and_nothing_beyond() {
        let draws = Draws::default();
        let drawn: BTreeSet<_> = (0..1000).map(|_| draws.next(10).1).collect();
        assert_eq!(drawn, (0..10).collect());
    }

    #[test]
    fn body_hashes_of_verifications_differ() {
        let write = verify(&Draws::default(), "localhost", 1, Arc::new(vec!["a.b.c".to_owned()]));
        let hashes: BTreeSet<_> = (0..100)
            .map(|number| {
                let mut request = Vec::new();
                write(number, &mut request);
                let text = String::from_utf8(request).expect("text");
                let (head, body) = text.split_once("\r\n\r\n").expect("a head");
                assert!(head.contains(&format!("content-length: {}", body.len())));
                let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
                assert_eq!(body["token"], "a.b.c");
                body["request_body_hash"].as_str().expect("hash").to_owned()
            })
            .collect();
        assert_eq!(hashes.len(), 100);
    }
}
