//! The load: a fixed rate of each kind of request to all nodes, by clients that try the next node at once
//! after a failure.

mod clients;
pub mod findings;
pub mod history;
mod tokens;
pub mod under_load;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

use self::clients::{is_final, outcome_of};
use self::history::{Check, History, Kind, Micros, Outcome, Request, Try};
use self::tokens::{Token, Tokens, Verdict, keep};
use crate::certificates::TRUST_DOMAIN;
use crate::client;
use crate::credentials::{self, AUDIENCE, FABRIC, Issuer};
use crate::load::as_f64;
use crate::members::Members;
use crate::registry::write_verification;
use crate::settings::SIGNAL_ISSUER;
use crate::wire::{self, Connection, Target};

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
    /// Maximum tries of a request, each on another node
    #[arg(skip = usize::MAX)]
    pub tries_max: usize,
}

impl Rates {
    /// So many requests per second in all: 56 % verifications, 20 % exchanges, 20 % tool registrations, 4 %
    /// signals. A client tries a second node once.
    pub fn mixed(rate: f64) -> Self {
        Self {
            exchange_rate: rate * 0.2,
            verify_rate: rate * 0.56,
            signal_rate: rate * 0.04,
            write_rate: rate * 0.2,
            tries_max: 2,
            ..Self::patient()
        }
    }

    /// Tool registrations only, tried until they succeed.
    pub fn writes(rate: f64) -> Self {
        Self { write_rate: rate, ..Self::patient() }
    }

    const fn patient() -> Self {
        Self {
            exchange_rate: 0.0,
            verify_rate: 0.0,
            signal_rate: 0.0,
            write_rate: 0.0,
            try_timeout: 3000,
            patience: 30,
            tries_max: usize::MAX,
        }
    }

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
    /// The nodes to which requests are sent.
    in_use: Mutex<Vec<usize>>,
    history: Mutex<History>,
    tokens: Mutex<Tokens>,
}

/// Outcomes of the first and the last try of a request.
#[derive(Clone, Copy)]
struct Ends {
    first: Outcome,
    last: Outcome,
}

impl Ends {
    const fn of(only: Outcome) -> Self {
        Self { first: only, last: only }
    }
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
            in_use: Mutex::new((0..count).collect()),
            history: Mutex::default(),
            tokens: Mutex::default(),
        })
    }

    /// Records so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends requests to these nodes only, from now on.
    pub fn send_to(&self, nodes: Vec<usize>) {
        *self.in_use.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// The nodes to which requests are sent.
    pub fn in_use(&self) -> Vec<usize> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
            let outcome = outcome.last;
            if outcome != Outcome::Good {
                bail!("before the load, a request is answered: {}", history::name(outcome));
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
        let Ends { first, last: outcome } = outcome;
        self.history().requests.push(Request { kind, due, done, first, outcome });
    }

    async fn exchange(&self, number: u64) -> Ends {
        let Ok(credential) = self.issuer.credential_of(&self.account(number), number) else {
            return Ends::of(Outcome::None);
        };
        let body = credentials::exchange(&credential);
        let request = self.post(Kind::Exchange, "/v1/exchange/token", &body);
        let (outcome, answer) = self.call(Kind::Exchange, number, &request).await;
        let answer = answer.and_then(|answer| serde_json::from_slice::<Value>(answer.body()).ok());
        if let (Outcome::Good, Some(answer)) = (outcome.last, answer)
            && let Some(text) = answer["access_token"].as_str()
        {
            let token = Token { subject: number, text: text.into(), minted: Instant::now() };
            let mut tokens = self.tokens();
            let list = if number.is_multiple_of(2) { &mut tokens.waiting } else { &mut tokens.living };
            keep(list, token);
        }
        outcome
    }

    async fn verify(&self, number: u64) -> Ends {
        let drawn = self.tokens().draw(number);
        let Some((token, verdict)) = drawn else { return Ends::of(Outcome::None) };
        let request = self.verification(&token, number);
        let begun = Instant::now();
        let (mut node, mut first) = (self.first(number), None);
        let mut turn = 0;
        loop {
            let (last, accepted) = self.verify_at(node, &request, &token, verdict).await;
            let ends = Ends { first: *first.get_or_insert(last), last };
            if is_final(last) || accepted.is_some() || self.gives_up(begun, turn) {
                return ends;
            }
            node = self.next(node, turn).await;
            turn += 1;
        }
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

    async fn signal(self: &Arc<Self>, number: u64) -> Ends {
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
            if outcome.last == Outcome::Good {
                keep(&mut tokens.revoked, token.clone());
            }
        }
        if outcome.last == Outcome::Good {
            self.history().revoked.insert(token.subject, acknowledged);
            let request = self.verification(&token, number);
            let mut asking = JoinSet::new();
            for node in self.in_use() {
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

    async fn register(&self, number: u64) -> Ends {
        let body = self.entry(number).to_string();
        let request = self.post(Kind::Write, "/v1/tools", &body);
        let (outcome, _) = self.call(Kind::Write, number, &request).await;
        if outcome.last == Outcome::Good {
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
            for node in self.in_use() {
                self.verify_at(node, &request, token, Verdict::Refused).await;
            }
        }
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
