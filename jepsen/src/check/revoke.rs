//! Revoke, then verify: nothing that a revocation covers is accepted by any node once the revocation is acknowledged.
//!
//! Only a use that begins after the acknowledgement counts. A revocation covers a credential that was issued before it
//! began; one that was issued later, or meanwhile, may be accepted.

use super::{Found, Numbered, Violation, by_key, is_ok, name};
use crate::history::{History, Kind, Nanos, Workload};

pub const NAME: &str = "revoke";

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    for (subject, operations) in by_key(history, Workload::Revoke) {
        let covered = Covered::by(&operations);
        for &(number, operation) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Use)) {
            let Some(is_accepted) = operation.value.as_bool() else {
                found.add_unreadable((number, operation));
                continue;
            };
            let issued = operation.input["issued"].as_u64().unwrap_or_default();
            let Some((begun, revocation)) = covered.before(operation.invoke) else { continue };
            if is_accepted && issued < begun {
                let detail = format!(
                    "{} accepted what was issued at {} s, after the revocation of {subject} was acknowledged: {}",
                    name(operation),
                    super::seconds(issued),
                    name(&history.operations[revocation])
                );
                found.add("no accept after the acknowledgement", detail, &[revocation, number]);
            }
        }
    }
    found.violations
}

/// Uses that were accepted, that were refused after an acknowledgement, and that began after one.
pub fn coverage(history: &History) -> [(&'static str, u64); 3] {
    let (mut accepted, mut refused, mut acknowledged) = (0, 0, 0);
    for operations in by_key(history, Workload::Revoke).values() {
        let covered = Covered::by(operations);
        acknowledged += covered.0.len() as u64;
        for (_, operation) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Use)) {
            if operation.value == true {
                accepted += 1;
            } else if covered.before(operation.invoke).is_some() {
                refused += 1;
            }
        }
    }
    [("uses accepted", accepted), ("uses refused once revoked", refused), ("revocations", acknowledged)]
}

/// Acknowledged revocations of one subject: when each ended, with the latest begin of one that had ended by then.
struct Covered(Vec<(Nanos, (Nanos, usize))>);

impl Covered {
    fn by(operations: &[Numbered<'_>]) -> Self {
        let mut revocations: Vec<_> = operations
            .iter()
            .filter(|(_, operation)| is_ok(operation, Kind::Revoke))
            .map(|(number, operation)| (operation.end, (operation.invoke, *number)))
            .collect();
        revocations.sort_unstable();
        let mut latest = (0, usize::MAX);
        for (_, revocation) in &mut revocations {
            latest = latest.max(*revocation);
            *revocation = latest;
        }
        Self(revocations)
    }

    /// The latest begin of a revocation that was acknowledged before `at`, and its number.
    fn before(&self, at: Nanos) -> Option<(Nanos, usize)> {
        let count = self.0.partition_point(|(end, _)| *end < at);
        count.checked_sub(1).map(|last| self.0[last].1)
    }
}
