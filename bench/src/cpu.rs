//! Processor time of processes by kind of thread, from `/proc/<pid>/task/*/schedstat`, which counts nanoseconds.
//!
//! The counters of a thread are lost when it ends. The difference to the total of its process, which counts in ticks of
//! 10 ms, is reported as that of ended threads.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

use crate::node::cpu_secs;

/// Smaller differences come from the resolution of the ticks.
const TICKS_SECS: f64 = 0.025;

/// Kinds of threads of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Workers,
    LogWriter,
    LogLines,
    RocksDb,
    Other,
    /// Threads that have ended since.
    Ended,
}

impl Group {
    pub const ALL: [Self; 6] =
        [Self::Workers, Self::LogWriter, Self::LogLines, Self::RocksDb, Self::Other, Self::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "tokio workers",
            Self::LogWriter => "log-writer",
            Self::LogLines => "log-lines",
            Self::RocksDb => "RocksDB",
            Self::Other => "other",
            Self::Ended => "ended",
        }
    }

    /// By the name of a thread.
    fn of(name: &str) -> Self {
        match name {
            "tokio-rt-worker" => Self::Workers,
            "log-writer" => Self::LogWriter,
            "log-lines" => Self::LogLines,
            name if name.starts_with("rocksdb:") => Self::RocksDb,
            _ => Self::Other,
        }
    }
}

/// Counters of all threads of some processes.
pub struct Counters {
    /// By process and thread.
    nanos: BTreeMap<(u32, u32), (Group, u64)>,
    total_secs: f64,
}

impl Counters {
    pub fn now(pids: &[u32]) -> Result<Self> {
        let mut counters = Self { nanos: BTreeMap::new(), total_secs: 0.0 };
        for &pid in pids {
            let tasks = format!("/proc/{pid}/task");
            for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
                let task = task?;
                // The thread may have ended.
                let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
                let Ok(times) = fs::read_to_string(task.path().join("schedstat")) else { continue };
                let thread = task.file_name().to_string_lossy().parse()?;
                let nanos = run_nanos(&times).with_context(|| format!("{tasks}/{thread}/schedstat"))?;
                counters.nanos.insert((pid, thread), (Group::of(name.trim_end()), nanos));
            }
            counters.total_secs += cpu_secs(&pid.to_string())?;
        }
        Ok(counters)
    }

    /// The usage since earlier counters of the same processes.
    pub fn since(&self, before: &Self) -> Usage {
        let mut secs = BTreeMap::new();
        for (thread, (group, nanos)) in &self.nanos {
            let then = before.nanos.get(thread).map_or(0, |(_, nanos)| *nanos);
            let used = crate::load::as_f64(nanos.saturating_sub(then)) / 1e9;
            *secs.entry(*group).or_insert(0.0) += used;
        }
        let ended = self.total_secs - before.total_secs - secs.values().sum::<f64>();
        if ended > TICKS_SECS {
            secs.insert(Group::Ended, ended);
        }
        Usage { secs }
    }
}

/// Processor seconds by kind of thread.
#[derive(Clone, Default)]
pub struct Usage {
    secs: BTreeMap<Group, f64>,
}

impl Usage {
    pub fn of(&self, group: Group) -> f64 {
        self.secs.get(&group).copied().unwrap_or_default()
    }

    pub fn all(&self) -> f64 {
        self.secs.values().sum()
    }
}

/// The first number: nanoseconds on a processor. Then come the nanoseconds of waiting for one, and the number
/// of time slices.
fn run_nanos(schedstat: &str) -> Option<u64> {
    let numbers = schedstat.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
    match numbers.ok()?.as_slice() {
        [nanos, _, _] => Some(*nanos),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn time_on_a_processor_is_the_first_of_three_numbers() {
        assert_eq!(run_nanos("91946013 811694276 1949\n"), Some(91_946_013));
        for odd in ["", "1", "1 2", "1 2 3 4", "a 2 3", "-1 2 3"] {
            assert_eq!(run_nanos(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn threads_are_grouped_by_name() {
        for (name, group) in [
            ("tokio-rt-worker", Group::Workers),
            ("log-writer", Group::LogWriter),
            ("log-lines", Group::LogLines),
            ("rocksdb:low", Group::RocksDb),
            ("rocksdb:high", Group::RocksDb),
            ("trust-fabric", Group::Other),
            ("disk-watchdog", Group::Other),
        ] {
            assert_eq!(Group::of(name), group, "{name}");
        }
    }

    /// A thread of this process that works for `most`, and then lives until the returned sender is dropped.
    fn work(name: &str, most: Duration) -> (std::sync::mpsc::Sender<()>, thread::JoinHandle<()>) {
        let (end, ended) = channel();
        let (worked, has_worked) = channel();
        let body = move || {
            let begun = Instant::now();
            let mut value = 1_u64;
            while begun.elapsed() < most {
                value = std::hint::black_box(value.wrapping_mul(3));
            }
            worked.send(()).expect("the test waits");
            let _ = ended.recv();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread");
        has_worked.recv().expect("worked");
        (end, thread)
    }

    #[test]
    fn work_counts_for_the_group_of_its_thread() {
        let own = [std::process::id()];
        let before = Counters::now(&own).expect("counters");
        let (end, thread) = work("log-writer", Duration::from_millis(100));
        let used = Counters::now(&own).expect("counters").since(&before);
        assert!(used.of(Group::LogWriter) > 0.0 && used.of(Group::LogWriter) < 0.2);
        assert!(used.of(Group::RocksDb).abs() < f64::EPSILON);
        assert!(used.all() >= used.of(Group::LogWriter));
        drop(end);
        thread.join().expect("ended");
    }

    #[test]
    fn work_of_threads_that_ended_is_not_lost() {
        let own = [std::process::id()];
        let before = Counters::now(&own).expect("counters");
        let begun = cpu_secs("self").expect("time");
        let (end, thread) = work("rocksdb:low", Duration::from_millis(300));
        drop(end);
        thread.join().expect("ended");
        // A joined thread is still listed for a moment.
        let after = loop {
            let now = Counters::now(&own).expect("counters");
            if now.nanos.values().all(|(group, _)| *group != Group::RocksDb) {
                break now;
            }
            thread::yield_now();
        };
        let used = after.since(&before);
        let in_all = cpu_secs("self").expect("time") - begun;
        assert!(used.of(Group::Ended) > 0.0, "of {in_all} s");
    }
}
