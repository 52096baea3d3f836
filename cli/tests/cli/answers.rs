//! The program on recorded traces: every subcommand as text and as JSON, and its errors for invalid input.

use std::fs;

use super::{json, opara, trace};
use opara_plan::simulate::DeviceModel;
use opara_plan::BuiltIn;
use predicates::prelude::*;
use predicates::str::{contains, is_empty, is_match, starts_with};
use serde_json::Value;

#[test]
fn inspect_shows_the_content_of_a_trace() {
    let googlenet = trace("native-googlenet-f32");
    let text = opara(&["inspect", &googlenet, "--top", "3"]).success();
    text.stdout(
        contains("NVIDIA H200").and(contains("108: 107 run at every call, 1 once, 0 never")).and(contains("3 of 13;")),
    );
    let answer = json(&["inspect", &googlenet, "--top", "3"]);
    assert_eq!(answer["ops"]["recorded"], 108);
    assert_eq!(answer["device"]["processors"], 132);
    assert_eq!(answer["kernels"]["hottest"].as_array().map(Vec::len), Some(3));
    assert_eq!(answer["memory"]["roles"]["inputs"]["count"], 1);
}

#[test]
fn inspect_tells_rules_that_fit_from_ops_that_are_not_recognised() {
    let bert = concat!(env!("CARGO_MANIFEST_DIR"), "/../opara-candle/plan/tests/data/meanings/bert-base-f16.trace");
    opara(&["inspect", bert]).success().stdout(contains("rules that fit").and(contains("not recognised")));
    let meanings = &json(&["inspect", bert])["meanings"];
    assert_eq!(meanings["rules"][1]["name"], "attention");
    assert_eq!((&meanings["rules"][1]["times"], &meanings["unknown"][0]["name"]), (&12.into(), &"is_u32_f16".into()));
    assert!(
        json(&["inspect", &trace("native-googlenet-f32")])["meanings"].is_null(),
        "nothing is known of an older one"
    );
}

#[test]
fn every_schedulers_plan_passes_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    let googlenet = trace("native-googlenet-f32");
    for scheduler in BuiltIn::ALL.map(|scheduler| scheduler.to_string()) {
        let text = opara(&["plan", &googlenet, "--scheduler", &scheduler, "--output", plan]).success();
        text.stdout(contains(&scheduler).and(contains(plan)));
        let answer = json(&["plan", &googlenet, "--scheduler", &scheduler]);
        assert_eq!((&answer["ops"], &answer["file"]), (&107.into(), &Value::Null));
        opara(&["check", &googlenet, plan]).success().stdout(starts_with("right: 107 ops"));
        assert_eq!(json(&["check", &googlenet, plan])["ok"], true);
    }
}

#[test]
fn a_changed_plan_fails_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    let googlenet = trace("native-googlenet-f32");
    opara(&["plan", &googlenet, "-o", path]).success();
    let plan: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let wrong = |edit: &dyn Fn(&mut Value), why: &str| {
        let mut plan = plan.clone();
        edit(&mut plan);
        fs::write(path, plan.to_string()).unwrap();
        opara(&["check", &googlenet, path])
            .code(1)
            .stdout(starts_with("wrong: ").and(contains(why)))
            .stderr(is_empty());
    };
    wrong(&|plan| plan["schedule"]["predecessors"][106] = [0; 0].into(), "may overtake");
    wrong(&|plan| plan["schedule"]["stream"][5] = u64::MAX.into(), "op 5 is on stream");
    wrong(&|plan| plan["schedule"]["order"][5] = 0.into(), "twice");
    wrong(&|plan| plan["schedule"]["barriers"] = [u64::MAX].into(), "barriers");
    wrong(&|plan| plan["schedule"]["predecessors"][5] = [1u64 << 40].into(), "launched after");
    wrong(&|plan| plan["schedule"]["order"] = [0; 0].into(), "0 ops are scheduled");
    wrong(&|plan| plan["ops"] = [0].into(), "other ops");
    wrong(&|plan| plan["trace"] = "another".into(), "one of trace `another`");
    let verdict = opara(&["--json", "check", &googlenet, path]).code(1);
    let verdict: Value = serde_json::from_slice(&verdict.get_output().stdout).unwrap();
    assert_eq!(verdict["ok"], false);
}

