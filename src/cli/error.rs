//! Reason for which a command failed: one line, and a hint if one helps.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use trust_fabric_client as client;

use super::output::printable;
use crate::{backup, config, data_directory, demo, json, node, pki, policy, state, telemetry, tls};

/// `EX_SOFTWARE` of sysexits.h.
const REPLICA_FAILED: u8 = 70;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error(transparent)]
    Demo(#[from] demo::Error),
    #[error(transparent)]
    Answer(#[from] client::Error),
    #[error("{} cannot be reached: {reason}", path.display())]
    AdminSocket { path: PathBuf, reason: String },
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("policy: {0}")]
    Policy(#[from] policy::Error),
    /// For the parent process, a node: the reason alone.
    #[error("{0}")]
    CompileRefused(policy::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Input { path: PathBuf, source: json::Error },
    #[error("no destination for the token")]
    NoTokenDestination,
    #[error("there is no such agent")]
    NoSuchAgent,
    #[error("no queried node retains a denial with this request_id")]
    NoSuchDenial,
    #[error("{0} is ambiguous")]
    AmbiguousTarget(String),
    #[error("an email address needs the issuer that verified it")]
    EmailWithoutIssuer,
    /// With the option, the command needs no terminal.
    #[error("not confirmed; nothing was changed")]
    NotConfirmed { needs_yes: bool },
    #[error("raising the feature level cannot be undone, and was not confirmed: --yes confirms it")]
    NotFinalized,
    #[error("the policy denies this")]
    Denied,
    #[error("{failed} of {all} policy tests failed")]
    TestsFailed { failed: usize, all: usize },
    #[error("{}: there are no policy tests", .0.display())]
    NoTests(PathBuf),
    /// File, line and fault.
    #[error("{0}")]
    BrokenAudit(String),
    #[error("{}: {source}", path.display())]
    Backup { path: PathBuf, source: backup::Error },
    #[error("the backup is of another fabric, {found}, and fabric.issuer is {configured}")]
    OtherFabric { found: String, configured: String },
    #[error("the backup has {found} data, and node.mode is {configured}")]
    OtherBackupMode { found: String, configured: &'static str },
    #[error("{0}: acknowledged writes would be lost")]
    LaterEnd(String),
    #[error("another member has another state at log index {0}, and no majority decided which is right")]
    Disputed(u64),
    #[error("there is no earlier policy")]
    NoEarlierPolicy,
    #[error("the node is not ready: {0}")]
    NotReady(String),
    #[error(transparent)]
    JoinToken(#[from] state::InvalidJoinToken),
    #[error("the join token is for node {token}, and node.id is {configured}")]
    OtherNode { configured: u64, token: u64 },
    #[error("cluster.certificate names {found}, but this node is {expected}")]
    OtherCertificate { found: String, expected: String },
    #[error("cluster.certificate: {0}")]
    PeerCertificate(tls::Error),
    #[error(transparent)]
    Ca(tls::Error),
    #[error("cluster.listen is not set: the other nodes could not reach this one")]
    NoPeerListener,
    #[error("no address for the other nodes: cluster.members does not contain this node")]
    NoPeerAddress,
    #[error("trust-fabric-bench was not found")]
    NoBench,
    #[error("failed to start the runtime: {0}")]
    Runtime(io::Error),
    #[error("failed to locate this executable: {0}")]
    Program(io::Error),
    #[error("interrupted by a second signal before shutdown completed")]
    Interrupted,
    #[error("failed to write the output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// A closed pipe, as in `… | head`, is no failure.
    fn is_reader_gone(&self) -> bool {
        let (Self::Output(error) | Self::Demo(demo::Error::Output(error))) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
    }

    /// Whether threads remain that may never end.
    pub(super) fn leaves_threads(&self) -> bool {
        matches!(
            self,
            Self::Node(node::Error::NotStopped { .. })
                | Self::Demo(demo::Error::Node(node::Error::NotStopped { .. }))
        )
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_reader_gone() => ExitCode::SUCCESS,
            Self::Node(node::Error::ReplicaFailed(_))
            | Self::Demo(demo::Error::Node(node::Error::ReplicaFailed(_))) => ExitCode::from(REPLICA_FAILED),
            _ => ExitCode::FAILURE,
        }
    }

    /// Writes the reason, or each mistake of a configuration, and the hint.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.is_reader_gone() {
            return Ok(());
        }
        if let Self::CompileRefused(reason) = self {
            return writeln!(out, "{reason}");
        }
        if let Self::Config(config::Error::Mistakes(mistakes)) = self {
            mistakes.iter().try_for_each(|mistake| writeln!(out, "error: {mistake}"))?;
        } else {
            // It may quote a node's response, and a compiler's message has several lines.
            let text = self.to_string();
            let lines: Vec<_> = text.trim_end().lines().map(printable).collect();
            writeln!(out, "error: {}", lines.join("\n"))?;
        }
        match self.hint() {
            Some(hint) => writeln!(out, "hint: {hint}"),
            None => Ok(()),
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Config(config::Error::Mistakes(_)) => {
                Some("trust-fabric.example.toml explains every setting")
            }
            Self::OtherNode { .. } => {
                Some("set node.id to the id of the token, which its peer certificate must have")
            }
            Self::NoPeerAddress => Some("set --address to a host and port of this node"),
            Self::LaterEnd(_) => Some(
                "run the command on the node with the later end; if it is lost, set --accept-loss to lose its last writes",
            ),
            Self::Disputed(_) => Some(
                "start the missing members, whose answers decide it; if they are lost, set --accept-dispute on the node \
                 whose state is to be kept",
            ),
            Self::NotConfirmed { needs_yes: true } => Some("set --yes to confirm without a terminal"),
            Self::NoTokenDestination => Some("set --token-file, or --output json to print it"),
            Self::NoSuchDenial => Some(
                "name every node with --server; a node keeps its latest denials, at most 10 000, until it stops, and a \
                 refusal for another reason than a denial is explained by its text",
            ),
            Self::AmbiguousTarget(_) => {
                Some("set --kind to subject, email, agent, client, token, key or fabric")
            }
            Self::EmailWithoutIssuer => Some("set --issuer"),
            Self::AdminSocket { .. } => {
                Some("is the node running, as this user? A node without disk space opens it later")
            }
            Self::Answer(client::Error::Unreachable { .. }) => Some(
                "is the node running? --server or TRUST_FABRIC_ENDPOINTS sets its URL, and --data-dir its directory",
            ),
            Self::Answer(client::Error::Handshake { .. }) => {
                Some("--ca sets the CAs to trust, --cert and --key your certificate")
            }
            Self::Pki(pki::Error::TooOpen { .. }) => {
                Some("remove the permissions of others: chmod go= <path>")
            }
            Self::Pki(pki::Error::NoIssuer(_)) => {
                Some("create one with `trust-fabric pki --issuer`; --dir sets its directory")
            }
            Self::Answer(client::Error::TimedOut(_)) => {
                Some("the request may have been carried out: check before you retry")
            }
            Self::NoBench => Some(
                "build it with cargo build --release -p trust-fabric-bench; put it beside this program or on the PATH",
            ),
            Self::Demo(demo::Error::NoDataDirectory) => Some("choose a directory with --data-dir"),
            Self::Demo(demo::Error::Data { source, .. }) if is_not_writable(source) => {
                Some("choose another directory with --data-dir")
            }
            Self::Demo(demo::Error::IssuerListen { .. }) => {
                Some("choose another port with --issuer-listen 127.0.0.1:<port>")
            }
            Self::Node(error) | Self::Demo(demo::Error::Node(error)) => node_hint(error),
            _ => None,
        }
    }
}

fn node_hint(error: &node::Error) -> Option<&'static str> {
    match error {
        node::Error::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            Some("another program uses this port: stop it, or choose another with --listen 127.0.0.1:<port>")
        }
        node::Error::Listen { .. } => Some("choose another address with --listen"),
        node::Error::DataDirectory(data_directory::Error::Unusable { source, .. })
            if is_not_writable(source) =>
        {
            Some("choose another data directory")
        }
        node::Error::DataDirectory(data_directory::Error::OtherMode { .. }) => {
            Some("choose another data directory, or change node.mode")
        }
        node::Error::InUse { .. } => Some("stop that process, or choose another data directory"),
        _ => None,
    }
}

