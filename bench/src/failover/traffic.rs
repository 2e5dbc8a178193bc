//! The load: a fixed rate of each kind of request to all nodes, by clients that try the next node at once
//! after a failure.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::history::{Check, History, Kind, Micros, Outcome, Request, Try};
use crate::certificates::TRUST_DOMAIN;
use crate::client;
use crate::credentials::{self, AUDIENCE, FABRIC, Issuer};
use crate::load::as_f64;
use crate::members::Members;
use crate::registry::write_verification;
use crate::settings::SIGNAL_ISSUER;
use crate::wire::{self, Connection, Response, Target};

/// First and longest pause of a client after a failure of all nodes.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Maximum age of a used token; its lifetime is five minutes.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(200);
/// Maximum retained tokens of each state.
const TOKENS_MAX: usize = 64;
/// Of so many verifications, one is of a revoked token and one of a token that is being revoked.
const REVOKED_EVERY: u64 = 4;
/// Maximum retained odd answers.
const ODD_MAX: usize = 20;
/// Tools per page of the final check.
const PAGE: usize = 1000;

/// Rates and patience.
#[derive(clap::Args, Clone, Copy)]
pub struct Rates {
    /// Exchanges per second, each of another workload
    #[arg(long, default_value_t = 40.0)]
    pub exchange_rate: f64,
    /// Verifications per second
    #[arg(long, default_value_t = 100.0)]
    pub verify_rate: f64,
    /// Signals per second, each of which revokes a workload with a token
    #[arg(long, default_value_t = 10.0)]
    pub signal_rate: f64,
    /// Tool registrations per second
    #[arg(long, default_value_t = 50.0)]
    pub write_rate: f64,
    /// Milliseconds after which a client abandons a try and takes the next node
    #[arg(long, default_value_t = 3000)]
    pub try_timeout: u64,
    /// Seconds after which a client abandons a request
    #[arg(long, default_value_t = 30)]
    pub patience: u64,
}

impl Rates {
    /// Requests of this kind per second.
    pub const fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Exchange => self.exchange_rate,
            Kind::Verify => self.verify_rate,
            Kind::Signal => self.signal_rate,
            Kind::Write => self.write_rate,
        }
    }
}

/// The clients and their records.
pub struct Traffic {
    begun: Instant,
    rates: Rates,
    /// Makes the names of this run unique.
    run: String,
    issuer: Arc<Issuer>,
    /// By kind and node.
    targets: [Vec<Target>; 4],
    idle: [Vec<Mutex<Vec<Connection>>>; 4],
    history: Mutex<History>,
    tokens: Mutex<Tokens>,
}

#[derive(Clone)]
struct Token {
    subject: u64,
    text: Arc<str>,
    minted: Instant,
}

/// Tokens by state of their workload: unrevoked, waiting for revocation, in revocation, revoked.
#[derive(Default)]
struct Tokens {
    living: VecDeque<Token>,
    waiting: VecDeque<Token>,
    revoking: VecDeque<Token>,
    revoked: VecDeque<Token>,
}

impl Tokens {
    /// A fresh token and its expected verdict. The tokens of a state take turns.
    fn draw(&mut self, number: u64) -> Option<(Token, Verdict)> {
        let first = match number % REVOKED_EVERY {
            0 => Some((&mut self.revoked, Verdict::Refused)),
            1 => Some((&mut self.revoking, Verdict::Either)),
            _ => None,
        };
        for (list, verdict) in first.into_iter().chain([(&mut self.living, Verdict::Accepted)]) {
            while let Some(token) = list.pop_back() {
                if token.minted.elapsed() < TOKEN_AGE_MAX {
                    list.push_front(token.clone());
                    return Some((token, verdict));
                }
            }
        }
        None
    }
}

/// Expected verdict of a verification.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Refused,
    /// The revocation is in flight.
    Either,
}

