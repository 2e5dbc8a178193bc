//! `trust-fabric agent …`
//!
//! A token is printed only as JSON; otherwise it goes into a file with mode 0600.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Error;
use super::confirmation::Confirmation;
use super::endpoint::{Call, Connection, ServerArguments, read_token};
use super::new_file::NewFile;
use super::output::{self, Format, Output, printable, printable_text, text};
use crate::text::values;

const AGENT: [&str; 3] = ["v1", "identity", "agent"];
const RENEW: [&str; 4] = ["v1", "identity", "agent", "renew"];
const AGENTS: [&str; 3] = ["v1", "identity", "agents"];
const TOKEN_FILE_MODE: u32 = 0o600;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Issue an identity to a new agent; its token goes into a file, or into JSON.
    Issue(Issue),
    /// Renew the token of an agent with its current one.
    Renew(Renew),
    /// Get another token for an agent of yours; operators may name any.
    Token(Mint),
    /// List your agents; operators see all.
    List(Call),
    /// Show one agent.
    Show(Show),
    /// Draw which agents act on behalf of which.
    Tree(Tree),
    /// Revoke an agent and everything that derives from it, permanently.
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(super) struct Issue {
    /// Name of the agent for people; need not be unique.
    #[arg(long = "name", value_name = "NAME")]
    agent_name: String,
    /// Platform of the agent.
    #[arg(long, value_parser = PossibleValuesParser::new(values::Platform::TEXTS.iter().copied()))]
    platform: String,
    /// Requested capability; can be repeated.
    #[arg(long = "capability", value_name = "CAPABILITY", required = true)]
    capabilities: Vec<String>,
    /// Parent agent on whose behalf it acts.
    #[arg(long, value_name = "AGENT_ID")]
    on_behalf_of: Option<String>,
    /// Maximum blast radius, for example `namespace:prod`.
    #[arg(long, value_name = "KIND:NAME")]
    max_blast_radius: Option<String>,
    /// Maximum depth of delegation; 0: it may not act for others.
    #[arg(long, value_name = "HOPS", default_value_t = 0)]
    delegation_depth: u32,
    /// Additional metadata; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// File for the token, readable only by you.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    server: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Renew {
    /// File with the token; the new token replaces it.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    #[command(flatten)]
    server: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Mint {
    /// The agent, by its ID in `agent list`.
    agent_id: String,
    /// File for the token, readable only by you.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    server: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The agent, by its ID in `agent list`.
    agent_id: String,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Tree {
    /// Draw only this agent and those that act on its behalf.
    agent_id: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// The agent, by its ID in `agent list`.
    agent_id: String,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Issue(arguments) => issue(&arguments, out),
        Command::Renew(arguments) => renew(&arguments, out),
        Command::Token(arguments) => mint(&arguments, out),
        Command::List(call) => list(&call, out),
        Command::Show(arguments) => show(&arguments, out),
        Command::Tree(arguments) => tree(&arguments, out),
        Command::Revoke(arguments) => revoke(&arguments, out),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "must be NAME=VALUE".to_owned())
}

fn issue(arguments: &Issue, out: &mut dyn Write) -> Result<(), Error> {
    let file = destination(arguments.token_file.as_deref(), arguments.output)?;
    let metadata: BTreeMap<_, _> = arguments.metadata.iter().cloned().collect();
    let request = json!({
        "agent_name": arguments.agent_name,
        "platform": arguments.platform,
        "capabilities": arguments.capabilities,
        "on_behalf_of": arguments.on_behalf_of,
        "max_blast_radius": arguments.max_blast_radius,
        "delegation_depth": arguments.delegation_depth,
        "metadata": metadata,
    });
    let key = super::new_idempotency_key();
    let identity = super::wait_for(arguments.server.client()?.post_once(&key, &AGENT, &request))?;
    deliver_token(out, arguments.output, file, &identity, "issued")
}

fn renew(arguments: &Renew, out: &mut dyn Write) -> Result<(), Error> {
    let token = read_token(&arguments.token_file)?;
    let file = NewFile::prepare(&arguments.token_file, TOKEN_FILE_MODE)?;
    let identity = super::wait_for(arguments.server.client()?.post_as(&token, &RENEW, &json!({})))?;
    deliver_token(out, arguments.output, Some(file), &identity, "renewed")
}

fn mint(arguments: &Mint, out: &mut dyn Write) -> Result<(), Error> {
    let file = destination(arguments.token_file.as_deref(), arguments.output)?;
    let path = [AGENTS.as_slice(), &[&arguments.agent_id, "token"]].concat();
    let identity = super::wait_for(arguments.server.client()?.post(&path, &json!({})))?;
    deliver_token(out, arguments.output, file, &identity, "given another token")
}

/// The file for a new token, prepared before the token is requested; `None` if it is printed as JSON.
fn destination(token_file: Option<&Path>, output: Output) -> Result<Option<NewFile>, Error> {
    if token_file.is_none() && output.format != Format::Json {
        return Err(Error::NoTokenDestination);
    }
    token_file.map(|file| NewFile::prepare(file, TOKEN_FILE_MODE)).transpose()
}

/// Stores or prints the token.
fn deliver_token(
    out: &mut dyn Write,
    output: Output,
    file: Option<NewFile>,
    identity: &Value,
    action: &str,
) -> Result<(), Error> {
    let stored = match file {
        Some(file) => Some(file.store(text(identity, "token"))?),
        None => None,
    };
    if output.format == Format::Json {
        return Ok(output::json(out, identity)?);
    }
    writeln!(out, "{} is {action}", printable_text(identity, "agent_id"))?;
    let capabilities = identity.get("capabilities").and_then(Value::as_array).into_iter().flatten();
    let capabilities: Vec<_> = capabilities.filter_map(Value::as_str).map(printable).collect();
    writeln!(out, "  capabilities  {}", capabilities.join(" "))?;
    if identity.get("blast_radius").is_some() {
        writeln!(out, "  blast radius  {}", printable_text(identity, "blast_radius"))?;
    }
    writeln!(out, "  expires       {}", printable_text(identity, "expires_at"))?;
    if let Some(path) = stored {
        writeln!(out, "  token file    {}", path.display())?;
    }
    Ok(())
}

fn list(call: &Call, out: &mut dyn Write) -> Result<(), Error> {
    let agents = super::wait_for(call.server.client()?.list(&AGENTS))?;
    let columns = [
        ("agent", "agent_id"),
        ("name", "agent_name"),
        ("status", "status"),
        ("depth", "delegation_depth"),
        ("blast radius", "blast_radius"),
        ("on behalf of", "on_behalf_of"),
        ("issued by", "issued_by"),
        ("ends", "ends_at"),
    ];
    Ok(output::list(out, call.output, &agents.into(), &columns)?)
}

fn show(arguments: &Show, out: &mut dyn Write) -> Result<(), Error> {
    let path = [AGENTS.as_slice(), &[&arguments.agent_id]].concat();
    let agent = super::wait_for(arguments.call.server.client()?.get(&path))?;
    if arguments.call.output.format == Format::Json {
        return Ok(output::json(out, &agent)?);
    }
    for (name, value) in agent.as_object().into_iter().flatten() {
        let value = match value {
            Value::String(text) => printable(text),
            Value::Array(words) => {
                words.iter().filter_map(Value::as_str).map(printable).collect::<Vec<_>>().join(" ")
            }
            other => printable(&other.to_string()),
        };
        writeln!(out, "{:<17} {value}", printable(name))?;
    }
    Ok(())
}

fn revoke(arguments: &Revoke, out: &mut dyn Write) -> Result<(), Error> {
    let (path, agent) =
        ([AGENTS.as_slice(), &[&arguments.agent_id]].concat(), printable(&arguments.agent_id));
    arguments
        .confirmation
        .ask(&format!("revoke {agent} for good, with every agent and token derived from it"))?;
    super::wait_for(arguments.server.client()?.delete(&path))?;
    Ok(writeln!(out, "{agent} is revoked, with every agent and token derived from it")?)
}

fn tree(arguments: &Tree, out: &mut dyn Write) -> Result<(), Error> {
    let agents = super::wait_for(arguments.server.client()?.list(&AGENTS))?;
    if let Some(id) = &arguments.agent_id
        && !agents.iter().any(|agent| text(agent, "agent_id") == id)
    {
        return Err(Error::NoSuchAgent);
    }
    Ok(draw(out, &agents, arguments.agent_id.as_deref())?)
}

/// Draws every agent below its parent; with `root`, only its subtree.
fn draw(out: &mut dyn Write, agents: &[Value], root: Option<&str>) -> io::Result<()> {
    let known: BTreeMap<&str, &Value> = agents.iter().map(|agent| (text(agent, "agent_id"), agent)).collect();
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut roots = Vec::new();
    for (id, agent) in &known {
        let parent = text(agent, "on_behalf_of");
        match root {
            Some(root) if root == *id => roots.push(*id),
            // The parent may not be visible to the caller.
            None if !known.contains_key(parent) => roots.push(*id),
            _ => children.entry(parent).or_default().push(*id),
        }
    }
    // Prefix of the agent's own line and of those below it. Each agent is drawn once, even if the list has a cycle.
    let mut open: Vec<_> = roots.iter().rev().map(|id| (*id, String::new(), String::new())).collect();
    while let Some((id, before, below)) = open.pop() {
        let Some(agent) = known.get(id) else { continue };
        let [name, status, platform] =
            ["agent_name", "status", "platform"].map(|name| printable_text(agent, name));
        let depth = agent.get("delegation_depth").and_then(Value::as_u64).unwrap_or_default();
        writeln!(out, "{before}{name}  {platform}  {status}  depth {depth}  {}", printable(id))?;
        let last = children.remove(id).unwrap_or_default();
        for (at, child) in last.iter().rev().enumerate() {
            let (branch, beside) = if at == 0 { ("└── ", "    ") } else { ("├── ", "│   ") };
            open.push((child, format!("{below}{branch}"), format!("{below}{beside}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str, parent: &str) -> Value {
        json!({
            "agent_id": id, "agent_name": format!("n-{id}"), "platform": "mcp", "status": "active",
            "delegation_depth": 1, "on_behalf_of": parent,
        })
    }

    fn drawn(agents: &[Value], root: Option<&str>) -> String {
        let mut text = Vec::new();
        draw(&mut text, agents, root).expect("drawn");
        let text = String::from_utf8(text).expect("text");
        let names = text.lines().map(|line| line.split("  mcp").next().unwrap_or_default());
        names.flat_map(|line| [line, "\n"]).collect()
    }

    #[test]
    fn agents_are_drawn_below_their_parents() {
        let agents = [
            agent("a", ""),
            agent("b", "a"),
            agent("c", "a"),
            agent("d", "b"),
            agent("e", "b"),
            agent("f", "gone"),
        ];
        assert_eq!(drawn(&agents, None), "n-a\n├── n-b\n│   ├── n-d\n│   └── n-e\n└── n-c\nn-f\n");
        assert_eq!(drawn(&agents, Some("b")), "n-b\n├── n-d\n└── n-e\n");
        assert_eq!(drawn(&agents, Some("d")), "n-d\n");
        assert_eq!(drawn(&[], None), "");
    }

    #[test]
    fn cyclic_list_ends_and_control_characters_are_replaced() {
        let circle = [agent("a", "b"), agent("b", "a"), agent("c", "c")];
        assert_eq!(drawn(&circle, None), "");
        assert_eq!(drawn(&circle, Some("a")), "n-a\n└── n-b\n");
        let hostile = [json!({"agent_id": "a", "agent_name": "\u{1b}[2J\nx"})];
        let mut text = Vec::new();
        draw(&mut text, &hostile, None).expect("drawn");
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains('\u{1b}') && text.lines().count() == 1, "{text:?}");
        // As deep as a list can be.
        let deep: Vec<_> = (0..2000).map(|at| agent(&format!("{at}"), &format!("{}", at - 1))).collect();
        assert_eq!(drawn(&deep, None).lines().count(), 2000);
    }

    #[test]
    fn metadata_needs_a_name() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("a").is_err());
    }
}
