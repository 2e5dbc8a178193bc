//! `trust-fabric policy …`

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Error;
use super::endpoint::{Call, ServerArguments};
use super::explanation;
use super::output::{self, Format, Output, printable, printable_text, text};
use crate::policy::compile::{self, Check};
use crate::policy::{Bundle, Point};
use crate::{config, json as strict_json, limits};

const POLICY: [&str; 3] = ["v1", "sys", "policy"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the tests of a policy: the rules `test_*` in its packages `*_test`.
    Test(Test),
    /// Evaluate a policy on disk; prints the decision and exits with 1 if it is deny.
    Eval(Eval),
    /// Explain a denied request, or the decision on an input by the policy of a running node. Grants nothing.
    Explain(Explain),
    /// Replace the policy of a running cluster, if the tests of the new one pass. Its tokens name the new one from then on.
    Apply(Apply),
    /// List the applied policies.
    History(Call),
    /// Make an earlier policy active again.
    Rollback(Rollback),
    /// Show the policy of a running node.
    Show(Call),
    /// Compile the sources on standard input; a node runs this in a child process that it can kill.
    #[command(hide = true)]
    CompileCheck {
        /// Run their tests too.
        #[arg(long)]
        tests: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Test {
    /// Directory of the policy.
    #[arg(default_value = "policies")]
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Eval {
    /// Decision point: `exchange`, `identity` or `signals`.
    #[arg(long, default_value = "exchange")]
    point: Point,
    /// Policy input: a JSON file, or - for standard input.
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Directory of the policy.
    #[arg(default_value = "policies")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The `request_id` of a denied request. Only the node that denied it knows it: name every node with --server.
    #[arg(required_unless_present = "input")]
    request_id: Option<String>,
    /// Decision point of the input: `exchange`, `identity` or `signals`.
    #[arg(long, default_value = "exchange", conflicts_with = "request_id")]
    point: Point,
    /// Policy input: a JSON file, or - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "request_id")]
    input: Option<PathBuf>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// Directory of the policy: its *.rego and *.json files, including tests.
    directory: PathBuf,
    /// Apply only if this is the digest of the active policy.
    #[arg(long, value_name = "DIGEST")]
    expect: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// Number of the change in `policy history` [default: the one before the last]
    number: Option<u64>,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Test(arguments) => test(&arguments, out),
        Command::Eval(arguments) => eval(&arguments, out),
        Command::Explain(arguments) => explain(&arguments, out),
        Command::Apply(arguments) => apply(&arguments, out),
        Command::History(call) => history(&call, out),
        Command::Rollback(arguments) => rollback(&arguments, out),
        Command::Show(call) => show(&call, out),
        Command::CompileCheck { tests } => {
            let check = if tests { Check::PassesTests } else { Check::Compiles };
            compile::check(io::stdin().lock(), check).map_err(Error::CompileRefused)
        }
    }
}

/// Compiles in a child process first, as a node does.
fn bundle(directory: &Path) -> Result<Bundle, Error> {
    let program = config::program().map_err(Error::Program)?;
    Ok(compile::load(&program, &config::policy_sources(directory)?, Check::Compiles)?)
}

fn read_input(path: &Path) -> Result<Value, Error> {
    let unreadable = |source| Error::File { path: path.to_owned(), source };
    let limit = limits::BODY_BYTES_MAX as u64;
    let mut text = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut text).map_err(unreadable)?;
    } else {
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text)).map_err(unreadable)?;
    }
    strict_json::parse(&text).map_err(|source| Error::Input { path: path.to_owned(), source })
}

fn test(Test { directory, output }: &Test, out: &mut dyn Write) -> Result<(), Error> {
    let outcomes = bundle(directory)?.test();
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    if output.format == Format::Json {
        output::json(out, &json!(outcomes))?;
    } else {
        for outcome in &outcomes {
            if outcome.passed {
                writeln!(out, "ok      {}", outcome.name)?;
            } else {
                writeln!(out, "FAILED  {}: {}", outcome.name, outcome.detail)?;
            }
        }
        writeln!(out, "{} passed, {failed} failed", outcomes.len().saturating_sub(failed))?;
    }
    match (outcomes.len(), failed) {
        (0, _) => Err(Error::NoTests(directory.clone())),
        (_, 0) => Ok(()),
        (all, failed) => Err(Error::TestsFailed { failed, all }),
    }
}

fn eval(Eval { point, input, directory }: &Eval, out: &mut dyn Write) -> Result<(), Error> {
    let explanation = bundle(directory)?.explain(*point, &read_input(input)?);
    let Some(answer) = explanation.answer else {
        writeln!(out, "no decision: {}", explanation.error.unwrap_or_default())?;
        return Err(Error::Denied);
    };
    output::json(out, &answer)?;
    if answer.get("allow") == Some(&Value::Bool(true)) { Ok(()) } else { Err(Error::Denied) }
}

