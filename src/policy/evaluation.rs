//! Evaluation of one rule, within a deadline, on an engine per thread.
//!
//! The engine's interpreter is used, not its virtual machine: for conflicting rules the machine yields undefined where
//! Rego requires an error, so `not` in front of it would allow; of several values it takes one; and rules that depend
//! on each other overflow its stack.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use regorus::languages::rego::compiler::Compiler;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{CompiledPolicy, Engine, LimitError, Value};
use serde_json::Value as Json;

use super::{Error, Source, builtins, call_graph};
use crate::{clock, json, limits};

/// Start of the text of [`LimitError::TimeLimitExceeded`].
const TIME_LIMIT: &str = "execution exceeded time limit";

thread_local! {
    /// The engine of the last program on this thread, warm after its first decision. Only one is kept, so
    /// that the engines of replaced bundles are released.
    static WARM: RefCell<Option<(Arc<Engine>, Engine)>> = const { RefCell::new(None) };
}

/// Reason why an evaluation has no output.
#[derive(Debug)]
pub(super) enum EvaluationError {
    TimedOut,
    Undefined,
    /// Conflicting rules, a type error, or an error of a builtin.
    Failed(String),
}

/// A compiled rule and the bundle's data.
pub(super) struct Program {
    prepared: Arc<Engine>,
    entry_point: &'static str,
}

impl Program {
    /// Compiles the rule `entry_point`, for example `data.svc.exchange.decision`.
    pub(super) fn compile(sources: &[Source], entry_point: &'static str) -> Result<Self, Error> {
        let mut prepared = engine(sources, limits::POLICY_DECISION_TIMEOUT)?;
        call_graph::check(&mut prepared, sources)?;
        check(&mut prepared, entry_point)?;
        Ok(Self { prepared: Arc::new(prepared), entry_point })
    }

    /// Another rule of the same sources, on the same engine; `None` if there is no such rule.
    pub(super) fn with_entry_point(&self, entry_point: &'static str) -> Result<Option<Self>, Error> {
        let mut engine = Engine::clone(&self.prepared);
        let policy = compiled(&mut engine, self.entry_point)?;
        if !policy.get_rules().contains_key(entry_point) {
            return Ok(None);
        }
        check(&mut engine, entry_point)?;
        Ok(Some(Self { prepared: Arc::clone(&self.prepared), entry_point }))
    }

    /// Evaluates the rule for `input`.
    pub(super) fn evaluate(&self, input: Json) -> Result<Json, EvaluationError> {
        let input = value_of_json(input);
        despite_starvation(clock::thread_cpu, || self.attempt(input.clone()))
    }

    fn attempt(&self, input: Value) -> Result<Json, EvaluationError> {
        let mut engine = match WARM.take() {
            Some((origin, engine)) if Arc::ptr_eq(&origin, &self.prepared) => engine,
            _ => Engine::clone(&self.prepared),
        };
        engine.set_input(input);
        let output = value_of(&mut engine, self.entry_point);
        // An engine that stopped in the middle is not reused.
        if matches!(output, Ok(_) | Err(EvaluationError::Undefined)) {
            WARM.set(Some((Arc::clone(&self.prepared), engine)));
        }
        output
    }
}

/// Repeats an evaluation that timed out without the processor: the engine's deadline is by the wall clock, and a busy machine
/// may not run the thread for as long. `cpu` is the processor time of the thread.
fn despite_starvation<T>(
    cpu: impl Fn() -> Duration,
    attempt: impl Fn() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    let began = cpu();
    for _ in 1..limits::POLICY_DECISION_ATTEMPTS_MAX {
        match attempt() {
            Err(EvaluationError::TimedOut)
                if cpu().saturating_sub(began) < limits::POLICY_DECISION_TIMEOUT / 2 => {}
            outcome => return outcome,
        }
    }
    attempt()
}

fn compiled(engine: &mut Engine, entry_point: &'static str) -> Result<CompiledPolicy, Error> {
    let policy = engine.compile_with_entrypoint(&entry_point.into());
    policy.map_err(|error| Error::DoesNotCompile { rule: error.to_string() })
}

fn check(engine: &mut Engine, entry_point: &'static str) -> Result<(), Error> {
    let refused = |rule: String| Error::DoesNotCompile { rule };
    let policy = compiled(engine, entry_point)?;
    // The compiler of the virtual machine reports errors that the interpreter reports only when it evaluates the rule:
    // unknown names, rules hidden by data.
    let compiled =
        Compiler::compile_from_policy(&policy, &[entry_point]).map_err(|error| refused(error.to_string()))?;
    compiled.check_rule_data_conflicts(&engine.get_data()).map_err(|error| refused(error.to_string()))?;
    match compiled.builtin_info_table.iter().find(|b| !builtins::is_allowed(&b.name)) {
        Some(builtin) => Err(refused(format!("{} may not be called", builtin.name))),
        None => Ok(()),
    }
}

