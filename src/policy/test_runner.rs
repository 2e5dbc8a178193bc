//! Runs a policy's own tests, and explains one decision: for people, not for requests.

use std::collections::BTreeMap;

use regorus::unstable::{Rule, RuleHead};
use regorus::{Engine, Value};
use serde::Serialize;
use serde_json::Value as Json;

use super::counterfactual::{self, Change};
use super::evaluation::{self, EvaluationError};
use super::{Denial, Error, Source, exchange};
use crate::limits;

/// Outcome of one test rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestOutcome {
    /// The rule, for example `data.svc.exchange_test.test_denies_strangers`.
    pub name: String,
    /// Whether it evaluated to true.
    pub passed: bool,
    /// Its value or error otherwise; empty if it passed.
    pub detail: String,
}

/// An output, and the values of the rules from which it derives.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Output of the policy; `None` if undefined or failed.
    pub answer: Option<Json>,
    /// Reason why there is no output.
    pub error: Option<String>,
    /// Every rule of the package that is not a function, with its value for this input or the reason why it has none.
    pub rules: BTreeMap<String, Json>,
    /// Single changes of the input each of which would allow it; those of the request first.
    pub allowed_if: Vec<Change>,
}

/// Runs every rule `test_*` of the packages `*_test`.
pub(super) fn run(sources: &[Source]) -> Vec<TestOutcome> {
    let found = evaluation::engine(sources, limits::POLICY_TEST_TIMEOUT)
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
    let mut engine = evaluation::engine(sources, limits::POLICY_TEST_TIMEOUT)?;
    rules(&mut engine).map(drop)
}

/// Values of the rules of the deciding package for one input. `sources` are those without test files.
pub(super) fn explain(
    sources: &[Source],
    entry_point: &str,
    input: &Json,
    answer: Result<Json, Denial>,
) -> Explanation {
    let mut values = BTreeMap::new();
    let found = evaluation::engine(sources, limits::POLICY_TEST_TIMEOUT)
        .and_then(|mut engine| Ok((rules(&mut engine)?, engine)));
    if let Ok((rules, mut engine)) = found {
        engine.set_input(evaluation::value_of_json(input.clone()));
        let package = entry_point.rsplit_once('.').map_or("", |(package, _)| package);
        for rule in rules.iter().filter(|rule| rule.rsplit_once('.').is_some_and(|(p, _)| p == package)) {
            let value =
                evaluation::value_of(&mut engine, rule).unwrap_or_else(|error| Json::String(describe(error)));
            values.insert(rule.clone(), value);
        }
    }
    let (answer, error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(denial) => (None, Some(denial.detail.unwrap_or(denial.reason))),
    };
    let is_allowed = answer.as_ref().and_then(|answer| answer.get("allow")) == Some(&Json::Bool(true));
    let allowed_if =
        if is_allowed { Vec::new() } else { counterfactual::allowing_changes(sources, entry_point, input) };
    Explanation { answer, error, rules: values, allowed_if }
}

/// Paths of all rules that are not functions, sorted and distinct.
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
        Err(error) => describe(error),
    };
    TestOutcome { name: rule.to_owned(), passed: detail.is_empty(), detail }
}

fn describe(error: EvaluationError) -> String {
    match error {
        EvaluationError::TimedOut => "exceeded its deadline".to_owned(),
        EvaluationError::Undefined => "is undefined".to_owned(),
        EvaluationError::Failed(detail) => detail,
    }
}
