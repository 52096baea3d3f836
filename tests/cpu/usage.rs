//! Usage patterns on the CPU: dtypes, layouts, aliasing outputs, nesting, threads, sizes.

use std::sync::{Arc, OnceLock};

use candle::{DType, Module, Result, Tensor, D};
use opara_candle::{ops, Mode, OparaExecutor};

use super::common::{
    alternate_and_borrow, answers_like, assert_branches_are_free, assert_same, counts, layouts, one, refused, replayed,
    waves, CPU, DTYPES,
};

#[test]
fn every_dtype_can_be_an_input_and_an_output() {
    for dtype in DTYPES {
        let function = |t: &[Tensor]| {
            let sum = ops::add(&t[0], &t[1])?;
            let larger = ops::custom("gt", &[&t[0], &t[1]], |t| t[0].gt(t[1]))?;
            let order = ops::custom("argsort", &[&sum], |t| t[0].arg_sort_last_dim(true))?;
            Ok(vec![
                ops::custom("where", &[&larger, &t[0], &sum], |t| t[0].where_cond(t[1], t[2]))?,
                ops::custom("index_select", &[&sum, &t[2]], |t| t[0].index_select(t[1], 0))?,
                ops::custom("argmax", &[&sum], |t| t[0].argmax(D::Minus1))?,
                ops::custom("gather", &[&sum, &order], |t| t[0].gather(t[1], 1))?,
                ops::cat(&[&t[0], &sum], 1)?,
                larger,
                order,
            ])
        };
        replayed(Mode::Threads, function, |i| {
            let ids = Tensor::new(&[i as u32 % 4, 3, 0, 3], CPU)?;
            Ok(vec![counts(i, (4, 6), dtype)?, counts(i + 5, (4, 6), dtype)?, ids])
        });
    }
}

#[test]
fn every_dtype_is_converted_to_every_other() {
    for from in DTYPES {
        let function = |t: &[Tensor]| DTYPES.iter().map(|&to| ops::to_dtype(&t[0], to)).collect();
        replayed(Mode::Threads, function, |i| Ok(vec![counts(i, (3, 5), from)?]));
    }
}

#[test]
fn four_inputs_and_five_outputs_of_mixed_dtypes() {
    let function = |t: &[Tensor]| {
        let (x, ids, mask, step) = (&t[0], &t[1], &t[2], &t[3]);
        let rows = ops::embedding(x, ids)?;
        Ok(vec![
            ops::custom("where", &[mask, x], |t| t[0].where_cond(t[1], &t[1].zeros_like()?))?,
            ops::to_dtype(&rows, DType::F16)?,
            ops::add(&ops::to_dtype(mask, DType::I64)?, step)?,
            ops::to_dtype(&ops::to_dtype(x, DType::BF16)?, DType::F64)?,
            ops::custom("sum_all", &[ids], |t| t[0].sum_all())?,
        ])
    };
    replayed(Mode::Threads, function, |i| {
        let ids = Tensor::new(&[3u32, i as u32, 1], CPU)?;
        let mask = (counts(i, (4, 6), DType::U8)?.gt(6f64))?;
        Ok(vec![waves(i, (4, 6))?, ids, mask, Tensor::new(i as i64, CPU)?])
    });
}

#[test]
fn inputs_may_change_their_memory_layout_between_calls() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| {
        let twice = ops::add(&t[0], &t[0])?;
        let sum = ops::sum_keepdim(&t[0], 1)?;
        Ok(vec![ops::cat(&[&t[0], &twice], 0)?, sum, ops::transpose(&t[0], 0, 1)?, ops::narrow(&t[0], 1, 1, 3)?])
    };
    for dtype in [DType::U8, DType::F16, DType::F32] {
        let ways = layouts(&counts(0, (4, 6), dtype)?)?;
        for (way, example) in &ways {
            let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(example))?;
            assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None), "{way}");
            for i in 1..4 {
                for (later, input) in layouts(&counts(i, (4, 6), dtype)?)? {
                    let inputs = [input];
                    assert_same(&fast.call(&inputs)?, &function(&inputs)?, format_args!("{way}, then {later}"));
                }
            }
        }
    }
    Ok(())
}

