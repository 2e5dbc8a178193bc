//! `trust-fabric bench`: executes `trust-fabric-bench`, a separate program because a node does not need it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::Error;
use crate::config;

const PROGRAM: &str = "trust-fabric-bench";

#[derive(Debug, Args)]
#[command(
    after_help = "trust-fabric-bench is a program of its own: build it with `cargo build --release -p trust-fabric-bench`, and put it\nbeside this program or on the PATH."
)]
pub(super) struct Arguments {
    /// Benchmark and its arguments: `trust-fabric bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Returns only if the program was not started.
pub(super) fn run(arguments: Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let program = locate(&config::program().map_err(Error::Program)?);
    let is_help = arguments.arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let source = Command::new(&program).args(arguments.arguments).exec();
    Err(match source.kind() {
        // The help of this command names the program and how to build it.
        io::ErrorKind::NotFound if is_help => return Ok(super::write_help("bench", out)?),
        io::ErrorKind::NotFound => Error::NoBench,
        _ => Error::File { path: program, source },
    })
}

/// In the directory of `own`, this executable, else on the PATH.
fn locate(own: &Path) -> PathBuf {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() { beside } else { PROGRAM.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_in_the_same_directory_is_preferred() {
        let directory = tempfile::tempdir().expect("directory");
        let own = directory.path().join("trust-fabric");
        assert_eq!(locate(&own), Path::new(PROGRAM));
        std::fs::create_dir(directory.path().join(PROGRAM)).expect("a directory of that name");
        assert_eq!(locate(&own), Path::new(PROGRAM), "a directory is no program");
        std::fs::remove_dir(directory.path().join(PROGRAM)).expect("removed");
        std::fs::write(directory.path().join(PROGRAM), "").expect("written");
        assert_eq!(locate(&own), directory.path().join(PROGRAM));
    }
}
