//! A node that is killed before each of its I/O steps retains everything that it acknowledged.
//!
//! The node runs a short script in its own process under ptrace and is killed before its n-th step, for n =
//! 1, 2, 3, … A step is a system call that changes a file, its name or its durability in the data directory.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "the stack of a test holds a whole node and its configuration")]

mod node_under_test;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use node_under_test::{Site, copy, newest_snapshot};
use trust_fabric::id::Digest128;
use trust_fabric::state::{self, MintedToken, PolicySource, Refusal};

/// Names the data directory of the scripted process.
const SCRIPT_DIRECTORY: &str = "TRUST_FABRIC_TEST_LIFE";
/// Kills per run of the normal test suite.
const KILLS_IN_CI: usize = 60;

fn nonce(number: u8) -> Digest128 {
    Digest128::from_bytes([number; 16])
}

/// Reports an acknowledgement in a single write: a kill leaves the whole line or none of it.
fn acknowledge(what: &str) {
    use std::io::Write as _;
    std::io::stderr().write_all(format!("ack {what}\n").as_bytes()).expect("write");
}

const POLICY: &str = include_str!("../policies/exchange.rego");

/// The script: two starts, nonces, a policy, a tainted key, two snapshots. It runs only when [`SCRIPT_DIRECTORY`] is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "configures the scripted process")]
async fn a_life_to_be_interrupted() {
    let Some(directory) = std::env::var_os(SCRIPT_DIRECTORY) else { return };
    let site = Site::at(Path::new(&directory));
    let data = site.data();
    for (life, first) in [(1, 0_u8), (2, 100)] {
        let node = site.start(&data).await.expect("starts");
        let state = &node.running.state;
        let spend = async |number: u8| {
            state
                .as_node()
                .record_exchange(Some(nonce(number)), state::owner("test"), MintedToken::default())
                .await
                .expect("fresh");
            acknowledge(&format!("nonce {number}"));
        };
        for number in first..first + 3 {
            spend(number).await;
        }
        let digest = format!("policy-{life}");
        let source = PolicySource { path: "a.rego".into(), text: format!("{POLICY}\n# {life}") };
        state.as_node().put_policy(digest.clone(), vec![source], String::new()).await.expect("policy");
        acknowledge(&format!("policy {digest}"));
        let kid = state.index().signing_keys.keys().next().expect("key").clone();
        state.as_node().taint_signing_key(kid.clone(), nonce(255)).await.expect("tainted");
        acknowledge(&format!("tainted {kid}"));

        let before = newest_snapshot(&data);
        state.cluster().snapshot().await.expect("snapshot");
        let mut number = first + 3;
        while newest_snapshot(&data) == before && number < first + 90 {
            spend(number).await;
            number += 1;
        }
        node.stop().await;
    }
    acknowledge("end");
}

/// Result of one run of the script.
struct Run {
    acknowledged: Vec<String>,
    /// The step before which it was killed; `None` if it finished.
    killed_at: Option<String>,
    steps: usize,
}

/// Runs the script until step `last`.
fn run_until(site: &Site, last: usize) -> Run {
    let program = std::env::current_exe().expect("program");
    // The shell stops itself first, so that no step precedes the tracing.
    let mut child = Command::new("sh")
        .args(["-c", r#"kill -STOP $$; exec "$0" --exact a_life_to_be_interrupted --nocapture"#])
        .arg(program)
        .env(SCRIPT_DIRECTORY, site.directory())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let said = BufReader::new(child.stderr.take().expect("output"));
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("pid"));
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("stopped");
    let (killed_at, steps) = watch(pid, &site.data(), last);
    drop(child.wait());
    let acknowledged = said
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.split_once("ack ").map(|(_, what)| what.to_owned()))
        .collect();
    Run { acknowledged, killed_at, steps }
}

fn watch(pid: Pid, data: &Path, last: usize) -> (Option<String>, usize) {
    use ptrace::Options;
    ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE).expect("watch");
    kill(pid, Signal::SIGCONT).expect("go on");
    let mut steps = 0;
    let mut killed_at = None;
    loop {
        // Without `__WALL` the exit of the process is not reported for every thread.
        let status = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).expect("wait");
        let (thread, signal) = match status {
            WaitStatus::Exited(wait_for_exit, _) | WaitStatus::Signaled(wait_for_exit, ..)
                if wait_for_exit == pid =>
            {
                return (killed_at, steps);
            }
            WaitStatus::PtraceSyscall(thread) => {
                if killed_at.is_none()
                    && let Some(step) = step(thread, data)
                {
                    steps += 1;
                    if steps == last {
                        killed_at = Some(step);
                        // The kill comes before the step is taken.
                        kill(pid, Signal::SIGKILL).expect("kill");
                    }
                }
                (thread, None)
            }
            WaitStatus::Stopped(thread, Signal::SIGCONT | Signal::SIGSTOP | Signal::SIGTRAP) => {
                (thread, None)
            }
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            _ => continue,
        };
        // The thread may have exited.
        let _ = ptrace::syscall(thread, signal);
    }
}

/// The step that a thread is about to take.
fn step(thread: Pid, data: &Path) -> Option<String> {
    const ENTRY: u8 = 1;
    if ptrace::syscall_info(thread).ok()?.op != ENTRY {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut arguments = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0));
    let (name, on_file) = step_name(number)?;
    let first = arguments.next()?;
    if name == "openat" {
        let flags = arguments.nth(1)?;
        return (flags & u64::from(libc::O_CREAT.unsigned_abs()) != 0).then(|| name.to_owned());
    }
    if !on_file {
        return Some(name.to_owned());
    }
    let file = fs::read_link(format!("/proc/{thread}/fd/{first}")).ok()?;
    let below = file.strip_prefix(data).ok()?;
    Some(format!("{name} {}", kind_of(below)))
}

