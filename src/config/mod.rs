//! The configuration: one file, the environment and the flags, read once, checked once.
//!
//! The only reader of the environment and of files that configure. What comes out is typed and
//! needs no second look; every mistake is named with its key, its rule and its place. No secret
//! stands in a configuration, so all of it may be printed.

mod cluster;
mod environment;
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

pub use self::cluster::{Cluster, Peers};
pub use self::environment::{data_home, environment, forbid_core_dumps, program};
use self::schema::Keys;
use self::validation::Checker;
use crate::api::caller::{Callers, MetricsAccess};
use crate::api::listener::Caps;
use crate::id::TrustDomain;
use crate::outbound::guard::Rules;
use crate::policy::blast_radius::Containment;
use crate::receiver::SignalIssuers;
use crate::telemetry::LogFormat;
use crate::token::issuer::Issuer;
use crate::{limits, policy, tls};

/// Begins the name of every environment variable that sets a key; `__` separates the key's parts.
pub const ENVIRONMENT_PREFIX: &str = "TRUST_FABRIC__";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: Node,
    /// Where it listens.
    pub listen: Listen,
    /// TLS, without which a node runs in development mode: on loopback, for everybody.
    pub tls: Option<Tls>,
    /// What the holders of client certificates may do.
    pub callers: Callers,
    /// Limits that two deployments would set differently.
    pub limits: Limits,
    /// Who may read metrics.
    pub metrics_access: MetricsAccess,
    /// The trust fabric it is part of.
    pub fabric: Fabric,
    /// Foreign issuers whose credentials are exchanged, in the order of the file.
    pub issuers: Vec<Issuer>,
    /// Whose signals are received, and whom each speaks for.
    pub signals: SignalIssuers,
    /// Where receivers of our own signals reach this fabric; `None` if it transmits none.
    pub transmitter: Option<Transmitter>,
    /// Where the first policy comes from.
    pub policy: Policy,
    /// The replicated core.
    pub cluster: Cluster,
    /// Whom this node may call.
    pub outbound: Rules,
    /// Which blast radius lies within which.
    pub blast_radius: Containment,
    /// Logs.
    pub log: Log,
}

/// `[node]`
#[derive(Clone, Debug)]
pub struct Node {
    /// Number in the cluster, from 1. Never used again for another disk.
    pub id: u64,
    /// Where everything that lasts is kept.
    pub data_dir: PathBuf,
    /// Name in health, events and audit.
    pub unit_id: String,
}

/// `[listen]`
#[derive(Clone, Debug)]
pub struct Listen {
    /// Plain HTTP; in development mode a loopback address.
    pub http: SocketAddr,
    /// The names that requests may be sent to: the host of our `iss`, and those that were added.
    pub hosts: Vec<String>,
}

/// `[tls]`, and `listen.https`.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Where TLS is listened for.
    pub address: SocketAddr,
    /// Certificate, key, and the authorities of each trust domain whose workloads may call.
    pub files: tls::Files,
}

/// `[limits]`
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that one caller may send in a second.
    pub requests_per_second_per_caller: u32,
    /// Connections of one address and of one identity.
    pub connections: Caps,
}

/// `[fabric]`
#[derive(Clone, Debug)]
pub struct Fabric {
    /// `iss` of every token that is minted here, and the `aud` of those meant for the fabric itself.
    pub issuer: String,
    /// The trust domain whose workloads it names.
    pub trust_domain: TrustDomain,
}

/// `[transmitter]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmitter {
    /// Begins the address of every endpoint of streams: `https` unless it is this machine, without a slash at
    /// its end.
    pub base_url: String,
    /// The client certificate of pushes, if they present one.
    pub certificate: Option<tls::KeyPairFiles>,
}

/// `[policy]`
#[derive(Clone, Debug)]
pub struct Policy {
    /// Holds the policy that a new cluster starts with; a running one has its own.
    pub directory: PathBuf,
}

/// `[log]`
#[derive(Clone, Debug)]
pub struct Log {
    /// What a line looks like.
    pub format: LogFormat,
    /// Which events are written.
    pub filter: String,
}

