//! Compilation of an unknown bundle, first in a child process that can be killed.
//!
//! The parser takes exponential time for nested brackets and cannot be interrupted. The child is killed at the
//! deadline; sources that it accepted are then compiled here.
//!
//! Protocol: the child is `program policy compile-check`, reads the sources as a JSON array of `{"path", "text"}` from
//! standard input, and exits with 0 if they compile; otherwise its output is the reason. With `--tests` it runs the tests of
//! the bundle too.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Bundle, Error, Source};
use crate::{json, limits};

/// Maximum bytes of the sources as JSON: every byte escaped (`\u0000`), plus names and brackets.
const SOURCES_JSON_BYTES_MAX: u64 =
    6 * limits::POLICY_BYTES_MAX as u64 + 64 * limits::POLICY_FILES_MAX as u64;

/// The condition for a bundle to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It compiles. For a bundle that was current before: a newer version of the interpreter must not leave a node without it.
    Compiles,
    /// Its tests pass too.
    PassesTests,
}

impl Check {
    const fn deadline(self) -> Duration {
        match self {
            Self::Compiles => limits::POLICY_LOAD_TIMEOUT,
            Self::PassesTests => limits::POLICY_TESTS_TIMEOUT,
        }
    }

    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Compiles => &["policy", "compile-check"],
            Self::PassesTests => &["policy", "compile-check", "--tests"],
        }
    }

    const fn exceeded(self) -> Error {
        match self {
            Self::Compiles => Error::LoadDeadlineExceeded,
            Self::PassesTests => Error::TestsDeadlineExceeded,
        }
    }
}

/// Compiles `sources` in a child process, runs their tests in another one if `check` requires it, then compiles them here.
/// Blocks for at most the deadline of each child (twice if a child does not read), and for [`limits::POLICY_LOAD_TIMEOUT`]
/// again. `program` is the binary of this product.
///
/// # Errors
/// [`Error::LoadDeadlineExceeded`], [`Error::TestsDeadlineExceeded`], [`Error::CompilerUnavailable`],
/// [`Error::RefusedByCompiler`]; those of [`Bundle::compile`].
pub fn load(program: &Path, sources: &[Source], check: Check) -> Result<Bundle, Error> {
    super::checked(sources)?;
    // Every node must compile it within this deadline, however long its tests may take.
    check_in_child(program, sources, Check::Compiles)?;
    if check == Check::PassesTests {
        check_in_child(program, sources, check)?;
    }
    Bundle::compile(sources)
}

/// Body of the child process: reads sources from `stdin` and checks them.
///
/// # Errors
/// [`Error::Sources`]; [`Error::TestsFailed`]; those of [`Bundle::compile`].
pub fn check(stdin: impl Read, check: Check) -> Result<(), Error> {
    let mut text = Vec::new();
    stdin.take(SOURCES_JSON_BYTES_MAX).read_to_end(&mut text).map_err(|error| unavailable(&error))?;
    let sources: Vec<Source> = json::from_value(json::parse(&text)?)?;
    let bundle = Bundle::compile(&sources)?;
    if check == Check::Compiles {
        return Ok(());
    }
    let failed = bundle.test().into_iter().filter(|outcome| !outcome.passed);
    let names: Vec<_> = failed.map(|outcome| outcome.name).collect();
    if names.is_empty() { Ok(()) } else { Err(Error::TestsFailed { names }) }
}

fn check_in_child(program: &Path, sources: &[Source], check: Check) -> Result<(), Error> {
    let sources =
        serde_json::to_vec(sources).map_err(|error| Error::CompilerUnavailable(error.to_string()))?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| unavailable(&error))?;
    let child = start(program, check, theirs).map_err(|error| unavailable(&error))?;
    let reply = converse(&mut ours, &sources, check.deadline());
    finish(child, reply, check)
}

/// The child's standard streams are one socket, because socket reads and writes can have a deadline.
fn start(program: &Path, check: Check, theirs: UnixStream) -> io::Result<Child> {
    let (input, output) = (theirs.try_clone()?, theirs.try_clone()?);
    Command::new(program)
        .args(check.arguments())
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(input)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .stderr(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
}

/// Sends the sources and reads until the child closes its end by exiting.
fn converse(ours: &mut UnixStream, sources: &[u8], deadline: Duration) -> io::Result<String> {
    ours.set_write_timeout(Some(deadline))?;
    ours.set_read_timeout(Some(deadline))?;
    // A child that exits before it has read everything may have written a reason.
    match ours.write_all(sources).and_then(|()| ours.shutdown(Shutdown::Write)) {
        Err(error) if !is_hung_up(&error) => return Err(error),
        _ => {}
    }
    let mut reply = Vec::new();
    match ours.take(limits::POLICY_COMPILER_MESSAGE_BYTES_MAX as u64).read_to_end(&mut reply) {
        Err(error) if !is_hung_up(&error) => Err(error),
        _ => Ok(String::from_utf8_lossy(&reply).trim().to_owned()),
    }
}

/// Kills the child if it still runs, and maps its exit to a result.
fn finish(mut child: Child, reply: io::Result<String>, check: Check) -> Result<(), Error> {
    // After a complete reply the child has exited and this has no effect.
    let _ = child.kill();
    let status = child.wait().map_err(|error| unavailable(&error))?;
    match reply {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(check.exceeded())
        }
        Err(error) => Err(unavailable(&error)),
        Ok(_) if status.success() => Ok(()),
        Ok(reply) if reply.is_empty() => {
            Err(Error::RefusedByCompiler(format!("policy compiler exited with {status}")))
        }
        Ok(reply) => Err(Error::RefusedByCompiler(reply)),
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
    fn malformed_sources_are_refused() {
        for text in ["", "{}", "[", r#"[{"path":"a.rego"}]"#, r#"[{"path":"a.rego","text":"","x":1}]"#] {
            assert!(matches!(check(text.as_bytes(), Check::Compiles), Err(Error::Sources(_))), "{text}");
        }
    }

    #[test]
    fn missing_or_failing_compiler_refuses_the_bundle() {
        let missing = load(Path::new("/nonexistent/program"), &[], Check::Compiles);
        assert!(matches!(missing, Err(Error::CompilerUnavailable(_))), "{missing:?}");
        let failing = load(Path::new("/bin/false"), &[], Check::Compiles);
        assert!(matches!(failing, Err(Error::RefusedByCompiler(_))), "{failing:?}");
    }

    #[test]
    fn compiler_output_is_read_to_the_limit() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let program = directory.path().join("talks");
        // Reads its input to the end, so that the write is never interrupted.
        let script = "#!/bin/sh\ncat > /dev/null\nhead -c 100000 /dev/zero | tr '\\0' x\nexit 1\n";
        std::fs::write(&program, script).expect("script");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("mode");
        let refused = load(&program, &[], Check::Compiles);
        let Err(Error::RefusedByCompiler(reply)) = refused else { panic!("{refused:?}") };
        assert_eq!(reply.len(), limits::POLICY_COMPILER_MESSAGE_BYTES_MAX);
    }
}
