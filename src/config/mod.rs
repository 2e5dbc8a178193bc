//! Configuration: one file, the environment and the flags, read and checked once, at start.
//!
//! The only reader of the environment and of configuration files. Its values are typed and need no further checks; each
//! mistake names its setting, rule and source. A configuration has no secrets, so it may be printed.

mod ceiling;
mod checker;
mod cluster;
mod environment;
mod federation;
mod issuers;
mod listeners;
mod policy_directory;
mod schema;
mod signals;
mod transmitter;
mod validation;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::checker::Checker;
pub use self::cluster::{Cluster, Peers};
pub use self::environment::{data_home, environment, forbid_core_dumps, program};
pub use self::federation::Federation;
use self::schema::Settings;
use crate::api::caller::{Callers, MetricsAccess};
use crate::api::listener::Caps;
use crate::id::TrustDomain;
use crate::outbound::guard::Rules;
use crate::policy::blast_radius::Containment;
use crate::receiver::SignalIssuers;
use crate::telemetry::LogFormat;
use crate::token::issuer::Issuer;
use crate::{limits, policy, tls};

/// Prefix of environment variables that set a setting; `__` separates the parts of its name.
pub const ENVIRONMENT_PREFIX: &str = "TRUST_FABRIC__";

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: Node,
    /// Plain HTTP listener.
    pub listen: Listen,
    /// TLS listener; `None` in development mode.
    pub tls: Option<Tls>,
    /// Capabilities of the holders of client certificates.
    pub callers: Callers,
    /// Configurable limits.
    pub limits: ClientLimits,
    /// Access to metrics.
    pub metrics_access: MetricsAccess,
    /// The trust fabric of this node.
    pub fabric: Fabric,
    /// Foreign issuers of credentials, in the order of the file.
    pub issuers: Vec<Issuer>,
    /// Issuers of signals and their authority.
    pub signals: SignalIssuers,
    /// Transmitter; `None` if this fabric transmits nothing.
    pub transmitter: Option<TransmitterConfig>,
    /// Peer fabrics; `None` without federation.
    pub federation: Option<Federation>,
    /// First policy.
    pub policy: Policy,
    /// Replication.
    pub cluster: Cluster,
    /// Rules of outbound calls.
    pub outbound: Rules,
    /// Order of blast radii.
    pub blast_radius: Containment,
    pub log: Log,
}

/// `[node]`
#[derive(Clone, Debug)]
pub struct Node {
    /// Node id in the cluster, from 1. Never reused for another disk.
    pub id: u64,
    /// Directory of all durable data.
    pub data_dir: PathBuf,
    /// Name in health, events and audit.
    pub unit_id: String,
}

/// `[listen]`
#[derive(Clone, Debug)]
pub struct Listen {
    /// Plain HTTP; in development mode a loopback address.
    pub http: SocketAddr,
    /// Accepted host names: that of our `iss`, and the additional ones.
    pub hosts: Vec<String>,
    /// Time from the request to stop, from which on the node is not ready, until no more connections are accepted.
    pub shutdown_delay: Duration,
}

/// `[tls]`, and `listen.https`.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Address of the TLS listener.
    pub address: SocketAddr,
    /// Certificate, key, and the CAs of each trust domain of callers.
    pub files: tls::Files,
}

/// `[limits]`
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum requests per caller and second.
    pub requests_per_second_per_caller: u32,
    /// Maximum connections per address and per identity.
    pub connections: Caps,
}

/// `[fabric]`
#[derive(Clone, Debug)]
pub struct Fabric {
    /// `iss` of every minted token, and `aud` of those for the fabric itself.
    pub issuer: String,
    /// Our trust domain.
    pub trust_domain: TrustDomain,
}

/// `[transmitter]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransmitterConfig {
    /// Base of every stream endpoint's URL: `https` except on loopback, without a trailing slash.
    pub base_url: String,
    /// Client certificate of pushes.
    pub certificate: Option<tls::KeyPairFiles>,
}

/// `[policy]`
#[derive(Clone, Debug)]
pub struct Policy {
    /// Directory of the policy of a new cluster; a running one has its own copy.
    pub directory: PathBuf,
}

/// `[log]`
#[derive(Clone, Debug)]
pub struct Log {
    /// Format of a line.
    pub format: LogFormat,
    /// Filter of log events.
    pub filter: String,
}

