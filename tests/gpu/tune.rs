//! Tuned schedules and measurements on a GPU. Tests skip without a GPU or the feature `cuda`, and say so.

use std::sync::Arc;
use std::time::Duration;

use crate::common::gpu;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use opara_candle::plan::schedule::{Problem, Schedule};
use opara_candle::{BuiltIn, OparaExecutor, Scheduler, Search};
use opara_examples::{Model, Native};

/// GoogLeNet with an example of its inputs.
fn googlenet(device: &Device) -> Result<(Model, [Tensor; 1])> {
    let model = Native::Googlenet.load(opara_weights::seeded(0, DType::F16, device))?;
    let example = [Native::Googlenet.example(1, DType::F16, device)?];
    Ok((model, example))
}

fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<half::f16>>> {
    tensors.iter().map(|t| Ok(t.flatten_all()?.to_vec1()?)).collect()
}

fn tuning(folder: &std::path::Path) -> Search {
    let budget = Duration::from_millis(500);
    Search::default().budget(budget).proposals(16).cache(Some(folder.into()))
}

/// Runs sequentially on one thread: candle keeps the cuDNN handle in a thread-local, and a thread that ends during
/// another thread's capture cannot destroy its handle.
#[test]
fn schedules_are_tuned_and_measured() -> Result<()> {
    a_tuned_schedule_keeps_the_bits_and_is_cached()?;
    priorities_and_custom_schedulers_keep_the_bits()?;
    measured_spans_respect_the_schedule()?;
    fused_launches_of_every_size_are_measured()
}

fn a_tuned_schedule_keeps_the_bits_and_is_cached() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (model, example) = googlenet(&device)?;
    let folder = tempfile::tempdir()?;
    let build = || {
        let model = model.clone();
        OparaExecutor::builder().scheduler(tuning(folder.path())).build_fn(move |inputs| model.call(inputs), &example)
    };
    let expected = bits(&model.call(&example)?)?;
    let first = build()?;
    let report = first.report();
    let findings = report.search().expect("a search");
    assert!(!findings.cached && findings.tried >= BuiltIn::FIXED.len());
    assert_eq!(bits(&first.call(&example)?)?, expected);
    let again = build()?;
    assert!(again.report().search().expect("what was kept").cached);
    assert_eq!(first.schedule(&example)?.1, again.schedule(&example)?.1);
    assert_eq!(bits(&again.call(&example)?)?, expected);
    for file in std::fs::read_dir(folder.path())? {
        std::fs::write(file?.path(), "{}")?;
    }
    assert!(!build()?.report().search().expect("a new search").cached);
    Ok(())
}

/// Opara's schedule, with every second op urgent.
#[derive(Debug)]
struct Hurried;

impl Scheduler for Hurried {
    fn name(&self) -> String {
        "hurried".into()
    }

    fn schedule(&self, problem: &Problem) -> opara_candle::plan::schedule::Result<Schedule> {
        let urgent = (0..problem.graph.len()).step_by(2).collect();
        Ok(Schedule { urgent, ..BuiltIn::Opara.schedule(problem)? })
    }
}

fn priorities_and_custom_schedulers_keep_the_bits() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (model, example) = googlenet(&device)?;
    let expected = bits(&model.call(&example)?)?;
    let builder = OparaExecutor::builder().scheduler(Arc::new(Hurried)).benchmark_challengers(false).stress(4);
    let executor = builder.build_fn(move |inputs| model.call(inputs), &example)?;
    assert_eq!(executor.report().scheduler(), "hurried");
    assert_eq!(bits(&executor.call(&example)?)?, expected);
    Ok(())
}

fn measured_spans_respect_the_schedule() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (model, example) = googlenet(&device)?;
    let expected = bits(&model.call(&example)?)?;
    for scheduler in [BuiltIn::Opara, BuiltIn::Rammer] {
        let model = model.clone();
        let builder = OparaExecutor::builder().scheduler(scheduler).benchmark_challengers(false);
        let executor = builder.build_fn(move |inputs| model.call(inputs), &example)?;
        let timeline = executor.timeline(&example)?;
        let (ops, schedule) = executor.schedule(&example)?;
        assert_eq!(timeline.spans.len(), ops.ops.len());
        let mut spans = timeline.spans.clone();
        spans.sort_by_key(|span| span.op);
        // Joins take no time: waiting for a join means waiting for its predecessors.
        let mut ends: Vec<f64> = Vec::new();
        for step in schedule.steps() {
            let ready = step.after.iter().map(|&before| ends[before]).fold(0., f64::max);
            let Some(op) = step.op else {
                ends.push(ready);
                continue;
            };
            let span = spans[op];
            // A kernel of this library behind one other may begin before that ends, and waits by itself.
            let waits = step.after.len() == 1 && ops.ops[op].name.starts_with("opara_");
            let begins = if waits { span.end_us } else { span.start_us };
            assert!(ready <= begins && span.start_us < span.end_us, "op {op} starts too early: {span:?}, {ready}");
            ends.push(span.end_us);
        }
        let trace = executor.measure(&example)?;
        let measured = trace.ops.iter().filter(|op| op.nanos.is_some()).count();
        assert_eq!(measured, ops.ops.len());
        let names: Vec<&str> = trace.measured.iter().map(|measured| measured.schedule.as_str()).collect();
        assert!(names.starts_with(&BuiltIn::FIXED.map(BuiltIn::as_str)), "{names:?}");
        assert!(trace.measured.iter().all(|measured| measured.nanos > 0 && measured.busy.is_some()));
        assert_eq!(bits(&executor.call(&example)?)?, expected);
    }
    Ok(())
}

/// Large groups use another kernel than small ones.
fn fused_launches_of_every_size_are_measured() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for elements in [1 << 10, 1 << 22] {
        let x = [Tensor::rand(-1f32, 1., elements, &device)?];
        let executor = OparaExecutor::builder().build_fn(|x| Ok(vec![x[0].relu()?.affine(2., 1.)?]), &x)?;
        assert_eq!(executor.report().counts().fused, 1, "{}", executor.report());
        let (ops, _) = executor.schedule(&x)?;
        assert_eq!(executor.timeline(&x)?.spans.len(), ops.ops.len());
    }
    Ok(())
}
