//! The command that imports entries of a peer's ledger.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;

use super::PEER_INDEX_MAX;
use super::entries::{Entry, Plan, Target};
use super::rows::Peer;
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::limits;
use crate::state::command::{ImportLedger, PeerEntry, PeerFault, PeerRow, Refusal, Reply};
use crate::state::machine::idempotency::digest;
use crate::state::resources::ledger::{self, EntryPosition, LedgerState, sums_of};
use crate::state::tables::{EntryTime, PEER, PEER_KEYS, Tables};

/// A well-formed command.
struct Import<'c> {
    command: &'c ImportLedger,
    entries: Vec<Entry>,
    incarnation: Incarnation,
}

impl<'c> Import<'c> {
    /// `None` if it contradicts itself or its format.
    fn read(command: &'c ImportLedger) -> Option<Self> {
        let incarnation = Incarnation::from_bytes(command.incarnation.as_ref().try_into().ok()?);
        let entries = command.entries.iter().map(read_entry).collect::<Option<Vec<_>>>()?;
        let import = Self { command, entries, incarnation };
        (import.has_valid_head() && import.has_valid_entries()).then_some(import)
    }

    fn has_valid_head(&self) -> bool {
        let ImportLedger { issuer, from, through, floor, root, is_whole, is_reset, keys, .. } = self.command;
        let is_key_set_valid = keys.as_ref().is_none_or(|keys| {
            *is_whole
                && (1..=limits::OPAQUE_BYTES_MAX).contains(&keys.etag.len())
                && keys.key_set.len() <= limits::FEDERATED_KEY_SET_BYTES_MAX
        });
        (1..=limits::URI_BYTES_MAX).contains(&issuer.len())
            && [from, through, floor].into_iter().all(|index| *index <= PEER_INDEX_MAX)
            && (root.is_empty() || (*is_whole && root.len() == 32))
            && (!is_reset || *from == 0)
            && is_key_set_valid
    }

    fn has_valid_entries(&self) -> bool {
        let ImportLedger { from, through, epoch, is_whole, .. } = self.command;
        // A part may end within the entries of the next log index.
        let last = through.saturating_add(u64::from(!is_whole)).min(PEER_INDEX_MAX);
        let is_in_order = |pair: &[Entry]| {
            let (one, next) = (pair[0].position, pair[1].position);
            one.index <= next.index && one.epoch <= next.epoch
        };
        let is_inside = |entry: &Entry| {
            entry.position.index > *from && entry.position.index <= last && entry.position.epoch <= *epoch
        };
        let keys: BTreeSet<_> = self.entries.iter().map(|entry| (entry.id, entry.by)).collect();
        self.entries.len() <= limits::FEDERATED_ENTRIES_PER_IMPORT_MAX
            && self.entries.iter().all(is_inside)
            && self.entries.windows(2).all(is_in_order)
            && keys.len() == self.entries.len()
    }

    fn is_of(&self, incarnation: &Bytes) -> bool {
        incarnation.as_ref() == self.incarnation.as_bytes()
    }
}

fn read_entry(entry: &PeerEntry) -> Option<Entry> {
    let state = LedgerState::of_byte(u8::try_from(entry.state).ok()?)?;
    let by = if entry.by.is_empty() { None } else { Some(digest(&entry.by).ok()?) };
    let is_of_a_block = matches!(state, LedgerState::Blocked | LedgerState::Lifted);
    let position = EntryPosition { index: entry.n, epoch: entry.epoch, state };
    let entry = Entry { position, id: digest(&entry.id).ok()?, by };
    (is_of_a_block == by.is_some()).then_some(entry)
}

/// Effect of a command on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Refused(Refusal),
    /// A response that ends before the position.
    None,
    Held(PeerFault),
    /// Begins the copy of a new incarnation.
    Adopts,
    /// Continues the copy, or begins to read it again.
    Continues,
}

