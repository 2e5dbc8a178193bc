//! The clients of a simulation. Each answer is checked at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::rt::AsyncRuntime as _;

use super::SimRuntime;
use super::invariants::Checked;
use super::network::Net;
use super::node::SimNode;
use super::random::Random;
use crate::clock::Timestamp;
use crate::limits;
use crate::state::command::{
    Caller, Command, Refusal, Reply, Revoke, SpendToken, decode_reply, encode, encode_for,
};
use crate::state::fact_row;
use crate::token::lineage::Fact;

/// Number of facts in a run: fewer than revocations, so that some are revoked repeatedly.
const FACTS: u64 = 40;
const CALLERS: u64 = 6;

/// The subject with this number.
pub fn fact(number: u64) -> Fact {
    Fact::subject("https://idp.example", &number.to_string())
}

/// Spends a token that ends at this time, as the caller with this number.
fn spend(token: u64, exp: Timestamp, caller: Option<u64>) -> Bytes {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&token.to_be_bytes());
    let spend = SpendToken {
        token: Bytes::copy_from_slice(&id),
        owner: Bytes::from_static(&[1; 16]),
        exp_millis: exp.millis(),
    };
    let caller = caller.map(|caller| Caller {
        digests: Bytes::copy_from_slice(fact(caller).digest().as_bytes()),
        bearer: None,
    });
    encode_for(Command::SpendToken(spend), None, caller)
}

/// One wrong clock does not move log time, by which a new token would otherwise have ended.
fn log_time_is_right(outcome: &Reply) -> Checked {
    match outcome {
        Reply::Refused(refusal @ (Refusal::TokenEnded | Refusal::LogTimeBehind)) => Err(refusal.to_string()),
        _ => Ok(()),
    }
}

fn revoke(number: u64, blocks: bool) -> Bytes {
    encode(Command::Revoke(Revoke { fact: Some(fact_row(&fact(number))), blocks, ..Revoke::default() }))
}

/// Clients that share the network.
pub struct Clients {
    pub net: Arc<Net>,
    pub has_ended: AtomicBool,
    pub tokens: AtomicU64,
}

impl Clients {
    /// The end of a token that a node with the right time has just minted.
    fn exp(&self) -> Timestamp {
        self.net.checks.time().plus(limits::EXECUTION_TOKEN_LIFETIME)
    }

    fn new_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::SeqCst)
    }

    fn nodes(&self) -> Vec<Arc<SimNode>> {
        self.net.nodes.lock().expect("nodes").values().cloned().collect()
    }

    /// Spends a token through a node; returns whether it is the first, or `None` without an answer.
    pub async fn spend(&self, node: &SimNode, token: u64, is_own: bool) -> Option<bool> {
        let (index, reply) = node.propose(spend(token, self.exp(), None)).await?;
        let is_first = match decode_reply(&reply)?.outcome {
            Reply::Done { .. } => true,
            Reply::Refused(Refusal::TokenSpent) => false,
            outcome => {
                self.net.checks.check(log_time_is_right(&outcome));
                return None;
            }
        };
        let checks = &self.net.checks;
        checks.note(&format!("token {token} through node {}: {is_first} at {index}", node.life.node));
        checks.answered(index);
        checks.spent(token, is_first, is_own);
        Some(is_first)
    }

    fn race(self: &Arc<Self>) {
        let token = self.new_token();
        for node in self.nodes() {
            let clients = Arc::clone(self);
            drop(SimRuntime::spawn(async move {
                node.stopped.run_until_cancelled(clients.spend(&node, token, false)).await;
            }));
        }
    }

    /// Has a node verify the credential of a fact.
    async fn verify(&self, node: &SimNode, number: u64) {
        let checks = &self.net.checks;
        let begun = checks.now();
        if node.accepts(&fact(number)).await == Some(true) {
            checks.accepted(node.life.node, number, begun);
        }
    }

    /// Revokes a fact, and then has all nodes verify it for longer than a lease.
    async fn revoke(self: &Arc<Self>, node: &SimNode, number: u64) {
        let Some((index, _)) = node.propose(revoke(number, false)).await else { return };
        self.net.checks.answered(index);
        if !node.barrier(index).await {
            return;
        }
        self.net.checks.note(&format!("fact {number} is revoked through node {}", node.life.node));
        self.net.checks.revoked(number);
        for _ in 0..25 {
            for node in self.nodes() {
                let clients = Arc::clone(self);
                drop(SimRuntime::spawn(async move {
                    node.stopped.run_until_cancelled(clients.verify(&node, number)).await;
                }));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn read(&self, node: &SimNode) {
        let known = self.net.checks.answered_up_to();
        if let Some(seen) = node.read().await {
            self.net.checks.read(known, seen);
        }
    }

    /// A caller sends a command, or an operator blocks the caller.
    async fn command(&self, node: &SimNode, caller: u64, blocks: bool) {
        let (checks, begun) = (&self.net.checks, self.net.checks.now());
        let command =
            if blocks { revoke(caller, true) } else { spend(self.new_token(), self.exp(), Some(caller)) };
        let Some((index, reply)) = node.propose(command).await else { return };
        checks.answered(index);
        if blocks {
            checks.blocked(caller);
        } else if let Some(replied) = decode_reply(&reply) {
            checks.check(log_time_is_right(&replied.outcome));
            let is_refused = replied.outcome == Reply::Refused(Refusal::CallerRefused);
            checks.commanded(caller, begun, is_refused);
        }
    }

    async fn once(self: &Arc<Self>, node: &SimNode, random: &mut Random) {
        match random.below(100) {
            0..30 => drop(self.spend(node, self.new_token(), true).await),
            30..40 => self.race(),
            40..50 => self.revoke(node, random.below(FACTS)).await,
            50..70 => self.verify(node, random.below(FACTS)).await,
            70..85 => self.read(node).await,
            action => self.command(node, FACTS + random.below(CALLERS), action >= 98).await,
        }
    }

    /// One client, until the end.
    pub async fn run(self: Arc<Self>, mut random: Random) {
        while !self.has_ended.load(Ordering::SeqCst) {
            let nodes = self.nodes();
            if let Some(node) = random.pick(&nodes).cloned() {
                node.stopped.clone().run_until_cancelled(self.once(&node, &mut random)).await;
            }
            tokio::time::sleep(random.micros(2_000, 40_000)).await;
        }
    }
}
