//! Offline verification of exported audit: computes every hash anew and follows every link.
//!
//! A line is a block or an entry in its canonical form. Blocks are oldest first, as `/v1/audit/blocks` returns them;
//! entries newest first, as a tool's trail. A file cannot prove its own beginning and end: [`Summary`] reports both, and
//! the blocks whose content was dropped. Their headers are in the chain: a missing or changed one is a fault.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::entry::{AuditBlockDocument, Entry, content_hash, text_of};
use crate::json;

/// Fault of one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not JSON, or with unknown fields.
    #[error("is neither an audit block nor an audit entry")]
    Unreadable,
    /// Not in canonical form.
    #[error("is not written in the form that is hashed (RFC 8785)")]
    NotCanonical,
    /// The content or the hash was changed.
    #[error("entry {0}: its hash is not that of its content")]
    EntryHash(String),
    /// The content or the hash was changed.
    #[error("block {sequence} of node {node_id}: its hash is not that of its header")]
    BlockHash { node_id: u64, sequence: u64 },
    /// Its entries are not those that it had.
    #[error("block {sequence} of node {node_id}: its entries are not those that its header states")]
    BlockContent { node_id: u64, sequence: u64 },
    /// An entry was removed, inserted or moved.
    #[error("entry {id}: is not linked with the adjacent entry of node {node} about {tool_id}")]
    EntryLink {
        /// Its id.
        id: String,
        node: String,
        tool_id: String,
    },
    /// A block was removed, inserted or moved.
    #[error("block {sequence} of node {node_id}: does not follow the previous block of that node")]
    BlockLink { node_id: u64, sequence: u64 },
    /// Blocks and entries in one file.
    #[error("is a block among entries, or an entry among blocks")]
    Mixed,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries, including those in blocks.
    pub entries: u64,
    pub blocks: u64,
    /// Tools with entries.
    pub tools: usize,
    /// Chains whose first entry in the file has a predecessor outside it.
    pub chains_begun_before: usize,
    /// Chains that begin anew, because the block with their last entry lost its content after it was exported.
    pub chains_begun_anew: usize,
    /// The blocks of each node.
    pub nodes: BTreeMap<u64, Blocks>,
    /// `hash` of the newest entry of each node and bucket of callers; of files of entries only.
    pub newest: BTreeMap<(String, u8), String>,
}

/// Blocks of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// First sequence.
    pub first: u64,
    /// Last sequence.
    pub last: u64,
    /// `hash` of the last.
    pub hash: String,
    /// Those without their content.
    pub gap: Option<Gap>,
}

/// Blocks without their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub blocks: u64,
    /// Entries that they had.
    pub entries: u64,
    /// Time of the first entry.
    pub first: String,
    /// Time of the last entry.
    pub last: String,
}

/// Verifies a file line by line.
#[derive(Debug, Default)]
pub struct ChainVerifier {
    summary: Summary,
    /// By node and bucket, and by tool. Of blocks: `hash` of the previous entry. Of entries: `prev_hash` of the next newer
    /// entry.
    links: BTreeMap<(String, u8), BTreeMap<String, String>>,
    /// Nodes and buckets with a block without its content.
    emptied: BTreeSet<(u64, u8)>,
    tools: BTreeSet<String>,
    is_of_entries: bool,
}

