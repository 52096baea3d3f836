//! Fused kernels on a GPU: every operator and type, rows of every length, every layout, and ops between the fused ones.
//! Tests skip without a GPU or the feature `cuda`, and say so.

mod layouts;
mod operators;
mod rows;

use std::path::Path;
use std::process::Command;

use crate::common::{assert_same, gpu, one_on, replayed, waves};
use candle::{Device, Result, Tensor};
use opara_candle::{Builder, Mode, OparaExecutor, Stage};

/// Asserts that the report counts this many fused launches.
#[track_caller]
fn fused(fast: &OparaExecutor, launches: usize) {
    let report = fast.report();
    assert_eq!((report.mode(), report.counts().fused, &report.reason()), (Mode::Graph, launches, &None), "{report}");
}

/// Random numbers from the CPU: cuRAND sometimes fails while another thread captures.
fn random(shape: (usize, usize), device: &Device) -> Result<Tensor> {
    Tensor::rand(-2f32, 2., shape, &Device::Cpu)?.to_device(device)
}

#[test]
fn an_intermediate_result_can_be_an_output() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let first = (&t[0] + 1.)?;
        let second = first.sqr()?;
        let third = (&second - &first)?;
        Ok(vec![third.exp()?, second, first.narrow(0, 1, 2)?])
    };
    let fast = replayed(Mode::Graph, function, |i| one_on(i, &device));
    fused(&fast, 3);
}

#[test]
fn the_recorded_trace_is_the_trace_before_fusion() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![((&t[0] + 0.625)?.sqr()? * 0.375)?.exp()?]);
    let built = |builder: Builder| builder.build_fn(function, &one_on(0, &device)?).map_err(anyhow::Error::from);
    let x = one_on(0, &device)?;
    let lengths =
        |fast: &OparaExecutor| [fast.recorded_trace(&x), fast.trace(&x)].map(|trace| Some(trace.ok()?.ops.len()));
    let fast = built(OparaExecutor::builder())?;
    fused(&fast, 3);
    let ops = fast.report().counts().ops;
    assert_eq!(lengths(&fast), [Some(ops), Some(ops - 3)]);
    let unfused = built(OparaExecutor::builder().fuse(false))?;
    assert_eq!(lengths(&unfused), [Some(ops), Some(ops)]);
    assert_eq!(unfused.recorded_trace(&x)?, unfused.trace(&x)?);
    let recorded = built(OparaExecutor::builder().stop_after(Stage::Record))?;
    assert_eq!((recorded.report().mode(), lengths(&recorded)), (Mode::Eager, [Some(ops), None]));
    let inputs = one_on(1, &device)?;
    assert_same(&recorded.call(&inputs)?, &function(&inputs)?, "a module that was recorded and no more");
    Ok(())
}

#[test]
fn executors_that_share_kernels_can_be_dropped_in_any_order() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![((&t[0] + 0.625)?.sqr()? * 0.375)?.exp()?]);
    let build = || OparaExecutor::builder().build_fn(function, &one_on(0, &device)?).map_err(anyhow::Error::from);
    let (mut before, inputs) = (build()?, one_on(1, &device)?);
    let expected = function(&inputs)?;
    for _ in 0..3 {
        // One executor is built while the kernels are loaded, and one after they were unloaded.
        let fast = build()?;
        fused(&fast, 3);
        drop(before);
        assert_same(&fast.call(&inputs)?, &expected, "an executor after the other was dropped");
        drop(fast);
        before = build()?;
    }
    assert_same(&before.call(&inputs)?, &expected, "the last one");
    Ok(())
}

#[test]
fn compiled_kernels_are_stored_in_the_given_folder() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let kept = || Ok::<_, std::io::Error>(std::fs::read_dir(folder.path())?.count());
    let build = |folder: Option<&Path>, summand: f64| {
        let function = move |t: &[Tensor]| Ok(vec![(t[0].sqr()? + summand)?]);
        OparaExecutor::builder().cache_folder(folder.map(Path::to_path_buf)).build_fn(function, &one_on(0, &device)?)
    };
    fused(&build(None, 0.71875)?, 1);
    assert_eq!(kept()?, 0);
    // Another constant makes another kernel, which this process has not compiled yet.
    fused(&build(Some(folder.path()), 0.84375)?, 1);
    assert_eq!(kept()?, 1);
    Ok(())
}

