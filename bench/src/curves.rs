//! Curves of several series over one axis, as SVG.

use std::fmt::Write as _;

use crate::chart::{LEFT, WIDTH, escaped, image, label};

/// Height of a chart.
const HEIGHT: f64 = 180.0;
/// Space for the legend.
const TOP: f64 = 34.0;
/// Space for the numbers of the axis.
const BOTTOM: f64 = 24.0;
/// Lines of the grid.
const GRID: u32 = 4;

/// A named line: its points in the order of x.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A chart.
pub struct Curves<'a> {
    /// Its name, with the unit of y.
    pub title: &'a str,
    /// Positions on the x axis, with their labels.
    pub marks: Vec<(f64, String)>,
    pub series: Vec<Series>,
}

impl Curves<'_> {
    /// At most four series, from 0 to the largest value.
    pub fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)))
        };
        let marks = self.marks.iter().map(|(at, _)| *at);
        let (left, right) = bounds(&mut points().map(|(x, _)| *x).chain(marks));
        let (_, most) = bounds(&mut points().map(|(_, y)| *y));
        let (width, most) = ((right - left).max(f64::MIN_POSITIVE), most.max(f64::MIN_POSITIVE));
        let x = |at: f64| LEFT + WIDTH * (at - left) / width;
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / most);

        let mut drawn = String::new();
        label(&mut drawn, self.title, 12.0);
        // Writing to a string does not fail, here and below.
        for line in 0..=GRID {
            let value = most * f64::from(line) / f64::from(GRID);
            let _ = write!(
                drawn,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT + WIDTH,
                LEFT - 4.0,
                y(value) + 4.0,
                number(value),
                at = y(value),
            );
        }
        for (at, name) in &self.marks {
            let _ = write!(
                drawn,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(*at),
                TOP + HEIGHT + 16.0,
                escaped(name)
            );
        }
        for (place, series) in self.series.iter().enumerate() {
            let (class, from) = (place % 4, LEFT + 190.0 * crate::load::as_f64(place as u64));
            let path: Vec<_> =
                series.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            let _ = write!(
                drawn,
                "<polyline class=\"l{class}\" points=\"{}\"/>\
                 <line class=\"l{class}\" x1=\"{from}\" x2=\"{:.0}\" y1=\"22\" y2=\"22\"/>\
                 <text x=\"{:.0}\" y=\"26\">{}</text>",
                path.join(" "),
                from + 20.0,
                from + 25.0,
                escaped(&series.name)
            );
        }
        image(&drawn, TOP + HEIGHT + BOTTOM)
    }
}

/// Three significant digits are enough on an axis.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fill_the_chart_and_names_are_text() {
        let series = Series { name: "a < b".to_owned(), points: vec![(1.0, 0.0), (2.0, 5.0), (3.0, 10.0)] };
        let drawn = Curves { title: "µs", marks: vec![(1.0, "one".to_owned())], series: vec![series] }.draw();
        let middle = format!("{:.1},{:.1}", LEFT + WIDTH / 2.0, TOP + HEIGHT / 2.0);
        let ends = [format!("{LEFT:.1},{:.1}", TOP + HEIGHT), format!("{:.1},{TOP:.1}", LEFT + WIDTH)];
        for point in ends.iter().chain([&middle]) {
            assert!(drawn.contains(point.as_str()), "{point} in {drawn}");
        }
        assert!(drawn.contains(">a &lt; b<") && drawn.contains(">one<"), "{drawn}");
    }

    #[test]
    fn charts_without_points_are_empty_and_well_formed() {
        let drawn = Curves { title: "none", marks: Vec::new(), series: Vec::new() }.draw();
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>") && !drawn.contains("NaN"), "{drawn}");
        assert!(!drawn.contains("inf"), "{drawn}");
    }
}
