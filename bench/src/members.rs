//! The nodes of a cluster under test: processes that the bench starts and kills, or existing containers of
//! Docker.
//!
//! The processes end with the bench: it kills each when it is done, and the kernel kills them if the bench
//! was killed.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::sleep;

use crate::certificates::{self, Identity};
use crate::credentials::Issuer;
use crate::hosts::Hosts;
use crate::node::make_certificates;
use crate::settings::{Membership, Names, Settings, peer_name};
use crate::wire::Target;

/// Ports for listeners, below those of outgoing connections: otherwise the port of a stopped node could be
/// taken, or a connection to it could reach itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Interval at which the end of a process is checked.
const EXIT_POLL: Duration = Duration::from_millis(5);

/// The nodes and their addresses.
#[derive(clap::Args, Clone)]
pub struct ClusterArgs {
    /// The trust-fabric program; its nodes are started on loopback
    #[arg(long, required_unless_present = "compose")]
    pub program: Option<PathBuf>,
    /// A running container instead, as CONTAINER=https://ADDRESS:PORT; once per node, ordered by id
    #[arg(long, value_name = "CONTAINER=URL", conflicts_with = "program")]
    pub compose: Vec<String>,
    /// The program that kills, pauses and starts containers
    #[arg(long, default_value = "docker")]
    pub docker: PathBuf,
    /// A directory for certificates, configuration, data and logs; created if missing. With --compose it
    /// contains pki/ (ca.pem; operator, gateway, workload, transmitter with .pem and -key.pem) and issuer.pem
    #[arg(long)]
    pub dir: PathBuf,
    /// The policy of a new cluster
    #[arg(long, default_value = "policies")]
    pub policies: PathBuf,
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    pub nodes: u64,
    /// Start the nodes on the data of an earlier bench in --dir
    #[arg(long)]
    pub keep: bool,
    /// Milliseconds between two heartbeats of the leader
    #[arg(long, default_value_t = 50)]
    pub heartbeat: u64,
    /// Start each node in its own network namespace, where it can be partitioned from the other nodes; needs
    /// root
    #[arg(long, requires = "program", conflicts_with = "keep")]
    pub hosts: bool,
    /// Nodes that are configured to join later, with the next ids
    #[arg(skip)]
    pub joiners: u64,
    /// Maximum size of the log of each node
    #[arg(skip)]
    pub log_bytes_max: Option<u64>,
    /// Names of the fabric
    #[arg(skip)]
    pub names: Names,
    /// Addresses at which the nodes reach each other, if not their own: those of a link
    #[arg(skip)]
    pub links: Option<Vec<SocketAddr>>,
    /// Whether the data directories exist already, empty: each is a file system of its own
    #[arg(skip)]
    pub disks: bool,
    /// A library that each process loads before libc, with its control file in the directory of the node
    #[arg(skip)]
    pub preload: Option<PathBuf>,
    /// Further variables of the environment of each process
    #[arg(skip)]
    pub environment: Vec<(String, String)>,
}

/// The control file of a preloaded library in the directory of a node.
pub const CONTROL: &str = "faults";
/// Its size: seven integers of 64 bits.
pub const CONTROL_BYTES: usize = 56;

/// A cluster. Its started processes are killed when this is dropped.
pub struct Members {
    nodes: Vec<Member>,
    pki: PathBuf,
    docker: PathBuf,
    /// The issuer that they trust.
    pub issuer: Arc<Issuer>,
    /// Removed after the nodes.
    hosts: Option<Hosts>,
}

struct Member {
    /// The TLS listener without a client certificate.
    https: Target,
    /// Its address for other nodes, if the bench configured it.
    peers: Option<SocketAddr>,
    process: Process,
}

enum Process {
    Local(Local),
    Container(String),
}

struct Local {
    program: PathBuf,
    place: PathBuf,
    /// The number of its host; `None` for this machine.
    host: Option<u8>,
    preload: Option<PathBuf>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

impl ClusterArgs {
    /// So many nodes of this program as processes, in `dir`, with the defaults of the command line.
    pub fn local(program: PathBuf, policies: PathBuf, dir: PathBuf, nodes: u64) -> Self {
        Self {
            program: Some(program),
            compose: Vec::new(),
            docker: PathBuf::from("docker"),
            dir,
            policies,
            nodes,
            keep: false,
            heartbeat: 50,
            hosts: false,
            joiners: 0,
            log_bytes_max: None,
            names: Names::default(),
            links: None,
            disks: false,
            preload: None,
            environment: Vec::new(),
        }
    }

