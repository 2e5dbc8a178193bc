//! The run as one self-contained HTML page.

use std::fmt::Write as _;

use super::result::Figures;
use super::seconds::{Cell, Second};
use crate::load::as_f64;
use crate::traffic::history::{History, Kind, Micros};

/// Width of the charts, without their labels.
const WIDTH: f64 = 1000.0;
/// Height of one chart.
const HEIGHT: f64 = 110.0;
/// Width of the labels, and space between two charts.
const LEFT: f64 = 130.0;
const BETWEEN: f64 = 34.0;
/// Range of the latency axis.
const LATENCY_MS: (f64, f64) = (1.0, 30_000.0);

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:1180px;margin:24px auto;padding:0 16px;\
color:#1c2330;background:#fff}h1{font-size:22px}table{border-collapse:collapse;margin:16px 0}td,th{padding:3px 12px 3px 0;\
text-align:right;font-variant-numeric:tabular-nums;border-bottom:1px solid #e3e7ee}td:first-child,th:first-child{text-align:left}\
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#5b6678}.t{font-weight:600;fill:#1c2330!important}\
.f{stroke:#c62f2f;stroke-width:1;stroke-dasharray:3 2}.g{stroke:#e3e7ee}.r{fill:#3f7fd1}.e{fill:#c62f2f}.p50{fill:none;stroke:#3f7fd1;stroke-width:1.2}\
.p99{fill:none;stroke:#d98a1f;stroke-width:1.2}.n0{fill:#3f7fd1}.n1{fill:#3a9d6a}.n2{fill:#8a5fc9}.n3{fill:#d98a1f}.n{fill:#c62f2f}\
@media(prefers-color-scheme:dark){body{background:#12161d;color:#dde3ec}td,th{border-color:#2b323e}.g{stroke:#2b323e}\
svg text{fill:#97a3b6}.t{fill:#dde3ec!important}}";

pub fn draw(history: &History, figures: &Figures) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Failover under load</title>\
         <style>{STYLE}</style><h1>Failover under load</h1><p>{} faults in {} s; each is a dashed line. \
         A request belongs to the second in which it was due; its latency counts from then, over all tries.</p>",
        history.faults.len(),
        figures.seconds.len()
    );
    page.push_str(&timeline(history, &figures.seconds));
    page.push_str(&summary(figures));
    page.push_str(&faults(history, figures));
    page.push_str("</html>\n");
    page
}

/// The leader, then for each kind its requests with their errors, and its latency.
fn timeline(history: &History, seconds: &[Second]) -> String {
    let mut drawn = String::new();
    let mut top = 22.0;
    let scale = WIDTH / as_f64(seconds.len().max(1) as u64);
    leaders(&mut drawn, history, seconds.len(), top);
    top += 16.0 + BETWEEN;
    for kind in Kind::ALL {
        let cells: Vec<_> = seconds.iter().map(|second| &second.kinds[kind.place()]).collect();
        requests(&mut drawn, kind, &cells, scale, top);
        top += HEIGHT * 0.5 + BETWEEN;
        latencies(&mut drawn, kind, &cells, scale, top);
        top += HEIGHT + BETWEEN;
    }
    for fault in &history.faults {
        let x = x_of(fault.at, seconds.len());
        // Writing to a string does not fail, here and below.
        let _ = write!(
            drawn,
            "<line class=\"f\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"14\" y2=\"{:.1}\"/>",
            top - BETWEEN
        );
    }
    let every = (seconds.len() / 10).max(1);
    for second in (0..=seconds.len()).step_by(every) {
        let x = LEFT + as_f64(second as u64) * scale;
        let _ = write!(
            drawn,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{second} s</text>",
            top - BETWEEN + 16.0
        );
    }
    format!("<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\">{drawn}</svg>", LEFT + WIDTH + 20.0, top)
}

fn leaders(drawn: &mut String, history: &History, seconds: usize, top: f64) {
    label(drawn, "leader", top + 12.0);
    let mut since = history.leaders.iter().peekable();
    while let Some((from, leader)) = since.next() {
        let until = since.peek().map_or(history.end, |(next, _)| *next).min(history.end);
        let (x, end) = (x_of(*from, seconds), x_of(until, seconds));
        let (class, title) = match leader {
            Some(node) => (format!("n{}", node % 4), format!("node {} leads", node + 1)),
            None => ("n".to_owned(), "no leader".to_owned()),
        };
        let width = (end - x).max(0.4);
        let _ = write!(
            drawn,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top}\" width=\"{width:.2}\" height=\"16\"><title>{title}</title></rect>"
        );
        // A number where it fits.
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

fn requests(drawn: &mut String, kind: Kind, cells: &[&Cell], scale: f64, top: f64) {
    let most = cells.iter().map(|cell| cell.requests).max().unwrap_or_default().max(1);
    let height = HEIGHT * 0.5;
    label(drawn, kind.name(), top + 10.0);
    let _ = write!(drawn, "<text x=\"0\" y=\"{:.1}\">{most} in a second</text>", top + 24.0);
    let _ = write!(drawn, "<text x=\"0\" y=\"{:.1}\">errors red</text>", top + 38.0);
    for (second, cell) in cells.iter().enumerate() {
        let bad = cell.errors + cell.unknown;
        let x = LEFT + as_f64(second as u64) * scale;
        let mut bar = |class: &str, from: u64, to: u64| {
            let (low, high) = (as_f64(from) / as_f64(most), as_f64(to) / as_f64(most));
            if to > from {
                let _ = write!(
                    drawn,
                    "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\"/>",
                    top + height * (1.0 - high),
                    scale * 0.9,
                    height * (high - low)
                );
            }
        };
        bar("e", 0, bad);
        bar("r", bad, cell.requests);
    }
}

fn latencies(drawn: &mut String, kind: Kind, cells: &[&Cell], scale: f64, top: f64) {
    let (least, most) = LATENCY_MS;
    let y = |ms: f64| top + HEIGHT * (1.0 - (ms.clamp(least, most) / least).log10() / (most / least).log10());
    label(drawn, &format!("{}, ms", kind.name()), top + 10.0);
    let _ = write!(drawn, "<text x=\"0\" y=\"{:.1}\">p50 blue</text>", top + 24.0);
    let _ = write!(drawn, "<text x=\"0\" y=\"{:.1}\">p99 yellow</text>", top + 38.0);
    for (ms, name) in [(1.0, "1"), (10.0, "10"), (100.0, "100"), (1000.0, "1000"), (10_000.0, "10000")] {
        let _ = write!(
            drawn,
            "<line class=\"g\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT + WIDTH,
            y(ms),
            y(ms),
            LEFT - 4.0,
            y(ms) + 4.0
        );
    }
    for (class, of) in
        [("p50", (|cell| cell.p50_ms) as fn(&Cell) -> Option<f64>), ("p99", |cell| cell.p99_ms)]
    {
        let mut path = String::new();
        let mut is_open = false;
        for (second, cell) in cells.iter().enumerate() {
            // A second without a response interrupts the line.
            let Some(ms) = of(cell) else {
                is_open = false;
                continue;
            };
            let x = LEFT + (as_f64(second as u64) + 0.5) * scale;
            let step = if is_open { 'L' } else { 'M' };
            let _ = write!(path, "{step}{x:.1} {:.1}", y(ms));
            is_open = true;
        }
        let _ = write!(drawn, "<path class=\"{class}\" d=\"{path}\"/>");
    }
}

fn label(drawn: &mut String, text: &str, y: f64) {
    let _ = write!(drawn, "<text class=\"t\" x=\"0\" y=\"{y:.1}\">{text}</text>");
}

fn x_of(at: Micros, seconds: usize) -> f64 {
    LEFT + WIDTH * as_f64(at) / 1e6 / as_f64(seconds.max(1) as u64)
}

fn summary(figures: &Figures) -> String {
    let value = |name: &str| match &figures.json[name] {
        serde_json::Value::Null => "not looked for".to_owned(),
        value => value.to_string(),
    };
    let mut rows = String::new();
    for (name, member) in [
        ("acknowledged writes", "acknowledged_writes"),
        ("of them lost", "lost_acknowledged_writes"),
        ("revoked workloads", "revoked"),
        ("stale accepts", "stale_accepts"),
    ] {
        let _ = write!(rows, "<tr><td>{name}</td><td>{}</td></tr>", value(member));
    }
    format!("<table>{rows}</table>")
}

/// A row per fault.
fn faults(history: &History, figures: &Figures) -> String {
    if history.faults.is_empty() {
        return String::new();
    }
    let mut rows =
        String::from("<tr><th>fault</th><th>at, s</th><th>node</th><th>another led after, ms</th>");
    for kind in Kind::ALL {
        let _ = write!(rows, "<th>gap of {}, ms</th>", kind.name());
    }
    rows.push_str("</tr>");
    for (place, fault) in history.faults.iter().enumerate() {
        let led = fault.led_at.map_or_else(|| "-".to_owned(), |at| whole_ms(at.saturating_sub(fault.at)));
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{:.1}</td><td>{}</td><td>{led}</td>",
            place + 1,
            as_f64(fault.at) / 1e6,
            fault.node + 1
        );
        for kind in Kind::ALL {
            let gap = figures.gaps.get(&kind).and_then(|gaps| gaps.get(place));
            let _ = write!(rows, "<td>{}</td>", gap.map_or_else(String::new, |gap| whole_ms(gap.silence)));
        }
        rows.push_str("</tr>");
    }
    format!("<table>{rows}</table>")
}

fn whole_ms(micros: Micros) -> String {
    (micros / 1000).to_string()
}
