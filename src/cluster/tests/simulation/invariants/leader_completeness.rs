//! Leader completeness: the log of a leader has every entry that was committed before.

use std::collections::BTreeMap;

use super::Checked;
use crate::cluster::type_config::LogId;

#[derive(Default)]
pub struct LeaderCompleteness(BTreeMap<u64, LogId>);

impl LeaderCompleteness {
    /// An entry is committed: a node has applied it.
    pub fn committed(&mut self, log_id: LogId) {
        self.0.insert(log_id.index, log_id);
    }

    pub fn all(&self) -> BTreeMap<u64, LogId> {
        self.0.clone()
    }

    /// A new leader has this log.
    pub fn leads(&self, term: u64, log: &BTreeMap<u64, LogId>) -> Checked {
        match self.0.values().find(|committed| log.get(&committed.index) != Some(committed)) {
            Some(missing) => Err(format!("the leader of term {term} lacks the committed entry {missing}")),
            None => Ok(()),
        }
    }
}

#[test]
fn leader_without_a_committed_entry_is_found() {
    use openraft::vote::RaftLeaderId as _;
    let id =
        |term, index| LogId::new(crate::cluster::type_config::LeaderId::new(term, 1).to_committed(), index);
    let log = |ids: &[LogId]| ids.iter().map(|log_id| (log_id.index, *log_id)).collect::<BTreeMap<_, _>>();
    let mut leaders = LeaderCompleteness::default();
    leaders.committed(id(1, 1));
    leaders.committed(id(1, 2));
    leaders.leads(2, &log(&[id(1, 1), id(1, 2), id(1, 3)])).expect("complete");
    leaders.leads(2, &log(&[id(1, 1)])).expect_err("too short");
    leaders.leads(3, &log(&[id(1, 1), id(2, 2)])).expect_err("another entry");
}
