#[cfg(feature = "svg")]
use ::svg::parser::Event;
use serde_json::Value;

use super::*;
use crate::trace::{DeviceSpec, Op, Trace, Work};

fn trace() -> Trace {
    let op = |name: &str, flops| Op {
        name: name.into(),
        label: "layer/0".into(),
        work: Work::Host { bytes: 1, flops },
        accesses: vec![],
        nanos: None,
        meaning: None,
    };
    let device = DeviceSpec { name: "cpu".into(), processors: 2, ..Default::default() };
    Trace { device, ops: vec![op("left<T>", 100), op("right", 1), op("\"last\"", 1)], ..Default::default() }
}

fn timeline() -> Timeline {
    let span = |op, stream, start_us, end_us| Span { op, stream, start_us, end_us };
    Timeline::new(vec![span(2, 0, 6., 8.), span(0, 0, 0., 4.), span(1, 1, 1., 6.)], &[0.5, 0.75, 0.25])
}

#[test]
fn concurrent_ops_use_the_device_once() {
    let timeline = timeline();
    assert_eq!(timeline.spans.iter().map(|span| span.op).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((timeline.total_us, timeline.streams()), (8., 2));
    // Half for one, all for three, three quarters for two, a quarter for two.
    assert_eq!(timeline.busy_us, 0.5 + 3. + 1.5 + 0.5);
    assert_eq!(timeline.utilization(), 5.5 / 8.);
    assert_eq!(Timeline::new(vec![], &[]).utilization(), 0.);
}

#[cfg(feature = "svg")]
#[test]
fn every_op_is_drawn_once_in_its_lane() {
    let picture = timeline().to_svg(&trace(), "three ops");
    let mut drawn: Vec<(String, f64, f64)> = Vec::new();
    let (mut fill, mut titles) = (String::new(), Vec::new());
    for event in ::svg::read(&picture).unwrap() {
        match event {
            Event::Error(error) => panic!("{error}"),
            Event::Tag("g", _, attributes) => {
                fill = attributes.get("fill").map(|fill| fill.to_string()).unwrap_or_default();
            }
            Event::Tag("rect", _, attributes) if attributes.contains_key("x") => {
                let number = |name: &str| attributes[name].parse::<f64>().unwrap();
                drawn.push((fill.clone(), number("y"), number("width")));
            }
            Event::Text(text) if text.contains(" us from ") => titles.push(text.trim().to_string()),
            _ => {}
        }
    }
    let lanes: Vec<(&str, f64)> = drawn.iter().map(|(fill, y, _)| (fill.as_str(), *y)).collect();
    assert_eq!(lanes, [("#c8443c", 40.), ("#3c6ec8", 54.), ("#3c6ec8", 40.)]);
    assert_eq!((drawn[0].2 / drawn[2].2, drawn[1].2 / drawn[2].2), (2., 2.5));
    assert_eq!(titles[1], "right (layer/0): 5.00 us from 1.00 us");
    assert!(picture.contains("three ops (8.0 us") && picture.contains("stream 1") && !picture.contains("stream 2"));
    assert!(!picture.contains("left<T>"), "names are escaped");
    assert!(::svg::read(&Timeline::default().to_svg(&Trace::default(), "")).is_ok());
}

#[test]
fn trace_viewers_get_one_complete_event_an_op() {
    let trace = trace();
    let json: Value = serde_json::from_str(&timeline().to_chrome_json(&trace)).unwrap();
    let of = |phase: &str| -> Vec<&Value> {
        json["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
    };
    let ops = of("X");
    assert_eq!(ops.len(), 3);
    let right = ops[1];
    assert_eq!((&right["name"], &right["cat"]), (&"right".into(), &"memory".into()));
    assert_eq!((&right["tid"], &right["ts"], &right["dur"]), (&1.into(), &1.0.into(), &5.0.into()));
    let args = &right["args"];
    assert_eq!((&args["op"], &args["label"], &args["class"]), (&1.into(), &"layer/0".into(), &"memory".into()));
    assert!(args["demand"].is_f64());
    let names: Vec<&Value> =
        of("M").into_iter().filter(|m| m["name"] == "thread_name").map(|m| &m["args"]["name"]).collect();
    assert_eq!(names, ["stream 0", "stream 1"]);
}
