//! `trust-fabric restore …`

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::backup::{open, unpack, verify_digest};
use super::cluster::peer_address;
use super::confirmation::may_go_on;
use super::output::printable;
use super::{Error, wait_for};
use crate::backup::Manifest;
use crate::clock::Clock;
use crate::cluster::Remains;
use crate::config::{self, Config};
use crate::data_directory::{self, Restore};
use crate::node::{self, CreatedCluster, NewClusterOptions};
use crate::state::Replicated;

const QUESTION: &str = "\
create a new cluster of this node alone?
  acknowledged writes that only other nodes have are lost
  every token, and every credential issued until now, is refused
  the other nodes of the old cluster must never start again with their data
cannot be undone; create it? [y/N] ";

const DISPUTE: &str = "\
another member has another state, and no majority decided which of them is right: the new cluster has the state of this
node, right or wrong, and the other one is lost
";

const EXPLANATION: &str = "\
With FILE, it verifies the backup, unpacks it into the empty data directory of a stopped node, and creates a new cluster
of that node. With --force-new-cluster it creates one from the data directory of a stopped node, after the majority of
its cluster was lost, or if the states of its members differ and no majority can decide between them. The other machines
then join with empty data directories (`trust-fabric cluster invite`).

Both begin a new incarnation. Every token of this fabric, and every credential of another issuer that was issued before
the restore, is refused on every node; the earlier signing keys are gone. Each workload needs a credential that was
issued after the restore. Revocations and blocks that the restored state lacks must be made again.

Stop every node of the old cluster first, and never start it again: it would continue to accept what is revoked here.";

#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command")]
pub(super) struct Arguments {
    /// File written by `backup save`.
    #[arg(required_unless_present = "force_new_cluster", conflicts_with = "force_new_cluster")]
    file: Option<PathBuf>,
    /// Bootstrap a new cluster from the data directory of this node, a survivor of a cluster that lost its majority.
    #[arg(long)]
    force_new_cluster: bool,
    /// Use this node although another one is known to have acknowledged more: its last writes are lost.
    #[arg(long, conflicts_with = "file")]
    accept_loss: bool,
    /// Use this node although another member has another state: that of this node counts as right.
    #[arg(long, conflicts_with = "file")]
    accept_dispute: bool,
    /// Do not ask for confirmation.
    #[arg(long, conflicts_with = "file")]
    yes: bool,
    /// Configuration file of the node; without it the environment must set every required setting.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Host and port at which other nodes will reach this one; default: its address in `cluster.members`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let config = arguments.config.as_deref();
    let config = config::load(config, &mut config::environment(), &config::Overrides::default())?;
    match &arguments.file {
        Some(file) => restore(file, &config, arguments, out),
        None => force_new_cluster(&config, arguments, out),
    }
}

fn restore(file: &Path, config: &Config, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let address = match &config.cluster.peers {
        Some(peers) => peer_address(config, peers, arguments.address.as_ref())?,
        None => String::new(),
    };
    let opened = open(file)?;
    check_origin(&verify_digest(file, &opened)?, config)?;
    let data = &config.node.data_dir;
    let _lock = data_directory::lock_for_restore(data).map_err(node::Error::from)?;
    data_directory::begin_restore(data, node::mode(config)).map_err(node::Error::from)?;
    let restored = restore_into(data, file, &opened, config, address);
    if restored.is_err() {
        // The directory is empty again.
        data_directory::clear(data).and_then(|()| data_directory::unmark(data)).map_err(node::Error::from)?;
    }
    let (manifest, created) = restored?;
    let (index, time) = (manifest.log_id.index, printable(&manifest.log_time));
    writeln!(out, "{}: restored, state up to log index {index}, {time}", file.display())?;
    write_created(out, &created, config)?;
    writeln!(
        out,
        "lost: everything written after {time}\n\
         next:\n  \
         1. start the node: trust-fabric serve\n  \
         2. repeat the revocations and blocks made after {time}: yours with `trust-fabric revoke`;\n     \
         the issuers of [[signals]] must send theirs again\n  \
         3. let workloads register their encryption keys again\n  \
         4. add the other machines, each with an empty data directory: `trust-fabric cluster invite`"
    )?;
    Ok(())
}

/// Unpacks the backup as the first generation of the state, verifies it, and creates the cluster.
fn restore_into(
    data: &Path,
    file: &Path,
    opened: &fs::File,
    config: &Config,
    address: String,
) -> Result<(Manifest, CreatedCluster), Error> {
    let failed = |source| Error::File { path: data.to_owned(), source };
    let state = data.join("state");
    fs::create_dir(&state).map_err(failed)?;
    let manifest = unpack(file, opened, &state.join("1"))?;
    let options = NewClusterOptions {
        address: Some(address),
        may_be_ahead: true,
        accept_dispute: false,
        note: String::new(),
    };
    let stopped = node::open_stopped(config)?;
    let created = wait_for(options.create(stopped, config, &Clock::system(), Restore::Backup))?;
    Ok((manifest, created))
}

/// The backup is of this fabric, in this mode.
fn check_origin(manifest: &Manifest, config: &Config) -> Result<(), Error> {
    let configured = &config.fabric.issuer;
    if manifest.issuer != *configured {
        return Err(Error::OtherFabric { found: manifest.issuer.clone(), configured: configured.clone() });
    }
    let configured = node::mode(config).into_str();
    if manifest.mode != configured {
        return Err(Error::OtherBackupMode { found: manifest.mode.clone(), configured });
    }
    Ok(())
}

