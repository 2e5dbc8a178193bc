//! A node that is killed during its work retains everything that it acknowledged.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod node_under_test;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use node_under_test::{Site, client, copy, exchange};
use trust_fabric::state::{self, MintedToken};

const EXCHANGES: u32 = 10_000;
const CALLERS: usize = 32;
const KILLS: u32 = 4;

/// The response to an exchange with a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeOutcome {
    Granted,
    AlreadyUsed,
    Nothing,
}

async fn exchange_nonce(
    client: &reqwest::Client,
    url: &str,
    credential: &str,
    nonce: u32,
) -> ExchangeOutcome {
    let body = exchange(credential, &format!("nonce-{nonce}")).to_string();
    let Ok(answer) = client.post(url).body(body).send().await else { return ExchangeOutcome::Nothing };
    let status = answer.status().as_u16();
    match (status, answer.text().await) {
        (200, Ok(text)) if text.contains("access_token") => ExchangeOutcome::Granted,
        (400, Ok(text)) if text.contains("already used") => ExchangeOutcome::AlreadyUsed,
        (200 | 503, _) => ExchangeOutcome::Nothing,
        (status, text) => panic!("nonce {nonce}: {status} {text:?}"),
    }
}

#[tokio::test]
async fn no_nonce_is_accepted_twice_whenever_the_node_is_killed() {
    let site = Site::new();
    let credential = site.credential();
    let mut granted = BTreeMap::<u32, u32>::new();
    let mut spent_unheard = BTreeSet::new();
    let mut node = Some(site.spawn().expect("starts"));
    let mut from = 0;
    for round in 0..=KILLS {
        let url = format!("http://{}/v1/exchange/token", node.as_ref().expect("node").address);
        let http = client();
        // The last round sends every nonce again.
        let nonces: Vec<u32> = if round == KILLS {
            (0..EXCHANGES).collect()
        } else {
            let mut nonces: Vec<u32> = (from..from + EXCHANGES / KILLS).collect();
            from += EXCHANGES / KILLS;
            // The round before it repeats some that were in flight at the kill.
            nonces.splice(0..0, nonces[0].saturating_sub(300)..nonces[0]);
            nonces
        };
        let kill_after = if round == KILLS { usize::MAX } else { nonces.len() - 200 };
        let answers = Cell::new(0);
        let victim = Cell::new(node.take());
        let outcomes: Vec<(u32, ExchangeOutcome)> = futures::stream::iter(nonces)
            .map(|nonce| {
                let (http, url, credential, answers, victim) = (&http, &url, &credential, &answers, &victim);
                async move {
                    let outcome = exchange_nonce(http, url, credential, nonce).await;
                    answers.set(answers.get() + 1);
                    if answers.get() == kill_after
                        && let Some(node) = victim.take()
                    {
                        node.kill();
                    }
                    (nonce, outcome)
                }
            })
            .buffer_unordered(CALLERS)
            .collect()
            .await;
        for (nonce, outcome) in outcomes {
            match outcome {
                ExchangeOutcome::Granted => *granted.entry(nonce).or_default() += 1,
                ExchangeOutcome::AlreadyUsed if !granted.contains_key(&nonce) => {
                    spent_unheard.insert(nonce);
                }
                ExchangeOutcome::AlreadyUsed => {}
                ExchangeOutcome::Nothing => assert!(round < KILLS, "no answer for {nonce} in the last round"),
            }
        }
        node = victim.take();
        if round < KILLS {
            node = Some(site.spawn().expect("comes back"));
        }
    }
    let twice: Vec<_> = granted.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "accepted more than once: {twice:?}");
    println!("{} granted once, {} spent without an answer", granted.len(), spent_unheard.len());
    assert_eq!(granted.len() + spent_unheard.len(), EXCHANGES as usize, "nonces unaccounted for");
    node.expect("node").kill();
    Box::pin(the_log_alone_gives_the_same_state(&site)).await;
}

/// Starts one node on the data as it is, and one on its log without the state.
async fn the_log_alone_gives_the_same_state(site: &Site) {
    let replayed = site.beside("replayed");
    copy(&site.data(), &replayed);
    std::fs::remove_dir_all(replayed.join("state")).expect("remove the state");
    let mut hashes = Vec::new();
    for data in [site.data(), replayed] {
        let node = site.start(&data).await.expect("starts");
        hashes.push(node.running.state.cluster().state_hash().expect("hash"));
        node.stop().await;
    }
    assert_eq!(hashes[0], hashes[1], "the state that survived is not the one the log makes");
}

