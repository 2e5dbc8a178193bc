//! The copy of a peer fabric's ledger on three nodes.

use openraft::async_runtime::watch::WatchReceiver as _;

use super::snapshot_transfer::purge_log;
use super::*;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::state::command::{ImportLedger, PeerEntry};
use crate::state::{PeerCopy, Replicated, State, peer_key};

const PEER: &str = "https://a.example";
/// Entries of an import. Some are new, the others move an earlier entry.
const ENTRIES: u64 = 8;
const FACTS: u64 = 50;
/// A fact that is imported once.
const ONCE: [u8; 16] = [0xee; 16];

/// An import that continues a copy which was read up to here.
fn import(copy: Option<&PeerCopy>) -> ImportLedger {
    let from = copy.map_or(0, |copy| copy.position);
    let entry = |n: u64| PeerEntry {
        n,
        epoch: 10,
        state: 1,
        id: Bytes::from([(n % FACTS).to_be_bytes(); 2].concat()),
        by: Bytes::new(),
    };
    ImportLedger {
        issuer: PEER.to_owned(),
        generation: copy.map_or(0, |copy| copy.generation),
        incarnation: Bytes::from_static(&[1; 16]),
        from,
        through: from + ENTRIES,
        epoch: 10,
        is_whole: true,
        is_reset: copy.is_none(),
        entries: (from + 1..=from + ENTRIES).map(entry).collect(),
        entries_max: 1000,
        ..ImportLedger::default()
    }
}

/// Position and root of a copy, read at the same instant.
fn moment(state: &State) -> Option<(u64, [u8; 32])> {
    let position = || Ok::<_, Corrupt>(state.peer_copy(PEER).expect("reads")?.position).ok();
    let before = position()?;
    let (root, _) = state.peer_root(PEER, 0).expect("reads")?;
    (position() == Some(before)).then_some((before, root))
}

/// A follower that lacks purged entries installs a snapshot while imports go on: at each instant its copy has
/// the root that the leader had at that position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_has_copy_and_position_of_one_moment() {
    let site = Site::new(3);
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(site.node_with(id, &site.members, Replicated::default()).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    let leads = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() != leads).expect("a follower");
    let away = nodes.remove(at);
    let importer = State::new(leader(&nodes).handle.clone());
    importer.bootstrap([1; 16], [2; 16], 1).await.expect("bootstraps");
    let mut copy = importer.import_ledger(import(None)).await.expect("imports").copy;
    let mut roots = BTreeMap::from([moment(&importer).expect("a copy")]);
    let id = away.handle.node_id();
    timeout(LONG, away.handle.until_applied(importer.position().expect("a position").index))
        .await
        .expect("applied");
    let known = away.handle.applied();
    away.stop().await;
    let mut once = import(Some(&copy));
    once.entries[0].id = Bytes::from_static(&ONCE);
    let once_at = once.entries[0].n;
    copy = importer.import_ledger(once).await.expect("imports").copy;
    roots.extend(moment(&importer));
    for _ in 0..30 {
        copy = importer.import_ledger(import(Some(&copy))).await.expect("imports").copy;
        roots.extend(moment(&importer));
    }
    let last = importer.position().expect("a position").index;
    assert!(known < last);
    for node in &nodes {
        purge_log(node, last).await;
    }

    let back = site.node_with(id, &site.members, Replicated::default()).await;
    let reader = State::new(back.handle.clone());
    let (mut seen, first) = (BTreeMap::new(), copy.position);
    let goes_on = async {
        // Until the node has followed for a while after its snapshot.
        while seen.keys().next_back().is_none_or(|position| *position < first + 20 * ENTRIES) {
            copy = importer.import_ledger(import(Some(&copy))).await.expect("imports").copy;
            roots.extend(moment(&importer));
            seen.extend(moment(&reader));
        }
    };
    timeout(LONG, goes_on).await.expect("it follows");
    let applied = importer.position().expect("a position").index;
    timeout(LONG, back.handle.until_applied(applied)).await.expect("applied");
    seen.extend(moment(&reader));
    for (position, root) in &seen {
        assert_eq!(roots.get(position), Some(root), "{position}");
    }
    assert_eq!(seen.keys().next_back(), Some(&copy.position));
    let in_memory = back.handle.machine().peers().get(&peer_key(PEER)).expect("a copy");
    assert_eq!(Some(&in_memory.row.position), seen.keys().next_back(), "as on the disk");
    assert!(in_memory.covers_n(&[Digest128::from_bytes(ONCE)], once_at - 1), "it came with the snapshot");
    let copy = reader.peer_copy(PEER).expect("reads").expect("a copy");
    assert_eq!((copy.fault, copy.entries), (None, FACTS + 1), "its rows are those of its sums");
    assert!(back.handle.raft.metrics().borrow_watched().purged.is_some_and(|purged| purged.index >= last));
    drop((importer, reader));
    nodes.push(back);
    stop_all(nodes).await;
}
