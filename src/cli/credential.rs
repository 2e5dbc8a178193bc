//! `trust-fabric credential`

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::Error;
use super::pki::HTTPS_PORT;
use crate::clock::Clock;
use crate::pki::DevelopmentIssuer;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory of `trust-fabric pki --issuer`.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    dir: PathBuf,
    /// Audience: `fabric.issuer` of the nodes.
    #[arg(long, value_name = "URI", default_value_t = format!("https://localhost:{HTTPS_PORT}"))]
    audience: String,
    /// Subject: a Kubernetes service account.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "demo/reporter", value_parser = service_account)]
    service_account: (String, String),
}

fn service_account(text: &str) -> Result<(String, String), &'static str> {
    let (namespace, name) =
        text.split_once('/').ok_or("must be a namespace and a name, such as demo/reporter")?;
    Ok((namespace.to_owned(), name.to_owned()))
}

/// Prints the credential alone, for use in a shell.
pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let issuer = DevelopmentIssuer::open(&arguments.dir)?;
    let (namespace, name) = &arguments.service_account;
    let credential = issuer.credential(&arguments.audience, namespace, name, &Clock::system())?;
    Ok(writeln!(out, "{credential}")?)
}
