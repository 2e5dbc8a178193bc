//! Progress of a long command on standard error: a line that is overwritten on a terminal, else nothing.

use std::io::{self, IsTerminal as _, Write as _};

const MEGABYTE: u64 = 1_000_000;
const BAR_CHARS: u64 = 30;

/// Progress over a number of bytes.
pub(super) struct Progress {
    title: &'static str,
    /// `None` if the number is unknown.
    all: Option<u64>,
    /// Megabytes or percent shown last.
    shown: Option<u64>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(title: &'static str, all: Option<u64>) -> Self {
        Self { title, all, shown: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Shows that `done` bytes are done. Output errors are ignored: progress is no result.
    pub(super) fn show(&mut self, done: u64) {
        let step = self.all.map_or(done / MEGABYTE, |all| percent(done, all));
        if self.is_terminal && self.shown.replace(step) != Some(step) {
            write!(io::stderr(), "\r{}", self.line(done)).ok();
        }
    }

    fn line(&self, done: u64) -> String {
        let title = self.title;
        let Some(all) = self.all else { return format!("{title}: {} MB", done / MEGABYTE) };
        let percent = percent(done, all);
        let full = "#".repeat(usize::try_from(percent * BAR_CHARS / 100).unwrap_or_default());
        format!("{title}: [{full:<width$}] {percent:3} %", width = 30)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            writeln!(io::stderr()).ok();
        }
    }
}

fn percent(done: u64, all: u64) -> u64 {
    done.min(all).saturating_mul(100).checked_div(all).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_grows_with_the_work_done() {
        let progress = Progress { title: "verify", all: Some(200), shown: None, is_terminal: false };
        for (done, hashes, percent) in
            [(0, 0, "  0 %"), (100, 15, " 50 %"), (200, 30, "100 %"), (300, 30, "100 %")]
        {
            let line = progress.line(done);
            assert!(line.ends_with(percent) && line.matches('#').count() == hashes, "{line}");
        }
        let unknown = Progress { title: "save", all: None, shown: None, is_terminal: false };
        assert_eq!(unknown.line(2_500_000), "save: 2 MB");
        assert_eq!(percent(0, 0), 100);
    }
}
