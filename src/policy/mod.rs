//! Policy decisions in Rego, and the only user of the Rego engine.
//!
//! A [`Bundle`] is compiled once; each decision is an allow or a [`Denial`]. Everything else (undefined, error,
//! conflict, deadline, wrong type) is a denial. Sources and inputs are arguments: nothing here reads files, the clock
//! or the state.

pub mod blast_radius;
mod builtins;
mod call_graph;
pub mod compile;
mod counterfactual;
mod decider;
mod denial;
mod evaluation;
pub mod exchange;
pub mod identity;
mod lexer;
mod reads;
pub mod signals;
mod test_runner;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::counterfactual::{Change, Edit};
use self::decider::Decider;
pub use self::denial::{Denial, DenialKind};
pub use self::test_runner::{Explanation, TestOutcome};
use crate::{id, json, limits, text};

/// Refusal of a bundle. The messages are for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More files than [`limits::POLICY_FILES_MAX`].
    #[error("bundle has {files} files, at most {} are accepted", limits::POLICY_FILES_MAX)]
    TooManyFiles { files: usize },
    /// More bytes than [`limits::POLICY_BYTES_MAX`].
    #[error("bundle has {bytes} bytes, at most {} are accepted", limits::POLICY_BYTES_MAX)]
    TooManyBytes {
        /// Paths and texts together.
        bytes: usize,
    },
    /// Paths are relative, of segments of `A-Z a-z 0-9 . - _`, and end in `.rego` or `.json`.
    #[error("{path:?}: path must be relative, of A-Z, a-z, 0-9, '.', '-', '_', and end in .rego or .json")]
    Path { path: String },
    /// Two files have the same path.
    #[error("{path}: duplicate path")]
    DuplicatePath { path: String },
    /// A data file is not strict JSON, not an object, or conflicts with another data file.
    #[error("{path}: {rule}")]
    Data { path: String, rule: String },
    /// A builtin that is not a function of its arguments, or whose cost no deadline bounds.
    #[error("{path}:{line}: {name} is refused: {rule}")]
    Builtin {
        path: String,
        line: u32,
        /// The builtin's name, for example `time.now_ns`.
        name: String,
        rule: String,
    },
    /// `with` in a file that is not `*_test.rego`.
    #[error("{path}:{line}: with is allowed only in files named *_test.rego")]
    WithOutsideTest { path: String, line: u32 },
    /// A function calls itself, directly or through others.
    #[error("function {name} calls itself")]
    Recursion {
        /// Its name without its package.
        name: String,
    },
    /// A chain of rules is longer than [`limits::POLICY_CALL_DEPTH_MAX`].
    #[error("rules that start at {name} form a chain of more than {}", limits::POLICY_CALL_DEPTH_MAX)]
    TooDeep {
        /// Name of the first rule, without its package.
        name: String,
    },
    /// A policy file is not Rego.
    #[error("{path}: {rule}")]
    Syntax { path: String, rule: String },
    /// The files are Rego but do not compile together, or have no rule `data.svc.exchange.decision`.
    #[error("bundle does not compile: {rule}")]
    DoesNotCompile { rule: String },
    /// The compiler process refused the bundle; its output.
    #[error("{0}")]
    RefusedByCompiler(String),
    /// The compiler process exceeded its deadline and was killed.
    #[error("bundle was not compiled within {} ms; its compiler was killed", limits::POLICY_LOAD_TIMEOUT.as_millis())]
    LoadDeadlineExceeded,
    /// Tests of the bundle failed.
    #[error("tests of the bundle failed: {}; `trust-fabric policy test` shows their values", .names.join(", "))]
    TestsFailed {
        /// The rules.
        names: Vec<String>,
    },
    /// The tests of the bundle had not ended at the deadline, and their process was killed.
    #[error(
        "tests of the bundle did not end within {} ms, compilation included; their process was killed",
        limits::POLICY_TESTS_TIMEOUT.as_millis()
    )]
    TestsDeadlineExceeded,
    /// The compiler process could not be started, or communication with it failed.
    #[error("policy compiler: {0}")]
    CompilerUnavailable(String),
    /// The input of the compiler process is not a list of sources.
    #[error("policy sources: {0}")]
    Sources(#[from] json::Error),
}

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyFile)]
pub struct Source {
    /// Relative path, for example `exchange.rego`; `.rego` is policy, `.json` is data.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// A compiled, immutable set of policy files. Cloning is cheap.
#[derive(Clone)]
pub struct Bundle(Arc<Compiled>);

struct Compiled {
    sources: Vec<Source>,
    digest: String,
    exchange: Decider<exchange::Allow>,
    reads: reads::RequestReads,
    /// `None` if the bundle has no such rule.
    identity: Option<Decider<identity::Allow>>,
    /// `None` if the bundle has no such rule.
    signals: Option<Decider<signals::Allow>>,
}

/// A kind of decision, by its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Point {
    /// `data.svc.exchange.decision`: token exchange.
    #[default]
    Exchange,
    /// `data.svc.identity.decision`: identity of an agent.
    Identity,
    /// `data.svc.signals.decision`: a security event token.
    Signals,
}

