//! Refuses policies whose rules could overflow the stack, which the engine does not limit.
//!
//! A recursive function, or a chain of thousands of rules, would end the process. Names are compared without their
//! packages, so the check is conservative. Cyclic rules are refused by the engine.

use std::collections::{BTreeMap, BTreeSet};

use regorus::Engine;
use regorus::unstable::{Rule, RuleHead, TokenKind};

use super::lexer;
use super::lexer::Lexeme;
use super::{Error, Source, policies};
use crate::limits;

/// The definitions of one bare name.
#[derive(Default)]
struct Node {
    /// Names of rules and functions in it.
    uses: BTreeSet<String>,
    /// Names of functions called in it; empty for a rule that is not a function.
    calls: BTreeSet<String>,
}

/// Checks the policy files of a decision, which `engine` has parsed.
pub(super) fn check(engine: &mut Engine, sources: &[Source]) -> Result<(), Error> {
    let mut graph: BTreeMap<String, Node> = BTreeMap::new();
    for source in policies(sources) {
        let lexemes = lexer::of(source)?;
        refuse_with(source, &lexemes)?;
        let imported = imports(&lexemes);
        let of_file = engine.get_modules().iter().flat_map(|module| &module.policy);
        for rule in of_file.filter(|rule| rule.span().source.get_path() == &source.path) {
            let Rule::Spec { span, head, .. } = rule.as_ref() else { continue };
            let node = graph.entry(bare_name(head)).or_default();
            // Lexemes are in text order.
            let first = lexemes.partition_point(|lexeme| lexeme.start < span.start);
            let past = lexemes.partition_point(|lexeme| lexeme.start < span.end);
            for at in first..past {
                let (before, after) = lexemes.split_at(at.saturating_add(1));
                let Some(lexeme) = before.last().filter(|lexeme| lexeme.kind == TokenKind::Ident) else {
                    continue;
                };
                // Any name before a parenthesis, whatever qualifies it.
                let is_called =
                    lexeme.start >= head_end(head) && after.first().is_some_and(|next| next.is_symbol("("));
                if !is_called && !is_reference(before, &imported) {
                    continue;
                }
                let names =
                    || [Some(&lexeme.text), imported.get(&lexeme.text)].into_iter().flatten().cloned();
                node.uses.extend(names());
                if is_called && matches!(head, RuleHead::Func { .. }) {
                    node.calls.extend(names());
                }
            }
        }
    }
    refuse_depth(&graph)?;
    refuse_recursion(&graph)
}

/// `with` can replace a function by another, which this check could not follow.
fn refuse_with(source: &Source, lexemes: &[Lexeme]) -> Result<(), Error> {
    let found = lexemes.iter().find(|lexeme| lexeme.kind == TokenKind::Ident && lexeme.text == "with");
    match found {
        Some(lexeme) => Err(Error::WithOutsideTest { path: source.path.clone(), line: lexeme.line }),
        None => Ok(()),
    }
}

/// The name of every `import` in the file, and the last name of the package or rule to which it refers.
fn imports(lexemes: &[Lexeme]) -> BTreeMap<String, String> {
    let mut imported = BTreeMap::from([("data".to_owned(), "data".to_owned())]);
    let of_import =
        lexemes.split(|lexeme| lexeme.kind == TokenKind::Ident && lexeme.text == "import").skip(1);
    for after in of_import {
        let (mut target, mut is_path) = ("", true);
        let mut rest = after.iter();
        let mut next = rest.next();
        while let Some(lexeme) = next {
            match lexeme.kind {
                TokenKind::Ident if is_path => (target, is_path) = (lexeme.text.as_str(), false),
                _ if lexeme.is_string() => (target, is_path) = (lexeme.text.as_str(), false),
                _ if lexeme.is_symbol(".") => is_path = true,
                _ if lexeme.is_symbol("[") || lexeme.is_symbol("]") => {}
                _ => break,
            }
            next = rest.next();
        }
        let alias = next.filter(|lexeme| lexeme.text == "as").and_then(|_| rest.next());
        let name = alias.map_or(target, |alias| alias.text.as_str());
        imported.insert(name.to_owned(), target.to_owned());
    }
    imported
}

/// Whether the name that ends `before` can refer to a rule: alone, or qualified by a package. In `input.actor` or
/// `row(x).actor` it is a field.
fn is_reference(before: &[Lexeme], imported: &BTreeMap<String, String>) -> bool {
    let name = lexer::dotted_name(before);
    match name.as_slice() {
        [] => false,
        [_] => !before.iter().nth_back(1).is_some_and(|lexeme| lexeme.is_symbol(".")),
        [root, ..] => imported.contains_key(*root),
    }
}

fn bare_name(head: &RuleHead) -> String {
    let (RuleHead::Compr { refr, .. } | RuleHead::Set { refr, .. } | RuleHead::Func { refr, .. }) = head;
    let text = refr.span().text();
    let path = text.split(['[', '(']).next().unwrap_or(text);
    path.rsplit('.').next().unwrap_or(path).trim().to_owned()
}

fn head_end(head: &RuleHead) -> u32 {
    let (RuleHead::Compr { refr, .. } | RuleHead::Set { refr, .. } | RuleHead::Func { refr, .. }) = head;
    refr.span().end
}

fn refuse_recursion(graph: &BTreeMap<String, Node>) -> Result<(), Error> {
    for name in graph.keys() {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&String> = graph.get(name).into_iter().flat_map(|node| &node.calls).collect();
        while let Some(callee) = next.pop() {
            if callee == name {
                return Err(Error::Recursion { name: name.clone() });
            }
            if reached.insert(callee) {
                next.extend(graph.get(callee).into_iter().flat_map(|node| &node.calls));
            }
        }
    }
    Ok(())
}

fn refuse_depth(graph: &BTreeMap<String, Node>) -> Result<(), Error> {
    let mut depths = BTreeMap::new();
    for name in graph.keys() {
        depth(graph, name, &mut Vec::new(), &mut depths)?;
    }
    Ok(())
}

/// The longest chain from `name`. The recursion ends at the limit that it checks.
fn depth<'a>(
    graph: &'a BTreeMap<String, Node>,
    name: &'a str,
    chain: &mut Vec<&'a str>,
    depths: &mut BTreeMap<&'a str, usize>,
) -> Result<usize, Error> {
    let too_deep = || Error::TooDeep { name: chain.first().copied().unwrap_or(name).to_owned() };
    if let Some(depth) = depths.get(name) {
        let total = chain.len().saturating_add(*depth);
        return if total > limits::POLICY_CALL_DEPTH_MAX { Err(too_deep()) } else { Ok(*depth) };
    }
    if chain.len() >= limits::POLICY_CALL_DEPTH_MAX {
        return Err(too_deep());
    }
    chain.push(name);
    let mut deepest = 0;
    for used in graph.get(name).into_iter().flat_map(|node| &node.uses) {
        if graph.contains_key(used) && !chain.contains(&used.as_str()) {
            deepest = deepest.max(depth(graph, used, chain, depths)?);
        }
    }
    chain.pop();
    let depth = deepest.saturating_add(1);
    depths.insert(name, depth);
    Ok(depth)
}