/// candle's `contiguous` returns a contiguous tensor unchanged, so nothing is recorded for it.
#[test]
fn a_module_that_makes_its_input_contiguous_itself_takes_any_layout() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| {
        let rows = t[0].contiguous()?;
        let order = Tensor::new(&[2u32, 0, 1], CPU)?;
        Ok(vec![ops::custom("index_select", &[&rows], move |t| t[0].index_select(&order, 0))?])
    };
    let fast = OparaExecutor::builder().build_fn(function, &one(0)?)?;
    assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
    for i in 1..4 {
        for (way, input) in layouts(&waves(i, (4, 6))?)? {
            let inputs = [input];
            assert_same(&fast.call(&inputs)?, &function(&inputs)?, way);
        }
    }
    Ok(())
}

#[test]
fn matmuls_accept_inputs_in_any_layout() -> anyhow::Result<()> {
    let weight = waves(9, (64, 32))?;
    let function = move |t: &[Tensor]| Ok(vec![ops::matmul(&t[0], &weight)?]);
    for (way, example) in &layouts(&waves(0, (48, 64))?)?[..3] {
        let fast = OparaExecutor::builder().build_fn(function.clone(), std::slice::from_ref(example))?;
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None), "{way}");
        for (later, input) in &layouts(&waves(1, (48, 64))?)?[..3] {
            let expected = function(&[input.contiguous()?])?;
            assert_same(&fast.call(std::slice::from_ref(input))?, &expected, format_args!("{way}, then {later}"));
        }
    }
    Ok(())
}

#[test]
fn one_tensor_may_be_two_inputs_and_a_weight() -> anyhow::Result<()> {
    let weight = waves(5, (4, 6))?;
    let function = {
        let weight = weight.clone();
        move |t: &[Tensor]| Ok(vec![ops::sub(&ops::add(&t[0], &t[0])?, &ops::mul(&t[1], &weight)?)?])
    };
    let twins = |x: &Tensor| vec![x.clone(), x.clone()];
    for example in [twins(&waves(0, (4, 6))?), twins(&weight), vec![waves(0, (4, 6))?, weight.clone()]] {
        let fast = OparaExecutor::builder().build_fn(function.clone(), &example)?;
        assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
        answers_like(&fast, &function, |i| Ok(vec![waves(i, (4, 6))?, waves(i + 4, (4, 6))?]));
        answers_like(&fast, &function, |i| Ok(twins(&waves(i, (4, 6))?)));
        answers_like(&fast, &function, |_| Ok(twins(&weight)));
    }
    Ok(())
}

#[test]
fn outputs_of_one_call_are_inputs_of_the_next() -> anyhow::Result<()> {
    let step = |t: &[Tensor]| Ok(vec![ops::tanh(&ops::add(&t[0], &t[1])?)?, ops::affine(&t[0], 0.5, 0.1)?]);
    let mut expected = vec![waves(0, (4, 6))?, waves(1, (4, 6))?];
    let fast = OparaExecutor::builder().build_fn(step, &expected)?;
    let mut called = expected.clone();
    let mut borrowed = expected.clone();
    for i in 0..20 {
        expected = step(&expected)?;
        called = fast.call(&called)?;
        borrowed = fast.call_zero_copy(&borrowed, <[Tensor]>::to_vec)?;
        assert_same(&called, &expected, format_args!("call {i}"));
        assert_same(&borrowed, &expected, format_args!("borrowed, call {i}"));
    }
    Ok(())
}

#[test]
fn outputs_that_are_inputs_views_or_each_other() {
    let function = |t: &[Tensor]| {
        let x = &t[0];
        let y = ops::tanh(x)?;
        let row = ops::narrow(&y, 0, 1, 1)?;
        Ok(vec![
            x.clone(),
            x.clone(),
            ops::reshape(x, (6, 4))?,
            ops::narrow(x, 1, 1, 3)?,
            ops::transpose(x, 0, 1)?,
            y.clone(),
            row.clone(),
            ops::transpose(&y, 0, 1)?,
            ops::narrow(&row, 1, 3, 2)?,
            y,
            row,
        ])
    };
    replayed(Mode::Threads, function, one);
}