    /// Starts the nodes on empty data directories, or finds the containers. They may not be ready yet.
    pub fn members(&self) -> Result<Members> {
        fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let dir = self.dir.canonicalize()?;
        let issuer = Issuer::kept("bench", &dir.join("issuer.pem"))?;
        let pki = dir.join("pki");
        let mut members = Members {
            nodes: Vec::new(),
            pki,
            docker: self.docker.clone(),
            issuer: Arc::new(issuer),
            hosts: None,
        };
        match &self.program {
            Some(program) => self.start(&program.canonicalize()?, &dir, &mut members)?,
            None => {
                for service in &self.compose {
                    let (name, address) = container(service)?;
                    members.add(address, None, Process::Container(name))?;
                }
            }
        }
        Ok(members)
    }

    fn start(&self, program: &Path, dir: &Path, members: &mut Members) -> Result<()> {
        let policies = self.policies.canonicalize().with_context(|| self.policies.display().to_string())?;
        if !members.pki.join("ca.pem").exists() {
            make_certificates(program, &members.pki, &self.names.trust_domain, &[])?;
        }
        if self.keep {
            return self.start_again(program, dir, members);
        }
        let issuer_keys = dir.join("issuer.jwks");
        fs::write(&issuer_keys, members.issuer.key_set().to_string())?;
        if self.hosts {
            members.hosts = Some(Hosts::make(u8::try_from(self.nodes)?)?);
        }
        let mut listeners = self.listeners()?;
        let peers = listeners.iter().map(|listeners| listeners.peers).collect();
        let peers = self.links.clone().unwrap_or(peers);
        let founders = (1..=self.nodes).zip(peers).collect::<Vec<_>>();
        for (id, Listeners { peers, http, https }) in (1..).zip(listeners.drain(..)) {
            let place = dir.join(format!("node-{id}"));
            if place.join("data").exists() && !self.disks {
                fs::remove_dir_all(place.join("data"))?;
            }
            fs::create_dir_all(&place)?;
            // A single node that no other joins needs no peer listener.
            let membership = (self.nodes + self.joiners > 1).then(|| Membership {
                id,
                listen: peers,
                founders: if id <= self.nodes { founders.clone() } else { Vec::new() },
                heartbeat_millis: self.heartbeat,
                log_bytes_max: self.log_bytes_max,
            });
            if membership.is_some() && !members.pki.join(format!("{}.pem", peer_name(id))).exists() {
                certificates::write_peer(&members.pki, &peer_name(id), (&self.names.trust_domain, id))?;
            }
            let settings = Settings {
                names: &self.names,
                policies: &policies,
                pki: Some(members.pki.clone()),
                issuer_keys: &issuer_keys,
                data: &place.join("data"),
                http,
                https,
                member: membership,
            };
            fs::write(place.join("node.toml"), settings.text())?;
            // Drops the log of earlier runs.
            fs::write(place.join("node.log"), "")?;
            let host = self.hosts.then(|| u8::try_from(id)).transpose()?;
            fs::write(place.join(CONTROL), [0; CONTROL_BYTES])?;
            let (program, preload) = (program.to_owned(), self.preload.clone());
            let environment = self.environment.clone();
            let mut local = Local { program, place, host, preload, environment, child: None };
            if id <= self.nodes {
                local.start()?;
            }
            members.add(https, Some(peers), Process::Local(local))?;
        }
        Ok(())
    }