fn is_not_writable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory | NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(error: &Error) -> String {
        let mut text = Vec::new();
        error.write(&mut text).expect("written");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn busy_port_has_a_hint() {
        let address = "127.0.0.1:8693".parse().expect("address");
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        let text = written(&Error::Demo(demo::Error::Node(node::Error::Listen { address, source })));
        assert!(
            text.starts_with("error: failed to listen on 127.0.0.1:8693") && text.contains("--listen"),
            "{text}"
        );
    }

    /// Terminal injection through a node's response.
    #[test]
    fn control_characters_of_a_response_are_replaced() {
        let description = "no\u{1b}[2J\u{9b}x\u{202e}y\nline".to_owned();
        let refused = client::Error::Refused(Box::new(client::Refusal {
            server: "http://127.0.0.1:8693".parse().expect("a URL"),
            status: 400,
            code: "invalid_request".to_owned(),
            description,
            retry_after: None,
            body: serde_json::Value::Null,
        }));
        let text = written(&Error::Answer(refused));
        assert!(text.starts_with("error: no\u{fffd}[2J\u{fffd}x\u{fffd}y\nline\n"), "{text:?}");
    }

    #[test]
    fn each_mistake_has_its_own_line() {
        let mistake =
            |key: &str| config::Mistake { setting: key.into(), rule: "must be set".into(), origin: None };
        let text = written(&Error::Config(config::Error::Mistakes(vec![mistake("a"), mistake("b")])));
        assert_eq!(text.lines().filter(|line| line.starts_with("error: ")).count(), 2, "{text}");
    }

    #[test]
    fn closed_pipe_is_success_and_failed_replica_exits_with_70() {
        let gone = Error::Output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(written(&gone), "");
        assert_eq!(gone.exit_code(), ExitCode::SUCCESS);
        let failed = Error::Node(node::Error::ReplicaFailed("sync".to_owned()));
        assert_eq!(failed.exit_code(), ExitCode::from(70));
        assert_eq!(Error::Denied.exit_code(), ExitCode::FAILURE);
    }
}
