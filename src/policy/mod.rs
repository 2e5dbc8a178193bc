//! Policy: who may have what, decided in Rego. The only part that knows the Rego engine.
//!
//! A [`Bundle`] is compiled once and asked many times; every answer is a `Permit` or a [`Denial`].
//! Anything else (undefined, an error, a conflict, a deadline, a wrong type) is a denial. Nothing
//! here reads files, the clock or the state: sources and questions are arguments.

pub mod blast_radius;
mod builtins;
mod call_graph;
pub mod compile;
mod decider;
mod denial;
mod evaluation;
pub mod exchange;
pub mod identity;
mod lexer;
pub mod signals;
mod test_runner;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use self::decider::Decider;
pub use self::decider::is_scope_word;
pub use self::denial::{Denial, DenialKind};
pub use self::test_runner::{Explanation, TestOutcome};
use crate::{id, json, limits};

/// Why a bundle was refused. The messages are for the operator who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More files than [`limits::POLICY_FILES_MAX`].
    #[error("bundle has {files} files, at most {} are accepted", limits::POLICY_FILES_MAX)]
    TooManyFiles {
        /// How many there are.
        files: usize,
    },
    /// More bytes than [`limits::POLICY_BYTES_MAX`].
    #[error("bundle has {bytes} bytes, at most {} are accepted", limits::POLICY_BYTES_MAX)]
    TooManyBytes {
        /// Paths and texts together.
        bytes: usize,
    },
    /// Paths are relative, of segments of `A-Z a-z 0-9 . - _`, and end in `.rego` or `.json`.
    #[error("{path:?}: path must be relative, of A-Z, a-z, 0-9, '.', '-', '_', and end in .rego or .json")]
    Path {
        /// As given.
        path: String,
    },
    /// Two files have one path.
    #[error("{path}: given twice")]
    DuplicatePath {
        /// The path.
        path: String,
    },
    /// A data file is not acceptable JSON, is not an object, or contradicts another data file.
    #[error("{path}: {rule}")]
    Data {
        /// The file.
        path: String,
        /// What is wrong.
        rule: String,
    },
    /// A builtin whose answer is not a function of its arguments, or whose cost no deadline bounds.
    #[error("{path}:{line}: {name} is refused: {rule}")]
    Builtin {
        /// The file.
        path: String,
        /// The line, from 1.
        line: u32,
        /// The builtin's name, for example `time.now_ns`.
        name: String,
        /// Why it is refused.
        rule: String,
    },
    /// `with` stands in a file that is not `*_test.rego`.
    #[error("{path}:{line}: with is for tests, in files named *_test.rego")]
    WithOutsideTest {
        /// The file.
        path: String,
        /// The line, from 1.
        line: u32,
    },
    /// A function calls itself, directly or through others of these names.
    #[error("function {name} calls itself")]
    Recursion {
        /// Its name without its package.
        name: String,
    },
    /// Rules use each other in a chain longer than [`limits::POLICY_CALL_DEPTH_MAX`].
    #[error("rules that start at {name} use each other more than {} deep", limits::POLICY_CALL_DEPTH_MAX)]
    TooDeep {
        /// The name of the first, without its package.
        name: String,
    },
    /// A policy file is not Rego.
    #[error("{path}: {rule}")]
    Syntax {
        /// The file.
        path: String,
        /// What the parser says.
        rule: String,
    },
    /// The files are Rego but do not compile together, or have no rule `data.svc.exchange.decision`.
    #[error("bundle does not compile: {rule}")]
    DoesNotCompile {
        /// What the compiler says.
        rule: String,
    },
    /// The process that compiles a bundle first said no; its own words.
    #[error("{0}")]
    RefusedByCompiler(String),
    /// The process that compiles a bundle first did not finish in time and was killed.
    #[error("bundle was not compiled within {} ms and its compiler was stopped", limits::POLICY_LOAD_DEADLINE.as_millis())]
    LoadDeadlineExceeded,
    /// The process that compiles a bundle first could not be started, or talked to.
    #[error("policy compiler: {0}")]
    CompilerUnavailable(String),
    /// What the compiling process read is not a list of sources.
    #[error("policy sources: {0}")]
    Sources(#[from] json::Error),
}

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Relative path, for example `exchange.rego`; `.rego` is policy, `.json` is data.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// A compiled, immutable set of policy files. Cloning is cheap.
#[derive(Clone)]
pub struct Bundle(Arc<Compiled>);

