//! Results of runs: one JSON file for each, from which tables are made. Long totals come from many runs.
//!
//! The digest of a directory is that of `LC_ALL=C sh -c "sha256sum *.json | sha256sum"` in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::check::{self, Violation};
use crate::history::{History, Kind, Outcome, Run, Workload};

/// Operations by outcome.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Counts {
    pub ok: u64,
    pub fail: u64,
    pub unknown: u64,
}

impl Counts {
    pub const fn all(self) -> u64 {
        self.ok + self.fail + self.unknown
    }

    const fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::Fail => self.fail += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }
}

/// A violation in a result file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Reported {
    pub checker: String,
    pub rule: String,
    pub detail: String,
    /// Workload of the first operation that shows it.
    pub workload: Option<Workload>,
    /// Operations of the history up to and with the last one that shows it.
    pub after_operations: u64,
}

/// The result of one run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RunResult {
    pub run: Run,
    pub seconds: u64,
    pub operations: Counts,
    /// By kind.
    pub kinds: BTreeMap<Kind, Counts>,
    /// By workload.
    pub workloads: BTreeMap<Workload, Counts>,
    /// Begun faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Changes of the leader that some node saw.
    pub leaders: u64,
    /// Operations that could show a violation, by checker and name.
    pub coverage: BTreeMap<String, u64>,
    pub violations: Vec<Reported>,
}

impl RunResult {
    pub fn of(history: &History, violations: &[Violation]) -> Self {
        let mut result = Self { run: history.run.clone(), ..Self::default() };
        let mut end = 0;
        for operation in &history.operations {
            result.operations.add(operation.outcome);
            result.kinds.entry(operation.kind).or_default().add(operation.outcome);
            result.workloads.entry(operation.workload).or_default().add(operation.outcome);
            end = end.max(operation.end);
        }
        result.seconds = end / 1_000_000_000;
        for fault in history.faults.iter().filter(|fault| !fault.is_end) {
            *result.faults.entry(fault.kind.clone()).or_default() += 1;
        }
        let mut led: Vec<_> = history.leaders.iter().filter_map(|seen| seen.leader).collect();
        led.dedup();
        result.leaders = led.len().saturating_sub(1) as u64;
        result.coverage =
            check::coverage(history).into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        result.violations = violations
            .iter()
            .map(|violation| Reported {
                checker: violation.checker.to_owned(),
                rule: violation.rule.to_owned(),
                detail: violation.detail.clone(),
                workload: violation.operations.first().map(|first| history.operations[*first].workload),
                after_operations: violation.operations.iter().max().map_or(0, |last| *last as u64 + 1),
            })
            .collect();
        result
    }

