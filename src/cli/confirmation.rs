//! The confirmation of a command whose effect cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

/// Maximum bytes of an answer on the terminal.
const ANSWER_BYTES_MAX: u64 = 64;

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
