//! Records of a run: operations with their times, faults and leaders, one JSON object in each line of `history.jsonl`.
//! The first line is the run itself.
//!
//! An operation belongs to one process, which does one at a time and gets a new number after an unknown
//! outcome. Times are nanoseconds of one monotonic clock since the start of the run, so that "began after" is
//! exact. Nodes are numbered from 1.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Nanoseconds since the start of the run.
pub type Nanos = u64;

/// One line of a history.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    Run(Run),
    Operation(Operation),
    Fault(Fault),
    Leader(Leader),
}

/// The run: with these, the same schedule of faults is made again.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Run {
    pub seed: u64,
    pub nodes: u64,
    pub workload: String,
    pub nemesis: String,
    pub begun_unix_secs: u64,
    /// Output of `trust-fabric --version`.
    pub version: String,
    /// The deliberate break of a test build, if one is switched on.
    pub broken: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    Revoke,
    SingleUse,
    Registry,
    Streams,
    Feed,
    Audit,
    Keys,
    Blocked,
    /// Of two regions.
    Federation,
    /// After the faults are healed.
    Liveness,
}

/// The act of an operation. `key`, `input` and `value` by kind; a member that is missing is unknown.
///
/// | Workload | Kind | `key` | `input` | `value` |
/// |---|---|---|---|---|
/// | revoke | `revoke` | subject | `{"jti"}` of the signal | `"accepted"` or `"duplicate"`; `ok`: 202 |
/// | revoke | `use` | subject | `{"what": "token" or "credential", "issued": n, "iat": Unix seconds}` | bool: accepted |
/// | single use | `spend` | the nonce, token or `jti` | `{"what": "nonce", "execution_token" or "set", "idempotency_key": text or null, "content": n}` | bool: accepted; of a set, `"duplicate"` or `"new"` |
/// | registry | `write` | tool | `{"value": n, "if_match": revision or null}`; null: without a condition | `{"revision"}` |
/// | registry | `read` | tool | `{"min_index": n or null}` | `{"value", "revision"}`; null: absent |
/// | registry | `remove` | tool | `{"if_match": revision or null}` | none |
/// | streams | `emit` | subject | `{"jti", "number": n}`; numbers of a subject grow | `"accepted"`, `"ignored"` or `"duplicate"`; `ok`: 202 |
/// | streams | `deliver` | subject | `{"stream"}` | `{"jti", "number"}`; one for each arrival, in order |
/// | feed | `change` | tool or subject | none | none; `ok`: acknowledged |
/// | feed | `event` | subscriber | none | `{"id", "subject"}`; one for each event, in order of arrival |
/// | feed | `resume` | subscriber | `{"last_id"}` | `"reset"` if the node announced one |
/// | feed | `all` | node | none | list of `{"id", "subject"}`, read once at the end from the oldest |
/// | audit | `verify` | `X-Request-Id` | `{"tool"}` | bool: accepted; `ok`: there is a verdict |
/// | audit | `trail` | node | `{"tool"}` | list of `{"request_id", "decision"}` at the end |
/// | audit | `chain` | node | none | bool: `trust-fabric audit verify` succeeds |
/// | keys | `mint` | `jti` | none | `{"kid", "exp"}`, Unix seconds |
/// | keys | `check` | `jti` | `{"at": Unix seconds}` | bool: the JWKS of the node verifies it |
/// | keys | `use` | `jti` | none | bool: accepted in a verification |
/// | keys | `taint` | `kid` | none | none; `ok`: acknowledged |
/// | blocked | `use` | caller | none | bool: admitted |
/// | blocked | `block` | caller | none | none; `ok`: 202 |
/// | blocked | `lift` | caller | none | its id, if the block was listed; `ok`: it is gone |
/// | federation | `revoke` | agent | `{"by": caller, "stale_after", "freshness": leases in nanoseconds}` | none; `ok`: 202 of the origin |
/// | federation | `use` | agent | `{"what": "crossing" or "through", "issued": n}` | bool: accepted by the relying region |
/// | federation | `read` | `ledger` | `{"region"}` | `{"hash", "count"}` of the ledger of the origin at the end |
/// | liveness | `works` | probe | none | bool: within the time |
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Revoke,
    Use,
    Spend,
    Write,
    Read,
    Remove,
    Emit,
    Deliver,
    Change,
    Event,
    Resume,
    All,
    Verify,
    Trail,
    Chain,
    Mint,
    Check,
    Taint,
    Block,
    Lift,
    Works,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The node executed it and answered; `value` is its answer. A refusal that is an answer (a token that is
    /// revoked) is `ok`.
    Ok,
    /// It had no effect and never will: 4xx, 429, a 503 that does not state that the outcome is unknown.
    Fail,
    /// No answer, or one that states that the outcome is unknown. It may take effect at any later time.
    Unknown,
}

