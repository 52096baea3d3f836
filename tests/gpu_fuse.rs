//! Chains of kernels in one launch, on a GPU: every operator and type, rows of every length, every layout, all that may
//! stand between. Without a GPU, or without the `cuda` feature, each test says that it skips.

mod common;

use std::path::Path;

use candle::{DType, Device, Result, Tensor, D};
use common::{answers_like, assert_same, gpu, layouts, one_on, replayed, waves};
use half::{bf16, f16};
use opara_candle::{Mode, OparaExecutor};

/// The executor's report says that so many launches became part of others.
#[track_caller]
fn fused(fast: &OparaExecutor, launches: usize) {
    let report = fast.report();
    assert_eq!((report.mode, report.fused, &report.reason), (Mode::Graph, launches, &None), "{report}");
}

/// Every number of a 16-bit type, and of f32 one in every 1031, infinities and NaNs included.
fn all_numbers(dtype: DType, device: &Device) -> Result<Tensor> {
    match dtype {
        DType::F16 => Tensor::from_iter((0..=u16::MAX).map(f16::from_bits), device),
        DType::BF16 => Tensor::from_iter((0..=u16::MAX).map(bf16::from_bits), device),
        _ => Tensor::from_iter((0..u32::MAX / 1031).map(|i| f32::from_bits(i * 1031 + 1)), device),
    }
}

/// Random numbers, drawn by the CPU: cuRAND fails now and then while another thread captures.
fn random(shape: (usize, usize), device: &Device) -> Result<Tensor> {
    Tensor::rand(-2f32, 2., shape, &Device::Cpu)?.to_device(device)
}

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);

const UNARY: &[Unary] = &[
    ("sqr", Tensor::sqr),
    ("sqrt", Tensor::sqrt),
    ("neg", Tensor::neg),
    ("abs", Tensor::abs),
    ("recip", Tensor::recip),
    ("relu", Tensor::relu),
    ("exp", Tensor::exp),
    ("tanh", Tensor::tanh),
    ("silu", Tensor::silu),
    ("gelu", Tensor::gelu),
    ("gelu_erf", Tensor::gelu_erf),
    ("sigmoid", candle_nn::ops::sigmoid),
    ("affine", |x| x.affine(1.7, -0.3)),
    ("to f16", |x| x.to_dtype(DType::F16)),
    ("to bf16", |x| x.to_dtype(DType::BF16)),
    ("to f32", |x| x.to_dtype(DType::F32)),
];

#[test]
fn every_operator_of_one_number_gives_the_same_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = all_numbers(dtype, &device)?;
        for &(name, operator) in UNARY {
            let of = format!("{name} of {dtype:?}");
            let function = move |t: &[Tensor]| Ok(vec![operator(&t[0])?.neg()?]);
            let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
            // A cast to the same type is no launch, and candle computes this one in another type.
            let alone = operator(&x.narrow(0, 0, 1)?)?.dtype() == dtype && name.starts_with("to ");
            let left_alone = alone || dtype == DType::BF16 && ["silu", "sigmoid"].contains(&name);
            let report = fast.report();
            assert_eq!((report.fused, &report.reason), (usize::from(!left_alone), &None), "{of}: {report}");
            assert!(report.verified, "{of}");
        }
    }
    Ok(())
}

#[test]
fn every_operator_of_two_numbers_gives_the_same_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let operators: [(&str, Binary); 6] = [
        ("add", Tensor::broadcast_add),
        ("sub", Tensor::broadcast_sub),
        ("mul", Tensor::broadcast_mul),
        ("div", Tensor::broadcast_div),
        ("maximum", Tensor::broadcast_maximum),
        ("minimum", Tensor::broadcast_minimum),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        // Every 16-bit number with some of each sign and size; of f32 some with some.
        let x = all_numbers(dtype, &device)?;
        let count = x.elem_count();
        let step = count / 1024;
        let some = x.narrow(0, 0, step * 1024)?.reshape((1024, step))?.narrow(1, step / 3, 1)?.reshape((1, 1024))?;
        let x = if dtype == DType::F32 { some.reshape((1024, 1))? } else { x.reshape((count, 1))?.contiguous()? };
        let inputs = [x, some.contiguous()?];
        for (name, operator) in operators {
            let function = move |t: &[Tensor]| Ok(vec![operator(&t[0], &t[1])?.neg()?]);
            let fast = OparaExecutor::builder().verify(false).build_fn(function, &inputs)?;
            fused(&fast, 1);
            let (got, expected) = (&fast.call(&inputs)?[0], &function(&inputs)?[0]);
            // On the device: there are millions of them. Zeros of either sign are told apart by what they divide.
            let same = got.eq(expected)?.mul(&got.recip()?.eq(&expected.recip()?)?)?;
            let nan = got.ne(got)?.mul(&expected.ne(expected)?)?;
            let differing = same.maximum(&nan)?.eq(0u8)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
            assert_eq!(differing, 0., "{name} of {dtype:?}");
        }
    }
    Ok(())
}