#[test]
fn a_handwritten_plan_needs_only_a_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    let deepfm = trace("native-deepfm-f32");
    opara(&["plan", &deepfm, "-o", path]).success();
    let plan: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    fs::write(path, serde_json::json!({ "schedule": plan["schedule"] }).to_string()).unwrap();
    opara(&["check", &deepfm, path]).success();
    for (content, why) in [
        ("", "EOF"),
        ("[]", "invalid"),
        ("{}", "missing field `schedule`"),
        (r#"{"schedule": {"stream": [-1]}}"#, "invalid value"),
        (r#"{"schedules": 1}"#, "unknown field"),
        (&"[".repeat(100_000), "invalid type"),
    ] {
        fs::write(path, content).unwrap();
        opara(&["check", &deepfm, path]).code(2).stderr(contains(path).and(contains(why)));
    }
}

#[test]
fn schedulers_are_compared() {
    let traces = ["native-googlenet-f32", "native-deepfm-f32"].map(trace);
    let text = opara(&["compare", &traces[0], &traces[1]]).success();
    let sequential = is_match(r"(?m)^sequential +1 +0 .* 1\.00x ").unwrap().count(2);
    text.stdout(sequential.and(contains("107 ops, simulated on h200")).and(contains("\nopara ").count(2)));
    let answer = json(&["compare", &traces[0], "--device", "v100"]);
    assert_eq!(answer[0]["device"], "v100");
    let names = answer[0]["schedulers"].as_array().unwrap().iter().map(|row| row["scheduler"].as_str().unwrap());
    assert!(names.eq(BuiltIn::ALL.map(|scheduler| scheduler.to_string())));
}

#[test]
fn simulated_times_are_compared_with_measured_ones() {
    let traces = ["native-googlenet-f32", "native-t5-f32"].map(trace);
    let text = opara(&["agreement", &traces[0], &traces[1]]).success();
    let row = is_match(r"(?m)^sequential +[\d.]+ +[\d.]+ +[+-][\d.]+ %$").unwrap().count(2);
    text.stdout(row.and(contains("all times are the same")).and(contains("all 14 pairs: median error")));
    let answer = json(&["agreement", &traces[0], &traces[1]]);
    let [googlenet, t5] = [&answer["traces"][0], &answer["traces"][1]];
    assert_eq!((&googlenet["device"], &googlenet["pairs"]), (&"NVIDIA H200".into(), &7.into()));
    assert!(googlenet["rank_correlation"].as_f64().unwrap() > 0. && t5["rank_correlation"].is_null());
    let [simulated, measured, error] =
        ["simulated_us", "measured_us", "error"].map(|number| googlenet["schedulers"][1][number].as_f64().unwrap());
    assert!((simulated / measured - 1. - error).abs() < 1e-9);
    let unmeasured = trace("resnet18-f32");
    opara(&["agreement", &unmeasured]).code(2).stderr(contains("resnet18-f32").and(contains("no measurement")));
}

#[test]
fn every_device_simulates_every_scheduler() {
    let googlenet = trace("native-googlenet-f32");
    for device in DeviceModel::all().map(|device| device.name) {
        for scheduler in BuiltIn::ALL.map(|scheduler| scheduler.to_string()) {
            let answer = json(&["simulate", &googlenet, "--scheduler", &scheduler, "--device", &device]);
            assert_eq!(
                (&answer["device"], &answer["scheduler"]),
                (&device.as_str().into(), &scheduler.as_str().into())
            );
            let [total, share] = ["total_us", "utilization"].map(|number| answer[number].as_f64().unwrap());
            assert!(total > 0. && (0. ..=1.).contains(&share), "{answer}");
        }
    }
    let text = opara(&["simulate", &googlenet]).success();
    text.stdout(contains("h200").and(contains("simulated, us")).and(contains("utilization")));
}

#[test]
fn timelines_are_drawn_of_schedulers_and_plans() {
    let folder = tempfile::tempdir().unwrap();
    let [plan, svg] = ["plan.json", "timeline.svg"].map(|name| folder.path().join(name));
    let [plan, svg] = [&plan, &svg].map(|path| path.to_str().unwrap());
    let googlenet = trace("native-googlenet-f32");
    opara(&["plan", &googlenet, "-o", plan]).success();
    opara(&["timeline", &googlenet, "-o", svg]).success().stdout(starts_with("wrote "));
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("opara on h200"));
    opara(&["timeline", &googlenet, "--plan", plan]).success().stdout(starts_with(drawn));
    let chrome = opara(&["timeline", &googlenet, "--format", "chrome", "--scheduler", "sequential"]).success();
    let chrome: Value = serde_json::from_slice(&chrome.get_output().stdout).unwrap();
    let events = chrome["traceEvents"].as_array().or(chrome.as_array()).unwrap();
    assert!(events.len() >= 107);
    let both = opara(&["timeline", &googlenet, "--plan", plan, "--scheduler", "opara"]).code(2);
    both.stderr(contains("cannot be used with"));
    let other = opara(&["timeline", &trace("native-bert-f32"), "--plan", plan]).code(2);
    other.stdout(is_empty()).stderr(contains(plan).and(contains("the plan is one of trace")));
}

