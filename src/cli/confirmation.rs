//! The confirmation of a command whose effect cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use clap::Args;

use super::Error;

/// Maximum bytes of an answer on the terminal.
const ANSWER_BYTES_MAX: u64 = 64;

/// Option of a command that asks on a terminal, and proceeds at once without one.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

impl Confirmation {
    pub(super) fn is_needed(&self) -> bool {
        !self.yes && io::stdin().is_terminal()
    }

    /// Asks whether to do `deed`, a sentence without its end.
    pub(super) fn ask(&self, deed: &str) -> Result<(), Error> {
        if !self.is_needed() || is_confirmed(&format!("{deed}? [y/N] "))? {
            Ok(())
        } else {
            Err(Error::NotConfirmed { needs_yes: false })
        }
    }
}

/// Whether a command may proceed: confirmed by its option `--yes`, or on the terminal. Without a terminal,
/// only the option confirms.
pub(super) fn may_go_on(yes: bool, question: &str) -> Result<bool, io::Error> {
    Ok(yes || (io::stdin().is_terminal() && is_confirmed(question)?))
}

/// Asks on the terminal; anything but yes means no.
pub(super) fn is_confirmed(question: &str) -> Result<bool, io::Error> {
    let mut terminal = io::stderr();
    write!(terminal, "{question}")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
