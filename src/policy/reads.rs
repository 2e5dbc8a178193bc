//! The fields of `input.request` that a bundle reads. Others take no part in a decision of an exchange, so
//! that requests which differ in them share a cached decision.
//!
//! In doubt a field counts as read: `input` or `input.request` as a whole, or below an index, reads
//! everything. `with`, which could set another input, is refused outside tests.

use std::collections::BTreeSet;

use regorus::unstable::TokenKind;

use super::lexer::{self, Lexeme};
use super::{Error, Source, policies};

/// Fields of `input.request`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestReads {
    All,
    Only(BTreeSet<String>),
}

impl RequestReads {
    /// Those of the policy files among `sources`.
    pub(super) fn of(sources: &[Source]) -> Result<Self, Error> {
        let mut members = BTreeSet::new();
        for source in policies(sources) {
            let lexemes = lexer::of(source)?;
            for at in 0..lexemes.len() {
                let Some((input, after)) = lexemes.get(at..).and_then(<[Lexeme]>::split_first) else { break };
                let is_field = at.checked_sub(1).and_then(|before| lexemes.get(before));
                let is_name = input.kind == TokenKind::Ident && input.text == "input";
                if !is_name || is_field.is_some_and(|before| before.is_symbol(".")) {
                    continue;
                }
                match (member(after), member(after.get(2..).unwrap_or_default())) {
                    (Some("request"), Some(name)) => {
                        members.insert(name.to_owned());
                    }
                    (None, _) | (Some("request"), None) => return Ok(Self::All),
                    _ => {}
                }
            }
        }
        Ok(Self::Only(members))
    }

    pub(super) fn contains(&self, member: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(members) => members.contains(member),
        }
    }
}

/// The name after a dot.
fn member(after: &[Lexeme]) -> Option<&str> {
    match after {
        [dot, name, ..] if dot.is_symbol(".") && name.kind == TokenKind::Ident => Some(&name.text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> RequestReads {
        let text = format!("package svc.exchange\n\n{text}\n");
        RequestReads::of(&[Source { path: "exchange.rego".to_owned(), text }]).expect("lexemes")
    }

    fn only(members: &[&str]) -> RequestReads {
        RequestReads::Only(members.iter().map(|member| (*member).to_owned()).collect())
    }

    #[test]
    fn named_fields_are_read() {
        for (text, members) in [
            ("x := input.request.audience", &["audience"][..]),
            ("x := input.request.scope[_]\ny if input.request.execution", &["execution", "scope"]),
            ("x := f(input.request.htu)", &["htu"]),
            ("x := input\n\t.request\n\t.htm", &["htm"]),
            ("import input.request.scope\nx := scope", &["scope"]),
            ("x := row(input.subject)\ny := input.actor.id", &[]),
            ("# input.request\nx := \"input\"", &[]),
            ("x := data.input.request", &[]),
        ] {
            assert_eq!(of(text), only(members), "{text}");
        }
    }

    /// Otherwise each new scope or action of a caller would cost an evaluation.
    #[test]
    fn shipped_policy_does_not_read_scope_or_action() {
        let shipped = ["exchange.rego", "identity.rego", "signals.rego"].map(|name| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").join(name);
            Source { path: name.to_owned(), text: std::fs::read_to_string(path).expect("shipped policy") }
        });
        let reads = RequestReads::of(&shipped).expect("lexemes");
        let members = ["audience", "execution", "scope", "htm", "htu"].map(|member| reads.contains(member));
        assert_eq!(members, [true, true, false, false, false]);
    }

    #[test]
    fn everything_is_read_if_the_field_is_not_named() {
        for text in [
            "x := input",
            "x := f(input)",
            "x := input[\"request\"].scope",
            "x := input[name].scope",
            "x := input.request",
            "x := f(input.request)",
            "x := input.request[name]",
            "x := input.request[\"scope\"]",
            "import input\nx := input.request.scope",
            "import input as asked\nx := asked.request.scope",
            "import input.request as asked\nx := asked.scope",
            "x := object.get(input, [\"request\", \"scope\"], [])",
            "x if walk(input, [path, value])",
        ] {
            assert_eq!(of(text), RequestReads::All, "{text}");
        }
    }
}
