//! Log matching: two logs with the same entry are equal up to it.

use std::collections::BTreeMap;

use super::Checked;
use crate::cluster::type_config::LogId;

/// Compares the logs of all nodes.
pub fn check(logs: &BTreeMap<u64, BTreeMap<u64, LogId>>) -> Checked {
    for (node, log) in logs {
        for (other, theirs) in logs.range(node + 1..) {
            let shared = log.iter().rev().find(|(index, log_id)| theirs.get(index) == Some(log_id));
            let Some((end, _)) = shared else { continue };
            let differs = log.range(..end).find(|(index, log_id)| theirs.get(index) != Some(log_id));
            if let Some((index, _)) = differs {
                return Err(format!("logs of {node} and {other} are equal at {end} and differ at {index}"));
            }
        }
    }
    Ok(())
}

#[test]
fn logs_that_meet_again_are_found() {
    use openraft::vote::RaftLeaderId as _;
    let id = |term, index| {
        (index, LogId::new(crate::cluster::type_config::LeaderId::new(term, 1).to_committed(), index))
    };
    let logs = |second| {
        let first = BTreeMap::from([id(1, 1), id(1, 2), id(3, 3)]);
        BTreeMap::from([(1, first), (2, BTreeMap::from(second))])
    };
    check(&logs([id(1, 1), id(1, 2), id(3, 3)])).expect("equal");
    check(&logs([id(1, 1), id(2, 2), id(2, 3)])).expect("they part");
    check(&logs([id(1, 1), id(2, 2), id(3, 3)])).expect_err("they meet again");
}