impl Traffic {
    pub fn new(members: &Members, rates: Rates) -> Result<Self> {
        let count = members.count();
        let gateway = members.targets("gateway")?;
        let targets =
            [members.targets("workload")?, gateway.clone(), members.targets("transmitter")?, gateway];
        Ok(Self {
            begun: Instant::now(),
            rates,
            run: format!("{:x}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()),
            issuer: Arc::clone(&members.issuer),
            targets,
            idle: std::array::from_fn(|_| (0..count).map(|_| Mutex::default()).collect()),
            history: Mutex::default(),
            tokens: Mutex::default(),
        })
    }

    /// Records so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn now(&self) -> Micros {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }

    /// Registers the first tool and mints the first tokens.
    pub async fn prepare(self: &Arc<Self>) -> Result<()> {
        for number in 0..8 {
            let entry = self.entry_of("base").to_string();
            let outcome = match number {
                0 => self.call(Kind::Write, 0, &self.post(Kind::Write, "/v1/tools", &entry)).await.0,
                _ => self.exchange(u64::MAX - number).await,
            };
            if outcome != Outcome::Good {
                bail!("before the load, a request is answered: {}", super::history::name(outcome));
            }
        }
        let mut history = self.history();
        history.tries.clear();
        Ok(())
    }

    /// Sends everything on its schedule until `stop`, and waits for requests in flight.
    pub async fn run(self: Arc<Self>, stop: watch::Receiver<bool>) -> Result<()> {
        let mut schedules = JoinSet::new();
        let begun = tokio::time::Instant::now();
        for kind in Kind::ALL {
            let rate = self.rates.of(kind);
            if rate <= 0.0 {
                continue;
            }
            let (traffic, mut stop) = (Arc::clone(&self), stop.clone());
            schedules.spawn(async move {
                let mut asking = JoinSet::new();
                for number in 0.. {
                    let due = begun + Duration::from_secs_f64(as_f64(number) / rate);
                    tokio::select! {
                        () = sleep_until(due) => {}
                        _ = stop.wait_for(|stop| *stop) => break,
                    }
                    while asking.try_join_next().is_some() {}
                    let traffic = Arc::clone(&traffic);
                    let due = due.into_std();
                    asking.spawn(async move { traffic.one(kind, number, due).await });
                }
                while asking.join_next().await.is_some() {}
            });
        }
        while let Some(schedule) = schedules.join_next().await {
            schedule?;
        }
        Ok(())
    }

    async fn one(self: Arc<Self>, kind: Kind, number: u64, due: Instant) {
        let outcome = match kind {
            Kind::Exchange => self.exchange(number).await,
            Kind::Verify => self.verify(number).await,
            Kind::Signal => self.signal(number).await,
            Kind::Write => self.register(number).await,
        };
        let due = u64::try_from((due - self.begun).as_micros()).unwrap_or_default();
        let done = self.now();
        self.history().requests.push(Request { kind, due, done, outcome });
    }

    async fn exchange(&self, number: u64) -> Outcome {
        let Ok(credential) = self.issuer.credential_of(&self.account(number), number) else {
            return Outcome::None;
        };
        let body = credentials::exchange(&credential);
        let request = self.post(Kind::Exchange, "/v1/exchange/token", &body);
        let (outcome, answer) = self.call(Kind::Exchange, number, &request).await;
        let answer = answer.and_then(|answer| serde_json::from_slice::<Value>(answer.body()).ok());
        if let (Outcome::Good, Some(answer)) = (outcome, answer)
            && let Some(text) = answer["access_token"].as_str()
        {
            let token = Token { subject: number, text: text.into(), minted: Instant::now() };
            let mut tokens = self.tokens();
            let list = if number.is_multiple_of(2) { &mut tokens.waiting } else { &mut tokens.living };
            keep(list, token);
        }
        outcome
    }

    async fn verify(&self, number: u64) -> Outcome {
        let drawn = self.tokens().draw(number);
        let Some((token, verdict)) = drawn else { return Outcome::None };
        let request = self.verification(&token, number);
        let begun = Instant::now();
        let mut node = self.first(number);
        for turn in 0.. {
            let (outcome, accepted) = self.verify_at(node, &request, &token, verdict).await;
            if is_final(outcome) || accepted.is_some() || begun.elapsed() > self.patience() {
                return outcome;
            }
            node = self.next(node, turn).await;
        }
        Outcome::None
    }

    /// One verification at one node, and its verdict, if there was one.
    async fn verify_at(
        &self,
        node: usize,
        request: &[u8],
        token: &Token,
        verdict: Verdict,
    ) -> (Outcome, Option<bool>) {
        let started = self.now();
        let (begun, answer) = self.once(Kind::Verify, node, request).await.unzip();
        let accepted = answer.as_ref().and_then(client::verdict);
        let outcome = match (accepted, verdict) {
            (Some(_), Verdict::Either)
            | (Some(true), Verdict::Accepted)
            | (Some(false), Verdict::Refused) => Outcome::Good,
            (Some(true), _) => Outcome::Wrong(200),
            (Some(false), _) => Outcome::Wrong(403),
            (None, _) => outcome_of(answer.as_ref(), &[]),
        };
        let begun = begun.unwrap_or(started);
        let done = self.now();
        self.note(Try { kind: Kind::Verify, node, sent: begun, done, outcome }, answer.as_ref());
        let mut history = self.history();
        if verdict != Verdict::Accepted {
            history.checks.push(Check {
                subject: token.subject,
                node,
                begun,
                is_accepted: accepted == Some(true),
            });
        }
        (outcome, accepted)
    }

    async fn signal(self: &Arc<Self>, number: u64) -> Outcome {
        let token = {
            let mut tokens = self.tokens();
            let token = tokens.waiting.pop_front();
            if let Some(token) = &token {
                keep(&mut tokens.revoking, token.clone());
            }
            token
        };
        // Without a token the revocation is still sent, but nothing verifies it.
        let account = token
            .as_ref()
            .map_or_else(|| format!("unverified{}-{number}", self.run), |token| self.account(token.subject));
        let body = self.revocation(&account, number);
        let request = self.post(Kind::Signal, "/v1/signals/events", &body);
        let (outcome, _) = self.call(Kind::Signal, number, &request).await;
        let acknowledged = self.now();
        let Some(token) = token else { return outcome };
        {
            let mut tokens = self.tokens();
            tokens.revoking.retain(|revoking| revoking.subject != token.subject);
            if outcome == Outcome::Good {
                keep(&mut tokens.revoked, token.clone());
            }
        }
        if outcome == Outcome::Good {
            self.history().revoked.insert(token.subject, acknowledged);
            let request = self.verification(&token, number);
            let mut asking = JoinSet::new();
            for node in 0..self.nodes() {
                let (traffic, request, token) = (Arc::clone(self), request.clone(), token.clone());
                asking.spawn(async move {
                    traffic.verify_at(node, &request, &token, Verdict::Refused).await;
                });
            }
            asking.detach_all();
        }
        outcome
    }

    /// The signal that revokes one workload.
    fn revocation(&self, account: &str, number: u64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let uri = format!("wimse://{TRUST_DOMAIN}/ns/demo/sa/{account}");
        json!({
            "iss": SIGNAL_ISSUER,
            "jti": format!("{}-{number}", self.run),
            "iat": now,
            "aud": FABRIC,
            "sub_id": {"format": "uri", "uri": uri},
            "events": {"https://schemas.openid.net/secevent/caep/event-type/session-revoked": {}},
        })
        .to_string()
    }

    async fn register(&self, number: u64) -> Outcome {
        let body = self.entry(number).to_string();
        let request = self.post(Kind::Write, "/v1/tools", &body);
        let (outcome, _) = self.call(Kind::Write, number, &request).await;
        if outcome == Outcome::Good {
            self.history().written.insert(number);
        }
        outcome
    }

    /// Content of tool `number`.
    pub fn entry(&self, number: u64) -> Value {
        self.entry_of(&format!("{number:016}"))
    }

    fn entry_of(&self, name: &str) -> Value {
        json!({
            "tool_id": format!("run-{}-{name}", self.run),
            "name": format!("Reports of shard {name}"),
            "resource_uri": AUDIENCE,
            "required_capabilities": ["db.read"],
            "max_blast_radius": "namespace:demo",
            "protocols": ["mcp", "http"],
            "version": "1.4.0",
            "description": format!("Answers a question in SQL over the tables of shard {name} of {}.", self.run),
        })
    }

    /// The tools of this run that a node lists, by number.
    pub async fn tools_at(&self, node: usize) -> Result<BTreeMap<u64, Value>> {
        let target = self.targets[Kind::Write.place()].get(node).context("no such node")?;
        let mut connection = target.connect().await?;
        let prefix = format!("run-{}-", self.run);
        let (mut found, mut last) = (BTreeMap::new(), prefix.clone());
        loop {
            let cursor = URL_SAFE_NO_PAD.encode(&last);
            let path = format!("/v1/tools?limit={PAGE}&cursor={cursor}");
            let request = wire::request("GET", &path, &target.host, "");
            let answer = timeout(wire::RESPONSE_TIMEOUT, connection.call(&request)).await??;
            if answer.status != 200 {
                bail!("node {}: a list of tools is answered {}", node + 1, answer.status);
            }
            let rows: Vec<Value> = serde_json::from_slice(answer.body())?;
            let Some(row) = rows.last() else { return Ok(found) };
            row["tool_id"].as_str().context("no tool_id")?.clone_into(&mut last);
            let is_last = rows.len() < PAGE || !last.starts_with(&prefix);
            for row in rows {
                let number = row["tool_id"].as_str().and_then(|id| id.strip_prefix(&prefix)?.parse().ok());
                found.extend(number.map(|number| (number, row)));
            }
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Verifies every revoked token that has not expired, at every node.
    pub async fn check_revoked(&self) {
        let tokens: Vec<_> = self.tokens().revoked.iter().cloned().collect();
        for (number, token) in tokens.iter().enumerate() {
            let request = self.verification(token, number as u64 | 1 << 62);
            for node in 0..self.nodes() {
                self.verify_at(node, &request, token, Verdict::Refused).await;
            }
        }
    }

    // --- how it is sent ----------------------------------------------------------------------

    /// Tries one node after the other until one succeeds or fails finally.
    async fn call(&self, kind: Kind, number: u64, request: &[u8]) -> (Outcome, Option<Response>) {
        let begun = Instant::now();
        let mut node = self.first(number);
        let good: &[u16] = match kind {
            Kind::Exchange | Kind::Verify => &[200],
            Kind::Signal => &[202],
            Kind::Write => &[200, 201],
        };
        let mut turn = 0;
        loop {
            let started = self.now();
            let (sent, answer) = self.once(kind, node, request).await.unzip();
            let (outcome, sent) = (outcome_of(answer.as_ref(), good), sent.unwrap_or(started));
            let done = self.now();
            self.note(Try { kind, node, sent, done, outcome }, answer.as_ref());
            if is_final(outcome) || begun.elapsed() > self.patience() {
                return (outcome, answer);
            }
            node = self.next(node, turn).await;
            turn += 1;
        }
    }

    /// Records a try, and its response if it is odd.
    fn note(&self, one: Try, answer: Option<&Response>) {
        let mut history = self.history();
        if let (Outcome::Wrong(status), Some(answer)) = (one.outcome, answer)
            && history.odd.len() < ODD_MAX
        {
            let body = String::from_utf8_lossy(answer.body()).into_owned();
            let at = as_f64(one.sent) / 1e6;
            history.odd.push(format!(
                "{} at {at:.3} s, node {}: {status} {body}",
                one.kind.name(),
                one.node + 1
            ));
        }
        history.tries.push(one);
    }

    /// One request to one node; the time of sending, and the response. Replaces a connection that the node has
    /// closed.
    async fn once(&self, kind: Kind, node: usize, request: &[u8]) -> Option<(Micros, Response)> {
        let target = &self.targets[kind.place()][node];
        let idle = || self.idle[kind.place()][node].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let asking = async {
            loop {
                let kept = idle().pop();
                let is_kept = kept.is_some();
                let mut connection = match kept {
                    Some(connection) => connection,
                    None => target.connect().await.ok()?,
                };
                let sent = self.now();
                match connection.call(request).await {
                    Ok(answer) => {
                        idle().push(connection);
                        return Some((sent, answer));
                    }
                    Err(_) if is_kept => {}
                    Err(_) => return None,
                }
            }
        };
        timeout(Duration::from_millis(self.rates.try_timeout), asking).await.ok().flatten()
    }

    /// The first node, in turns.
    fn first(&self, number: u64) -> usize {
        usize::try_from(number % self.nodes() as u64).unwrap_or_default()
    }

    /// The next node; after all nodes, a pause.
    async fn next(&self, node: usize, turn: usize) -> usize {
        let round = turn / self.nodes();
        if turn % self.nodes() == self.nodes() - 1 {
            sleep(
                (PAUSE * 2_u32.saturating_pow(u32::try_from(round).unwrap_or(u32::MAX).min(8)))
                    .min(PAUSE_MAX),
            )
            .await;
        }
        (node + 1) % self.nodes()
    }

    fn nodes(&self) -> usize {
        self.targets[0].len()
    }

    const fn patience(&self) -> Duration {
        Duration::from_secs(self.rates.patience)
    }

    fn account(&self, number: u64) -> String {
        format!("u{}-{number}", self.run)
    }

    fn post(&self, kind: Kind, path: &str, body: &str) -> Vec<u8> {
        let host = self.targets[kind.place()].first().map_or("localhost", |target| &target.host);
        wire::request_with("POST", path, host, "", body.as_bytes())
    }

    fn verification(&self, token: &Token, number: u64) -> Vec<u8> {
        let mut request = Vec::new();
        let host = self.targets[Kind::Verify.place()].first().map_or("localhost", |target| &target.host);
        let tool = format!("run-{}-base", self.run);
        write_verification(&mut request, host, &tool, &token.text, number);
        request
    }
}

fn keep(list: &mut VecDeque<Token>, token: Token) {
    if list.len() >= TOKENS_MAX {
        list.pop_front();
    }
    list.push_back(token);
}

/// Whether no other node has to be tried.
const fn is_final(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Good | Outcome::Wrong(_))
}

fn outcome_of(answer: Option<&Response>, good: &[u16]) -> Outcome {
    let Some(answer) = answer else { return Outcome::None };
    match answer.status {
        status if good.contains(&status) => Outcome::Good,
        503 if wire::find(answer.body(), b"outcome").is_some() => Outcome::Unknown,
        503 | 429 => Outcome::NotNow,
        other => Outcome::Wrong(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_outcome_differs_from_an_orderly_refusal() {
        let answer = |status, body: &str| Response { status, bytes: body.as_bytes().to_vec(), head: 0 };
        let of = |status, body| outcome_of(Some(&answer(status, body)), &[200, 201]);
        assert_eq!(of(201, ""), Outcome::Good);
        assert_eq!(of(503, r#"{"error_description":"its outcome is unknown"}"#), Outcome::Unknown);
        assert_eq!(of(503, r#"{"error_description":"no leader"}"#), Outcome::NotNow);
        assert_eq!(of(429, ""), Outcome::NotNow);
        assert_eq!(of(409, ""), Outcome::Wrong(409));
        assert_eq!(of(500, ""), Outcome::Wrong(500));
        assert_eq!(outcome_of(None, &[200]), Outcome::None);
    }
}
