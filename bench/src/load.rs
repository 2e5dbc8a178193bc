//! Load and its measurement: open loop (a schedule that does not wait for answers) and closed loop (as fast
//! as the responses come).
//!
//! Open loop counts latency from the due time of a request, so that a stall of the node counts for every
//! request that had to wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::wire::{Connection, RESPONSE_TIMEOUT, Target};

/// Maximum recorded latency.
const LATENCY_MAX_MICROS: u64 = 60_000_000;
/// A request that is later than this after the end of the schedule is not sent.
const LATE_MAX: Duration = Duration::from_millis(100);
/// Maximum pause of the pacemaker.
const PACE_PAUSE: Duration = Duration::from_micros(500);

/// Writes request n into a buffer.
pub type Write = Arc<dyn Fn(u64, &mut Vec<u8>) + Send + Sync>;

/// Latencies in microseconds per status; 0 is no response.
pub type Latencies = BTreeMap<u16, Histogram<u64>>;

/// Results of requests.
#[derive(Clone)]
pub struct Tally {
    /// Counted from the due time.
    pub since_due: Latencies,
    /// Counted from the time of sending.
    pub since_sent: Latencies,
    pub elapsed: Duration,
}

impl Default for Tally {
    fn default() -> Self {
        Self { since_due: BTreeMap::new(), since_sent: BTreeMap::new(), elapsed: Duration::ZERO }
    }
}

impl Tally {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn record(&mut self, status: u16, due: Instant, sent: Instant) {
        let now = Instant::now();
        for (kind, since) in [(&mut self.since_due, due), (&mut self.since_sent, sent)] {
            let micros = u64::try_from((now - since).as_micros()).unwrap_or(LATENCY_MAX_MICROS);
            kind.entry(status).or_insert_with(histogram).saturating_record(micros.max(1));
        }
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in
            [(&mut self.since_due, &other.since_due), (&mut self.since_sent, &other.since_sent)]
        {
            for (status, latencies) in theirs {
                // Same range and precision: they always add.
                let _ = mine.entry(*status).or_insert_with(histogram).add(latencies);
            }
        }
    }

    /// Responses with this status.
    pub fn count(&self, status: u16) -> u64 {
        self.since_due.get(&status).map_or(0, Histogram::len)
    }

    pub fn total(&self) -> u64 {
        self.since_due.values().map(Histogram::len).sum()
    }

    /// Responses of this status per second.
    pub fn per_sec(&self, status: u16) -> f64 {
        as_f64(self.count(status)) / self.elapsed.as_secs_f64()
    }

    /// Responses with server errors except 503.
    pub fn server_errors(&self) -> u64 {
        self.since_due
            .iter()
            .filter(|(status, _)| is_server_error(**status))
            .map(|(_, seen)| seen.len())
            .sum()
    }

    /// Every status with its number.
    pub fn statuses(&self) -> String {
        let name = |status: &u16| if *status == 0 { "no answer".to_owned() } else { status.to_string() };
        let counts: Vec<_> =
            self.since_due.iter().map(|(status, seen)| format!("{}: {}", name(status), seen.len())).collect();
        counts.join(", ")
    }
}

/// A server error except 503.
pub fn is_server_error(status: u16) -> bool {
    status >= 500 && status != 503
}

/// The quantile in milliseconds; 0 for none.
pub fn quantile_ms(latencies: Option<&Histogram<u64>>, quantile: f64) -> f64 {
    latencies.map_or(0.0, |latencies| as_f64(latencies.value_at_quantile(quantile)) / 1000.0)
}

/// For rates and means, where the last digits of a large count do not matter.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Sends requests over `connections` as fast as they are answered, for `duration`.
pub async fn closed_loop(
    target: &Target,
    write: &Write,
    connections: usize,
    duration: Duration,
) -> Result<Tally> {
    let opened = open(target, connections).await?;
    closed_loop_over(opened, target, write, duration, u64::MAX).await
}

/// The same over open connections, with at most this number of requests.
pub async fn closed_loop_over(
    opened: Vec<Connection>,
    target: &Target,
    write: &Write,
    duration: Duration,
    most: u64,
) -> Result<Tally> {
    let mut workers = JoinSet::new();
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    for connection in opened {
        let (target, write, next) = (target.clone(), Arc::clone(write), Arc::clone(&next));
        workers.spawn(async move {
            let mut worker = Worker::new(target, Some(connection), write);
            while begun.elapsed() < duration {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= most {
                    break;
                }
                worker.call(number, None).await;
            }
            worker.tally
        });
    }
    gather(workers, begun).await
}

/// Sends `rate` requests per second for `duration` over at most `connections`. Requests that are still due at
/// the end because every connection waited are neither sent nor counted.
pub async fn open_loop(
    target: &Target,
    write: &Write,
    connections: usize,
    rate: f64,
    duration: Duration,
) -> Result<Tally> {
    let mut workers = JoinSet::new();
    let opened = open(target, connections).await?;
    let schedule = Arc::new(Schedule::new(rate, duration));
    let pacemaker = {
        let schedule = Arc::clone(&schedule);
        std::thread::spawn(move || schedule.keep())
    };
    for connection in opened {
        let (target, write, schedule) = (target.clone(), Arc::clone(write), Arc::clone(&schedule));
        workers.spawn(async move {
            let mut worker = Worker::new(target, Some(connection), write);
            while let Some((number, due)) = schedule.next().await {
                worker.call(number, Some(due)).await;
            }
            worker.tally
        });
    }
    let tally = gather(workers, schedule.begun).await;
    pacemaker.join().map_err(|_| anyhow!("the pacemaker panicked"))?;
    tally
}

