//! Loading of a bundle that nobody has compiled yet, in a way that can be stopped.
//!
//! The parser takes exponential time for nested brackets and cannot be interrupted, so a process
//! of its own compiles first; it is killed at the deadline. Only what it accepted is compiled here.
//!
//! Between the two: the child runs `program policy compile-check`, reads the sources as a JSON
//! array of `{"path", "text"}` from its standard input until it ends, and exits with 0 if they
//! compile; otherwise what it wrote to standard output or standard error is the reason.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Bundle, Error, Source};
use crate::{json, limits};

/// Most bytes the sources can have as JSON: every byte escaped (`\u0000`), and names and brackets.
const SOURCES_JSON_BYTES_MAX: u64 =
    6 * limits::POLICY_BYTES_MAX as u64 + 64 * limits::POLICY_FILES_MAX as u64;

/// Compiles `sources` in a child process first, then here. Blocks while the child works, for at most
/// [`limits::POLICY_LOAD_DEADLINE`] (twice if it does not even read), and as long again.
///
/// `program` is this product's own binary.
///
/// # Errors
/// [`Error::LoadDeadlineExceeded`], [`Error::CompilerUnavailable`], [`Error::RefusedByCompiler`];
/// those of [`Bundle::compile`].
pub fn load(program: &Path, sources: &[Source]) -> Result<Bundle, Error> {
    super::checked(sources)?;
    compile_in_child(program, sources)?;
    Bundle::compile(sources)
}

/// What the child runs: reads sources from `stdin` and compiles them.
///
/// # Errors
/// [`Error::Sources`]; those of [`Bundle::compile`].
pub fn compile_check(stdin: impl Read) -> Result<(), Error> {
    let mut text = Vec::new();
    stdin.take(SOURCES_JSON_BYTES_MAX).read_to_end(&mut text).map_err(|error| unavailable(&error))?;
    let sources: Vec<Source> = json::from_value(json::parse(&text)?)?;
    Bundle::compile(&sources).map(drop)
}

fn compile_in_child(program: &Path, sources: &[Source]) -> Result<(), Error> {
    let sources =
        serde_json::to_vec(sources).map_err(|error| Error::CompilerUnavailable(error.to_string()))?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| unavailable(&error))?;
    let child = start(program, theirs).map_err(|error| unavailable(&error))?;
    let said = converse(&mut ours, &sources);
    finish(child, said)
}

/// The child's standard streams are one socket: a socket's reads and writes can have a deadline.
fn start(program: &Path, theirs: UnixStream) -> io::Result<Child> {
    let (input, output) = (theirs.try_clone()?, theirs.try_clone()?);
    Command::new(program)
        .args(["policy", "compile-check"])
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(input)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .stderr(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
}

/// Sends the sources and reads until the child has closed its end, which it does by exiting.
fn converse(ours: &mut UnixStream, sources: &[u8]) -> io::Result<String> {
    ours.set_write_timeout(Some(limits::POLICY_LOAD_DEADLINE))?;
    ours.set_read_timeout(Some(limits::POLICY_LOAD_DEADLINE))?;
    // A child that exits before it has read everything has an answer all the same.
    match ours.write_all(sources).and_then(|()| ours.shutdown(Shutdown::Write)) {
        Err(error) if !is_hung_up(&error) => return Err(error),
        _ => {}
    }
    let mut said = Vec::new();
    match ours.take(limits::POLICY_VERDICT_BYTES_MAX as u64).read_to_end(&mut said) {
        Err(error) if !is_hung_up(&error) => Err(error),
        _ => Ok(String::from_utf8_lossy(&said).trim().to_owned()),
    }
}

/// Ends the child whatever it is doing, and turns how it ended into a verdict.
fn finish(mut child: Child, said: io::Result<String>) -> Result<(), Error> {
    // It has exited if it said anything to the end, and then this does nothing.
    let _ = child.kill();
    let status = child.wait().map_err(|error| unavailable(&error))?;
    match said {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(Error::LoadDeadlineExceeded)
        }
        Err(error) => Err(unavailable(&error)),
        Ok(_) if status.success() => Ok(()),
        Ok(said) if said.is_empty() => {
            Err(Error::RefusedByCompiler(format!("policy compiler ended with {status}")))
        }
        Ok(said) => Err(Error::RefusedByCompiler(said)),
    }
}

fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn unavailable(error: &io::Error) -> Error {
    Error::CompilerUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_refuses_what_is_not_a_list_of_sources() {
        for text in ["", "{}", "[", r#"[{"path":"a.rego"}]"#, r#"[{"path":"a.rego","text":"","x":1}]"#] {
            assert!(matches!(compile_check(text.as_bytes()), Err(Error::Sources(_))), "{text}");
        }
    }

    #[test]
    fn a_program_that_is_missing_or_fails_refuses_the_bundle() {
        let missing = load(Path::new("/nonexistent/program"), &[]);
        assert!(matches!(missing, Err(Error::CompilerUnavailable(_))), "{missing:?}");
        let failing = load(Path::new("/bin/false"), &[]);
        assert!(matches!(failing, Err(Error::RefusedByCompiler(_))), "{failing:?}");
    }

    #[test]
    fn a_program_that_says_too_much_is_heard_to_the_limit_only() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let program = directory.path().join("talks");
        // Waits for the end of what it is sent, so that it is never interrupted in the middle.
        let script = "#!/bin/sh\ncat > /dev/null\nhead -c 100000 /dev/zero | tr '\\0' x\nexit 1\n";
        std::fs::write(&program, script).expect("script");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("mode");
        let refused = load(&program, &[]);
        let Err(Error::RefusedByCompiler(said)) = refused else { panic!("{refused:?}") };
        assert_eq!(said.len(), limits::POLICY_VERDICT_BYTES_MAX);
    }
}