/// The path without numbers.
fn kind_of(path: &Path) -> String {
    let name = path.display().to_string();
    if path.starts_with("keys") {
        "keys/…".to_owned()
    } else {
        name.replace(|c: char| c.is_ascii_digit(), "")
    }
}

/// The system calls that are steps, and whether their first argument is a file descriptor.
fn step_name(number: i64) -> Option<(&'static str, bool)> {
    Some(match number {
        libc::SYS_write => ("write", true),
        libc::SYS_pwrite64 => ("pwrite", true),
        libc::SYS_writev => ("writev", true),
        libc::SYS_fsync => ("fsync", true),
        libc::SYS_fdatasync => ("fdatasync", true),
        libc::SYS_sync_file_range => ("sync_file_range", true),
        libc::SYS_ftruncate => ("ftruncate", true),
        libc::SYS_fallocate => ("fallocate", true),
        libc::SYS_openat => ("openat", false),
        libc::SYS_renameat | libc::SYS_renameat2 => ("rename", false),
        libc::SYS_unlinkat => ("unlink", false),
        libc::SYS_linkat => ("link", false),
        libc::SYS_mkdirat => ("mkdir", false),
        libc::SYS_copy_file_range => ("copy", false),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => ("rename", false),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink | libc::SYS_rmdir => ("unlink", false),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => ("link", false),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => ("mkdir", false),
        _ => return None,
    })
}

/// The node starts with everything acknowledged, and its log alone produces the same state.
async fn assert_complete(site: &Site, life: &Run) {
    let at = life.killed_at.as_deref().unwrap_or("the end");
    let data = site.data();
    let node = site.start(&data).await.unwrap_or_else(|error| panic!("killed at {at}: {error}"));
    let state = &node.running.state;
    let history: Vec<_> = state.index().policy_history.values().map(|change| change.digest.clone()).collect();
    for what in &life.acknowledged {
        match what.split_once(' ') {
            Some(("nonce", number)) => {
                let again = state
                    .as_node()
                    .record_exchange(
                        Some(nonce(number.parse().expect("number"))),
                        state::owner("test"),
                        MintedToken::default(),
                    )
                    .await;
                assert!(
                    matches!(again, Err(state::Error::Refused(Refusal::NonceSpent))),
                    "killed at {at}: {what}: {again:?}"
                );
            }
            Some(("policy", digest)) => {
                assert!(history.iter().any(|known| known == digest), "killed at {at}: {what}");
                assert!(state.policy_sources(digest).expect("row").is_some(), "killed at {at}: {what}");
            }
            Some(("tainted", kid)) => {
                assert!(state.index().signing_keys[kid].tainted_at.is_some(), "killed at {at}: {what}");
            }
            _ => assert_eq!(what, "end"),
        }
    }
    let private = |kid: &str| data.join("keys").join(format!("{kid}.p8")).exists();
    let live = state
        .index()
        .signing_keys
        .values()
        .filter(|key| key.tainted_at.is_none() && private(&key.kid))
        .count();
    assert!(live >= 2, "killed at {at}: {live} keys");
    node.stop().await;

    let replayed = site.beside("replayed");
    copy(&data, &replayed);
    fs::remove_dir_all(replayed.join("state")).expect("remove the state");
    fs::remove_dir_all(replayed.join("snapshots")).expect("remove the snapshots");
    let mut hashes = Vec::new();
    for data in [&data, &replayed] {
        let node = site.start(data).await.unwrap_or_else(|error| panic!("killed at {at}, again: {error}"));
        hashes.push(node.running.state.cluster().state_hash().expect("hash"));
        node.stop().await;
    }
    assert_eq!(hashes[0], hashes[1], "killed at {at}: the state is not the one the log makes");
}

async fn kill_at(stride: usize, first: usize) -> String {
    let whole = run_until(&Site::new(), usize::MAX);
    assert_eq!(whole.acknowledged.last().map(String::as_str), Some("end"), "the life came to its end");
    let stride = if stride == 0 { whole.steps.div_ceil(KILLS_IN_CI) } else { stride };
    let mut kinds: HashMap<String, (u32, usize, usize)> = HashMap::new();
    let mut killed = 0;
    for last in (first..).step_by(stride) {
        let site = Site::new();
        let life = run_until(&site, last);
        assert_complete(&site, &life).await;
        let Some(at) = life.killed_at else { break };
        killed += 1;
        let sort = kinds.entry(at).or_insert((0, usize::MAX, 0));
        let acknowledged = life.acknowledged.len();
        *sort = (sort.0 + 1, sort.1.min(acknowledged), sort.2.max(acknowledged));
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_unstable();
    let mut table = format!(
        "{killed} kills, {stride} step(s) apart; a whole life has about {} steps.\n\n\
         | Killed before | Times | Acknowledged by then |\n|---|---|---|\n",
        whole.steps
    );
    for (kind, (times, least, most)) in kinds {
        writeln!(table, "| {kind} | {times} | {least}–{most} |").expect("write");
    }
    println!("{table}");
    table
}

#[tokio::test]
async fn a_node_killed_between_steps_retains_acknowledged_writes() {
    Box::pin(kill_at(0, 1)).await;
}

#[tokio::test]
#[ignore = "kills before every single step, which takes ten minutes; part of `make proof`"]
async fn a_node_killed_before_any_step_retains_acknowledged_writes() {
    Box::pin(kill_at(1, 1)).await;
}