fn explain(arguments: &Explain, out: &mut dyn Write) -> Result<(), Error> {
    let Explain { request_id, point, input, call } = arguments;
    if let Some(request_id) = request_id {
        let denied = find_denial(request_id, &call.server)?;
        return Ok(match call.output.format {
            Format::Json => output::json(out, &denied),
            Format::Table => explanation::denial(out, &denied),
        }?);
    }
    // The arguments have one of the two.
    let input = read_input(input.as_deref().unwrap_or(Path::new("-")))?;
    let path = ["v1", "sys", "policy", "explain"];
    let query = [("point", point.into_str())];
    let explained = super::wait_for(call.server.client()?.post_with(&path, &query, &input))?;
    Ok(match call.output.format {
        Format::Json => output::json(out, &explained),
        Format::Table => explanation::decision(out, &explained),
    }?)
}

/// Queries every node: only the node that denied has the denial.
fn find_denial(request_id: &str, server: &ServerArguments) -> Result<Value, Error> {
    let mut failed = None;
    for client in server.client_of_each()? {
        match super::wait_for(client.get(&["v1", "sys", "denials", request_id])) {
            Ok(denied) => return Ok(denied),
            Err(Error::Answer(error)) if error.status() == Some(404) => {}
            Err(error) => failed = Some(error),
        }
    }
    // The node that failed to respond may have it.
    Err(failed.unwrap_or(Error::NoSuchDenial))
}

fn apply(Apply { directory, expect, server }: &Apply, out: &mut dyn Write) -> Result<(), Error> {
    // Compiled here first for the complete message of the compiler.
    let mut request = json!({ "sources": bundle(directory)?.sources() });
    if let (Some(expect), Some(members)) = (expect, request.as_object_mut()) {
        members.insert("expected_current".to_owned(), json!(expect));
    }
    let applied = super::wait_for(server.client()?.put(&POLICY, &request))?;
    Ok(write_applied(out, &applied)?)
}

fn history(call: &Call, out: &mut dyn Write) -> Result<(), Error> {
    let changes = super::wait_for(call.server.client()?.get(&["v1", "sys", "policy", "history"]))?;
    let columns =
        [("number", "number"), ("digest", "digest"), ("applied", "applied_at"), ("by", "applied_by")];
    Ok(output::list(out, call.output, &changes, &columns)?)
}

fn rollback(Rollback { number, server }: &Rollback, out: &mut dyn Write) -> Result<(), Error> {
    let client = server.client()?;
    let applied = super::wait_for(async {
        let number = if let Some(number) = number {
            *number
        } else {
            let changes = client.get(&["v1", "sys", "policy", "history"]).await?;
            before_the_last(&changes).ok_or(Error::NoEarlierPolicy)?
        };
        Ok::<_, Error>(client.post(&["v1", "sys", "policy", "rollback"], &json!({ "number": number })).await?)
    })?;
    Ok(write_applied(out, &applied)?)
}

/// Number of the change before the last one.
fn before_the_last(changes: &Value) -> Option<u64> {
    let numbers = changes.as_array()?.iter().filter_map(|change| change.get("number")?.as_u64());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.into_iter().rev().nth(1)
}

fn write_applied(out: &mut dyn Write, applied: &Value) -> io::Result<()> {
    let digest = applied.get("digest").and_then(Value::as_str).map(printable).unwrap_or_default();
    if applied.get("changed") == Some(&Value::Bool(false)) {
        writeln!(out, "{digest} is active already")
    } else {
        writeln!(out, "{digest} is active")
    }
}

fn show(call: &Call, out: &mut dyn Write) -> Result<(), Error> {
    let policy = super::wait_for(call.server.client()?.get(&POLICY))?;
    if call.output.format == Format::Json {
        return Ok(output::json(out, &policy)?);
    }
    writeln!(out, "# policy {}", printable_text(&policy, "digest"))?;
    for source in policy.get("sources").and_then(Value::as_array).into_iter().flatten() {
        writeln!(out, "\n# --- {}", printable_text(source, "path"))?;
        for line in text(source, "text").lines() {
            writeln!(out, "{}", printable(&line.replace('\t', "    ")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_defaults_to_the_change_before_the_last() {
        let changes = |numbers: &[u64]| numbers.iter().map(|n| json!({ "number": n })).collect::<Value>();
        assert_eq!(before_the_last(&changes(&[3, 4, 5])), Some(4));
        assert_eq!(before_the_last(&changes(&[5, 3, 4])), Some(4));
        assert_eq!(before_the_last(&changes(&[3])), None);
        assert_eq!(before_the_last(&json!({})), None);
    }

    #[test]
    fn policy_input_is_strict_json() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("input.json");
        std::fs::write(&path, r#"{"a": 1, "a": 2}"#).expect("written");
        assert!(matches!(read_input(&path), Err(Error::Input { .. })));
        assert!(matches!(read_input(&directory.path().join("gone")), Err(Error::File { .. })));
        std::fs::write(&path, "{}").expect("written");
        assert_eq!(read_input(&path).expect("input"), json!({}));
    }
}
