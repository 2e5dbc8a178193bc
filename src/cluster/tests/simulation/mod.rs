//! Simulation: a whole cluster in one thread, on simulated time, network and disks. A seed gives the faults,
//! the delays and the requests of a run. Each seed is run in two processes, whose traces must be equal. The
//! randomness of the operating system, from which tokio and hash maps draw, is replaced in them
//! (`tests/faults/random.c`).
//!
//! Real are openraft with the product's configuration, the state machine with all of `apply`, the freshness
//! lease, the barrier, `ReadIndex`, deduplication, and the agreement of clocks. Simulated are time,
//! randomness, links (delay, reordering, loss, cuts in each direction), disks (a crash loses unsynced
//! entries, and nothing of the state or all but the latest snapshot) and one wrong wall clock. Logs are
//! purged, so that members that lag get snapshots. Not simulated: RocksDB, gRPC and its pipeline, changes of
//! the membership, the checks of disks, HTTP. Each run ends with a healing, after which every node must work
//! within 5 s.

mod clients;
mod disk;
mod invariants;
mod network;
mod node;
mod random;
mod state;
mod world;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::Command;

use openraft::alias::AsyncRuntimeOf;
use openraft::rt::deterministic_rng::DeterministicRng;

use self::invariants::Outcome;
use self::world::World;
use crate::cluster::type_config::{Commands, MemberRecord, Replies, TypeConfig};

/// The runtime of the product, whose random numbers follow from a seed.
type SimRuntime = DeterministicRng<AsyncRuntimeOf<TypeConfig>>;

openraft::declare_raft_types!(
    /// The type configuration of the product on that runtime.
    pub(crate) SimConfig:
        D = Commands,
        R = Replies,
        NodeId = u64,
        Node = MemberRecord,
        AsyncRuntime = SimRuntime,
);

fn run(nodes: u64, seed: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(SimRuntime::scope(seed, World::play(nodes, seed)))
}

/// Lines of a trace around a position.
fn excerpt(lines: &[String], at: usize) -> String {
    let first = at.saturating_sub(40);
    lines[first..lines.len().min(at + 20)].join("\n")
}

/// Runs each seed: nothing is violated. Prints the traces' digests.
#[track_caller]
fn runs_keep_the_invariants(nodes: u64, seeds: std::ops::Range<u64>) {
    let mut installed = 0;
    for seed in seeds {
        let first = run(nodes, seed);
        installed += first.lines.iter().filter(|line| line.contains("installs a snapshot")).count();
        if let Some(violation) = first.violations.first() {
            let at = first.lines.iter().position(|line| line.contains("VIOLATION")).unwrap_or_default();
            panic!("{nodes} nodes, seed {seed}: {violation}\n{}", excerpt(&first.lines, at));
        }
        println!("trace of seed {seed}: {} lines, {}", first.lines.len(), digest(&first.lines));
    }
    println!("{installed} snapshots were installed");
    assert_ne!(installed, 0, "snapshots are installed");
}

fn digest(lines: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    lines.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Runs a test of this module in a process without randomness, and returns the digests that it prints.
#[track_caller]
fn traces_of(test: &str, library: &Path) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "--ignored", "--nocapture", &format!("cluster::tests::simulation::{test}")]);
    let output = command.env("LD_PRELOAD", library).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().filter(|line| line.contains("trace of seed")).map(str::to_owned).collect()
}

/// Two processes keep every invariant, and have the same traces.
#[track_caller]
fn traces_are_equal(test: &str) {
    let directory = tempfile::tempdir().expect("directory");
    let library = directory.path().join("random.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/random.c");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.expect("cc starts").success());
    let first = traces_of(test, &library);
    assert_eq!(first.len(), 32, "one trace for each seed");
    assert_eq!(first, traces_of(test, &library));
}

#[test]
fn three_simulated_nodes_keep_every_invariant() {
    traces_are_equal("seeds_of_three_nodes");
}

#[test]
fn five_simulated_nodes_keep_every_invariant() {
    traces_are_equal("seeds_of_five_nodes");
}

#[test]
#[ignore = "three_simulated_nodes_keep_every_invariant runs it twice"]
fn seeds_of_three_nodes() {
    runs_keep_the_invariants(3, 0..32);
}

#[test]
#[ignore = "five_simulated_nodes_keep_every_invariant runs it twice"]
fn seeds_of_five_nodes() {
    runs_keep_the_invariants(5, 0..32);
}

/// Seeds that no run of the suite has.
#[test]
#[ignore = "minutes; `make proof` runs it"]
fn thousand_simulations_keep_every_invariant() {
    runs_keep_the_invariants(3, 1_000..2_000);
    runs_keep_the_invariants(5, 1_000..2_000);
}
