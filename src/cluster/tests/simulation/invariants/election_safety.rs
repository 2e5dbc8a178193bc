//! Election safety: the entries that are committed come from one leader after the other. In openraft a term may have
//! several leaders, of which one with a greater node id succeeds the others, so a leader is a term and a node.

use std::collections::BTreeMap;

use super::Checked;
use crate::cluster::type_config::LogId;

#[derive(Default)]
pub struct ElectionSafety(BTreeMap<u64, LogId>);

impl ElectionSafety {
    /// An entry is committed: no entry before it is of a later leader, and none after it of an earlier one.
    pub fn committed(&mut self, log_id: LogId) -> Checked {
        self.0.insert(log_id.index, log_id);
        let before = self.0.range(..log_id.index).next_back();
        let after = self.0.range(log_id.index + 1..).next();
        let is_ordered = before.is_none_or(|(_, before)| *before < log_id)
            && after.is_none_or(|(_, after)| log_id < *after);
        if is_ordered {
            return Ok(());
        }
        Err(format!("{log_id} is committed between {before:?} and {after:?}"))
    }
}

#[test]
fn entry_of_a_superseded_leader_is_found() {
    use openraft::vote::RaftLeaderId as _;
    let id = |term, node, index| {
        LogId::new(crate::cluster::type_config::LeaderId::new(term, node).to_committed(), index)
    };
    let mut elections = ElectionSafety::default();
    elections.committed(id(1, 1, 1)).expect("the first");
    elections.committed(id(1, 1, 1)).expect("on another node");
    elections.committed(id(1, 2, 3)).expect("its successor in the term");
    elections.committed(id(1, 1, 2)).expect("the first, applied late");
    elections.committed(id(1, 1, 4)).expect_err("the superseded leader");
}
