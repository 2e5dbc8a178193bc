//! A check of a tool call, as responses state it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::text::values;
use crate::tools::checks::{Check, CheckOutcome};

/// One check.
#[derive(Debug, Serialize, ToSchema)]
pub struct CheckResult {
    /// Its name.
    #[schema(value_type = values::Check)]
    check: &'static str,
    /// The outcome; `fail` only for the last check of a refusal.
    #[schema(value_type = values::CheckOutcome)]
    result: &'static str,
}

impl CheckResult {
    pub fn of((check, outcome): (Check, CheckOutcome)) -> Self {
        Self { check: check.into_str(), result: outcome.into_str() }
    }

    pub fn failed(check: Check) -> Self {
        Self { check: check.into_str(), result: "fail" }
    }
}