    /// Addresses for each node.
    fn listeners(&self) -> Result<Vec<Listeners>> {
        if self.hosts {
            let of = |id| {
                let number = u8::try_from(id)?;
                Ok(Listeners {
                    peers: (Hosts::for_peers(number), 8695).into(),
                    http: ([127, 0, 0, 1], 8693).into(),
                    https: (Hosts::for_clients(number), 8694).into(),
                })
            };
            return (1..=self.nodes).map(of).collect();
        }
        let addresses = free_addresses(usize::try_from((self.nodes + self.joiners) * 3)?)?;
        let of = |three: &[SocketAddr]| match three {
            [peers, http, https] => Ok(Listeners { peers: *peers, http: *http, https: *https }),
            _ => bail!("too few free ports"),
        };
        addresses.chunks(3).map(of).collect()
    }
}

/// Addresses of one node.
struct Listeners {
    peers: SocketAddr,
    http: SocketAddr,
    https: SocketAddr,
}

impl ClusterArgs {
    fn start_again(&self, program: &Path, dir: &Path, members: &mut Members) -> Result<()> {
        for id in 1..=self.nodes {
            let place = dir.join(format!("node-{id}"));
            let settings = place.join("node.toml");
            let text = fs::read_to_string(&settings).with_context(|| settings.display().to_string())?;
            let https = text.lines().find_map(|line| line.strip_prefix("https = \"")?.strip_suffix('"'));
            let https = https.context("its configuration names no TLS listener")?.parse()?;
            let mut local = Local {
                program: program.to_owned(),
                place,
                host: None,
                preload: None,
                environment: Vec::new(),
                child: None,
            };
            local.start()?;
            members.add(https, None, Process::Local(local))?;
        }
        Ok(())
    }
}

impl Members {
    fn add(&mut self, address: SocketAddr, peers: Option<SocketAddr>, process: Process) -> Result<()> {
        let tls = Some(certificates::client(&self.pki, None, b"http/1.1")?);
        let https = Target { address, host: "localhost".to_owned(), tls };
        self.nodes.push(Member { https, peers, process });
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The TLS listeners of all nodes, for the caller `name`.
    pub fn targets(&self, name: &str) -> Result<Vec<Target>> {
        let identity = Identity::read(&self.pki, name)?;
        let tls = certificates::client(&self.pki, Some(&identity), b"http/1.1")?;
        Ok(self
            .nodes
            .iter()
            .map(|node| Target { tls: Some(Arc::clone(&tls)), ..node.https.clone() })
            .collect())
    }

    /// Address of the TLS listener of a node.
    pub fn https_address(&mut self, node: usize) -> Result<SocketAddr> {
        Ok(self.node(node)?.https.address)
    }

    /// Kills a node without waiting for its exit.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.signal(node, Signal::KILL, "KILL")
    }

    /// Sends SIGTERM to a node.
    pub fn terminate(&mut self, node: usize) -> Result<()> {
        self.signal(node, Signal::TERM, "TERM")
    }

    /// Waits until the process of a node has exited after a signal. Returns its exit code.
    pub async fn until_exited(&mut self, node: usize, longest: Duration) -> Result<Option<i32>> {
        let begun = Instant::now();
        loop {
            let local = self.local(node)?;
            let child = local.child.as_mut().context("the node does not run")?;
            if let Some(status) = child.try_wait()? {
                local.child = None;
                return Ok(status.code());
            }
            if begun.elapsed() > longest {
                bail!("node {} did not exit in {longest:?}", node + 1);
            }
            sleep(EXIT_POLL).await;
        }
    }

    /// The program with which a node is started from now on.
    pub fn set_program(&mut self, node: usize, program: &Path) -> Result<()> {
        let program = program.canonicalize().with_context(|| program.display().to_string())?;
        self.local(node)?.program = program;
        Ok(())
    }

    /// Runs `trust-fabric` as the operator at a node. Returns its output.
    pub async fn administer(&mut self, node: usize, arguments: &[&str]) -> Result<String> {
        output(self.administration(node, arguments)?).await
    }

    /// The command that `administer` runs.
    pub fn administration(&mut self, node: usize, arguments: &[&str]) -> Result<Command> {
        let address = self.node(node)?.https.address;
        let mut command = Command::new(&self.local(node)?.program);
        command.args(arguments).args(["--server", &format!("https://{address}")]);
        for (flag, file) in [("--ca", "ca.pem"), ("--cert", "operator.pem"), ("--key", "operator-key.pem")] {
            command.arg(flag).arg(self.pki.join(file));
        }
        Ok(command)
    }

    /// Runs the program of a node without its address. Returns its output.
    pub async fn offline(&mut self, node: usize, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.local(node)?.program);
        command.args(arguments);
        output(command).await
    }

    /// Directory of a node.
    pub fn place(&mut self, node: usize) -> Result<PathBuf> {
        Ok(self.local(node)?.place.clone())
    }

