//! Liveness: once the faults are healed, everything works within the time that the harness grants.

use super::{Found, Violation, name, of};
use crate::history::{History, Outcome, Workload};

pub const NAME: &str = "liveness";

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    let mut count = 0;
    for (number, works) in of(history, Workload::Liveness) {
        count += 1;
        if works.outcome != Outcome::Ok || works.value != true {
            found.add("works once healed", format!("{} did not work in time", name(works)), &[number]);
        }
    }
    if count == 0 && !history.faults.is_empty() {
        found.add("looked for", "after the faults nothing was tried".to_owned(), &[]);
    }
    found.violations
}
