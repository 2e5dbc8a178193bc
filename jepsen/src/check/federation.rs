//! Federation: a credential revoked at the origin is not accepted by the relying region beyond its lease, nor
//! once the revocation has been copied; nothing else is refused; and the copies of the ledger are equal to it
//! at the end.
//!
//! A revocation states the lease of the relying region (`stale_after`) and that of its members (`freshness`).
//! Its copy is seen in a refusal: the node that refused has it, and the other nodes of the region have it
//! when the earlier leases have ended.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Found, Numbered, Violation, by_key, end, is_ok, name, of, seconds};
use crate::history::{History, Kind, Nanos, Operation, Outcome, Workload};

pub const NAME: &str = "federation";

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    for operations in by_key(history, Workload::Federation).values() {
        let credential = Credential::of(operations, &mut found);
        for used in &credential.uses {
            credential.judge(used, &mut found);
        }
        credential.judge_end(operations, &mut found);
    }
    ledgers(history, &mut found);
    found.violations
}

/// Uses that were accepted, that were refused, and that were accepted after an acknowledgement, within the lease.
pub fn coverage(history: &History) -> [(&'static str, u64); 3] {
    let [mut accepted, mut refused, mut late] = [0; 3];
    let mut ignored = Found::by(NAME);
    for operations in by_key(history, Workload::Federation).values() {
        let credential = Credential::of(operations, &mut ignored);
        for used in &credential.uses {
            let is_late = |revocation: &&Revocation| {
                revocation.is_acknowledged()
                    && used.issued < revocation.operation.invoke
                    && revocation.operation.end < used.operation.invoke
            };
            accepted += u64::from(used.is_accepted);
            refused += u64::from(!used.is_accepted);
            late += u64::from(used.is_accepted && credential.revocations.iter().any(|one| is_late(&one)));
        }
    }
    [("accepted abroad", accepted), ("refused abroad", refused), ("accepted abroad within the lease", late)]
}

/// A revocation that had, or may have, an effect.
struct Revocation<'h> {
    number: usize,
    operation: &'h Operation,
    stale_after: Nanos,
    freshness: Nanos,
}

/// A use with a verdict.
struct Use<'h> {
    number: usize,
    operation: &'h Operation,
    is_accepted: bool,
    issued: Nanos,
}

/// Uses and revocations of the credentials of one agent.
struct Credential<'h> {
    revocations: Vec<Revocation<'h>>,
    uses: Vec<Use<'h>>,
}

impl Revocation<'_> {
    fn is_acknowledged(&self) -> bool {
        self.operation.outcome == Outcome::Ok
    }
}

fn issued(operation: &Operation) -> Nanos {
    operation.input["issued"].as_u64().unwrap_or_default()
}

