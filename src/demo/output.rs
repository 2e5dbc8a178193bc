//! What the reader sees: headings, commands, JSON with remarks. Text only; colour if it is wanted.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde_json::Value;

/// Where remarks begin.
const REMARK_COLUMN: usize = 46;
/// How much of a token is shown where the whole of it says nothing.
const TOKEN_SHOWN_BYTES: usize = 24;

/// Numbers headings and writes to an open page.
pub(super) struct Page<'o> {
    out: &'o mut (dyn Write + Send),
    colour: bool,
    steps: usize,
}

impl<'o> Page<'o> {
    pub(super) fn new(out: &'o mut (dyn Write + Send), colour: bool) -> Self {
        Self { out, colour, steps: 0 }
    }

    /// A numbered heading and what it is about.
    pub(super) fn step(&mut self, heading: &str, explanation: &str) -> io::Result<()> {
        self.steps += 1;
        self.heading(&format!("{}. {heading}", self.steps))?;
        self.line(explanation)
    }

    pub(super) fn heading(&mut self, heading: &str) -> io::Result<()> {
        let heading = self.styled(Style::new().bold(), heading);
        writeln!(self.out, "\n{heading}")
    }

    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Something to paste into a shell.
    pub(super) fn command(&mut self, command: &str) -> io::Result<()> {
        for line in command.lines() {
            let line = self.styled(AnsiColor::Cyan.on_default(), line);
            writeln!(self.out, "  {line}")?;
        }
        Ok(())
    }

    /// Something that was checked and found good.
    pub(super) fn good(&mut self, text: &str) -> io::Result<()> {
        let mark = self.styled(AnsiColor::Green.on_default(), "ok");
        writeln!(self.out, "  {mark}  {text}")
    }

    /// The members of an object: those with a remark first, in the order of the remarks.
    pub(super) fn object(&mut self, object: &Value, remarks: &[(&str, &str)]) -> io::Result<()> {
        let Some(members) = object.as_object() else { return self.line(&format!("  {object}")) };
        let remarked =
            remarks.iter().filter_map(|(name, remark)| Some((*name, members.get(*name)?, *remark)));
        let others = members
            .iter()
            .filter(|(name, _)| !remarks.iter().any(|(known, _)| known == name))
            .map(|(name, value)| (name.as_str(), value, ""));
        for (name, value, remark) in remarked.chain(others) {
            let member = format!("{name}: {}", shortened(value));
            if remark.is_empty() {
                writeln!(self.out, "  {member}")?;
                continue;
            }
            let remark = self.styled(Style::new().dimmed(), &format!("# {remark}"));
            if member.len() < REMARK_COLUMN {
                writeln!(self.out, "  {member:REMARK_COLUMN$}{remark}")?;
            } else {
                writeln!(self.out, "  {member}\n  {:REMARK_COLUMN$}{remark}", "")?;
            }
        }
        Ok(())
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// A value as JSON; a token by its beginning and its length.
fn shortened(value: &Value) -> String {
    match value.as_str() {
        Some(text) if text.starts_with("eyJ") && text.len() > TOKEN_SHOWN_BYTES => {
            let beginning: String = text.chars().take(TOKEN_SHOWN_BYTES).collect();
            format!("\"{beginning}…\" ({} bytes)", text.len())
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(colour: bool, write: impl FnOnce(&mut Page<'_>) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        write(&mut Page::new(&mut text, colour)).expect("written");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn members_with_remarks_come_first_in_their_order() {
        let text = written(false, |page| {
            page.object(
                &json!({"a": 1, "b": [2], "c": "3"}),
                &[("c", "third"), ("b", "second"), ("x", "none")],
            )
        });
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["c: \"3\" # third", "b: [2] # second", "a: 1"]);
    }

    #[test]
    fn a_token_is_not_shown_whole() {
        let token = format!("eyJ{}", "x".repeat(500));
        let text = written(false, |page| page.object(&json!({"access_token": token}), &[]));
        assert!(!text.contains(&token) && text.contains("(503 bytes)"), "{text}");
    }

    #[test]
    fn colour_is_written_only_when_it_is_wanted() {
        let write = |page: &mut Page<'_>| {
            page.step("heading", "explanation")?;
            page.command("command")?;
            page.good("good")
        };
        assert!(written(true, write).contains('\u{1b}'));
        assert!(!written(false, write).contains('\u{1b}'));
    }
}
