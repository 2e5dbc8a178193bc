//! `trust-fabric audit …`

use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use trust_fabric_client::{self as client, NodeClient};

use super::Error;
use super::endpoint::{Call, ServerArguments};
use super::events::is_retryable;
use super::new_file::FirstFile;
use super::output::{Format, counted, printable};
use crate::tools::audit::chain::{ChainVerifier, Gap, Summary};
use crate::tools::audit::entry::{AuditBlockDocument, Entry};
use crate::{json, limits};

const BLOCKS: [&str; 3] = ["v1", "audit", "blocks"];
/// Pages of an export between two lines of progress.
const PAGES_PER_WORD: u32 = 50;
/// Lines of a verification between two lines of progress.
const LINES_PER_WORD: u64 = 100_000;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the latest entries about a tool, or about administrative acts, newest last.
    Tail {
        /// The tool.
        #[arg(required_unless_present = "admin", conflicts_with = "admin")]
        tool_id: Option<String>,
        /// Administrative acts: policy, signing keys, revocations, blocks, allowances, members, upgrades, backups, peer
        /// fabrics; agents and streams of others.
        #[arg(long)]
        admin: bool,
        /// Number of entries.
        #[arg(short = 'n', long = "entries", value_name = "N", default_value_t = 20)]
        entries: usize,
        /// Keep showing new entries until interrupted.
        #[arg(short = 'f', long)]
        follow: bool,
        #[command(flatten)]
        call: Call,
    },
    /// Export the audit as JSON lines for `audit verify`: all blocks, or the entries about one tool.
    Export {
        /// Only entries about this tool, newest first.
        #[arg(long, value_name = "TOOL_ID")]
        tool: Option<String>,
        /// Write to this file, which must not exist.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        server: ServerArguments,
    },
    /// Verify an export offline: every hash and every link. Finds a single changed byte.
    Verify {
        /// File written by `audit export`.
        file: PathBuf,
    },
}

pub(super) fn run(command: Command, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    match command {
        Command::Tail { tool_id, admin: _, entries, follow, call } => {
            let trail = Trail { client: call.server.client()?, tool_id, format: call.output.format };
            super::wait_for(trail.show(entries, follow, out))
        }
        Command::Export { tool, out: file, server } => {
            let client = server.client()?;
            let Some(path) = file else { return super::wait_for(export(&client, tool.as_deref(), out)) };
            let mut exported = FirstFile::prepare(&path)?;
            let mut file = BufWriter::new(&mut exported.file);
            // It flushes the file.
            super::wait_for(export(&client, tool.as_deref(), &mut file))?;
            drop(file);
            exported.store().map(drop)
        }
        Command::Verify { file } => {
            let summary = verify(&file, out)?;
            describe(&summary, out)
        }
    }
}

/// A trail on the terminal.
struct Trail {
    client: NodeClient,
    /// `None`: the administrative acts.
    tool_id: Option<String>,
    format: Format,
}