/// Flags, which win over the environment and the file.
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
    /// The key, for example `issuers[0].keys_url`.
    pub key: String,
    /// The rule it breaks.
    pub rule: String,
    /// Where it was set: a file, an environment variable or a flag; `None` if it was not set.
    pub origin: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.rule)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file or directory is larger than its limit.
    #[error("{}: {rule}", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// The limit.
        rule: String,
    },
    /// The file is not TOML.
    #[error("{}: {rule}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// What the parser says, on one line.
        rule: String,
    },
    /// Keys that break their rules: all that were found.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Mistakes(Vec<Mistake>),
}

/// Reads and checks. The file comes first, then `environment`, then `overrides`; the later wins.
///
/// # Errors
/// As [`Error`] says; [`Error::Mistakes`] names all that were found in one pass.
pub fn load(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<Config, Error> {
    let (keys, checker) = merge(file, environment, overrides)?;
    validation::config(&keys, checker)
}

/// Every key with the value in force, defaults included, as JSON of the file's own shape.
///
/// # Errors
/// As [`load`].
pub fn show(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<serde_json::Value, Error> {
    let (keys, checker) = merge(file, environment, overrides)?;
    validation::config(&keys, checker)?;
    serde_json::to_value(&keys).map_err(|error| Error::Mistakes(vec![Mistake::of_all(error.to_string())]))
}

/// The three sources laid over each other, unchecked, and where each key came from.
fn merge(
    file: Option<&Path>,
    environment: &mut dyn Iterator<Item = (String, String)>,
    overrides: &Overrides,
) -> Result<(Keys, Checker), Error> {
    let mut checker = Checker::new(file);
    let mut builder = ::config::Config::builder();
    if let Some(path) = file {
        let text = read(path)?;
        // Parsed here alone first: its errors are then about the file.
        let source = ::config::File::from_str(&text, ::config::FileFormat::Toml);
        ::config::Config::builder().add_source(source.clone()).build().map_err(|error| Error::Syntax {
            path: path.to_owned(),
            rule: error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        })?;
        builder = builder.add_source(source);
    }
    for (variable, value) in environment {
        let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
        let key = name.split("__").collect::<Vec<_>>().join(".").to_ascii_lowercase();
        let broken = |rule: String| Mistake { key: key.clone(), rule, origin: Some(variable.clone()) };
        checker.set_by(&key, &format!("environment variable {variable}"));
        builder = builder
            .set_override(&key, value)
            .map_err(|_| Error::Mistakes(vec![broken("is not the name of a key".to_owned())]))?;
    }
    let merged =
        builder.build().map_err(|error| Error::Mistakes(vec![Mistake::of_all(error.to_string())]))?;
    let mut keys: Keys = serde_path_to_error::deserialize(merged).map_err(|error| {
        let key = error.path().to_string();
        Error::Mistakes(vec![checker.mistake(&key, rule_of(error.inner()))])
    })?;
    if let Some(data_dir) = &overrides.data_dir {
        checker.set_by("node.data_dir", "flag --data-dir");
        keys.node.data_dir = Some(data_dir.clone());
    }
    if let Some(listen) = &overrides.listen {
        checker.set_by("listen.http", "flag --listen");
        keys.listen.http.clone_from(listen);
    }
    Ok((keys, checker))
}

impl Mistake {
    fn of_all(rule: String) -> Self {
        Self { key: "configuration".to_owned(), rule, origin: None }
    }
}

/// What is wrong, without the words for where, which the mistake says itself.
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
    /// The files of the policy that a new cluster starts with.
    ///
    /// # Errors
    /// [`Error::Unreadable`] or [`Error::TooLarge`].
    pub fn policy_sources(&self) -> Result<Vec<policy::Source>, Error> {
        policy_sources(&self.policy.directory)
    }
}

/// The `*.rego` and `*.json` files in `directory` and below, tests included, in path order. Names
/// that begin with a dot are left out, and so are links to directories.
///
/// # Errors
/// [`Error::Unreadable`] or [`Error::TooLarge`].
pub fn policy_sources(directory: &Path) -> Result<Vec<policy::Source>, Error> {
    policy_directory::read(directory)
}

#[cfg(test)]
mod tests;