fn effect_of(peer: &PeerRow, import: &Import<'_>) -> Effect {
    let ImportLedger { from, through, floor, is_whole, is_reset, approve_incarnation, .. } = *import.command;
    if !import.is_of(&peer.incarnation) {
        // A copy was forgotten, with its incarnation unless that was rolled back.
        let replaces = !(peer.incarnation.is_empty() && peer.forgotten.is_empty() && peer.retired.is_empty());
        let needs_approval = approve_incarnation && replaces && !import.is_of(&peer.forgotten);
        return if peer.retired.iter().any(|retired| import.is_of(retired)) {
            Effect::Held(PeerFault::PeerIncarnationReused)
        } else if needs_approval && !import.is_of(&peer.approved) {
            Effect::Held(PeerFault::PeerAwaitsApproval)
        } else if is_reset {
            Effect::Adopts
        } else {
            Effect::Refused(Refusal::PeerEntriesMissing)
        };
    }
    if through < from {
        return Effect::Held(PeerFault::PeerRolledBack);
    }
    if from > peer.position {
        return Effect::Refused(Refusal::PeerEntriesMissing);
    }
    // The import of a deposed leader may be applied late. Reading from the beginning may pass below the position.
    let is_old = if is_whole { through < peer.known_to } else { !is_reset && through < peer.position };
    if is_old {
        return Effect::None;
    }
    let misses_entries = floor > peer.known_to && peer.is_complete && !is_reset;
    if misses_entries { Effect::Refused(Refusal::PeerEntriesMissing) } else { Effect::Continues }
}

/// Applies the command.
pub fn import(tables: &mut Tables<'_>, time: EntryTime, command: &ImportLedger) -> Result<Reply, Corrupt> {
    let Some(import) = Import::read(command) else {
        return Ok(Reply::Refused(Refusal::PeerImportMalformed));
    };
    let Some(mut peer) = load_or_new(tables, &command.issuer)? else {
        return Ok(Reply::Refused(Refusal::TooManyPeers));
    };
    if command.generation != peer.row.generation {
        return Ok(Reply::Refused(Refusal::PeerGenerationChanged));
    }
    match effect_of(&peer.row, &import) {
        Effect::Refused(refusal) => return Ok(Reply::Refused(refusal)),
        Effect::None => return Ok(Reply::Done { changed: false }),
        Effect::Held(fault) => return hold(tables, time, peer, fault, command),
        Effect::Adopts | Effect::Continues => {}
    }
    let is_new = !import.is_of(&peer.row.incarnation);
    let target = Target { peer: &peer, is_new, is_reset: command.is_reset, epoch: command.epoch };
    let plan = Plan::of(tables, target, &import.entries)?;
    if !plan.fits(tables, target, command.entries_max)? {
        return Ok(Reply::Refused(Refusal::PeerOverQuota));
    }
    if is_new {
        adopt(tables, &mut peer, &command.incarnation)?;
        let detail = format!("peer has incarnation {}", import.incarnation);
        super::note(tables, time.now, &command.issuer, "", &detail)?;
    }
    if command.is_reset {
        begin_to_read(tables, &mut peer)?;
    }
    if command.floor > peer.has_to() {
        // The peer has forgotten entries that were never read, all of them of earlier epochs.
        let row = &mut peer.row;
        (row.floor_n, row.void_m) = (row.floor_n.max(command.floor), tables.entry_index());
        row.complete_from = row.complete_from.max(command.floor_epoch);
    }
    plan.apply(tables, &mut peer, time.elapsed)?;
    advance(tables, time, &mut peer, &import)?;
    peer.store(tables);
    Ok(Reply::Done { changed: true })
}

/// A peer that has a row, or a new one; `None` if there are too many.
pub fn load_or_new(tables: &Tables<'_>, issuer: &str) -> Result<Option<Peer>, Corrupt> {
    let new = Peer::new(issuer);
    if let Some(known) = Peer::load(tables, new.key)? {
        return Ok(Some(known));
    }
    let rows = tables.keys_under(PEER, &[], &[], limits::FEDERATED_PEERS_MAX)?.len();
    Ok((rows < limits::FEDERATED_PEERS_MAX).then_some(new))
}

