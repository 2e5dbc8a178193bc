//! Lexer for policy files, for the checks that must run before the parser.

use regorus::unstable::{Lexer, Source as Text, TokenKind};

use super::{Error, Source};

/// One lexeme and its position: line from 1, offsets in bytes.
pub(super) struct Lexeme {
    pub(super) kind: TokenKind,
    pub(super) text: String,
    pub(super) line: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Lexeme {
    pub(super) fn is_symbol(&self, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text == symbol
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self.kind, TokenKind::String | TokenKind::RawString)
    }
}

/// All lexemes of a policy file; comments are skipped.
pub(super) fn of(source: &Source) -> Result<Vec<Lexeme>, Error> {
    let syntax = |rule: String| Error::Syntax { path: source.path.clone(), rule };
    let text = Text::from_contents(source.path.clone(), source.text.clone())
        .map_err(|error| syntax(error.to_string()))?;
    let mut lexer = Lexer::new(&text);
    let mut lexemes = Vec::new();
    loop {
        let lexeme = lexer.next_token().map_err(|error| syntax(error.to_string()))?;
        if lexeme.0 == TokenKind::Eof {
            return Ok(lexemes);
        }
        let (kind, span) = (lexeme.0, lexeme.1);
        lexemes.push(Lexeme {
            kind,
            text: span.text().to_owned(),
            line: span.line,
            start: span.start,
            end: span.end,
        });
    }
}

/// The dotted name that ends `before`, first part first; empty if it does not end in a name.
pub(super) fn dotted_name(before: &[Lexeme]) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = before;
    while let Some((name, earlier)) = rest.split_last().filter(|(last, _)| last.kind == TokenKind::Ident) {
        names.push(name.text.as_str());
        match earlier.split_last() {
            Some((dot, earlier)) if dot.is_symbol(".") => rest = earlier,
            _ => break,
        }
    }
    names.reverse();
    names
}
