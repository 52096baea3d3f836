//! Modules of plain candle operators whose launches are rewritten, against candle and against double precision. Without a GPU each
//! test says that it skips.

mod convolutions;
mod disk;
mod images;
mod kernels;
mod layers;
mod norms;
mod pools;
mod transposed;
mod upsampling;

use candle::{DType, Result, Shape, Tensor};
use opara_candle::{Builder, Mode, OparaExecutor, Report};

/// A builder that rewrites these small modules whether or not their replays gain from it, and finds nothing of earlier runs.
fn accurate() -> Builder {
    OparaExecutor::builder().accurate().benchmark_challengers(false).cache_folder(None)
}

const FLOATS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// The unit roundoff: half the distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Root mean square error in roundoffs.
fn error(dtype: DType, got: &Tensor, reference: &Tensor) -> Result<f64> {
    let size = |t: &Tensor| t.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>();
    Ok(size(&(got.to_dtype(DType::F64)? - reference)?)? / size(reference)? / unit(dtype))
}

/// Random numbers of mean 0 and variance 1.
fn noise(seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    opara_weights::seeded(seed, DType::F32, crate::common::CPU).get((shape.elem_count(), 1), "x")?.reshape(shape)
}

/// The inputs that an executor is built with, and others that it is asked.
struct Inputs {
    built: Vec<Tensor>,
    asked: Vec<Tensor>,
}

/// Builds an executor of a module. It has to be no less accurate than candle on other inputs, for which there is a little more
/// tolerance. `in_double` is the module in double precision.
fn no_less_accurate(
    dtype: DType,
    said: &str,
    module: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    in_double: impl Fn(&[Tensor]) -> Result<Tensor>,
    Inputs { built, asked }: Inputs,
) -> anyhow::Result<Report> {
    let wide = asked.iter().map(|x| x.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
    let reference = in_double(&wide)?;
    let candle = error(dtype, &module(&asked)?, &reference)?;
    let fast = accurate().stress(1).build_fn(move |x: &[Tensor]| Ok(vec![module(x)?]), &built)?;
    let ours = error(dtype, &fast.call(&asked)?[0], &reference)?;
    let report = fast.report();
    println!("{dtype:?}, {said}: {ours:.3} roundings, candle {candle:.3}\n{report}");
    assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}, {said}: {ours:.3} roundings, candle {candle:.3}\n{report}");
    assert_eq!(report.mode(), Mode::Graph, "{report}");
    Ok(report)
}

/// Whether rewriting was left out because it is not faster on tensors as small as these. Its rules fitted then, and were no less
/// accurate.
fn is_not_faster(report: &Report) -> bool {
    report.notes().iter().any(|note| note.contains("one after the other"))
}

/// Whether candle's launches stay because the library's are a little less accurate on what the pass was recorded with. In f32 both
/// add the same products in another order, which decides.
fn is_less_accurate(dtype: DType, report: &Report) -> bool {
    let says = |note: &String| note.contains("mean error") || note.contains("largest error");
    dtype == DType::F32 && report.rewrites().is_empty() && report.notes().iter().any(says)
}

/// What was recorded and the rules that fit it are the same, whether or not anything is replaced.
#[test]
fn an_exact_report_says_which_rules_fit() -> anyhow::Result<()> {
    let Some(device) = crate::common::gpu() else { return Ok(()) };
    let weight = noise(1, (64, 64, 3, 3))?.to_device(&device)?;
    let x = noise(2, (1, 64, 16, 16))?.to_device(&device)?;
    let module = move |x: &Tensor| x.conv2d(&weight, 1, 1, 1, 1)?.silu();
    let exact = OparaExecutor::new(module.clone(), &x)?.report();
    assert!(exact.rewrites().is_empty() && exact.matches().iter().any(|found| found.rule == "convolution"), "{exact}");
    let rewritten = accurate().build(module, &x)?.report();
    assert!(rewritten.matches().is_empty(), "{rewritten}");
    Ok(())
}
