//! `trust-fabric dev`: a broker of one node, an issuer, and one exchange shown step by step. `serve` uses nothing of it.

mod issuer;
mod output;
mod steps;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trust_fabric_client as client;

pub(crate) use self::issuer::credential;
use self::output::DemoOutput;
use crate::api::caller::{Callers, MetricsAccess};
use crate::api::demo_issuer;
use crate::api::listener::{self, Caps, ConnectionLimiter, Kind};
use crate::clock::Clock;
use crate::cluster::FreshnessMode;
use crate::config::{self, Config};
use crate::outbound::guard::Rules;
use crate::policy::blast_radius::Containment;
use crate::receiver;
use crate::receiver::{Authority, SignalIssuer, SignalIssuers};
use crate::telemetry::{LogFormat, Metrics};
use crate::token::issuer::{ALGORITHMS_DEFAULT, FetchFiles, Issuer, IssuerKind, KeySource, SubjectMapping};
use crate::token::{key_set, signing_key};
use crate::{id, limits, node, outbound, telemetry, token};

/// `iss` of the development broker, independent of its address: the data outlives a port.
const BROKER: &str = "http://127.0.0.1:8693";
/// `iss` of the demo issuer, likewise.
pub(crate) const ISSUER: &str = "http://127.0.0.1:8698";
/// Trust domain of the shipped policy.
const TRUST_DOMAIN: &str = "dev.trust-fabric.local";
/// The shipped policy, compiled in, so that the executable needs no other files.
const POLICY: [(&str, &str); 7] = [
    ("data.json", include_str!("../../policies/data.json")),
    ("exchange.rego", include_str!("../../policies/exchange.rego")),
    ("exchange_test.rego", include_str!("../../policies/exchange_test.rego")),
    ("identity.rego", include_str!("../../policies/identity.rego")),
    ("identity_test.rego", include_str!("../../policies/identity_test.rego")),
    ("signals.rego", include_str!("../../policies/signals.rego")),
    ("signals_test.rego", include_str!("../../policies/signals_test.rego")),
];

