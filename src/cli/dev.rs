//! `trust-fabric dev`

use std::io::{IsTerminal as _, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::telemetry::{self, LogFormat};
use crate::{config, demo};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Stop after the exchange.
    #[arg(long)]
    once: bool,
    /// Data directory [default: ~/.local/share/trust-fabric/dev]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address of the broker.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8693", value_parser = loopback)]
    listen: SocketAddr,
    /// Address of the demo issuer.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8698", value_parser = loopback)]
    issuer_listen: SocketAddr,
}

/// The demo issuer mints for any caller, so it listens on loopback only.
fn loopback(text: &str) -> Result<SocketAddr, &'static str> {
    let address: SocketAddr =
        text.parse().map_err(|_| "must be an IP address and a port, such as 127.0.0.1:8693")?;
    if address.ip().is_loopback() { Ok(address) } else { Err("must be a loopback address") }
}

pub(super) fn run(arguments: Arguments, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let _logs = telemetry::init_logs(LogFormat::Text, "warn")?;
    // no-color.org: "when present and not an empty string".
    let is_plain = config::environment().any(|(name, value)| name == "NO_COLOR" && !value.is_empty());
    let options = demo::Options {
        once: arguments.once,
        data_dir: arguments.data_dir,
        listen: arguments.listen,
        issuer_listen: arguments.issuer_listen,
        colour: std::io::stdout().is_terminal() && !is_plain,
    };
    let shutdown = CancellationToken::new();
    let showing = async { Ok(Box::pin(demo::run(options, out, shutdown.clone())).await?) };
    super::wait_for(super::until_signalled(shutdown.clone(), showing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_listens_on_loopback_only() {
        assert!(loopback("127.0.0.1:0").is_ok() && loopback("[::1]:1").is_ok());
        for address in ["0.0.0.0:8693", "[::]:8693", "10.0.0.1:8693", "localhost:8693", "8693"] {
            assert!(loopback(address).is_err(), "{address}");
        }
    }
}