async fn gather(mut workers: JoinSet<Tally>, begun: Instant) -> Result<Tally> {
    let mut all = Tally::new();
    while let Some(tally) = workers.join_next().await {
        all.add(&tally?);
    }
    all.elapsed = begun.elapsed();
    Ok(all)
}

/// Opens this many connections, a few at a time.
pub async fn open(target: &Target, connections: usize) -> Result<Vec<Connection>> {
    const AT_ONCE: usize = 32;
    let mut opening = JoinSet::new();
    let mut opened = Vec::with_capacity(connections);
    for _ in 0..connections {
        if opening.len() == AT_ONCE
            && let Some(connection) = opening.join_next().await
        {
            opened.push(connection??);
        }
        let target = target.clone();
        opening.spawn(async move { target.connect().await });
    }
    while let Some(connection) = opening.join_next().await {
        opened.push(connection??);
    }
    Ok(opened)
}

/// Due times of requests.
pub struct Schedule {
    begun: Instant,
    duration: Duration,
    interval: Duration,
    count: u64,
    taken: AtomicU64,
    due: Semaphore,
    stopped: AtomicBool,
}

impl Schedule {
    /// `rate` per second, for `duration`, from now on.
    pub fn new(rate: f64, duration: Duration) -> Self {
        let interval = Duration::from_secs_f64(1.0 / rate.max(0.001));
        let count = u64::try_from(duration.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u64::MAX);
        Self {
            begun: Instant::now(),
            duration,
            interval,
            count,
            taken: AtomicU64::new(0),
            due: Semaphore::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Releases requests at their due time. Runs on its own thread, because the timer of the runtime is
    /// coarse.
    pub fn keep(&self) {
        let mut released = 0;
        while released < self.count && !self.stopped.load(Ordering::Relaxed) {
            let due = self.begun.elapsed().as_nanos() / self.interval.as_nanos().max(1) + 1;
            let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.count);
            self.due.add_permits(usize::try_from(due - released).unwrap_or_default());
            released = due;
            std::thread::sleep(self.interval.min(PACE_PAUSE));
        }
        self.due.close();
    }

    /// Ends the schedule.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.due.close();
    }

    /// Waits for the next request. Returns its number and due time, `None` after the last one.
    pub async fn next(&self) -> Option<(u64, Instant)> {
        let over = self.begun.elapsed() > self.duration + LATE_MAX;
        if over || self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        // After the schedule is closed, due requests are taken without a permit.
        if let Ok(permit) = self.due.acquire().await {
            permit.forget();
        }
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let due = self.begun + self.interval.mul_f64(as_f64(number));
        (number < self.count).then_some((number, due))
    }
}

/// Sends requests on one connection after the other.
pub struct Worker {
    target: Target,
    connection: Option<Connection>,
    write: Write,
    request: Vec<u8>,
    pub tally: Tally,
}

impl Worker {
    /// Opens a connection if it has none.
    pub fn new(target: Target, connection: Option<Connection>, write: Write) -> Self {
        Self { target, connection, write, request: Vec::new(), tally: Tally::new() }
    }

    /// Sends a request and records it; a lost connection is replaced for the next one.
    pub async fn call(&mut self, number: u64, due: Option<Instant>) {
        (self.write)(number, &mut self.request);
        let sent = Instant::now();
        let due = due.unwrap_or(sent);
        let status = timeout(RESPONSE_TIMEOUT, self.try_ask()).await.unwrap_or_default().unwrap_or_default();
        self.tally.record(status, due, sent);
    }

    async fn try_ask(&mut self) -> Option<u16> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.target.connect().await.ok()?,
        };
        let (status, last) = connection.call_status(&self.request).await.ok()?;
        self.connection = (!last).then_some(connection);
        Some(status)
    }
}

fn histogram() -> Histogram<u64> {
    // Two digits suffice; the bounds are constants.
    Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, 2).unwrap_or_else(|_| unreachable!("constant bounds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_separate_refusals_from_errors() {
        let now = Instant::now();
        let mut all = Tally::new();
        for status in [200, 200, 503, 500, 0] {
            let mut one = Tally::new();
            one.record(status, now, now);
            all.add(&one);
        }
        assert_eq!((all.total(), all.count(200), all.server_errors()), (5, 2, 1));
        assert_eq!(all.statuses(), "no answer: 1, 200: 2, 500: 1, 503: 1");
    }

    #[tokio::test]
    async fn schedule_hands_out_each_request_once_and_ends() {
        let schedule = Arc::new(Schedule::new(1_000_000.0, Duration::from_micros(100)));
        let keeper = Arc::clone(&schedule);
        let pacemaker = std::thread::spawn(move || keeper.keep());
        let mut seen = Vec::new();
        while let Some((number, _)) = schedule.next().await {
            seen.push(number);
        }
        pacemaker.join().expect("pacemaker");
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
