//! The restore of a backup, or of a lost cluster from one of its nodes: a new incarnation with an epoch floor, in a new
//! cluster that one node creates.
//!
//! The restored state lacks what was revoked after it was saved. Everything that was issued before is
//! therefore refused, whether it was revoked or not, and no earlier key signs or verifies.

use bytes::Bytes;
use prost::Message as _;

use super::feed::{self, FeedKind, NewFeedEvent};
use super::revocation_index::EpochFloor;
use super::{encryption_keys, nodes, signing_keys};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::state::command::{self, Command, FloorRow, Replied, Reply, Restore};
use crate::state::machine::idempotency;
use crate::state::tables::{
    BOOTSTRAPPED_AT, CLUSTER_ID, EntryTime, FLOOR, INCARNATION, META, Tables, decode,
};

/// Reply to the command.
const DONE: Reply = Reply::Done { changed: true };

/// Applies the command after the membership entry of the new cluster.
pub fn begin_incarnation(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: &Restore,
) -> Result<Reply, Corrupt> {
    let [cluster_id, incarnation] = [&command.cluster_id, &command.incarnation]
        .map(|id| id.as_ref().try_into().map(Incarnation::from_bytes).ok());
    let ids = cluster_id.zip(incarnation);
    let (cluster_id, _) = ids.ok_or_else(|| Corrupt::row("an id of a restore is not 16 bytes"))?;
    if tables.row(META, INCARNATION)?.as_deref().is_none_or(|known| known == command.incarnation) {
        return Err(Corrupt::row("a restore needs another incarnation than that of the state"));
    }
    tables.put(META, CLUSTER_ID, command.cluster_id.to_vec());
    tables.put(META, INCARNATION, command.incarnation.to_vec());
    // The first keys of its nodes sign at once, as after a bootstrap.
    tables.put(META, BOOTSTRAPPED_AT, time.elapsed.millis().to_be_bytes().to_vec());
    let before = tables.message::<FloorRow>(META, FLOOR)?.map_or(i64::MIN, |floor| floor.at_millis);
    let floor = FloorRow { index: tables.entry_index(), at_millis: time.latest.millis().max(before) };
    tables.put(META, FLOOR, floor.encode_to_vec());
    nodes::retain_only(tables, command.node_id)?;
    signing_keys::delete_all(tables)?;
    encryption_keys::delete_all(tables);
    // Their outcomes name agents, keys and nodes that are gone.
    idempotency::KEYS.delete_all(tables);
    let subject = &cluster_id.to_string();
    feed::append(
        tables,
        time.now,
        NewFeedEvent { kind: FeedKind::Cluster, subject, target: "", detail: "restored" },
    )?;
    Ok(DONE)
}

/// Decodes the row of the floor.
pub fn floor_from_row(row: &[u8]) -> Result<EpochFloor, Corrupt> {
    let row = decode::<FloorRow>(META, row)?;
    EpochFloor::new(row.index, Timestamp::from_millis(row.at_millis))
}

/// The encoded command, and the encoded reply without which it was not applied.
#[must_use]
pub fn restore_command(cluster_id: [u8; 16], incarnation: [u8; 16], node_id: u64) -> (Bytes, Bytes) {
    let [cluster_id, incarnation] = [cluster_id, incarnation].map(|id| Bytes::copy_from_slice(&id));
    let command = Command::Restore(Restore { cluster_id, incarnation, node_id });
    (command::encode(command), command::encode_reply(Replied::first(DONE)))
}

#[cfg(test)]
mod tests;
