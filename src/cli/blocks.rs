//! `trust-fabric blocks` and `trust-fabric unblock …`.

use std::io::Write;

use clap::Args;

use super::Error;
use super::endpoint::{Call, ServerArguments};
use super::output::printable;
use super::pagination;
use crate::limits;

const BLOCKS: [&str; 2] = ["v1", "blocks"];

#[derive(Debug, Args)]
pub(super) struct Blocks {
    /// Maximum blocks to list.
    #[arg(long, value_name = "N", default_value_t = limits::PAGE_ROWS_DEFAULT)]
    limit: usize,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Credentials from before the block stay revoked. An issuer may block again, with a later event."
)]
pub(super) struct Unblock {
    /// ID of the block in `blocks`.
    #[arg(allow_hyphen_values = true)]
    id: String,
    #[command(flatten)]
    server: ServerArguments,
}

pub(super) fn list(arguments: &Blocks, out: &mut dyn Write) -> Result<(), Error> {
    let columns = [
        ("kind", "kind"),
        ("value", "value"),
        ("issuer", "issuer"),
        ("blocked", "blocked_at"),
        ("by", "by"),
        ("family", "family"),
        ("reason", "reason"),
        ("id", "id"),
    ];
    pagination::list(&arguments.call, &BLOCKS, arguments.limit, &columns, out)
}

pub(super) fn lift(arguments: &Unblock, out: &mut dyn Write) -> Result<(), Error> {
    let path = [BLOCKS.as_slice(), &[&arguments.id]].concat();
    super::wait_for(arguments.server.client()?.delete(&path))?;
    Ok(writeln!(out, "{} is lifted; credentials from before it stay revoked", printable(&arguments.id))?)
}