#[tokio::test]
async fn a_node_is_restarted_fifty_times_in_one_process() {
    let site = Site::new();
    for restart in 0..50_u8 {
        let node =
            site.start(&site.data()).await.unwrap_or_else(|error| panic!("restart {restart}: {error}"));
        let nonce = |byte: u8| trust_fabric::id::Digest128::from_bytes([byte; 16]);
        let state = &node.running.state;
        state
            .as_node()
            .record_exchange(Some(nonce(restart)), state::owner("test"), MintedToken::default())
            .await
            .expect("fresh");
        for earlier in 0..restart {
            state
                .as_node()
                .record_exchange(Some(nonce(earlier)), state::owner("test"), MintedToken::default())
                .await
                .expect_err("spent before");
        }
        node.stop().await;
    }
}

/// Ids of the tools in `tool.registered` events, until the connection ends or the last tool arrives. Sends on
/// `is_there` when subscribed: without an id the feed has only later events.
async fn events(
    (http, base): (&reqwest::Client, &str),
    last_id: &mut String,
    until: Option<&str>,
    is_there: &tokio::sync::Notify,
) -> Vec<String> {
    let asked = http.get(format!("{base}/v1/events?types=tool")).timeout(std::time::Duration::from_secs(60));
    let mut answer = asked.header("last-event-id", last_id.as_str()).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    is_there.notify_one();
    let (mut text, mut read, mut tools) = (String::new(), 0, Vec::new());
    // A killed node ends no response: its connection breaks.
    while let Ok(Some(chunk)) = answer.chunk().await {
        text.push_str(std::str::from_utf8(&chunk).expect("text"));
        while let Some(length) = text[read..].find("\n\n") {
            let block = &text[read..read + length];
            read += length + 2;
            if let Some(id) = block.lines().find_map(|line| line.strip_prefix("id: ")) {
                id.clone_into(last_id);
            }
            let Some((_, subject)) = block.split_once("\"subject\":\"") else { continue };
            let subject = subject.split('"').next().expect("a subject").to_owned();
            let is_last = Some(subject.as_str()) == until;
            tools.push(subject);
            if is_last {
                return tools;
            }
        }
    }
    tools
}

#[tokio::test]
async fn killed_node_leaves_no_gap_or_duplicate_in_the_feed() {
    const TOOLS: usize = 400;
    let site = Site::new();
    let http = client();
    let (mut received, mut acknowledged, mut last_id) = (Vec::new(), BTreeSet::new(), String::new());
    let is_there = tokio::sync::Notify::new();
    for round in 0..KILLS {
        let node = site.spawn().expect("starts");
        let base = format!("http://{}", node.address);
        let register = async {
            is_there.notified().await;
            let registered: Vec<_> = futures::stream::iter(0..TOOLS)
                .map(async |at| {
                    let name = format!("t-{round}-{at}");
                    let entry = serde_json::json!({"tool_id": name, "name": "a tool"}).to_string();
                    let answer = http.post(format!("{base}/v1/tools")).body(entry).send().await;
                    answer.ok().filter(|answer| answer.status().as_u16() == 201).map(|_| name)
                })
                .buffer_unordered(CALLERS)
                .take(TOOLS - CALLERS / 2)
                .collect()
                .await;
            node.kill();
            registered
        };
        let (events, registered) =
            futures::join!(events((&http, &base), &mut last_id, None, &is_there), register);
        received.extend(events);
        acknowledged.extend(registered.into_iter().flatten());
    }
    let node = site.spawn().expect("starts");
    let base = format!("http://{}", node.address);
    let entry = serde_json::json!({"tool_id": "end", "name": "a tool"}).to_string();
    assert_eq!(
        http.post(format!("{base}/v1/tools")).body(entry).send().await.expect("answer").status().as_u16(),
        201
    );
    received.extend(events((&http, &base), &mut last_id, Some("end"), &is_there).await);
    node.kill();
    let once: BTreeSet<_> = received.iter().cloned().collect();
    assert_eq!(once.len(), received.len(), "duplicate events");
    let missed: Vec<_> = acknowledged.difference(&once).collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert!(acknowledged.len() > KILLS as usize * TOOLS / 2, "{}", acknowledged.len());
}