    /// Address of a node for other nodes.
    pub fn peer_address(&mut self, node: usize) -> Result<SocketAddr> {
        self.node(node)?.peers.context("the bench did not configure it")
    }

    fn local(&mut self, node: usize) -> Result<&mut Local> {
        match &mut self.node(node)?.process {
            Process::Local(local) => Ok(local),
            Process::Container(_) => bail!("this bench starts the nodes itself: --program"),
        }
    }

    /// Pauses a node (SIGSTOP).
    pub fn pause(&mut self, node: usize) -> Result<()> {
        self.signal(node, Signal::STOP, "STOP")
    }

    /// Resumes a paused node.
    pub fn resume_node(&mut self, node: usize) -> Result<()> {
        self.signal(node, Signal::CONT, "CONT")
    }

    /// Partitions a node from the other nodes; clients still reach it.
    pub fn cut(&self, node: usize) -> Result<()> {
        Hosts::cut(self.host(node)?)
    }

    /// Ends the partition.
    pub fn join(&self, node: usize) -> Result<()> {
        Hosts::join(self.host(node)?)
    }

    fn host(&self, node: usize) -> Result<u8> {
        match self.nodes.get(node).map(|member| &member.process) {
            Some(Process::Local(Local { host: Some(host), .. })) => Ok(*host),
            _ => bail!("a node is cut off only on a host of its own: --hosts"),
        }
    }

    fn signal(&mut self, node: usize, signal: Signal, name: &str) -> Result<()> {
        let docker = self.docker.clone();
        match &mut self.node(node)?.process {
            Process::Local(local) => Ok(kill_process(local.pid()?, signal)?),
            Process::Container(container) => {
                command(Command::new(docker).args(["kill", "-s", name]).arg(container))
            }
        }
    }

    /// Restarts a killed node on its data.
    pub fn start(&mut self, node: usize) -> Result<()> {
        let docker = self.docker.clone();
        match &mut self.node(node)?.process {
            Process::Local(local) => local.start(),
            Process::Container(container) => command(Command::new(docker).arg("start").arg(container)),
        }
    }

    /// The process of a started node.
    pub fn pid(&self, node: usize) -> Result<u32> {
        match self.nodes.get(node).map(|member| &member.process) {
            Some(Process::Local(Local { child: Some(child), .. })) => Ok(child.id()),
            _ => bail!("node {} is no process of the bench", node + 1),
        }
    }

    /// Whether the process of a node runs.
    pub fn runs(&mut self, node: usize) -> Result<bool> {
        let local = self.local(node)?;
        Ok(match &mut local.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        })
    }

    /// Fails if a process has exited that the bench did not kill.
    pub fn still_run(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if let Process::Local(Local { child: Some(child), place, .. }) = &mut node.process
                && let Some(status) = child.try_wait()?
            {
                bail!("a node ended: {status}; see {}", place.join("node.log").display());
            }
        }
        Ok(())
    }

    fn node(&mut self, node: usize) -> Result<&mut Member> {
        self.nodes.get_mut(node).with_context(|| format!("there is no node {}", node + 1))
    }
}

impl Local {
    fn start(&mut self) -> Result<()> {
        self.end();
        // With `setpriv` the kernel kills the process when the bench ends in any way.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(host) = self.host {
            command.args(Hosts::runs_in(host));
        }
        command.arg(&self.program);
        command.envs(self.environment.iter().cloned());
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
            command.env("FAULTS_CONTROL", self.place.join(CONTROL));
            command.env("FAULTS_BELOW", self.place.join("data"));
        }
        let log = fs::OpenOptions::new().append(true).create(true).open(self.place.join("node.log"))?;
        command.arg("serve").arg("--config").arg(self.place.join("node.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().context("start setpriv (util-linux)")?);
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        let id = self.child.as_ref().context("the node does not run")?.id();
        Pid::from_raw(id.try_into()?).ok_or_else(|| anyhow!("process 0"))
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.end();
    }
}

/// `CONTAINER=https://ADDRESS:PORT`
fn container(service: &str) -> Result<(String, SocketAddr)> {
    let (name, url) = service.split_once('=').with_context(|| format!("{service}: not CONTAINER=URL"))?;
    let address = url.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    let address = address.with_context(|| format!("{url}: not an https URL"))?;
    let address = address.replace("localhost:", "127.0.0.1:");
    let address = address.parse().with_context(|| format!("{url}: not https://ADDRESS:PORT"))?;
    Ok((name.to_owned(), address))
}

