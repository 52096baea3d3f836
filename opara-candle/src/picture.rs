//! A schedule as a picture: one lane a stream.

use svg::node::element::{Rectangle, Text, Title};
use svg::node::Text as Content;
use svg::Document;

use crate::profile::{profile, Class};
use crate::schedule::Schedule;
use crate::trace::Trace;

/// Width of one step and height of one lane in pixels.
const STEP: usize = 7;
const LANE: usize = 14;
/// Room for the lanes' names.
const LEFT: usize = 60;
const TOP: usize = 24;

/// Draws a schedule: lanes are streams, an op stands at the earliest step at which it could start if all took the same
/// time. Compute-intensive ops are red and memory-intensive ones blue, as in the Opara paper's figures; the title of
/// each tells its name, label and launch position.
pub(crate) fn svg(trace: &Trace, schedule: &Schedule) -> String {
    let mut step = vec![0; schedule.order.len()];
    let mut end: Vec<usize> = Vec::with_capacity(schedule.order.len());
    for scheduled in schedule.steps() {
        let start = scheduled.after.iter().map(|&before| end[before]).max().unwrap_or(0);
        scheduled.op.into_iter().for_each(|op| step[op] = start);
        end.push(start + usize::from(scheduled.op.is_some()));
    }
    let width = LEFT + STEP * (step.iter().max().map_or(0, |s| s + 1) + 1);
    let height = TOP + LANE * schedule.streams() + LANE;
    let mut document = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("font-family", "sans-serif")
        .set("font-size", 9)
        .add(Rectangle::new().set("width", width).set("height", height).set("fill", "white"))
        .add(Text::new("").set("x", 4).set("y", 14).add(Content::new(format!(
            "{} ops on {} streams, {} waits. Red: compute-intensive, blue: memory-intensive.",
            trace.ops.len(),
            schedule.streams(),
            schedule.wait_count()
        ))));
    for stream in 0..schedule.streams() {
        let y = TOP + LANE * stream + LANE - 4;
        document = document.add(Text::new(format!("stream {stream}")).set("x", 4).set("y", y));
    }
    let costs = profile(trace);
    for (at, &op) in schedule.order.iter().enumerate() {
        let fill = if costs[op].class == Class::Compute { "#c8443c" } else { "#3c6ec8" };
        let title = format!("{at}: {} ({})", trace.ops[op].name, trace.ops[op].label);
        document = document.add(
            Rectangle::new()
                .set("x", LEFT + STEP * step[op])
                .set("y", TOP + LANE * schedule.stream[op])
                .set("width", STEP - 1)
                .set("height", LANE - 3)
                .set("fill", fill)
                .add(Title::new(title)),
        );
    }
    document.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OpGraph;
    use crate::schedule::{Policy, Problem, Scheduler};
    use crate::trace::{Op, Work};

    #[test]
    fn every_op_is_drawn_once_in_its_lane() {
        let op = |name: &str| Op {
            name: name.into(),
            label: "layer".into(),
            work: Work::Host { bytes: 1, flops: 100 },
            accesses: vec![],
            nanos: None,
        };
        let trace = Trace { ops: vec![op("left"), op("right<T>")], ..Default::default() };
        let (graph, profile) = (OpGraph::new(&trace), profile(&trace));
        let problem = Problem { graph: &graph, profile: &profile, device: &trace.device };
        let schedule = Policy::Opara.schedule(&problem).unwrap();
        let picture = svg(&trace, &schedule);
        assert_eq!(picture.matches("<title>").count(), 2);
        assert!(picture.contains("stream 1") && !picture.contains("stream 2"));
        assert!(!picture.contains("right<T>"), "names are escaped");
    }
}
