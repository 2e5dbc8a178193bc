//! State machine safety: all nodes apply the same entries in the same order, and have the same state after each. A node
//! that lost its state in a crash reaches it again.

use std::collections::BTreeMap;

use super::Checked;
use crate::cluster::type_config::LogId;

#[derive(Default)]
pub struct StateMachineSafety {
    /// The entry and the state hash, by index, with the node that applied it first.
    applied: BTreeMap<u64, (LogId, u64, u64)>,
}

impl StateMachineSafety {
    pub fn applied(&mut self, node: u64, log_id: LogId, hash: u64) -> Checked {
        let first = (log_id, hash, node);
        let (known, known_hash, other) = *self.applied.entry(log_id.index).or_insert(first);
        if known != log_id {
            return Err(format!("node {node} applies {log_id}, and node {other} applied {known}"));
        }
        if known_hash != hash {
            return Err(format!("nodes {node} and {other} have different states after {log_id}"));
        }
        Ok(())
    }
}

#[test]
fn different_entry_or_state_is_found() {
    use openraft::vote::RaftLeaderId as _;
    let id =
        |term, index| LogId::new(crate::cluster::type_config::LeaderId::new(term, 1).to_committed(), index);
    let mut machine = StateMachineSafety::default();
    machine.applied(1, id(1, 1), 7).expect("the first");
    machine.applied(2, id(1, 1), 7).expect("the same");
    machine.applied(3, id(1, 1), 8).expect_err("another state");
    machine.applied(3, id(2, 1), 7).expect_err("another entry");
}
