//! The node under test: its directory, configuration, process and resource usage.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::task::JoinSet;

use crate::certificates::{self, Identity};
use crate::credentials::Issuer;
use crate::settings::{Names, Settings, callers};
use crate::wire::{self, Response, Target};

/// Maximum wait for the node to become ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// Interval of the readiness poll.
const READY_PAUSE: Duration = Duration::from_millis(50);
/// Clock ticks per second of `/proc`: `USER_HZ` of every Linux.
const TICKS_PER_SEC: f64 = 100.0;
/// A node is idle after so many consecutive seconds below this usage.
const QUIET_SECS: u32 = 3;
const QUIET_CPU_SECS: f64 = 0.05;
/// Maximum wait for an idle node.
const QUIET_MAX: Duration = Duration::from_secs(300);

/// Options of a node.
#[derive(clap::Args, Clone)]
pub struct Start {
    /// The trust-fabric program
    #[arg(long)]
    pub program: PathBuf,
    /// A directory for configuration, certificates, data and log; created if missing
    #[arg(long)]
    pub dir: PathBuf,
    /// The policy of a new node
    #[arg(long, default_value = "policies")]
    pub policies: PathBuf,
    /// Development mode: no TLS, everything on the plain listener
    #[arg(long)]
    pub plain: bool,
    /// Also write the result to this file
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// A running node, killed when dropped.
pub struct Node {
    child: Child,
    place: PathBuf,
    /// The plain listener.
    pub http: Target,
    /// The TLS listener without a client certificate; `None` in development mode.
    pub https: Option<Target>,
    /// The issuer that it trusts.
    pub issuer: Arc<Issuer>,
    /// The same issuer with an RSA key.
    pub rsa_issuer: Issuer,
}

impl Start {
    /// Starts a node on an empty data directory, optionally on one core alone, and waits until it is ready.
    pub async fn node(&self, core: Option<usize>) -> Result<Node> {
        match fs::remove_dir_all(self.dir.join("data")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => self.node_again(core).await,
        }
    }

    /// The same on the data directory of an earlier node.
    pub async fn node_again(&self, core: Option<usize>) -> Result<Node> {
        fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        let place = self.dir.canonicalize()?;
        let program = self.program.canonicalize().with_context(|| self.program.display().to_string())?;
        let names = Names::default();
        if !self.plain && !place.join("pki/ca.pem").exists() {
            make_certificates(&program, &place.join("pki"), &names.trust_domain, &[])?;
        }
        let (issuer, rsa_issuer) = (Issuer::new("bench")?, Issuer::rsa("bench-rsa")?);
        let keys = serde_json::json!({"keys": [issuer.jwk(), rsa_issuer.jwk()]});
        fs::write(place.join("issuer.jwks"), keys.to_string())?;
        let (http, https) = (free_address()?, free_address()?);
        let policies = self.policies.canonicalize().with_context(|| self.policies.display().to_string())?;
        let settings = Settings {
            names: &names,
            policies: &policies,
            pki: (!self.plain).then(|| place.join("pki")),
            issuer_keys: &place.join("issuer.jwks"),
            data: &place.join("data"),
            http,
            https,
            member: None,
        };
        fs::write(place.join("node.toml"), settings.text())?;

        let log = fs::File::create(place.join("node.log"))?;
        let mut command = on_core(core, &program);
        command.arg("serve").arg("--config").arg(place.join("node.toml"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;

        let target = |address, tls| Target { address, host: "localhost".to_owned(), tls };
        let issuer = Arc::new(issuer);
        let mut node = Node { child, http: target(http, None), https: None, issuer, rsa_issuer, place };
        if !self.plain {
            node.https = Some(target(https, Some(certificates::client(&node.pki(), None, b"http/1.1")?)));
        }
        node.until_ready().await?;
        Ok(node)
    }
}

impl Node {
    /// Directory of the certificates.
    pub fn pki(&self) -> PathBuf {
        self.place.join("pki")
    }

    /// The listener for callers, with the certificate of a caller.
    pub fn target(&self, name: &str) -> Result<Target> {
        match &self.https {
            None => Ok(self.http.clone()),
            Some(https) => {
                let identity = Identity::read(&self.pki(), name)?;
                let tls = certificates::client(&self.pki(), Some(&identity), b"http/1.1")?;
                Ok(Target { tls: Some(tls), ..https.clone() })
            }
        }
    }

    /// Both listeners without a certificate, with their names.
    pub fn anonymous(&self) -> Vec<(&'static str, Target)> {
        let tls = self.https.iter().map(|target| ("tls", target.clone()));
        [("plain", self.http.clone())].into_iter().chain(tls).collect()
    }

    /// Current and peak resident memory, in KiB.
    pub fn memory_kib(&self) -> Result<(u64, u64)> {
        memory_kib(self.child.id())
    }

    /// Resets the peak to the current memory.
    pub fn reset_peak(&self) {
        reset_peak(self.child.id());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn cpu_secs(&self) -> Result<f64> {
        cpu_secs(&self.child.id().to_string())
    }

    /// Fails if the process has exited.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the node ended: {status}; see {}", self.place.join("node.log").display()),
        }
    }

    /// A minted token, which shows that a valid exchange works.
    pub async fn mint(&self) -> Result<String> {
        let target = self.target("workload")?;
        let body = crate::credentials::exchange(&self.issuer.credential(0)?);
        let request = wire::request_with("POST", "/v1/exchange/token", &target.host, "", body.as_bytes());
        let answer = target.call(&request).await?;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        if answer.status != 200 {
            bail!("a valid exchange is answered {}: {text}", answer.status);
        }
        let answer: serde_json::Value = serde_json::from_str(&text)?;
        Ok(answer["access_token"].as_str().context("no access_token")?.to_owned())
    }

    /// Distinct minted tokens, over several connections.
    pub async fn tokens(&self, count: usize) -> Result<Vec<String>> {
        const CONNECTIONS: usize = 8;
        let target = self.target("workload")?;
        let body = crate::credentials::exchange(&self.issuer.credential(0)?);
        let request = wire::request_with("POST", "/v1/exchange/token", &target.host, "", body.as_bytes());
        let mut minting = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (target, request) = (target.clone(), request.clone());
            minting.spawn(async move {
                let mut connection = target.connect().await?;
                let mut tokens = Vec::new();
                for _ in 0..count.div_ceil(CONNECTIONS) {
                    let answer = connection.call(&request).await?;
                    let answer: serde_json::Value = serde_json::from_slice(answer.body())?;
                    tokens.push(answer["access_token"].as_str().context("no access_token")?.to_owned());
                }
                anyhow::Ok(tokens)
            });
        }
        let mut tokens = Vec::new();
        while let Some(minted) = minting.join_next().await {
            tokens.extend(minted??);
        }
        Ok(tokens)
    }

