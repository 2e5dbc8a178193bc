//! `trust-fabric cluster …`

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use trust_fabric_client::{Method, Request};

use super::Error;
use super::confirmation::{Confirmation, may_go_on};
use super::endpoint::{Call, Connection, ServerArguments, admin_socket, read_token};
use super::output::{self, Format, Output, printable, printable_text};
use crate::config::{self, Config, Peers};
use crate::node;
use crate::state::{JoinToken, feature_level};

const MEGABYTE: u64 = 1_000_000;
const GIGABYTE: u64 = 1_000 * MEGABYTE;

const CLUSTER: [&str; 3] = ["v1", "sys", "cluster"];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the members with role, term, log, lag, lease, clock, disk, certificate and version.
    Status(View),
    /// List the members, and the nodes that are about to join or leave.
    Members(View),
    /// Create a join token for a new node. It is printed once, to standard output, and expires after 10 minutes.
    Invite(Invite),
    /// Create a join token for a new node that replaces a dead voter.
    Replace(Replace),
    /// Join an existing cluster with the node of a configuration, before its first start.
    Join(Join),
    /// Make a learner a voter, once it has caught up.
    Promote(Change),
    /// Remove a member for ever: its id is not used again. Stop the node first.
    Remove(Remove),
    /// Transfer leadership.
    Transfer(Transfer),
    /// End an upgrade: raise the feature level of the cluster to the newest that every member supports. It cannot be
    /// undone.
    Finalize(Finalize),
}