impl<'h> Credential<'h> {
    fn of(operations: &[Numbered<'h>], found: &mut Found) -> Self {
        let mut credential = Self { revocations: Vec::new(), uses: Vec::new() };
        for &(number, operation) in operations {
            match operation.kind {
                Kind::Revoke if operation.outcome != Outcome::Fail => {
                    let time = |name: &str| operation.input[name].as_u64();
                    match (time("stale_after"), time("freshness")) {
                        (Some(stale_after), Some(freshness)) => credential.revocations.push(Revocation {
                            number,
                            operation,
                            stale_after,
                            freshness,
                        }),
                        _ => found.add_unreadable((number, operation)),
                    }
                }
                Kind::Use if operation.outcome == Outcome::Ok => match operation.value.as_bool() {
                    Some(is_accepted) => {
                        let issued = issued(operation);
                        credential.uses.push(Use { number, operation, is_accepted, issued });
                    }
                    None => found.add_unreadable((number, operation)),
                },
                _ => {}
            }
        }
        credential
    }

    fn judge(&self, used: &Use<'_>, found: &mut Found) {
        if !used.is_accepted {
            if !self.revocations.iter().any(|one| one.operation.invoke < used.operation.end) {
                let detail = format!("{} was refused, although nothing was revoked", name(used.operation));
                found.add("only what is revoked is refused", detail, &[used.number]);
            }
            return;
        }
        let began = used.operation.invoke;
        let mut acknowledged = self.revocations.iter().filter(|one| {
            one.is_acknowledged()
                && used.issued < one.operation.invoke
                && one.operation.end.saturating_add(one.stale_after) < began
        });
        if let Some(one) = acknowledged.next() {
            let detail = format!(
                "{} was accepted, longer than the lease of {} s after the acknowledgement: {}",
                name(used.operation),
                seconds(one.stale_after),
                name(one.operation)
            );
            found.add("no accept beyond the lease", detail, &[one.number, used.number]);
        }
        let freshness = self.revocations.iter().map(|one| one.freshness).max().unwrap_or_default();
        let mut refused = self.uses.iter().filter(|other| {
            let wait = if other.operation.node == used.operation.node { 0 } else { freshness };
            !other.is_accepted
                && used.issued <= other.issued
                && other.operation.end.saturating_add(wait) < began
        });
        if let Some(other) = refused.next() {
            let detail = format!(
                "{} was accepted after a refusal, when the revocation had been copied: {}",
                name(used.operation),
                name(other.operation)
            );
            found.add("no accept after a refusal", detail, &[other.number, used.number]);
        }
    }

    /// Each use at the end has a verdict, and the verdict follows from the revocations.
    fn judge_end(&self, operations: &[Numbered<'_>], found: &mut Found) {
        for &(number, used) in operations.iter().filter(|(_, one)| one.kind == Kind::Use && one.is_final) {
            let issued = issued(used);
            let covering =
                self.revocations.iter().find(|one| one.is_acknowledged() && issued < one.operation.invoke);
            let may_cover = self.revocations.iter().any(|one| issued < end(one.operation));
            let is = |verdict: bool| is_ok(used, Kind::Use) && used.value == verdict;
            if let Some(one) = covering
                && !is(false)
            {
                let detail =
                    format!("{} did not refuse what was revoked: {}", name(used), name(one.operation));
                found.add("the revoked is refused at the end", detail, &[one.number, number]);
            }
            if !may_cover && !is(true) {
                let detail = format!("{} did not accept what was never revoked", name(used));
                found.add("the others are accepted at the end", detail, &[number]);
            }
        }
    }
}

/// Every node of both regions has read the same ledger at the end.
fn ledgers(history: &History, found: &mut Found) {
    let all = of(history, Workload::Federation);
    let reads: Vec<_> = all.filter(|(_, one)| one.kind == Kind::Read && one.is_final).collect();
    let regions: BTreeSet<_> =
        reads.iter().filter_map(|(_, read)| super::text(&read.input["region"])).collect();
    if regions.len() < 2 && of(history, Workload::Federation).next().is_some() {
        found.add(
            "ledgers are compared",
            "the ledgers were not read in two regions at the end".to_owned(),
            &[],
        );
    }
    let mut first: Option<Numbered<'_>> = None;
    for &(number, read) in &reads {
        if read.outcome != Outcome::Ok {
            found.add("equal ledgers", format!("{} has no answer", name(read)), &[number]);
            continue;
        }
        if !read.value["hash"].is_string() {
            found.add_unreadable((number, read));
            continue;
        }
        match first {
            Some((other, original)) if original.value != read.value => {
                let detail = format!(
                    "{} is {}, but {} is {}",
                    name(read),
                    brief(&read.value),
                    name(original),
                    brief(&original.value)
                );
                found.add("equal ledgers", detail, &[other, number]);
            }
            Some(_) => {}
            None => first = Some((number, read)),
        }
    }
}

fn brief(value: &Value) -> String {
    format!("{} with {} entries", value["hash"], value["count"])
}
