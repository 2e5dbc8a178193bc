//! A leader's log beside this one, where entries are known to be committed: both must have the same.

use std::io;

use openraft::entry::RaftEntry;

use super::LogReader;
use crate::cluster::type_config::{LeaderId, LogId};

impl LogReader {
    /// The first entry here that is known to be committed, and in whose place a leader with this vote has another.
    /// `log_ids` are of its log, ascending. A leader that is deposed may have others.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn contradicted(
        &self,
        leader: LeaderId,
        log_ids: impl Iterator<Item = LogId>,
    ) -> io::Result<Option<LogId>> {
        // The entry before the vote: an entry that a later leader committed comes after the vote for it.
        let (committed, purged, vote) = {
            let recent = self.recent();
            (recent.never_truncated(), recent.purged, recent.vote)
        };
        let Some(committed) = committed.filter(|_| vote.is_none_or(|vote| vote.leader_id <= leader)) else {
            return Ok(None);
        };
        for theirs in log_ids.take_while(|theirs| theirs.index <= committed.index) {
            let ours = match purged {
                _ if theirs.index == committed.index => Some(committed),
                Some(purged) if theirs.index == purged.index => Some(purged),
                Some(purged) if theirs.index < purged.index => None,
                _ => self.read(theirs.index, theirs.index + 1)?.first().map(RaftEntry::log_id),
            };
            if ours.is_some_and(|ours| ours != theirs) {
                return Ok(ours);
            }
        }
        Ok(None)
    }
}
