//! Operands in every layout, and results whose readers transpose or slice them.

use candle::{DType, Tensor, D};
use opara_candle::{Mode, OparaExecutor};

use super::{fused, random};
use crate::common::{assert_same, gpu, layouts, replayed, waves};

#[test]
fn operands_may_have_any_layout() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        for (way, y) in layouts(&waves(5, (6, 4))?.to_dtype(dtype)?.to_device(&device)?)? {
            let function = move |t: &[Tensor]| {
                let x = t[0].relu()?;
                Ok(vec![(x.sqr()?.broadcast_mul(&y)? + &y)?.neg()?, x.t()?.contiguous()?.exp()?])
            };
            let fast =
                replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (6, 4))?.to_dtype(dtype)?.to_device(&device)?]));
            assert!(fast.report().counts().fused >= 4, "{way}: {}", fast.report());
        }
    }
    Ok(())
}

#[test]
fn a_transposing_reader_permutes_the_whole_group() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let bias = waves(2, 24)?.to_dtype(dtype)?.to_device(&device)?;
        let input = |i| Ok(vec![waves(i, (2, 5, 24))?.to_dtype(dtype)?.to_device(&device)?]);
        // The heads of a projection, which are scaled afterwards.
        let of = bias.clone();
        let heads = move |t: &[Tensor]| {
            let heads = t[0].broadcast_add(&of)?.reshape((2, 5, 4, 6))?.transpose(1, 2)?;
            Ok(vec![heads.contiguous()?.affine(0.5, 0.)?])
        };
        fused(&replayed(Mode::Graph, heads, input), 2);
        // Here the sum is also needed untransposed.
        let both = move |t: &[Tensor]| {
            let sum = t[0].broadcast_add(&bias)?;
            Ok(vec![sum.transpose(1, 2)?.contiguous()?.neg()?, sum])
        };
        fused(&replayed(Mode::Graph, both, input), 1);
    }
    Ok(())
}

/// Queries, keys and values of one biased matmul, split into heads; the queries are scaled.
#[test]
fn slices_of_a_sum_are_recomputed_by_their_readers() -> anyhow::Result<()> {
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
            // If the full sum is needed, it is computed.
            fused(&replayed(Mode::Graph, parts, input), 0);
        }
    }
    Ok(())
}

#[test]
fn views_with_too_many_dimensions_are_not_fused() {
    let Some(device) = gpu() else { return };
    let function = |t: &[Tensor]| {
        let turned = t[0].reshape((2, 3, 2, 3, 2, 3))?.permute((5, 3, 1, 4, 2, 0))?;
        Ok(vec![turned.contiguous()?, turned.sqr()?.neg()?])
    };
    let fast = replayed(Mode::Graph, function, |i| Ok(vec![waves(i, (6, 6, 6))?.to_device(&device)?]));
    fused(&fast, 0);
}

/// Vector loads are used only where the elements are contiguous and aligned.
#[test]
fn operands_at_any_offset() -> anyhow::Result<()> {
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
                assert!(report.counts().fused >= 3 && report.reason().is_none(), "{report}");
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