#[derive(Debug, Args)]
pub(super) struct View {
    #[command(flatten)]
    server: ServerArguments,
    /// Query the node with this data directory through its admin.sock: works without a lease and without a
    /// leader.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["urls", "ca", "cert", "key", "token_file"])]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Invite {
    /// Do not make the new node a voter: it receives the log and serves requests.
    #[arg(long)]
    learner: bool,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Replace {
    /// Node id of the voter, which must be stopped.
    node_id: u64,
    /// Replace it also if no other member can mint tokens yet.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct Join {
    /// File with the join token; `-` for standard input.
    token: PathBuf,
    /// Configuration file of the new node.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Host and port at which the other nodes reach this one; default: its address in `cluster.members`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(super) struct Change {
    /// Node id of the member.
    node_id: u64,
    /// Do not wait until the change is done.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    #[command(flatten)]
    change: Change,
    /// Remove it also if no other member can mint tokens yet.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

#[derive(Debug, Args)]
pub(super) struct Transfer {
    /// Node id of the voter that shall lead; by default any but the leader.
    node_id: Option<u64>,
    #[command(flatten)]
    server: ServerArguments,
}

#[derive(Debug, Args)]
pub(super) struct Finalize {
    /// Confirm that no member returns to an older version. Without it, the terminal prompts for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn run(command: Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Status(view) => status(&view, out),
        Command::Members(view) => members(&view, out),
        Command::Invite(Invite { learner, call }) => {
            let role = if learner { "learner" } else { "voter" };
            invite(&call, &json!({ "role": role }), out)
        }
        Command::Replace(Replace { node_id, force, call }) => {
            let mut request = json!({ "replaces": node_id });
            if force {
                request["force"] = true.into();
            }
            invite(&call, &request, out)
        }
        Command::Join(arguments) => join(&arguments, out),
        Command::Promote(change) => {
            let id = change.node_id.to_string();
            let path = [&CLUSTER[..], &["members", &id, "promote"]].concat();
            apply(&change, &Request { method: Method::POST, ..Request::get(&path) }, out)
        }
        Command::Remove(Remove { change, force, confirmation }) => {
            let id = change.node_id.to_string();
            confirmation.ask(&format!("remove node {id} for good"))?;
            let path = [&CLUSTER[..], &["members", &id]].concat();
            let query: &[(&str, &str)] = if force { &[("force", "true")] } else { &[] };
            apply(&change, &Request { method: Method::DELETE, query, ..Request::get(&path) }, out)
        }
        Command::Transfer(Transfer { node_id, server }) => {
            let path = [&CLUSTER[..], &["leader"]].concat();
            let answer = super::wait_for(server.client()?.post(&path, &json!({ "node_id": node_id })))?;
            Ok(writeln!(out, "node {} leads", number(&answer, "leader"))?)
        }
        Command::Finalize(arguments) => finalize(&arguments, out),
    }
}

fn fetch(view: &View) -> Result<Value, Error> {
    match &view.data_dir {
        Some(data) => admin_socket(data, async |client| Ok(client.get(&CLUSTER).await?)),
        None => super::wait_for(view.server.client()?.get(&CLUSTER)),
    }
}

fn status(view: &View, out: &mut dyn Write) -> Result<(), Error> {
    let cluster = fetch(view)?;
    if view.output.format == Format::Json {
        return Ok(output::json(out, &cluster)?);
    }
    let (cluster_id, level) = (printable_text(&cluster, "cluster_id"), number(&cluster, "feature_level"));
    writeln!(out, "cluster {cluster_id}, feature level {level}, {}", leader_of(&cluster))?;
    let leads = each_member(&cluster).find(|member| member["node_id"] == cluster["leader"]);
    let of_leader = leads.map_or(&Value::Null, |leader| &leader["report"]);
    let rows: Vec<Value> = each_member(&cluster).map(|member| status_row(member, of_leader)).collect();
    let columns = [
        ("node", "node"),
        ("role", "role"),
        ("term", "term"),
        ("last index", "last"),
        ("applied", "applied"),
        ("lag", "lag"),
        ("lease", "lease"),
        ("clock", "clock"),
        ("disk free", "disk"),
        ("certificate until", "certificate"),
        ("version", "version"),
        ("newest level", "level"),
        ("problem", "problem"),
    ];
    output::list(out, view.output, &rows.into(), &columns)?;
    Ok(())
}

fn leader_of(cluster: &Value) -> String {
    match (&cluster["leader"], cluster["leader_is_confirmed"] == true) {
        (Value::Null, _) => "no leader".to_owned(),
        (leader, true) => format!("leader node {leader}"),
        (leader, false) => format!("leader node {leader}, not confirmed: no quorum, or this node is cut off"),
    }
}

fn each_member(cluster: &Value) -> impl Iterator<Item = &Value> {
    cluster["members"].as_array().into_iter().flatten()
}

/// The cells of a member. A failure comes before the reason for which a change waits.
fn status_row(member: &Value, of_leader: &Value) -> Value {
    let report = &member["report"];
    let is_there = report.is_object();
    let is = |field: &str| report[field] == true;
    let problem = match member.get("unreachable") {
        Some(reason) => reason.clone(),
        None if is("disk_hangs") => json!("disk hangs"),
        None if report["disputed_index"].is_number() => json!("state differs from another member's"),
        None if report["snapshot_total_bytes"].is_u64() => json!(snapshot(report)),
        None if is("disk_is_full") => json!("disk full"),
        None if is("disk_is_low") => json!("disk space low"),
        None if member["waits_for"].is_string() => member["waits_for"].clone(),
        None if member["can_mint"] == false => json!(minting(member)),
        None if has_other_peers(report, of_leader) => json!("[federation] differs from the leader's"),
        None => Value::Null,
    };
    let (program, is_old) = if is_there { (report, "") } else { (&member["recorded"], " (recorded)") };
    let version = program["version"].as_str().map(|version| format!("{version}{is_old}"));
    json!({
        "node": member["node_id"],
        "role": member["role"],
        "term": report["term"],
        "last": report["last_log_index"],
        "applied": report["applied_index"],
        "lag": member["lag"],
        "lease": if is_there { lease(report) } else { Value::Null },
        "clock": member["clock_offset_seconds"].as_f64().map(|seconds| format!("{seconds:+.3} s")),
        "disk": disk(report),
        "certificate": report["certificate_expires_at"],
        "version": version,
        "level": program["feature_level"],
        "problem": problem,
    })
}

/// Whether a node has other settings of peer fabrics than the leader. Two versions have different digests of the same ones.
fn has_other_peers(report: &Value, of_leader: &Value) -> bool {
    report["version"] == of_leader["version"] && report["federation_digest"] != of_leader["federation_digest"]
}

fn snapshot(report: &Value) -> String {
    let [received, total] =
        ["snapshot_received_bytes", "snapshot_total_bytes"].map(|name| number(report, name));
    format!("receives a snapshot: {} of {} MB", received / MEGABYTE, total / MEGABYTE)
}

fn minting(member: &Value) -> String {
    let from = member["mints_from"].as_str();
    from.map_or_else(|| "has no signing key yet".to_owned(), |from| format!("mints from {}", printable(from)))
}

fn lease(report: &Value) -> Value {
    if report["lease_is_held"] == true {
        return json!("held");
    }
    let lapsed = report["lease_lapsed_ms"].as_u64().unwrap_or_default();
    json!(format!("expired {} s ago", lapsed / 1000))
}

fn disk(report: &Value) -> Option<String> {
    let (free, total) = (report["disk_free_bytes"].as_u64()?, report["disk_total_bytes"].as_u64()?);
    let (unit, name) = if free < 10 * GIGABYTE { (MEGABYTE, "MB") } else { (GIGABYTE, "GB") };
    Some(format!("{} of {} {name}", free / unit, total / unit))
}

fn members(view: &View, out: &mut dyn Write) -> Result<(), Error> {
    let cluster = fetch(view)?;
    let columns = [
        ("node", "node_id"),
        ("role", "role"),
        ("address", "address"),
        ("wanted", "wanted"),
        ("waits for", "waits_for"),
        ("replaces", "replaces"),
        ("token until", "token_expires_at"),
    ];
    output::list(out, view.output, &cluster["members"], &columns)?;
    Ok(())
}

/// The token goes to standard output alone, the next steps to standard error.
fn invite(call: &Call, body: &Value, out: &mut dyn Write) -> Result<(), Error> {
    let path = [&CLUSTER[..], &["join-tokens"]].concat();
    let client = call.server.client()?;
    let created = super::wait_for(client.post(&path, body))?;
    if call.output.format == Format::Json {
        return Ok(output::json(out, &created)?);
    }
    let node_id = number(&created, "node_id");
    let [spiffe_id, end] = ["spiffe_id", "expires_at"].map(|name| printable_text(&created, name));
    writeln!(
        io::stderr(),
        "join token of node {node_id}, secret, until {end}:\n\
         1. issue the peer certificate of {spiffe_id}, for example with `trust-fabric pki --peer {node_id}`\n\
         2. in the configuration of the new node set node.id = {node_id}, and cluster.listen\n\
         3. on its machine run `trust-fabric cluster join <file with the token> --config <file> --address <host:port> \
         --server {}`\n\
         4. start it",
        client.server()
    )?;
    Ok(writeln!(out, "{}", printable_text(&created, "join_token"))?)
}

fn join(arguments: &Join, out: &mut dyn Write) -> Result<(), Error> {
    let config = arguments.config.as_deref();
    let config = config::load(config, &mut config::environment(), &config::Overrides::default())?;
    let token = JoinToken::parse(&read_token(&arguments.token)?)?;
    let node_id = config.node.id;
    if token.node_id != node_id {
        return Err(Error::OtherNode { configured: node_id, token: token.node_id });
    }
    let peers = config.cluster.peers.as_ref().ok_or(Error::NoPeerListener)?;
    let address = peer_address(&config, peers, arguments.address.as_ref())?;
    let joining = node::open_joining(&config)?;
    joining.check_joins(token.cluster_id).map_err(node::Error::from)?;
    let body = json!({
        "token": token.secret_text(),
        "address": address,
        "disk_id": crate::text::hex(&joining.disk_id()),
        "feature_level": feature_level::NEWEST,
    });
    let path = [&CLUSTER[..], &["join"]].concat();
    super::wait_for(arguments.connection.client()?.post(&path, &body))?;
    joining.join(token.cluster_id).map_err(node::Error::from)?;
    Ok(writeln!(out, "node {node_id} joined the cluster: start it with `trust-fabric serve`")?)
}

/// Address of this node for other nodes, which accept its peer certificate.
pub(super) fn peer_address(config: &Config, peers: &Peers, stated: Option<&String>) -> Result<String, Error> {
    let node_id = config.node.id;
    let address = stated.or_else(|| peers.members.get(&node_id)).ok_or(Error::NoPeerAddress)?;
    let (found, expected) =
        (peers.files.own.spiffe_id().map_err(Error::PeerCertificate)?, peers.identities.of(node_id));
    if found.as_str() != expected {
        return Err(Error::OtherCertificate { found: found.to_string(), expected });
    }
    Ok(address.clone())
}

/// Sends a change until it is done: each response waits for a while, and names the reason for the delay.
fn apply(change: &Change, request: &Request<'_>, out: &mut dyn Write) -> Result<(), Error> {
    let client = change.server.client()?;
    let mut shown = Value::Null;
    loop {
        let answer = super::wait_for(client.send(request))?.body;
        let wanted = printable_text(&answer, "wanted");
        if answer["done"] == true {
            return Ok(writeln!(out, "node {}: {wanted}", change.node_id)?);
        }
        let reason = &answer["waits_for"];
        let reason_text = reason.as_str().map_or_else(|| "in progress".to_owned(), printable);
        if change.no_wait {
            return Ok(writeln!(out, "node {}: {wanted} requested: {reason_text}", change.node_id)?);
        }
        if shown != *reason {
            writeln!(io::stderr(), "waiting until node {} is {wanted}: {reason_text}", change.node_id)?;
            shown = reason.clone();
        }
    }
}

fn finalize(arguments: &Finalize, out: &mut dyn Write) -> Result<(), Error> {
    const QUESTION: &str = "Raise the feature level of the cluster? No member can return to an older version afterwards, \
                            and no backup can be restored by one. [y/N] ";
    if !may_go_on(arguments.yes, QUESTION)? {
        return Err(Error::NotFinalized);
    }
    let path = [&CLUSTER[..], &["finalize"]].concat();
    let client = arguments.server.client()?;
    let request = Request { method: Method::POST, ..Request::get(&path) };
    let answer = super::wait_for(client.send(&request))?.body;
    Ok(writeln!(out, "the cluster has feature level {}", number(&answer, "feature_level"))?)
}

fn number(answer: &Value, name: &str) -> u64 {
    answer[name].as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_the_time_from_which_a_member_mints() {
        let problem = |member: &Value| status_row(member, &Value::Null)["problem"].clone();
        let young = json!({"report": {}, "can_mint": false, "mints_from": "2026-11-24T22:10:00.000Z"});
        assert_eq!(problem(&young), "mints from 2026-11-24T22:10:00.000Z");
        assert_eq!(problem(&json!({"report": {}, "can_mint": false})), "has no signing key yet");
        assert_eq!(problem(&json!({"report": {}, "can_mint": true})), Value::Null);
        let waiting = json!({"report": {}, "can_mint": false, "waits_for": "the node lags"});
        assert_eq!(problem(&waiting), "the node lags");
    }

    #[test]
    fn status_shows_members_with_other_settings_of_peer_fabrics() {
        let report = |version: &str, digest: Value| json!({"version": version, "federation_digest": digest});
        let leader = report("1.0.0", json!("one"));
        let problem = |report: Value| status_row(&json!({"report": report}), &leader)["problem"].clone();
        for other in [json!("two"), Value::Null] {
            assert_eq!(problem(report("1.0.0", other)), "[federation] differs from the leader's");
        }
        for like in [report("1.0.0", json!("one")), report("1.1.0", json!("two"))] {
            assert_eq!(problem(like), Value::Null);
        }
    }
}