impl Trail {
    async fn show(&self, entries: usize, follow: bool, out: &mut (dyn Write + Send)) -> Result<(), Error> {
        let mut newest = self.print(None, entries, out).await?;
        if !follow {
            return Ok(());
        }
        let mut reported = None;
        loop {
            tokio::time::sleep(limits::AUDIT_FOLLOW_INTERVAL).await;
            match self.print(newest.as_deref(), client::limits::LIST_ROWS_MAX, out).await {
                Ok(last) => (newest, reported) = (last.or(newest), None),
                Err(Error::Answer(error)) if is_retryable(&error) => {
                    let error = Some(error.to_string());
                    if reported != error {
                        writeln!(io::stderr(), "{}", error.as_deref().unwrap_or_default())?;
                    }
                    reported = error;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Prints at most `most` entries newer than the entry `last_id`; returns the id of the newest entry.
    async fn print(
        &self,
        last_id: Option<&str>,
        most: usize,
        out: &mut (dyn Write + Send),
    ) -> Result<Option<String>, Error> {
        let (mut entries, mut cursor, mut newest) = (Vec::<Entry>::new(), None, None);
        loop {
            let limit = (most - entries.len()).clamp(1, limits::PAGE_ROWS_MAX);
            let (page, next) = page_of(&self.client, &self.path(), limit, cursor.as_deref()).await?;
            for row in page {
                let entry: Entry = self.read(row)?;
                newest.get_or_insert_with(|| entry.id.clone());
                if entries.len() >= most || Some(entry.id.as_str()) == last_id {
                    self.write(&entries, out)?;
                    return Ok(newest);
                }
                entries.push(entry);
            }
            if next.is_none() || entries.len() >= most {
                self.write(&entries, out)?;
                return Ok(newest);
            }
            cursor = next;
        }
    }

    fn path(&self) -> Vec<&str> {
        match &self.tool_id {
            Some(tool_id) => vec!["v1", "tools", tool_id, "audit"],
            None => vec!["v1", "audit"],
        }
    }

    fn read(&self, row: Value) -> Result<Entry, Error> {
        json::from_value(row).map_err(|_| foreign(&self.client))
    }

    /// Oldest first, so that new entries follow old ones.
    fn write(&self, entries: &[Entry], out: &mut (dyn Write + Send)) -> Result<(), Error> {
        for entry in entries.iter().rev() {
            if self.format == Format::Json {
                writeln!(out, "{}", line_of(entry).map_err(io::Error::other)?)?;
                continue;
            }
            let text = |member: &Option<String>| member.as_deref().map_or_else(|| "-".to_owned(), printable);
            let subject = Some(entry.subject.clone()).filter(|subject| !subject.is_empty());
            writeln!(
                out,
                "{} {:<5} {:<10} {} {} {}",
                printable(&entry.timestamp),
                printable(&entry.decision),
                text(&entry.action),
                text(&entry.check),
                text(if self.tool_id.is_some() { &subject } else { &entry.actor }),
                printable(&entry.notes),
            )?;
            if let Some(count) = entry.count {
                writeln!(out, "{:24} {count} equal ones within a minute: this is the last", "")?;
            }
        }
        Ok(out.flush()?)
    }
}

async fn export(client: &NodeClient, tool: Option<&str>, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let of_tool = tool.map(|tool_id| ["v1", "tools", tool_id, "audit"]);
    let path = of_tool.as_ref().map_or(&BLOCKS[..], |path| &path[..]);
    let (mut cursor, mut rows, mut pages) = (None, 0, 0_u32);
    let mut sequence = SequenceCheck::default();
    loop {
        let (page, next) = page_of(client, path, limits::PAGE_ROWS_MAX, cursor.as_deref()).await?;
        rows += page.len();
        for row in page {
            if let Some(gap) = sequence.gap_before(&row) {
                writeln!(io::stderr(), "{gap}")?;
            }
            let line = if tool.is_some() { entry_line(row) } else { block_line(row) };
            writeln!(out, "{}", line.map_err(|_| foreign(client))?)?;
        }
        if next.is_none() {
            return Ok(out.flush()?);
        }
        cursor = next;
        pages += 1;
        if pages.is_multiple_of(PAGES_PER_WORD) {
            writeln!(io::stderr(), "{rows} {} so far", if tool.is_some() { "entries" } else { "blocks" })?;
        }
    }
}

/// Block numbers of an export. The oldest blocks may expire during it, which leaves a gap.
#[derive(Default)]
struct SequenceCheck(Option<u64>);

impl SequenceCheck {
    /// The gap before this row, if any. Entries have no number.
    fn gap_before(&mut self, row: &Value) -> Option<String> {
        let number = row.get("number")?.as_u64()?;
        let first = self.0.replace(number)?.saturating_add(1);
        (number > first).then(|| {
            let last = number - 1;
            format!("blocks {first} to {last} expired during the export: `audit verify` will report a gap")
        })
    }
}

async fn page_of(
    client: &NodeClient,
    path: &[&str],
    limit: usize,
    cursor: Option<&str>,
) -> Result<(Vec<Value>, Option<String>), Error> {
    let limit = limit.to_string();
    let mut query = vec![("limit", limit.as_str())];
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    Ok(client.page(path, &query).await?)
}

fn entry_line(row: Value) -> Result<String, json::Error> {
    let entry: Entry = json::from_value(row)?;
    line_of(&entry)
}

/// Leaves out the fields that no hash covers: the number among all nodes' blocks is not part of a node's chain.
fn block_line(mut row: Value) -> Result<String, json::Error> {
    if let Some(members) = row.as_object_mut() {
        members.remove("number");
        members.remove("appended_at");
    }
    let block: AuditBlockDocument = json::from_value(row)?;
    line_of(&block)
}

fn line_of(document: &impl serde::Serialize) -> Result<String, json::Error> {
    serde_json::to_string(document).map_err(|error| json::Error::Syntax(error.to_string()))
}

fn foreign(client: &NodeClient) -> Error {
    Error::Answer(client::Error::Foreign(client.server().clone()))
}

/// Reports every fault.
fn verify(path: &Path, out: &mut dyn Write) -> Result<Summary, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let mut file = BufReader::new(std::fs::File::open(path).map_err(failed)?);
    let (mut verifier, mut line, mut number, mut broken) =
        (ChainVerifier::default(), Vec::new(), 0_u64, 0_u64);
    while read_line(&mut file, &mut line).map_err(failed)? {
        number += 1;
        if number.is_multiple_of(LINES_PER_WORD) {
            writeln!(io::stderr(), "{number} lines so far")?;
        }
        let faults: Vec<String> = match line.strip_suffix(b"\n") {
            None => {
                skip_line(&mut file).map_err(failed)?;
                vec!["does not end with a line break: it is truncated, or too long".to_owned()]
            }
            Some(whole) => match verifier.line(whole) {
                Ok(()) => continue,
                Err(faults) => faults.iter().map(ToString::to_string).collect(),
            },
        };
        broken += 1;
        for fault in faults {
            writeln!(out, "{}: line {number}: {}", path.display(), printable(&fault))?;
        }
    }
    match (number, broken) {
        (0, _) => Err(Error::BrokenAudit(format!("{}: contains no audit", path.display()))),
        (_, 0) => Ok(verifier.finish()),
        _ => Err(Error::BrokenAudit(format!("{}: faulty lines: {broken} of {number}", path.display()))),
    }
}

/// Reads a line with its line break, or its longest allowed prefix; returns whether there was any.
fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(file.take(limits::AUDIT_LINE_BYTES_MAX).read_until(b'\n', line)? > 0)
}

fn skip_line(file: &mut impl BufRead) -> io::Result<()> {
    let mut rest = Vec::new();
    while read_line(file, &mut rest)? && !rest.ends_with(b"\n") {}
    Ok(())
}

fn describe(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let Summary { entries, blocks, tools, chains_begun_before, chains_begun_anew, nodes, newest } = summary;
    if *blocks > 0 {
        write!(out, "{}, ", counted(*blocks, "block", "blocks"))?;
    }
    let entries = counted(*entries, "entry", "entries");
    let tools = counted(*tools as u64, "tool", "tools");
    writeln!(out, "{entries} about {tools}: every hash and every link is valid")?;
    for (node, blocks) in nodes {
        let (first, last, hash) = (blocks.first, blocks.last, printable(&blocks.hash));
        writeln!(out, "node {node}: blocks {first} to {last}; hash of the last: {hash}")?;
        if let Some(Gap { blocks, entries, first, last }) = &blocks.gap {
            let (blocks, entries) =
                (counted(*blocks, "block", "blocks"), counted(*entries, "entry", "entries"));
            let (first, last) = (printable(first), printable(last));
            writeln!(
                out,
                "node {node}: gap: {blocks} without content, which had {entries} between {first} and {last}"
            )?;
        }
    }
    for ((node, bucket), hash) in newest {
        let (node, hash) = (printable(node), printable(hash));
        writeln!(out, "node {node}, callers of bucket {bucket}: hash of the newest entry: {hash}")?;
    }
    if *chains_begun_anew > 0 {
        let chains = counted(*chains_begun_anew as u64, "chain begins", "chains begin");
        writeln!(out, "{chains} anew: the last entries before lost their content during the export")?;
    }
    if *chains_begun_before > 0 {
        let chains = counted(*chains_begun_before as u64, "chain begins", "chains begin");
        writeln!(out, "{chains} before this file")?;
    }
    writeln!(
        out,
        "compare these hashes with those of another source: a file cut at its newer end verifies too"
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(prev_hash: &str, notes: &str) -> Entry {
        let mut entry = Entry {
            decision: "allow".into(),
            id: notes.into(),
            node: "n".into(),
            notes: notes.into(),
            prev_hash: prev_hash.into(),
            tool_id: "t".into(),
            ..Entry::default()
        };
        entry.seal().expect("seal");
        entry
    }

    fn verified(bytes: &[u8]) -> Result<String, String> {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("export");
        std::fs::write(&path, bytes).expect("file");
        let mut output = Vec::new();
        let outcome = run(Command::Verify { file: path.clone() }, &mut output);
        let output = String::from_utf8(output).expect("text");
        outcome
            .map_err(|error| format!("{output}{error}").replace(&path.display().to_string(), "export"))
            .map(|()| output)
    }

    /// Regression: `audit tail -n 0 -f` printed the whole trail.
    #[tokio::test]
    async fn trail_goes_on_after_entries_that_were_not_printed() {
        let server = wiremock::MockServer::start().await;
        let client = NodeClient::new(&server.uri()).expect("client");
        let trail = Trail { client, tool_id: Some("t".to_owned()), format: Format::Table };
        let rows = |notes: &[&str]| notes.iter().map(|notes| entry("", notes)).collect::<Vec<_>>();
        let mut printed = Vec::new();
        let mut newest = None;
        for (notes, most, expected) in [
            (&["b", "a"][..], 0, vec![]),
            (&["c", "b", "a"], 9, vec![Some("c")]),
            (&["c"], 9, vec![Some("c")]),
        ] {
            server.reset().await;
            let page = wiremock::ResponseTemplate::new(200).set_body_json(rows(notes));
            wiremock::Mock::given(wiremock::matchers::any()).respond_with(page).mount(&server).await;
            newest = trail.print(newest.as_deref(), most, &mut printed).await.expect("printed");
            let shown = std::str::from_utf8(&printed).expect("text");
            assert_eq!(
                shown.lines().map(|line| line.split_whitespace().last()).collect::<Vec<_>>(),
                expected
            );
        }
        assert_eq!(newest.as_deref(), Some("c"));
    }

    #[test]
    fn one_changed_byte_is_reported_with_its_line() {
        let first = entry("", "1");
        let file = format!(
            "{}\n{}\n",
            line_of(&entry(&first.hash, "2")).expect("line"),
            line_of(&first).expect("line")
        );
        let output = verified(file.as_bytes()).expect("holds");
        assert!(
            output.starts_with("2 entries about 1 tool: every hash and every link is valid\n"),
            "{output}"
        );
        let first_line = file.find('\n').expect("line");
        for at in 0..file.len() {
            let mut changed = file.clone().into_bytes();
            changed[at] ^= 1;
            let fault = verified(&changed).expect_err("a change");
            let line = if at <= first_line { 1 } else { 2 };
            assert!(fault.starts_with(&format!("export: line {line}: ")), "byte {at}: {fault}");
            if at > 0 && at != first_line + 1 {
                verified(&file.as_bytes()[..at]).expect_err("a cut within a line");
            }
        }
    }

    #[test]
    fn missing_beginning_is_reported_and_empty_file_is_refused() {
        let line = line_of(&entry("before", "2")).expect("line");
        let output = verified(format!("{line}\n").as_bytes()).expect("holds");
        assert!(output.contains("1 chain begins before"), "{output}");
        assert_eq!(verified(b""), Err("export: contains no audit".to_owned()));
    }

    #[test]
    fn each_fault_is_reported_with_its_line() {
        let most = usize::try_from(limits::AUDIT_LINE_BYTES_MAX).expect("small");
        let good = line_of(&entry("", "1")).expect("line");
        let changed = good.replace("allow", "deny");
        let long = " ".repeat(2 * most + 7);
        let file = format!("{good}\n{long}\n{changed}\nx\n{good}");
        assert_eq!(
            verified(file.as_bytes()).expect_err("faults"),
            "export: line 2: does not end with a line break: it is truncated, or too long\n\
             export: line 3: entry 1: its hash is not that of its content\n\
             export: line 3: entry 1: is not linked with the adjacent entry of node n about t\n\
             export: line 4: is neither an audit block nor an audit entry\n\
             export: line 5: does not end with a line break: it is truncated, or too long\n\
             export: faulty lines: 4 of 5"
        );
    }

    #[test]
    fn gap_during_an_export_is_reported() {
        let row = |number: u64| serde_json::json!({"number": number});
        let mut sequence = SequenceCheck::default();
        assert_eq!(sequence.gap_before(&row(4)), None, "earlier blocks are not part of this export");
        assert_eq!(sequence.gap_before(&row(5)), None);
        let output = sequence.gap_before(&row(9)).expect("a gap");
        assert!(output.contains("blocks 6 to 8 expired"), "{output}");
        assert_eq!(sequence.gap_before(&row(10)), None);
        assert_eq!(sequence.gap_before(&serde_json::json!({})), None);
    }

    #[test]
    fn overlong_line_is_not_read_to_its_end() {
        let most = usize::try_from(limits::AUDIT_LINE_BYTES_MAX).expect("small");
        for (bytes, expected) in [(most - 1, "neither an audit block nor an audit entry"), (most, "too long")]
        {
            let file = [&b" ".repeat(bytes)[..], b"\n"].concat();
            let fault = verified(&file).expect_err("no audit");
            assert!(fault.contains(expected), "{bytes}: {fault}");
        }
    }

    #[test]
    fn block_line_has_only_hashed_fields() {
        let row = serde_json::json!({
            "number": 7, "appended_at": "2026-11-20T00:00:00.000Z", "sequence": 1, "node_id": 1, "bucket": 5,
            "prev_hash": "", "hash": "h", "content": "c", "count": 0, "first": "f", "last": "l",
        });
        let line = block_line(row).expect("block");
        let expected = r#"{"bucket":5,"content":"c","count":0,"first":"f","hash":"h","last":"l","node_id":1,"prev_hash":"","sequence":1}"#;
        assert_eq!(line, expected);
    }
}
