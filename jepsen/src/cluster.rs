//! The nodes of a run: processes on loopback, which reach each other only over proxies of the harness, with a preloaded
//! library that shifts their wall clocks and breaks their disks.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::sleep;
use trust_fabric_bench::certificates::{TRUST_DOMAIN, write_peer, write_server};
use trust_fabric_bench::health::{Health, View};
use trust_fabric_bench::link::{Link, Origin, Way};
use trust_fabric_bench::members::{CONTROL, CONTROL_BYTES, ClusterArgs, Members, command, output};
use trust_fabric_bench::node::make_certificates;
use trust_fabric_bench::settings::{Names, peer_name};

use crate::clients::VISITORS;
use crate::disks::Disk;
use crate::sockets::owner;

/// Variable that chooses the deliberate break of a test build.
pub(crate) const BREAK: &str = "TRUST_FABRIC_BREAK";
/// Pause before a process that has exited is started again, as a supervisor does.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// Maximum time for a process to exit after SIGTERM: that of the systemd unit.
pub(crate) const EXIT_MAX: Duration = Duration::from_secs(45);

/// Programs and directories.
#[derive(clap::Args, Clone)]
pub struct ClusterOptions {
    /// The trust-fabric program
    #[arg(long)]
    pub program: PathBuf,
    /// The policy of a new cluster
    #[arg(long, default_value = "policies")]
    pub policies: PathBuf,
    /// The source of the preloaded library that makes faults of clocks and disks
    #[arg(long, default_value = "tests/faults/preload.c")]
    pub preload: PathBuf,
    /// Give each node a disk of its own, for power cuts; needs root
    #[arg(long)]
    pub disks: bool,
    /// Start each node in a network namespace of its own, whose cable to the other nodes can be pulled; needs root
    #[arg(long, conflicts_with = "disks")]
    pub hosts: bool,
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=9))]
    pub nodes: u64,
}

pub struct Cluster {
    members: Mutex<Members>,
    program: PathBuf,
    pub(crate) pki: PathBuf,
    /// `None`: each node is in a namespace of its own.
    link: Option<Link>,
    processes: Arc<Mutex<Vec<u32>>>,
    /// Nodes whose process a fault has ended: the supervisor does not restart them.
    down: Mutex<BTreeSet<usize>>,
    /// Members of the cluster now.
    current: Arc<Mutex<Vec<usize>>>,
    pub health: Health,
    /// By node; dropped after the processes.
    disks: Vec<Disk>,
}

/// Differences between the clusters of different runs.
pub struct Variant<'a> {
    /// Nodes that may join, with the next ids.
    pub joiners: u64,
    /// Whether the log is so small that it is purged all the time.
    pub small_log: bool,
    /// A deliberate break.
    pub broken: Option<&'a str>,
}

/// Faults of one process that the preloaded library makes: integers of its control file.
#[derive(Clone, Copy)]
pub enum Control {
    /// Nanoseconds that the wall clock is ahead.
    ClockOffset = 0,
    /// Additional nanoseconds of each sync.
    SyncDelay = 1,
    SyncHangs = 2,
    /// Nanoseconds per second by which the wall clock is too fast.
    Drift = 3,
    /// Monotonic time in nanoseconds at which the drift began.
    DriftBegin = 4,
    /// The number of the error with which syncs fail.
    SyncError = 5,
    /// The number of the error with which allocations of space fail.
    SpaceError = 6,
}

