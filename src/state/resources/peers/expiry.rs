//! Expiry of entries of peers' ledgers: 65 minutes after their import, by elapsed time. Forgotten entries raise the floors.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entries::{forget, forget_end};
use super::rows::{EntryRow, Peer, read_entry_key};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::limits;
use crate::state::tables::{FEDERATED, META, PEER_LEDGER_END, Tables};

/// Row of the meta table: key of [`PEER_LEDGER_END`] below which no row is left.
const DELETED_UP_TO: &[u8] = b"federated_entries_forgotten_up_to";

/// Forgets a few entries after their retention, but more than a log entry can add that imports this many.
pub fn delete_expired(tables: &mut Tables<'_>, elapsed: Timestamp, imported: usize) -> Result<(), Corrupt> {
    if tables.number(FEDERATED)? == 0 {
        return Ok(());
    }
    let most = limits::FEDERATED_ENTRIES_EXPIRED_PER_ENTRY.max(imported.saturating_mul(2));
    let from = tables.row(META, DELETED_UP_TO)?.unwrap_or_default();
    let ended = tables.due(PEER_LEDGER_END, &from, elapsed.minus(Duration::from_millis(1)), most)?;
    let Some(last) = ended.last() else { return Ok(()) };
    tables.put(META, DELETED_UP_TO, last.clone());
    let mut peers: BTreeMap<Digest128, Peer> = BTreeMap::new();
    for end in &ended {
        let (key, generation, id) = read_entry_key(&end[8..])?;
        let known = match peers.remove(&key) {
            Some(peer) => Some(peer),
            None => Peer::load(tables, key)?,
        };
        let mut peer = known.ok_or_else(|| Corrupt::row("an entry of a ledger is of no peer"))?;
        let row = if generation == peer.row.generation { peer.entry(tables, &id)? } else { None };
        match row {
            Some(row) => expire(tables, &mut peer, &id, row)?,
            None => forget_end(tables, &mut peer, end)?,
        }
        peers.insert(key, peer);
    }
    for peer in peers.into_values() {
        peer.store(tables);
    }
    Ok(())
}

fn expire(tables: &mut Tables<'_>, peer: &mut Peer, id: &Digest128, row: EntryRow) -> Result<(), Corrupt> {
    forget(tables, peer, id, row)?;
    peer.raise_floors(row.position, row.m);
    Ok(())
}