    /// Writes a new file into `directory`, named by workload, nemesis, seed and time.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let Run { workload, nemesis, seed, begun_unix_secs, nodes, broken, .. } = &self.run;
        let broken = broken.as_ref().map(|broken| format!("-{broken}")).unwrap_or_default();
        let name = format!("{workload}-{nemesis}-{nodes}-{seed}-{begun_unix_secs}{broken}.json");
        let path = directory.join(name.replace(['/', ' '], "_"));
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// All results of a directory.
pub struct Results {
    pub runs: Vec<RunResult>,
    /// SHA-256 over names and digests of the files.
    pub digest: String,
}

impl Results {
    pub fn read(directory: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                files.push(path);
            }
        }
        files.sort();
        let (mut runs, mut sums) = (Vec::new(), String::new());
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = fs::read(&path).with_context(|| name.clone())?;
            // Writing to a string does not fail, here and below.
            let _ = writeln!(sums, "{}  {name}", hex(&bytes));
            runs.push(serde_json::from_slice(&bytes).with_context(|| name.clone())?);
        }
        Ok(Self { runs, digest: hex(sums.as_bytes()) })
    }

    /// Runs of the product; the others are of builds that are broken on purpose.
    fn sound(&self) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter(|result| result.run.broken.is_none())
    }

    /// Workload × nemesis with its sums, as Markdown, and the totals.
    pub fn table(&self) -> String {
        let mut rows: BTreeMap<(String, &str), Row> = BTreeMap::new();
        let mut total = Row::default();
        for result in self.sound() {
            for (workload, counts) in &result.workloads {
                let row = rows.entry((workload_name(*workload), &result.run.nemesis)).or_default();
                row.add_part(result, *workload, *counts);
            }
            total.add(result);
        }
        let mut table = String::from(
            "| workload | nemesis | runs | operations | faults | violations | unknown |\n|---|---|---:|---:|---:|---:|---:|\n",
        );
        for ((workload, nemesis), row) in &rows {
            let _ = writeln!(table, "| {workload} | {nemesis} | {} |", row.cells());
        }
        let _ = writeln!(table, "| **all** | | {} |", total.cells());
        let _ = writeln!(
            table,
            "\n{} runs in {} h {} min, {} changes of the leader; SHA-256 of the result files: `{}`.",
            total.runs,
            total.seconds / 3600,
            total.seconds / 60 % 60,
            grouped(total.leaders),
            self.digest
        );
        table
    }

    /// The coverage of the checkers, summed over all runs.
    pub fn coverage(&self) -> String {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.sound().flat_map(|result| &result.coverage) {
            *sums.entry(name).or_default() += count;
        }
        let mut table = String::from("| looked at | count |\n|---|---:|\n");
        for (name, count) in sums {
            let _ = writeln!(table, "| {name} | {} |", grouped(count));
        }
        table
    }

    /// Deliberate breaks: the earliest violation of each run.
    pub fn breaks(&self) -> String {
        let mut table = String::from(
            "| break | workload | nemesis | seed | caught by | rule | after operations |\n|---|---|---|---:|---|---|---:|\n",
        );
        let mut broken: Vec<_> =
            self.runs.iter().filter_map(|result| Some((result.run.broken.as_ref()?, result))).collect();
        broken.sort_by(|one, other| one.0.cmp(other.0));
        for (name, result) in broken {
            let Run { workload, nemesis, seed, .. } = &result.run;
            // A violation of the final reads as a whole names no operation.
            let place = |violation: &&Reported| (violation.after_operations == 0, violation.after_operations);
            let first = result.violations.iter().min_by_key(place);
            let (checker, rule, after) = first.map_or_else(
                || ("**not caught**", "", String::new()),
                |first| (first.checker.as_str(), first.rule.as_str(), grouped(first.after_operations)),
            );
            let _ = writeln!(
                table,
                "| {name} | {workload} | {nemesis} | {seed} | {checker} | {rule} | {after} |"
            );
        }
        table
    }
}

/// Sums of some runs.
#[derive(Default)]
struct Row {
    runs: u64,
    operations: u64,
    faults: u64,
    violations: u64,
    unknown: u64,
    seconds: u64,
    leaders: u64,
}

impl Row {
    fn add(&mut self, result: &RunResult) {
        self.runs += 1;
        self.operations += result.operations.all();
        self.faults += result.faults.values().sum::<u64>();
        self.violations += result.violations.len() as u64;
        self.unknown += result.operations.unknown;
        self.seconds += result.seconds;
        self.leaders += result.leaders;
    }

    /// Adds the operations of one workload, which all faults of the run concern.
    fn add_part(&mut self, result: &RunResult, workload: Workload, counts: Counts) {
        self.runs += 1;
        self.operations += counts.all();
        self.faults += result.faults.values().sum::<u64>();
        let violations = result.violations.iter();
        self.violations += violations.filter(|found| found.workload == Some(workload)).count() as u64;
        self.unknown += counts.unknown;
    }

    fn cells(&self) -> String {
        [self.runs, self.operations, self.faults, self.violations, self.unknown].map(grouped).join(" | ")
    }
}

fn workload_name(workload: Workload) -> String {
    let name = serde_json::to_value(workload).unwrap_or_default();
    name.as_str().unwrap_or_default().replace('_', " ")
}

fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `1 234 567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Fault, Operation, Workload};

    fn history(seed: u64, nemesis: &str, broken: Option<&str>) -> History {
        let operation = |outcome| Operation {
            process: 1,
            workload: Workload::Registry,
            kind: Kind::Write,
            key: "t".to_owned(),
            input: serde_json::Value::Null,
            invoke: 1,
            end: 90_000_000_000,
            outcome,
            node: 1,
            status: None,
            index: None,
            value: serde_json::Value::Null,
            is_final: false,
        };
        let fault = |is_end| Fault {
            time: 5,
            kind: "kill".to_owned(),
            targets: vec![1],
            detail: String::new(),
            is_end,
        };
        let run = Run {
            seed,
            nodes: 3,
            workload: "registry".to_owned(),
            nemesis: nemesis.to_owned(),
            broken: broken.map(str::to_owned),
            ..Run::default()
        };
        History {
            run,
            operations: [Outcome::Ok, Outcome::Fail, Outcome::Unknown].map(operation).to_vec(),
            faults: [false, true].map(fault).to_vec(),
            leaders: Vec::new(),
        }
    }

    fn violation() -> Violation {
        Violation { checker: "witness", rule: "real time", detail: "d".to_owned(), operations: vec![1, 0] }
    }

    #[test]
    fn results_of_many_runs_are_summed_in_one_table() {
        let directory = tempfile::tempdir().expect("directory");
        for (seed, nemesis, violations) in
            [(1, "kill", vec![]), (2, "kill", vec![violation()]), (3, "pause", vec![])]
        {
            RunResult::of(&history(seed, nemesis, None), &violations)
                .write(directory.path())
                .expect("written");
        }
        RunResult::of(&history(4, "kill", Some("skip-barrier")), &[violation()])
            .write(directory.path())
            .expect("written");
        let results = Results::read(directory.path()).expect("results");
        let table = results.table();
        for row in [
            "| registry | kill | 2 | 6 | 2 | 1 | 2 |",
            "| registry | pause | 1 | 3 | 1 | 0 | 1 |",
            "| **all** | | 3 | 9 | 3 | 1 | 3 |",
            "3 runs in 0 h 4 min",
        ] {
            assert!(table.contains(row), "{row} in {table}");
        }
        let breaks = results.breaks();
        assert!(
            breaks.contains("| skip-barrier | registry | kill | 4 | witness | real time | 2 |"),
            "{breaks}"
        );
    }

    #[test]
    fn uncaught_break_is_reported_as_not_caught() {
        let result = RunResult::of(&history(4, "kill", Some("b")), &[]);
        let results = Results { runs: vec![result], digest: String::new() };
        assert!(results.breaks().contains("**not caught**"), "{}", results.breaks());
    }

    #[test]
    fn digest_of_results_changes_with_any_file() {
        let directory = tempfile::tempdir().expect("directory");
        let path = RunResult::of(&history(1, "kill", None), &[]).write(directory.path()).expect("written");
        let digest = || Results::read(directory.path()).expect("results").digest;
        let first = digest();
        // Computed here in the way in which a person computes it.
        let sums = std::process::Command::new("sh")
            .args(["-c", "sha256sum *.json | sha256sum"])
            .current_dir(directory.path())
            .output()
            .expect("run sha256sum");
        assert!(String::from_utf8_lossy(&sums.stdout).starts_with(&first), "{first}");
        let text = fs::read_to_string(&path).expect("result");
        fs::write(&path, text.replace("\"nodes\": 3", "\"nodes\": 5")).expect("written");
        assert_ne!(digest(), first);
    }

    #[test]
    fn published_results_are_those_of_the_files() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let results = Results::read(&here.join("results")).expect("results");
        assert!(results.runs.iter().all(|run| run.violations.is_empty() && run.run.broken.is_none()));
        let page = fs::read_to_string(here.join("../docs/proofs/jepsen.md")).expect("page");
        assert!(page.contains(results.table().trim()), "print it with `trust-fabric-jepsen report`");
        assert!(page.contains(results.coverage().trim()));
        let readme = fs::read_to_string(here.join("README.md")).expect("page");
        assert!(readme.contains(&results.digest));
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!([7, 1234, 1_234_567].map(grouped), ["7", "1 234", "1 234 567"]);
    }
}