fn force_new_cluster(config: &Config, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let data = &config.node.data_dir;
    let earlier = data_directory::prepare_new_cluster(data, node::mode(config)).map_err(node::Error::from)?;
    let _lock = data_directory::lock_for_restore(data).map_err(node::Error::from)?;
    let address = match (&config.cluster.peers, &arguments.address) {
        (Some(peers), Some(address)) => Some(peer_address(config, peers, Some(address))?),
        // The other nodes reached it at the address of its state.
        (Some(_), None) => None,
        (None, _) => Some(String::new()),
    };
    let stopped = node::open_stopped(config)?;
    let remains = stopped.remains::<Replicated>().map_err(node::Error::from)?;
    // An interrupted attempt has replaced the log already, or appended entries to the state.
    let note = earlier.clone().filter(|note| !note.is_empty()).unwrap_or_else(|| description(&remains));
    write_remains(out, &remains, &note, config.node.id)?;
    if !arguments.accept_loss
        && let Some(reason) = reason_to_refuse(&remains)
    {
        return Err(Error::LaterEnd(reason));
    }
    if let Some(index) = remains.disputed.filter(|_| !arguments.accept_dispute) {
        return Err(Error::Disputed(index));
    }
    out.flush()?;
    let dispute = if remains.disputed.is_some() { DISPUTE } else { "" };
    if !may_go_on(arguments.yes, &format!("{dispute}{QUESTION}"))? {
        return Err(Error::NotConfirmed { needs_yes: true });
    }
    let (may_be_ahead, accept_dispute) = (earlier.is_some(), arguments.accept_dispute);
    let options = NewClusterOptions { address, may_be_ahead, accept_dispute, note };
    let created = wait_for(options.create(stopped, config, &Clock::system(), Restore::NewCluster))?;
    writeln!(out, "created a new cluster with every entry of the log of node {}", config.node.id)?;
    write_created(out, &created, config)?;
    writeln!(
        out,
        "next:\n  \
         1. start the node: trust-fabric serve\n  \
         2. revoke and block again what the log lacks, if another node may have had more\n  \
         3. let workloads register their encryption keys again\n  \
         4. empty the data directories of the other machines, and add them: `trust-fabric cluster invite`"
    )?;
    Ok(())
}

/// The log and the state before the first attempt.
fn description(remains: &Remains) -> String {
    let none = || "none".to_owned();
    format!(
        "vote         {}\nlast log id  {}\napplied      {}\n",
        remains.vote.clone().unwrap_or_else(none),
        remains.last.clone().unwrap_or_else(none),
        remains.applied.map_or_else(none, |index| index.to_string()),
    )
}

fn write_remains(out: &mut dyn Write, remains: &Remains, note: &str, node_id: u64) -> io::Result<()> {
    writeln!(out, "node         {node_id}")?;
    for line in note.lines() {
        writeln!(out, "{}", printable(line))?;
    }
    if let Some(index) = remains.disputed {
        writeln!(out, "disputed     log index {index}: another member has another state")?;
    }
    for (node_id, end) in &remains.ahead {
        writeln!(out, "ahead        node {node_id}, whose log had {end}")?;
    }
    writeln!(
        out,
        "Compare the last log id with that of every other survivor, and continue with the one that has the largest term \
         (T), of equal terms the largest index."
    )
}

fn reason_to_refuse(remains: &Remains) -> Option<String> {
    if let Some(reason) = &remains.rejected {
        return Some(format!("this disk was rejected by its cluster: {}", printable(reason)));
    }
    let (node_id, end) = remains.ahead.last()?;
    Some(format!("the log of node {node_id} had a later end, {end}"))
}

fn write_created(out: &mut dyn Write, created: &CreatedCluster, config: &Config) -> io::Result<()> {
    let CreatedCluster { cluster_id, incarnation, index, last_refused } = created;
    writeln!(out, "cluster      {cluster_id}, of node {} alone", config.node.id)?;
    writeln!(out, "incarnation  {incarnation}, from log index {index}")?;
    let until = last_refused.to_rfc3339();
    writeln!(
        out,
        "refused      tokens of this fabric from before; credentials of other issuers with iat up to {until}"
    )?;
    writeln!(
        out,
        "             each workload needs a credential issued after that; compare it with a good clock"
    )?;
    writeln!(out, "accepted     client certificates, unless they are blocked or in the CRL")?;
    if config.cluster.peers.is_none() {
        writeln!(out, "alone        cluster.listen is not set: no other node can join this cluster")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_behind_another_or_rejected_is_refused() {
        let remains = |ahead: &[(u64, &str)], rejected: Option<&str>| Remains {
            vote: Some("T3-N1:Q".to_owned()),
            last: Some("T3-N1.5".to_owned()),
            applied: Some(5),
            ahead: ahead.iter().map(|(node_id, end)| (*node_id, (*end).to_owned())).collect(),
            rejected: rejected.map(str::to_owned),
            disputed: Some(20),
        };
        assert_eq!(reason_to_refuse(&remains(&[], None)), None);
        let behind = reason_to_refuse(&remains(&[(2, "T3-N1.9"), (3, "T3-N1.10")], None));
        assert_eq!(behind.as_deref(), Some("the log of node 3 had a later end, T3-N1.10"));
        let rejected = reason_to_refuse(&remains(&[], Some("rolled back"))).expect("refused");
        assert!(rejected.contains("rejected by its cluster: rolled back"), "{rejected}");
        let mut text = Vec::new();
        let remains = remains(&[(2, "T3-N1.9")], None);
        write_remains(&mut text, &remains, &description(&remains), 1).expect("written");
        let text = String::from_utf8(text).expect("text");
        for line in [
            "vote         T3-N1:Q",
            "last log id  T3-N1.5",
            "applied      5",
            "ahead        node 2",
            "disputed     log index 20",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