#[test]
fn the_caller_may_overwrite_an_output_that_depends_on_no_input() -> anyhow::Result<()> {
    let weight = waves(3, (2, 2))?;
    let function = move |_: &[Tensor]| {
        let ones = ops::constant("ones", || Tensor::ones((2, 3), DType::F32, CPU))?;
        let zeros = ops::constant("zeros", || Tensor::zeros((2, 3), DType::F32, CPU))?;
        Ok(vec![ops::narrow(&ones, 0, 1, 1)?, ops::reshape(&ones, (3, 2))?, zeros, ops::relu(&weight)?])
    };
    let fast = replayed(Mode::Threads, function.clone(), one);
    for output in fast.call(&one(1)?)? {
        output.const_set(candle::scalar::Scalar::F32(5.))?;
    }
    assert_same(&fast.call(&one(2)?)?, &function(&[])?, "a call after one whose outputs were overwritten");
    Ok(())
}

#[test]
fn an_output_that_is_a_weight_runs_eagerly() -> anyhow::Result<()> {
    let weight = waves(3, (2, 2))?;
    let function = move |t: &[Tensor]| Ok(vec![ops::relu(&t[0])?, weight.clone()]);
    let fast = refused(function.clone(), &one(0)?, &["output 1"]);
    answers_like(&fast, function, one);
    Ok(())
}

#[test]
fn functions_without_operators_or_with_unused_inputs() -> anyhow::Result<()> {
    let two = |i: usize| Ok(vec![waves(i, (4, 6))?, waves(i + 9, 3)?]);
    replayed(Mode::Threads, |t: &[Tensor]| Ok(vec![t[1].clone(), t[0].clone()]), two);
    replayed(Mode::Threads, |t: &[Tensor]| Ok(vec![ops::relu(&t[1])?]), two);
    let fast = replayed(Mode::Threads, |_: &[Tensor]| Ok(vec![]), two);
    assert!(fast.call(&two(1)?)?.is_empty());
    Ok(())
}

#[test]
fn scalars_can_be_inputs_and_outputs() {
    let function = |t: &[Tensor]| {
        let sum = ops::custom("sum_all", &[&t[1]], |t| t[0].sum_all())?;
        Ok(vec![ops::add(&t[0], &sum)?, ops::mul(&t[1], &t[0])?, sum, t[0].clone()])
    };
    replayed(Mode::Threads, function, |i| Ok(vec![Tensor::new(i as f32 + 0.5, CPU)?, waves(i, (4, 6))?]));
}

#[test]
fn empty_tensors_can_be_inputs_outputs_and_intermediates() {
    let function = |t: &[Tensor]| {
        let (none, some) = (&t[0], &t[1]);
        let nothing = ops::tanh(&ops::narrow(some, 0, 2, 0)?)?;
        let flat = ops::transpose(none, 0, 1)?;
        Ok(vec![
            ops::relu(none)?,
            ops::cat(&[none, some, &nothing], 0)?,
            ops::cat(&[none, &nothing], 0)?,
            ops::matmul(some, &flat)?,
            ops::matmul(&flat, none)?,
            none.clone(),
            nothing,
        ])
    };
    replayed(Mode::Threads, function, |i| Ok(vec![Tensor::zeros((0, 6), DType::F32, CPU)?, waves(i, (4, 6))?]));
}

