//! A timeline as SVG: one lane per stream, time to the right.

use ::svg::node::element::{Group, Line, Rectangle, Text, Title};
use ::svg::node::Text as Content;
use ::svg::Document;

use super::Timeline;
use crate::profile::{profile, Class};
use crate::trace::Trace;

/// Height of a lane and of an op in it, in pixels.
const LANE: usize = 14;
const BAR: usize = 11;
/// Margins: for the names of the lanes, and for title and scale.
const LEFT: f64 = 60.;
const TOP: usize = 40;
/// Width in pixels: the minimum, the maximum, and the width per op in between.
const LEAST: f64 = 1200.;
const MOST: f64 = 6000.;
const AN_OP: f64 = 12.;
/// The minimal distance of marks on the scale, in pixels.
const MARK: f64 = 70.;

impl Timeline {
    /// Draws the timeline of this trace's ops as SVG. Lanes are streams; compute-intensive ops are red and
    /// memory-intensive ones blue, as in Figs. 6 and 7 of the Opara paper. An op's tooltip shows its name, label, start
    /// and duration.
    pub fn to_svg(&self, trace: &Trace, title: &str) -> String {
        let profile = profile(trace);
        let across = (self.spans.len() as f64 * AN_OP).clamp(LEAST, MOST);
        let scale = if self.total_us > 0. { across / self.total_us } else { 1. };
        let x = |us: f64| rounded(LEFT + us * scale);
        let (width, height) = (LEFT + across + LEFT / 2., TOP + LANE * (self.streams() + 1));
        let mut document = Document::new()
            .set("viewBox", (0, 0, width, height))
            .set("width", width)
            .set("height", height)
            .set("font-family", "sans-serif")
            .set("font-size", 9)
            .add(Rectangle::new().set("width", width).set("height", height).set("fill", "white"))
            .add(Text::new("").set("x", 4).set("y", 14).set("font-size", 11).add(Content::new(format!(
                "{title} ({:.1} us; red: compute-intensive, blue: memory-intensive)",
                self.total_us
            ))));
        let step = mark(MARK / scale);
        for i in 0..=(self.total_us / step) as usize {
            let us = i as f64 * step;
            let line = Line::new().set("x1", x(us)).set("x2", x(us)).set("y1", TOP - 4).set("y2", height - 4);
            let text = Text::new(format!("{} us", rounded(us))).set("x", x(us) + 2.).set("y", TOP - 6);
            document = document.add(line.set("stroke", "#dddddd")).add(text.set("fill", "#777777"));
        }
        for stream in 0..self.streams() {
            let y = TOP + LANE * stream + BAR - 2;
            document = document.add(Text::new(format!("stream {stream}")).set("x", 4).set("y", y));
        }
        for (class, fill) in [(Class::Compute, "#c8443c"), (Class::Memory, "#3c6ec8")] {
            let mut group = Group::new().set("fill", fill);
            for span in self.spans.iter().filter(|span| profile.get(span.op).is_some_and(|cost| cost.class == class)) {
                let op = &trace.ops[span.op];
                let us = span.end_us - span.start_us;
                let label = if op.label.is_empty() { String::new() } else { format!(" ({})", op.label) };
                let title = format!("{}{label}: {:.2} us from {:.2} us", op.name, us, span.start_us);
                let bar = Rectangle::new()
                    .set("x", x(span.start_us))
                    .set("y", TOP + LANE * span.stream)
                    .set("width", rounded(us * scale).max(0.3))
                    .set("height", BAR);
                group = group.add(bar.add(Title::new(title)));
            }
            document = document.add(group);
        }
        document.to_string()
    }
}

/// Rounds to a tenth of a pixel, so that drawings of thousands of ops stay small.
fn rounded(x: f64) -> f64 {
    (x * 10.).round() / 10.
}

/// The distance between marks of a scale: 1, 2 or 5 times a power of ten, at least `least`.
fn mark(least: f64) -> f64 {
    let power = 10f64.powf(least.max(0.1).log10().floor());
    [1., 2., 5., 10.].into_iter().map(|times| times * power).find(|&mark| mark >= least).unwrap_or(10. * power)
}
