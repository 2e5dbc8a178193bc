//! Blocked callers: no node admits a caller whose block was acknowledged before the request began, until a lift may have
//! taken effect; after the faults, a caller whose block was lifted is admitted.

use super::{Found, Numbered, Violation, by_key, end, is_ok, name};
use crate::history::{History, Kind, Outcome, Workload};

pub const NAME: &str = "blocked";

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    for (caller, operations) in by_key(history, Workload::Blocked) {
        let blocks: Vec<_> = kind(&operations, Kind::Block).collect();
        let lifts: Vec<_> = kind(&operations, Kind::Lift).collect();
        for &(number, used) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Use)) {
            let Some(is_admitted) = used.value.as_bool() else {
                found.add_unreadable((number, used));
                continue;
            };
            // A lift that ended before the block began lifted an earlier one.
            let in_force = blocks.iter().find(|(_, block)| {
                block.outcome == Outcome::Ok
                    && block.end < used.invoke
                    && !lifts.iter().any(|(_, lift)| lift.invoke < used.end && end(lift) > block.invoke)
            });
            if let (true, Some((block, _))) = (is_admitted, in_force) {
                let detail = format!(
                    "{}: {caller} was admitted after its block was acknowledged: {}",
                    name(used),
                    name(&history.operations[*block])
                );
                found.add("no admission after the acknowledgement", detail, &[*block, number]);
            }
            let may_be_blocked = blocks.iter().any(|(_, block)| {
                block.invoke < used.end
                    && !lifts.iter().any(|(_, lift)| {
                        lift.outcome == Outcome::Ok && lift.invoke > end(block) && lift.end < used.invoke
                    })
            });
            if used.is_final && !is_admitted && !may_be_blocked {
                let detail = format!("{}: {caller} is refused although no block is in force", name(used));
                found.add("a lifted block ends", detail, &[number]);
            }
        }
    }
    found.violations
}

/// Operations of a kind that have or may have an effect.
fn kind<'o, 'h>(
    operations: &'o [Numbered<'h>],
    kind: Kind,
) -> impl Iterator<Item = &'o Numbered<'h>> + use<'o, 'h> {
    operations
        .iter()
        .filter(move |(_, operation)| operation.kind == kind && operation.outcome != Outcome::Fail)
}
