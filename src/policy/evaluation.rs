//! One rule that answers, and how it is evaluated: within a deadline, on an engine per thread.
//!
//! The engine's interpreter decides, not its virtual machine: for two rules that contradict each
//! other the machine answers undefined where Rego demands an error, so `not` in front of it would
//! permit; of several values it takes one; and rules that depend on each other overflow its stack.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use regorus::languages::rego::compiler::Compiler;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{CompiledPolicy, Engine, LimitError, Value};
use serde_json::Value as Json;

use super::{Error, Source, builtins, call_graph};
use crate::{json, limits};

thread_local! {
    /// The engine of the program that this thread evaluated last, warm after its first decision.
    /// Keeping only the newest lets a replaced bundle go.
    static WARM: RefCell<Option<(Arc<Engine>, Engine)>> = const { RefCell::new(None) };
}

/// Why an evaluation has no answer.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The deadline.
    TimedOut,
    /// No rule applies.
    Undefined,
    /// Rules that contradict each other, a type error, a builtin's error.
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
        let mut prepared = engine(sources, limits::POLICY_DECISION_DEADLINE)?;
        call_graph::check(&mut prepared, sources)?;
        check(&mut prepared, entry_point)?;
        Ok(Self { prepared: Arc::new(prepared), entry_point })
    }

    /// Another rule of the same sources; `None` if they have none of this name. Both are evaluated on
    /// the same engine.
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
    pub(super) fn evaluate(&self, input: Json) -> Result<Json, Stopped> {
        let mut engine = match WARM.take() {
            Some((origin, engine)) if Arc::ptr_eq(&origin, &self.prepared) => engine,
            _ => Engine::clone(&self.prepared),
        };
        engine.set_input(Value::from(input));
        let answer = value_of(&mut engine, self.entry_point);
        // An engine that stopped half-way is not used again.
        if matches!(answer, Ok(_) | Err(Stopped::Undefined)) {
            WARM.set(Some((Arc::clone(&self.prepared), engine)));
        }
        answer
    }
}

fn compiled(engine: &mut Engine, entry_point: &'static str) -> Result<CompiledPolicy, Error> {
    let policy = engine.compile_with_entrypoint(&entry_point.into());
    policy.map_err(|error| Error::DoesNotCompile { rule: error.to_string() })
}

fn check(engine: &mut Engine, entry_point: &'static str) -> Result<(), Error> {
    let refused = |rule: String| Error::DoesNotCompile { rule };
    let policy = compiled(engine, entry_point)?;
    // The compiler for the virtual machine finds what the interpreter would find only when it
    // gets there: names that mean nothing, rules hidden by data.
    let compiled =
        Compiler::compile_from_policy(&policy, &[entry_point]).map_err(|error| refused(error.to_string()))?;
    compiled.check_rule_data_conflicts(&engine.get_data()).map_err(|error| refused(error.to_string()))?;
    match compiled.builtin_info_table.iter().find(|b| !builtins::is_allowed(&b.name)) {
        Some(builtin) => Err(refused(format!("{} may not be called", builtin.name))),
        None => Ok(()),
    }
}

/// An engine with all policies and data of the sources; `deadline` holds for each evaluation.
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
            engine.add_data(Value::from(data)).map_err(|error| refused(error.to_string()))?;
        }
    }
    Ok(engine)
}

/// Evaluates one rule. Sets become arrays.
pub(super) fn value_of(engine: &mut Engine, rule: &str) -> Result<Json, Stopped> {
    let value =
        engine.eval_rule(rule.to_owned()).map_err(|error| match error.downcast_ref::<LimitError>() {
            Some(LimitError::TimeLimitExceeded { .. }) => Stopped::TimedOut,
            _ => Stopped::Failed(error.to_string()),
        })?;
    match value {
        Value::Undefined => Err(Stopped::Undefined),
        value => serde_json::to_value(&value).map_err(|error| Stopped::Failed(error.to_string())),
    }
}
