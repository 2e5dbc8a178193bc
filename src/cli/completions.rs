//! `trust-fabric completions`

use std::io::Write;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Error};

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  trust-fabric completions bash > ~/.local/share/bash-completion/completions/trust-fabric"
)]
pub(super) struct Arguments {
    /// The shell.
    shell: Shell,
}

/// Into memory first: the generator panics if writing fails, as to a closed pipe.
pub(super) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "trust-fabric", &mut script);
    Ok(out.write_all(&script)?)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            run(&Arguments { shell: *shell }, &mut script).expect("written");
            let script = String::from_utf8(script).expect("text");
            for command in ["serve", "dead-letters", "token-file"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }
}