/// Reason for which the development broker did not start, or a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No data directory was given, and there is no home directory.
    #[error("there is no home directory for the data")]
    NoDataDirectory,
    /// A file of the data directory is not accessible.
    #[error("{}: {source}", path.display())]
    Data { path: PathBuf, source: io::Error },
    /// Binding to the demo issuer's address failed.
    #[error("failed to listen on {address} for the demo issuer: {source}")]
    IssuerListen { address: SocketAddr, source: io::Error },
    /// The demo issuer's key is invalid.
    #[error("key of the demo issuer: {0}")]
    Key(#[from] signing_key::Error),
    /// The broker itself.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// Creating the demo issuer's metrics failed.
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    /// The path of this executable is unknown.
    #[error("failed to locate this executable: {0}")]
    Program(io::Error),
    /// Writing the output failed.
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
    /// A name in this module breaks its rule.
    #[error(transparent)]
    Name(#[from] id::Error),
    /// Duplicate issuer of signals.
    #[error("signals: {0}")]
    Signals(#[from] receiver::DuplicateIssuer),
    /// Fetching a document failed.
    #[error("failed to fetch {address}: {source}")]
    Fetch { address: String, source: outbound::client::Error },
    /// The broker's response is an error.
    #[error(transparent)]
    Answer(#[from] client::Error),
    /// The key set is invalid.
    #[error("failed to parse a key set: {0}")]
    KeySet(#[from] key_set::Error),
    /// A token did not verify.
    #[error("failed to verify a token: {0}")]
    Token(#[from] token::Error),
    /// A step had another outcome than it must have.
    #[error("{0}")]
    Unexpected(&'static str),
}

/// Options of `trust-fabric dev`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stop after the exchange.
    pub once: bool,
    /// Data directory; `None`: below the user's data directory.
    pub data_dir: Option<PathBuf>,
    /// Address of the broker.
    pub listen: SocketAddr,
    /// Address of the demo issuer.
    pub issuer_listen: SocketAddr,
    /// Whether to use colour.
    pub colour: bool,
}

/// Starts broker and issuer, shows one exchange, and serves until `shutdown`. The first step that fails ends it.
pub async fn run(
    options: Options,
    out: &mut (dyn Write + Send),
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let mut page = DemoOutput::new(out, options.colour);
    let data_dir = match &options.data_dir {
        Some(data_dir) => data_dir.clone(),
        None => config::data_home(&mut config::environment())
            .ok_or(Error::NoDataDirectory)?
            .join("trust-fabric")
            .join("dev"),
    };
    let is_first_run = prepare(&data_dir)?;
    let key = issuer::signing_key(&data_dir.join("demo-issuer.p8"))?;
    let socket = TcpListener::bind(options.issuer_listen)
        .await
        .map_err(|source| Error::IssuerListen { address: options.issuer_listen, source })?;
    let issuer_address = format!("http://{}", socket.local_addr().map_err(Error::Output)?);
    let config = configuration(&data_dir, options.listen, &issuer_address)?;
    let program = config::program().map_err(Error::Program)?;
    let clock = Clock::system();
    let running = node::start(config, clock.clone(), &program, shutdown.clone()).await?;
    let endpoints = steps::DemoEndpoints {
        broker: format!("http://{}", running.address),
        issuer: issuer_address.clone(),
        program: program.display().to_string(),
    };

    let issuer = issuer::issuer(ISSUER, &issuer_address, BROKER, key, clock.clone());
    let router = demo_issuer::router(issuer);
    let limiter = ConnectionLimiter::new(Caps::default(), limits::CONNECTIONS_MAX);
    let issuing = listener::serve(socket, Kind::Plain, router, limiter, Metrics::new()?, shutdown.clone());
    // Issuer and broker stop together.
    let serving = async {
        let brokering = async {
            let outcome = running.until_stopped().await;
            shutdown.cancel();
            outcome
        };
        tokio::join!(brokering, issuing).0
    };
    tokio::pin!(serving);

    page.line(&format!("The broker is at {}, the demo issuer at {}.", endpoints.broker, endpoints.issuer))?;
    page.line(&format!(
        "{} {}",
        if is_first_run { "New data is stored in" } else { "Using the data of an earlier run in" },
        data_dir.display()
    ))?;
    let shown = tokio::select! {
        stopped = &mut serving => return Ok(stopped?),
        shown = steps::show(&mut page, &endpoints, &clock) => shown,
    };
    if shown.is_ok() && !options.once {
        steps::show_next_steps(&mut page, &endpoints)?;
    } else {
        shutdown.cancel();
    }
    serving.await?;
    shown
}

/// Creates the data directory and an editable copy of the policy. Returns whether there was no data yet.
fn prepare(data_dir: &Path) -> Result<bool, Error> {
    let policies = data_dir.join("policies");
    let is_first_run = !data_dir.join("raft").exists();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&policies)
        .map_err(|source| Error::Data { path: data_dir.to_owned(), source })?;
    for (name, text) in POLICY {
        let path = policies.join(name);
        if !path.exists() {
            fs::write(&path, text).map_err(|source| Error::Data { path, source })?;
        }
    }
    Ok(is_first_run)
}

fn configuration(data_dir: &Path, listen: SocketAddr, issuer_address: &str) -> Result<Config, Error> {
    let keys = if issuer_address == ISSUER {
        KeySource::Discovery
    } else {
        KeySource::Url(format!("{issuer_address}/openid/v1/jwks"))
    };
    Ok(Config {
        node: config::Node { id: 1, data_dir: data_dir.to_owned(), unit_id: "dev".to_owned() },
        listen: config::Listen { http: listen, hosts: Vec::new(), shutdown_delay: Duration::ZERO },
        tls: None,
        callers: Callers::default(),
        limits: config::ClientLimits {
            requests_per_second_per_caller: limits::REQUESTS_PER_SECOND_PER_CALLER,
            connections: Caps::default(),
        },
        metrics_access: MetricsAccess::default(),
        fabric: config::Fabric { issuer: BROKER.to_owned(), trust_domain: TRUST_DOMAIN.parse()? },
        issuers: vec![Issuer {
            iss: ISSUER.to_owned(),
            kind: IssuerKind::Jwt { subject: SubjectMapping::Kubernetes },
            keys,
            fetch_files: FetchFiles::default(),
            algorithms: ALGORITHMS_DEFAULT.to_vec(),
            audiences: vec![BROKER.to_owned()],
            trust_domains: vec![TRUST_DOMAIN.parse()?],
            max_credential_age: limits::CREDENTIAL_AGE_MAX,
            verified_email: false,
        }],
        // Without TLS, every local caller may send in its name.
        signals: SignalIssuers::new(vec![SignalIssuer {
            iss: ISSUER.to_owned(),
            keys: None,
            algorithms: ALGORITHMS_DEFAULT.to_vec(),
            audiences: vec![BROKER.to_owned()],
            callers: BTreeSet::new(),
            authority: Authority {
                trust_domains: vec![TRUST_DOMAIN.parse()?],
                subject_issuers: vec![ISSUER.to_owned(), BROKER.to_owned()],
            },
            revocations_per_minute: limits::REVOCATIONS_PER_MINUTE,
            may_block_operators: false,
        }])?,
        federation: None,
        transmitter: Some(config::TransmitterConfig {
            base_url: format!("http://{listen}"),
            certificate: None,
        }),
        policy: config::Policy { directory: data_dir.join("policies") },
        cluster: config::Cluster {
            heartbeat: Duration::from_millis(100),
            freshness: FreshnessMode::default(),
            log_bytes_max: limits::LOG_BYTES_MAX_DEFAULT,
            peers: None,
        },
        outbound: Rules { allow_loopback_http: true, ..Rules::default() },
        blast_radius: Containment::default(),
        log: config::Log { format: LogFormat::Text, filter: "warn".to_owned() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Bundle;
    use crate::token::issuer::Issuers;

    #[test]
    fn compiled_in_policy_is_complete() {
        let sources =
            POLICY.map(|(path, text)| crate::policy::Source { path: path.into(), text: text.into() });
        assert!(Bundle::compile(&sources).expect("compiles").test().iter().all(|test| test.passed));
        for name in [BROKER, ISSUER, TRUST_DOMAIN, steps::AUDIENCE] {
            assert!(POLICY[0].1.contains(name), "{name}");
        }
        let shipped = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/policies")).expect("policies");
        assert_eq!(shipped.count(), POLICY.len(), "a policy file is not compiled in");
    }

    #[test]
    fn earlier_run_is_detected_and_its_policy_stays() {
        let directory = tempfile::tempdir().expect("directory");
        let data_dir = directory.path().join("dev");
        assert!(prepare(&data_dir).expect("prepared"));
        fs::write(data_dir.join("policies/data.json"), "{}").expect("edited");
        fs::create_dir(data_dir.join("raft")).expect("data");
        assert!(!prepare(&data_dir).expect("prepared"));
        assert_eq!(fs::read_to_string(data_dir.join("policies/data.json")).expect("kept"), "{}");
    }

    #[test]
    fn key_source_follows_the_issuer_port() {
        let listen = "127.0.0.1:0".parse().expect("address");
        for (address, keys) in [
            (ISSUER, KeySource::Discovery),
            ("http://127.0.0.1:1", KeySource::Url("http://127.0.0.1:1/openid/v1/jwks".to_owned())),
        ] {
            let config = configuration(Path::new("d"), listen, address).expect("configuration");
            assert_eq!(config.issuers[0].keys, keys);
            assert!(Issuers::new(config.issuers).is_ok());
        }
    }
}
