//! What holds for every operator and layer: any memory layout, no elements, and gradients that are never left out in silence.

use std::collections::BTreeSet;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use candle::{DType, Device::Cpu, Result, Tensor, Var};
use opara_candle::{Mode, OparaExecutor};

use crate::table::{cases, Case, Operand, Sizes, IN_PLACE, SOME};
use crate::{doubles, tolerance};

fn operands(case: &Case, sizes: Sizes, dtype: DType) -> Result<Vec<Tensor>> {
    (case.operands)(sizes).iter().enumerate().map(|(seed, operand)| operand.values(seed + 1, dtype)).collect()
}

/// The same values in several memory layouts.
fn layouts(x: &Tensor) -> Result<Vec<Tensor>> {
    let rank = x.rank();
    let mut all = Vec::new();
    // Two dimensions exchanged in memory, and all reversed.
    for (a, b) in (0..rank).flat_map(|a| (a + 1..rank).map(move |b| (a, b))) {
        all.push(x.transpose(a, b)?.contiguous()?.transpose(a, b)?);
    }
    let reversed: Vec<usize> = (0..rank).rev().collect();
    if rank > 2 {
        all.push(x.permute(reversed.clone())?.contiguous()?.permute(reversed)?);
    }
    // A part of a larger tensor, at an offset.
    for dim in 0..rank {
        let larger = Tensor::cat(&[&x.narrow(dim, 0, 1)?, x, &x.narrow(dim, 0, 1)?], dim)?;
        all.push(larger.narrow(dim, 1, x.dim(dim)?)?);
    }
    // Both.
    if rank > 1 {
        let turned = x.transpose(0, 1)?.contiguous()?;
        let larger = Tensor::cat(&[&turned, &turned], rank - 1)?;
        all.push(larger.narrow(rank - 1, 0, turned.dim(rank - 1)?)?.transpose(0, 1)?);
    }
    Ok(all)
}

/// The first of each dimension, repeated by strides of zero.
fn repeated(x: &Tensor) -> Result<Vec<Tensor>> {
    (0..x.rank()).map(|dim| x.narrow(dim, 0, 1)?.broadcast_as(x.shape())).collect()
}

/// What differs, if anything does.
fn difference(got: &[Tensor], expected: &[Tensor], dtype: DType) -> Result<Option<String>> {
    if got.len() != expected.len() {
        return Ok(Some(format!("{} results, not {}", got.len(), expected.len())));
    }
    for (got, expected) in got.iter().zip(expected) {
        if (got.dims(), got.dtype()) != (expected.dims(), expected.dtype()) {
            return Ok(Some(format!("a result of {:?} {:?}, not {expected}", got.dtype(), got.dims())));
        }
        for (i, (got, expected)) in doubles(got)?.into_iter().zip(doubles(expected)?).enumerate() {
            if (got - expected).abs() > 4. * tolerance(dtype) * expected.abs().max(1.)
                || got.is_nan() != expected.is_nan()
            {
                return Ok(Some(format!("element {i} is {got}, not {expected}")));
            }
        }
    }
    Ok(None)
}

#[track_caller]
fn assert_alike(got: &[Tensor], expected: &[Tensor], dtype: DType, of: impl std::fmt::Display) {
    assert_eq!(difference(got, expected, dtype).expect("they can be read"), None, "{of}");
}

/// All that failed, each once.
#[derive(Default)]
struct Failures(BTreeSet<String>);

impl Failures {
    /// Runs an operator, and compares.
    fn compare(&mut self, of: String, run: impl FnOnce() -> Result<Vec<Tensor>>, expected: &[Tensor], dtype: DType) {
        let ran = catch_unwind(AssertUnwindSafe(|| difference(&run()?, expected, dtype)));
        let failed = match ran {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(difference))) => difference,
            Ok(Err(error)) => error.to_string().lines().next().unwrap_or_default().to_string(),
            Err(_) => "a panic".into(),
        };
        self.0.insert(format!("{of}: {failed}"));
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "{} failed: {:#?}", self.0.len(), self.0);
        }
    }
}

