//! Usage patterns on a GPU that must be captured: dtypes, layouts, aliasing outputs, nesting, sizes. Tests skip without
//! a GPU or the feature `cuda`, and say so.

mod aliases;
use std::sync::{Arc, OnceLock};

use crate::common::{
    alternate_and_borrow, answers_like, assert_same, counts, gpu, layouts, one_on, refused, replayed, waves, DTYPES,
};
use candle::{DType, Module, Tensor};
use opara_candle::{Mode, OparaExecutor};

#[test]
fn every_dtype_can_be_an_input_and_an_output() {
    let Some(device) = gpu() else { return };
    for dtype in DTYPES {
        let function = |t: &[Tensor]| {
            let (x, y, ids) = (&t[0], &t[1], &t[2]);
            let sum = (x + y)?;
            let larger = x.gt(y)?;
            let (sorted, order) = sum.sort_last_dim(true)?;
            Ok(vec![
                larger.where_cond(x, &sum)?,
                sum.index_select(ids, 0)?,
                sum.argmax(1)?,
                sum.max(1)?,
                sum.eq(y)?,
                Tensor::cat(&[x, &sum], 1)?,
                sorted,
                order,
                larger,
                sum,
            ])
        };
        replayed(Mode::Graph, function, |i| {
            let (x, y) = (counts(i, (4, 6), dtype)?, counts(i + 5, (4, 6), dtype)?);
            let ids = Tensor::new(&[i as u32 % 4, 3, 0, 3, 1], &device)?;
            Ok(vec![x.to_device(&device)?, y.to_device(&device)?, ids])
        });
    }
}

#[test]
fn every_dtype_is_converted_to_the_others() {
    let Some(device) = gpu() else { return };
    // Conversions that candle's CUDA backend supports.
    let converts = |from, to| {
        let half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        !(from == DType::I64 && half(to) || to == DType::I64 && half(from))
    };
    for from in DTYPES {
        let function = move |t: &[Tensor]| {
            let all = DTYPES.iter().filter(|&&to| converts(from, to));
            all.map(|&to| t[0].to_dtype(to)).collect()
        };
        replayed(Mode::Graph, function, |i| Ok(vec![counts(i, (3, 5), from)?.to_device(&device)?]));
    }
}

#[test]
fn four_inputs_and_five_outputs_of_mixed_dtypes() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let (x, ids, mask, step) = (&t[0], &t[1], &t[2], &t[3]);
        Ok(vec![
            mask.where_cond(x, &x.zeros_like()?)?,
            x.index_select(ids, 0)?.to_dtype(DType::F16)?,
            mask.to_dtype(DType::I64)?.broadcast_add(step)?,
            x.to_dtype(DType::BF16)?.to_dtype(DType::F64)?,
            ids.sum_all()?,
        ])
    };
    replayed(Mode::Graph, function, |i| {
        let ids = Tensor::new(&[3u32, i as u32, 1], &device)?;
        let mask = counts(i, (4, 6), DType::U8)?.gt(6u8)?.to_device(&device)?;
        Ok(vec![waves(i, (4, 6))?.to_device(&device)?, ids, mask, Tensor::new(i as i64, &device)?])
    });
}

#[test]
fn inputs_may_change_their_memory_layout_between_calls() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| {
        let x = &t[0];
        let twice = (x + x)?;
        let joined = Tensor::cat(&[x, &twice], 0)?;
        Ok(vec![joined, x.sum_keepdim(1)?, x.t()?.contiguous()?, x.narrow(1, 1, 3)?, x.eq(&twice)?])
    };
    for dtype in [DType::U8, DType::F16, DType::F32] {
        for (way, example) in layouts(&counts(0, (4, 6), dtype)?.to_device(&device)?)? {
            let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&example))?;
            assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None), "{dtype:?}, {way}");
            for i in 1..4 {
                for (later, input) in layouts(&counts(i, (4, 6), dtype)?.to_device(&device)?)? {
                    let inputs = [input];
                    let of = format_args!("{dtype:?}, {way}, then {later}");
                    assert_same(&fast.call(&inputs)?, &function(&inputs)?, of);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_matmul_accepts_its_input_in_any_layout() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        // Sums of these are exact, whichever kernel the layout leads to.
        let weight = counts(1, (6, 8), dtype)?.to_device(&device)?;
        let function = move |t: &[Tensor]| Ok(vec![t[0].matmul(&weight)?]);
        for (way, example) in &layouts(&counts(0, (4, 6), dtype)?.to_device(&device)?)?[..3] {
            let fast = OparaExecutor::builder().build_fn(function.clone(), std::slice::from_ref(example))?;
            assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None), "{dtype:?}, {way}");
            for (later, input) in &layouts(&counts(3, (4, 6), dtype)?.to_device(&device)?)?[..3] {
                let inputs = std::slice::from_ref(input);
                let of = format_args!("{dtype:?}, {way}, then {later}");
                assert_same(&fast.call(inputs)?, &function(inputs)?, of);
            }
        }
    }
    Ok(())
}