/// Flags, which override the environment and the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--data-dir`: `node.data_dir`.
    pub data_dir: Option<PathBuf>,
    /// `--listen`: `listen.http`.
    pub listen: Option<String>,
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The setting, for example `issuers[0].keys_url`.
    pub setting: String,
    pub rule: String,
    /// Its source: a file, an environment variable or a flag; `None` if it was not set.
    pub origin: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.rule)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// Reason for which there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// A file or directory is larger than its limit.
    #[error("{}: {rule}", path.display())]
    TooLarge {
        path: PathBuf,
        /// The limit.
        rule: String,
    },
    /// The file is not TOML.
    #[error("{}: {rule}", path.display())]
    Syntax {
        path: PathBuf,
        /// The parser's message, on one line.
        rule: String,
    },
    /// All settings that break their rules.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<Mistake>),
}

/// Loads the file, then `environment`, then `overrides`; the later wins.
///
/// # Errors
/// [`Error::Mistakes`] names all mistakes; the other variants are about the file.
pub fn load(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<Config, Error> {
    let (settings, checker) = merge(file, environment, overrides)?;
    validation::config(&settings, checker)
}

/// Every setting with its effective value, defaults included, in the shape of the file.
///
/// # Errors
/// As [`load`].
pub fn show(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<serde_json::Value, Error> {
    let (settings, checker) = merge(file, environment, overrides)?;
    validation::config(&settings, checker)?;
    serde_json::to_value(&settings).map_err(|error| Error::Mistakes(vec![Mistake::of_all(error.to_string())]))
}

/// Merges the three sources without validation, and records the source of each setting.
fn merge(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<(Settings, Checker), Error> {
    let mut checker = Checker::new(file);
    let mut builder = ::config::Config::builder();
    if let Some(path) = file {
        let text = read(path)?;
        // Parsed on its own first, so that a syntax error names the file.
        let source = ::config::File::from_str(&text, ::config::FileFormat::Toml);
        ::config::Config::builder().add_source(source.clone()).build().map_err(|error| Error::Syntax {
            path: path.to_owned(),
            rule: error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        })?;
        builder = builder.add_source(source);
    }
    for (variable, value) in environment {
        let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
        let setting = name.split("__").collect::<Vec<_>>().join(".").to_ascii_lowercase();
        let broken =
            |rule: String| Mistake { setting: setting.clone(), rule, origin: Some(variable.clone()) };
        checker.set_by(&setting, &format!("environment variable {variable}"));
        builder = builder
            .set_override(&setting, value)
            .map_err(|_| Error::Mistakes(vec![broken("is not the name of a setting".to_owned())]))?;
    }
    let merged =
        builder.build().map_err(|error| Error::Mistakes(vec![Mistake::of_all(error.to_string())]))?;
    let mut settings: Settings = serde_path_to_error::deserialize(merged).map_err(|error| {
        let setting = error.path().to_string();
        Error::Mistakes(vec![checker.mistake(&setting, rule_of(error.inner()))])
    })?;
    if let Some(data_dir) = &overrides.data_dir {
        checker.set_by("node.data_dir", "flag --data-dir");
        settings.node.data_dir = Some(data_dir.clone());
    }
    if let Some(listen) = &overrides.listen {
        checker.set_by("listen.http", "flag --listen");
        settings.listen.http.clone_from(listen);
    }
    Ok((settings, checker))
}

impl Mistake {
    fn of_all(rule: String) -> Self {
        Self { setting: "configuration".to_owned(), rule, origin: None }
    }
}

/// The rule without the location, which the mistake has itself.
fn rule_of(error: &::config::ConfigError) -> String {
    match error {
        ::config::ConfigError::At { error, .. } => rule_of(error),
        ::config::ConfigError::Type { unexpected, expected, .. } => {
            format!("is {unexpected}, must be {expected}")
        }
        other => other.to_string(),
    }
}

fn read(path: &Path) -> Result<String, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(limits::CONFIG_BYTES_MAX as u64 + 1).read_to_string(&mut text))
        .map_err(unreadable)?;
    if text.len() > limits::CONFIG_BYTES_MAX {
        let rule = format!("is larger than {} bytes", limits::CONFIG_BYTES_MAX);
        return Err(Error::TooLarge { path: path.to_owned(), rule });
    }
    Ok(text)
}

impl Config {
    /// Files of the policy of a new cluster.
    ///
    /// # Errors
    /// [`Error::Unreadable`] or [`Error::TooLarge`].
    pub fn policy_sources(&self) -> Result<Vec<policy::Source>, Error> {
        policy_sources(&self.policy.directory)
    }
}

/// The `*.rego` and `*.json` files in `directory` and below, including tests, in path order. Skips names that begin with
/// a dot, and links to directories.
///
/// # Errors
/// [`Error::Unreadable`] or [`Error::TooLarge`].
pub fn policy_sources(directory: &Path) -> Result<Vec<policy::Source>, Error> {
    policy_directory::read(directory)
}

#[cfg(test)]
mod tests;
