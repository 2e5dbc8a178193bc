//! Lists for people and for programs.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde_json::Value;

/// How a list is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns, for people.
    #[default]
    Table,
    /// The node's answer, for programs.
    Json,
}

/// The argument of every command that writes a list.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// How the list is written.
    #[arg(long = "output", short = 'o', value_enum, default_value_t)]
    pub format: Format,
}

/// Writes an array of objects; `columns` are headings and members.
pub(super) fn list(
    out: &mut dyn Write,
    output: Output,
    rows: &Value,
    columns: &[(&str, &str)],
) -> io::Result<()> {
    if output.format == Format::Json {
        return json(out, rows);
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    for row in rows.as_array().into_iter().flatten() {
        table.add_row(columns.iter().map(|(_, member)| cell(row.get(*member))));
    }
    writeln!(out, "{}", table.trim_fmt())
}

/// Writes a document, indented.
pub(super) fn json(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value:#}")
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => String::new(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(other) => printable(&other.to_string()),
    }
}

/// What came from elsewhere cannot move the cursor or colour the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(format: Format, rows: &Value) -> String {
        let mut text = Vec::new();
        list(
            &mut text,
            Output { format },
            rows,
            &[("kid", "kid"), ("signs", "signs"), ("retired", "retired_at")],
        )
        .expect("written");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_table_has_a_heading_and_a_line_for_each_row() {
        let text =
            written(Format::Table, &json!([{"kid": "a", "signs": true}, {"kid": "b", "retired_at": "t"}]));
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["kid signs retired", "a yes", "b t"]);
    }

    #[test]
    fn json_is_the_answer_itself() {
        let rows = json!([{"kid": "a", "other": [1]}]);
        assert_eq!(crate::json::parse(written(Format::Json, &rows).as_bytes()), Ok(rows));
    }

    #[test]
    fn a_row_cannot_write_to_the_terminal_by_itself() {
        for kid in [json!("\u{1b}[2J\nx"), json!({"format": "\u{9b}2J\nx"})] {
            let text = written(Format::Table, &json!([{"kid": kid}]));
            let is_plain = text.chars().all(|c| c == '\n' || !c.is_control());
            assert!(is_plain && text.lines().count() == 2, "{text:?}");
        }
    }
}