#[test]
fn an_operator_may_write_to_its_own_result() {
    let function = |t: &[Tensor]| {
        let padded = ops::custom("pad", &[&t[0]], |t| {
            let padded = Tensor::zeros((6, 6), DType::F32, CPU)?;
            padded.slice_set(t[0], 0, 1)?;
            Ok(padded)
        })?;
        let set = ops::custom("scatter", &[&t[0], &t[1]], |t| {
            let zeros = Tensor::zeros((4, 8), DType::F32, CPU)?;
            zeros.scatter_set(t[1], t[0], 1)?;
            zeros.scatter_add_set(t[1], t[0], 1)?;
            Ok(zeros)
        })?;
        let rows = ops::custom("index_add", &[&padded, &t[0]], |t| {
            t[0].index_add(&Tensor::new(&[0u32, 5, 0, 2], CPU)?, t[1], 0)
        })?;
        Ok(vec![padded, set, rows])
    };
    replayed(Mode::Threads, function, |i| {
        Ok(vec![waves(i, (4, 6))?, counts(i, (4, 6), DType::U32)?.clamp(0u32, 7u32)?])
    });
}

#[test]
fn concatenation_and_splitting_of_many_parts() {
    let function = |t: &[Tensor]| {
        let parts = (0..40).map(|i| ops::affine(&ops::narrow(&t[0], 1, i % 5, 1 + i % 2)?, i as f64, 1.));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let parts: Vec<&Tensor> = parts.iter().collect();
        let columns = ops::cat(&parts, 1)?;
        let thirds = (0..3).map(|i| ops::narrow(&columns, 1, 20 * i, 20)).collect::<Result<Vec<_>>>()?;
        Ok([thirds, vec![ops::cat(&parts[2..4], 1)?, ops::cat(&[&columns, &columns], 0)?]].concat())
    };
    replayed(Mode::Threads, function, one);
}

#[test]
fn convolutions_with_a_common_input_are_independent() {
    let weights: Vec<Tensor> = (0..5).map(|i| waves(i, (8, 8, 3, 3))).collect::<Result<_>>().expect("weights");
    let same = ops::ConvConfig::default().padding(1);
    let function = move |t: &[Tensor]| {
        let stem = ops::conv2d(&t[0], &weights[4], None, &same)?;
        let branch = |i: usize| {
            let _scope = opara_candle::scope(&format!("branch-{i}"));
            ops::conv2d(&stem, &weights[i], None, &same)
        };
        let branches = (0..4).map(branch).collect::<Result<Vec<_>>>()?;
        Ok(vec![ops::cat(&branches.iter().collect::<Vec<_>>(), 1)?])
    };
    let inputs = |i| Ok(vec![waves(i, (1, 8, 12, 12))?]);
    let fast = replayed(Mode::Threads, function, inputs);
    assert_eq!((fast.report().counts().width, fast.report().counts().streams), (4, 4));
    assert_branches_are_free(&fast, inputs(0), 4);
}

#[test]
fn grouped_and_transposed_convolutions() {
    let weight = |i: usize, shape: [usize; 3]| waves(i, shape.to_vec()).expect("a weight");
    let (grouped, transposed) = (weight(1, [6, 2, 3]), weight(2, [4, 3, 3]));
    let depthwise = waves(3, (4, 1, 3, 3)).expect("a weight");
    let function = move |t: &[Tensor]| {
        let row = &t[0];
        let plane = ops::reshape(row, (1, 4, 6, 5))?;
        let config = ops::ConvConfig::default().padding(1).groups(4);
        Ok(vec![
            ops::custom("conv1d", &[row, &grouped], |t| t[0].conv1d(t[1], 1, 2, 1, 2))?,
            ops::custom("conv_transpose1d", &[row, &transposed], |t| t[0].conv_transpose1d(t[1], 1, 1, 2, 1, 1))?,
            ops::conv2d(&plane, &depthwise, None, &config)?,
        ])
    };
    replayed(Mode::Threads, function, |i| Ok(vec![waves(i, (1, 4, 30))?]));
}

#[test]
fn an_executor_may_be_built_inside_a_wrapped_module() {
    let inner = Arc::new(OnceLock::<OparaExecutor>::new());
    let function = move |t: &[Tensor]| {
        let y = ops::relu(&t[0])?;
        if inner.get().is_none() {
            let built = OparaExecutor::new(|x: &Tensor| ops::sqr(&ops::tanh(x)?), &y)?;
            inner.get_or_init(|| built);
        }
        let inner = inner.get().expect("it was built just now");
        Ok(vec![ops::add(&inner.forward(&y)?, &t[0])?])
    };
    let fast = replayed(Mode::Threads, function, one);
    assert_eq!(fast.report().counts().ops, 4, "the outer executor records the inner one's operators");
}

