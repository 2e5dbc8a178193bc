//! `trust-fabric bench`: executes `trust-fabric-bench`, a separate program because a node does not need it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::Error;
use crate::config;

const PROGRAM: &str = "trust-fabric-bench";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Benchmark and its arguments: `trust-fabric bench --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Returns only if the program could not be started.
pub(super) fn run(arguments: Arguments) -> Result<(), Error> {
    let program = found(&config::program().map_err(Error::Program)?);
    let source = Command::new(&program).args(arguments.arguments).exec();
    Err(match source.kind() {
        io::ErrorKind::NotFound => Error::NoBench,
        _ => Error::File { path: program, source },
    })
}

/// In the directory of `own`, this executable, else on the PATH.
fn found(own: &Path) -> PathBuf {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() { beside } else { PROGRAM.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_in_the_same_directory_is_preferred() {
        let place = tempfile::tempdir().expect("directory");
        let own = place.path().join("trust-fabric");
        assert_eq!(found(&own), Path::new(PROGRAM));
        std::fs::create_dir(place.path().join(PROGRAM)).expect("a directory of that name");
        assert_eq!(found(&own), Path::new(PROGRAM), "a directory is no program");
        std::fs::remove_dir(place.path().join(PROGRAM)).expect("removed");
        std::fs::write(place.path().join(PROGRAM), "").expect("written");
        assert_eq!(found(&own), place.path().join(PROGRAM));
    }
}