/// Maximum size of a small log in bytes; half of it holds some 50 entries.
const SMALL_LOG: u64 = 128 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Starts the nodes in `dir`, and waits until they are ready.
    pub async fn start(options: &ClusterOptions, dir: &Path, variant: Variant<'_>) -> Result<Self> {
        let founders: Vec<_> = (0..usize::try_from(options.nodes)?).collect();
        let count = founders.len() + usize::try_from(variant.joiners)?;
        fs::create_dir_all(dir)?;
        let processes = Arc::new(Mutex::new(vec![0; count]));
        let link = if options.hosts { None } else { Some(proxies(count, &processes).await?) };
        let disk = |node: &usize| Disk::create(&dir.join(format!("node-{}/data", node + 1)));
        let disks =
            if options.disks { founders.iter().map(disk).collect::<Result<_>>()? } else { Vec::new() };
        let (program, policies) = (options.program.canonicalize()?, options.policies.clone());
        let args = ClusterArgs {
            hosts: options.hosts,
            joiners: variant.joiners,
            log_bytes_max: variant.small_log.then_some(SMALL_LOG),
            names: Names { more: visitors(), ..Names::default() },
            links: link.as_ref().map(|link| link.addresses.clone()),
            disks: options.disks,
            preload: Some(compiled(&options.preload, dir)?),
            environment: variant
                .broken
                .map(|broken| (BREAK.to_owned(), broken.to_owned()))
                .into_iter()
                .collect(),
            ..ClusterArgs::local(program.clone(), policies, dir.to_owned(), options.nodes)
        };
        make_certificates(&program, &dir.join("pki"), TRUST_DOMAIN, &VISITORS)?;
        if options.hosts {
            // With the addresses of the hosts, at which the commands of an operator call.
            write_server(&dir.join("pki"), "node")?;
        }
        let mut members = args.members()?;
        let mut targets = Vec::new();
        for node in 0..count {
            targets.push(members.peer_address(node)?.to_string());
        }
        for node in &founders {
            lock(&processes)[*node] = members.pid(*node)?;
        }
        if let Some(link) = &link {
            link.lead_to(targets);
        }
        let health = Health::at(&members, &founders).await?;
        let (members, down, current) =
            (Mutex::new(members), Mutex::default(), Arc::new(Mutex::new(founders)));
        let pki = dir.canonicalize()?.join("pki");
        Ok(Self { members, program, pki, link, processes, down, current, health, disks })
    }

    pub fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }

    /// The members of the cluster now.
    pub fn all(&self) -> Vec<usize> {
        lock(&self.current).clone()
    }

    /// The same, for clients that follow its changes.
    pub fn current(&self) -> Arc<Mutex<Vec<usize>>> {
        Arc::clone(&self.current)
    }

    /// Removes a node from the members.
    pub(crate) fn forget(&self, node: usize) {
        lock(&self.current).retain(|one| *one != node);
    }

    /// Adds a node to the members.
    pub(crate) fn remember(&self, node: usize) {
        lock(&self.current).push(node);
    }

    /// Address of its proxy, at which the other nodes reach a node.
    pub(crate) fn peer_address(&self, node: usize) -> Result<String> {
        let link = self.link.as_ref().context("nodes join only behind proxies")?;
        Ok(link.addresses[node].to_string())
    }

    /// Whether each node is in a namespace of its own.
    pub const fn has_hosts(&self) -> bool {
        self.link.is_none()
    }

    /// Pulls the cables of nodes to the others, or plugs them in again.
    pub fn plug(&self, nodes: &[usize], is_plugged: bool) -> Result<()> {
        let members = self.members();
        let change = if is_plugged { Members::join } else { Members::cut };
        nodes.iter().try_for_each(|node| change(&members, *node))
    }

    pub fn leader(&self) -> Option<usize> {
        self.health.now().leader_of(&self.all())
    }

    /// Waits until these nodes are ready. Returns whether they were in time.
    pub async fn until_ready(&self, nodes: &[usize], longest: Duration) -> bool {
        let is_ready = |view: &View| {
            let health = |node: &usize| view.0.get(*node).copied().flatten();
            nodes.iter().all(|node| health(node).is_some_and(|health| health.is_ready))
        };
        self.health.until("not all nodes were ready", longest, is_ready).await.is_ok()
    }

    /// Changes the way from each of `from` to each of `to`.
    pub fn ways(&self, from: &[usize], to: &[usize], change: impl Fn(&mut Way) + Copy) {
        let Some(link) = &self.link else { return };
        for one in from {
            for other in to.iter().filter(|other| *other != one) {
                link.set(Some(*one), Some(*other), change);
            }
        }
    }

    /// Ends every fault of the network.
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

    /// The same; the supervisor still does not restart it.
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

    /// Sets faults of a process; the others stay.
    pub fn control(&self, node: usize, values: &[(Control, i64)]) -> Result<()> {
        let control = self.members().place(node)?.join(CONTROL);
        let file = fs::OpenOptions::new().write(true).open(&control)?;
        for (word, value) in values {
            file.write_all_at(&value.to_ne_bytes(), *word as u64 * 8).context("control a fault")?;
        }
        Ok(())
    }

    /// Ends all faults of a process that the library makes.
    pub fn heal_process(&self, node: usize) -> Result<()> {
        let control = self.members().place(node)?.join(CONTROL);
        let file = fs::OpenOptions::new().write(true).open(&control)?;
        file.write_all_at(&[0; CONTROL_BYTES], 0).context("end a fault")
    }

    /// Runs the program as the operator at a node, and returns its output.
    pub async fn administer(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let command = self.members().administration(node, arguments)?;
        output(command).await
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

    /// Pauses nodes, and waits until none of their threads runs.
    pub async fn freeze(&self, nodes: &[usize]) -> Result<()> {
        self.pause(nodes)?;
        for node in nodes {
            let process = lock(&self.processes)[*node];
            while !is_stopped(process) {
                sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }

    /// Cuts the power of frozen nodes: data that their disks have not synced is lost. They stay down.
    pub async fn cut_power(&self, nodes: &[usize]) -> Result<()> {
        for node in nodes {
            let disk = self.disks.get(*node).context("power cuts need --disks")?;
            disk.copy()?;
        }
        self.kill(nodes)?;
        for node in nodes {
            if !self.until_exited(*node, EXIT_MAX).await? {
                bail!("node {} was killed and runs", node + 1);
            }
            self.disks[*node].restore()?;
        }
        Ok(())
    }

    /// Deletes the directory of a node that is down.
    pub fn lose_data(&self, node: usize) -> Result<()> {
        let data = self.members().place(node)?.join("data");
        fs::remove_dir_all(&data).with_context(|| data.display().to_string())
    }

    /// Snapshots that a node has installed, by its log.
    pub fn snapshots_installed(&self, node: usize) -> Result<usize> {
        let log = self.members().place(node)?.join("node.log");
        Ok(fs::read_to_string(log)?.matches("snapshot installed").count())
    }

    /// Writes new certificates of the nodes, for clients and for each other.
    pub fn renew_certificates(&self) -> Result<()> {
        write_server(&self.pki, "node")?;
        for node in self.all() {
            let id = node as u64 + 1;
            write_peer(&self.pki, &peer_name(id), (TRUST_DOMAIN, id))?;
        }
        Ok(())
    }

    /// Swaps the directory of a stopped node and its copy.
    pub fn swap_data(&self, node: usize) -> Result<()> {
        let directory = self.members().place(node)?;
        let [data, older, aside] = ["data", "older", "aside"].map(|name| directory.join(name));
        fs::rename(&data, &aside)?;
        fs::rename(&older, &data)?;
        fs::rename(&aside, &older).context("swap the directories")
    }

    /// Whether the program finds every chain of the audit intact in an export of a node; `None` without an export.
    pub async fn is_audit_intact(&self, node: usize) -> Result<Option<bool>> {
        let file = self.pki.with_file_name(format!("audit-{}.jsonl", node + 1)).display().to_string();
        if self.administer(node, &["audit", "export", "--out", &file]).await.is_err() {
            return Ok(None);
        }
        let mut verify = Command::new(&self.program);
        verify.args(["audit", "verify"]).arg(&file);
        Ok(Some(tokio::task::spawn_blocking(move || command(&mut verify).is_ok()).await?))
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

    /// Ends every fault that can remain: the network, the clocks, paused and stopped processes.
    pub fn heal(&self) -> Result<()> {
        self.heal_network();
        self.resume(&self.all())?;
        for node in self.all() {
            self.heal_process(node)?;
            let is_down = lock(&self.down).contains(&node);
            if is_down {
                self.start_again(node)?;
            }
        }
        Ok(())
    }
}

/// The configuration of the callers that are blocked now and then.
fn visitors() -> String {
    let entry = |name| {
        format!("[[callers]]\nid = \"spiffe://{TRUST_DOMAIN}/{name}\"\ncapabilities = [\"tools.read\"]\n")
    };
    VISITORS.map(entry).concat()
}

/// Compiles the preloaded library.
fn compiled(source: &Path, dir: &Path) -> Result<PathBuf> {
    let library = dir.canonicalize()?.join("preload.so");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    command(&mut compile).context("compile the preloaded library (needs a C compiler)")?;
    Ok(library)
}

/// Whether all threads of a process are stopped or have ended; so is a process that is gone.
fn is_stopped(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state is after the name in parentheses.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    })
}

/// A proxy in front of each node.
async fn proxies(count: usize, processes: &Arc<Mutex<Vec<u32>>>) -> Result<Link> {
    let processes = Arc::clone(processes);
    let origin: Origin = Arc::new(move |remote, local| owner(&lock(&processes).clone(), remote, local));
    let link = Link::between(count, origin).await?;
    for node in 0..count {
        // A connection of unknown origin would evade partitions.
        link.set(None, Some(node), |way| way.is_cut = true);
    }
    Ok(link)
}