/// An engine with all policies and data of the sources; `deadline` applies to each evaluation.
pub(super) fn engine(sources: &[Source], deadline: Duration) -> Result<Engine, Error> {
    let mut engine = Engine::new();
    let check_interval = NonZeroU32::new(limits::POLICY_STEPS_PER_TICK).unwrap_or(NonZeroU32::MIN);
    engine.set_execution_timer_config(ExecutionTimerConfig { limit: deadline, check_interval });
    for Source { path, text } in sources {
        if super::is_policy(path) {
            engine
                .add_policy(path.clone(), text.clone())
                .map_err(|error| Error::Syntax { path: path.clone(), rule: error.to_string() })?;
        } else {
            let refused = |rule: String| Error::Data { path: path.clone(), rule };
            let data = json::parse(text.as_bytes()).map_err(|error| refused(error.to_string()))?;
            if !data.is_object() {
                return Err(refused("data must be a JSON object".to_owned()));
            }
            engine.add_data(value_of_json(data)).map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(engine)
}

/// The engine's value of a JSON value. The engine's own conversion takes an object whose first member is
/// `$serde_json::private::Number` for a number of any size, and all of the input for undefined if it is none.
pub(super) fn value_of_json(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::from(value),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => number.as_f64().map_or(Value::Undefined, Value::from),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from(items.into_iter().map(value_of_json).collect::<Vec<_>>()),
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (Value::from(name), value_of_json(value)));
            Value::from(fields.collect::<BTreeMap<_, _>>())
        }
    }
}

/// Evaluates one rule; sets become arrays.
pub(super) fn value_of(engine: &mut Engine, rule: &str) -> Result<Json, EvaluationError> {
    let value =
        engine.eval_rule(rule.to_owned()).map_err(|error| match error.downcast_ref::<LimitError>() {
            Some(LimitError::TimeLimitExceeded { .. }) => EvaluationError::TimedOut,
            // The engine passes on an error inside a function as text.
            _ if error.to_string().contains(TIME_LIMIT) => EvaluationError::TimedOut,
            _ => EvaluationError::Failed(error.to_string()),
        })?;
    match value {
        Value::Undefined => Err(EvaluationError::Undefined),
        value => serde_json::to_value(&value).map_err(|error| EvaluationError::Failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use regorus::rvm::RegoVM;

    use super::*;

    /// The number of attempts that time out, each with this processor time, and whether the last one did.
    fn attempts(cpu_each: Duration, timing_out: u32) -> (u32, bool) {
        let made = Cell::new(0);
        let outcome = despite_starvation(
            || cpu_each * made.get(),
            || {
                made.set(made.get() + 1);
                if made.get() > timing_out { Ok(()) } else { Err(EvaluationError::TimedOut) }
            },
        );
        (made.get(), outcome.is_err())
    }

    const ENTRY_POINT: &str = "data.svc.exchange.decision";

    /// The rule on the interpreter, which decides, and on the virtual machine of the same crate.
    fn on_both(rules: &str) -> (Result<Value, String>, Result<Value, String>) {
        let text = format!("package svc.exchange\n\nimport rego.v1\n\n{rules}\n");
        let sources = [Source { path: "exchange.rego".to_owned(), text }];
        let mut engine = engine(&sources, limits::POLICY_DECISION_TIMEOUT).expect("parses");
        let policy = compiled(&mut engine, ENTRY_POINT).expect("compiles");
        let interpreted = engine.eval_rule(ENTRY_POINT.to_owned()).map_err(|error| error.to_string());
        let mut machine = RegoVM::new();
        machine.load_program(Compiler::compile_from_policy(&policy, &[ENTRY_POINT]).expect("compiles"));
        machine.set_data(engine.get_data()).expect("data");
        (interpreted, machine.execute().map_err(|error| error.to_string()))
    }

    /// The reasons of docs/decisions/2026-11-20-policy-interpreter-not-vm.md. A version of the virtual machine for which
    /// this fails may have fixed a defect; the decision can then be reconsidered.
    #[test]
    fn virtual_machine_decides_some_policies_wrongly() {
        let (interpreted, by_machine) = on_both(
            "row(id) := found if {\n\tfound := {\"a\": 1}[id]\n} else := 7\n\ndecision := row(\"b\")",
        );
        assert_eq!(interpreted, Ok(Value::from(7_i64)), "the else branch");
        assert_eq!(by_machine, Ok(Value::Undefined), "without the else branch");

        let (interpreted, by_machine) =
            on_both("a := 1 if true\n\na := 2 if true\n\ndecision := \"open\" if not a");
        assert!(interpreted.is_err(), "two values of a rule are an error: {interpreted:?}");
        assert_eq!(by_machine, Ok(Value::from("open")), "an error after `not` allows");
    }

    #[test]
    fn only_a_decision_without_the_processor_is_repeated() {
        let whole = limits::POLICY_DECISION_TIMEOUT;
        assert_eq!(attempts(whole, 0), (1, false));
        assert_eq!(attempts(whole, 1), (1, true), "a slow policy");
        assert_eq!(attempts(Duration::ZERO, 1), (2, false), "a busy machine");
        assert_eq!(attempts(Duration::ZERO, u32::MAX), (limits::POLICY_DECISION_ATTEMPTS_MAX, true));
        assert_eq!(attempts(whole * 2 / 5, u32::MAX), (2, true), "the attempts together");
    }
}
