//! The question before a command whose effect cannot be undone.

use std::io::{self, BufRead as _, Read as _, Write as _};

/// Maximum bytes of an answer on the terminal.
const ANSWER_BYTES_MAX: u64 = 64;

/// Asks on the terminal; anything but yes means no.
pub(super) fn is_confirmed(question: &str) -> Result<bool, io::Error> {
    let mut terminal = io::stderr();
    write!(terminal, "{question}")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
