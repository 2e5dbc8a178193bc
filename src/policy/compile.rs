//! Compilation of an unknown bundle, first in a child process that can be killed.
//!
//! The parser takes exponential time for nested brackets and cannot be interrupted. The child is killed at the
//! deadline; sources that it accepted are then compiled here.
//!
//! Protocol: the child is `program policy compile-check`, reads the sources as a JSON array of `{"path", "text"}` from
//! standard input, and exits with 0 if they compile; otherwise its output is the reason.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Bundle, Error, Source};
use crate::{json, limits};

/// Maximum bytes of the sources as JSON: every byte escaped (`\u0000`), plus names and brackets.
const SOURCES_JSON_BYTES_MAX: u64 =
    6 * limits::POLICY_BYTES_MAX as u64 + 64 * limits::POLICY_FILES_MAX as u64;

/// Compiles `sources` in a child process, then here. Blocks for at most [`limits::POLICY_LOAD_TIMEOUT`] (twice if
/// the child does not read), and as long again. `program` is the binary of this product.
///
/// # Errors
/// [`Error::LoadDeadlineExceeded`], [`Error::CompilerUnavailable`], [`Error::RefusedByCompiler`];
/// those of [`Bundle::compile`].
pub fn load(program: &Path, sources: &[Source]) -> Result<Bundle, Error> {
    super::checked(sources)?;
    compile_in_child(program, sources)?;
    Bundle::compile(sources)
}

/// Body of the child process: reads sources from `stdin` and compiles them.
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
    let reply = converse(&mut ours, &sources);
    finish(child, reply)
}

/// The child's standard streams are one socket, because socket reads and writes can have a deadline.
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

/// Sends the sources and reads until the child closes its end by exiting.
fn converse(ours: &mut UnixStream, sources: &[u8]) -> io::Result<String> {
    ours.set_write_timeout(Some(limits::POLICY_LOAD_TIMEOUT))?;
    ours.set_read_timeout(Some(limits::POLICY_LOAD_TIMEOUT))?;
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
fn finish(mut child: Child, reply: io::Result<String>) -> Result<(), Error> {
    // After a complete reply the child has exited and this has no effect.
    let _ = child.kill();
    let status = child.wait().map_err(|error| unavailable(&error))?;
    match reply {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(Error::LoadDeadlineExceeded)
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
    fn compile_check_refuses_malformed_sources() {
        for text in ["", "{}", "[", r#"[{"path":"a.rego"}]"#, r#"[{"path":"a.rego","text":"","x":1}]"#] {
            assert!(matches!(compile_check(text.as_bytes()), Err(Error::Sources(_))), "{text}");
        }
    }

    #[test]
    fn missing_or_failing_compiler_refuses_the_bundle() {
        let missing = load(Path::new("/nonexistent/program"), &[]);
        assert!(matches!(missing, Err(Error::CompilerUnavailable(_))), "{missing:?}");
        let failing = load(Path::new("/bin/false"), &[]);
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
        let refused = load(&program, &[]);
        let Err(Error::RefusedByCompiler(reply)) = refused else { panic!("{refused:?}") };
        assert_eq!(reply.len(), limits::POLICY_COMPILER_MESSAGE_BYTES_MAX);
    }
}
