//! Joining an existing cluster, before the first start of the new node: its disk has an identity, to which the join
//! token is bound; afterwards the disk gets the id of the cluster, and the mark that it joined.

use rocksdb::IteratorMode;

use super::Corrupt;
use super::log::{self, CLUSTER_ID, JOINED, LOG, VOTE};
use super::restore::StoppedNode;
use super::type_config::ClusterId;

impl StoppedNode {
    /// Identity of the disk.
    pub(crate) fn disk_id(&self) -> [u8; 16] {
        self.identity.disk_id
    }

    /// Checks that the disk is empty, or joined this cluster before.
    ///
    /// # Errors
    /// [`Corrupt`] if it has the log of a cluster.
    pub(crate) fn check_joins(&self, cluster_id: ClusterId) -> Result<(), Corrupt> {
        let known = log::read_meta(&self.log, CLUSTER_ID)?;
        let is_blank =
            known.is_none() && log::read_meta(&self.log, VOTE)?.is_none() && !self.has_entries()?;
        let has_joined = log::read_meta(&self.log, JOINED)?.is_some();
        if is_blank || (has_joined && known.as_deref() == Some(&cluster_id[..])) {
            return Ok(());
        }
        Err(Corrupt::new(
            self.log.path(),
            "the directory belongs to a cluster already; a node joins with an empty one",
        ))
    }

    fn has_entries(&self) -> Result<bool, Corrupt> {
        let failed = |error: &dyn std::fmt::Display| Corrupt::new(self.log.path(), error);
        let family = self.log.cf_handle(LOG).ok_or_else(|| failed(&"column family is missing"))?;
        let first = self.log.iterator_cf(family, IteratorMode::Start).next();
        first.transpose().map(|entry| entry.is_some()).map_err(|error| failed(&error))
    }

    /// Records durably that the disk joined the cluster, which has accepted it.
    ///
    /// # Errors
    /// [`Corrupt`] if it has the log of a cluster, or cannot be written.
    pub(crate) fn join(self, cluster_id: ClusterId) -> Result<(), Corrupt> {
        self.check_joins(cluster_id)?;
        let failed = |error: std::io::Error| Corrupt::new(self.log.path(), error);
        // The mark comes first: without it, a node with a cluster id would wait for the bootstrap.
        log::write_meta(&self.log, JOINED, b"1").map_err(failed)?;
        log::write_meta(&self.log, CLUSTER_ID, &cluster_id).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = [3; 16];

    #[test]
    fn joining_is_repeatable_and_keeps_the_disk_identity() {
        let data = tempfile::tempdir().expect("directory");
        for drawn in [7, 8] {
            let joining = StoppedNode::open(data.path(), 4, [drawn; 16]).expect("open");
            assert_eq!(joining.disk_id(), [7; 16]);
            joining.join(CLUSTER).expect("joins");
        }
        let joining = StoppedNode::open(data.path(), 4, [9; 16]).expect("open");
        assert!(joining.check_joins([4; 16]).is_err(), "another cluster");
    }

    #[test]
    fn interrupted_joining_is_repeated() {
        let data = tempfile::tempdir().expect("directory");
        let joining = StoppedNode::open(data.path(), 4, [7; 16]).expect("open");
        log::write_meta(&joining.log, JOINED, b"1").expect("mark");
        joining.join(CLUSTER).expect("joins");
    }

    #[test]
    fn disk_with_a_log_or_a_vote_does_not_join() {
        for (family, key) in [(LOG, &log::log_key(0)[..]), (log::META, VOTE)] {
            let data = tempfile::tempdir().expect("directory");
            let joining = StoppedNode::open(data.path(), 4, [7; 16]).expect("open");
            let sealed = crate::cluster::record::seal(key, b"row");
            joining.log.put_cf(joining.log.cf_handle(family).expect("family"), key, sealed).expect("row");
            let refusal = joining.check_joins(CLUSTER).expect_err("not empty").to_string();
            assert!(refusal.contains("belongs to a cluster already"), "{refusal}");
        }
    }

    #[test]
    fn directory_of_another_node_does_not_join() {
        let data = tempfile::tempdir().expect("directory");
        drop(StoppedNode::open(data.path(), 4, [7; 16]).expect("open"));
        let refusal = StoppedNode::open(data.path(), 5, [8; 16]).err().expect("another node").to_string();
        assert!(refusal.contains("belongs to node 4"), "{refusal}");
    }
}
