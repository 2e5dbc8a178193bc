//! Verification of exports: changes, removals and gaps.

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
    let block = AuditBlockDocument {
        bucket: entries[0].bucket(),
        content: text_of(&content_hash(&hashes).expect("hash")),
        count: entries.len() as u64,
        first: entries[0].timestamp.clone(),
        last: entries[entries.len() - 1].timestamp.clone(),
        entries: Some(entries),
        node_id,
        prev_hash,
        sequence,
        ..AuditBlockDocument::default()
    };
    resealed(block)
}

fn resealed(block: AuditBlockDocument) -> AuditBlockDocument {
    let hash = text_of(&block.computed_hash().expect("hash"));
    AuditBlockDocument { hash, ..block }
}

/// The block without its content.
fn emptied(block: &AuditBlockDocument) -> AuditBlockDocument {
    AuditBlockDocument { entries: None, ..block.clone() }
}

/// Four blocks of one node, by two callers in turn.
fn blocks_of_two_callers() -> Vec<AuditBlockDocument> {
    let by = |caller: &str, prev_hash: &str, notes: &str| {
        let mut entry = entry("n", "t", prev_hash, notes);
        entry.caller = Some(caller.into());
        entry.seal().expect("seal");
        entry
    };
    let flood = by("flood", "", "0");
    let victim = by("victim", "", "1");
    assert_ne!(flood.bucket(), victim.bucket());
    let (more, later) = (by("flood", &flood.hash, "2"), by("victim", &victim.hash, "3"));
    let mut blocks: Vec<AuditBlockDocument> = Vec::new();
    for entry in [flood, victim, more, later] {
        blocks.push(block(1, blocks.last(), vec![entry]));
    }
    blocks
}

#[test]
fn chain_is_verified_across_blocks_without_their_content() {
    let blocks = blocks_of_two_callers();
    let [first, second, third, fourth] = &blocks[..] else { panic!("four") };
    let lines = [line(&emptied(first)), line(second), line(third), line(fourth)];
    let summary = verify(&lines).expect("holds");
    let time = "2026-11-20T00:00:00.000Z".to_owned();
    let gap = Gap { blocks: 1, entries: 1, first: time.clone(), last: time };
    assert_eq!(summary.nodes[&1], Blocks { first: 1, last: 4, hash: fourth.hash.clone(), gap: Some(gap) });
    assert_eq!((summary.entries, summary.blocks, summary.chains_begun_before), (3, 4, 1));
    // During an export, the content of a block may be dropped after an earlier one of its bucket was read.
    let lines = [line(first), line(second), line(&emptied(third)), line(fourth)];
    assert_eq!(verify(&lines).expect("holds").entries, 3);
    let none = blocks.iter().map(|block| line(&emptied(block))).collect::<Vec<_>>();
    let summary = verify(&none).expect("holds");
    assert_eq!((summary.entries, summary.nodes[&1].gap.as_ref().map(|gap| gap.entries)), (0, Some(4)));
}

/// The head of a chain is deleted with the content of the block that has its last entry, also while an export runs.
#[test]
fn chain_that_begins_anew_during_an_export_is_no_fault() {
    let first = block(1, None, vec![entry("n", "t", "", "0")]);
    let second = block(1, Some(&first), vec![entry("n", "t", "", "1")]);
    let summary = verify(&[line(&first), line(&second)]).expect("holds");
    assert_eq!((summary.entries, summary.chains_begun_anew, summary.chains_begun_before), (2, 1, 0));
    let foreign = block(1, Some(&first), vec![entry("n", "t", "other", "1")]);
    assert!(matches!(verify(&[line(&first), line(&foreign)]), Err((1, Fault::EntryLink { .. }))));
}

/// Attack: a chain has the entries of one bucket of callers, so that no link leads to the only entry of another one.
#[test]
fn removal_of_a_callers_entries_changes_the_summary_of_a_trail() {
    let blocks = blocks_of_two_callers();
    let trail: Vec<Entry> = blocks.into_iter().flat_map(|block| block.entries.expect("entries")).collect();
    let whole = verify(&newest_first(&trail)).expect("holds");
    for removed in [vec![1, 3], vec![3], vec![2]] {
        let kept = trail.iter().enumerate().filter(|(at, _)| !removed.contains(at));
        let kept: Vec<Entry> = kept.map(|(_, entry)| entry.clone()).collect();
        let summary = verify(&newest_first(&kept)).expect("holds");
        assert_ne!(summary.newest, whole.newest, "{removed:?}");
    }
}

