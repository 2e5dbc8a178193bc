//! Requests to nodes, each recorded with its times and its outcome.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;
use trust_fabric_bench::certificates::TRUST_DOMAIN;
use trust_fabric_bench::credentials::{AUDIENCE, FABRIC, Issuer};
use trust_fabric_bench::members::Members;
use trust_fabric_bench::settings::SIGNAL_ISSUER;
use trust_fabric_bench::wire::{self, Connection, Target};

use crate::history::{Kind, Nanos, Operation, Outcome, Record, Recorder, Workload};
use crate::schedule::Draw;

/// Maximum wait for one response; then its outcome is unknown. Longer than a node waits for its lease.
const CALL_MAX: Duration = Duration::from_secs(4);
/// Words in a 503 of a request that may have, or has, an effect.
const MAY_HAVE_EFFECT: [&str; 4] = ["outcome", "is applied", "done, but", "took too long"];
const CALLERS: [&str; 5] = ["gateway", "workload", "transmitter", "receiver", "operator"];
/// Callers that are blocked now and then.
pub const VISITORS: [&str; 3] = ["visitor-1", "visitor-2", "visitor-3"];

/// Connections to all nodes, for every caller.
pub struct Clients {
    targets: HashMap<&'static str, Vec<Target>>,
    idle: Mutex<HashMap<(&'static str, usize), Vec<Connection>>>,
    pub recorder: Arc<Recorder>,
    pub issuer: Arc<Issuer>,
    /// Makes names unique.
    pub run: String,
    /// Start of the run in Unix seconds.
    pub issued_at: u64,
    /// Members of the cluster now.
    nodes: Arc<Mutex<Vec<usize>>>,
    /// Nodes whose signing key was tainted: they do not mint until a successor is old enough.
    without_key: Mutex<BTreeSet<usize>>,
    processes: AtomicU64,
    numbers: AtomicU64,
    is_final: AtomicBool,
    stop: watch::Sender<bool>,
}

/// A response, or why there is none.
pub struct Answer {
    pub invoke: Nanos,
    pub end: Nanos,
    /// Whether a byte of the request may have reached the node.
    was_sent: bool,
    pub status: Option<u16>,
    head: String,
    pub body: Value,
}

impl Answer {
    /// The times of an observation that is no request of its own.
    pub const fn observed(invoke: Nanos, end: Nanos) -> Self {
        Self { invoke, end, was_sent: true, status: None, head: String::new(), body: Value::Null }
    }

    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Whether its description contains these words.
    pub fn says(&self, words: &str) -> bool {
        self.body["error_description"].as_str().is_some_and(|text| text.contains(words))
    }

    pub fn index(&self) -> Option<u64> {
        self.header("svc-index")?.parse().ok()
    }

    /// The outcome of a request whose answers are these statuses.
    pub fn outcome(&self, answers: &[u16]) -> Outcome {
        match self.status {
            None if self.was_sent => Outcome::Unknown,
            Some(status) if answers.contains(&status) => Outcome::Ok,
            Some(503) => {
                if MAY_HAVE_EFFECT.iter().any(|words| self.says(words)) {
                    Outcome::Unknown
                } else {
                    Outcome::Fail
                }
            }
            Some(500..) => Outcome::Unknown,
            _ => Outcome::Fail,
        }
    }
}

/// Outcome and status of a signal: `accepted`, `duplicate`, `ignored`.
pub fn acknowledged(answer: &Answer) -> (Outcome, Value) {
    (answer.outcome(&[202]), answer.body["status"].clone())
}

/// A sequential client, which gets a new number after an unknown outcome.
pub struct Process {
    number: u64,
    clients: Arc<Clients>,
    pub draw: Draw,
}

/// The description of an operation, before its answer.
pub struct Intent<'a> {
    pub workload: Workload,
    pub kind: Kind,
    pub key: &'a str,
    pub input: Value,
}