/// The norm of T5, as candle-transformers computes it.
fn norm(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let variance = (wide.sqr()?.sum_keepdim(D::Minus1)? * (1. / x.dim(D::Minus1)? as f64))?;
    let normed = wide.broadcast_div(&(variance + 1e-6)?.sqrt()?)?;
    normed.to_dtype(x.dtype())?.broadcast_mul(weight)
}

#[test]
fn a_norm_of_many_launches_is_one() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let weight = waves(3, 64)?.to_device(&device)?.to_dtype(dtype)?;
        let function = move |t: &[Tensor]| {
            let sum = (&t[0] + &t[1])?;
            Ok(vec![norm(&sum, &weight)?, sum])
        };
        let input = |i, shape: (usize, usize, usize)| waves(i, shape)?.to_device(&device)?.to_dtype(dtype);
        let fast =
            replayed(Mode::Graph, function.clone(), |i| Ok(vec![input(i, (2, 7, 64))?, input(i + 9, (2, 7, 64))?]));
        let apart = OparaExecutor::builder().fuse(false);
        let example = [input(0, (2, 7, 64))?, input(9, (2, 7, 64))?];
        let apart = apart.build_fn(function.clone(), &example)?;
        fused(&apart, 0);
        fused(&fast, apart.report().ops - apart.report().folded - 1);
        answers_like(&fast, function, |i| Ok(vec![input(i, (1, 3, 64))?, input(i + 5, (1, 3, 64))?]));
    }
    Ok(())
}

/// Rows of lengths on either side of what candle's blocks and a chain's blocks hold, and, of short ones, as many as make a
/// block have several.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let few = [2, 33, 100, 128, 768, 1000, 1023, 1024, 1500, 3072, 4096].map(|columns| (5, columns));
    few.into_iter().chain([(1024, 2), (1028, 33), (1028, 100), (1024, 128), (1026, 128), (1024, 129)])
}

/// Rows of numbers, some of which hold an infinity, a NaN, or zeros alone.
fn rows(i: usize, rows: usize, columns: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let mut numbers = waves(i, (rows, columns))?.flatten_all()?.to_vec1::<f32>()?;
    numbers[..columns].fill(0.);
    for (row, special) in [(1, f32::INFINITY), (2, f32::NEG_INFINITY), (3, f32::NAN)] {
        numbers[row * columns + (row * 31 + i) % columns] = special;
    }
    Tensor::from_vec(numbers, (rows, columns), device)?.to_dtype(dtype)
}

