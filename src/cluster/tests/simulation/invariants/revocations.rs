//! The promise of revocations: no request that begins after the acknowledgement is accepted, on any node.

use std::collections::BTreeMap;

use super::Checked;

#[derive(Default)]
pub struct Revocations {
    /// Number of the event of the first acknowledgement, by fact.
    acknowledged: BTreeMap<u64, u64>,
}

impl Revocations {
    pub fn acknowledged(&mut self, fact: u64, event: u64) {
        self.acknowledged.entry(fact).or_insert(event);
    }

    pub fn accepted(&self, node: u64, fact: u64, begun: u64) -> Checked {
        match self.acknowledged.get(&fact) {
            Some(event) if *event < begun => {
                Err(format!("node {node} accepts fact {fact} after its revocation was acknowledged"))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn accept_after_the_acknowledgement_is_found() {
    let mut revocations = Revocations::default();
    revocations.accepted(1, 7, 3).expect("not revoked");
    revocations.acknowledged(7, 5);
    revocations.accepted(1, 7, 4).expect("it began before");
    revocations.accepted(1, 8, 6).expect("another fact");
    revocations.accepted(1, 7, 6).expect_err("it began after");
}