/// A matmul of a strided matrix may use another kernel than a matmul of its copy, and round differently. Replays use
/// the copy.
#[test]
fn a_matmul_with_a_strided_example_is_captured() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = waves(1, (256, 192))?.to_device(&device)?;
    let function = move |t: &[Tensor]| Ok(vec![t[0].matmul(&weight)?]);
    for (way, example) in &layouts(&waves(0, (320, 256))?.to_device(&device)?)?[..3] {
        let fast = OparaExecutor::builder().build_fn(function.clone(), std::slice::from_ref(example))?;
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Graph, None), "{way}");
        for (later, input) in &layouts(&waves(1, (320, 256))?.to_device(&device)?)?[..3] {
            let expected = function(&[input.force_contiguous()?])?;
            assert_same(&fast.call(std::slice::from_ref(input))?, &expected, format_args!("{way}, then {later}"));
        }
    }
    Ok(())
}

#[test]
fn functions_without_kernels_or_with_unused_inputs() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let two = |i: usize| Ok(vec![waves(i, (4, 6))?.to_device(&device)?, counts(i, 3, DType::I64)?.to_device(&device)?]);
    replayed(Mode::Graph, |t: &[Tensor]| Ok(vec![t[1].clone(), t[0].clone()]), two);
    replayed(Mode::Graph, |t: &[Tensor]| Ok(vec![t[0].clone()]), two);
    replayed(Mode::Graph, |t: &[Tensor]| Ok(vec![(&t[1] + &t[1])?]), two);
    let fast = replayed(Mode::Graph, |_: &[Tensor]| Ok(vec![]), two);
    assert!(fast.call(&two(1)?)?.is_empty());
    Ok(())
}

#[test]
fn scalars_can_be_inputs_and_outputs() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let sum = t[1].sum_all()?;
        Ok(vec![(&t[0] + &sum)?, t[1].broadcast_mul(&t[0])?, sum, t[0].clone(), (&t[2] + &t[2])?])
    };
    replayed(Mode::Graph, function, |i| {
        let x = waves(i, (4, 6))?.to_device(&device)?;
        Ok(vec![Tensor::new(i as f32 + 0.5, &device)?, x, Tensor::new(i as u32 + 3, &device)?])
    });
}

#[test]
fn empty_tensors_can_be_inputs_and_outputs() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let (none, some, ids) = (&t[0], &t[1], &t[2]);
        let nothing = some.narrow(0, 2, 0)?;
        Ok(vec![
            none.relu()?,
            (none + &nothing)?,
            Tensor::cat(&[none, some, &nothing], 0)?,
            nothing.affine(2., 1.)?,
            nothing,
            none.clone(),
            ids.clone(),
        ])
    };
    replayed(Mode::Graph, function, |i| {
        let none = Tensor::zeros((0, 6), DType::F32, &device)?;
        Ok(vec![none, waves(i, (4, 6))?.to_device(&device)?, Tensor::zeros(0, DType::U32, &device)?])
    });
}

#[test]
fn empty_tensors_can_be_intermediates() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let none = Tensor::zeros((0, 6), DType::F32, t[0].device())?;
        let still_none = Tensor::cat(&[&none, &t[0].narrow(0, 0, 0)?], 0)?;
        Ok(vec![
            Tensor::cat(&[&still_none, &t[0]], 0)?,
            t[0].matmul(&none.t()?)?,
            // A sum over no elements.
            none.t()?.matmul(&still_none)?,
            none,
            still_none,
        ])
    };
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

