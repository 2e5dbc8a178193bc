//! Comparison of a leader's log with the committed entries of this node. Raft guarantees that both are equal; a
//! rolled-back disk can break that.

use std::io;

use openraft::entry::RaftEntry;

use super::LogReader;
use crate::cluster::type_config::{LeaderId, LogId};

impl LogReader {
    /// The first entry known to be committed here that differs from the leader's entry at that index. `log_ids` are
    /// those of the leader's log, ascending. A deposed leader may differ, and is ignored.
    pub(crate) fn contradicted(
        &self,
        leader: LeaderId,
        log_ids: impl Iterator<Item = LogId>,
    ) -> io::Result<Option<LogId>> {
        // The committed entry is read before the vote: a later leader's entry is committed only after the vote for that
        // leader.
        let (committed, purged, vote) = {
            let recent = self.recent.lock();
            (recent.never_truncated(), recent.purged, recent.vote)
        };
        let Some(committed) = committed.filter(|_| vote.is_none_or(|vote| vote.leader_id <= leader)) else {
            return Ok(None);
        };
        for theirs in log_ids.take_while(|theirs| theirs.index <= committed.index) {
            let ours = match purged {
                _ if theirs.index == committed.index => Some(committed),
                Some(purged) if theirs.index == purged.index => Some(purged),
                // Leader ids only grow along a log.
                Some(purged) if theirs.index < purged.index => {
                    (theirs.committed_leader_id() > purged.committed_leader_id()).then_some(purged)
                }
                _ => self.read(theirs.index, theirs.index + 1)?.first().map(RaftEntry::log_id),
            };
            if ours.is_some_and(|ours| ours != theirs) {
                return Ok(ours);
            }
        }
        Ok(None)
    }
}