/// In a process of its own, since a process looks for the compiler only once.
#[test]
fn without_a_compiler_launches_are_not_fused() -> anyhow::Result<()> {
    const VARIABLE: &str = "OPARA_NVRTC";
    let Some(device) = gpu() else { return Ok(()) };
    if std::env::var_os(VARIABLE).is_none() {
        let itself = std::env::current_exe()?;
        let name = "fuse::without_a_compiler_launches_are_not_fused";
        let run = Command::new(itself).env(VARIABLE, "/there/is/no/libnvrtc.so").args([name, "--exact"]).output()?;
        let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        anyhow::ensure!(run.status.success() && said.contains("1 passed"), "{said}");
        return Ok(());
    }
    let function = |t: &[Tensor]| Ok(vec![((&t[0] + 0.53125)?.sqr()? * 0.375)?.exp()?]);
    let fast = replayed(Mode::Graph, function, |i| one_on(i, &device));
    fused(&fast, 0);
    let report = fast.report();
    let is_said = |note: &String| note.contains("1 group of launches not fused") && note.contains("NVRTC");
    assert!(report.notes().iter().any(is_said), "{report}");
    Ok(())
}

#[test]
fn groups_longer_than_the_maximum_are_split() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| {
        let step = |x: Tensor, i: usize| x.affine(if i.is_multiple_of(2) { 0.5 } else { 2. }, 0.25);
        Ok(vec![(0..100).try_fold(t[0].clone(), step)?])
    };
    let fast = replayed(Mode::Graph, function, |i| one_on(i, &device));
    fused(&fast, 100 - 100usize.div_ceil(12));
    // With an additional operand for every second op.
    let sum = |t: &[Tensor]| Ok(vec![t[1..].iter().try_fold(t[0].clone(), |sum, x| (&sum * 0.5)? + x)?]);
    let inputs = |i: usize| (0..12).map(|j| waves(i + j, (3, 5))?.to_device(&device)).collect::<Result<Vec<_>>>();
    let fast = replayed(Mode::Graph, sum, inputs);
    fused(&fast, 22 - 2);
    Ok(())
}

#[test]
fn results_needed_later_stay_in_registers() {
    let Some(device) = gpu() else { return };
    // The first of the results is used last.
    let function = |many: usize| {
        move |t: &[Tensor]| {
            let base = t[0].relu()?;
            let parts = (0..many).map(|i| base.affine(1.5, i as f64)).collect::<Result<Vec<_>>>()?;
            let (last, rest) = parts.split_last().expect("at least one part");
            Ok(vec![rest.iter().rev().try_fold(last.clone(), |sum, part| part.sqr()? - sum)?])
        }
    };
    let inputs = |i| one_on(i, &device);
    let fast = replayed(Mode::Graph, function(4), inputs);
    fused(&fast, 10);
}

#[test]
fn groups_with_too_many_operands_are_split() {
    let Some(device) = gpu() else { return };
    // Two operands per norm, and later norms need the result.
    let function = |t: &[Tensor]| {
        let norm = |x: Tensor, i: usize| candle_nn::ops::layer_norm(&x, &t[1 + 2 * i], &t[2 + 2 * i], 1e-5);
        let normed = (0..8).try_fold(t[0].clone(), norm)?;
        Ok(vec![candle_nn::ops::softmax_last_dim(&normed.sqr()?.t()?.contiguous()?)?])
    };
    let inputs = |i| {
        let ones = (0..16).map(|j| waves(i + j, 24)?.to_device(&device));
        std::iter::once(waves(i, (8, 24))?.to_device(&device)).chain(ones).collect::<Result<Vec<_>>>()
    };
    // Seven norms are one launch, and the copy and the softmax another.
    fused(&replayed(Mode::Graph, function, inputs), 11 - 4);
}