#[test]
fn forged_or_missing_header_is_found() {
    let blocks = blocks_of_two_callers();
    let [first, second, third, fourth] = &blocks[..] else { panic!("four") };
    let missing = [line(&emptied(first)), line(third), line(fourth)];
    assert!(matches!(verify(&missing), Err((1, Fault::BlockLink { sequence: 3, .. }))));
    for forged in [
        AuditBlockDocument { count: 2, ..emptied(first) },
        AuditBlockDocument { bucket: second.bucket, ..emptied(first) },
        AuditBlockDocument { last: "2026-11-21T00:00:00.000Z".into(), ..emptied(first) },
        AuditBlockDocument { content: second.content.clone(), ..emptied(first) },
    ] {
        let lines = |forged: &AuditBlockDocument| [line(forged), line(second)];
        assert!(matches!(verify(&lines(&forged)), Err((0, Fault::BlockHash { .. }))), "{forged:?}");
        // With the right hash of what was forged, the next block does not follow.
        let outcome = verify(&lines(&resealed(forged)));
        assert!(matches!(outcome, Err((1, Fault::BlockLink { .. }))), "{outcome:?}");
    }
    // The same entries under another header.
    for (forged, name) in [
        (AuditBlockDocument { count: 2, ..second.clone() }, "count"),
        (AuditBlockDocument { bucket: first.bucket, ..second.clone() }, "bucket"),
        (AuditBlockDocument { first: String::new(), ..second.clone() }, "time"),
        (AuditBlockDocument { entries: first.entries.clone(), ..second.clone() }, "entries"),
        (AuditBlockDocument { entries: Some(Vec::new()), ..second.clone() }, "no entries"),
    ] {
        let outcome = verify(&[line(first), line(&resealed(forged))]);
        assert!(matches!(outcome, Err((1, Fault::BlockContent { .. }))), "{name}: {outcome:?}");
    }
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
    assert_eq!((summary.entries, summary.blocks, summary.tools, summary.chains_begun_before), (5, 0, 1, 0));
    assert_eq!(summary.newest[&("n".to_owned(), trail(5)[4].bucket())], trail(5)[4].hash);
    let blocks = blocks();
    let summary = verify(&blocks.iter().map(line).collect::<Vec<_>>()).expect("holds");
    assert_eq!((summary.entries, summary.blocks, summary.tools, summary.chains_begun_before), (6, 3, 2, 0));
    assert_eq!(summary.nodes[&1], Blocks { first: 1, last: 2, hash: blocks[2].hash.clone(), gap: None });
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
    let faults: Vec<_> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, verifier.line(line).err()?))).collect();
    let [(2, of_content), (4, of_form), (6, of_place)] = &faults[..] else { panic!("{faults:?}") };
    assert!(matches!(of_content[..], [Fault::EntryHash(_)]));
    assert!(matches!(of_form[..], [Fault::NotCanonical]));
    assert!(matches!(of_place[..], [Fault::EntryLink { .. }]));
    // A block has faults of its content and of its position.
    let mut blocks = blocks();
    blocks[2].entries.as_mut().expect("entries")[0].decision = "deny".into();
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
    let mut entries = blocks[0].entries.clone().expect("entries");
    entries[2].decision = "deny".into();
    entries[2].seal().expect("seal");
    blocks[0] = block(1, None, entries);
    let lines: Vec<_> = blocks.iter().map(line).collect();
    assert!(matches!(verify(&lines), Err((2, Fault::BlockLink { .. }))));
    blocks[2] = block(1, Some(&blocks[0]), blocks[2].entries.clone().expect("entries"));
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
        (r#"{"sequence":1}"#, Fault::Unreadable),
        (
            r#"{"bucket":0,"content":"","count":0,"first":"","last":"","node_id":1,"prev_hash":"","sequence":1,"x":1}"#,
            Fault::Unreadable,
        ),
        (
            r#"{"bucket":0,"content":"", "count":0,"first":"","last":"","node_id":1,"prev_hash":"","sequence":1}"#,
            Fault::NotCanonical,
        ),
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
    let mut sealed = Entry { count: Some(2), notes: "x,\"id\":\"y".into(), ..all.clone() };
    let (hash, text) = sealed.clone().into_sealed().expect("seals");
    assert_eq!((sealed.seal().expect("seals"), line(&sealed)), (hash, text), "serialized once");
    let counted = line(&Entry { count: Some(2), ..all });
    let counted = String::from_utf8(counted).expect("text");
    assert!(counted.contains(r#""check":"","count":2,"decision":"#), "{counted}");
    let document = emptied(&blocks()[0]);
    let value = json::parse(&line(&document)).expect("JSON");
    let sorted: BTreeMap<_, _> = value.as_object().expect("object").iter().collect();
    assert_eq!(line(&document), serde_json::to_vec(&sorted).expect("JSON"));
}
