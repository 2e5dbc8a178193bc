//! Updates of the records of the members' disks: on the leader, from what members acknowledge; on every node, storing
//! changes that no write of the log included.

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::vote::RaftLeaderId as _;
use tokio::sync::mpsc;

use super::log::writer::Job;
use super::{Handle, Machine};
use crate::limits;

impl<M: Machine> Handle<M> {
    /// Records, on the leader, the committed entries that each member acknowledged, and has the log writer store
    /// changes that no group included. Runs for ever.
    pub(super) async fn update_disk_records(self, jobs: mpsc::WeakSender<Job>) {
        let disk_records = &self.channels.local.disk_records;
        let mut due = self.clock.boot();
        loop {
            self.record_acknowledged();
            if disk_records.is_unwritten() && self.clock.boot() >= due {
                due = self.clock.boot() + limits::DISK_RECORD_UNWRITTEN_MAX;
                let Some(jobs) = jobs.upgrade() else { return };
                if jobs.send(Job::SaveDiskRecords).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(limits::DISK_RECORD_POLL_INTERVAL).await;
        }
    }

    fn record_acknowledged(&self) {
        let disk_records = &self.channels.local.disk_records;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = self.known_members();
        // The membership is empty until openraft has read the log.
        if !members.is_empty() {
            disk_records.retain(|disk| members.has_disk(disk));
        }
        let (Some(replication), Some(committed)) = (&metrics.replication, metrics.cluster_committed) else {
            return;
        };
        for (id, matched) in replication {
            let (Some(matched), Some(member)) = (matched, members.get(*id)) else { continue };
            disk_records.holds((*id, member.disk_id), (*matched).min(committed));
        }
        if let Some(own) = members.get(self.node_id)
            && *metrics.vote.leader_id.node_id() == self.node_id
        {
            disk_records.voted((self.node_id, own.disk_id), metrics.vote.leader_id);
        }
    }

    /// Members that stopped because a committed entry of their log differs from this leader's: acknowledged writes are
    /// lost on one side until an operator decides.
    pub(crate) fn contradictions(&self) -> Vec<u64> {
        if self.leader() != Some(self.node_id) {
            return Vec::new();
        }
        self.channels.local.disk_records.contradictions().into_iter().map(|(node_id, _)| node_id).collect()
    }
}