fn hold(
    tables: &mut Tables<'_>,
    time: EntryTime,
    mut peer: Peer,
    fault: PeerFault,
    command: &ImportLedger,
) -> Result<Reply, Corrupt> {
    let mut changed = note_hold(tables, time, &mut peer, fault)?;
    if fault == PeerFault::PeerAwaitsApproval && peer.row.awaited != command.incarnation {
        (peer.row.awaited, changed) = (command.incarnation.clone(), true);
    }
    if changed {
        peer.store(tables);
    }
    Ok(Reply::Done { changed })
}

fn note_hold(
    tables: &mut Tables<'_>,
    time: EntryTime,
    peer: &mut Peer,
    fault: PeerFault,
) -> Result<bool, Corrupt> {
    let changed = peer.hold(fault);
    if let Some(fault) = super::PeerFault::from_row(fault).filter(|_| changed) {
        let detail = format!("peer is held: {}", fault.into_str());
        super::note(tables, time.now, &peer.row.issuer, "", &detail)?;
    }
    Ok(changed)
}

/// Begins the copy of a new incarnation of the peer, or of its first one. The old one is retired. If an
/// incarnation comes again after its copy was deleted, every entry that the deleted copy had counts as
/// forgotten.
fn adopt(tables: &mut Tables<'_>, peer: &mut Peer, incarnation: &Bytes) -> Result<(), Corrupt> {
    let replaced = peer.begin_generation(tables)?;
    peer.retire(replaced);
    let row = &mut peer.row;
    let (forgotten, forgotten_to) =
        (std::mem::take(&mut row.forgotten), std::mem::take(&mut row.forgotten_to));
    if forgotten == *incarnation {
        row.floor_n = forgotten_to;
    } else {
        peer.retire(forgotten);
    }
    peer.row.incarnation.clone_from(incarnation);
    Ok(())
}

/// The peer's ledger is read from its beginning: the blocks in force replace those of the copy.
fn begin_to_read(tables: &mut Tables<'_>, peer: &mut Peer) -> Result<(), Corrupt> {
    peer.delete_blocks(tables)?;
    (peer.row.blocks_of, peer.row.position, peer.row.is_complete) = (tables.entry_index(), 0, false);
    Ok(())
}

/// Position, completeness and keys after the entries.
fn advance(
    tables: &mut Tables<'_>,
    time: EntryTime,
    peer: &mut Peer,
    import: &Import<'_>,
) -> Result<(), Corrupt> {
    let (command, row) = (import.command, &mut peer.row);
    (row.position, row.known_to) = (command.through, row.known_to.max(command.through));
    (row.epoch, row.is_complete) = (row.epoch.max(command.epoch), row.is_complete || command.is_whole);
    if command.is_whole {
        row.keys_through = row.keys_through.max(command.through);
        row.is_repaired = false;
    }
    if let Some(keys) = &command.keys {
        row.keys_etag.clone_from(&keys.etag);
        tables.put(PEER_KEYS, peer.key.as_bytes(), keys.encode_to_vec());
    }
    if differs(tables, peer, import)? {
        note_hold(tables, time, peer, PeerFault::PeerRootDiffers)?;
    }
    Ok(())
}

/// Whether the peer states another root than that of the copy, for epochs of which no entry is forgotten here.
fn differs(tables: &mut Tables<'_>, peer: &Peer, import: &Import<'_>) -> Result<bool, Corrupt> {
    let ImportLedger { root, floor_epoch, .. } = import.command;
    if root.is_empty() || *floor_epoch < peer.row.complete_from {
        return Ok(false);
    }
    let origin = peer.origin();
    ledger::put_row(tables, &origin, peer.ledger.clone());
    let sums = sums_of(tables, &origin)?;
    Ok(sums.root(&import.incarnation, *floor_epoch)[..] != root[..])
}