impl Point {
    /// The rule of this decision.
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
        text::one_of(text)
    }
}

impl Bundle {
    /// Parses and compiles `sources`, given in any order.
    ///
    /// No deadline applies: some texts take the parser minutes. Unknown sources go through [`compile::load`].
    ///
    /// # Errors
    /// Every variant of [`Error`] but those of [`compile::load`].
    pub fn compile(sources: &[Source]) -> Result<Self, Error> {
        let sources = checked(sources)?;
        for source in policies(&sources) {
            builtins::scan(source)?;
        }
        let (tests, deciding): (Vec<_>, Vec<_>) = sources.iter().cloned().partition(is_test);
        let program = evaluation::Program::compile(&deciding, exchange::ENTRY_POINT)?;
        // Tests take no part in decisions, but a bundle with unreadable tests is incomplete.
        if !tests.is_empty() {
            test_runner::check(&sources)?;
        }
        let digest = digest_of(&sources);
        let identity = program.with_entry_point(identity::ENTRY_POINT)?;
        let identity = identity.map(|program| Decider::new(program, digest.clone()));
        let signals = program.with_entry_point(signals::ENTRY_POINT)?;
        let signals = signals.map(|program| Decider::new(program, digest.clone()));
        let exchange = Decider::new(program, digest.clone());
        let reads = reads::RequestReads::of(&deciding)?;
        Ok(Self(Arc::new(Compiled { sources, digest, exchange, reads, identity, signals })))
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

    /// Decides a token exchange, with the maximum grant.
    ///
    /// # Errors
    /// [`Denial`] for every output but a well-formed `allow: true` before the deadline.
    pub fn decide_exchange(&self, input: &exchange::PolicyInput<'_>) -> Result<exchange::Allow, Denial> {
        exchange::decide(&self.0.exchange, &self.0.reads, input)
    }

    /// Number of cached decisions of token exchange, at most [`limits::POLICY_DECISIONS_CACHED_MAX`].
    #[must_use]
    pub fn exchange_decisions_cached(&self) -> u64 {
        self.0.exchange.cached()
    }

    /// Whether it has the rule for the identity of agents, without which agents have none.
    #[must_use]
    pub fn decides_identity(&self) -> bool {
        self.0.identity.is_some()
    }

    /// Decides the identity of an agent, with the maximum grant.
    ///
    /// # Errors
    /// [`Denial`] for every output but a well-formed `allow: true` before the deadline, or without the rule.
    pub fn decide_identity(&self, input: &identity::PolicyInput<'_>) -> Result<identity::Allow, Denial> {
        identity::decide(self.identity()?, input)
    }

    fn identity(&self) -> Result<&Decider<identity::Allow>, Denial> {
        let without =
            || Denial::new(DenialKind::Undefined, "policy has no rule for agents", None, self.digest());
        self.0.identity.as_ref().ok_or_else(without)
    }

    /// Whether it has the rule for security event tokens, without which none is accepted.
    #[must_use]
    pub fn decides_signals(&self) -> bool {
        self.0.signals.is_some()
    }

    /// Decides whether a security event token is accepted, and the effect of each of its events.
    ///
    /// # Errors
    /// [`Denial`] for every output but a well-formed `allow: true` with the effect of every event before the deadline, or
    /// without the rule.
    pub fn decide_signal(&self, input: &signals::PolicyInput<'_>) -> Result<signals::Allow, Denial> {
        signals::decide(self.signals()?, input)
    }

    fn signals(&self) -> Result<&Decider<signals::Allow>, Denial> {
        let without =
            || Denial::new(DenialKind::Undefined, "policy has no rule for signals", None, self.digest());
        self.0.signals.as_ref().ok_or_else(without)
    }

    /// Runs every rule `test_*` in a package whose name ends in `_test`, in name order.
    #[must_use]
    pub fn test(&self) -> Vec<TestOutcome> {
        test_runner::run(self.sources())
    }

    /// Evaluates `input` at `point` and reports the values of the rules. It grants nothing.
    #[must_use]
    pub fn explain(&self, point: Point, input: &serde_json::Value) -> Explanation {
        let output = match point {
            Point::Exchange => self.0.exchange.evaluate(input.clone()),
            Point::Identity => self.identity().and_then(|identity| identity.evaluate(input.clone())),
            Point::Signals => self.signals().and_then(|signals| signals.evaluate(input.clone())),
        };
        // The check for recursion, which no deadline ends, leaves out tests.
        let deciding: Vec<_> = self.sources().iter().filter(|source| !is_test(source)).cloned().collect();
        test_runner::explain(&deciding, point.entry_point(), input, output)
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("digest", &self.0.digest).finish_non_exhaustive()
    }
}

/// The sources in path order, if number, sizes and paths are acceptable.
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

/// Whether the file contains tests only.
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
