//! The single changes of an input that would turn a denial into an allow, found by trying them: for people, not for
//! requests.
//!
//! A change sets one field to a constant of the bundle, flips it, or leaves it out; a list gains or loses one
//! element. Fields of the request come first, because its sender can change them.

use std::collections::BTreeSet;

use regorus::unstable::TokenKind;
use serde::Serialize;
use serde_json::Value as Json;

use super::{Source, evaluation, is_policy, lexer};
use crate::{json, limits};

/// A change of one field of the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The path of the field, for example `request.audience`.
    pub member: String,
    #[serde(flatten)]
    pub edit: Edit,
}

/// The change of the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// It has this value.
    Set(Json),
    /// This element is added to the list.
    Add(Json),
    /// The list lacks this element, or the input lacks the field with this value.
    Remove(Json),
}

/// A change, and the input with it.
struct Candidate {
    change: Change,
    input: Json,
}

/// The first changes that the rule `entry_point` allows, at most [`limits::POLICY_CHANGES_SHOWN_MAX`].
pub(super) fn allowing_changes(sources: &[Source], entry_point: &str, input: &Json) -> Vec<Change> {
    let Ok(mut engine) = evaluation::engine(sources, limits::POLICY_CHANGE_TIMEOUT) else {
        return Vec::new();
    };
    let mut allows = |input: Json| {
        engine.set_input(evaluation::value_of_json(input));
        let output = evaluation::value_of(&mut engine, entry_point);
        output.is_ok_and(|output| output.get("allow") == Some(&Json::Bool(true)))
    };
    candidates(input, &constants(sources))
        .take(limits::POLICY_CHANGES_TRIED_MAX)
        .filter_map(|candidate| allows(candidate.input).then_some(candidate.change))
        .take(limits::POLICY_CHANGES_SHOWN_MAX)
        .collect()
}

/// The texts that the files state: names and values of the data, and string literals of the rules.
fn constants(sources: &[Source]) -> BTreeSet<String> {
    let mut constants = BTreeSet::new();
    for source in sources {
        if is_policy(&source.path) {
            let lexemes = lexer::of(source).unwrap_or_default();
            let literals = lexemes.iter().filter(|lexeme| lexeme.kind == TokenKind::String);
            constants.extend(literals.map(|literal| literal.text.clone()));
        } else if let Ok(data) = json::parse(source.text.as_bytes()) {
            collect(&data, &mut constants);
        }
    }
    constants
}

fn collect(data: &Json, constants: &mut BTreeSet<String>) {
    match data {
        Json::String(text) => drop(constants.insert(text.clone())),
        Json::Array(elements) => elements.iter().for_each(|element| collect(element, constants)),
        Json::Object(members) => {
            for (name, value) in members {
                constants.insert(name.clone());
                collect(value, constants);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Every single change, of the request first.
fn candidates<'i>(
    input: &'i Json,
    constants: &'i BTreeSet<String>,
) -> impl Iterator<Item = Candidate> + use<'i> {
    let mut pointers = Vec::new();
    members(input, &mut Vec::new(), &mut pointers);
    // A stable sort: otherwise the order of the fields.
    pointers.sort_by_key(|pointer| pointer.first().is_none_or(|first| first != "request"));
    pointers.into_iter().flat_map(move |pointer| {
        edits(value_at(input, &pointer), constants).into_iter().filter_map(move |edit| {
            let input = edited(input, &pointer, &edit)?;
            Some(Candidate { change: Change { member: pointer.join("."), edit }, input })
        })
    })
}

/// The paths of all fields, outer ones first.
fn members(value: &Json, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (name, member) in value.as_object().into_iter().flatten() {
        path.push(name.clone());
        found.push(path.clone());
        members(member, path, found);
        path.pop();
    }
}

fn value_at<'i>(input: &'i Json, path: &[String]) -> &'i Json {
    path.iter().fold(input, |value, name| value.get(name).unwrap_or(&Json::Null))
}

fn edits(value: &Json, constants: &BTreeSet<String>) -> Vec<Edit> {
    let texts = || constants.iter().map(|text| Json::String(text.clone()));
    let mut edits = vec![Edit::Remove(value.clone())];
    match value {
        Json::Bool(set) => edits.push(Edit::Set(Json::Bool(!set))),
        Json::Number(_) => edits.push(Edit::Set(Json::from(0))),
        Json::String(_) => edits.extend(texts().filter(|text| text != value).map(Edit::Set)),
        Json::Array(elements) => {
            edits.extend(elements.iter().cloned().map(Edit::Remove));
            edits.extend(texts().filter(|text| !elements.contains(text)).map(Edit::Add));
        }
        Json::Null | Json::Object(_) => {}
    }
    edits
}

/// The input with the change; `None` if it has no such field.
fn edited(input: &Json, path: &[String], edit: &Edit) -> Option<Json> {
    let mut input = input.clone();
    let (name, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(&mut input, |value, name| value.get_mut(name))?.as_object_mut()?;
    let member = parent.get_mut(name)?;
    match (edit, member.as_array_mut()) {
        (Edit::Set(value), _) => *member = value.clone(),
        (Edit::Add(element), Some(elements)) => elements.push(element.clone()),
        (Edit::Remove(element), Some(elements)) if elements.contains(element) => {
            elements.retain(|other| other != element);
        }
        (Edit::Remove(_), _) => drop(parent.remove(name)),
        (Edit::Add(_), None) => return None,
    }
    Some(input)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const POLICY: &str = r#"package svc.exchange

import rego.v1

default decision := {"allow": false, "reason": "no"}

decision := {"allow": true} if {
	input.request.audience in data.audiences
	every word in input.request.scope { word != "db.write" }
	not input.actor
}
"#;

    fn changes(input: &Json) -> Vec<Json> {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [
            source("exchange.rego", POLICY),
            source("data.json", r#"{"audiences": ["https://a", "https://b"]}"#),
        ];
        let found = allowing_changes(&sources, "data.svc.exchange.decision", input);
        found.iter().map(|change| serde_json::to_value(change).expect("JSON")).collect()
    }

    #[test]
    fn single_changes_that_allow_are_found() {
        let wrong_audience = json!({"request": {"audience": "https://c", "scope": ["db.read"]}});
        let expected =
            ["https://a", "https://b"].map(|url| json!({"member": "request.audience", "set": url}));
        assert_eq!(changes(&wrong_audience), expected);
        let wrong_scope = json!({"request": {"audience": "https://a", "scope": ["db.read", "db.write"]}});
        assert_eq!(changes(&wrong_scope), [json!({"member": "request.scope", "remove": "db.write"})]);
        let with_actor = json!({"actor": {"id": "a"}, "request": {"audience": "https://a", "scope": []}});
        assert_eq!(changes(&with_actor), [json!({"member": "actor", "remove": {"id": "a"}})]);
    }

    #[test]
    fn denial_for_two_reasons_has_no_single_change() {
        let both = json!({"actor": {"id": "a"}, "request": {"audience": "https://c", "scope": []}});
        assert_eq!(changes(&both), [] as [Json; 0]);
    }
}
