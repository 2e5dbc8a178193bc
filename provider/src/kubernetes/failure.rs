//! The map from a failed request to the API server to a message for the user.

use serde_json::Value as Json;

use super::api::Error;
use crate::diagnostic::Diagnostic;
use crate::resource::{Operation, Resource};
use crate::resources::fabric::MANAGER;

/// The message of a failed operation on a resource.
#[must_use]
pub fn diagnostic(resource: &dyn Resource, operation: Operation, error: &Error) -> Diagnostic {
    let (verb, noun) = (operation.verb(), resource.noun());
    let failed = format!("Failed to {verb} the {noun}");
    let Error::Refused { code, reason, message, details } = error else {
        let summary = match error {
            Error::NotReached(_) => format!("The {noun} has not reached the phase"),
            _ => failed,
        };
        return Diagnostic::error(summary, text(error.to_string(), advice_without_status(error)));
    };
    let causes: Vec<&Json> = details["causes"].as_array().into_iter().flatten().collect();
    let is_conflict = |cause: &&&Json| cause["reason"] == "FieldManagerConflict";
    let conflicts: Vec<&Json> = causes.iter().filter(is_conflict).copied().collect();
    if !conflicts.is_empty() {
        return conflict(&conflicts);
    }
    let summary = format!("Kubernetes refused to {verb} the {noun}");
    let detail = text(format!("{message}\n\nStatus {code} ({reason})."), advice(*code));
    let message = Diagnostic::error(summary, detail);
    if matches!(code, 400 | 422) { message.at("spec") } else { message }
}

/// Fields that another manager owns, with both managers.
fn conflict(conflicts: &[&Json]) -> Diagnostic {
    let line = |conflict: &&Json| {
        let part = |key: &str| conflict[key].as_str().unwrap_or_default();
        let other = part("message").trim_start_matches("conflict with ");
        let field = part("field").trim_start_matches('.');
        format!("{field}: owned by {other}; {MANAGER} states another value.")
    };
    let lines: Vec<String> = conflicts.iter().map(line).collect();
    let detail = text(
        lines.join("\n"),
        "Leave the field to its manager and out of this configuration, or take it over with force_conflicts = true.",
    );
    let is_metadata =
        |conflict: &&Json| conflict["field"].as_str().is_some_and(|at| at.starts_with(".metadata"));
    let attribute = if conflicts.iter().all(is_metadata) { "labels" } else { "spec" };
    Diagnostic::error("Another manager owns fields of the fabric", detail).at(attribute)
}

fn text(message: String, advice: &str) -> String {
    if advice.is_empty() { message } else { format!("{message}\n\n{advice}") }
}

fn advice(code: u16) -> &'static str {
    match code {
        401 => "The API server does not accept the credential of the provider; it may have expired.",
        403 => {
            "The user needs the verbs get, patch and delete on the resource fabrics of the group fabric.svc."
        }
        404 => "The namespace must exist: this provider does not create it.",
        409 => "The object was deleted or changed outside of Terraform since it was read; run plan again.",
        422 => {
            "A rule of the definition is broken; the chart trust-fabric-crds that is installed may be of another version."
        }
        _ => "",
    }
}

fn advice_without_status(error: &Error) -> &'static str {
    match error {
        Error::NotServed => {
            "There is no kind Fabric in fabric.svc/v1alpha1: install the chart trust-fabric-crds first, or the version of \
             it that has this version of the kind."
        }
        Error::Connection { reason, .. } if reason.contains("certificate") => {
            "The certificate of the API server is not trusted: the CA must be the one that issued it."
        }
        Error::Connection { .. } => "Is this the address of the API server, and can it be reached from here?",
        Error::Foreign { .. } => "Another program listens there, or a proxy answers in its place.",
        Error::OutOfTime { last, .. } => advice_without_status(last),
        _ => "",
    }
}
