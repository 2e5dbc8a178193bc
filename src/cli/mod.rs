//! The command line: arguments, output and exit codes.
//!
//! Exit codes: 0 success, 1 refused or failed, 2 wrong usage, 70 the replica of a serving node failed, 137 (SIGKILL by
//! itself) a part of a node did not end in time.

mod agent;
mod audit;
mod backup;
mod bench;
mod blocks;
mod cluster;
mod completions;
mod config;
mod confirmation;
mod credential;
mod dev;
mod endpoint;
mod error;
mod events;
mod explanation;
mod federation;
mod health;
mod keys;
mod new_file;
mod output;
mod pagination;
mod pki;
mod policy;
mod progress;
mod restore;
mod revoke;
mod serve;
mod signals;
mod stream;

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use self::error::Error;
use crate::breaks;

/// A broker of trust for workloads and AI agents.
///
/// It exchanges a credential of a workload, as far as policy allows, for a token that lives five minutes. See
/// `trust-fabric dev` for a demo.
#[derive(Debug, Parser)]
#[command(name = "trust-fabric", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node until SIGTERM or SIGINT; exits with 70 if its replica fails.
    Serve(serve::Arguments),
    /// Run a development broker with an issuer, and show one exchange.
    Dev(dev::Arguments),
    /// Check or show a configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// List, rotate or taint the signing keys of a running node.
    #[command(subcommand)]
    Keys(keys::Command),
    /// Issue, renew, show and revoke agent identities.
    #[command(subcommand)]
    Agent(agent::Command),
    /// Revoke a workload, agent, email address, client, token or key, with everything that derives from it.
    Revoke(revoke::Revoke),
    /// List revocations.
    Revocations(revoke::Revocations),
    /// List subject blocks.
    Blocks(blocks::Blocks),
    /// Lift a block, set by an operator or an issuer of signals.
    Unblock(blocks::Unblock),
    /// Raise the quota of an issuer of signals, once.
    #[command(subcommand)]
    Signals(signals::Command),
    /// Create, show, pause and delete streams of security events.
    #[command(subcommand)]
    Stream(stream::Command),
    /// Test and evaluate a policy, apply it to a running cluster, or roll back to an earlier one.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Show, export or verify the audit of decisions about tools.
    #[command(subcommand)]
    Audit(audit::Command),
    /// Show the members of the cluster; add, replace and remove nodes; transfer leadership; end an upgrade.
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Show the peer fabrics; pause, resume, approve, repair or forget one.
    #[command(subcommand)]
    Federation(federation::Command),
    /// Save the state of a running cluster; inspect and verify a backup.
    #[command(subcommand)]
    Backup(backup::Command),
    /// Restore a backup, or a cluster that lost its majority, as a new cluster of one node.
    Restore(restore::Arguments),
    /// Watch the live feed of the cluster.
    Events(events::Arguments),
    /// Create a development CA and certificates for nodes and callers.
    Pki(pki::Arguments),
    /// Print a credential of the development issuer of `pki --issuer`.
    Credential(credential::Arguments),
    /// Show the health of a node, and exit with 0 if it serves, also with a warning: for health checks of containers.
    Health(health::Arguments),
    /// Benchmark running nodes, also under attack, overload and failover: executes `trust-fabric-bench`.
    #[command(disable_help_flag = true)]
    Bench(bench::Arguments),
    /// Print a completion script for a shell.
    Completions(completions::Arguments),
}

/// Runs the command of `arguments`, whose first item is the program name.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap; it prints them to standard output, and their exit code is 0.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let runs_a_node = matches!(cli.command, Command::Serve(_) | Command::Dev(_) | Command::Restore(_));
    if runs_a_node && let Err(text) = breaks::announce(&mut io::stderr()) {
        drop(writeln!(io::stderr(), "error: {text}"));
        return ExitCode::from(2);
    }
    let mut out = io::stdout();
    match run(cli.command, &mut out).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(error.write(&mut io::stderr()));
            if error.leaves_threads() {
                end_at_once();
            }
            error.exit_code()
        }
    }
}

/// Writes the help of a subcommand.
fn write_help(name: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut cli = Cli::command();
    // Completes the names in the usage line.
    cli.build();
    let help = cli.find_subcommand_mut(name).map(|command| command.render_long_help().to_string());
    write!(out, "{}", help.unwrap_or_default())
}

/// Ends the process at once: an orderly exit would wait for threads that may never end.
fn end_at_once() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
}