#[test]
fn graphs_are_drawn() {
    let googlenet = trace("native-googlenet-f32");
    opara(&["graph", &googlenet]).success().stdout(starts_with("digraph {").and(contains("106 [ label=\"106: ")));
    let svg = json(&["graph", &googlenet, "--format", "svg"])["content"].as_str().unwrap().to_owned();
    assert_eq!((svg.matches(r#"class="op""#).count(), svg.matches(r#"class="edge""#).count()), (107, 130));
    for told in ["native-googlenet-f32: 107 ops, 130 dependencies", "compute-intensive", "memory-intensive", "conv2d"] {
        assert!(svg.contains(told), "{told} is not told");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.svg");
    opara(&["graph", &googlenet, "--format", "svg", "-o", path.to_str().unwrap()]).success().stdout(contains("wrote"));
    assert_eq!(fs::read_to_string(path).unwrap(), svg);
}

#[test]
fn a_trace_survives_conversion_to_json_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let [as_json, back] = ["bert.json", "bert.trace"].map(|name| folder.path().join(name));
    let [as_json, back] = [&as_json, &back].map(|path| path.to_str().unwrap());
    let bert = trace("native-bert-f32");
    opara(&["convert", &bert, as_json]).success().stdout(contains("488 ops"));
    assert_eq!(json(&["convert", as_json, back])["ops"], 488);
    assert_eq!(fs::read(back).unwrap(), fs::read(&bert).unwrap());
    assert_eq!(json(&["inspect", as_json]), json(&["inspect", &bert]));
    opara(&["convert", &bert, "bert.txt"]).code(2).stderr(contains("`.trace` or `.json`"));
}

#[test]
fn json_that_is_no_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [path, plan] = ["trace.json", "plan.json"].map(|name| folder.path().join(name));
    let [path, plan] = [&path, &plan].map(|path| path.to_str().unwrap());
    opara(&["convert", &trace("native-deepfm-f32"), path]).success();
    let whole: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let refused = |edit: &dyn Fn(&mut Value), why: &str| {
        let mut trace = whole.clone();
        edit(&mut trace);
        fs::write(path, trace.to_string()).unwrap();
        for args in [vec!["inspect", path], vec!["plan", path, "-o", plan], vec!["convert", path, plan]] {
            opara(&args).code(2).stdout(is_empty()).stderr(contains(path).and(contains(why)));
        }
    };
    let region = |number: &'static str, value: u64| {
        move |trace: &mut Value| trace["ops"][0]["accesses"][0]["region"][number] = value.into()
    };
    refused(&region("start", u64::MAX), "beyond 64 bits");
    refused(&region("start", 1 << 50), "outside every recorded buffer");
    refused(&|trace| trace["ops"][0]["accesses"][0]["buffer"] = u64::MAX.into(), "outside every recorded buffer");
    refused(&|trace| trace["buffers"][0]["bytes"] = u64::MAX.into(), "above the limit");
    refused(&|trace| trace["ops"][0]["work"] = "Magic".into(), "unknown variant `Magic`");
    refused(&|trace| trace["device"] = Value::Null, "invalid type: null");
    refused(&|trace| *trace = 7.into(), "invalid type");
    fs::write(path, "[".repeat(100_000)).unwrap();
    opara(&["inspect", path]).code(2);
}