#[test]
fn an_executor_inside_a_wrapped_module() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let inner = |x: &Tensor| x.tanh()?.sqr();
    let plain = move |t: &[Tensor]| Ok(vec![(inner(&t[0].relu()?)? + &t[0])?]);
    let wrapped = Arc::new(OparaExecutor::new(inner, &one_on(0, &device)?[0])?);
    let nested = {
        let wrapped = wrapped.clone();
        move |t: &[Tensor]| Ok(vec![(wrapped.forward(&t[0].relu()?)? + &t[0])?])
    };
    let of_plain = replayed(Mode::Graph, plain, |i| one_on(i, &device));
    let of_nested = replayed(Mode::Graph, nested, |i| one_on(i, &device));
    assert_eq!(
        of_nested.report().counts().ops,
        of_plain.report().counts().ops,
        "the outer executor records the inner one's kernels"
    );
    answers_like(&wrapped, |t: &[Tensor]| Ok(vec![inner(&t[0])?]), |i| one_on(i, &device));
    answers_like(&of_nested, plain, |i| Ok(vec![waves(i, (2, 3))?.to_device(&device)?]));
    Ok(())
}

#[test]
fn an_executor_may_be_built_inside_a_wrapped_module() {
    let Some(device) = gpu() else { return };
    let inner = Arc::new(OnceLock::<OparaExecutor>::new());
    let function = move |t: &[Tensor]| {
        let y = t[0].relu()?;
        if inner.get().is_none() {
            let built = OparaExecutor::new(|x: &Tensor| x.tanh()?.sqr(), &y)?;
            inner.get_or_init(|| built);
        }
        let inner = inner.get().expect("it was built just now");
        Ok(vec![(inner.forward(&y)? + &t[0])?])
    };
    replayed(Mode::Graph, function, |i| one_on(i, &device));
}

#[test]
fn an_eager_executor_calls_captured_ones_with_any_shape() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let inner = OparaExecutor::new(|x: &Tensor| x.tanh()?.sqr(), &one_on(0, &device)?[0])?;
    assert_eq!(inner.report().mode(), Mode::Graph, "{}", inner.report());
    let times_mean = |x: &Tensor, y: Tensor| y.affine(x.mean_all()?.to_scalar::<f32>()? as f64, 0.);
    let function = move |t: &[Tensor]| Ok(vec![times_mean(&t[0], inner.forward(&t[0])?)?]);
    let fast = refused(function, &one_on(0, &device)?, &["reads 4 bytes back"]);
    let plain = |t: &[Tensor]| Ok(vec![times_mean(&t[0], t[0].tanh()?.sqr()?)?]);
    answers_like(&fast, plain, |i| Ok(vec![waves(i, (i + 1, 6))?.to_device(&device)?]));
    Ok(())
}

#[test]
fn executors_of_one_module_alternate_and_share_borrowed_outputs() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weight = waves(7, (6, 6))?.to_device(&device)?;
    alternate_and_borrow(move |x: &Tensor| x.matmul(&weight)?.tanh(), &device)
}

#[test]
fn shapes_and_dtypes_may_alternate_on_one_executor() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![((&t[0] * &t[0])? + &t[0])?, t[0].sum_keepdim(0)?]);
    for max_shapes in [8, 2] {
        let fast = OparaExecutor::builder().max_shapes(max_shapes).build_fn(function, &one_on(0, &device)?)?;
        for round in 0..3 {
            for (rows, dtype) in [(4, DType::F32), (1, DType::F32), (4, DType::F64), (7, DType::U32), (2, DType::F16)] {
                let inputs = |i: usize| Ok(vec![counts(round + i, (rows, 6), dtype)?.to_device(&device)?]);
                answers_like(&fast, function, inputs);
                assert_eq!(fast.report().mode(), Mode::Graph, "{}", fast.report());
            }
        }
    }
    Ok(())
}

/// The second half of a tensor that may be allocated where a smaller one was before, which was no output.
#[test]
fn outputs_that_are_halves_of_reused_memory() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| {
        let smaller = [t[0].affine(2., 1.)?, t[0].affine(3., 1.)?];
        let sum = (&smaller[0] + &smaller[1])?;
        drop(smaller);
        let pair = Tensor::stack(&[&sum, &sum.sqr()?], 0)?;
        Ok(vec![pair.get(1)?, pair.get(0)?])
    };
    // From suballocations of a 2 MiB block to allocations of their own.
    for rows in [1, 64, 2_048, 4_096, 16_384] {
        replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (rows, 256))?.to_device(&device)?]));
    }
    Ok(())
}
