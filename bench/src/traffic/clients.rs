//! Clients: which node is tried, over which connection, and with which outcome.

use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::history::{Kind, Micros, Outcome, Try};
use super::{Ends, Traffic};
use crate::load::as_f64;
use crate::wire::{self, Connection, Response};

/// First and longest pause of a client after a failure of all nodes.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Maximum retained odd answers.
const ODD_MAX: usize = 20;

impl Traffic {
    /// Tries one node after the other until one succeeds or fails finally.
    pub(super) async fn call(&self, kind: Kind, number: u64, request: &[u8]) -> (Ends, Option<Response>) {
        let begun = Instant::now();
        let mut node = self.first(number);
        let good: &[u16] = match kind {
            Kind::Exchange | Kind::Verify => &[200],
            Kind::Signal => &[202],
            Kind::Write => &[200, 201],
        };
        let (mut turn, mut first) = (0, None);
        loop {
            let started = self.now();
            let (sent, answer) = self.once(kind, node, request).await.unzip();
            let (outcome, sent) = (outcome_of(answer.as_ref(), good), sent.unwrap_or(started));
            let done = self.now();
            self.note(Try { kind, node, sent, done, outcome }, answer.as_ref());
            let ends = Ends { first: *first.get_or_insert(outcome), last: outcome };
            if is_final(outcome) || self.gives_up(begun, turn) {
                return (ends, answer);
            }
            node = self.next(node, turn).await;
            turn += 1;
        }
    }

    /// Whether a request that began then and has so many earlier tries is not tried again.
    pub(super) fn gives_up(&self, begun: Instant, turn: usize) -> bool {
        begun.elapsed() > self.patience() || turn + 1 >= self.rates.tries_max
    }

    /// Records a try, and its response if it is odd.
    pub(super) fn note(&self, one: Try, answer: Option<&Response>) {
        let mut history = self.history();
        if let (Outcome::Wrong(status), Some(answer)) = (one.outcome, answer)
            && history.odd.len() < ODD_MAX
        {
            let body = String::from_utf8_lossy(answer.body()).into_owned();
            let at = as_f64(one.sent) / 1e6;
            history.odd.push(format!(
                "{} at {at:.3} s, node {}: {status} {body}",
                one.kind.name(),
                one.node + 1
            ));
        }
        history.tries.push(one);
    }

    /// One request to one node; the time of sending, and the response. Replaces a connection that the node has
    /// closed.
    pub(super) async fn once(&self, kind: Kind, node: usize, request: &[u8]) -> Option<(Micros, Response)> {
        let asking = async {
            loop {
                let (mut connection, is_kept) = match self.kept(kind, node).await {
                    Some(connection) => (connection, true),
                    None => (self.connected(kind, node).await?, false),
                };
                let sent = self.now();
                match connection.call(request).await {
                    Ok(answer) => {
                        self.idle(kind, node).push(connection);
                        return Some((sent, answer));
                    }
                    Err(_) if is_kept => self.broke("kept connection closed while a request was sent"),
                    Err(_) => {
                        self.broke("new connection closed before the answer");
                        return None;
                    }
                }
            }
        };
        let limit = Duration::from_millis(self.rates.try_timeout);
        timeout(limit, asking).await.unwrap_or_else(|_| {
            self.broke("no answer in time");
            None
        })
    }

    /// A kept connection that the node has not closed.
    async fn kept(&self, kind: Kind, node: usize) -> Option<Connection> {
        loop {
            let mut connection = self.idle(kind, node).pop()?;
            if !connection.is_closed().await {
                return Some(connection);
            }
        }
    }

    async fn connected(&self, kind: Kind, node: usize) -> Option<Connection> {
        let error = match self.targets[kind.place()][node].connect().await {
            Ok(connection) => return Some(connection),
            Err(error) => error,
        };
        self.broke(match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused",
            _ => "connection closed during the handshake",
        });
        None
    }

    fn idle(&self, kind: Kind, node: usize) -> MutexGuard<'_, Vec<Connection>> {
        self.idle[kind.place()][node].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broke(&self, how: &'static str) {
        *self.history().broken.entry(how).or_default() += 1;
    }

    /// The first node, in turns.
    pub(super) fn first(&self, number: u64) -> usize {
        let nodes = self.in_use();
        nodes[usize::try_from(number % nodes.len() as u64).unwrap_or_default()]
    }

    /// The next node; after all nodes, a pause.
    pub(super) async fn next(&self, node: usize, turn: usize) -> usize {
        let nodes = self.in_use();
        let round = turn / nodes.len();
        if turn % nodes.len() == nodes.len() - 1 {
            let pause = PAUSE * 2_u32.saturating_pow(u32::try_from(round).unwrap_or(u32::MAX).min(8));
            sleep(pause.min(PAUSE_MAX)).await;
        }
        // A node that is not in use any more has no next one.
        let place = nodes.iter().position(|used| *used == node).map_or(0, |place| place + 1);
        nodes[place % nodes.len()]
    }
}

/// Whether no other node has to be tried.
pub(super) const fn is_final(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Good | Outcome::Wrong(_))
}

pub(super) fn outcome_of(answer: Option<&Response>, good: &[u16]) -> Outcome {
    let Some(answer) = answer else { return Outcome::None };
    match answer.status {
        status if good.contains(&status) => Outcome::Good,
        503 if wire::find(answer.body(), b"outcome").is_some() => Outcome::Unknown,
        503 | 429 => Outcome::NotNow,
        other => Outcome::Wrong(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_outcome_differs_from_an_orderly_refusal() {
        let answer = |status, body: &str| Response { status, bytes: body.as_bytes().to_vec(), head: 0 };
        let of = |status, body| outcome_of(Some(&answer(status, body)), &[200, 201]);
        assert_eq!(of(201, ""), Outcome::Good);
        assert_eq!(of(503, r#"{"error_description":"its outcome is unknown"}"#), Outcome::Unknown);
        assert_eq!(of(503, r#"{"error_description":"no leader"}"#), Outcome::NotNow);
        assert_eq!(of(429, ""), Outcome::NotNow);
        assert_eq!(of(409, ""), Outcome::Wrong(409));
        assert_eq!(of(500, ""), Outcome::Wrong(500));
        assert_eq!(outcome_of(None, &[200]), Outcome::None);
    }
}
