//! The run as one self-contained HTML page.

use std::fmt::Write as _;

use super::result::Figures;
use super::seconds::{Cell, Second};
use crate::chart::{self, Axis, LEFT, WIDTH, label};
use crate::load::as_f64;
use crate::traffic::history::{History, Kind, Micros};

/// Height of one chart.
const HEIGHT: f64 = 110.0;
/// Space between two charts.
const BETWEEN: f64 = 34.0;
/// Range of the latency axis.
const LATENCY_MS: (f64, f64) = (1.0, 30_000.0);

pub fn draw(history: &History, figures: &Figures) -> String {
    let mut body = format!(
        "<p>{} faults in {} s; each is a dashed line. \
         A request belongs to the second in which it was due; its latency counts from then, over all tries.</p>",
        history.faults.len(),
        figures.seconds.len()
    );
    body.push_str(&timeline(history, &figures.seconds));
    body.push_str(&summary(figures));
    body.push_str(&faults(history, figures));
    chart::page("Failover under load", &body)
}

/// The leader, then for each kind its requests with their errors, and its latency.
fn timeline(history: &History, seconds: &[Second]) -> String {
    let mut drawn = String::new();
    let mut top = 22.0;
    let scale = WIDTH / as_f64(seconds.len().max(1) as u64);
    let axis = Axis::new(seconds.len() as u64);
    label(&mut drawn, "leader", top + 12.0);
    axis.leaders(&mut drawn, leaders(history), top);
    top += chart::LEADER_HEIGHT + BETWEEN;
    for kind in Kind::ALL {
        let cells: Vec<_> = seconds.iter().map(|second| &second.kinds[kind.place()]).collect();
        requests(&mut drawn, kind, &cells, scale, top);
        top += HEIGHT * 0.5 + BETWEEN;
        latencies(&mut drawn, kind, &cells, scale, top);
        top += HEIGHT + BETWEEN;
    }
    for fault in &history.faults {
        let x = axis.x(seconds_of(fault.at));
        // Writing to a string does not fail, here and below.
        let _ = write!(
            drawn,
            "<line class=\"f\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"14\" y2=\"{:.1}\"/>",
            top - BETWEEN
        );
    }
    axis.numbers(&mut drawn, top - BETWEEN + 16.0);
    chart::image(&drawn, top)
}

/// Each leader with its start and its end.
fn leaders(history: &History) -> impl Iterator<Item = (f64, f64, Option<usize>)> {
    let ends = history.leaders.iter().skip(1).map(|(from, _)| *from).chain([history.end]);
    let spans = history.leaders.iter().zip(ends);
    spans.map(|((from, leader), until)| (seconds_of(*from), seconds_of(until.min(history.end)), *leader))
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

fn seconds_of(at: Micros) -> f64 {
    as_f64(at) / 1e6
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
