//! The nodes of a run: processes on loopback, which reach each other only over proxies of the harness, with a preloaded
//! library that shifts their wall clocks.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::sleep;
use trust_fabric_bench::health::Health;
use trust_fabric_bench::link::{Link, Origin, Way};
use trust_fabric_bench::members::{CONTROL, ClusterArgs, Members, command};
use trust_fabric_bench::settings::Names;

/// Variable that chooses the deliberate break of a test build.
const BREAK: &str = "TRUST_FABRIC_BREAK";
/// Pause before a process that has exited is started again, as a supervisor does.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// Maximum time for a process to exit after SIGTERM: that of the systemd unit.
const EXIT_MAX: Duration = Duration::from_secs(45);

/// Programs and directories.
#[derive(clap::Args, Clone)]
pub struct ClusterOptions {
    /// The trust-fabric program
    #[arg(long)]
    pub program: PathBuf,
    /// The policy of a new cluster
    #[arg(long, default_value = "policies")]
    pub policies: PathBuf,
    /// The source of the library that shifts clocks
    #[arg(long, default_value = "tests/faults/preload.c")]
    pub preload: PathBuf,
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=9))]
    pub nodes: u64,
}

pub struct Cluster {
    members: Mutex<Members>,
    link: Link,
    processes: Arc<Mutex<Vec<u32>>>,
    /// Nodes whose process a fault has ended: the supervisor leaves them alone.
    down: Mutex<BTreeSet<usize>>,
    pub health: Health,
    pub count: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts the nodes in `dir`, and waits until they are ready.
    pub async fn start(options: &ClusterOptions, dir: &Path, broken: Option<&str>) -> Result<Self> {
        let count = usize::try_from(options.nodes)?;
        fs::create_dir_all(dir)?;
        let processes = Arc::new(Mutex::new(vec![0; count]));
        let link = Link::between(count, origin(Arc::clone(&processes))).await?;
        for node in 0..count {
            // A connection of unknown origin would evade partitions.
            link.set(None, Some(node), |way| way.is_cut = true);
        }
        let args = ClusterArgs {
            program: Some(options.program.clone()),
            compose: Vec::new(),
            docker: PathBuf::new(),
            dir: dir.to_owned(),
            policies: options.policies.clone(),
            nodes: options.nodes,
            keep: false,
            heartbeat: 50,
            hosts: false,
            joiners: 0,
            log_bytes_max: None,
            names: Names::default(),
            links: Some(link.addresses.clone()),
            preload: Some(compiled(&options.preload, dir)?),
            environment: broken.map(|broken| (BREAK.to_owned(), broken.to_owned())).into_iter().collect(),
        };
        let mut members = args.members()?;
        let mut targets = Vec::new();
        for node in 0..count {
            targets.push(members.peer_address(node)?.to_string());
            lock(&processes)[node] = members.pid(node)?;
        }
        link.lead_to(targets);
        let health = Health::of(&members).await?;
        let (members, down) = (Mutex::new(members), Mutex::default());
        Ok(Self { members, link, processes, down, health, count })
    }

    pub fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    pub fn all(&self) -> Vec<usize> {
        (0..self.count).collect()
    }

    pub fn leader(&self) -> Option<usize> {
        self.health.now().leader()
    }

    /// Changes the way from each of `from` to each of `to`.
    pub fn ways(&self, from: &[usize], to: &[usize], change: impl Fn(&mut Way) + Copy) {
        for one in from {
            for other in to.iter().filter(|other| *other != one) {
                self.link.set(Some(*one), Some(*other), change);
            }
        }
    }

    /// Every way is without a fault.
    pub fn heal_network(&self) {
        self.ways(&self.all(), &self.all(), |way| *way = Way::default());
    }

    /// Kills nodes at once; they stay down until they are started.
    pub fn kill(&self, nodes: &[usize]) -> Result<()> {
        lock(&self.down).extend(nodes);
        self.signal(nodes, Members::kill)
    }

    /// Signals the nodes whose process has not ended by itself: the number of another could be that of a new process.
    fn signal(&self, nodes: &[usize], signal: fn(&mut Members, usize) -> Result<()>) -> Result<()> {
        let mut members = self.members();
        for node in nodes {
            if members.runs(*node)? {
                signal(&mut members, *node)?;
            }
        }
        Ok(())
    }

    /// Starts a node on its directory.
    pub fn start_again(&self, node: usize) -> Result<()> {
        self.start_down(node)?;
        lock(&self.down).remove(&node);
        Ok(())
    }

    /// The same; the supervisor continues to leave it alone.
    pub fn start_down(&self, node: usize) -> Result<()> {
        let mut members = self.members();
        members.start(node)?;
        lock(&self.processes)[node] = members.pid(node)?;
        Ok(())
    }

    pub fn pause(&self, nodes: &[usize]) -> Result<()> {
        self.signal(nodes, Members::pause)
    }

    pub fn resume(&self, nodes: &[usize]) -> Result<()> {
        self.signal(nodes, Members::resume_node)
    }

    /// Stops a node with SIGTERM and waits for its exit.
    pub async fn stop(&self, node: usize) -> Result<()> {
        lock(&self.down).insert(node);
        self.signal(&[node], Members::terminate)?;
        self.until_exited(node, EXIT_MAX).await.map(drop)
    }