/// A request to one node. A try at another node is another operation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Operation {
    pub process: u64,
    pub workload: Workload,
    pub kind: Kind,
    pub key: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// Just before the first byte was sent.
    pub invoke: Nanos,
    /// Just after the last byte of the answer was read, or the attempt was abandoned.
    pub end: Nanos,
    pub outcome: Outcome,
    pub node: u64,
    /// HTTP status; none without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `Svc-Index`: the log index that the node had applied when it answered. Not that of the operation itself: of an
    /// acknowledged write it is at least that; of a linearizable read it is at least that of the read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// Read after the faults were healed and the load had ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// Start or end of a fault.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Fault {
    pub time: Nanos,
    /// `kill`, `pause`, `partition`, `slow`, `set-back`, `clock`, `restart`, ...
    pub kind: String,
    /// The nodes that it concerns.
    pub targets: Vec<u64>,
    /// Details for a reader: `one-way 1>2`, `+3600 s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub is_end: bool,
}

/// The leader as one node sees it, recorded when it changes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Leader {
    pub time: Nanos,
    /// The node that reported it.
    pub seen_by: u64,
    pub leader: Option<u64>,
    pub term: Option<u64>,
}

/// Everything that a run recorded, operations in the order of their start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub run: Run,
    pub operations: Vec<Operation>,
    pub faults: Vec<Fault>,
    pub leaders: Vec<Leader>,
}

impl History {
    /// Reads `history.jsonl`. A last line that was cut short by a kill of the harness is left out.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let lines = BufReader::new(File::open(path).with_context(|| name.to_string())?).lines();
        let mut lines = (1..).zip(lines).peekable();
        let mut history = Self::default();
        while let Some((number, line)) = lines.next() {
            match serde_json::from_str(&line?) {
                Ok(record) => history.add(record),
                Err(error) if error.is_eof() && lines.peek().is_none() => {}
                Err(error) => return Err(error).with_context(|| format!("{name}, line {number}")),
            }
        }
        history.operations.sort_by_key(|operation| operation.invoke);
        Ok(history)
    }

    pub fn add(&mut self, record: Record) {
        match record {
            Record::Run(run) => self.run = run,
            Record::Operation(operation) => self.operations.push(operation),
            Record::Fault(fault) => self.faults.push(fault),
            Record::Leader(leader) => self.leaders.push(leader),
        }
    }
}

/// Writes a history while it happens.
pub struct Recorder {
    begun: Instant,
    file: Mutex<BufWriter<File>>,
}

impl Recorder {
    pub fn create(path: &Path, run: Run) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let recorder = Self { begun: Instant::now(), file: Mutex::new(BufWriter::new(file)) };
        recorder.write(&Record::Run(run))?;
        Ok(recorder)
    }

    pub fn now(&self) -> Nanos {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    pub fn write(&self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line).context("write the history")
    }

    /// Records the start or the end of a fault of these nodes, numbered from 0.
    pub fn fault(&self, kind: &str, nodes: &[usize], detail: &str, is_end: bool) -> Result<()> {
        self.write(&Record::Fault(Fault {
            time: self.now(),
            kind: kind.to_owned(),
            targets: nodes.iter().map(|node| *node as u64 + 1).collect(),
            detail: detail.to_owned(),
            is_end,
        }))
    }

    /// Writes all records so far to the file.
    pub fn flush(&self) -> Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush().context("write the history")
    }
}
