//! A policy's own tests, and the explanation of one answer: for people, not for requests.

use std::collections::BTreeMap;

use regorus::unstable::{Rule, RuleHead};
use regorus::{Engine, Value};
use serde::Serialize;
use serde_json::Value as Json;

use super::evaluation::{self, Stopped};
use super::{Denial, Error, Source, exchange};
use crate::limits;

/// How one rule of a policy's own tests ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestOutcome {
    /// The rule, for example `data.svc.exchange_test.test_denies_strangers`.
    pub name: String,
    /// Whether it was true.
    pub passed: bool,
    /// What it was instead, or the error; empty if it passed.
    pub detail: String,
}

/// An answer and the values of the rules it came from.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The answer as the policy gave it; `None` if it gave none.
    pub answer: Option<Json>,
    /// Why there is no answer.
    pub error: Option<String>,
    /// Every rule of the package that answers and is no function, with its value for this question
    /// or the reason why it has none.
    pub rules: BTreeMap<String, Json>,
}

/// Runs every rule `test_*` of the packages `*_test`.
pub(super) fn run(sources: &[Source]) -> Vec<TestOutcome> {
    let found = evaluation::engine(sources, limits::POLICY_TEST_DEADLINE)
        .and_then(|mut engine| Ok((rules(&mut engine)?, engine)));
    let (rules, mut engine) = match found {
        Ok(found) => found,
        Err(error) => {
            return vec![TestOutcome { name: "bundle".to_owned(), passed: false, detail: error.to_string() }];
        }
    };
    engine.set_input(Value::new_object());
    rules.iter().filter(|rule| is_test(rule)).map(|rule| outcome(&mut engine, rule)).collect()
}

/// Whether all files parse and compile together.
pub(super) fn check(sources: &[Source]) -> Result<(), Error> {
    let mut engine = evaluation::engine(sources, limits::POLICY_TEST_DEADLINE)?;
    rules(&mut engine).map(drop)
}

/// Shows the rules of the package that answers, for one question.
pub(super) fn explain(
    sources: &[Source],
    entry_point: &str,
    input: &Json,
    answer: Result<Json, Denial>,
) -> Explanation {
    let mut values = BTreeMap::new();
    let found = evaluation::engine(sources, limits::POLICY_TEST_DEADLINE)
        .and_then(|mut engine| Ok((rules(&mut engine)?, engine)));
    if let Ok((rules, mut engine)) = found {
        engine.set_input(Value::from(input.clone()));
        let package = entry_point.rsplit_once('.').map_or("", |(package, _)| package);
        for rule in rules.iter().filter(|rule| rule.rsplit_once('.').is_some_and(|(p, _)| p == package)) {
            let value = evaluation::value_of(&mut engine, rule)
                .unwrap_or_else(|stopped| Json::String(in_words(stopped)));
            values.insert(rule.clone(), value);
        }
    }
    let (answer, error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(denial) => (None, Some(denial.detail.unwrap_or(denial.reason))),
    };
    Explanation { answer, error, rules: values }
}

/// The paths of all rules that are no functions, sorted, each once.
fn rules(engine: &mut Engine) -> Result<Vec<String>, Error> {
    let entry_point = exchange::ENTRY_POINT.into();
    let policy = engine
        .compile_with_entrypoint(&entry_point)
        .map_err(|error| Error::DoesNotCompile { rule: error.to_string() })?;
    let is_function = |rule: &Rule| matches!(rule, Rule::Spec { head: RuleHead::Func { .. }, .. });
    let mut paths: Vec<String> = policy
        .get_rules()
        .iter()
        .filter(|(_, definitions)| !definitions.iter().any(|rule| is_function(rule)))
        .map(|(path, _)| path.clone())
        .collect();
    paths.sort();
    Ok(paths)
}

fn is_test(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(package, rule)| package.ends_with("_test") && rule.starts_with("test_"))
}

fn outcome(engine: &mut Engine, rule: &str) -> TestOutcome {
    let detail = match evaluation::value_of(engine, rule) {
        Ok(Json::Bool(true)) => String::new(),
        Ok(other) => format!("is {other}"),
        Err(stopped) => in_words(stopped),
    };
    TestOutcome { name: rule.to_owned(), passed: detail.is_empty(), detail }
}

fn in_words(stopped: Stopped) -> String {
    match stopped {
        Stopped::TimedOut => "did not end in time".to_owned(),
        Stopped::Undefined => "is undefined".to_owned(),
        Stopped::Failed(detail) => detail,
    }
}
