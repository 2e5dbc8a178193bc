//! Markdown on standard output and optionally in a file.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A report that is printed while it grows.
#[derive(Default)]
pub struct Report {
    text: String,
    failures: u64,
}

impl Report {
    pub fn new(title: &str) -> Self {
        let mut report = Self::default();
        report.line(&format!("# {title}\n"));
        report
    }

    pub fn line(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The first two lines of a table.
    pub fn table(&mut self, columns: &[&str]) {
        let rule = columns.iter().fold(String::from("|"), |mut rule, _| {
            rule.push_str("---|");
            rule
        });
        self.row(columns);
        self.line(&rule);
    }

    /// A row of the table.
    pub fn row<T: AsRef<str>>(&mut self, cells: &[T]) {
        let line = cells.iter().fold(String::from("|"), |mut line, cell| {
            line.push(' ');
            line.push_str(cell.as_ref());
            line.push_str(" |");
            line
        });
        self.line(&line);
    }

    /// Counts violations.
    pub fn fail(&mut self, count: u64) {
        self.failures += count;
    }

    /// Writes the file. Returns whether there was no violation.
    pub fn finish(self, output: Option<&Path>) -> Result<bool> {
        if let Some(path) = output {
            fs::write(path, &self.text).with_context(|| path.display().to_string())?;
        }
        Ok(self.failures == 0)
    }
}

/// Mebibytes with one decimal.
pub fn mib(kib: u64) -> String {
    format!("{:.1}", crate::load::as_f64(kib) / 1024.0)
}

/// Milliseconds with two decimals.
pub fn ms(millis: f64) -> String {
    format!("{millis:.2}")
}
