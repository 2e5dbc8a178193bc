//! A node is loaded with tools and revocations, and saves a backup under load.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::{Plan, secs};
use crate::credentials::FABRIC;
use crate::health::Health;
use crate::members::ClusterArgs;
use crate::node::{bytes_below, memory_kib};
use crate::report::{Report, mib};
use crate::rolling::finish;
use crate::settings::REGISTRAR;
use crate::traffic::Rates;
use crate::traffic::under_load::UnderLoad;
use crate::{registry, revocations};

/// Loads a node, saves a backup of it under load, and verifies the file.
pub async fn backup(report: &mut Report, place: &ClusterArgs, plan: &Plan) -> Result<()> {
    let mut members = ClusterArgs { nodes: 1, ..place.clone() }.members()?;
    drop(Health::of(&members).await?);
    let mut load = "an earlier bench did".to_owned();
    if !place.keep {
        let begun = Instant::now();
        let registrar = members.targets(REGISTRAR)?.swap_remove(0);
        let (operator, transmitter) = (members.targets("operator")?, members.targets("transmitter")?);
        tokio::try_join!(
            registry::register(&registrar, 0, plan.tools),
            revocations::fill((&operator, &transmitter), (FABRIC, ""), plan.revocations),
        )?;
        load = secs(begun.elapsed());
    }
    let loaded = memory_kib(members.pid(0)?)?.0;
    let data = bytes_below(&members.place(0)?.join("data"))? / 1024;

    let rates = Rates { tries_max: usize::MAX, ..Rates::mixed(plan.rate) };
    let mut cluster = UnderLoad::start(members, rates, vec![0]).await?;
    let file = plan.backup.to_str().context("the path of the backup is not UTF-8")?;
    let begun = Instant::now();
    cluster.members.administer(0, &["backup", "save", file]).await?;
    let saved = begun.elapsed();
    let (mut members, traffic) = cluster.end().await?;
    let begun = Instant::now();
    members.offline(0, &["backup", "verify", file]).await?;
    let verified = begun.elapsed();

    report.line(&format!(
        "One node, loaded with {} tools and {} revocations, saved a backup while it served {} requests per second.\n",
        plan.tools, plan.revocations, plan.rate
    ));
    report.table(&["the node and its backup", ""]);
    for (name, value) in [
        ("both loaded at once, s", load),
        ("memory then, MiB", mib(loaded)),
        ("data directory then, MiB", mib(data)),
        ("`backup save` under load, s", secs(saved)),
        ("size of the backup, MiB", mib(fs::metadata(file)?.len() / 1024)),
        ("`backup verify`, s", secs(verified)),
        ("highest memory, MiB", mib(memory_kib(members.pid(0)?)?.1)),
    ] {
        report.row(&[name.to_owned(), value]);
    }
    report.line("");
    finish(report, &traffic, false).await
}