/// All operands in the same of their layouts.
fn turned(contiguous: &[Tensor], which: usize) -> Result<Vec<Tensor>> {
    contiguous.iter().map(|x| Ok(layouts(x)?.into_iter().cycle().nth(which).unwrap_or(x.clone()))).collect()
}

#[test]
fn every_operator_takes_any_memory_layout() -> Result<()> {
    let mut failures = Failures::default();
    for case in cases() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let contiguous = operands(&case, SOME, dtype)?;
            let Ok(expected) = (case.run)(&contiguous) else {
                assert_ne!(dtype, DType::F32, "{}", case.name);
                continue;
            };
            for (at, operand) in contiguous.iter().enumerate() {
                let with = |x: &Tensor| {
                    let mut operands = contiguous.clone();
                    operands[at] = x.clone();
                    operands
                };
                let of = |x: &Tensor| {
                    let (dims, stride) = (x.dims(), x.stride());
                    format!("{} in {dtype:?}, operand {at} of {dims:?} with strides {stride:?}", case.name)
                };
                for x in layouts(operand)? {
                    failures.compare(of(&x), || (case.run)(&with(&x)), &expected, dtype);
                }
                for x in repeated(operand)? {
                    let expected = (case.run)(&with(&x.force_contiguous()?))?;
                    failures.compare(of(&x), || (case.run)(&with(&x)), &expected, dtype);
                }
            }
            for which in 0..3 {
                let operands = turned(&contiguous, which)?;
                let of = format!("{} in {dtype:?}, all operands in layout {which}", case.name);
                failures.compare(of, || (case.run)(&operands), &expected, dtype);
            }
        }
    }
    Ok(())
}

#[test]
fn an_executor_of_every_operator_takes_any_memory_layout() -> anyhow::Result<()> {
    let mut failures = Failures::default();
    for case in cases() {
        let contiguous = operands(&case, SOME, DType::F32)?;
        if contiguous.is_empty() {
            continue;
        }
        let expected = (case.run)(&contiguous)?;
        let (name, run) = (case.name, std::sync::Arc::new(case.run));
        for example in [contiguous.clone(), turned(&contiguous, 0)?] {
            let run = run.clone();
            let fast = OparaExecutor::builder().build_fn(move |t| run(t), &example)?;
            for operands in [contiguous.clone(), turned(&contiguous, 0)?, turned(&contiguous, 1)?] {
                let call = || fast.call(&operands).map_err(candle::Error::from);
                failures.compare(format!("an executor of {name}"), call, &expected, DType::F32);
            }
        }
    }
    Ok(())
}

/// Views without elements that begin behind the memory of their tensor.
fn behind(x: &Tensor) -> Result<Tensor> {
    let larger: Vec<usize> = x.dims().iter().map(|dim| dim + 2).collect();
    let mut view = Tensor::zeros(larger, x.dtype(), &Cpu)?;
    for (dim, &size) in x.dims().iter().enumerate() {
        view = view.narrow(dim, 2, size)?;
    }
    Ok(view)
}