#[test]
fn kernels_of_rows_give_the_same_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Rows = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let operators: [(&str, Rows); 3] = [
        ("layer norm", |x, weight, bias| candle_nn::ops::layer_norm(x, weight, bias, 1e-5)),
        ("rms norm", |x, weight, _| candle_nn::ops::rms_norm(x, weight, 1e-6)),
        ("softmax", |x, _, _| candle_nn::ops::softmax_last_dim(x)),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for ((count, columns), (name, operator)) in shapes().flat_map(|shape| operators.map(|of| (shape, of))) {
            let vector = |i| waves(i, columns)?.to_dtype(dtype)?.to_device(&device);
            let (weight, bias) = (vector(3)?, vector(4)?);
            let function = move |t: &[Tensor]| {
                let sum = (&t[0] + &t[1])?.broadcast_add(&bias)?;
                Ok(vec![operator(&sum, &weight, &bias)?.relu()?, operator(&t[0], &weight, &bias)?])
            };
            let input = |i| rows(i, count, columns, dtype, &device);
            let fast = replayed(Mode::Graph, function, |i| Ok(vec![input(i)?, input(i + 7)?]));
            assert_eq!(fast.report().fused, 3, "{name} of {count} x {columns} {dtype:?}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn folds_of_rows_give_the_same_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (count, columns) in shapes() {
            // candle adds short rows up by another kernel.
            let sums = columns > 32;
            let function = move |t: &[Tensor]| {
                let x = (&t[0] * 0.5)?;
                let most = x.max_keepdim(1)?;
                let distance = x.broadcast_sub(&most)?.exp()?;
                let least = distance.min_keepdim(1)?.affine(2., 0.25)?;
                let sum = distance.sum_keepdim(1)?;
                Ok(vec![distance.broadcast_div(&sum)?, most, distance.broadcast_mul(&least)?])
            };
            let fast = replayed(Mode::Graph, function, |i| Ok(vec![rows(i, count, columns, dtype, &device)?]));
            // With the sum all of it is one launch; without, the quotient is another.
            let launches = if sums { 8 } else { 6 };
            assert_eq!(fast.report().fused, launches, "{count} x {columns} {dtype:?}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_too_long_and_rows_that_are_no_rows_are_left_alone() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let long = |t: &[Tensor]| Ok(vec![candle_nn::ops::softmax_last_dim(&t[0].relu()?)?.neg()?]);
    fused(&replayed(Mode::Graph, long, |i| Ok(vec![waves(i, (3, 5000))?.to_device(&device)?])), 0);
    // The sum goes through columns, the quotient through rows.
    let columns = |t: &[Tensor]| {
        let x = t[0].sqr()?;
        Ok(vec![x.broadcast_div(&x.sum_keepdim(0)?)?.neg()?])
    };
    fused(&replayed(Mode::Graph, columns, |i| Ok(vec![waves(i, (48, 40))?.to_device(&device)?])), 1);
    // As many rows as columns: the numbers of rows stand for columns.
    let crossed = |t: &[Tensor]| {
        let x = t[0].sqr()?;
        Ok(vec![x.broadcast_div(&x.sum(1)?)?.neg()?])
    };
    fused(&replayed(Mode::Graph, crossed, |i| Ok(vec![waves(i, (40, 40))?.to_device(&device)?])), 2);
    Ok(())
}

#[test]
fn operands_may_lie_in_any_way() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        for (way, y) in layouts(&waves(5, (6, 4))?.to_dtype(dtype)?.to_device(&device)?)? {
            let function = move |t: &[Tensor]| {
                let x = t[0].relu()?;
                Ok(vec![(x.sqr()?.broadcast_mul(&y)? + &y)?.neg()?, x.t()?.contiguous()?.exp()?])
            };
            let fast =
                replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (6, 4))?.to_dtype(dtype)?.to_device(&device)?]));
            assert!(fast.report().fused >= 4, "{way}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn a_result_that_is_turned_turns_its_chain() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let bias = waves(2, 24)?.to_dtype(dtype)?.to_device(&device)?;
        let input = |i| Ok(vec![waves(i, (2, 5, 24))?.to_dtype(dtype)?.to_device(&device)?]);
        // Heads of what a product makes, which are scaled then.
        let of = bias.clone();
        let heads = move |t: &[Tensor]| {
            let heads = t[0].broadcast_add(&of)?.reshape((2, 5, 4, 6))?.transpose(1, 2)?;
            Ok(vec![heads.contiguous()?.affine(0.5, 0.)?])
        };
        fused(&replayed(Mode::Graph, heads, input), 2);
        // Here the sum is needed as it was, too.
        let both = move |t: &[Tensor]| {
            let sum = t[0].broadcast_add(&bias)?;
            Ok(vec![sum.transpose(1, 2)?.contiguous()?.neg()?, sum])
        };
        fused(&replayed(Mode::Graph, both, input), 1);
    }
    Ok(())
}

/// Queries, keys and values, split into heads, of one product and its bias; queries scaled.
#[test]
fn parts_of_a_sum_are_made_where_they_are_taken() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (tokens, heads, width) in [(7, 2, 8), (5, 3, 7), (1100, 8, 64)] {
            let bias = waves(3, 3 * heads * width)?.to_device(&device)?.to_dtype(dtype)?;
            let parts = move |t: &[Tensor]| {
                let sum = t[0].broadcast_add(&bias)?;
                let all = sum.reshape((2, tokens, 3 * heads, width))?.transpose(1, 2)?;
                let part = |index: usize| all.narrow(1, index * heads, heads);
                Ok(vec![(part(0)? * 0.125)?, part(1)?.contiguous()?, part(2)?.transpose(2, 3)?.contiguous()?, sum])
            };
            let input = |i| Ok(vec![waves(i, (2, tokens, 3 * heads * width))?.to_device(&device)?.to_dtype(dtype)?]);
            let without_sum = parts.clone();
            let fast = replayed(Mode::Graph, move |t| Ok(without_sum(t)?[..3].to_vec()), input);
            fused(&fast, 1);
            // Who wants the sum, too, gets it.
            fused(&replayed(Mode::Graph, parts, input), 0);
        }
    }
    Ok(())
}

