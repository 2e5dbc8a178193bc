//! The `trust-fabric` program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    trust_fabric::cli::main(std::env::args_os())
}
