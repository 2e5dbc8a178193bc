//! The well-behaved client, which attacks must not affect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use crate::load::{Schedule, Tally, Worker, Write};
use crate::node::Node;
use crate::{credentials, wire};

const CONNECTIONS: usize = 8;
/// Maximum duration.
const DURATION_MAX: Duration = Duration::from_secs(3600);

/// Exchanges in open loop, each with a new credential, on its own thread.
pub struct GoodClient {
    seen: Arc<Mutex<Window>>,
    schedule: Arc<Schedule>,
    threads: Vec<JoinHandle<()>>,
}

struct Window {
    tally: Tally,
    begun: Instant,
}

impl GoodClient {
    /// Starts with `rate` exchanges per second, as the caller `steady`.
    pub fn start(node: &Node, rate: f64) -> Result<Self> {
        let target = node.target("steady")?;
        let seen = Arc::new(Mutex::new(Window { tally: Tally::new(), begun: Instant::now() }));
        let schedule = Arc::new(Schedule::new(rate, DURATION_MAX));
        let write: Write = {
            let (issuer, host) = (Arc::clone(&node.issuer), target.host.clone());
            Arc::new(move |number, request| {
                // A token that could not be signed becomes a request that is answered 400.
                let token = issuer.credential((1 << 40) + number).unwrap_or_default();
                let body = credentials::exchange(&token);
                *request = wire::request_with("POST", "/v1/exchange/token", &host, "", body.as_bytes());
            })
        };
        let pacemaker = {
            let schedule = Arc::clone(&schedule);
            std::thread::spawn(move || schedule.keep())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = {
            let (seen, schedule) = (Arc::clone(&seen), Arc::clone(&schedule));
            std::thread::spawn(move || {
                runtime.block_on(async {
                    let mut workers = JoinSet::new();
                    for _ in 0..CONNECTIONS {
                        let mut worker = Worker::new(target.clone(), None, Arc::clone(&write));
                        let (seen, schedule) = (Arc::clone(&seen), Arc::clone(&schedule));
                        workers.spawn(async move {
                            while let Some((number, due)) = schedule.next().await {
                                worker.call(number, Some(due)).await;
                                lock(&seen).tally.add(&std::mem::replace(&mut worker.tally, Tally::new()));
                            }
                        });
                    }
                    while workers.join_next().await.is_some() {}
                });
            })
        };
        Ok(Self { seen, schedule, threads: vec![pacemaker, client] })
    }

    /// Records since the last call.
    pub fn take(&self) -> Tally {
        let fresh = Window { tally: Tally::new(), begun: Instant::now() };
        let mut window = std::mem::replace(&mut *lock(&self.seen), fresh);
        window.tally.elapsed = window.begun.elapsed();
        window.tally
    }

    /// Records while nothing else happens.
    pub async fn alone(&self, duration: Duration) -> Tally {
        drop(self.take());
        tokio::time::sleep(duration).await;
        self.take()
    }
}

impl Drop for GoodClient {
    fn drop(&mut self) {
        self.schedule.stop();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn lock(seen: &Mutex<Window>) -> MutexGuard<'_, Window> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