#[test]
fn what_lies_in_more_dimensions_than_the_kernel_counts_is_left_alone() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let turned = t[0].reshape((2, 3, 2, 3, 2, 3))?.permute((5, 3, 1, 4, 2, 0))?;
        Ok(vec![turned.contiguous()?, turned.sqr()?.neg()?])
    };
    let fast = replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (6, 6, 6))?.to_device(&device)?]));
    fused(&fast, 0);
}

#[test]
fn a_result_in_the_middle_is_an_output_too() {
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
fn executors_that_share_kernels_outlive_each_other() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![((&t[0] + 0.625)?.sqr()? * 0.375)?.exp()?]);
    let build = || OparaExecutor::builder().build_fn(function, &one_on(0, &device)?).map_err(anyhow::Error::from);
    let (mut before, inputs) = (build()?, one_on(1, &device)?);
    let expected = function(&inputs)?;
    for _ in 0..3 {
        // One is built while the kernels are on the device, and one after they have left it.
        let fast = build()?;
        fused(&fast, 3);
        drop(before);
        assert_same(&fast.call(&inputs)?, &expected, "an executor whose neighbour is gone");
        drop(fast);
        before = build()?;
    }
    assert_same(&before.call(&inputs)?, &expected, "the last one");
    Ok(())
}

#[test]
fn kernels_are_kept_where_that_is_asked_for() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let kept = || Ok::<_, std::io::Error>(std::fs::read_dir(folder.path())?.count());
    let build = |folder: Option<&Path>, summand: f64| {
        let function = move |t: &[Tensor]| Ok(vec![(t[0].sqr()? + summand)?]);
        OparaExecutor::builder().kernel_cache(folder.map(Path::to_path_buf)).build_fn(function, &one_on(0, &device)?)
    };
    fused(&build(None, 0.71875)?, 1);
    assert_eq!(kept()?, 0);
    // Another summand is another kernel: this process has none of it yet.
    fused(&build(Some(folder.path()), 0.84375)?, 1);
    assert_eq!(kept()?, 1);
    Ok(())
}

#[test]
fn chains_longer_than_one_launch_are_cut() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| {
        let step = |x: Tensor, i: usize| x.affine(if i.is_multiple_of(2) { 0.5 } else { 2. }, 0.25);
        Ok(vec![(0..100).try_fold(t[0].clone(), step)?])
    };
    let fast = replayed(Mode::Graph, function, |i| one_on(i, &device));
    fused(&fast, 100 - 100usize.div_ceil(12));
    // With an operand more for every other step.
    let sum = |t: &[Tensor]| Ok(vec![t[1..].iter().try_fold(t[0].clone(), |sum, x| (&sum * 0.5)? + x)?]);
    let inputs = |i: usize| (0..12).map(|j| waves(i + j, (3, 5))?.to_device(&device)).collect::<Result<Vec<_>>>();
    let fast = replayed(Mode::Graph, sum, inputs);
    fused(&fast, 22 - 2);
    Ok(())
}

#[test]
fn results_that_are_needed_later_stay_with_the_thread() {
    let Some(device) = gpu() else { return };
    // The first of so many results is taken last.
    let function = |many: usize| {
        move |t: &[Tensor]| {
            let base = t[0].relu()?;
            let parts = (0..many).map(|i| base.affine(1.5, i as f64)).collect::<Result<Vec<_>>>()?;
            let (last, rest) = parts.split_last().expect("there are some");
            Ok(vec![rest.iter().rev().try_fold(last.clone(), |sum, part| part.sqr()? - sum)?])
        }
    };
    let inputs = |i| one_on(i, &device);
    let fast = replayed(Mode::Graph, function(4), inputs);
    fused(&fast, 10);
}

#[test]
fn operands_beyond_what_a_launch_takes() {
    let Some(device) = gpu() else { return };
    // Two for each norm, and those after it need what it makes.
    let function = |t: &[Tensor]| {
        let norm = |x: Tensor, i: usize| candle_nn::ops::layer_norm(&x, &t[1 + 2 * i], &t[2 + 2 * i], 1e-5);
        let normed = (0..8).try_fold(t[0].clone(), norm)?;
        Ok(vec![candle_nn::ops::softmax_last_dim(&normed.sqr()?.t()?.contiguous()?)?])
    };
    let inputs = |i| {
        let ones = (0..16).map(|j| waves(i + j, 24)?.to_device(&device));
        std::iter::once(waves(i, (8, 24))?.to_device(&device)).chain(ones).collect::<Result<Vec<_>>>()
    };
    // Seven norms are one launch, and the copy and the softmax.
    fused(&replayed(Mode::Graph, function, inputs), 11 - 4);
}

