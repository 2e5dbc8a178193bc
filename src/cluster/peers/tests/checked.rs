//! A machine whose commands compare state hashes, add data or do neither, and that can be made to store other rows.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::cluster::{Applied, Corrupt, Stamp, StateHash, Submission, View, Write};

/// Command prefix: compares the state hash at an index.
const CHECK: &[u8] = b"check ";
/// Command prefix: adds data.
pub(super) const ADD: &str = "add ";

#[derive(Clone, Default)]
pub(super) struct Checked {
    /// Whether the node stores other rows than it should.
    pub(super) is_wrong: Arc<AtomicBool>,
}

/// The command that compares a state hash.
pub(super) fn check((index, hash): (u64, StateHash)) -> Bytes {
    let mut bytes = [CHECK, &index.to_be_bytes(), &hash].concat();
    bytes.resize(COMMAND_BYTES, b'.');
    bytes.into()
}

fn expected_hash(command: &[u8]) -> Option<(u64, StateHash)> {
    let (index, rest) = command.strip_prefix(CHECK)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*index), *rest.first_chunk()?))
}

impl Machine for Checked {
    const TABLES: &'static [&'static str] = Rows::TABLES;

    fn can_decode(command: &[u8]) -> bool {
        Rows::can_decode(command)
    }

    fn adds_data(command: &[u8]) -> bool {
        command.starts_with(ADD.as_bytes())
    }

    fn batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        Rows::batch(stamp, submissions)
    }

    fn apply(&self, view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        let mut applied = Rows.apply(view, batch, index)?;
        applied.expected_hash = batch.chunks(COMMAND_BYTES).find_map(expected_hash);
        if self.is_wrong.load(Ordering::Acquire) {
            applied.writes.push(Write::Delete { table: "row", key: b"wrong".to_vec() });
        }
        Ok(applied)
    }

    fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

impl Site {
    /// Nodes of a bootstrapped cluster, each with its own flag.
    pub(super) async fn checked_cluster(&self) -> Vec<(Node<Checked>, Checked)> {
        let mut nodes = Vec::new();
        for id in self.members.keys() {
            let machine = Checked::default();
            nodes.push((self.node_with(*id, &self.members, machine.clone()).await, machine));
        }
        for (node, _) in &nodes {
            node.recovered().await;
        }
        nodes
    }
}

/// Takes the leader out of `nodes`.
pub(super) fn take_leader(nodes: &mut Vec<(Node<Checked>, Checked)>) -> (Node<Checked>, Checked) {
    let leader = nodes[0].0.handle.leader().expect("a leader");
    let at = nodes.iter().position(|(node, _)| node.handle.node_id() == leader).expect("one of them");
    nodes.remove(at)
}

impl Node<Checked> {
    pub(super) async fn put(&self, text: &str) -> u64 {
        self.handle.propose(command(text)).await.expect("applied").index
    }
}
