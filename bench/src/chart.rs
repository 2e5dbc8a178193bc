//! Charts over the seconds of a run as SVG, and the self-contained HTML page around them.

use std::fmt::Write as _;

use crate::load::as_f64;

/// Width of the charts, without their labels.
pub const WIDTH: f64 = 1000.0;
/// Width of the labels.
pub const LEFT: f64 = 130.0;
/// Height of the bar of a leader.
pub const LEADER_HEIGHT: f64 = 16.0;

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:1180px;margin:24px auto;padding:0 16px;\
color:#1c2330;background:#fff}h1{font-size:22px}h2{font-size:18px}h3{font-size:15px;margin-bottom:0}\
table{border-collapse:collapse;margin:16px 0}td,th{padding:3px 12px 3px 0;\
text-align:right;font-variant-numeric:tabular-nums;border-bottom:1px solid #e3e7ee}td:first-child,th:first-child{text-align:left}\
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#5b6678}.t{font-weight:600;fill:#1c2330!important}\
.f{stroke:#c62f2f;stroke-width:1;stroke-dasharray:3 2}.g{stroke:#e3e7ee}.r{fill:#3f7fd1}.e{fill:#c62f2f}.p50{fill:none;stroke:#3f7fd1;stroke-width:1.2}\
.p99{fill:none;stroke:#d98a1f;stroke-width:1.2}.n0{fill:#3f7fd1}.n1{fill:#3a9d6a}.n2{fill:#8a5fc9}.n3{fill:#d98a1f}.n{fill:#c62f2f}\
.l0,.l1,.l2,.l3{fill:none;stroke-width:1.6}.l0{stroke:#3f7fd1}.l1{stroke:#d98a1f}.l2{stroke:#3a9d6a}.l3{stroke:#8a5fc9}\
.o{fill:#3a9d6a}.w{fill:#d98a1f}.u{fill:#8a5fc9}.v{fill:#c62f2f;stroke:#c62f2f;stroke-width:2}.s{fill:#c62f2f;opacity:.3}\
@media(prefers-color-scheme:dark){body{background:#12161d;color:#dde3ec}td,th{border-color:#2b323e}.g{stroke:#2b323e}\
svg text{fill:#97a3b6}.t{fill:#dde3ec!important}}";

/// A page with a title and a body of HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style><h1>{title}</h1>{body}</html>\n"
    )
}

/// The drawing, as an image of this height.
pub fn image(drawn: &str, height: f64) -> String {
    format!("<svg viewBox=\"0 0 {:.0} {height:.0}\" role=\"img\">{drawn}</svg>", LEFT + WIDTH + 20.0)
}

/// The label of a row.
pub fn label(drawn: &mut String, text: &str, y: f64) {
    // Writing to a string does not fail, here and below.
    let _ = write!(drawn, "<text class=\"t\" x=\"0\" y=\"{y:.1}\">{}</text>", escaped(text));
}

/// A rectangle with a title that shows when it is pointed at.
pub fn bar(drawn: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
    let _ = write!(
        drawn,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\">\
         <title>{}</title></rect>",
        escaped(title)
    );
}

/// Text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The seconds of a run over the width of a chart.
#[derive(Clone, Copy)]
pub struct Axis {
    seconds: u64,
}

impl Axis {
    pub fn new(seconds: u64) -> Self {
        Self { seconds: seconds.max(1) }
    }

    pub fn x(self, seconds: f64) -> f64 {
        LEFT + WIDTH * seconds / as_f64(self.seconds)
    }

    /// About ten numbers below the charts.
    pub fn numbers(self, drawn: &mut String, y: f64) {
        let every = usize::try_from((self.seconds / 10).max(1)).unwrap_or(usize::MAX);
        for second in (0..=self.seconds).step_by(every) {
            let x = self.x(as_f64(second));
            let _ = write!(drawn, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{second} s</text>");
        }
    }

    /// A bar for each leader, from and until a time in seconds, with the number of the node where it fits.
    pub fn leaders(
        self,
        drawn: &mut String,
        spans: impl Iterator<Item = (f64, f64, Option<usize>)>,
        top: f64,
    ) {
        for (from, until, leader) in spans {
            let (x, end) = (self.x(from), self.x(until));
            let (class, title) = match leader {
                Some(node) => (format!("n{}", node % 4), format!("node {} leads", node + 1)),
                None => ("n".to_owned(), "no leader".to_owned()),
            };
            let width = (end - x).max(0.4);
            bar(drawn, &class, (x, top), (width, LEADER_HEIGHT), &title);
            if let Some(node) = leader.filter(|_| width > 14.0) {
                let _ = write!(
                    drawn,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"fill:#fff\">{}</text>",
                    x + width / 2.0,
                    top + 12.0,
                    node + 1
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_contains_text_as_text() {
        let page = page("a < b", "<p>body</p>");
        assert!(page.contains("<h1>a &lt; b</h1><p>body</p></html>"), "{page}");
        assert!(!page.contains("http"), "no network");
    }

    #[test]
    fn axis_spreads_the_seconds_over_the_width() {
        let axis = Axis::new(20);
        for (at, x) in [(0.0, LEFT), (10.0, LEFT + WIDTH / 2.0), (20.0, LEFT + WIDTH)] {
            assert!((axis.x(at) - x).abs() < 1e-6, "{at}: {}", axis.x(at));
        }
        let mut drawn = String::new();
        axis.numbers(&mut drawn, 1.0);
        assert!(drawn.contains(">18 s<") && !drawn.contains(">19 s<"), "{drawn}");
    }
}