    /// Whether the process of a node has exited within the time.
    pub async fn until_exited(&self, node: usize, longest: Duration) -> Result<bool> {
        let begun = std::time::Instant::now();
        while begun.elapsed() < longest {
            if !self.members().runs(node)? {
                return Ok(true);
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(false)
    }

    /// Shifts the wall clock of a node.
    pub fn shift_clock(&self, node: usize, secs: i64) -> Result<()> {
        let control = self.members().place(node)?.join(CONTROL);
        let file = fs::OpenOptions::new().write(true).open(&control)?;
        file.write_all_at(&(secs * 1_000_000_000).to_ne_bytes(), 0).context("shift a clock")
    }

    /// Copies the directory of a stopped or paused node.
    pub fn copy_data(&self, node: usize) -> Result<()> {
        let directory = self.members().place(node)?;
        let copy = directory.join("older");
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        command(Command::new("cp").arg("-a").arg(directory.join("data")).arg(&copy))
    }

    /// Puts the copy in the place of the directory of a stopped node, and the directory in that of the copy.
    pub fn swap_data(&self, node: usize) -> Result<()> {
        let directory = self.members().place(node)?;
        let [data, older, aside] = ["data", "older", "aside"].map(|name| directory.join(name));
        fs::rename(&data, &aside)?;
        fs::rename(&older, &data)?;
        fs::rename(&aside, &older).context("swap the directories")
    }

    /// Whether the program finds every chain of the audit intact in an export of a node; `None` without an export.
    pub async fn is_audit_intact(&self, program: &Path, dir: &Path, node: usize) -> Result<Option<bool>> {
        let address = self.members().https_address(node)?;
        let pki = dir.canonicalize()?.join("pki");
        let file = pki.with_file_name(format!("audit-{}.jsonl", node + 1));
        let mut export = Command::new(program);
        export.args(["audit", "export", "--server", &format!("https://{address}"), "--out"]).arg(&file);
        for (flag, name) in [("--ca", "ca.pem"), ("--cert", "operator.pem"), ("--key", "operator-key.pem")] {
            export.arg(flag).arg(pki.join(name));
        }
        let mut verify = Command::new(program);
        verify.args(["audit", "verify"]).arg(&file);
        let verified = tokio::task::spawn_blocking(move || {
            command(&mut export).ok()?;
            Some(command(&mut verify).is_ok())
        });
        Ok(verified.await?)
    }

    /// Nodes whose process has ended although no fault ended it; they are started again after a pause.
    pub async fn supervise(&self, mut told: impl FnMut(usize) -> Result<()>) -> Result<()> {
        loop {
            sleep(RESTART_PAUSE).await;
            for node in self.all() {
                let is_down = lock(&self.down).contains(&node);
                if !is_down && !self.members().runs(node)? {
                    told(node)?;
                    self.start_again(node)?;
                }
            }
        }
    }

    /// Ends every fault that can be left: the network, the clocks, paused and stopped processes.
    pub fn heal(&self) -> Result<()> {
        self.heal_network();
        self.resume(&self.all())?;
        for node in self.all() {
            self.shift_clock(node, 0)?;
            let is_down = lock(&self.down).contains(&node);
            if is_down {
                self.start_again(node)?;
            }
        }
        Ok(())
    }
}

/// Compiles the library that shifts clocks.
fn compiled(source: &Path, dir: &Path) -> Result<PathBuf> {
    let library = dir.canonicalize()?.join("preload.so");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    command(&mut compile).context("compile the library that shifts clocks (needs a C compiler)")?;
    Ok(library)
}

/// Finds the node that opened a connection: the process that has its socket.
fn origin(processes: Arc<Mutex<Vec<u32>>>) -> Origin {
    Arc::new(move |remote, local| {
        let table = fs::read_to_string("/proc/net/tcp").ok()?;
        let socket = format!("socket:[{}]", inode(&table, remote, local)?);
        let processes = lock(&processes).clone();
        processes.iter().position(|process| {
            let files = fs::read_dir(format!("/proc/{process}/fd"));
            files.is_ok_and(|files| {
                files.flatten().any(|file| {
                    fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str())
                })
            })
        })
    })
}

/// The inode of the socket between two addresses in `/proc/net/tcp`.
fn inode(table: &str, own: SocketAddr, other: SocketAddr) -> Option<&str> {
    let (own, other) = (hex(own)?, hex(other)?);
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        (fields.next()? == own && fields.next()? == other).then(|| fields.nth(6))?
    })
}

/// An address as the kernel writes it: bytes of the address reversed, in hexadecimal.
fn hex(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    let [a, b, c, d] = address.ip().octets();
    Some(format!("{d:02X}{c:02X}{b:02X}{a:02X}:{:04X}", address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_this_process_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let _near = std::net::TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let (far, remote) = listener.accept().expect("accepted");
        let local = far.local_addr().expect("address");
        let of = |process| origin(Arc::new(Mutex::new(vec![1, process])))(remote, local);
        assert_eq!(of(std::process::id()), Some(1));
        assert_eq!(of(2), None);
    }

    #[test]
    fn inode_is_that_of_both_addresses() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:4E20 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 777 1 x\n";
        let of = |own: &str, other: &str| {
            inode(table, own.parse().expect("address"), other.parse().expect("address"))
        };
        assert_eq!(of("127.0.0.1:20000", "127.0.0.1:40000"), Some("777"));
        assert_eq!(of("127.0.0.1:40000", "127.0.0.1:20000"), None);
    }
}
