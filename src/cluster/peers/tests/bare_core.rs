//! Writes of the bare core: commands through the handle of the leader, without HTTP, callers and resources. A measurement,
//! `make bare-core`; the page on performance has its result beside etcd's.

use super::*;
use crate::cluster::{Applied, Corrupt, Stamp, Submission, View, Write};

/// As much as the benches write into etcd.
const BYTES: usize = 256;
const CLIENTS: [usize; 3] = [1, 64, 512];
const TIME: Duration = Duration::from_secs(5);

/// Stores each command under the index of its entry and its position in the entry.
struct Blobs;

impl Machine for Blobs {
    const TABLES: &'static [&'static str] = &["blob"];

    fn can_decode(command: &[u8]) -> bool {
        command.len() == BYTES
    }

    fn batch(_stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        let commands: Vec<_> = submissions.into_iter().map(|submission| submission.command).collect();
        commands.concat().into()
    }

    fn apply(&self, _view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        let mut applied = Applied { replies: Vec::new(), writes: Vec::new(), expected_hash: None };
        for (place, command) in (0_u64..).zip(batch.chunks_exact(BYTES)) {
            let key = [index.to_be_bytes(), place.to_be_bytes()].concat();
            applied.writes.push(Write::Put { table: "blob", key, value: command.to_vec() });
            applied.replies.push(Bytes::new());
        }
        Ok(applied)
    }

    fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).expect("positive"),
        u32::try_from(time.tv_nsec).expect("nanoseconds"),
    )
}

/// Latencies of the commands that `clients` write one after the other, each for [`TIME`].
async fn written(leader: &Node<Blobs>, clients: usize) -> Vec<Duration> {
    let clock = Clock::system();
    let end = clock.boot() + TIME;
    let mut writing = JoinSet::new();
    for client in 0..clients {
        let (handle, clock) = (leader.handle.clone(), clock.clone());
        writing.spawn(async move {
            let mut latencies = Vec::new();
            let command = Bytes::from(vec![u8::try_from(client % 256).expect("a byte"); BYTES]);
            while clock.boot() < end {
                let began = clock.boot();
                handle.propose(command.clone()).await.expect("applied");
                latencies.push(clock.boot().saturating_sub(began));
            }
            latencies
        });
    }
    let mut all = writing.join_all().await.concat();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: make bare-core"]
#[expect(clippy::print_stdout, reason = "its result")]
async fn bare_core_writes() {
    let site = Site::new(3);
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(site.node_with(id, &site.members, Blobs).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    let leader = nodes[0].handle.leader().expect("a leader");
    let leader = nodes.iter().find(|node| node.handle.node_id() == leader).expect("one of them");
    println!(
        "clients  writes/s  CPU µs  p50 ms  p99 ms   ({BYTES} bytes; three nodes and the clients in one process)"
    );
    for clients in CLIENTS {
        drop(written(leader, clients).await);
        let before = process_cpu();
        let latencies = written(leader, clients).await;
        let cpu = process_cpu().saturating_sub(before);
        let count = u32::try_from(latencies.len()).expect("few");
        let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
        println!(
            "{clients:7}  {:8.0}  {:6.1}  {:6.2}  {:6.2}",
            f64::from(count) / TIME.as_secs_f64(),
            (cpu / count).as_secs_f64() * 1e6,
            at(50),
            at(99),
        );
    }
    for node in nodes {
        node.stop().await;
    }
}
