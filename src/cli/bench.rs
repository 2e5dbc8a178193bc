//! `trust-fabric bench`: becomes `trust-fabric-bench`, the program that measures running nodes. It is another
//! program because nobody who runs a node needs it there.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::Error;
use crate::config;

/// What it is called.
const PROGRAM: &str = "trust-fabric-bench";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What is measured, and how: `trust-fabric bench --help` lists it.
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

/// Beside `own`, this program's file, else wherever the system finds programs.
fn found(own: &Path) -> PathBuf {
    let beside = own.with_file_name(PROGRAM);
    if beside.is_file() { beside } else { PROGRAM.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bench_beside_this_program_goes_before_any_other() {
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
