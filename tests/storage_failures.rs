//! A disk that fails: the node stops instead of acknowledging, and retains what it acknowledged before.
//!
//! `strace` makes system calls of the running node fail.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod node_under_test;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use node_under_test::{Process, Site, client, exchange, files, is_ready};
use rustix::process::{Pid, Signal, kill_process};
use trust_fabric::clock::Clock;
use trust_fabric::limits;

const BEFORE: u32 = 20;

/// Injects a fault (`what`) into system calls of a running node from now on.
fn break_disk(node: &Process, calls: &str, what: &str, only: Option<&PathBuf>) -> Child {
    let mut command = Command::new("strace");
    command.args(["-f", "-o", "/dev/null", "-p", &node.child.id().to_string()]);
    command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{what}")]);
    command.args(only.iter().flat_map(|path| ["-P".as_ref(), path.as_os_str()]));
    let mut strace = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace is missing: scripts/install.sh test installs it");
    let mut printed = BufReader::new(strace.stderr.take().expect("output"));
    let mut line = String::new();
    printed.read_line(&mut line).expect("line");
    assert!(line.contains("attached"), "{line}");
    // The remaining output is not read and fits into the pipe.
    strace.stderr = Some(printed.into_inner());
    strace
}

/// The log file that the node appends to.
fn open_log(site: &Site) -> PathBuf {
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    files(&site.data().join("raft")).into_iter().rfind(is_log).expect("log")
}

async fn spend(node: &Process, credential: &str, number: u32) -> Result<u16, reqwest::Error> {
    let url = format!("http://{}/v1/exchange/token", node.address);
    let body = exchange(credential, &format!("nonce-{number}")).to_string();
    client().post(url).body(body).send().await.map(|answer| answer.status().as_u16())
}

async fn stops_and_comes_back(calls: &str, what: &str, only_the_log: bool) {
    let site = Site::new();
    let credential = site.credential();
    let node = site.spawn().expect("starts");
    for number in 0..BEFORE {
        assert_eq!(spend(&node, &credential, number).await.expect("answer"), 200);
    }
    let log = only_the_log.then(|| open_log(&site));
    let mut strace = break_disk(&node, calls, what, log.as_ref());
    let answer = spend(&node, &credential, BEFORE).await;
    assert!(!matches!(answer, Ok(200)), "acknowledged before durable");
    let (status, printed) = node.wait_for_exit();
    strace.wait().expect("strace ends");
    assert!(!status.success(), "{status}");
    assert!(status.code().is_some(), "ended by a signal: {status}: {printed}");
    assert!(printed.contains("replica has failed"), "{printed}");
    assert!(!printed.contains("panicked"), "{printed}");

    let node = site.spawn().expect("comes back");
    for number in 0..BEFORE {
        assert_eq!(
            spend(&node, &credential, number).await.expect("answer"),
            400,
            "nonce {number} was forgotten"
        );
    }
    assert_eq!(spend(&node, &credential, BEFORE + 1).await.expect("answer"), 200);
    node.kill();
}

#[tokio::test]
async fn a_failed_sync_stops_the_node() {
    stops_and_comes_back("fsync,fdatasync", "error=EIO", false).await;
}

#[tokio::test]
async fn a_full_disk_stops_the_node() {
    stops_and_comes_back("write,pwrite64", "error=ENOSPC", true).await;
}

#[tokio::test]
async fn a_failed_write_of_the_log_stops_the_node() {
    stops_and_comes_back("write,pwrite64", "error=EIO", true).await;
}

/// Regression: a thread stuck in fsync kept the process from exiting.
#[tokio::test]
async fn node_with_a_hung_disk_exits_on_a_signal() {
    let site = Site::new();
    let credential = site.credential();
    let node = site.spawn().expect("starts");
    assert_eq!(spend(&node, &credential, 0).await.expect("answer"), 200);
    let mut strace = break_disk(&node, "fsync,fdatasync", "delay_enter=8000000", None);
    let mut readiness = String::new();
    let waited = async {
        while !readiness.contains("disk") {
            let url = format!("http://{}/readyz", node.address);
            readiness = client().get(url).send().await.expect("answer").text().await.expect("text");
        }
    };
    let answered = tokio::select! {
        answered = spend(&node, &credential, 1) => Some(answered),
        () = waited => None,
    };
    assert!(answered.is_none(), "answered before the disk was known to hang: {answered:?}");
    kill_process(Pid::from_child(&node.child), Signal::TERM).expect("signalled");
    let (status, printed) = node.wait_for_exit();
    strace.wait().expect("strace ends");
    assert!(printed.contains("did not end in time"), "{status}: {printed}");
    let node = site.spawn().expect("comes back");
    assert_eq!(spend(&node, &credential, 0).await.expect("answer"), 400, "the nonce was forgotten");
    node.kill();
}

/// The state has no durability promise of its own, but a node whose state stops advancing must not continue.
#[tokio::test]
async fn a_full_disk_under_the_state_stops_the_node() {
    let site = Site::new();
    let credential = site.credential();
    let node = site.spawn().expect("starts");
    assert_eq!(spend(&node, &credential, 0).await.expect("answer"), 200);
    let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let state = files(&site.data().join("state")).into_iter().rfind(is_log).expect("log");
    let mut strace = break_disk(&node, "write,pwrite64", "error=ENOSPC", Some(&state));
    let answer = spend(&node, &credential, 1).await;
    assert!(!matches!(answer, Ok(200)), "acknowledged before applied");
    let (status, printed) = node.wait_for_exit();
    strace.wait().expect("strace ends");
    assert!(status.code().is_some_and(|code| code != 0), "{status}: {printed}");
    let node = site.spawn().expect("comes back");
    assert_eq!(spend(&node, &credential, 0).await.expect("answer"), 400);
    node.kill();
}

/// Regression: the node waited for the end of the delay, and exited with 0.
#[tokio::test]
async fn failed_disk_ends_a_stopping_node_at_once() {
    let site = Site::new();
    let credential = site.credential();
    let delay = format!("{}s", limits::SHUTDOWN_DELAY_MAX.as_secs());
    let node = site.spawn_with(&[("TRUST_FABRIC__LISTEN__SHUTDOWN_DELAY", &delay)]).expect("starts");
    assert_eq!(spend(&node, &credential, 0).await.expect("answer"), 200);
    let mut strace = break_disk(&node, "write,pwrite64", "error=EIO", Some(&open_log(&site)));
    let clock = Clock::system();
    let begun = clock.boot();
    kill_process(Pid::from_child(&node.child), Signal::TERM).expect("signalled");
    while is_ready(node.address) {}
    let answer = spend(&node, &credential, 1).await;
    assert!(!matches!(answer, Ok(200)), "acknowledged before durable");
    let (status, printed) = node.wait_for_exit();
    strace.wait().expect("strace ends");
    assert_eq!(status.code(), Some(70), "{printed}");
    assert!(printed.contains("replica has failed") && !printed.contains("panicked"), "{printed}");
    assert!(clock.boot().saturating_sub(begun) < limits::SHUTDOWN_DELAY_MAX, "it waited for the delay");
}