/// Runs a command without blocking this thread, and returns its output; the error contains that of a failure.
pub async fn output(mut command: Command) -> Result<String> {
    let arguments: Vec<_> =
        command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let ran = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output()).await??;
    if !ran.status.success() {
        bail!("trust-fabric {}: {}", arguments.join(" "), String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(String::from_utf8(ran.stdout)?)
}

/// Runs a command; the error contains its output.
pub fn command(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Node ids of the voters in the output of `cluster members`.
pub fn voters(members: &str) -> Vec<u64> {
    let members: Value = serde_json::from_str(members).unwrap_or_default();
    let list = members["members"].as_array().or(members.as_array()).cloned().unwrap_or_default();
    let is_voter = |member: &&Value| matches!(member["role"].as_str(), Some("leader" | "follower"));
    let mut ids: Vec<_> =
        list.iter().filter(is_voter).filter_map(|member| member["node_id"].as_u64()).collect();
    ids.sort_unstable();
    ids
}

/// Distinct free addresses on loopback.
pub fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let width = PORTS.end - PORTS.start;
    // Concurrent benches start at different ports.
    let first = u16::try_from(std::process::id() % u32::from(width))?;
    let found: Vec<_> = (0..width)
        .map(|step| SocketAddr::from(([127, 0, 0, 1], PORTS.start + (first + step) % width)))
        .filter(|address| TcpListener::bind(address).is_ok())
        .take(count)
        .collect();
    if found.len() < count {
        bail!("too few free ports between {} and {}", PORTS.start, PORTS.end);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_a_name_and_an_address() {
        let (name, address) = container("fabric-1=https://localhost:18694/").expect("well formed");
        assert_eq!((name.as_str(), address.to_string().as_str()), ("fabric-1", "127.0.0.1:18694"));
        for bad in ["fabric-1", "a=http://127.0.0.1:1", "a=https://127.0.0.1", "a=https://"] {
            assert!(container(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn containers_are_signalled_and_started_by_name() {
        let dir = std::env::temp_dir().join(format!("trust-fabric-bench-docker-{}", std::process::id()));
        fs::create_dir_all(dir.join("pki")).expect("directory");
        let key = rcgen::KeyPair::generate().expect("key");
        let ca = rcgen::CertificateParams::default().self_signed(&key).expect("certificate");
        fs::write(dir.join("pki/ca.pem"), ca.pem()).expect("written");
        let place = |docker: &str| ClusterArgs {
            program: None,
            compose: vec!["fabric-1=https://127.0.0.1:1".to_owned()],
            docker: docker.into(),
            ..ClusterArgs::local(PathBuf::new(), PathBuf::new(), dir.clone(), 3)
        };
        let docker = dir.join("docker.sh");
        fs::write(&docker, format!("#!/bin/sh\necho \"$@\" >> {}/calls\n", dir.display())).expect("written");
        command(Command::new("chmod").arg("700").arg(&docker)).expect("made a program");
        let mut members = place(&docker.display().to_string()).members().expect("containers");
        members.kill(0).expect("killed");
        members.start(0).expect("started");
        members.pause(0).expect("paused");
        members.resume_node(0).expect("woken");
        let calls = fs::read_to_string(dir.join("calls")).expect("calls");
        assert_eq!(
            calls,
            "kill -s KILL fabric-1\nstart fabric-1\nkill -s STOP fabric-1\nkill -s CONT fabric-1\n"
        );
        assert!(members.kill(1).is_err(), "there is one node");
        let mut failing = place("false").members().expect("containers");
        assert!(failing.kill(0).is_err());
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn voters_are_leader_and_followers() {
        let text = r#"[{"node_id":4,"role":"follower"},{"node_id":2,"role":"leader"},{"node_id":5,"role":"learner"},
            {"node_id":6,"role":"invited"}]"#;
        assert_eq!(voters(text), [2, 4]);
        assert_eq!(voters("no JSON"), Vec::<u64>::new());
    }

    #[test]
    fn free_addresses_differ() {
        let mut addresses = free_addresses(9).expect("enough");
        addresses.dedup();
        assert_eq!(addresses.len(), 9);
    }
}
