//! The program that Terraform starts.

use std::process::ExitCode;

use trust_fabric_provider::plugin::{self, Handshake};
use trust_fabric_provider::provider::FabricProvider;

const HELP: &str = "\
Terraform provider of the Trust Fabric. Terraform starts this program; it does nothing when it is started by hand.

To install it without a registry, put it into a directory

  MIRROR/registry.example/fabric/svc/VERSION/linux_amd64/terraform-provider-svc_vVERSION

and name the mirror in ~/.terraformrc (make provider does the former and prints the latter):

  provider_installation {
    filesystem_mirror {
      path    = \"MIRROR\"
      include = [\"registry.example/*/*\"]
    }
    direct {
      exclude = [\"registry.example/*/*\"]
    }
  }

Options:
  --version  print the version
  --help     print this text
";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("--version") => {
            println!("terraform-provider-svc {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(_) => {
            eprintln!("unknown argument; --help lists the options");
            return ExitCode::FAILURE;
        }
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let environment = |name: &str| std::env::var(name).ok();
    let handshake = Handshake::read(environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let provider = FabricProvider::new(environment);
    let open = provider.open_resources();
    runtime.block_on(async {
        let served = plugin::serve(handshake, provider).await;
        for failed in open.close_all().await {
            eprintln!("{}: {}", failed.summary, failed.detail);
        }
        served
    })?;
    Ok(())
}