struct Compiled {
    sources: Vec<Source>,
    digest: String,
    exchange: Decider<exchange::Permit>,
    /// `None` if the bundle has no such rule.
    identity: Option<Decider<identity::Permit>>,
    /// `None` if the bundle has no such rule.
    signals: Option<Decider<signals::Permit>>,
}

/// What a policy decides, by the rule that it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Point {
    /// `data.svc.exchange.decision`: token exchange.
    #[default]
    Exchange,
    /// `data.svc.identity.decision`: the identity of an agent.
    Identity,
    /// `data.svc.signals.decision`: a security event token.
    Signals,
}

impl Point {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Exchange, Self::Identity, Self::Signals];

    /// One lower-case word, as in metrics, queries and arguments.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Identity => "identity",
            Self::Signals => "signals",
        }
    }

    /// The rule that answers.
    const fn entry_point(self) -> &'static str {
        match self {
            Self::Exchange => exchange::ENTRY_POINT,
            Self::Identity => identity::ENTRY_POINT,
            Self::Signals => signals::ENTRY_POINT,
        }
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|point| point.as_str() == text);
        known.ok_or_else(|| format!("must be one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

impl Bundle {
    /// Parses and compiles `sources`, given in any order.
    ///
    /// No deadline holds here: some texts take the parser minutes. Sources that no process has
    /// compiled before go through [`compile::load`].
    ///
    /// # Errors
    /// Every variant of [`Error`] but the three of [`compile::load`].
    pub fn compile(sources: &[Source]) -> Result<Self, Error> {
        let sources = checked(sources)?;
        for source in policies(&sources) {
            builtins::scan(source)?;
        }
        let (tests, deciding): (Vec<_>, Vec<_>) = sources.iter().cloned().partition(is_test);
        let program = evaluation::Program::compile(&deciding, exchange::ENTRY_POINT)?;
        // Tests take no part in decisions, but a bundle whose tests cannot be read is not whole.
        if !tests.is_empty() {
            test_runner::check(&sources)?;
        }
        let digest = digest_of(&sources);
        let identity = program.with_entry_point(identity::ENTRY_POINT)?;
        let identity = identity.map(|program| Decider::new(program, digest.clone()));
        let signals = program.with_entry_point(signals::ENTRY_POINT)?;
        let signals = signals.map(|program| Decider::new(program, digest.clone()));
        let exchange = Decider::new(program, digest.clone());
        Ok(Self(Arc::new(Compiled { sources, digest, exchange, identity, signals })))
    }

    /// base64url SHA-256 over the sources in path order, each path and text length-prefixed.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// The files, in path order.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.0.sources
    }

    /// Answers whether an exchange may be made, and with which grants at most.
    ///
    /// # Errors
    /// [`Denial`]: whenever the policy does not answer a well-formed `allow: true` in time.
    pub fn decide_exchange(&self, question: &exchange::Question<'_>) -> Result<exchange::Permit, Denial> {
        exchange::decide(&self.0.exchange, question)
    }

    /// Whether it has a rule about the identity of agents; without it agents have none.
    #[must_use]
    pub fn decides_identity(&self) -> bool {
        self.0.identity.is_some()
    }

    /// Answers whether an agent may have an identity, and with which grants at most.
    ///
    /// # Errors
    /// [`Denial`]: whenever the policy does not answer a well-formed `allow: true` in time, or has no
    /// rule that answers.
    pub fn decide_identity(&self, question: &identity::Question<'_>) -> Result<identity::Permit, Denial> {
        identity::decide(self.identity()?, question)
    }

    fn identity(&self) -> Result<&Decider<identity::Permit>, Denial> {
        let without =
            || Denial::new(DenialKind::Undefined, "policy has no rule for agents", None, self.digest());
        self.0.identity.as_ref().ok_or_else(without)
    }

    /// Whether it has a rule about security event tokens; without it none is accepted.
    #[must_use]
    pub fn decides_signals(&self) -> bool {
        self.0.signals.is_some()
    }

    /// Answers whether a security event token is accepted, and what each of its events does.
    ///
    /// # Errors
    /// [`Denial`]: whenever the policy does not answer a well-formed `allow: true` with the effect of every
    /// event in time, or has no rule that answers.
    pub fn decide_signal(&self, question: &signals::Question<'_>) -> Result<signals::Permit, Denial> {
        signals::decide(self.signals()?, question)
    }

    fn signals(&self) -> Result<&Decider<signals::Permit>, Denial> {
        let without =
            || Denial::new(DenialKind::Undefined, "policy has no rule for signals", None, self.digest());
        self.0.signals.as_ref().ok_or_else(without)
    }

    /// Runs every rule named `test_*` in a package whose name ends in `_test`, in name order.
    #[must_use]
    pub fn test(&self) -> Vec<TestOutcome> {
        test_runner::run(self.sources())
    }

    /// Evaluates `input` as a question at `point` and shows how the answer came about. It grants
    /// nothing.
    #[must_use]
    pub fn explain(&self, point: Point, input: &serde_json::Value) -> Explanation {
        let answer = match point {
            Point::Exchange => self.0.exchange.answer(input.clone()),
            Point::Identity => self.identity().and_then(|identity| identity.answer(input.clone())),
            Point::Signals => self.signals().and_then(|signals| signals.answer(input.clone())),
        };
        test_runner::explain(self.sources(), point.entry_point(), input, answer)
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("digest", &self.0.digest).finish_non_exhaustive()
    }
}

/// The sources in path order, if their number, sizes and paths are acceptable.
fn checked(sources: &[Source]) -> Result<Vec<Source>, Error> {
    if sources.len() > limits::POLICY_FILES_MAX {
        return Err(Error::TooManyFiles { files: sources.len() });
    }
    let bytes = sources
        .iter()
        .fold(0usize, |sum, source| sum.saturating_add(source.path.len()).saturating_add(source.text.len()));
    if bytes > limits::POLICY_BYTES_MAX {
        return Err(Error::TooManyBytes { bytes });
    }
    for Source { path, .. } in sources {
        let well_formed = path.len() <= limits::POLICY_PATH_BYTES_MAX
            && path.split('/').all(id::is_path_segment)
            && matches!(path.rsplit_once('.'), Some((_, "rego" | "json")));
        if !well_formed {
            return Err(Error::Path { path: path.chars().take(limits::POLICY_PATH_BYTES_MAX).collect() });
        }
    }
    let mut sorted = sources.to_vec();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let twice = sorted.iter().zip(sorted.iter().skip(1)).find(|(a, b)| a.path == b.path);
    match twice {
        Some((source, _)) => Err(Error::DuplicatePath { path: source.path.clone() }),
        None => Ok(sorted),
    }
}

fn is_policy(path: &str) -> bool {
    matches!(path.rsplit_once('.'), Some((_, "rego")))
}

/// Whether the file holds only tests.
fn is_test(source: &Source) -> bool {
    source.path.ends_with("_test.rego")
}

fn policies(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| is_policy(&source.path))
}

fn digest_of(sources: &[Source]) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in sources.iter().flat_map(|source| [&source.path, &source.text]) {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(context.finish())
}