#[test]
fn an_eager_executor_calls_others_with_any_shape() -> anyhow::Result<()> {
    let inner = OparaExecutor::new(|x: &Tensor| ops::sqr(&ops::tanh(x)?), &one(0)?[0])?;
    let times_mean = |x: &Tensor, y: Tensor| y.affine(x.mean_all()?.to_scalar::<f32>()? as f64, 0.);
    let function = move |t: &[Tensor]| Ok(vec![times_mean(&t[0], inner.forward(&t[0])?)?]);
    let fast = refused(function, &one(0)?, &["output 0"]);
    let plain = |t: &[Tensor]| Ok(vec![times_mean(&t[0], t[0].tanh()?.sqr()?)?]);
    answers_like(&fast, plain, |i| Ok(vec![waves(i, (i + 1, 6))?]));
    Ok(())
}

#[test]
fn executors_of_one_module_alternate_and_share_borrowed_outputs() -> anyhow::Result<()> {
    let weight = waves(7, (6, 6))?;
    alternate_and_borrow(move |x: &Tensor| ops::tanh(&ops::matmul(x, &weight)?), CPU)
}

#[test]
fn an_executor_outlives_the_thread_that_built_it() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| Ok(vec![ops::tanh(&t[0])?, ops::sum_keepdim(&ops::sqr(&t[0])?, 1)?]);
    let build = move || OparaExecutor::builder().build_fn(function, &one(0)?);
    let fast = std::thread::spawn(build).join().expect("no panic")?;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let fast = &fast;
            scope.spawn(move || answers_like(fast, function, |i| one(10 * thread + i)));
        }
    });
    Ok(())
}

#[test]
fn shapes_and_dtypes_may_alternate_on_one_executor() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| Ok(vec![ops::add(&ops::mul(&t[0], &t[0])?, &t[0])?, ops::sum_keepdim(&t[0], 0)?]);
    let fast = OparaExecutor::builder().max_shapes(3).build_fn(function, &one(0)?)?;
    for round in 0..3 {
        for (rows, dtype) in [(4, DType::F32), (1, DType::F32), (4, DType::F64), (7, DType::U32), (2, DType::F32)] {
            answers_like(&fast, function, |i| Ok(vec![counts(round + i, (rows, 6), dtype)?]));
            assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn a_chain_of_five_thousand_operators() -> anyhow::Result<()> {
    let chain = |t: &[Tensor]| {
        let step = |x: Tensor, i: usize| ops::affine(&x, if i.is_multiple_of(2) { 0.5 } else { 2. }, 0.25);
        Ok(vec![(0..5_000).try_fold(t[0].clone(), step)?])
    };
    let fast = OparaExecutor::builder().build_fn(chain, &one(0)?)?;
    assert_eq!(
        (fast.report().mode(), fast.report().counts().depth, fast.report().counts().streams),
        (Mode::Threads, 5_000, 1)
    );
    answers_like(&fast, chain, one);
    Ok(())
}

#[test]
fn two_thousand_parallel_operators() -> anyhow::Result<()> {
    let parallel = |t: &[Tensor]| {
        let parts = (0..2_000).map(|i| ops::affine(&t[0], i as f64, 1.)).collect::<Result<Vec<_>>>()?;
        Ok(vec![ops::cat(&parts.iter().collect::<Vec<_>>(), 0)?])
    };
    let fast = OparaExecutor::builder().build_fn(parallel, &one(0)?)?;
    assert_eq!(
        (fast.report().mode(), fast.report().counts().width, fast.report().counts().streams),
        (Mode::Threads, 2_000, 128)
    );
    answers_like(&fast, parallel, one);
    Ok(())
}