fn run(command: Command, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Dev(arguments) => dev::run(arguments, out),
        Command::Config(command) => config::run(&command, out),
        Command::Keys(command) => keys::run(command, out),
        Command::Agent(command) => agent::run(command, out),
        Command::Revoke(arguments) => revoke::revoke(&arguments, out),
        Command::Revocations(arguments) => revoke::list(&arguments, out),
        Command::Blocks(arguments) => blocks::list(&arguments, out),
        Command::Unblock(arguments) => blocks::lift(&arguments, out),
        Command::Signals(command) => signals::run(command, out),
        Command::Stream(command) => stream::run(command, out),
        Command::Policy(command) => policy::run(command, out),
        Command::Audit(command) => audit::run(command, out),
        Command::Cluster(command) => cluster::run(command, out),
        Command::Federation(command) => federation::run(command, out),
        Command::Backup(command) => backup::run(command, out),
        Command::Restore(arguments) => restore::run(&arguments, out),
        Command::Events(arguments) => events::run(arguments, out),
        Command::Pki(arguments) => pki::run(&arguments, out),
        Command::Credential(arguments) => credential::run(&arguments, out),
        Command::Health(arguments) => health::run(&arguments, out),
        Command::Bench(arguments) => bench::run(arguments, out),
        Command::Completions(arguments) => completions::run(&arguments, out),
    }
}

/// Tasks after which a worker polls the queue shared by all workers.
const GLOBAL_QUEUE_INTERVAL: u32 = 2;
/// Tasks after which a worker polls for I/O events.
const EVENT_INTERVAL: u32 = 16;

/// A key of a request that is carried out once, also if several nodes get it.
fn new_idempotency_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Runs `future` on its own runtime; tasks that remain afterwards are not waited for.
fn wait_for<T, E>(future: impl Future<Output = Result<T, E>>) -> Result<T, Error>
where
    Error: From<E>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Under overload, hundreds of tasks are ready. With the default interval, tasks in the shared queue wait many
        // times as long as those in a worker's own queue.
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
        .event_interval(EVENT_INTERVAL)
        .build()
        .map_err(Error::Runtime)?;
    let outcome = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(outcome?)
}

