//! Output of the demo: headings, commands, JSON with remarks; colour is optional.

use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde_json::Value;

const REMARK_COLUMN: usize = 46;
/// Bytes shown of a token.
const TOKEN_SHOWN_BYTES: usize = 24;

/// Writes numbered steps.
pub(super) struct DemoOutput<'o> {
    out: &'o mut (dyn Write + Send),
    colour: bool,
    steps: usize,
}

impl<'o> DemoOutput<'o> {
    pub(super) fn new(out: &'o mut (dyn Write + Send), colour: bool) -> Self {
        Self { out, colour, steps: 0 }
    }

    /// A numbered heading and its explanation.
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

    /// A command to paste into a shell.
    pub(super) fn command(&mut self, command: &str) -> io::Result<()> {
        for line in command.lines() {
            let line = self.styled(AnsiColor::Cyan.on_default(), line);
            writeln!(self.out, "  {line}")?;
        }
        Ok(())
    }

    /// A check that passed.
    pub(super) fn good(&mut self, text: &str) -> io::Result<()> {
        let mark = self.styled(AnsiColor::Green.on_default(), "ok");
        writeln!(self.out, "  {mark}  {text}")
    }

    /// Fields of an object: those with a remark first, in the order of the remarks.
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

/// A value as JSON; a token is truncated.
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

    fn written(colour: bool, write: impl FnOnce(&mut DemoOutput<'_>) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        write(&mut DemoOutput::new(&mut text, colour)).expect("written");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn fields_with_remarks_come_first_in_their_order() {
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
    fn token_is_truncated() {
        let token = format!("eyJ{}", "x".repeat(500));
        let text = written(false, |page| page.object(&json!({"access_token": token}), &[]));
        assert!(!text.contains(&token) && text.contains("(503 bytes)"), "{text}");
    }

    #[test]
    fn colour_is_optional() {
        let write = |page: &mut DemoOutput<'_>| {
            page.step("heading", "explanation")?;
            page.command("command")?;
            page.good("good")
        };
        assert!(written(true, write).contains('\u{1b}'));
        assert!(!written(false, write).contains('\u{1b}'));
    }
}
