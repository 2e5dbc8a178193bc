//! Keys: every minted token verifies with the key set of every node until it expires, except those of a tainted key,
//! which no node accepts once the taint is acknowledged.

use std::collections::{BTreeMap, HashMap};

use super::{Found, Numbered, Violation, is_ok, name, of, text};
use crate::history::{History, Kind, Nanos, Outcome, Workload};

pub const NAME: &str = "keys";

/// A minted token.
struct Token {
    number: usize,
    kid: String,
    /// Unix seconds.
    expires: u64,
}

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    let operations: Vec<_> = of(history, Workload::Keys).collect();
    let tokens = tokens(&operations, &mut found);
    let mut taints: BTreeMap<&str, Taint> = BTreeMap::new();
    for (_, taint) in operations.iter().filter(|(_, operation)| operation.kind == Kind::Taint) {
        if taint.outcome == Outcome::Fail {
            continue;
        }
        let known = taints.entry(&taint.key).or_insert(Taint { begun: Nanos::MAX, acknowledged: Nanos::MAX });
        known.begun = known.begun.min(taint.invoke);
        known.acknowledged = known.acknowledged.min(super::end(taint));
    }
    for &(number, check) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Check)) {
        let (Some(is_verified), Some(at)) = (check.value.as_bool(), check.input["at"].as_u64()) else {
            found.add_unreadable((number, check));
            continue;
        };
        let Some(token) = tokens.get(check.key.as_str()) else {
            found.add("readable", format!("{} is of a token that was not minted", name(check)), &[number]);
            continue;
        };
        let taint = taints.get(token.kid.as_str());
        // A key may leave the set as soon as its taint was sent.
        let may_be_gone = taint.is_some_and(|taint| taint.begun < check.end);
        if !is_verified && at < token.expires && !may_be_gone {
            let detail = format!(
                "{} did not verify with key {}, {} s before it expires",
                name(check),
                token.kid,
                token.expires - at
            );
            found.add("verifies until it expires", detail, &[token.number, number]);
        }
        if is_verified && check.is_final && taint.is_some_and(|taint| taint.acknowledged < check.invoke) {
            let detail = format!("{} verified with the tainted key {}", name(check), token.kid);
            found.add("tainted keys leave the key set", detail, &[token.number, number]);
        }
    }
    for &(number, used) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Use)) {
        let (Some(is_accepted), Some(token)) = (used.value.as_bool(), tokens.get(used.key.as_str())) else {
            found.add_unreadable((number, used));
            continue;
        };
        let taint = taints.get(token.kid.as_str());
        if is_accepted && taint.is_some_and(|taint| taint.acknowledged < used.invoke) {
            let detail = format!("{} was accepted after the taint of {}", name(used), token.kid);
            found.add("no accept of a tainted key", detail, &[token.number, number]);
        }
    }
    found.violations
}

/// Taint of a key: begin of the first request, end of the first acknowledged one.
struct Taint {
    begun: Nanos,
    acknowledged: Nanos,
}

/// Minted tokens by `jti`, which are unique.
fn tokens<'h>(operations: &[Numbered<'h>], found: &mut Found) -> HashMap<&'h str, Token> {
    let mut tokens: HashMap<&str, Token> = HashMap::new();
    for &(number, mint) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Mint)) {
        let (Some(kid), Some(expires)) = (text(&mint.value["kid"]), mint.value["exp"].as_u64()) else {
            found.add_unreadable((number, mint));
            continue;
        };
        if let Some(other) = tokens.insert(&mint.key, Token { number, kid, expires }) {
            found.add(
                "one token for each jti",
                format!("{} was minted twice", mint.key),
                &[other.number, number],
            );
        }
    }
    tokens
}
