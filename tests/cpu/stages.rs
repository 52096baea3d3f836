//! The stages of building, on the CPU: each stage can be dumped to files, and building can stop after any stage.

use std::fs;
use std::path::Path;

use candle::{Result, Tensor};
use opara_candle::plan::schedule::Schedule;
use opara_candle::plan::trace::Trace;
use opara_candle::{ops, Mode, OparaExecutor, Stage};
use tracing::Level;

use super::common::{assert_same, logged, one};

/// Two branches that join.
fn branches(t: &[Tensor]) -> Result<Vec<Tensor>> {
    let sum = ops::add(&ops::tanh(&t[0])?, &ops::relu(&t[0])?)?;
    Ok(vec![sum])
}

/// The folder of the only set of shapes that was built.
const SHAPES: &str = "f32-4x6";

const FILES: [&str; 9] = [
    "1-record.trace",
    "2-rewrite.trace",
    "3-fuse.trace",
    "4-fold.trace",
    "5-analyse.dot",
    "6-place.json",
    "7-schedule.json",
    "8-instantiate.json",
    "9-verify.json",
];

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn every_stage_is_dumped_to_a_file() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let fast = OparaExecutor::builder().dump(folder.path()).build_fn(branches, &one(0)?)?;
    let of_shapes = folder.path().join(SHAPES);
    assert_eq!(names(&of_shapes)?, FILES);
    let trace = |name: &str| Trace::load(of_shapes.join(name));
    assert_eq!(trace(FILES[0])?, fast.recorded_trace(&one(0)?)?);
    assert_eq!(trace(FILES[1])?, trace(FILES[0])?, "a CPU rewrites nothing");
    assert_eq!(trace(FILES[2])?, fast.trace(&one(0)?)?);
    let (ops, schedule) = fast.schedule(&one(0)?)?;
    assert_eq!(trace(FILES[3])?, ops);
    let dot = fs::read_to_string(of_shapes.join(FILES[4]))?;
    assert!(dot.starts_with("digraph") && dot.contains("0: tanh"), "{dot}");
    let instantiated: Schedule = serde_json::from_slice(&fs::read(of_shapes.join(FILES[7]))?)?;
    assert_eq!(instantiated, schedule);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(of_shapes.join(FILES[8]))?)?;
    assert_eq!((&report["mode"], &report["ops"]), (&"threads".into(), &3.into()));
    fast.call(&[Tensor::zeros((2, 6), candle::DType::F32, super::common::CPU)?])?;
    assert_eq!(names(folder.path())?, ["f32-2x6", SHAPES], "other shapes have a folder of their own");
    Ok(())
}

#[test]
fn building_stops_after_the_requested_stage() -> anyhow::Result<()> {
    for (stage, built) in Stage::ALL.into_iter().zip(1..) {
        let folder = tempfile::tempdir()?;
        let builder = OparaExecutor::builder().dump(folder.path()).stop_after(stage);
        let fast = builder.build_fn(branches, &one(0)?)?;
        assert_eq!(names(&folder.path().join(SHAPES))?, FILES[..built]);
        let report = fast.report();
        let is_whole = stage == Stage::Verify;
        assert_eq!(report.mode(), if is_whole { Mode::Threads } else { Mode::Eager }, "{stage}");
        let reason = report.reason().unwrap_or_default();
        assert!(is_whole == reason.is_empty() && (is_whole || reason.contains(&format!("`{stage}`"))), "{reason}");
        assert_same(&fast.call(&one(1)?)?, &branches(&one(1)?)?, stage);
        assert_eq!(fast.recorded_trace(&one(0)?)?.ops.len(), 3, "{stage}");
        assert_eq!(fast.trace(&one(0)?).is_ok(), stage >= Stage::Fuse, "{stage}");
        assert_eq!(fast.schedule(&one(0)?).is_ok(), is_whole, "{stage}");
    }
    Ok(())
}

#[test]
fn a_dump_that_cannot_be_written_is_a_warning() -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let build = || Ok(OparaExecutor::builder().dump(file.path()).build_fn(branches, &one(0)?)?);
    let (log, fast) = logged(Level::WARN, build)?;
    assert_eq!(fast.report().mode(), Mode::Threads);
    assert!(log.iter().any(|line| line.contains("the result of a stage cannot be written")), "{log:?}");
    Ok(())
}
