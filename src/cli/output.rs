//! Output as tables and as JSON.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde_json::Value;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns, for people.
    #[default]
    Table,
    /// JSON, for programs.
    Json,
}

/// Argument of every command with structured output.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Output format.
    #[arg(long = "output", short = 'o', value_enum, default_value_t)]
    pub format: Format,
}

/// Writes an array of objects; `columns` are headings and field names.
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

/// Writes indented JSON.
pub(super) fn json(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{}", escaped(&format!("{value:#}")))
}

/// Writes JSON on one line.
pub(super) fn json_line(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{}", escaped(&value.to_string()))
}

/// Escapes characters that a terminal would interpret. JSON already escapes those below U+0020, and non-ASCII characters
/// occur only in strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c < '\u{7f}' || is_printable(c) {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a `String` does not fail.
            let _: fmt::Result = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// A count with its noun, for example `1 agent` or `2 agents`.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A text field of an object; empty if there is none.
pub(super) fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The same, [`printable`].
pub(super) fn printable_text(value: &Value, name: &str) -> String {
    printable(text(value, name))
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => String::new(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(other) => printable(&other.to_string()),
    }
}

/// Replaces characters of foreign text that could move the cursor, colour the terminal, reorder the text or be invisible.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect()
}

/// Not of the Unicode general categories Cc, Zl, Zp and Cf: controls, line separators and formatting characters.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}');
    !c.is_control() && !is_format
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
    fn table_has_a_heading_and_one_line_per_row() {
        let text =
            written(Format::Table, &json!([{"kid": "a", "signs": true}, {"kid": "b", "retired_at": "t"}]));
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["kid signs retired", "a yes", "b t"]);
    }

    #[test]
    fn json_output_is_the_response() {
        let rows = json!([{"kid": "a", "other": [1]}]);
        assert_eq!(crate::json::parse(written(Format::Json, &rows).as_bytes()), Ok(rows));
    }

    #[test]
    fn table_replaces_control_characters() {
        for kid in [json!("\u{1b}[2J\nx"), json!({"format": "\u{9b}2J\nx"})] {
            let text = written(Format::Table, &json!([{"kid": kid}]));
            let is_plain = text.chars().all(|c| c == '\n' || !c.is_control());
            assert!(is_plain && text.lines().count() == 2, "{text:?}");
        }
    }

    /// Terminal injection: JSON allows DEL, C1 controls and bidirectional controls unescaped.
    #[test]
    fn json_escapes_what_a_terminal_interprets() {
        let hostile =
            "a\u{7f}\u{9b}2J\u{9d}0;x\u{9c}\u{202e}b\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}\u{1b}\r\né𝄞";
        let rows = json!([{ "kid": hostile, hostile: 1 }]);
        let mut line = Vec::new();
        json_line(&mut line, &rows).expect("written");
        let line = String::from_utf8(line).expect("text");
        assert_eq!(line.lines().count(), 1);
        for text in [written(Format::Json, &rows), line] {
            assert!(text.chars().all(|c| c == '\n' || is_printable(c)), "{text:?}");
            assert!(text.contains("a\\u007f\\u009b2J") && text.contains("\\udb40\\udc41"), "{text:?}");
            assert!(text.contains("é𝄞"), "printable text stays as it is: {text:?}");
            assert_eq!(crate::json::parse(text.as_bytes()), Ok(rows.clone()));
        }
    }

    #[test]
    fn formatting_characters_are_replaced() {
        assert_eq!(printable("a\u{202e}b\u{2069}c\u{200d}d\u{7f}é"), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}é");
        assert_eq!(printable("Ünïcode – 漢字 𝄞"), "Ünïcode – 漢字 𝄞");
    }
}