impl ChainVerifier {
    /// Verifies the next line, given without its line break. After a faulty line, the next one is checked against the
    /// stated hash of the faulty one: one change is one fault.
    ///
    /// # Errors
    /// Every fault of the line.
    pub fn line(&mut self, line: &[u8]) -> Result<(), Vec<Fault>> {
        let value = json::parse(line).map_err(|_| vec![Fault::Unreadable])?;
        let is_block = value.get("sequence").is_some();
        let is_mixed = if is_block { self.is_of_entries } else { self.summary.blocks > 0 };
        let mut faults = Vec::new();
        if is_block {
            let block: AuditBlockDocument = json::from_value(value).map_err(|_| vec![Fault::Unreadable])?;
            faults.extend(is_mixed.then_some(Fault::Mixed).or_else(|| not_canonical(&block, line)));
            if !is_mixed {
                self.block(block, &mut faults);
            }
        } else {
            let entry: Entry = json::from_value(value).map_err(|_| vec![Fault::Unreadable])?;
            faults.extend(is_mixed.then_some(Fault::Mixed).or_else(|| not_canonical(&entry, line)));
            if !is_mixed {
                self.is_of_entries = true;
                self.entry(entry, &mut faults);
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Result of all lines.
    #[must_use]
    pub fn finish(mut self) -> Summary {
        if self.summary.blocks == 0 {
            // The last line of each chain is its oldest entry.
            let links = self.links.values().flat_map(BTreeMap::values);
            self.summary.chains_begun_before = links.filter(|hash| !hash.is_empty()).count();
        }
        self.summary.tools = self.tools.len();
        self.summary
    }

    fn block(&mut self, mut block: AuditBlockDocument, faults: &mut Vec<Fault>) {
        let entries = block.entries.take();
        let (node_id, sequence, bucket) = (block.node_id, block.sequence, block.bucket);
        if !block.computed_hash().is_ok_and(|computed| text_of(&computed) == block.hash) {
            faults.push(Fault::BlockHash { node_id, sequence });
        }
        if entries.as_ref().is_some_and(|entries| !is_content(&block, entries)) {
            faults.push(Fault::BlockContent { node_id, sequence });
        }
        let follows = match self.summary.nodes.get(&node_id) {
            Some(before) => before.last.checked_add(1) == Some(sequence) && before.hash == block.prev_hash,
            None => (sequence == 1) == block.prev_hash.is_empty(),
        };
        if !follows {
            faults.push(Fault::BlockLink { node_id, sequence });
        }
        let blocks = self.summary.nodes.entry(node_id);
        let blocks =
            blocks.or_insert(Blocks { first: sequence, last: sequence, hash: String::new(), gap: None });
        (blocks.last, blocks.hash) = (sequence, block.hash.clone());
        let is_whole = blocks.first == 1 && !self.emptied.contains(&(node_id, bucket));
        self.summary.blocks += 1;
        let chains = (node_id.to_string(), bucket);
        if let Some(entries) = entries {
            return self.entries_of_block(chains, entries, is_whole, faults);
        }
        add_gap(&mut blocks.gap, block);
        self.emptied.insert((node_id, bucket));
        // Later entries are linked with those that are not here.
        self.links.remove(&chains);
    }

    fn entries_of_block(
        &mut self,
        chains: (String, u8),
        entries: Vec<Entry>,
        is_whole: bool,
        faults: &mut Vec<Fault>,
    ) {
        let links = self.links.entry(chains).or_default();
        for entry in entries {
            faults.extend(wrong_hash(&entry));
            let before = links.insert(entry.tool_id.clone(), entry.hash.clone());
            let begins_before = before.is_none() && !entry.prev_hash.is_empty();
            let begins_anew = before.is_some() && entry.prev_hash.is_empty();
            self.summary.chains_begun_before += usize::from(begins_before);
            self.summary.chains_begun_anew += usize::from(begins_anew);
            self.summary.entries += 1;
            self.tools.insert(entry.tool_id.clone());
            // The header covers the entries of a block: none of them can be missing.
            let is_linked = begins_anew || before.is_none_or(|before| before == entry.prev_hash);
            if !is_linked || (begins_before && is_whole) {
                faults.push(unlinked(entry));
            }
        }
    }

    fn entry(&mut self, entry: Entry, faults: &mut Vec<Fault>) {
        faults.extend(wrong_hash(&entry));
        let chains = (entry.node.clone(), entry.bucket());
        self.summary.newest.entry(chains.clone()).or_insert_with(|| entry.hash.clone());
        let links = self.links.entry(chains).or_default();
        let linked = links.insert(entry.tool_id.clone(), entry.prev_hash.clone());
        self.summary.entries += 1;
        self.tools.insert(entry.tool_id.clone());
        if linked.is_some_and(|linked| linked != entry.hash) {
            faults.push(unlinked(entry));
        }
    }
}

/// One meaning has one form: no byte can change unnoticed.
fn not_canonical(document: &impl Serialize, line: &[u8]) -> Option<Fault> {
    let is_canonical = serde_json::to_vec(document).is_ok_and(|canonical| canonical == line);
    (!is_canonical).then_some(Fault::NotCanonical)
}

/// Compares the hash of an entry with that of its content.
fn wrong_hash(entry: &Entry) -> Option<Fault> {
    let mut resealed = entry.clone();
    let is_right = resealed.seal().is_ok() && resealed.hash == entry.hash;
    (!is_right).then(|| Fault::EntryHash(entry.id.clone()))
}

/// Whether the header of a block states these entries.
fn is_content(block: &AuditBlockDocument, entries: &[Entry]) -> bool {
    let hashes: Vec<String> = entries.iter().map(|entry| entry.hash.clone()).collect();
    let time = |entry: Option<&Entry>| entry.map(|entry| entry.timestamp.clone()).unwrap_or_default();
    content_hash(&hashes).is_ok_and(|hash| text_of(&hash) == block.content)
        && block.count == entries.len() as u64
        && (&block.first, &block.last) == (&time(entries.first()), &time(entries.last()))
        && entries.iter().all(|entry| entry.bucket() == block.bucket)
}

fn add_gap(gap: &mut Option<Gap>, block: AuditBlockDocument) {
    let first = block.first;
    let gap = gap.get_or_insert(Gap { blocks: 0, entries: 0, first, last: String::new() });
    gap.blocks += 1;
    gap.entries = gap.entries.saturating_add(block.count);
    gap.last = block.last;
}

fn unlinked(entry: Entry) -> Fault {
    Fault::EntryLink { id: entry.id, node: entry.node, tool_id: entry.tool_id }
}

#[cfg(test)]
mod tests;