impl Clients {
    pub fn new(
        members: &Members,
        nodes: Arc<Mutex<Vec<usize>>>,
        recorder: Arc<Recorder>,
    ) -> Result<Arc<Self>> {
        let mut targets = HashMap::new();
        for caller in CALLERS.into_iter().chain(VISITORS) {
            targets.insert(caller, members.targets(caller)?);
        }
        Self::of(targets, Arc::clone(&members.issuer), nodes, recorder)
    }

    /// Clients of other nodes and callers.
    pub fn of(
        targets: HashMap<&'static str, Vec<Target>>,
        issuer: Arc<Issuer>,
        nodes: Arc<Mutex<Vec<usize>>>,
        recorder: Arc<Recorder>,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            targets,
            idle: Mutex::default(),
            recorder,
            issuer,
            run: format!("{:x}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()),
            issued_at: unix_secs(),
            nodes,
            without_key: Mutex::default(),
            processes: AtomicU64::new(1),
            numbers: AtomicU64::new(1),
            is_final: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        }))
    }

    /// The members of the cluster now.
    pub fn all(&self) -> Vec<usize> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a node mints nothing from now on.
    pub fn lose_key(&self, node: usize) {
        self.without_key.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    /// Members that mint: a node without a key is not ready.
    pub fn all_with_keys(&self) -> Vec<usize> {
        let without_key = self.without_key.lock().unwrap_or_else(PoisonError::into_inner);
        self.all().into_iter().filter(|node| !without_key.contains(node)).collect()
    }

    /// A number that no other operation of the run has.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the load.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for the end of the load, at most so long.
    pub async fn stopped_within(&self, longest: Duration) -> bool {
        let mut stop = self.stop.subscribe();
        timeout(longest, stop.wait_for(|stop| *stop)).await.is_ok()
    }

    /// Operations from now on are reads after the faults.
    pub fn begin_final(&self) {
        self.is_final.store(true, Ordering::Relaxed);
    }

    pub fn process(self: &Arc<Self>, seed: u64) -> Process {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let draw = Draw::new(seed ^ number.wrapping_mul(0x9e37_79b9));
        Process { number, clients: Arc::clone(self), draw }
    }

    /// Address and identity of a caller at a node.
    pub fn target(&self, caller: &str, node: usize) -> Result<&Target> {
        self.targets.get(caller).and_then(|targets| targets.get(node)).context("no such caller or node")
    }

    /// One request to one node, sent once.
    pub async fn call(&self, caller: &'static str, node: usize, request: &[u8]) -> Answer {
        let begun = self.recorder.now();
        let mut answer = Answer { was_sent: false, ..Answer::observed(begun, begun) };
        // A call that is abandoned while it connects has not been sent.
        let asking = async {
            let mut connection = self.connection(caller, node).await?;
            answer.invoke = self.recorder.now();
            answer.was_sent = true;
            let response = connection.call(request).await?;
            anyhow::Ok((connection, response))
        };
        let asked = timeout(CALL_MAX, asking).await;
        answer.end = self.recorder.now();
        if let Ok(Ok((connection, response))) = asked {
            answer.status = Some(response.status);
            answer.head = String::from_utf8_lossy(&response.bytes[..response.head]).into_owned();
            answer.body = serde_json::from_slice(response.body()).unwrap_or_default();
            self.idle().entry((caller, node)).or_default().push(connection);
        }
        answer
    }

    async fn connection(&self, caller: &'static str, node: usize) -> Result<Connection> {
        loop {
            let kept = self.idle().get_mut(&(caller, node)).and_then(Vec::pop);
            let Some(mut kept) = kept else { break };
            if !kept.is_closed().await {
                return Ok(kept);
            }
        }
        Ok(self.target(caller, node)?.connect().await?)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, HashMap<(&'static str, usize), Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// Any node.
    pub fn node(&mut self) -> usize {
        let nodes = self.clients.all();
        self.draw.one_of(&nodes)
    }

    /// Records an operation whose outcome and value follow from its answer.
    pub async fn operate(
        &mut self,
        intent: Intent<'_>,
        at: (&'static str, usize),
        request: &[u8],
        judge: impl Fn(&Answer) -> (Outcome, Value),
    ) -> Result<(Outcome, Value)> {
        let (caller, node) = at;
        let answer = self.clients.call(caller, node, request).await;
        let (outcome, value) = judge(&answer);
        self.record(intent, node, &answer, outcome, value.clone())?;
        Ok((outcome, value))
    }

    /// Records an operation with its answer.
    pub fn record(
        &mut self,
        intent: Intent<'_>,
        node: usize,
        answer: &Answer,
        outcome: Outcome,
        value: Value,
    ) -> Result<()> {
        let Intent { workload, kind, key, input } = intent;
        self.clients.recorder.write(&Record::Operation(Operation {
            process: self.number,
            workload,
            kind,
            key: key.to_owned(),
            input,
            invoke: answer.invoke,
            end: answer.end,
            outcome,
            node: node as u64 + 1,
            status: answer.status,
            index: answer.index(),
            value,
            is_final: self.clients.is_final.load(Ordering::Relaxed),
        }))?;
        if outcome == Outcome::Unknown {
            self.number = self.clients.processes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records an observation that is no request of its own.
    pub fn observe(&mut self, intent: Intent<'_>, node: usize, value: Value) -> Result<()> {
        let now = self.clients.recorder.now();
        self.record(intent, node, &Answer::observed(now, now), Outcome::Ok, value)
    }
}

pub fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A request with a JSON body.
pub fn post(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    wire::request_with("POST", path, "localhost", headers, body.to_string().as_bytes())
}

pub fn get(path: &str) -> Vec<u8> {
    wire::request("GET", path, "localhost", "")
}

/// The header that makes retries one request.
pub fn idempotency(key: Option<&str>) -> String {
    key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default()
}

/// The subject of a service account.
pub fn subject(account: &str) -> String {
    format!("wimse://{TRUST_DOMAIN}/ns/demo/sa/{account}")
}

/// The body of an exchange; with a nonce, for one use.
pub fn exchange(credential: &str, execution: Option<Value>) -> Value {
    let mut body = json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "subject_token": credential,
        "audience": AUDIENCE,
    });
    if let Some(execution) = execution {
        body["execution_scope"] = execution;
    }
    body
}

/// The body of a signal with one event.
pub fn signal(jti: &str, sub_id: &Value, event: &str, claims: &Value) -> Value {
    json!({
        "iss": SIGNAL_ISSUER,
        "jti": jti,
        "txn": jti,
        "iat": unix_secs(),
        "aud": FABRIC,
        "sub_id": sub_id,
        "events": {event: claims},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Option<u16>, was_sent: bool, text: &str) -> Answer {
        let head = "HTTP/1.1 200 OK\r\nSvc-Index: 42\r\nETag: \"7\"\r\n\r\n".to_owned();
        Answer { invoke: 1, end: 2, was_sent, status, head, body: json!({"error_description": text}) }
    }

    #[test]
    fn outcome_is_unknown_if_there_may_be_an_effect() {
        let of = |status, was_sent, text| answer(status, was_sent, text).outcome(&[200]);
        assert_eq!(of(Some(200), true, ""), Outcome::Ok);
        assert_eq!(of(Some(403), true, ""), Outcome::Fail);
        assert_eq!(of(Some(503), true, "the cluster has no leader"), Outcome::Fail);
        assert_eq!(of(Some(503), true, "the outcome of the write is unknown"), Outcome::Unknown);
        assert_eq!(of(Some(503), true, "the write is applied, but was not confirmed"), Outcome::Unknown);
        assert_eq!(of(Some(500), true, ""), Outcome::Unknown);
        assert_eq!(of(None, true, ""), Outcome::Unknown);
        assert_eq!(of(None, false, ""), Outcome::Fail, "never sent");
    }

    #[test]
    fn headers_have_any_case() {
        let answer = answer(None, true, "");
        assert_eq!((answer.index(), answer.header("etag")), (Some(42), Some("\"7\"")));
    }
}