/// Neighbours are loaded at once only where they lie so.
#[test]
fn operands_that_begin_anywhere() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let some =
            [(1024, 0), (1024, 4), (1024, 6), (1026, 2), (1027, 1)].map(|(width, padding)| (200, width, padding));
        let very_many = [(1032, 1024, 0), (1032, 1024, 4), (1032, 1028, 4)];
        for (rows, width, padding) in some.into_iter().chain(very_many) {
            let x = random((rows, width + padding + 8), &device)?.to_dtype(dtype)?;
            let flat = x.flatten_all()?;
            for start in [0, 1, 2, 4, 8] {
                let function = move |t: &[Tensor]| {
                    let narrow = t[0].narrow(1, start, width)?;
                    let in_a_row = t[1].narrow(0, start, rows * width)?.reshape((rows, width))?;
                    let column = t[0].narrow(1, start, 1)?.broadcast_as((rows, width))?;
                    let sum = ((narrow * 0.5)? + in_a_row)?;
                    Ok(vec![candle_nn::ops::softmax(&sum, D::Minus1)?, (sum.sqr()? + column)?.t()?.contiguous()?])
                };
                let inputs = [x.clone(), flat.clone()];
                let fast = OparaExecutor::builder().build_fn(function, &inputs)?;
                let report = fast.report();
                assert!(report.fused >= 3 && report.reason.is_none(), "{report}");
                assert_same(
                    &fast.call(&inputs)?,
                    &function(&inputs)?,
                    format_args!("{dtype:?} {rows} {width} {padding} {start}"),
                );
            }
        }
    }
    Ok(())
}

/// A product and a sum of candle's are two kernels, and round twice.
#[test]
fn a_product_and_the_sum_after_it_are_rounded_each() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Product = fn(&Tensor) -> Result<Tensor>;
    let products: [Product; 6] = [
        |x| x * x.affine(0.3, 0.7)?,
        Tensor::sqr,
        Tensor::gelu,
        Tensor::gelu_erf,
        |x| candle_nn::ops::softmax_last_dim(x),
        |x| candle_nn::ops::rms_norm(x, &x.narrow(0, 0, 1)?.squeeze(0)?.contiguous()?, 1e-5),
    ];
    let sums: [fn(&Tensor, &Tensor) -> Result<Tensor>; 4] = [
        |x, y| x + y,
        |x, y| y - x,
        |x, _| candle_nn::ops::softmax_last_dim(x),
        |x, y| {
            candle_nn::ops::layer_norm(
                x,
                &y.narrow(0, 1, 1)?.squeeze(0)?.contiguous()?,
                &y.narrow(0, 0, 1)?.squeeze(0)?.contiguous()?,
                1e-5,
            )
        },
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = random((64, 1000), &device)?.to_dtype(dtype)?;
        let y = random((64, 1000), &device)?.to_dtype(dtype)?;
        for product in products {
            for sum in sums {
                let function = move |t: &[Tensor]| Ok(vec![sum(&product(&t[0])?, &t[1])?]);
                let fast = OparaExecutor::builder().build_fn(function, &[x.clone(), y.clone()])?;
                let report = fast.report();
                assert!(report.fused >= 1 && report.reason.is_none(), "{report}");
            }
        }
    }
    Ok(())
}

#[test]
fn many_elements_and_one() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![(t[0].sqr()? + &t[0])?.gelu_erf()?]);
    for shape in [(1, 1), (1, 127), (4096, 4099)] {
        let x = random(shape, &device)?;
        let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
        fused(&fast, 2);
        assert_same(&fast.call(std::slice::from_ref(&x))?, &function(&[x])?, format_args!("{shape:?}"));
    }
    Ok(())
}

#[test]
fn many_rows_and_one() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![candle_nn::ops::softmax(&t[0].affine(0.125, 0.)?, D::Minus1)?]);
    for shape in [(1, 768), (100_000, 64)] {
        let x = random(shape, &device)?;
        let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
        fused(&fast, 5);
        assert_same(&fast.call(std::slice::from_ref(&x))?, &function(&[x])?, format_args!("{shape:?}"));
    }
    Ok(())
}