/// Runs `future` until it ends. The first SIGTERM or SIGINT starts a graceful shutdown, the second one aborts it.
async fn until_signalled<T>(
    shutdown: CancellationToken,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Runtime)?;
    tokio::pin!(future);
    loop {
        let signal = tokio::select! {
            outcome = &mut future => return outcome,
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "shutdown requested");
        if shutdown.is_cancelled() {
            return Err(Error::Interrupted);
        }
        shutdown.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("trust-fabric").chain(arguments.split_whitespace()))
    }

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_argument_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn ids_may_begin_with_a_dash() {
        for arguments in ["keys taint -abc --yes", "revoke -abc --kind key --block", "unblock -abc"] {
            assert!(parsed(arguments).is_ok(), "{arguments}");
        }
    }

    #[test]
    fn documented_commands_parse() {
        for arguments in [
            "serve --config f",
            "serve --config f --data-dir d --listen 127.0.0.1:0",
            "dev",
            "dev --once --data-dir d --listen 127.0.0.1:0 --issuer-listen 127.0.0.1:0",
            "config check --config f",
            "config show --config f",
            "keys list",
            "keys list --output json --server http://127.0.0.1:1",
            "keys rotate",
            "keys taint abc",
            "federation status --output json",
            "federation pause eu",
            "federation forget eu --server http://127.0.0.1:1",
            "agent issue --name n --platform mcp --capability c --token-file f",
            "agent issue --name n --platform a2a --capability c --capability d --on-behalf-of a \
             --max-blast-radius namespace:x --delegation-depth 2 --metadata a=b --metadata c= -o json",
            "agent renew --token-file f",
            "agent token wimse://a.example/agent/mcp/x --token-file f",
            "agent list --output json",
            "agent show wimse://a.example/agent/mcp/x",
            "agent tree",
            "agent tree wimse://a.example/agent/mcp/x",
            "agent revoke wimse://a.example/agent/mcp/x",
            "revoke wimse://a.example/agent/mcp/x",
            "revoke a@b.example --issuer https://a.example --kind email --reason why --dry-run --yes -o json",
            "revocations",
            "revocations --limit 5 --output json",
            "blocks",
            "blocks --limit 5 --output json",
            "unblock abc",
            "unblock -- -bc",
            "signals allow https://a.example --more 5",
            "stream create --push https://r.example/events",
            "stream create --poll --event session-revoked --event https://a.example/type --aud a \
             --description d -o json",
            "stream list --limit 5 -o json",
            "stream show 0123",
            "stream pause 0123 --reason maintenance",
            "stream resume 0123",
            "stream disable 0123",
            "stream verify 0123 --state s",
            "stream dead-letters 0123 --limit 5 -o json",
            "stream delete 0123",
            "policy eval --point identity --input q.json",
            "policy explain --point identity --input -",
            "policy test",
            "policy test policies/",
            "policy eval --input q.json policies",
            "policy explain --input - -o json",
            "policy explain 4f --server https://a:1,https://b:1",
            "policy apply policies --expect abc",
            "policy history --output json",
            "policy rollback",
            "policy rollback 3",
            "policy show",
            "policy compile-check",
            "policy compile-check --tests",
            "audit tail sql-query",
            "audit tail sql-query -n 5 --follow --output json",
            "audit export",
            "audit export --tool sql-query --out f",
            "audit verify f",
            "cluster status",
            "cluster status --data-dir d -o json",
            "cluster members --server https://h:1",
            "cluster invite",
            "cluster invite --learner --output json",
            "cluster replace 2",
            "cluster join f --config c --address h:1 --server https://h:1 --ca c.pem",
            "cluster join -",
            "cluster promote 4",
            "cluster remove 4 --no-wait",
            "cluster transfer",
            "cluster transfer 2",
            "cluster finalize",
            "cluster finalize --yes --server https://h:1",
            "backup save f",
            "backup save - --server http://127.0.0.1:1",
            "backup inspect f --output json",
            "backup verify f --temp-dir d",
            "restore f --config c --address h:1",
            "restore --force-new-cluster --accept-loss --accept-dispute --yes",
            "events",
            "events --types signal,tool --since a-1-0 --json --server http://127.0.0.1:1",
            "pki",
            "pki --dir d --trust-domain a.example --host h --host ::1 --caller a --caller b --days 365",
            "pki --peer 1 --peer 18446744073709551615 --issuer",
            "credential",
            "credential --dir d --audience https://a.example --service-account demo/reporter",
            "health --server http://127.0.0.1:1",
            "completions bash",
            "keys list --token-file f",
            "bench",
            "bench --help",
            "bench failover --rounds 3 -- --odd",
            "keys list --server https://h:1 --ca c.pem --cert a.pem --key a-key.pem",
        ] {
            assert!(parsed(arguments).is_ok(), "{arguments}");
        }
    }

    #[test]
    fn wrong_usage_exits_with_2_and_help_with_0() {
        for arguments in [
            "",
            "serv",
            "keys taint",
            "keys",
            "agent issue --name n --platform slack --capability c",
            "agent issue --name n --platform mcp",
            "agent issue --name n --platform mcp --capability c --metadata a",
            "agent issue --name n --platform mcp --capability c --delegation-depth -1",
            "agent renew",
            "agent token --token-file f",
            "agent revoke",
            "revoke",
            "revoke x --kind person",
            "revocations --limit x",
            "blocks --limit x",
            "unblock",
            "signals allow https://a.example",
            "stream create",
            "stream create --poll --push https://r.example/events",
            "stream create --push",
            "stream pause",
            "stream enable 0123",
            "signals allow https://a.example --more -1",
            "policy eval --point tokens --input q.json",
            "policy rollback x",
            "policy apply",
            "dev --listen here",
            "audit tail",
            "audit tail t -n x",
            "audit verify",
            "cluster",
            "cluster status --data-dir d --server http://h:1",
            "cluster replace",
            "cluster remove x",
            "cluster join",
            "backup",
            "backup save",
            "backup inspect",
            "restore",
            "restore f --force-new-cluster",
            "restore f --accept-loss",
            "restore f --accept-dispute",
            "restore f --yes",
            "pki --days 0",
            "pki --days 366",
            "pki --trust-domain Dev.example",
            "pki --trust-domain ../x",
            "pki --host *.example.org",
            "pki --peer 0",
            "pki --peer one",
            "pki --peer 18446744073709551616",
            "credential --service-account reporter",
            "completions",
            "completions cmd",
            "health --data-dir d --token-file f",
            "health --data-dir d --cluster",
        ] {
            assert_eq!(parsed(arguments).expect_err("wrong usage").exit_code(), 2, "{arguments}");
        }
        for arguments in ["--help", "--version", "policy rollback --help"] {
            assert_eq!(parsed(arguments).expect_err("help").exit_code(), 0, "{arguments}");
        }
    }

    #[test]
    fn compile_check_is_hidden() {
        let help =
            Cli::command().find_subcommand_mut("policy").expect("policy").render_long_help().to_string();
        assert!(!help.contains("compile-check"), "{help}");
    }
}
