//! The program on a pseudo-terminal: it is its standard input, output and error.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use nix::pty::{OpenptyResult, openpty};

/// End of input, as a terminal sends it.
pub const END: &str = "\u{4}";

/// Runs a command with typed input. Returns its exit code, and everything that the terminal showed.
pub fn run(mut command: Command, typed: &str) -> (Option<i32>, String) {
    let OpenptyResult { master, slave } = openpty(None, None).expect("a terminal");
    let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("runs");
    // Only the program has the terminal open now.
    drop((command, slave));
    let mut terminal = File::from(master);
    terminal.write_all(typed.as_bytes()).expect("typed");
    let mut shown = Vec::new();
    // It fails with EIO when the program has closed the terminal.
    drop(terminal.read_to_end(&mut shown));
    (child.wait().expect("an end").code(), String::from_utf8(shown).expect("UTF-8"))
}