#[test]
fn every_operator_takes_nothing_or_says_why_not() -> anyhow::Result<()> {
    let mut failures = Failures::default();
    for case in cases() {
        for zero in 0..SOME.len() {
            let mut sizes = SOME;
            sizes[zero] = 0;
            if (case.operands)(sizes).iter().map(Operand::shape).eq((case.operands)(SOME).iter().map(Operand::shape)) {
                continue;
            }
            let expected = (case.results)(sizes);
            for dtype in [DType::F32, DType::F64, DType::F16] {
                let plain = operands(&case, sizes, dtype)?;
                let views = plain.iter().map(|x| if x.elem_count() == 0 { behind(x) } else { Ok(x.clone()) });
                for operands in [plain.clone(), views.collect::<Result<Vec<_>>>()?] {
                    let shapes: Vec<&[usize]> = operands.iter().map(Tensor::dims).collect();
                    let of = format!("{} of {shapes:?} in {dtype:?}", case.name);
                    let run = || -> Result<Vec<Tensor>> {
                        // An error is an answer.
                        let Ok(results) = (case.run)(&operands) else { return Ok(Vec::new()) };
                        let got: Vec<Vec<usize>> = results.iter().map(|y| y.dims().to_vec()).collect();
                        if got != expected {
                            candle::bail!("results of {got:?}, not {expected:?}")
                        }
                        for y in &results {
                            // What candle does with a result must not panic, either.
                            let values = y.contiguous()?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
                            let is_mean_of_none = ["mean_keepdim", "global_avg_pool2d"].contains(&case.name);
                            if !is_mean_of_none && values.iter().any(|y| !y.is_finite()) {
                                candle::bail!("{values:?}")
                            }
                        }
                        Ok(Vec::new())
                    };
                    failures.compare(of, run, &[], dtype);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_executor_of_every_operator_takes_nothing() -> anyhow::Result<()> {
    let mut failures = Failures::default();
    for case in cases() {
        let (name, run) = (case.name, std::sync::Arc::new(case.run));
        for zero in 0..SOME.len() {
            let mut sizes = SOME;
            sizes[zero] = 0;
            let operands = (case.operands)(sizes);
            let operands = operands.iter().enumerate().map(|(seed, x)| x.values(seed + 1, DType::F32));
            let operands = operands.collect::<Result<Vec<_>>>()?;
            let Ok(Ok(eager)) = catch_unwind(AssertUnwindSafe(|| run(&operands))) else { continue };
            if operands.is_empty() || operands.iter().all(|x| x.elem_count() > 0) {
                continue;
            }
            let views = operands.iter().map(|x| if x.elem_count() == 0 { behind(x) } else { Ok(x.clone()) });
            for operands in [operands.clone(), views.collect::<Result<Vec<_>>>()?] {
                let shapes: Vec<&[usize]> = operands.iter().map(Tensor::dims).collect();
                let run = run.clone();
                let call = || {
                    let fast = OparaExecutor::builder().build_fn(move |t| run(t), &operands)?;
                    let called = fast.call(&operands)?;
                    let borrowed = fast.call_zero_copy(&operands, <[Tensor]>::to_vec)?;
                    Ok([called, borrowed].concat())
                };
                let twice = [eager.clone(), eager.clone()].concat();
                failures.compare(format!("an executor of {name} of {shapes:?}"), call, &twice, DType::F32);
            }
        }
    }
    Ok(())
}

#[test]
fn outputs_without_elements_are_views_of_no_ones_memory() -> anyhow::Result<()> {
    let x = Tensor::ones((4, 6), DType::F32, &Cpu)?;
    // Plain candle: the module runs eagerly, and so does building.
    let plain = |t: &[Tensor]| Ok(vec![t[0].narrow(0, 4, 0)?.narrow(1, 3, 2)?, t[0].clone()]);
    let fast = OparaExecutor::builder().build_fn(plain, std::slice::from_ref(&x))?;
    assert_eq!(fast.report().mode(), Mode::Eager);
    let outputs = fast.call(&[x])?;
    assert_eq!(outputs[0].to_vec2::<f32>()?, [] as [Vec<f32>; 0]);
    Ok(())
}

/// The gradient of the sum of an operator's weighted results by an operand.
fn numeric(case: &Case, operands: &[Tensor], at: usize) -> Result<Vec<f64>> {
    const STEP: f64 = 1. / 1024.;
    let values = doubles(&operands[at])?;
    let of = |i: usize, step: f64| {
        let mut moved = values.clone();
        moved[i] += step;
        let mut operands = operands.to_vec();
        operands[at] = Tensor::from_vec(moved, operands[at].shape(), &Cpu)?.to_dtype(DType::F32)?;
        loss(&(case.run)(&operands)?)?.to_dtype(DType::F64)?.to_scalar::<f64>()
    };
    (0..values.len()).map(|i| Ok((of(i, STEP)? - of(i, -STEP)?) / (2. * STEP))).collect()
}

/// The sum of all results, each element with a weight of its own.
fn loss(results: &[Tensor]) -> Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, &Cpu)?;
    for y in results.iter().filter(|y| y.dtype().is_float()) {
        let weights = crate::values(17, y.dims(), DType::F32)?;
        sum = (sum + (y.to_dtype(DType::F32)? * weights)?.sum_all()?)?;
    }
    Ok(sum)
}

#[test]
fn every_operator_has_a_gradient_or_an_error_that_names_it() -> anyhow::Result<()> {
    let mut without = BTreeSet::new();
    let names: BTreeSet<&str> = cases().iter().map(|case| case.name.trim_start_matches("nn::")).collect();
    for case in cases() {
        let plain = operands(&case, SOME, DType::F32)?;
        for at in (0..plain.len()).filter(|at| plain[*at].dtype().is_float()) {
            let variable = Var::from_tensor(&plain[at])?;
            let mut tracked = plain.clone();
            tracked[at] = variable.as_tensor().clone();
            let results = (case.run)(&tracked)?;
            assert_alike(&results, &(case.run)(&plain)?, DType::F32, format_args!("{} of a variable", case.name));
            if !results.iter().any(|y| y.dtype().is_float()) {
                continue;
            }
            match loss(&results)?.backward() {
                Ok(gradients) => {
                    let Some(gradient) = gradients.get(variable.as_tensor()) else {
                        panic!("{} leaves out the gradient of operand {at}", case.name)
                    };
                    for (i, (got, expected)) in doubles(gradient)?.iter().zip(numeric(&case, &plain, at)?).enumerate() {
                        let close = (got - expected).abs() < 0.02 * expected.abs().max(1.);
                        assert!(close, "{}: gradient {i} of operand {at} is {got}, not {expected}", case.name);
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("backward"), "{}: {error}", case.name);
                    // Its own name, or that of an operator of this library which it consists of.
                    let is_named = names.iter().any(|name| error.contains(name)) || error.contains("softmax");
                    assert!(is_named, "{} is not named: {error}", case.name);
                    without.insert(case.name);
                }
            }
        }
    }
    let without: Vec<&str> = without.into_iter().collect();
    let expected = [
        "cached_attention",
        "linear_packed",
        "nn::KvCache::append",
        "nn::PackedLinear",
        "nn::PackedLinear::forward_act",
        "nn::PackedLinear::forward_no_bias",
        "rope",
        "rope_i",
    ];
    assert_eq!(without, expected, "the first six have no backward pass, the others none to their angles");
    Ok(())
}

#[test]
fn the_table_has_every_operator() -> anyhow::Result<()> {
    fn functions(folder: &Path, into: &mut BTreeSet<String>) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                functions(&path, into)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path)?;
                let names = source.lines().filter_map(|line| line.strip_prefix("pub fn "));
                into.extend(names.filter_map(|rest| rest.split(['(', '<']).next()).map(ToString::to_string));
            }
        }
        Ok(())
    }
    let mut of = BTreeSet::new();
    functions(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"), &mut of)?;
    let known: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
    // A setting of the process; a loss, which has no value without classes; a function of a step's number; a number of rows;
    // whether there is a kernel.
    let others = ["use_candle_only", "cross_entropy", "dropout", "alike_rows", "has_ranged_attention"];
    for name in of {
        let is_known = known.contains(&*name) || IN_PLACE.contains(&&*name) || others.contains(&&*name);
        assert!(is_known, "`ops::{name}` is not in the table");
    }
    Ok(())
}
