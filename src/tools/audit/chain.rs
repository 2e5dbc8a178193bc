//! Offline verification of exported audit: computes every hash anew and follows every link.
//!
//! A line is a block or an entry in its canonical form. Blocks are oldest first, as `/v1/audit/blocks` returns them;
//! entries newest first, as a tool's trail. A file cannot prove its own beginning and end: [`Summary`] reports both.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::entry::{AuditBlockDocument, Entry, block_hash, text_of};
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
    #[error("block {sequence} of node {node_id}: its hash is not that of its content")]
    BlockHash { node_id: u64, sequence: u64 },
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
    /// The blocks of each node.
    pub nodes: BTreeMap<u64, Blocks>,
    /// `hash` of the newest entry of each node; of files of entries only.
    pub newest: BTreeMap<String, String>,
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
}

/// Verifies a file line by line.
#[derive(Debug, Default)]
pub struct ChainVerifier {
    summary: Summary,
    /// By node and tool. Of blocks: `hash` of the previous entry. Of entries: `prev_hash` of the next newer entry.
    links: BTreeMap<(String, String), String>,
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
        let is_block = value.get("entries").is_some();
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
            self.summary.chains_begun_before = self.links.values().filter(|hash| !hash.is_empty()).count();
        }
        self.summary.tools = self.tools.len();
        self.summary
    }

    fn block(&mut self, block: AuditBlockDocument, faults: &mut Vec<Fault>) {
        let AuditBlockDocument { entries, hash, node_id, prev_hash, sequence } = block;
        let hashes: Vec<String> = entries.iter().map(|entry| entry.hash.clone()).collect();
        let computed = block_hash(node_id, sequence, &prev_hash, &hashes);
        if !computed.is_ok_and(|computed| text_of(&computed) == hash) {
            faults.push(Fault::BlockHash { node_id, sequence });
        }
        let follows = match self.summary.nodes.get(&node_id) {
            Some(before) => before.last.checked_add(1) == Some(sequence) && before.hash == prev_hash,
            None => (sequence == 1) == prev_hash.is_empty(),
        };
        if !follows {
            faults.push(Fault::BlockLink { node_id, sequence });
        }
        let blocks = self.summary.nodes.entry(node_id);
        let blocks = blocks.or_insert(Blocks { first: sequence, last: sequence, hash: String::new() });
        (blocks.last, blocks.hash) = (sequence, hash);
        let is_whole = blocks.first == 1;
        for entry in entries {
            faults.extend(wrong_hash(&entry));
            let chain = (node_id.to_string(), entry.tool_id.clone());
            let before = self.links.insert(chain, entry.hash.clone());
            let begins_before = before.is_none() && !entry.prev_hash.is_empty();
            self.summary.chains_begun_before += usize::from(begins_before);
            self.summary.entries += 1;
            self.tools.insert(entry.tool_id.clone());
            if before.is_some_and(|before| before != entry.prev_hash) || (begins_before && is_whole) {
                faults.push(unlinked(entry));
            }
        }
        self.summary.blocks += 1;
    }

    fn entry(&mut self, entry: Entry, faults: &mut Vec<Fault>) {
        faults.extend(wrong_hash(&entry));
        let chain = (entry.node.clone(), entry.tool_id.clone());
        let linked = self.links.insert(chain, entry.prev_hash.clone());
        self.summary.newest.entry(entry.node.clone()).or_insert_with(|| entry.hash.clone());
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

fn unlinked(entry: Entry) -> Fault {
    Fault::EntryLink { id: entry.id, node: entry.node, tool_id: entry.tool_id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(node: &str, tool_id: &str, prev_hash: &str, notes: &str) -> Entry {
        let mut entry = Entry {
            action: Some("verify".into()),
            decision: "allow".into(),
            id: format!("0198c0de-{notes}"),
            node: node.into(),
            notes: notes.into(),
            prev_hash: prev_hash.into(),
            subject: "wimse://a.example/\"\u{1}\u{7f}é\u{2028}😀".into(),
            timestamp: "2026-11-20T00:00:00.000Z".into(),
            tool_id: tool_id.into(),
            ..Entry::default()
        };
        entry.seal().expect("seal");
        entry
    }

    /// Trail of one tool, oldest first.
    fn trail(entries: usize) -> Vec<Entry> {
        let mut trail: Vec<Entry> = Vec::new();
        for at in 0..entries {
            let prev_hash = trail.last().map(|entry| entry.hash.clone()).unwrap_or_default();
            trail.push(entry("n", "t", &prev_hash, &at.to_string()));
        }
        trail
    }

    fn block(node_id: u64, before: Option<&AuditBlockDocument>, entries: Vec<Entry>) -> AuditBlockDocument {
        let (sequence, prev_hash) =
            before.map_or((1, String::new()), |before| (before.sequence + 1, before.hash.clone()));
        let hashes: Vec<String> = entries.iter().map(|entry| entry.hash.clone()).collect();
        let hash = text_of(&block_hash(node_id, sequence, &prev_hash, &hashes).expect("hash"));
        AuditBlockDocument { entries, hash, node_id, prev_hash, sequence }
    }

    /// Two nodes, two tools, three blocks.
    fn blocks() -> Vec<AuditBlockDocument> {
        let own = trail(4);
        let other = entry("n", "other", "", "o");
        let first = block(1, None, vec![own[0].clone(), other, own[1].clone()]);
        let foreign = block(2, None, vec![entry("m", "t", "", "m")]);
        let second = block(1, Some(&first), vec![own[2].clone(), own[3].clone()]);
        vec![first, foreign, second]
    }

    fn line(document: &impl Serialize) -> Vec<u8> {
        serde_json::to_vec(document).expect("JSON")
    }

    fn verify(lines: &[Vec<u8>]) -> Result<Summary, (usize, Fault)> {
        let mut verifier = ChainVerifier::default();
        for (at, line) in lines.iter().enumerate() {
            // The first fault of the first faulty line.
            verifier.line(line).map_err(|faults| (at, faults[0].clone()))?;
        }
        Ok(verifier.finish())
    }

    fn newest_first(trail: &[Entry]) -> Vec<Vec<u8>> {
        trail.iter().rev().map(line).collect()
    }

    #[test]
    fn intact_export_verifies() {
        let summary = verify(&newest_first(&trail(5))).expect("holds");
        assert_eq!(
            (summary.entries, summary.blocks, summary.tools, summary.chains_begun_before),
            (5, 0, 1, 0)
        );
        assert_eq!(summary.newest["n"], trail(5)[4].hash);
        let blocks = blocks();
        let summary = verify(&blocks.iter().map(line).collect::<Vec<_>>()).expect("holds");
        assert_eq!(
            (summary.entries, summary.blocks, summary.tools, summary.chains_begun_before),
            (6, 3, 2, 0)
        );
        assert_eq!(summary.nodes[&1], Blocks { first: 1, last: 2, hash: blocks[2].hash.clone() });
    }

    #[test]
    fn one_changed_byte_is_located() {
        let lines = newest_first(&trail(3));
        let blocks: Vec<_> = blocks().iter().map(line).collect();
        for lines in [lines, blocks] {
            for at in 0..lines.len() {
                for byte in 0..lines[at].len() {
                    for change in [0x01, 0x20, 0x80, 0xff] {
                        let mut changed = lines.clone();
                        changed[at][byte] ^= change;
                        let (found, _) = verify(&changed).expect_err("a change");
                        assert_eq!(found, at, "byte {byte} of line {at}, ^{change}");
                    }
                }
            }
        }
    }

    #[test]
    fn removed_duplicated_or_moved_line_is_detected() {
        let lines = newest_first(&trail(5));
        for at in 1..lines.len() - 1 {
            let mut removed = lines.clone();
            removed.remove(at);
            assert!(matches!(verify(&removed), Err((found, Fault::EntryLink { .. })) if found == at));
        }
        for at in 0..lines.len() {
            let mut twice = lines.clone();
            twice.insert(at, lines[at].clone());
            assert!(matches!(verify(&twice), Err((found, Fault::EntryLink { .. })) if found == at + 1));
        }
        for at in 1..lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(at - 1, at);
            assert!(
                matches!(verify(&swapped), Err((found, Fault::EntryLink { .. })) if found == (at - 1).max(1))
            );
        }
        let blocks: Vec<_> = blocks().iter().map(line).collect();
        for changed in [
            vec![blocks[2].clone(), blocks[0].clone()],
            vec![blocks[0].clone(), blocks[0].clone()],
            vec![blocks[0].clone(), blocks[2].clone(), blocks[2].clone()],
        ] {
            assert!(matches!(verify(&changed), Err((_, Fault::BlockLink { node_id: 1, .. }))));
        }
    }

    #[test]
    fn each_fault_is_reported_once() {
        let mut lines = newest_first(&trail(9));
        let at = lines[2].windows(7).position(|part| part == b"\"allow\"").expect("decision");
        lines[2].splice(at..at + 7, b"\"deny\"".iter().copied());
        lines[4].push(b' ');
        lines.remove(6);
        let mut verifier = ChainVerifier::default();
        let faults: Vec<_> = lines
            .iter()
            .enumerate()
            .filter_map(|(at, line)| Some((at, verifier.line(line).err()?)))
            .collect();
        let [(2, of_content), (4, of_form), (6, of_place)] = &faults[..] else { panic!("{faults:?}") };
        assert!(matches!(of_content[..], [Fault::EntryHash(_)]));
        assert!(matches!(of_form[..], [Fault::NotCanonical]));
        assert!(matches!(of_place[..], [Fault::EntryLink { .. }]));
        // A block has faults of its content and of its position.
        let mut blocks = blocks();
        blocks[2].entries[0].decision = "deny".into();
        blocks[2].sequence += 1;
        let mut verifier = ChainVerifier::default();
        let faults: Vec<_> = blocks.iter().filter_map(|block| verifier.line(&line(block)).err()).collect();
        let [faults] = &faults[..] else { panic!("{faults:?}") };
        assert!(
            matches!(faults[..], [Fault::BlockHash { .. }, Fault::BlockLink { .. }, Fault::EntryHash(_)]),
            "{faults:?}"
        );
    }

    #[test]
    fn changed_and_resealed_entry_breaks_the_link() {
        let mut trail = trail(3);
        trail[1].decision = "deny".into();
        trail[1].seal().expect("seal");
        assert!(matches!(verify(&newest_first(&trail)), Err((1, Fault::EntryLink { .. }))));
        let mut blocks = blocks();
        blocks[0].entries[2].decision = "deny".into();
        blocks[0].entries[2].seal().expect("seal");
        blocks[0] = block(1, None, blocks[0].entries.clone());
        let lines: Vec<_> = blocks.iter().map(line).collect();
        assert!(matches!(verify(&lines), Err((2, Fault::BlockLink { .. }))));
        blocks[2] = block(1, Some(&blocks[0]), blocks[2].entries.clone());
        let lines: Vec<_> = blocks.iter().map(line).collect();
        assert!(matches!(verify(&lines), Err((2, Fault::EntryLink { .. }))));
    }

    #[test]
    fn missing_beginning_is_reported_and_is_no_fault() {
        let lines = newest_first(&trail(5));
        assert_eq!(verify(&lines[..3]).expect("holds").chains_begun_before, 1);
        let blocks: Vec<_> = blocks()[1..].iter().map(line).collect();
        let summary = verify(&blocks).expect("holds");
        assert_eq!((summary.chains_begun_before, summary.nodes[&1].first), (1, 2));
    }

    #[test]
    fn other_documents_are_refused() {
        for (text, fault) in [
            ("", Fault::Unreadable),
            ("{}", Fault::Unreadable),
            ("[]", Fault::Unreadable),
            (r#"{"entries":[],"hash":"","node_id":1,"prev_hash":"","sequence":1,"x":1}"#, Fault::Unreadable),
            (r#"{"entries":[], "hash":"","node_id":1,"prev_hash":"","sequence":1}"#, Fault::NotCanonical),
        ] {
            assert_eq!(verify(&[text.as_bytes().to_vec()]), Err((0, fault)), "{text}");
        }
        let (entry, block) = (line(&trail(1)[0]), line(&blocks()[1]));
        assert_eq!(verify(&[entry.clone(), block.clone()]), Err((1, Fault::Mixed)));
        assert_eq!(verify(&[block, entry]), Err((1, Fault::Mixed)));
    }

    #[test]
    fn sealed_form_is_canonical_json() {
        // Names in the order of RFC 8785 §3.2.3; text as §3.2.2.2 escapes it.
        let text = String::from_utf8(line(&entry("n", "t", "", "x"))).expect("text");
        assert!(text.contains(r#""subject":"wimse://a.example/\"\u0001"#), "{text}");
        assert!(text.contains("\u{7f}é\u{2028}😀\""), "{text}");
        let names: Vec<&str> = text.split('"').filter(|part| part.ends_with('\u{7f}')).collect();
        assert!(names.is_empty());
        let all = Entry {
            action: Some(String::new()),
            actor: Some(String::new()),
            caller: Some(String::new()),
            caller_actor: Some(String::new()),
            check: Some(String::new()),
            hash: "h".into(),
            jti: Some(String::new()),
            protocol: Some(String::new()),
            txn: Some(String::new()),
            ..Entry::default()
        };
        let value = json::parse(&line(&all)).expect("JSON");
        let in_file: Vec<_> = String::from_utf8(line(&all))
            .expect("text")
            .split('"')
            .skip(1)
            .step_by(4)
            .map(str::to_owned)
            .collect();
        let mut sorted: Vec<_> = value.as_object().expect("object").keys().cloned().collect();
        sorted.sort();
        assert_eq!(in_file, sorted);
        assert_eq!(sorted.len(), 18);
    }
}