    /// Bytes that its threads have passed to `write` and similar calls so far, by name.
    pub fn written_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let mut threads = BTreeMap::<String, u64>::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            // The thread may have exited.
            let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
            let io = fs::read_to_string(task.join("io")).unwrap_or_default();
            let written = io.lines().find_map(|line| line.strip_prefix("wchar: "));
            *threads.entry(name.trim_end().to_owned()).or_default() +=
                written.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or_default();
        }
        Ok(threads)
    }

    /// The size of all files of its data directory.
    pub fn data_bytes(&self) -> Result<u64> {
        bytes_below(&self.place.join("data"))
    }

    /// Waits until it is idle. Returns the waiting time.
    pub async fn until_quiet(&self) -> Result<Duration> {
        let begun = Instant::now();
        let mut quiet = 0;
        while quiet < QUIET_SECS && begun.elapsed() < QUIET_MAX {
            let before = self.cpu_secs()?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            quiet = if self.cpu_secs()? - before < QUIET_CPU_SECS { quiet + 1 } else { 0 };
        }
        Ok(begun.elapsed())
    }

    async fn until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        let request = wire::request("GET", "/readyz", "localhost", "connection: close\r\n");
        loop {
            if let Ok(Response { status: 200, .. }) = self.http.call(&request).await {
                return Ok(());
            }
            self.still_runs()?;
            if begun.elapsed() > READY_MAX {
                return Err(anyhow!("the node is not ready after {READY_MAX:?}"));
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A command that runs `program`, optionally on one core alone. The kernel kills it when the bench ends in any way.
pub fn on_core(core: Option<usize>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(core) = core {
        command.arg("taskset").arg("-c").arg(core.to_string());
    }
    command.arg(program);
    command
}

/// Current and peak resident memory of a process, in KiB.
pub fn memory_kib(process: u32) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such field")?;
        Ok(line.trim_start_matches(':').trim_end_matches("kB").trim().parse()?)
    };
    Ok((field("VmRSS")?, field("VmHWM")?))
}

/// Resets the peak memory of a process to the current one.
pub fn reset_peak(process: u32) {
    drop(fs::write(format!("/proc/{process}/clear_refs"), "5"));
}

/// Processor time of a process (`self` or a number).
pub fn cpu_secs(process: &str) -> Result<f64> {
    let stat = fs::read_to_string(Path::new("/proc").join(process).join("stat"))?;
    // The name, in parentheses, may contain spaces; user and system time are fields 14 and 15.
    let after_name = stat.rsplit_once(") ").context("stat")?.1;
    let mut fields = after_name.split(' ').skip(11);
    let mut next = || -> Result<f64> { Ok(fields.next().context("stat")?.parse()?) };
    Ok((next()? + next()?) / TICKS_PER_SEC)
}

/// The size of all files below a directory.
pub fn bytes_below(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for item in fs::read_dir(directory)? {
        let item = item?;
        // The file may have been removed.
        let Ok(metadata) = item.metadata() else { continue };
        // A snapshot is made of links: a file counts once, under all its names together.
        let file_bytes = metadata.len() / metadata.nlink().max(1);
        bytes += if metadata.is_dir() { bytes_below(&item.path())? } else { file_bytes };
    }
    Ok(bytes)
}

/// Creates a CA of the trust domain, the certificate of nodes and those of the callers, and of more callers.
pub fn make_certificates(
    program: &Path,
    directory: &Path,
    trust_domain: &str,
    more_callers: &[&str],
) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("pki").arg("--dir").arg(directory).arg("--trust-domain").arg(trust_domain);
    for name in callers().map(|(name, _)| name).chain(more_callers.iter().copied()) {
        command.arg("--caller").arg(name);
    }
    let output = command.output()?;
    if !output.status.success() {
        bail!("trust-fabric pki: {}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A free address on loopback.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
