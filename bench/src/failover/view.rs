//! Progress of a run: a table that is redrawn every second, or a line per second without a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use super::seconds::Second;
use crate::traffic::history::Kind;

/// Seconds of the sparklines.
const PICTURE_SECS: usize = 60;
/// Heights of their columns.
const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The view, on standard error: standard output is for the result.
pub struct View {
    is_terminal: bool,
    past: Vec<Second>,
    drawn_lines: usize,
}

impl View {
    pub fn new() -> Self {
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        Self { is_terminal, past: Vec::new(), drawn_lines: 0 }
    }

    /// Shows one more second; `round` is the progress of the run.
    pub fn show(&mut self, second: Second, round: &str) {
        self.past.push(second);
        let text = if self.is_terminal { self.table(round) } else { self.line(round) };
        // A closed terminal does not stop the measurement.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn line(&self, round: &str) -> String {
        let Some(now) = self.past.last() else { return String::new() };
        let mut text = format!("{:>5} s  leader {}  {round}", self.past.len(), leader(now));
        for kind in Kind::ALL {
            let cell = &now.kinds[kind.place()];
            // Writing to a string does not fail.
            let _ = write!(text, "  {} {}", kind.name(), cell.requests);
            if cell.errors + cell.unknown > 0 {
                let _ = write!(text, " ({} errors, {} unknown)", cell.errors, cell.unknown);
            }
            let _ = write!(text, " p99 {}", ms(cell.p99_ms));
        }
        text.push('\n');
        text
    }

    fn table(&mut self, round: &str) -> String {
        let Some(now) = self.past.last() else { return String::new() };
        let mut lines = vec![
            format!("{} s, leader {}, {round}", self.past.len(), leader(now)),
            format!(
                "{:<11}{:>9}{:>8}{:>9}{:>10}{:>10}  p99 of the last minute",
                "", "answers", "errors", "unknown", "p50 ms", "p99 ms"
            ),
        ];
        let recent = &self.past[self.past.len().saturating_sub(PICTURE_SECS)..];
        for kind in Kind::ALL {
            let cell = &now.kinds[kind.place()];
            let picture: Vec<_> = recent.iter().map(|second| second.kinds[kind.place()].p99_ms).collect();
            lines.push(format!(
                "{:<11}{:>9}{:>8}{:>9}{:>10}{:>10}  {}",
                kind.name(),
                cell.requests,
                cell.errors,
                cell.unknown,
                ms(cell.p50_ms),
                ms(cell.p99_ms),
                columns(&picture)
            ));
        }
        // Back to the first line of the previous table; each line is cleared before it is written.
        let mut text =
            if self.drawn_lines > 0 { format!("\u{1b}[{}A", self.drawn_lines) } else { String::new() };
        for line in &lines {
            let _ = writeln!(text, "\u{1b}[2K{line}");
        }
        self.drawn_lines = lines.len();
        text
    }
}

fn leader(second: &Second) -> String {
    second.leader.map_or_else(|| "-".to_owned(), |node| (node + 1).to_string())
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// A column for a value from 1 ms to 10 s, in steps of √10; a space for `None`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the columns")]
fn columns(values: &[Option<f64>]) -> String {
    values
        .iter()
        .map(|value| match value {
            None => ' ',
            Some(ms) => COLUMNS[((ms.max(1.0).log10() * 2.0) as usize).min(COLUMNS.len() - 1)],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_grow_with_the_latency() {
        assert_eq!(columns(&[Some(0.1), None, Some(12.0), Some(1200.0), Some(1e9)]), "▁ ▃▇█");
    }

    #[test]
    fn table_is_drawn_over_the_previous_one() {
        let mut view = View { is_terminal: true, past: vec![Second::default()], drawn_lines: 0 };
        let first = view.table("round 1");
        assert!(first.starts_with("\u{1b}[2K1 s, leader -, round 1\n"), "{first:?}");
        assert!(view.table("round 1").starts_with(&format!("\u{1b}[{}A", first.lines().count())));
    }

    #[test]
    fn line_has_errors_only_if_there_are_some() {
        let mut view = View { is_terminal: false, past: vec![Second::default()], drawn_lines: 0 };
        assert!(!view.line("").contains("errors"));
        view.past[0].kinds[0].errors = 2;
        view.past[0].leader = Some(2);
        assert!(
            view.line("").contains("leader 3") && view.line("").contains("exchange 0 (2 errors, 0 unknown)")
        );
    }
}
