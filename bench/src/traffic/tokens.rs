//! Tokens of the workloads of a run, by the state of their workload.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum age of a used token; its lifetime is five minutes.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(200);
/// Maximum retained tokens of each state.
const TOKENS_MAX: usize = 64;
/// Of so many verifications, one is of a revoked token and one of a token that is being revoked.
const REVOKED_EVERY: u64 = 4;

#[derive(Clone)]
pub(super) struct Token {
    pub(super) subject: u64,
    pub(super) text: Arc<str>,
    pub(super) minted: Instant,
}

/// Tokens by state of their workload: unrevoked, waiting for revocation, in revocation, revoked.
#[derive(Default)]
pub(super) struct Tokens {
    pub(super) living: VecDeque<Token>,
    pub(super) waiting: VecDeque<Token>,
    pub(super) revoking: VecDeque<Token>,
    pub(super) revoked: VecDeque<Token>,
}

impl Tokens {
    /// A fresh token and its expected verdict. The tokens of a state take turns.
    pub(super) fn draw(&mut self, number: u64) -> Option<(Token, Verdict)> {
        let first = match number % REVOKED_EVERY {
            0 => Some((&mut self.revoked, Verdict::Refused)),
            1 => Some((&mut self.revoking, Verdict::Either)),
            _ => None,
        };
        for (list, verdict) in first.into_iter().chain([(&mut self.living, Verdict::Accepted)]) {
            while let Some(token) = list.pop_back() {
                if token.minted.elapsed() < TOKEN_AGE_MAX {
                    list.push_front(token.clone());
                    return Some((token, verdict));
                }
            }
        }
        None
    }
}

/// Expected verdict of a verification.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    Refused,
    /// The revocation is in flight.
    Either,
}

pub(super) fn keep(list: &mut VecDeque<Token>, token: Token) {
    if list.len() >= TOKENS_MAX {
        list.pop_front();
    }
    list.push_back(token);
}
